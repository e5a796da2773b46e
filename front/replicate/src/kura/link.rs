//! The way to a target's end: in this process, or by a stream.

use super::idle::{Beating, OFTEN};
use super::message::{ALIVE, Bounds, Reply, Request, Welcome, line, read_frame};
use super::serve::BEAT;
use super::sink::Sink;
use super::tls;
use crate::run::lock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::ioctl_fionbio;
use rustix::net::sockopt;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most bytes, and messages, that are on their way at once.
const WINDOW: (usize, usize) = (16 << 20, 1024);

/// An end that is to be given up soon may miss some signs of life.
const LEAST_PATIENCE: Duration = BEAT.saturating_mul(5);
/// Silence is counted in such parts, the last of which may be the one in which this machine stood still.
const SILENCES: u32 = 8;

/// How long the program whose streams it was may take to its end.
const PARTING: Duration = Duration::from_secs(10);

/// The way to a target's end. An error of its functions says why it is gone, in one line.
pub enum Link {
    /// The target is a directory of this machine.
    Near(Box<Sink>),
    /// It is somewhere else.
    Far(Box<Far>),
}

/// A stream to another kura.
pub struct Far {
    writer: Box<dyn Write + Send>,
    /// What each reply may have that is read next: what nobody has asked for is left where it is.
    asked: Sender<Bounds>,
    replies: Receiver<std::io::Result<Reply>>,
    /// Bytes that have come.
    moved: Arc<AtomicU64>,
    /// How long none may come while something was asked.
    patience: Duration,
    /// Bytes of each message that has no reply yet.
    on_the_way: VecDeque<usize>,
    bytes_on_the_way: usize,
    child: Option<Child>,
    /// What it said first.
    welcome: Welcome,
    /// What the other end's ssh complained of.
    complaint: Arc<Mutex<String>>,
    /// What may be wrong where the other end does not speak as a kura does.
    hint: &'static str,
}

impl Link {
    /// Sends a request. Near, the reply comes at once.
    pub fn send(&mut self, request: Request<'_>) -> Result<Option<Reply>, String> {
        match self {
            Self::Near(sink) => Ok(Some(sink.handle(request))),
            Self::Far(far) => far.send(&request).map(|()| None),
        }
    }

    /// A reply that has come, or, when too much is on its way or `waits` is said, the next one that comes.
    pub fn receive(&mut self, waits: bool) -> Result<Option<Reply>, String> {
        match self {
            Self::Near(_) => Ok(None),
            Self::Far(far) => far.receive(waits),
        }
    }
}

impl Link {
    /// What the target's end said of its copy; of one on this machine anybody can see it.
    pub fn welcome(&self) -> Result<Welcome, String> {
        match self {
            Self::Near(sink) => sink.welcome().map_err(|error| error.to_string()),
            Self::Far(far) => Ok(far.welcome.clone()),
        }
    }

    /// All records of a target's tree, which begin with these: far, they come in several frames, the last of which is empty.
    pub fn records(&mut self, mut frame: Vec<Vec<u8>>, most_bytes: usize) -> Result<Vec<Vec<u8>>, String> {
        let Self::Far(far) = self else { return Ok(frame) };
        let (mut records, mut bytes) = (Vec::new(), 0);
        while !frame.is_empty() {
            bytes += frame.iter().map(|record| record.len() + size_of::<Vec<u8>>()).sum::<usize>();
            if bytes > most_bytes {
                let most = most_bytes >> 20;
                return Err(format!("it lists more than {most} MiB of names: make a copy of each part of the tree"));
            }
            records.append(&mut frame);
            frame = far.more()?;
        }
        Ok(records)
    }
}

/// Counts the bytes that are read.
pub struct Counted<R>(pub R, pub Arc<AtomicU64>);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.0.read(buffer)?;
        self.1.fetch_add(count as u64, Relaxed);
        Ok(count)
    }
}

