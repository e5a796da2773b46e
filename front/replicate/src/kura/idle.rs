//! A stream to a program behind ssh, which nobody tells that the machine at its other end is gone: it would have the copy for as long as
//! the system waits for that.
//!
//! ```text
//!   source: says now and then that it asks nothing ──ssh──> target: is over when nothing has come for a while
//! ```

use super::link::Patient;
use crate::run::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::os::fd::AsFd;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A frame that asks nothing, and has no reply.
pub const IDLE: [u8; 5] = [0, 0, 0, 0, 20];
/// How often a source says it: some of them may be late.
pub const OFTEN: Duration = Duration::from_secs(10);

/// A pipe to which whole frames are written, and in which it is said meanwhile that nothing is asked.
pub struct Beating<W> {
    pipe: Arc<Mutex<Patient<W>>>,
    _over: Sender<()>,
}

impl<W: Write + AsFd + Send + 'static> Beating<W> {
    pub fn new(pipe: Patient<W>, often: Duration) -> Self {
        let (over, is_over) = channel();
        let pipe = Arc::new(Mutex::new(pipe));
        let beaten = Arc::clone(&pipe);
        std::thread::spawn(move || {
            while is_over.recv_timeout(often) == Err(RecvTimeoutError::Timeout) {
                // Whoever is writing just then says enough. So few bytes go into a pipe as a whole, or not at all.
                if let Ok(mut pipe) = beaten.try_lock() {
                    let _ = pipe.pipe.write(&IDLE);
                }
            }
        });
        Self { pipe, _over: over }
    }
}

impl<W: Write + AsFd> Write for Beating<W> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        lock(&self.pipe).write(bytes)
    }

    fn write_all(&mut self, frame: &[u8]) -> Result<()> {
        lock(&self.pipe).write_all(frame)
    }

    fn flush(&mut self) -> Result<()> {
        lock(&self.pipe).flush()
    }
}

/// Reads for as long as something comes within a while.
pub struct Awaited<R>(pub R, pub Duration);

impl<R: Read + AsFd> Read for Awaited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let Self(stream, patience) = self;
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], (*patience).try_into().ok().as_ref()) {
            Ok(0) => Err(Error::new(ErrorKind::TimedOut, format!("nothing came for {} s", patience.as_secs()))),
            Err(Errno::INTR) => Err(ErrorKind::Interrupted.into()),
            _ => stream.read(buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::{Hold, Request, VERSION};
    use super::super::serve::serve_stream;
    use super::super::sink::Sink;
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_source_that_asks_nothing_is_waited_for_and_one_that_is_gone_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        let (here, there) = UnixStream::pair().unwrap();
        let served = copy.clone();
        let serving =
            std::thread::spawn(move || serve_stream(&served, Awaited(&there, Duration::from_secs(2)), &there));
        let patient = Patient::new(here.try_clone().unwrap(), &Arc::default(), Duration::from_secs(1)).unwrap();
        let mut source = Beating::new(patient, Duration::from_millis(100));
        let hello = Request::Hello { version: VERSION, path: b"", token: b"", hold: Hold::Run };
        source.write_all(&hello.frame()).unwrap();
        let is_held = || crate::marker::hold(&copy, false).is_err();
        std::thread::sleep(Duration::from_secs(4));
        assert!(!serving.is_finished() && is_held());
        // Its machine is gone: the stream stays.
        drop(source);
        let told = serving.join().unwrap().unwrap_err().to_string();
        assert!(told.contains("nothing came") && !is_held(), "{told}");
        assert!(Sink::open(&copy, false).unwrap().hold(Hold::Run).is_ok());
    }
}
