//! The sides of a comparison: who serves, and where.

use super::fio::{Figures, Target, Work, run};
use super::process::Process;
use crate::shell;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// A server with its export, or the bare file.
pub struct Side {
    /// Its name in tables and for `--side`.
    pub name: &'static str,
    pub target: Target,
    /// None for the file, which nobody serves.
    pub server: Option<std::rc::Rc<Process>>,
}

/// What one work on one side gave.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub figures: Figures,
    /// The server's CPU time for an I/O in microseconds; none for the bare file.
    pub cpu_us: Option<f64>,
}

impl Side {
    /// The file itself: what the device gives without a server.
    pub fn raw(file: &Path) -> Self {
        Self { name: "raw", target: Target::File(file.to_path_buf()), server: None }
    }

    /// `qemu-nbd` past the page cache, by `io_uring`.
    pub fn qemu_nbd(file: &Path, socket: &Path) -> Result<Self> {
        let mut command = Command::new("qemu-nbd");
        command.args(["--format=raw", "--cache=none", "--aio=io_uring", "--persistent", "--shared=16", "--socket"]);
        Self::served("qemu-nbd", command.arg(socket).arg(file), socket)
    }

    /// `nbdkit file`, which works in the page cache.
    pub fn nbdkit_file(file: &Path, socket: &Path) -> Result<Self> {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(socket).arg("file").arg(file);
        Self::served("nbdkit-file", &mut command, socket)
    }

    /// `nbdkit memory`: no device at all, what the protocol costs.
    pub fn nbdkit_memory(size_bytes: u64, socket: &Path) -> Result<Self> {
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--unix"]).arg(socket).args(["memory", &size_bytes.to_string()]);
        Self::served("nbdkit-memory", &mut command, socket)
    }

    fn served(name: &'static str, command: &mut Command, socket: &Path) -> Result<Self> {
        let server = Process::start(command, socket)?;
        Ok(Self { name, target: uri("", socket), server: Some(server.into()) })
    }

    /// Does `work` once, for so many seconds unless it ends by itself, and leaves the machine as quiet as it was. What the server
    /// puts off is in its CPU time.
    pub fn measure(&self, work: &Work, size_bytes: u64, seconds: u32) -> Result<Sample> {
        let cpu_us = || self.server.as_ref().map(|server| server.cpu_us()).transpose();
        let before_us = cpu_us()?;
        let figures = run(work, &self.target, size_bytes, seconds)?;
        self.settle()?;
        let cpu_us = before_us.zip(cpu_us()?).map(|(before, after)| (after - before) / figures.ios);
        Ok(Sample { figures, cpu_us })
    }

    /// Nothing of this side's writes may be left to do while another one is measured.
    pub fn settle(&self) -> Result<()> {
        shell::output(&mut Command::new("sync"))?;
        self.server.as_ref().map_or(Ok(()), |server| server.settle())
    }
}

/// An export behind a Unix socket.
pub fn uri(export: &str, socket: &Path) -> Target {
    Target::Uri(format!("nbd+unix:///{export}?socket={}", socket.display()))
}