/// Waits for as long as bytes come: `wait` does it for a part of the patience, and tells what it was for.
fn patiently<T>(
    moved: &AtomicU64,
    patience: Duration,
    mut wait: impl FnMut(Duration) -> Option<T>,
) -> Result<T, String> {
    let mut silences = 0;
    while silences < SILENCES {
        let before = moved.load(Relaxed);
        if let Some(done) = wait(patience / SILENCES) {
            return Ok(done);
        }
        silences = if moved.load(Relaxed) == before { silences + 1 } else { 0 };
    }
    Err(format!("nothing moved for {} s", patience.as_secs()))
}

/// A pipe to a program, to which is written for as long as bytes go or come. A socket has a time of its own.
pub(super) struct Patient<W> {
    pub(super) pipe: W,
    /// Bytes that have come the other way.
    moved: Arc<AtomicU64>,
    patience: Duration,
}

impl<W: Write + AsFd> Patient<W> {
    pub(super) fn new(pipe: W, moved: &Arc<AtomicU64>, patience: Duration) -> std::io::Result<Self> {
        ioctl_fionbio(&pipe, true)?;
        Ok(Self { pipe, moved: Arc::clone(moved), patience })
    }
}

impl<W: Write + AsFd> Write for Patient<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let Self { pipe, moved, patience } = self;
        let written = patiently(moved, *patience, |part| {
            // Whether it takes something now is told by the write.
            let _ = poll(&mut [PollFd::new(pipe, PollFlags::OUT)], part.try_into().ok().as_ref());
            Some(pipe.write(bytes)).filter(|written| !is_kind(written, ErrorKind::WouldBlock))
        });
        written.map_err(|why| Error::new(ErrorKind::TimedOut, why))?
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.pipe.flush()
    }
}

fn is_kind<T>(done: &std::io::Result<T>, kind: ErrorKind) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == kind)
}

impl Far {
    /// By TCP, or by TLS on it where there is an authority to trust.
    pub fn tcp(address: &str, ca: Option<&Path>, timeout: Duration) -> Result<Self, String> {
        let stream =
            connect(address, timeout).map_err(|error| format!("{error}: is `kura replicate serve` running there?"))?;
        let Some(ca) = ca else {
            let reader = stream.try_clone().map_err(|error| error.to_string())?;
            let mut far = Self::new(reader, stream);
            far.hint = ": is it TLS that is spoken there, kuras://?";
            return Ok(far);
        };
        let trust = tls::trust(ca).map_err(|error| format!("{}: {error}", ca.display()))?;
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let greeted = stream.set_read_timeout(Some(timeout)).and_then(|()| {
            let streams = tls::client(stream.try_clone()?, host, trust)?;
            // From here on an answer may take its time.
            stream.set_read_timeout(None)?;
            Ok(streams)
        });
        let (reader, writer) = greeted.map_err(|error| tls::told(&error))?;
        Ok(Self::new(reader, writer))
    }

