//! Exports as block devices, and file systems on them. Both want root.

use crate::harness::{Home, eventually, ok, tool};
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    ReadOnly,
    ReadWrite,
}

/// An export as a loop device, by way of FUSE: a block device without the kernel's NBD client. One in a home at a time.
pub struct BlockDevice {
    pub path: String,
    fuse: Child,
    folder: PathBuf,
}

impl BlockDevice {
    pub fn attach(home: &Home, uri: &str, mode: Mode) -> Self {
        let folder = home.path("fuse");
        fs::create_dir_all(&folder).expect("a mount point");
        let read_only = mode == Mode::ReadOnly;
        let mut fuse = Command::new("nbdfuse");
        let fuse = fuse.args(read_only.then_some("-r")).arg(&folder).arg(uri).spawn().expect("nbdfuse");
        let file = folder.join("nbd");
        let mut device = Self { path: String::new(), fuse, folder };
        eventually(Duration::from_mins(2), "nbdfuse shows the export", || file.exists());
        let mut losetup = tool("losetup");
        losetup.args(read_only.then_some("--read-only")).args(["--find", "--show"]).arg(&file);
        device.path = ok(&mut losetup).trim().to_string();
        device
    }
}

impl Drop for BlockDevice {
    fn drop(&mut self) {
        // Best effort: the test that fails has said why by now.
        if !self.path.is_empty() {
            let _ = tool("losetup").args(["--detach", &self.path]).status();
        }
        // The kernel lets go of the loop device's file a moment later.
        let is_unmounted = (0..100).any(|attempt| {
            std::thread::sleep(Duration::from_millis(attempt));
            tool("fusermount3").arg("-u").arg(&self.folder).status().is_ok_and(|status| status.success())
        });
        if !is_unmounted {
            // It would be waited for for ever.
            let _ = self.fuse.kill();
        }
        let _ = self.fuse.wait();
    }
}

/// A mounted file system. One in a home at a time.
pub struct Mount {
    pub folder: PathBuf,
}

impl Mount {
    pub fn new(home: &Home, device: &BlockDevice, mode: Mode) -> Self {
        let folder = home.path("mount");
        fs::create_dir_all(&folder).expect("a mount point");
        let option = if mode == Mode::ReadOnly { "ro" } else { "rw" };
        ok(tool("mount").args(["-t", "ext4", "-o", option, &device.path]).arg(&folder));
        Self { folder }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Whoever was at work there goes a moment later.
        let _ = (0..100).any(|attempt| {
            std::thread::sleep(Duration::from_millis(attempt));
            tool("umount").arg(&self.folder).status().is_ok_and(|status| status.success())
        });
    }
}
