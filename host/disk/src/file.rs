//! Files: made, opened and filled. These calls block: they are for the time before a device serves, or a thread aside.
#![allow(unsafe_code)] // one ioctl that no library has

use crate::disk::Options;
use crate::errno::{error, io_error};
use kura_block::{Buf, BufMut, Error, Result};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of zeroes that one request writes.
pub(crate) const ZEROES_BYTES: usize = 1 << 20;

/// Makes a file of `size_bytes` that takes no space yet, durably. `Exists` when the path names something.
pub fn create_sparse(path: impl AsRef<Path>, size_bytes: u64) -> Result<()> {
    let path = path.as_ref();
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL;
    let failed = |errno| error(path.display(), format_args!("cannot make a file of {size_bytes} bytes"), errno);
    let file = rustix::fs::open(path, flags, Mode::from(0o600)).map_err(failed)?;
    if let Err(errno) = rustix::fs::ftruncate(&file, size_bytes).and_then(|()| rustix::fs::fsync(&file)) {
        // Else it would be found, and be taken for a disk of no bytes. What refuses here is told, not what refuses that.
        let _ = std::fs::remove_file(path);
        return Err(failed(errno));
    }
    // The name is durable when its directory is.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(parent).and_then(|directory| directory.sync_all());
    synced.map_err(|e| io_error(parent.display(), "cannot make the directory durable", &e))
}

/// Fills `range` of a file or block device with zeroes, durably. `Full` when there is not that much space. The bounds are
/// multiples of 4096.
///
/// Space that is only reserved (`fallocate`) must be marked as written by its first write, which makes metadata durable
/// too: a durable write of 8 KiB (`RWF_DSYNC`) took 550 us there and 110 us in space written before, on ext4 with a
/// journal (190 and 130 us without; the fastest tenth, on a busy machine).
pub fn preallocate(path: impl AsRef<Path>, range: Range<u64>) -> Result<()> {
    let path = path.as_ref();
    let len = range.end.saturating_sub(range.start);
    if !(range.start | len).is_multiple_of(kura_block::PAGE_BYTES as u64) {
        return Err(Error::invalid(format!("{}: {range:?} is not in multiples of 4096 bytes", path.display())));
    }
    let failed = |errno| error(path.display(), format_args!("cannot fill {len} bytes at {}", range.start), errno);
    let file = open(path, Options::default())?;
    // Taken in one piece first, so that it lies in one piece, or fails before it is half written.
    match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, range.start, len) {
        // A block device, or a file system without it: writing does it then.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
        Err(errno) => return Err(failed(errno)),
    }
    let zeroes: Buf = BufMut::zeroed(ZEROES_BYTES).freeze();
    let mut at = range.start;
    while at < range.end {
        let count = (range.end - at).min(ZEROES_BYTES as u64);
        let written = file.write_all_at(&zeroes[..count as usize], at);
        written.map_err(|e| io_error(path.display(), format_args!("cannot write {count} bytes at {at}"), &e))?;
        at += count;
    }
    rustix::fs::fsync(&file).map_err(failed)
}

/// Opens a file or block device past the page cache if `options` ask for it and the file system can.
pub(crate) fn open(path: &Path, options: Options) -> Result<File> {
    let failed = |errno| error(path.display(), "cannot open", errno);
    let flags = OFlags::CLOEXEC | if options.writable { OFlags::RDWR } else { OFlags::RDONLY };
    if options.direct {
        match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
            Ok(file) => return Ok(file.into()),
            Err(Errno::INVAL) => {
                tracing::warn!(path = %path.display(), "no direct I/O on this file system: using the page cache");
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?.into())
}

/// Tells a block device that `len` bytes at `offset` are not needed.
pub(crate) fn discard_device(file: &File, offset: u64, len: u64) -> rustix::io::Result<()> {
    use rustix::ioctl::{Setter, ioctl, opcode};
    const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);
    // SAFETY: BLKDISCARD reads two 64-bit numbers, the start and the length.
    unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    #[ignore = "needs root and loop devices"]
    fn a_device_forgets_what_is_discarded() {
        let directory = tempfile::tempdir().unwrap();
        let image = crate::testing::new_file(&directory, 1 << 20);
        std::fs::write(&image, vec![1; 1 << 20]).unwrap();
        let device = Command::new("losetup").args(["--find", "--show"]).arg(image).output().unwrap();
        assert!(device.status.success(), "{device:?}");
        let device = String::from_utf8(device.stdout).unwrap();
        let file = open(Path::new(device.trim()), Options::default()).unwrap();
        let discarded = discard_device(&file, 4096, 8192);
        assert!(Command::new("losetup").args(["--detach", device.trim()]).status().unwrap().success());
        discarded.unwrap();
        let end = std::fs::read(directory.path().join("disk")).unwrap();
        assert!(end.iter().enumerate().all(|(at, &byte)| (byte == 0) == (4096..12288).contains(&at)));
        assert!(discard_device(&File::open("/dev/null").unwrap(), 0, 4096).is_err());
    }
}
