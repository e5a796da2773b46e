//! File systems in images of their own.

use crate::janitor::{Janitor, quoted};
use crate::shell;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system on loop devices, unmounted and detached when dropped, or however else this process ends.
pub struct Mounted {
    /// Where it is.
    pub at: PathBuf,
    janitor: Janitor,
}

impl Mounted {
    /// A place for one: a folder that is there.
    pub fn at(at: PathBuf) -> Result<Self> {
        Ok(Self { at, janitor: Janitor::new()? })
    }

    /// Makes a file system in an image that is written once, so that no side pays for allocating it, and mounts it.
    pub fn new(image: &Path, kind: &str, at: PathBuf, mib: usize) -> Result<Self> {
        let mut dd = Command::new("dd");
        dd.args(["if=/dev/zero", "bs=1M", "oflag=direct", "status=none"]).arg(format!("count={mib}"));
        shell::output(dd.arg(format!("of={}", image.display()))).context("writing an image")?;
        let options: &[&str] = match kind {
            "btrfs" => &["--quiet", "--nodiscard"],
            "xfs" => &["-q", "-K"],
            _ => &["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"],
        };
        shell::output(shell::command(&format!("mkfs.{kind}"), options).arg(image))?;
        let mut mounted = Self::at(at)?;
        let device = mounted.attach(image)?;
        mounted.mount(&device)?;
        Ok(mounted)
    }

    /// A file as a loop device.
    pub fn attach(&mut self, file: &Path) -> Result<String> {
        let device = shell::output(shell::command("losetup", ["--direct-io=on", "--find", "--show"]).arg(file))?;
        let device = device.trim().to_owned();
        self.janitor.at_end(&format!("losetup --detach {device}"))?;
        Ok(device)
    }

    /// Mounts what is on a device.
    pub fn mount(&mut self, device: &str) -> Result<()> {
        shell::output(shell::command("mount", [device]).arg(&self.at))?;
        // A server in it that is interrupted with us takes a while to go.
        self.janitor.at_end(&format!("for try in $(seq 150); do umount {} && break; sleep 0.1; done", quoted(&self.at)))
    }
}
