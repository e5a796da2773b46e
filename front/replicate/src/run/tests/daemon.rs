//! What rsync reaches.

use super::*;

/// An rsync daemon that dies with its test.
pub(super) struct Daemon(Child, String);

impl Daemon {
    pub(super) fn of(pair: &Pair) -> Self {
        let began = Instant::now();
        loop {
            // Somebody may take the port before the daemon does.
            if let Some(daemon) = Self::on_a_port(pair) {
                return daemon;
            }
            assert!(began.elapsed() < Duration::from_mins(1), "no daemon");
        }
    }

    fn on_a_port(pair: &Pair) -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).unwrap().port();
        let file = pair.folder.path().join("rsyncd.conf");
        let module = pair.folder.path().join("module");
        let text = format!(
            "port = {port}\naddress = 127.0.0.1\nuse chroot = no\nuid = 0\ngid = 0\n[m]\npath = {}\nread only = no\n",
            module.display()
        );
        fs::write(&file, text).unwrap();
        let mut command = Command::new("rsync");
        command.args(["--daemon", "--no-detach"]).arg(format!("--config={}", file.display())).stdin(Stdio::null());
        let mut daemon = Self(command.spawn().unwrap(), format!("rsync://127.0.0.1:{port}/m"));
        while daemon.0.try_wait().unwrap().is_none() {
            let mut greeting = [0; 8];
            let greets = TcpStream::connect(("127.0.0.1", port)).and_then(|mut stream| {
                stream.set_read_timeout(Some(Duration::from_secs(10)))?;
                stream.read_exact(&mut greeting)
            });
            if greets.is_ok() {
                return (greeting == *b"@RSYNCD:").then_some(daemon);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        None
    }

    pub(super) fn target(&self, path: &str) -> Target {
        format!("{}/{path}", self.1).parse().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
