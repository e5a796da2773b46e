//! Errors of the operating system, typed by remedy.

use kura_block::{Error, Kind};
use rustix::io::Errno;
use std::fmt::Display;

/// The error `errno` that met `what` at `place`, with the remedy its number calls for.
pub(crate) fn error(place: impl Display, what: impl Display, errno: Errno) -> Error {
    let (kind, remedy) = remedy(errno);
    Error::new(kind, format!("{place}: {what}: {errno}{remedy}"))
}

/// As [`error`], for errors of the standard library.
pub(crate) fn io_error(place: impl Display, what: impl Display, error: &std::io::Error) -> Error {
    match Errno::from_io_error(error) {
        Some(errno) => self::error(place, what, errno),
        None => Error::device(format!("{place}: {what}: {error}")),
    }
}

fn remedy(errno: Errno) -> (Kind, &'static str) {
    match errno {
        Errno::NOSPC | Errno::DQUOT => (Kind::Full, ": free space on the file system that holds it"),
        Errno::NOENT | Errno::NOTDIR => (Kind::Missing, ": check the path"),
        Errno::EXIST => (Kind::Exists, ""),
        Errno::BUSY | Errno::TXTBSY => (Kind::Busy, ": stop what uses it (mounted? in an array?)"),
        Errno::ROFS => (Kind::ReadOnly, ": make it writable or open it read-only"),
        Errno::ACCESS | Errno::PERM => (Kind::Invalid, ": give this user access to it"),
        Errno::INVAL | Errno::FBIG | Errno::OPNOTSUPP | Errno::ISDIR => (Kind::Invalid, ""),
        Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::MFILE | Errno::NFILE => (Kind::Retry, ""),
        _ => (Kind::Device, ": replace the device"),
    }
}