    /// Kura on another host, by ssh.
    pub fn ssh(host: &str, port: Option<u16>, path: &str, timeout: Duration) -> Result<Self, String> {
        let mut command = Command::new("ssh");
        command.args(["-oBatchMode=yes", "-oConnectTimeout=10", "-oServerAliveInterval=5", "-oServerAliveCountMax=3"]);
        if let Some(port) = port {
            command.arg(format!("-p{port}"));
        }
        let program = std::env::var("KURA_REMOTE").ok().filter(|program| !program.is_empty());
        let program = program.unwrap_or_else(|| "kura".to_owned());
        let quoted = format!("'{}'", path.replace('\'', "'\\''"));
        command.arg("--").arg(host).args([&*program, "replicate", "serve", "--stdio", &*quoted]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("ssh: {error}"))?;
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err("ssh has no streams".to_owned());
        };
        let complaint = Arc::<Mutex<String>>::default();
        let told = Arc::clone(&complaint);
        std::thread::spawn(move || listen(stderr, &told));
        let mut far = Self::new(stdout, std::io::sink());
        let patient =
            Patient::new(stdin, &far.moved, timeout.max(LEAST_PATIENCE)).map_err(|error| error.to_string())?;
        far.writer = Box::new(Beating::new(patient, OFTEN));
        (far.child, far.complaint) = (Some(child), complaint);
        Ok(far)
    }

    fn new(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Self {
        // All replies that may be on their way are taken, so that whoever sends need not take them; none of a stranger's.
        let (asked, bounds) = channel::<Bounds>();
        let (sender, replies) = channel();
        let moved = Arc::<AtomicU64>::default();
        let reader = Counted(reader, Arc::clone(&moved));
        // Ends with the stream, or when nobody asks any more.
        std::thread::spawn(move || {
            let mut reader = BufReader::with_capacity(256 << 10, reader);
            let mut body = Vec::new();
            for Bounds { bytes, items } in bounds {
                let reply = loop {
                    match read_frame(&mut reader, &mut body, bytes) {
                        Ok(Some(kind)) if kind == ALIVE[4] => {}
                        Ok(Some(kind)) => break Reply::of(kind, &body, items),
                        Ok(None) => return,
                        Err(error) => break Err(error),
                    }
                };
                let is_over = reply.is_err();
                if sender.send(reply).is_err() || is_over {
                    return;
                }
            }
        });
        Self {
            writer: Box::new(writer),
            asked,
            replies,
            moved,
            patience: LEAST_PATIENCE,
            on_the_way: VecDeque::new(),
            bytes_on_the_way: 0,
            child: None,
            welcome: Welcome::default(),
            complaint: Arc::default(),
            hint: "",
        }
    }

    /// Says the first words. Whoever is there answers them at once, or is no kura.
    pub fn greet(mut self, hello: &Request<'_>, timeout: Duration) -> Result<Link, String> {
        let hint = self.hint;
        let strange = |why: String| format!("{why}{hint}");
        self.send(hello).map_err(strange)?;
        match self.replies.recv_timeout(timeout) {
            Ok(Ok(Reply::Welcome(welcome))) => self.welcome = welcome,
            Ok(Ok(Reply::Refused(why))) => return Err(why),
            Ok(Ok(_)) => return Err(strange("it does not answer as a kura does".to_owned())),
            Ok(Err(error)) => return Err(strange(self.why(&format!("it does not answer as a kura does ({error})")))),
            Err(RecvTimeoutError::Disconnected) => return Err(strange(self.why("the other end is gone"))),
            Err(RecvTimeoutError::Timeout) => {
                return Err(strange(format!("it does not answer within {} s", timeout.as_secs())));
            }
        }
        self.bytes_on_the_way -= self.on_the_way.pop_front().unwrap_or(0);
        self.patience = timeout.max(LEAST_PATIENCE);
        Ok(Link::Far(Box::new(self)))
    }

    fn send(&mut self, request: &Request<'_>) -> Result<(), String> {
        let frame = request.frame();
        // A thread that has ended has said why.
        let _ = self.asked.send(request.bounds());
        match self.writer.write_all(&frame).and_then(|()| self.writer.flush()) {
            Ok(()) => {}
            // A program that is still there has not said why.
            Err(error) if self.child.is_some() && error.kind() == ErrorKind::TimedOut => return Err(error.to_string()),
            Err(error) => return Err(self.why(&error.to_string())),
        }
        self.on_the_way.push_back(frame.len());
        self.bytes_on_the_way += frame.len();
        Ok(())
    }

    fn receive(&mut self, waits: bool) -> Result<Option<Reply>, String> {
        let is_full = self.bytes_on_the_way > WINDOW.0 || self.on_the_way.len() > WINDOW.1;
        let reply = if (waits || is_full) && !self.on_the_way.is_empty() {
            self.next()?
        } else {
            match self.replies.try_recv() {
                Ok(Ok(reply)) => reply,
                Ok(Err(error)) => return Err(self.why(&error.to_string())),
                Err(TryRecvError::Empty) => return Ok(None),
                Err(TryRecvError::Disconnected) => return Err(self.why("the other end is gone")),
            }
        };
        if let Reply::Refused(why) = reply {
            return Err(why);
        }
        let Some(bytes) = self.on_the_way.pop_front() else {
            return Err("it answers what nobody has asked".to_owned());
        };
        self.bytes_on_the_way -= bytes;
        Ok(Some(reply))
    }

    /// The next reply, for as long as bytes come: an end that is at work says so.
    fn next(&mut self) -> Result<Reply, String> {
        let come = patiently(&self.moved, self.patience, |part| {
            let come = self.replies.recv_timeout(part);
            (!matches!(come, Err(RecvTimeoutError::Timeout))).then_some(come)
        });
        match come? {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => Err(self.why(&error.to_string())),
            Err(_) => Err(self.why("the other end is gone")),
        }
    }

    /// Records that follow others.
    fn more(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let _ = self.asked.send(Bounds::RECORDS);
        match self.next()? {
            Reply::Records(records) => Ok(records),
            Reply::Refused(why) => Err(why),
            _ => Err("it answers something else".to_owned()),
        }
    }

    /// Why the stream ended, as far as anyone says.
    fn why(&mut self, error: &str) -> String {
        if self.child.is_some() {
            self.end();
            // What it said last may still be on its way here.
            std::thread::sleep(Duration::from_millis(50));
        }
        // A refusal may have come before the end.
        while let Ok(Ok(reply)) = self.replies.try_recv() {
            if let Reply::Refused(why) = reply {
                return why;
            }
        }
        let complaint = lock(&self.complaint).clone();
        if complaint.is_empty() { error.to_owned() } else { complaint }
    }

    /// Ends the stream, and a child whose stream it is: one that does not end by itself then is ended.
    fn end(&mut self) {
        // The end of its input is the end of the other end.
        self.writer = Box::new(std::io::sink());
        let Some(mut child) = self.child.take() else { return };
        let began = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if began.elapsed() > PARTING {
                let _ = child.kill();
                let _ = child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The most bytes of a line of complaint.
const COMPLAINT: u64 = 1 << 10;

/// Keeps what a program complains of: its last words are those that matter; warnings come before.
fn listen(stderr: impl Read, told: &Mutex<String>) {
    let mut stderr = BufReader::new(stderr);
    let mut words = Vec::new();
    while stderr.by_ref().take(COMPLAINT).read_until(b'\n', &mut words).is_ok_and(|count| count > 0) {
        let said = line(words.trim_ascii());
        if !said.is_empty() {
            *lock(told) = said;
        }
        words.clear();
    }
}

/// Connects, to an end that is given up when its machine is gone: it need not answer soon, but acknowledge.
fn connect(address: &str, timeout: Duration) -> std::io::Result<TcpStream> {
    let mut met = std::io::Error::other("no such host");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) => {
                tend(&stream, timeout)?;
                return Ok(stream);
            }
            Err(error) => met = error,
        }
    }
    Err(met)
}

