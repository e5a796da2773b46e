//! Entries of a directory: made, described, put in their place, removed.

use super::message::Small;
use crate::attributes::{self, Attributes};
use crate::tree::{Kind, Meta};
use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid, chmodat, chownat, mknodat, openat, renameat, symlinkat,
    unlinkat, utimensat,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// A name as calls take it.
pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Permissions as calls take them.
pub fn mode(meta: &Meta) -> Mode {
    Mode::from_raw_mode(meta.mode)
}

/// Makes an entry that must not be there yet.
pub fn make(directory: BorrowedFd<'_>, at: &[u8], file: &Small<'_>, contents: &[u8]) -> Result<()> {
    match file.kind {
        Kind::File => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let made: File = openat(directory, name(at), flags, Mode::RUSR | Mode::WUSR)?.into();
            made.write_all_at(contents, 0)
        }
        Kind::Symlink => Ok(symlinkat(name(contents), directory, name(at))?),
        kind => {
            let device = contents.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            Ok(mknodat(directory, name(at), kind.file_type(), mode(&file.meta), device)?)
        }
    }
}

/// Owner, attributes, permissions and times, in this order: each may undo the one before. `(is_new, is_root)`.
pub fn describe(
    directory: BorrowedFd<'_>,
    at: &[u8],
    kind: Kind,
    meta: &Meta,
    attributes: &Attributes,
    (is_new, is_root): (bool, bool),
) -> Result<()> {
    own(directory, at, meta, is_root)?;
    attributes::write(directory, at, attributes, is_new)?;
    if kind != Kind::Symlink {
        chmodat(directory, name(at), mode(meta), AtFlags::empty())?;
    }
    let time = |nsec| Timespec { tv_sec: meta.modified.s, tv_nsec: nsec };
    let modified = time(meta.modified.ns.into());
    let times = Timestamps { last_access: modified, last_modification: modified };
    Ok(utimensat(directory, name(at), &times, AtFlags::SYMLINK_NOFOLLOW)?)
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

/// Removes an entry, with all it holds.
pub fn remove(directory: BorrowedFd<'_>, at: &[u8]) -> Result<()> {
    match unlinkat(directory, name(at), AtFlags::empty()) {
        Err(Errno::ISDIR) => remove_directory(directory, at),
        removed => Ok(removed?),
    }
}

/// Removes a directory, with all it holds; what is none stays, and is an error. Of what cannot be removed the last is told,
/// and everything else is removed.
pub fn remove_directory(directory: BorrowedFd<'_>, at: &[u8]) -> Result<()> {
    match unlinkat(directory, name(at), AtFlags::REMOVEDIR) {
        Err(Errno::NOTEMPTY | Errno::EXIST) => {}
        removed => return Ok(removed?),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inner = openat(directory, name(at), flags, Mode::empty())?;
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
