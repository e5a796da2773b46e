//! A home for servers, servers that die with their test, and clients that cannot hang it.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a start may take before the test gives up; what it should take is a matter for the bench.
const START: Duration = Duration::from_mins(3);

/// How long a stop may take before it is taken for hung: ten seconds are promised, and a busy machine gets some more.
const STOP: Duration = Duration::from_secs(15);

/// Seconds a client may run before it is taken for hung.
const CLIENT_S: &str = "600";

/// A folder in which servers run as a user would start them there.
pub struct Home {
    folder: TempDir,
}

impl Home {
    pub fn new() -> Self {
        Self { folder: tempfile::Builder::new().prefix("kura-").tempdir().expect("a temporary folder") }
    }

    /// A path in this home.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The data directory a server started here uses by default.
    pub fn data(&self) -> PathBuf {
        self.path("kura-data")
    }

    /// Where servers here answer NBD.
    pub fn socket(&self) -> PathBuf {
        self.data().join("nbd.sock")
    }

    /// The URI of an export.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// `kura` with these arguments, started in this home.
    pub fn kura(&self, args: &[&str]) -> Command {
        let mut command = tool(env!("CARGO_BIN_EXE_kura"));
        command.args(args).current_dir(self.folder.path());
        command
    }

    /// A server on the default data directory that is ready.
    pub fn serve(&self) -> Server {
        self.serve_with(&[])
    }

    /// The same with more arguments.
    pub fn serve_with(&self, args: &[&str]) -> Server {
        let mut server = self.spawn(args);
        server.wait_until_ready();
        server
    }

    /// A server that may have so many files open and no more.
    pub fn serve_limited(&self, files: u32) -> Server {
        let mut prlimit = Command::new("prlimit");
        prlimit.arg(format!("--nofile={files}:{files}")).arg(env!("CARGO_BIN_EXE_kura"));
        let mut server = self.spawn_by(prlimit, &[]);
        server.wait_until_ready();
        server
    }

    /// A server that is only just starting.
    pub fn spawn(&self, args: &[&str]) -> Server {
        self.spawn_by(Command::new(env!("CARGO_BIN_EXE_kura")), args)
    }

    /// The same, by a command that becomes `kura` with what is given it.
    pub fn spawn_by(&self, mut kura: Command, args: &[&str]) -> Server {
        let log = std::fs::File::create(self.path("server.log")).expect("the server's log");
        let doors = ["--nbd", "--s3", "--admin"].into_iter().filter(|door| !args.contains(door));
        let mut child = kura
            .arg("serve")
            .args(doors.flat_map(|door| [door, "127.0.0.1:0"]))
            .args(args)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("kura");
        let stdout = BufReader::new(child.stdout.take().expect("the server's output"));
        let (sender, lines) = mpsc::channel();
        // Ends with the server, whose output it drains.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Server { child, lines, said: String::new(), log: self.path("server.log") }
    }

    /// Runs `kura` and returns what it printed; fails the test when it fails.
    pub fn ok(&self, args: &[&str]) -> String {
        ok(&mut self.kura(args))
    }
}

/// A server, killed when dropped.
pub struct Server {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: String,
    log: PathBuf,
}

impl Server {
    /// What it printed before it was ready.
    pub fn said(&self) -> &str {
        &self.said
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The port of `scheme://127.0.0.1:PORT` among what it printed.
    pub fn port(&self, scheme: &str) -> u16 {
        let start = format!("{scheme}://127.0.0.1:");
        let rest = self.said.split(&start).nth(1).unwrap_or_else(|| panic!("no {start} in:\n{}", self.said));
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a port")
    }

    pub fn wait_until_ready(&mut self) {
        let deadline = Instant::now() + START;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) if line.trim() == "ready" => return,
                Ok(line) => self.said = format!("{}{line}\n", self.said),
                Err(reason) => panic!("the server is not ready ({reason}):\n{}{}", self.said, self.log()),
            }
        }
    }

    /// What it complained of so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// SIGKILL: a crash of the process.
    pub fn kill(&mut self) {
        self.child.kill().expect("kill -9");
        self.child.wait().expect("the killed server");
    }

    /// SIGTERM, and how the server ended; fails the test when it hangs.
    pub fn stop(&mut self) -> ExitStatus {
        ok(tool("kill").args(["-TERM", &self.pid().to_string()]));
        let status = self.wait(STOP);
        status.unwrap_or_else(|| panic!("SIGTERM did not stop the server within {STOP:?}:\n{}", self.log()))
    }

    /// How the server ended, if it does in time.
    pub fn wait(&mut self, time: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().expect("the server") {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().expect("the server").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the server's log:\n{}", self.log());
        }
    }
}

/// Tells the threads of a test to end when the test does, also by failing: it would wait for them for ever.
pub struct Ends<'a>(pub &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that is ended, and so fails its test, when it runs for minutes.
pub fn tool(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", CLIENT_S, program]).stdin(Stdio::null());
    command
}

/// Runs the client and returns what it printed; fails the test when the client fails.
pub fn ok(command: &mut Command) -> String {
    let output = command.output().expect("timeout, of coreutils");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{stdout}{stderr}", output.status);
    stdout
}

/// Runs the client and returns what it complained of; fails the test when the client succeeds or hangs.
pub fn fails(command: &mut Command) -> String {
    let output = command.output().expect("timeout, of coreutils");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(!output.status.success(), "{command:?} should have failed:\n{stdout}{stderr}");
    let hung = matches!(output.status.code(), Some(124 | 137) | None);
    assert!(!hung, "{command:?} hung or was killed: {}\n{stdout}{stderr}", output.status);
    stderr
}

/// Calls `condition` until it holds; fails the test when it does not within the time.
pub fn eventually(time: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while !condition() {
        assert!(Instant::now() < deadline, "not within {time:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a program on a free port, and returns it with the port when it greets there: what is told its port may find it
/// taken by then, ends, and is started on another one.
pub fn on_a_port(greeting: &[u8], mut start: impl FnMut(u16) -> Child) -> (Child, u16) {
    for _ in 0..20 {
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.expect("a free port").port();
        let mut child = start(port);
        let deadline = Instant::now() + START;
        while child.try_wait().expect("the program").is_none() && Instant::now() < deadline {
            if greets(port, greeting) {
                return (child, port);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = (child.kill(), child.wait());
    }
    panic!("it listens on no port that was free");
}

/// True where a connection to the port begins with these bytes.
fn greets(port: u16, greeting: &[u8]) -> bool {
    let Ok(mut stream) = std::net::TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut said = vec![0; greeting.len()];
    let heard = stream.set_read_timeout(Some(Duration::from_secs(5))).and_then(|()| stream.read_exact(&mut said));
    heard.is_ok() && said == greeting
}

/// A sparse file of zeroes.
pub fn zeroes(path: &Path, size_bytes: u64) {
    std::fs::File::create(path).and_then(|file| file.set_len(size_bytes)).expect("a file of zeroes");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
