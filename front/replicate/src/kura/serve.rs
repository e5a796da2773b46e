//! The target's kura: serves a stream of requests, or all who connect.

use super::idle::{Awaited, IDLE};
use super::link::{Counted, Patient, tend};
use super::message::{ALIVE, Hold, MOST, MOST_RECORD, RECORDS, Reply, Request, VERSION, Welcome, read_frame};
use super::sink::Sink;
use super::tls;
use crate::marker::Marker;
use crate::run::lock;
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufReader, BufWriter, Error, Read, Result, Write, stdin, stdout};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// The most bytes of a first message: nobody is known yet.
const HELLO: usize = 64 << 10;
/// How long they may take to say who they are, and how many may be about it at once.
const GREETING: Duration = Duration::from_secs(10);
const STRANGERS: usize = 256;
/// A reply does not wait longer than this for what comes behind it.
const SOON: Duration = Duration::from_millis(1);
/// A source whose machine does not acknowledge for some of this is gone, and one behind ssh that says nothing for all of it.
const SILENCE: Duration = Duration::from_mins(1);

/// How often an end says that it is alive.
pub(super) const BEAT: Duration = Duration::from_secs(2);

/// Serves the copy in one directory on a stream, until its end. Whoever has the stream may change the copy.
pub fn serve_stream(root: &Path, reader: impl Read, writer: impl Write + Send) -> Result<()> {
    serve(reader, writer, |_, _, hold| {
        Opened::at(root, hold, |makes| Sink::open(root, makes)).map_err(|error| error.to_string())
    })
}

/// The same on this program's own streams, until nothing has come for a while.
pub fn serve_stdio(root: &Path) -> Result<()> {
    let stdin: File = stdin().as_fd().try_clone_to_owned()?.into();
    let stdout: File = stdout().as_fd().try_clone_to_owned()?.into();
    serve_stream(root, Awaited(stdin, SILENCE), Patient::new(stdout, &Arc::default(), SILENCE)?)
}

/// What is at a path.
enum Opened {
    Copy(Sink),
    /// Nothing is, nor is it made for who only looks.
    Nothing(Welcome),
}

impl Opened {
    /// What is at a path, where a copy is made only for a run, and not in another copy.
    fn at(path: &Path, hold: Hold, open: impl FnOnce(bool) -> Result<Sink>) -> Result<Self> {
        let makes = hold == Hold::Run && Marker::above(path).is_none();
        if makes || path.is_dir() { open(makes).map(Self::Copy) } else { Welcome::of(path).map(Self::Nothing) }
    }

    /// What it says of itself is that of whoever has it by now.
    fn enter(&self, hold: Hold) -> std::result::Result<Welcome, String> {
        match self {
            Self::Copy(sink) => {
                sink.hold(hold)?;
                sink.welcome().map_err(|error| error.to_string())
            }
            Self::Nothing(welcome) => Ok(welcome.clone()),
        }
    }

    fn handle(&mut self, request: Request<'_>) -> Reply {
        match (self, request) {
            (Self::Copy(sink), request) => sink.handle(request),
            (Self::Nothing(_), Request::IsEmpty) => Reply::Bytes(vec![1]),
            (Self::Nothing(_), Request::Tree) => Reply::Records(Vec::new()),
            (Self::Nothing(_), Request::Nothing | Request::Unread) => Reply::Done(Vec::new()),
            (Self::Nothing(_), _) => Reply::Refused("there is no copy".to_owned()),
        }
    }
}

/// Copies under one directory, for all who connect and know the token.
pub struct Service {
    root: PathBuf,
    token: String,
    listener: TcpListener,
    tls: Option<Arc<ServerConfig>>,
    strangers: Strangers,
}

impl Service {
    /// Listens. Without TLS only on the loopback: what goes further wants to be encrypted.
    pub fn listen(root: &Path, address: &str, token: String, tls: Option<Arc<ServerConfig>>) -> Result<Self> {
        let listener = TcpListener::bind(address)?;
        if tls.is_none() && !listener.local_addr()?.ip().is_loopback() {
            let text = "it is not on the loopback, and this is not encrypted: say --cert and --key, or use \
                        ssh://HOST/PATH from there";
            return Err(Error::other(format!("{address}: {text}")));
        }
        Ok(Self { root: root.canonicalize()?, token, listener, tls, strangers: Strangers::default() })
    }

