//! A server under measurement: started, watched through `/proc`, and gone when dropped.

use crate::shell;
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running server.
pub struct Process {
    child: Child,
    ticks_per_second: f64,
}

impl Process {
    /// Starts the server and waits until it answers as NBD does on `socket`.
    pub fn start(command: &mut Command, socket: &Path) -> Result<Self> {
        Self::start_until(command, &socket.display().to_string(), || greet(socket))
    }

    /// Starts the server and waits until `answers` does; `place` is where, for people.
    pub fn start_until(command: &mut Command, place: &str, answers: impl Fn() -> std::io::Result<()>) -> Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.with_context(|| format!("starting {name}: `cargo xtask test` installs the peers"))?;
        let ticks = shell::output(Command::new("getconf").arg("CLK_TCK"))?;
        let mut process = Self { child, ticks_per_second: ticks.trim().parse().context("getconf CLK_TCK")? };
        let start = Instant::now();
        while answers().is_err() {
            if let Some(status) = process.child.try_wait()? {
                bail!("{name} ended at once: {status}");
            }
            if start.elapsed() > Duration::from_mins(1) {
                bail!("{name} does not answer on {place}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(process)
    }

    /// CPU time of all its threads since its start, user and system, in microseconds.
    pub fn cpu_us(&self) -> Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // The name in brackets may hold anything: count fields after it. utime and stime are the 14th and 15th.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let mut fields = after.split_whitespace().skip(11);
        let mut ticks = || fields.next().and_then(|field| field.parse::<f64>().ok()).context("reading /proc/PID/stat");
        Ok((ticks()? + ticks()?) / self.ticks_per_second * 1e6)
    }

    /// Its resident memory in MiB.
    pub fn memory_mib(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
        Ok(kib.context("reading VmRSS in /proc/PID/status")? / 1024.0)
    }

    /// Waits until it no longer works in the background, half a minute at most.
    pub fn settle(&self) -> Result<()> {
        // kura puts blocks in order once nobody has asked for anything for a fifth of a second.
        self.settle_for(Duration::from_millis(300))
    }

    /// Waits until it has not worked for so long, half a minute at most.
    pub fn settle_for(&self, quiet: Duration) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(30) {
            let before = self.cpu_us()?;
            std::thread::sleep(quiet);
            if self.cpu_us()? - before < 1e6 / self.ticks_per_second {
                return Ok(());
            }
        }
        eprintln!("process {} still works in the background, which is measured with what comes next", self.child.id());
        Ok(())
    }
}

/// Meets the NBD server on `socket` and takes leave as the protocol has it.
fn greet(socket: &Path) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.read_exact(&mut [0; 18])?;
    // The client's flags: fixed newstyle. Then the option ABORT without data.
    stream.write_all(b"\0\0\0\x01IHAVEOPT\0\0\0\x02\0\0\0\0")?;
    stream.read_exact(&mut [0; 20])
}

impl Drop for Process {
    fn drop(&mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        let deadline = Instant::now() + Duration::from_secs(10);
        while asked.as_ref().is_ok_and(std::process::ExitStatus::success) && Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // It did not go by itself; nothing is left to do about a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
