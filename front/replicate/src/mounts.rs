//! File systems that are mounted in a copy: what is said of all of it is to hold of them, too.

use crate::tree::is_under;
use rustix::fs::{Mode, OFlags, open, readlink, syncfs};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;

/// Makes all durable that is under an open directory, whatever it is mounted from. What was to be written since the directory was
/// opened, and could not be, is an error; of what is mounted in it as long as nobody else was told, and it may be opened.
pub(crate) fn sync_all(root: impl AsFd) -> Result<()> {
    syncfs(&root)?;
    let path = readlink(format!("/proc/self/fd/{}", root.as_fd().as_raw_fd()), Vec::new())?;
    for mount in below(&std::fs::read("/proc/self/mountinfo")?, path.as_bytes()) {
        match open(OsStr::from_bytes(&mount), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()) {
            Ok(mount_point) => syncfs(mount_point)
                .map_err(|error| Error::other(format!("{}: {error}", String::from_utf8_lossy(&mount))))?,
            // Gone by now.
            Err(Errno::NOENT) => {}
            // Somebody else's, or without anybody who serves it: then all of the system's, which needs no leave.
            Err(_) => rustix::fs::sync(),
        }
    }
    Ok(())
}

/// Where something is mounted below a directory, of a table as the kernel writes it: the fifth word of each line, with spaces, tabs,
/// line ends and backslashes as `\ooo`.
fn below(table: &[u8], directory: &[u8]) -> Vec<Vec<u8>> {
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let inside = |point: &Vec<u8>| point != directory && (directory == b"/" || is_under(point, directory));
    points.map(unescaped).filter(inside).collect()
}

fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut parts = word.split(|byte| *byte == b'\\');
    let mut out = parts.next().unwrap_or_default().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at(part.len().min(3));
        out.extend(std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok()));
        out.extend_from_slice(rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_a_directory_is_found() {
        let table = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n30 22 0:5 / /a rw - tmpfs t rw\n31 30 0:6 / /a/b\\040c rw - tmpfs t rw\n\
            32 22 0:7 / /ab rw - tmpfs t rw\n33 31 0:8 / /a/b\\040c/d\\134 rw shared:1 - tmpfs t rw\n";
        let found = |directory: &str| -> Vec<String> {
            below(table, directory.as_bytes()).into_iter().map(|it| String::from_utf8(it).unwrap()).collect()
        };
        assert_eq!(found("/a"), ["/a/b c", "/a/b c/d\\"]);
        assert_eq!(
            (found("/"), found("/a/b")),
            (vec!["/a".into(), "/a/b c".into(), "/ab".into(), "/a/b c/d\\".into()], vec![])
        );
    }
}