    /// Where it listens.
    pub fn address(&self) -> Result<std::net::SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until the process ends, each stream on a thread of its own.
    pub fn run(self) -> Result<()> {
        let service = Arc::new(self);
        let watched = Arc::clone(&service);
        std::thread::spawn(move || watched.strangers.watch());
        loop {
            match service.listener.accept() {
                Ok((stream, _)) => {
                    let (service, stream) = (Arc::clone(&service), Arc::new(stream));
                    service.strangers.come(&stream);
                    std::thread::spawn(move || {
                        // One that breaks is its client's to tell.
                        let _ = service.serve(&stream);
                        service.strangers.leave(&stream);
                    });
                }
                // Out of files or of memory: others end meanwhile.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn serve(&self, stream: &Arc<TcpStream>) -> Result<()> {
        tend(stream, SILENCE)?;
        match &self.tls {
            None => self.serve_on(&**stream, &**stream, stream),
            Some(config) => {
                let (reader, writer) = tls::server(stream.try_clone()?, Arc::clone(config))?;
                self.serve_on(reader, writer, stream)
            }
        }
    }

    fn serve_on(&self, reader: impl Read, writer: impl Write + Send, stream: &Arc<TcpStream>) -> Result<()> {
        serve(reader, writer, |path, token, hold| {
            if !bool::from(self.token.as_bytes().ct_eq(token)) {
                return Err(
                    "the token is wrong: name a copy of the token file there with --target-token-file".to_owned()
                );
            }
            let path = Path::new(std::ffi::OsStr::new(std::str::from_utf8(path).map_err(|_| "the path is no text")?));
            if path.components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err("the path leads out of what is served".to_owned());
            }
            let opened = Opened::at(&self.root.join(path), hold, |makes| Sink::beneath(&self.root, path, makes));
            let opened = opened.map_err(|error| format!("{}: {error}", path.display()))?;
            self.strangers.leave(stream);
            Ok(opened)
        })
    }
}

/// Who has connected and not said yet who they are: not for long, and not too many.
#[derive(Default)]
struct Strangers(Mutex<VecDeque<(Instant, Arc<TcpStream>)>>);

impl Strangers {
    fn come(&self, stream: &Arc<TcpStream>) {
        let mut strangers = lock(&self.0);
        strangers.push_back((Instant::now(), Arc::clone(stream)));
        if strangers.len() > STRANGERS {
            strangers.pop_front().iter().for_each(turn_away);
        }
    }

    fn leave(&self, stream: &Arc<TcpStream>) {
        lock(&self.0).retain(|(_, stranger)| !Arc::ptr_eq(stranger, stream));
    }

