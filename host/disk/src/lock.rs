//! One process at a time.

use crate::errno::{error, io_error};
use kura_block::{Error, Result};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// The lock file in a locked directory. It holds the process number and the command line of who locked it last.
const LOCK_FILE: &str = "lock";

/// An exclusive lock between processes, held until it is dropped or the process ends, however it ends.
///
/// Take it once a process: the disks of all its threads may then be opened under it.
#[derive(Debug)]
pub struct Lock {
    files: Vec<File>,
}

impl Drop for Lock {
    /// Lets go at once: a process that is just being started has the files open for an instant, too.
    fn drop(&mut self) {
        for file in &self.files {
            let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }
}

/// How long a block device that is locked may be so by somebody who only looks at it, and when to ask again.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(50);

impl Lock {
    /// Locks a directory. `Busy` says who holds it.
    pub fn directory(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let path = dir.join(LOCK_FILE);
        let opened = rustix::fs::open(&path, flags, Mode::from(0o644));
        let mut file = File::from(opened.map_err(|errno| error(path.display(), "cannot lock", errno))?);
        if !try_lock(&path, &file)? {
            let mut holder = String::new();
            // Who holds it is worth telling; that it is held is known without.
            let _ = file.read_to_string(&mut holder);
            let holder = holder.split_once(' ').map(|(pid, command)| (pid.to_owned(), command.to_owned()));
            return Err(busy(dir, holder, "stop it or choose another --data"));
        }
        let line = format!("{} {}", std::process::id(), command_line("self"));
        let written = file.rewind().and_then(|()| file.set_len(0)).and_then(|()| file.write_all(line.as_bytes()));
        written.map_err(|e| io_error(path.display(), "cannot say who holds the lock", &e))?;
        Ok(Self { files: vec![file] })
    }

    /// Locks a file or block device that holds data. `Busy` says who holds it; a block device is `Busy` too when it is
    /// mounted or part of something else.
    pub fn device(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let open = |flags| {
            let opened =
                rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | flags, Mode::empty());
            opened.map(File::from).map_err(|errno| error(path.display(), "cannot lock", errno))
        };
        let file = open(OFlags::empty())?;
        let mode = rustix::fs::fstat(&file).map_err(|errno| error(path.display(), "cannot lock", errno))?.st_mode;
        let is_block_device = FileType::from_raw_mode(mode) == FileType::BlockDevice;
        let begun = Instant::now();
        while !try_lock(path, &file)? {
            // udev looks at a device whenever somebody has closed it, a server that is started again just now, and locks it meanwhile.
            if !is_block_device || begun.elapsed() >= PATIENCE {
                return Err(busy(path, holder_of(&file), "stop it or choose another device"));
            }
            std::thread::sleep(AGAIN);
        }
        let mut files = vec![file];
        if is_block_device {
            // Claims the device: the kernel refuses it when a file system or an array has it, and refuses them from now on.
            files.push(open(OFlags::EXCL)?);
        }
        Ok(Self { files })
    }

    /// True when what is at `path` is what this is on, by whatever name: not so where something else has taken its place.
    pub fn is_on(&self, path: impl AsRef<Path>) -> bool {
        let Ok(there) = std::fs::metadata(path) else { return false };
        self.files.iter().all(|file| file.metadata().is_ok_and(|held| identity(&held) == identity(&there)))
    }
}

/// What tells a file from all others. A block device is one by its number, whichever files stand for it.
fn identity(file: &Metadata) -> (bool, u64, u64) {
    if file.file_type().is_block_device() { (true, file.rdev(), 0) } else { (false, file.dev(), file.ino()) }
}

/// Locks `file`; false when another holds it.
fn try_lock(path: &Path, file: &File) -> Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(error(path.display(), "cannot lock", errno)),
    }
}

fn busy(path: &Path, holder: Option<(String, String)>, remedy: &str) -> Error {
    let holder = match holder {
        Some((pid, command)) => format!("process {pid} ({command})"),
        None => "another process".to_owned(),
    };
    Error::busy(format!("{} is in use by {holder}: {remedy}", path.display()))
}

/// The process that holds a lock on `file` and its command line, as the kernel's list of locks knows it.
fn holder_of(file: &File) -> Option<(String, String)> {
    let stat = file.metadata().ok()?;
    let (major, minor) = (rustix::fs::major(stat.dev()), rustix::fs::minor(stat.dev()));
    let place = format!("{major:02x}:{minor:02x}:{}", stat.ino());
    // "1: FLOCK  ADVISORY  WRITE 4711 fd:01:1234 0 EOF"
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let mut locks = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let held = locks.find(|fields| fields.get(1) == Some(&"FLOCK") && fields.get(5) == Some(&place.as_str()))?;
    let pid = held[4].parse::<u32>().ok()?.to_string();
    let command = command_line(&pid);
    Some((pid, command))
}

/// The program's name and its first argument: "kura serve".
fn command_line(pid: &str) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split('\0').filter(|word| !word.is_empty());
    let program = words.next().unwrap_or("unknown");
    let program = program.rsplit('/').next().unwrap_or(program);
    match words.next() {
        Some(verb) => format!("{program} {verb}"),
        None => program.to_owned(),
    }
}

#[cfg(test)]
mod tests;