/// Sets a socket so that an end whose machine is gone is noticed, even while nothing is sent.
pub fn tend(stream: &TcpStream, timeout: Duration) -> std::io::Result<()> {
    // Messages are as large as they should be.
    sockopt::set_tcp_nodelay(stream, true)?;
    // A machine whose disks are busy may take nothing for a while: that is not yet its end.
    let gone = (5 * timeout).as_millis().try_into().unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, gone)?;
    sockopt::set_socket_keepalive(stream, true)?;
    let probe = (timeout / 4).clamp(Duration::from_secs(1), Duration::from_hours(1));
    sockopt::set_tcp_keepidle(stream, probe)?;
    Ok(sockopt::set_tcp_keepintvl(stream, probe)?)
}

impl Drop for Far {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;

    /// Answers over and over, and counts it.
    struct Chatter(std::iter::Cycle<std::vec::IntoIter<u8>>, Arc<AtomicUsize>);

    impl Read for Chatter {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            buffer.iter_mut().zip(&mut self.0).for_each(|(to, from)| *to = from);
            self.1.fetch_add(buffer.len(), Relaxed);
            Ok(buffer.len())
        }
    }

    #[test]
    fn what_nobody_has_asked_for_is_neither_taken_nor_kept() {
        let told = Arc::<AtomicUsize>::default();
        let frame = Reply::Bytes(vec![7; 100]).frame();
        let mut far = Far::new(Chatter(frame.into_iter().cycle(), Arc::clone(&told)), std::io::sink());
        far.send(&Request::Nothing).unwrap();
        assert!(matches!(far.receive(true), Ok(Some(_))));
        std::thread::sleep(Duration::from_millis(200));
        assert!(matches!(far.receive(true), Ok(None)));
        // What the reader has read ahead.
        assert!(told.load(Relaxed) <= 256 << 10, "{} bytes", told.load(Relaxed));
    }

    #[test]
    fn what_a_program_complains_of_is_a_short_line() {
        let heard = |said: &[u8]| {
            let told = Mutex::default();
            listen(said, &told);
            told.into_inner().unwrap()
        };
        assert_eq!(heard(b"warning\nno \xff \x1b[2Jway\n\n"), "no \u{fffd}  [2Jway");
        assert_eq!(heard(&[b'x'; 10_000]).len(), 10_000 % COMPLAINT as usize);
    }

    #[test]
    fn an_end_is_given_up_when_it_is_silent_and_not_while_it_is_at_work() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut far = Far::new(here, std::io::sink());
        far.patience = Duration::from_millis(400);
        far.send(&Request::Nothing).unwrap();
        let at_work = std::thread::spawn(move || {
            for _ in 0..8 {
                there.write_all(&ALIVE).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
            there.write_all(&Reply::Done(Vec::new()).frame()).unwrap();
            there
        });
        assert_eq!(far.receive(true), Ok(Some(Reply::Done(Vec::new()))));
        let _silent = at_work.join().unwrap();
        far.send(&Request::Nothing).unwrap();
        assert!(far.receive(true).unwrap_err().starts_with("nothing moved for"));
    }

    #[test]
    fn an_end_that_takes_nothing_is_given_up_and_not_while_it_is_at_work() {
        let (mut there, here) = std::io::pipe().unwrap();
        let moved = Arc::<AtomicU64>::default();
        let mut patient = Patient::new(here, &moved, Duration::from_millis(400)).unwrap();
        // More than a pipe holds.
        let much = vec![7; 256 << 10];
        let at_work = std::thread::spawn(move || {
            for _ in 0..8 {
                moved.fetch_add(1, Relaxed);
                std::thread::sleep(Duration::from_millis(100));
            }
            let mut taken = vec![0; 256 << 10];
            there.read_exact(&mut taken).unwrap();
            (there, taken)
        });
        patient.write_all(&much).unwrap();
        let (_silent, taken) = at_work.join().unwrap();
        assert!(taken == much);
        let given_up = patient.write_all(&much).unwrap_err().to_string();
        assert!(given_up.starts_with("nothing moved for"), "{given_up}");
    }

    #[test]
    fn a_list_of_names_without_an_end_is_given_up() {
        let told = Arc::<AtomicUsize>::default();
        let frame = Reply::Records(vec![vec![7; 100]; 100]).frame();
        let far = Far::new(Chatter(frame.into_iter().cycle(), Arc::clone(&told)), std::io::sink());
        let mut link = Link::Far(Box::new(far));
        assert!(matches!(link.send(Request::Tree), Ok(None)));
        let Ok(Some(Reply::Records(first))) = link.receive(true) else { panic!() };
        let given_up = link.records(first, 4 << 20).unwrap_err();
        assert!(given_up.contains("more than 4 MiB of names"), "{given_up}");
        assert!(told.load(Relaxed) < 5 << 20, "{} bytes", told.load(Relaxed));
    }
}
