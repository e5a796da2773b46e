//! Errors of the operating system, typed by remedy.

use kura_block::{Error, Kind};
use rustix::io::Errno;
use std::fmt::Display;

/// The error `errno` that `what` met at `place`, with the remedy its number calls for.
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
        Errno::NOSPC | Errno::DQUOT => (Kind::Full, ": free space on the file system it lies on"),
        Errno::NOENT | Errno::NOTDIR => (Kind::Missing, ": check the path"),
        Errno::EXIST => (Kind::Exists, ": choose another path or remove it"),
        Errno::BUSY | Errno::TXTBSY => (Kind::Busy, ": stop what uses it (is it mounted, or part of an array?)"),
        Errno::ROFS => (Kind::ReadOnly, ": make it writable or open it for reading"),
        Errno::ACCESS | Errno::PERM => (Kind::Invalid, ": give this user access to it"),
        Errno::INVAL | Errno::FBIG | Errno::OPNOTSUPP | Errno::ISDIR => {
            (Kind::Invalid, ": it does not take this request")
        }
        Errno::AGAIN | Errno::INTR | Errno::NOMEM | Errno::MFILE | Errno::NFILE => {
            (Kind::Retry, ": the system is short of memory or handles")
        }
        _ => (Kind::Device, ": replace the device"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_decides_the_remedy_and_stands_in_the_line() {
        for (errno, kind) in [
            (Errno::IO, Kind::Device),
            (Errno::NODEV, Kind::Device),
            (Errno::NOSPC, Kind::Full),
            (Errno::INVAL, Kind::Invalid),
            (Errno::NOENT, Kind::Missing),
            (Errno::ROFS, Kind::ReadOnly),
        ] {
            let error = error("/dev/x", "write of 4096 bytes at 8192", errno);
            assert_eq!(error.kind(), kind);
            let text = error.to_string();
            assert!(text.contains("/dev/x") && text.contains("at 8192"), "{text}");
            assert!(text.contains(&format!("os error {}", errno.raw_os_error())), "{text}");
        }
    }
}
