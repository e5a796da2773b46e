//! Entries of a directory: made, described, put in their place, removed.

use super::message::Small;
use crate::attributes::{self, Attributes};
use crate::error::COPY;
use crate::tree::{Kind, MARKER, Meta, Time};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmod, chownat, fchmod, fstat, mknodat, openat,
    renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// The least that is left out as a hole, in bytes.
const BLOCK: usize = 4096;

/// A name as calls take it.
pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Permissions as calls take them.
pub fn mode(meta: &Meta) -> Mode {
    Mode::from_raw_mode(meta.mode)
}

/// Makes an entry that must not be there yet; returns a file with contents, open. One that could not be filled does not stay.
pub fn make(directory: BorrowedFd<'_>, at: &[u8], file: &Small<'_>, contents: &[u8]) -> Result<Option<File>> {
    match file.kind {
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let made: File = openat(directory, name(at), flags, Mode::RUSR | Mode::WUSR)?.into();
            let written = fill(&made, contents);
            if written.is_err() {
                let _ = unlinkat(directory, name(at), AtFlags::empty());
            }
            return written.map(|()| Some(made));
        }
        Kind::Symlink => symlinkat(name(contents), directory, name(at))?,
        kind => {
            let device = contents.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            mknodat(directory, name(at), kind.file_type(), mode(&file.meta), device)?;
        }
    }
    Ok(None)
}

/// Writes the contents of a file that has none yet. Blocks of zeroes are left out: they are holes then, as they are at the source
/// where it has any.
fn fill(file: &File, contents: &[u8]) -> Result<()> {
    let is_zeroes = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let (mut at, mut written) = (0, 0);
    while at < contents.len() {
        let rest = &contents[at..];
        let is_hole = is_zeroes(&rest[..BLOCK.min(rest.len())]);
        let alike = rest.chunks(BLOCK).take_while(|block| is_zeroes(block) == is_hole);
        let end = at + alike.map(<[u8]>::len).sum::<usize>();
        if !is_hole {
            file.write_all_at(&contents[at..end], at as u64)?;
            written = end;
        }
        at = end;
    }
    if written < contents.len() { file.set_len(contents.len() as u64) } else { Ok(()) }
}

/// What is known of an entry that is described.
#[derive(Clone, Copy, Default)]
pub struct How<'a> {
    /// It, open.
    pub open: Option<&'a File>,
    /// It has no attributes yet.
    pub is_bare: bool,
    /// Whether files may be given away.
    pub is_root: bool,
}

/// Owner, attributes, permissions and times, in this order: each may undo the one before.
pub fn describe(
    directory: BorrowedFd<'_>,
    at: &[u8],
    kind: Kind,
    meta: &Meta,
    attributes: &Attributes,
    how: How<'_>,
) -> Result<()> {
    own(directory, at, meta, how.is_root)?;
    attributes::write(directory, at, attributes, how.is_bare)?;
    match how.open {
        Some(file) => fchmod(file, mode(meta))?,
        None if kind == Kind::Symlink => {}
        None => permit(directory, at, mode(meta))?,
    }
    Ok(utimensat(directory, name(at), &times(meta.modified), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Sets permissions. Whoever else writes to the copy may have put a link there, which must not lead out of it: the call that
/// takes a name would follow it.
pub fn permit(directory: BorrowedFd<'_>, at: &[u8], mode: Mode) -> Result<()> {
    let entry = openat(directory, name(at), OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    Ok(chmod(format!("/proc/self/fd/{}", entry.as_raw_fd()), mode)?)
}

/// A time as calls take it.
pub fn times(modified: Time) -> Timestamps {
    let modified = Timespec { tv_sec: modified.s, tv_nsec: modified.ns.into() };
    Timestamps { last_access: modified, last_modification: modified }
}

/// Only root may give files away.
pub fn own(directory: BorrowedFd<'_>, at: &[u8], meta: &Meta, is_root: bool) -> Result<()> {
    if is_root && meta.uid != u32::MAX && meta.gid != u32::MAX {
        let (uid, gid) = (Uid::from_raw(meta.uid), Gid::from_raw(meta.gid));
        chownat(directory, name(at), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

/// Renames, over whatever has the name.
pub fn take_place(directory: BorrowedFd<'_>, from: &[u8], to: &[u8]) -> Result<()> {
    match renameat(directory, name(from), directory, name(to)) {
        Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) => {
            remove(directory, to)?;
            Ok(renameat(directory, name(from), directory, name(to))?)
        }
        renamed => Ok(renamed?),
    }
}

/// Lets the owner of a directory change what is in it, which its permissions may forbid whoever is not root. Those that the
/// source has come back at the end of the run, as its times do.
pub fn let_in(directory: BorrowedFd<'_>) {
    if let Ok(stat) = fstat(directory) {
        let mode = Mode::from_raw_mode(stat.st_mode);
        if !mode.contains(Mode::WUSR | Mode::XUSR) {
            // By its entry in `/proc`, for it need not be open to be read. A user who does not own it may still have access; if not,
            // the next call reports it.
            let _ = chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), mode | Mode::RWXU);
        }
    }
}

/// Removes an entry, with all it holds.
pub fn remove(directory: BorrowedFd<'_>, at: &[u8]) -> Result<()> {
    match unlinkat(directory, name(at), AtFlags::empty()) {
        Err(Errno::ISDIR) => remove_directory(directory, at),
        removed => Ok(removed?),
    }
}

/// Removes a directory, with all it holds; what is none stays, and is an error. Of what cannot be removed the last is told,
/// and everything else is removed: a directory that is a copy of its own cannot.
pub fn remove_directory(directory: BorrowedFd<'_>, at: &[u8]) -> Result<()> {
    match unlinkat(directory, name(at), AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        removed => return Ok(removed?),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = match openat(directory, name(at), flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            permit(directory, at, Mode::RWXU)?;
            openat(directory, name(at), flags, Mode::empty())?
        }
        inner => inner?,
    };
    let marker = statat(&inner, name(MARKER), AtFlags::SYMLINK_NOFOLLOW);
    if marker.is_ok_and(|marker| FileType::from_raw_mode(marker.st_mode).is_file()) {
        return Err(Error::other(COPY));
    }
    let_in(inner.as_fd());
    let mut removed = Ok(());
    for entry in rustix::fs::Dir::read_from(&inner)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            removed = remove(inner.as_fd(), entry.file_name().to_bytes()).and(removed);
        }
    }
    removed?;
    Ok(unlinkat(directory, name(at), AtFlags::REMOVEDIR)?)
}