    fn watch(&self) {
        loop {
            std::thread::sleep(GREETING / 10);
            let mut strangers = lock(&self.0);
            while let Some(late) = strangers.pop_front_if(|(since, _)| since.elapsed() > GREETING) {
                turn_away(&late);
            }
        }
    }
}

/// Its thread's next word with it is an error.
fn turn_away((_, stream): &(Instant, Arc<TcpStream>)) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// Serves a stream. `enter` says what a path and a token open.
fn serve(
    reader: impl Read,
    writer: impl Write + Send,
    enter: impl Fn(&[u8], &[u8], Hold) -> std::result::Result<Opened, String>,
) -> Result<()> {
    let writer = &Mutex::new(BufWriter::new(writer));
    let (heard, answered) = (Arc::<AtomicU64>::default(), &AtomicU64::default());
    let reader = Counted(reader, Arc::clone(&heard));
    std::thread::scope(|scope| {
        // Gone at the end of the conversation, whatever that is.
        let (_conversing, over) = channel::<()>();
        let mut over = Some((over, heard));
        converse(reader, writer, answered, enter, || {
            let Some((over, heard)) = over.take() else { return };
            scope.spawn(move || {
                while over.recv_timeout(BEAT) == Err(RecvTimeoutError::Timeout) {
                    // Whoever has asked nothing takes nothing.
                    let is_asked = heard.load(Relaxed) != answered.load(Relaxed);
                    if is_asked && say(writer, &ALIVE).is_err() {
                        return;
                    }
                }
            });
        })
    })
}

fn say(writer: &Mutex<impl Write>, bytes: &[u8]) -> Result<()> {
    let mut writer = lock(writer);
    writer.write_all(bytes)?;
    writer.flush()
}

/// Answers until the end, and tells how many bytes it has answered. `known` is called when it is known who is there.
fn converse(
    reader: Counted<impl Read>,
    writer: &Mutex<impl Write>,
    answered: &AtomicU64,
    enter: impl Fn(&[u8], &[u8], Hold) -> std::result::Result<Opened, String>,
    mut known: impl FnMut(),
) -> Result<()> {
    let mut reader = BufReader::with_capacity(256 << 10, reader);
    let mut body = Vec::new();
    let mut open: Option<Opened> = None;
    let mut told = Instant::now();
    let note = |reader: &BufReader<Counted<_>>| {
        if reader.buffer().is_empty() {
            answered.store(reader.get_ref().1.load(Relaxed), Relaxed);
        }
    };
    while let Some(kind) = read_frame(&mut reader, &mut body, if open.is_some() { MOST } else { HELLO })? {
        if kind == IDLE[4] {
            note(&reader);
            continue;
        }
        let request = Request::of(kind, &body)?;
        let reply = match (&mut open, request) {
            (Some(opened), request) => opened.handle(request),
            (None, Request::Hello { version: VERSION, path, token, hold }) => {
                let opened = enter(path, token, hold).and_then(|opened| Ok((opened.enter(hold)?, opened)));
                match opened {
                    Ok((welcome, opened)) => {
                        open = Some(opened);
                        Reply::Welcome(welcome)
                    }
                    Err(why) => Reply::Refused(why),
                }
            }
            (None, Request::Hello { version, .. }) => {
                Reply::Refused(format!("it speaks version {VERSION} and not {version}: use the same kura at both ends"))
            }
            (None, _) => Reply::Refused("who speaks first says hello".to_owned()),
        };
        let is_over = matches!(reply, Reply::Refused(_));
        let is_first = matches!(reply, Reply::Welcome(_));
        let mut writer = lock(writer);
        answer(&mut *writer, reply)?;
        if is_over {
            return writer.flush();
        }
        if is_first {
            known();
        }
        note(&reader);
        if reader.buffer().is_empty() || told.elapsed() > SOON {
            writer.flush()?;
            told = Instant::now();
        }
    }
    say(writer, &[])
}

fn answer(writer: &mut impl Write, reply: Reply) -> Result<()> {
    let Reply::Records(records) = reply else { return writer.write_all(&reply.frame()) };
    if records.iter().any(|record| record.len() > MOST_RECORD - RECORDS - 64) {
        let why =
            "a directory there has more entries than a message holds, some four million: spread them over several";
        return writer.write_all(&Reply::Refused(why.to_owned()).frame());
    }
    let mut frame = Vec::new();
    let mut bytes = 0;
    for record in records {
        bytes += record.len();
        frame.push(record);
        if bytes > RECORDS {
            writer.write_all(&Reply::Records(std::mem::take(&mut frame)).frame())?;
            bytes = 0;
        }
    }
    if !frame.is_empty() {
        writer.write_all(&Reply::Records(frame).frame())?;
    }
    writer.write_all(&Reply::Records(Vec::new()).frame())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_is_asked_something_says_that_it_is_alive() {
        let folder = tempfile::tempdir().unwrap();
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let serving = std::thread::spawn(move || serve_stream(folder.path(), &there, &there));
        let say = |bytes: &[u8]| (&here).write_all(bytes).unwrap();
        let hears = |expected| {
            let mut body = Vec::new();
            assert_eq!(read_frame(&mut &here, &mut body, MOST).unwrap(), Some(expected), "{body:?}");
        };
        say(&Request::Hello { version: VERSION, path: b"", token: b"", hold: Hold::No }.frame());
        hears(5);
        std::thread::sleep(BEAT * 3 / 2);
        // A request on its slow way.
        let asked = Request::IsEmpty.frame();
        say(&asked[..3]);
        hears(ALIVE[4]);
        hears(ALIVE[4]);
        say(&asked[3..]);
        hears(1);
        here.set_read_timeout(Some(BEAT * 3 / 2)).unwrap();
        assert!(read_frame(&mut &here, &mut Vec::new(), MOST).is_err());
        drop(here);
        serving.join().unwrap().unwrap();
    }

    #[test]
    fn nothing_is_made_for_who_only_looks_nor_in_another_copy() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        let ask = |path: &Path, hold| {
            let hello = Request::Hello { version: VERSION, path: b"", token: b"", hold };
            let (mut told, asked) = (Vec::new(), [hello.frame(), Request::IsEmpty.frame()].concat());
            serve_stream(path, &asked[..], &mut told).unwrap();
            let (mut told, mut body, mut replies) = (&told[..], Vec::new(), Vec::new());
            while let Some(kind) = read_frame(&mut told, &mut body, MOST).unwrap() {
                replies.push(Reply::of(kind, &body, 0).unwrap());
            }
            replies
        };
        let nothing = ask(&copy, Hold::No);
        assert!(matches!(&nothing[..], [Reply::Welcome(_), Reply::Bytes(is_empty)] if is_empty == &[1]), "{nothing:?}");
        assert!(!copy.exists());
        ask(&copy, Hold::Run);
        assert!(copy.is_dir());
        std::fs::write(copy.join(".kura-replica"), "{}").unwrap();
        let inner = ask(&copy.join("in/deeper"), Hold::Run);
        assert!(matches!(&inner[0], Reply::Welcome(welcome) if !welcome.above.is_empty()), "{inner:?}");
        assert!(!copy.join("in").exists());
    }
}
