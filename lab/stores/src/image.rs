//! What everything is measured on: an image, loop devices on it, file systems in it. All of it is gone when this
//! process is, however it ends: the image never had a name, the devices detach themselves when nobody has them
//! open, and the file systems are mounted nowhere, only open.

use anyhow::{Context, Result, bail};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file all of whose bytes were written once, so that nobody measured pays for allocating them, as a block device.
pub struct Image {
    /// All of it.
    pub whole: Device,
    /// Its front, for a store that is to be filled.
    pub front: Device,
}

impl Image {
    /// An image in `folder`, on that folder's device.
    pub fn new(folder: &Path, whole_bytes: u64, front_bytes: u64) -> Result<Self> {
        let mut file =
            tempfile::tempfile_in(folder).with_context(|| format!("making an image in {}", folder.display()))?;
        let zeroes = vec![0; 1 << 20];
        let mut left = whole_bytes;
        while left > 0 {
            let some = left.min(zeroes.len() as u64);
            let written = file.write_all(&zeroes[..some as usize]);
            written.with_context(|| format!("writing an image of {whole_bytes} bytes in {}", folder.display()))?;
            left -= some;
        }
        file.sync_all()?;
        let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
        let whole = Device::attach(&path, whole_bytes)?;
        let front = Device::attach(&path, front_bytes)?;
        Ok(Self { whole, front })
    }
}

/// A loop device with direct I/O.
pub struct Device {
    /// Its name.
    pub path: PathBuf,
    /// As long as it is open, it is there.
    _open: File,
}

impl Device {
    fn attach(image: &Path, size_bytes: u64) -> Result<Self> {
        let mut losetup = Command::new("losetup");
        losetup.args(["--direct-io=on", "--find", "--show", "--sizelimit", &size_bytes.to_string()]).arg(image);
        let path = PathBuf::from(output(&mut losetup)?.trim());
        let open = File::open(&path).with_context(|| format!("opening {}", path.display()));
        // From now on it detaches itself when it is closed.
        output(Command::new("losetup").arg("--detach").arg(&path))?;
        Ok(Self { path, _open: open? })
    }

    /// Bytes that the device was asked to write since it was attached.
    pub fn written_bytes(&self) -> Result<u64> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let path = format!("/sys/block/{name}/stat");
        let stat = std::fs::read_to_string(&path).with_context(|| path.clone())?;
        let sectors = stat.split_whitespace().nth(6).with_context(|| format!("{path} has a seventh field"))?;
        Ok(sectors.parse::<u64>()? * 512)
    }

    /// A new file system over all of it.
    pub fn make(&self, kind: &'static str) -> Result<()> {
        let mut mkfs = Command::new(format!("mkfs.{kind}"));
        match kind {
            "btrfs" => mkfs.args(["--quiet", "--nodiscard", "--force"]),
            _ => mkfs.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"]),
        };
        output(mkfs.arg(&self.path)).map(drop)
    }

    /// Opens the file system, nothing of it in memory before.
    pub fn mount(&self, kind: &'static str) -> Result<Mounted> {
        // What the kernel holds of the device goes; what it holds of a file system went when that was closed.
        output(Command::new("blockdev").arg("--flushbufs").arg(&self.path))?;
        let mount = || -> rustix::io::Result<OwnedFd> {
            let context = rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            rustix::mount::fsconfig_set_string(&context, "source", &self.path)?;
            rustix::mount::fsconfig_create(&context)?;
            rustix::mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        };
        let open = mount().with_context(|| format!("mounting {kind} on {}", self.path.display()))?;
        Ok(Mounted { path: format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd()).into(), _open: open })
    }
}

/// A file system that is open; closed when dropped.
pub struct Mounted {
    /// Its folder: for this process and those of its user.
    pub path: PathBuf,
    _open: OwnedFd,
}

/// Runs a program and returns what it printed; a failure carries what it complained of.
pub fn output(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name}: cannot be run"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{name}: {}", complaint.trim().lines().last().unwrap_or("failed"));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
