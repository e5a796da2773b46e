//! Contents of files: copied, read, summed.

use crate::attributes;
use crate::run::{Of, Summed};
use crate::tree::{open_directory, split};
use rustix::fs::{Mode, OFlags, openat};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::{Xxh3, xxh3_128_with_seed};

/// How a file is opened to be read: whatever has the name by now, opening it neither waits nor leads elsewhere.
pub const READ: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Which end of a copy failed, and why.
pub enum Uncopied {
    From(Error),
    To(Error),
}

/// Copies a part between files, in the kernel where it can.
pub fn copy(from: &File, to: &File, offset: u64, length: u64) -> std::result::Result<(), Uncopied> {
    let (mut read_at, mut write_at) = (offset, offset);
    let end = offset + length;
    while write_at < end {
        let left = (end - write_at) as usize;
        match rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), left) {
            Ok(1..) => {}
            // Its end, a file that the kernel takes for an empty one, or an error that does not say of which end it is.
            Ok(0) | Err(_) => break,
        }
    }
    let mut buffer = vec![0; 1 << 20];
    while write_at < end {
        let part = (end - write_at).min(1 << 20) as usize;
        let count = read_full(from, write_at, &mut buffer[..part]).map_err(Uncopied::From)?;
        if count == 0 {
            return Ok(());
        }
        to.write_all_at(&buffer[..count], write_at).map_err(Uncopied::To)?;
        write_at += count as u64;
    }
    Ok(())
}

/// Reads until the buffer is full or the file ends.
pub fn read_full(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Sums of the blocks of ranges of a file, in order; what lies beyond its end is as if it were not there.
pub fn sum_blocks(
    file: &File,
    seed: u64,
    block: u64,
    ranges: &[(u64, u64)],
    buffer: &mut [u8],
    mut told: impl FnMut(u128),
) -> Result<()> {
    if block == 0 || block > buffer.len() as u64 {
        return Err(Error::other("it was asked for sums of blocks of no use"));
    }
    let whole = buffer.len() as u64 / block * block;
    for &(offset, length) in ranges {
        let mut done = 0;
        while done < length {
            let part = (length - done).min(whole) as usize;
            let count = read_full(file, offset + done, &mut buffer[..part])?;
            for start in (0..part).step_by(block as usize) {
                let end = (start + block as usize).min(part).min(count);
                told(xxh3_128_with_seed(&buffer[start.min(end)..end], seed));
            }
            done += part as u64;
        }
    }
    Ok(())
}

/// A sum of what is at a path under an open directory.
pub fn sum_at(root: &OwnedFd, sum: &Summed) -> Result<u128> {
    if let Of::Contents { .. } = sum.of {
        return digest(&open_at(root, &sum.path)?);
    }
    if sum.path.is_empty() {
        return attributes::digest(root.as_fd(), b".");
    }
    let (directory, name) = split(&sum.path);
    attributes::digest(open_directory(root.as_fd(), directory)?.as_fd(), name)
}

/// The file at a path under an open directory.
pub fn open_at(root: &OwnedFd, path: &[u8]) -> Result<File> {
    let (directory, name) = split(path);
    Ok(openat(open_directory(root.as_fd(), directory)?, OsStr::from_bytes(name), READ, Mode::empty())?.into())
}

/// A sum of a file's contents.
pub fn digest(file: &File) -> Result<u128> {
    let mut sum = Xxh3::new();
    let mut buffer = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let count = read_full(file, offset, &mut buffer)?;
        sum.update(&buffer[..count]);
        offset += count as u64;
        if count < buffer.len() {
            return Ok(sum.digest128());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_seems_to_be_empty_is_read() {
        // To where the kernel would copy it, if it did not take it for empty.
        let (from, to) = ("/proc/sys/vm/overcommit_memory", "/proc/self/oom_score_adj");
        std::fs::write(to, "7").unwrap();
        let done = copy(&File::open(from).unwrap(), &File::options().write(true).open(to).unwrap(), 0, 2);
        assert!(done.is_ok());
        assert_eq!(std::fs::read(from).unwrap(), std::fs::read(to).unwrap());
    }
}
