//! Undoing what was done, however this process ends.

use crate::shell;
use anyhow::{Context, Result};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A shell that waits for our end, and then runs the lines it was given, the last one first.
///
/// It is a process of its own, out of reach of an interrupt from the terminal, and knows of our end because its input
/// ends: after success, an error, Ctrl-C or SIGKILL alike.
pub struct Janitor {
    shell: Child,
    lines: Option<ChildStdin>,
}

impl Janitor {
    pub fn new() -> Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", "tac | sh"]).env("PATH", shell::path());
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut shell = command.spawn().context("starting sh")?;
        let lines = shell.stdin.take();
        Ok(Self { shell, lines })
    }

    /// Has a line run at the end, before those that were given earlier.
    pub fn at_end(&mut self, line: &str) -> Result<()> {
        let lines = self.lines.as_mut().context("the janitor has gone")?;
        writeln!(lines, "{line}").context("telling the janitor")
    }

    /// Has a folder removed at the end, but nothing that is mounted there.
    pub fn remove(&mut self, folder: &Path) -> Result<()> {
        self.at_end(&format!("rm -rf --one-file-system {}", quoted(folder)))
    }

    /// Starts a server that ends at the end, not with an interrupt from the terminal: what stands on it goes first.
    pub fn serve(&mut self, command: &mut Command) -> Result<()> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut child = child.with_context(|| format!("starting {name}"))?;
        let gone = "kill -0 $pid 2>/dev/null || break; sleep 0.1";
        self.at_end(&format!(
            "pid={}; kill -TERM $pid 2>/dev/null; for try in $(seq 150); do {gone}; done; kill -KILL $pid 2>/dev/null",
            child.id()
        ))?;
        // Nobody else would notice that it has ended, and it would stay as a zombie.
        std::thread::spawn(move || child.wait());
        Ok(())
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.lines.take());
        // It complains for itself.
        let _ = self.shell.wait();
    }
}

/// A path as a word of a shell's line.
pub fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_comes_in_reverse_and_servers_are_gone() {
        let folder = tempfile::tempdir().unwrap();
        let (log, place) = (folder.path().join("it's a log"), folder.path().join("place"));
        std::fs::create_dir(&place).unwrap();
        let mut janitor = Janitor::new().unwrap();
        janitor.at_end(&format!("echo first >> {}", quoted(&log))).unwrap();
        janitor.remove(&place).unwrap();
        janitor.at_end(&format!("test -d {} && echo second >> {}", quoted(&place), quoted(&log))).unwrap();
        janitor.serve(Command::new("sh").args(["-c", &format!("sleep 3600; echo late >> {}", quoted(&log))])).unwrap();
        janitor.at_end(&format!("echo third >> {}", quoted(&log))).unwrap();
        assert!(!log.exists());
        let start = std::time::Instant::now();
        drop(janitor);
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "third\nsecond\nfirst\n");
        assert!(!place.exists() && start.elapsed().as_secs() < 600);
    }
}
