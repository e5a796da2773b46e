//! File systems in images of their own.

use crate::shell;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Makes a file system in an image that is written once, so that no side pays for allocating it, and mounts it.
pub fn mount(image: &Path, kind: &str, mountpoint: &Path, mib: usize) -> Result<()> {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=1M", "oflag=direct", "status=none"]).arg(format!("count={mib}"));
    shell::output(dd.arg(format!("of={}", image.display()))).context("writing an image")?;
    let mut mkfs = Command::new(format!("mkfs.{kind}"));
    match kind {
        "btrfs" => mkfs.args(["--quiet", "--nodiscard"]),
        "xfs" => mkfs.args(["-q", "-K"]),
        _ => mkfs.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"]),
    };
    shell::output(mkfs.arg(image))?;
    let device = shell::output(Command::new("losetup").args(["--direct-io=on", "--find", "--show"]).arg(image))?;
    let mounted = shell::output(Command::new("mount").args(["-t", kind, device.trim()]).arg(mountpoint));
    // The device goes when the file system is unmounted, or now where that failed.
    shell::output(Command::new("losetup").args(["--detach", device.trim()]))?;
    mounted.map(drop)
}
