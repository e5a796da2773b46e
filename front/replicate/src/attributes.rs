//! Extended attributes, access control lists among them: the kernel shows those as `system.posix_acl_*`.

use crate::codec::{Reader, put, put_bytes};
use rustix::fs::{XattrFlags, fgetxattr, flistxattr, lgetxattr, llistxattr, lremovexattr, lsetxattr};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use xxhash_rust::xxh3::xxh3_128;

/// Names with values.
pub type Attributes = Vec<(Vec<u8>, Vec<u8>)>;

/// The longest list of names, and the longest value, that Linux has.
const LONGEST: usize = 64 << 10;

/// The most bytes of all that a file has: with them it fits into a message.
const MOST: usize = 16 << 20;

/// A path for calls that have no form for an open directory: through the directory's own entry in `/proc`.
fn path_of(directory: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

/// Attributes that belong to a file, not to where it lies.
fn is_carried(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"system.posix_acl_")
        || name.starts_with(b"trusted.")
        || name == b"security.capability"
}

/// Whether `name` in an open directory has any.
pub fn any(directory: BorrowedFd<'_>, name: &[u8]) -> bool {
    let path = path_of(directory, name);
    let mut names = [0_u8; 512];
    match llistxattr(OsStr::from_bytes(&path), &mut names[..]) {
        Ok(0) => false,
        Ok(length) => names[..length].split(|byte| *byte == 0).any(is_carried),
        // More than fits: there are some. No support: there are none.
        Err(error) => error == Errno::RANGE,
    }
}

/// All of `name` in an open directory, in the order of their names.
pub fn read(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Attributes> {
    let path = path_of(directory, name);
    let path = OsStr::from_bytes(&path);
    let list = |names: &mut [u8]| llistxattr(path, names);
    collect(list, |name, value| lgetxattr(path, OsStr::from_bytes(name), value))
}

/// The attributes that `list` names, with the values that `get` gets.
fn collect(
    list: impl Fn(&mut [u8]) -> rustix::io::Result<usize>,
    get: impl Fn(&[u8], &mut [u8]) -> rustix::io::Result<usize>,
) -> Result<Attributes> {
    let mut few = [0; 512];
    let names = match list(&mut few) {
        Ok(length) => few[..length].to_vec(),
        Err(Errno::RANGE) => {
            let mut names = vec![0; LONGEST];
            let length = list(&mut names)?;
            names.truncate(length);
            names
        }
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut attributes = Vec::new();
    let mut left = MOST;
    let mut value = vec![0; LONGEST];
    for name in names.split(|byte| *byte == 0).filter(|name| is_carried(name)) {
        match get(name, &mut value) {
            Ok(length) => {
                left = left
                    .checked_sub(name.len() + length)
                    .ok_or_else(|| Error::other("its extended attributes have more than 16 MiB"))?;
                attributes.push((name.to_vec(), value[..length].to_vec()));
            }
            // Gone meanwhile, or not ours to read.
            Err(Errno::NODATA | Errno::PERM) => {}
            Err(error) => return Err(error.into()),
        }
    }
    attributes.sort();
    Ok(attributes)
}

/// All of an open file, in the order of their names.
pub fn of_file(file: BorrowedFd<'_>) -> Result<Attributes> {
    let list = |names: &mut [u8]| flistxattr(file, names);
    collect(list, |name, value| fgetxattr(file, OsStr::from_bytes(name), value))
}

/// A sum of all of `name` in an open directory.
pub fn digest(directory: BorrowedFd<'_>, name: &[u8]) -> Result<u128> {
    let mut bytes = Vec::new();
    put_all(&mut bytes, &read(directory, name)?);
    Ok(xxh3_128(&bytes))
}

/// Whether an open directory gives a list to what comes into it.
pub fn has_default_list(directory: BorrowedFd<'_>) -> bool {
    let mut list = [0_u8; 8];
    !matches!(fgetxattr(directory, "system.posix_acl_default", &mut list[..]), Err(Errno::NODATA | Errno::NOTSUP))
}

/// Makes `attributes` those of `name` in an open directory.
pub fn write(directory: BorrowedFd<'_>, name: &[u8], attributes: &Attributes, is_new: bool) -> Result<()> {
    if is_new && attributes.is_empty() {
        return Ok(());
    }
    let path = path_of(directory, name);
    let path = OsStr::from_bytes(&path);
    let old = if is_new { Vec::new() } else { read(directory, name)? };
    for (name, value) in attributes.iter().filter(|attribute| !old.contains(attribute)) {
        lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty())?;
    }
    for (name, _) in old.iter().filter(|(name, _)| !attributes.iter().any(|(kept, _)| kept == name)) {
        lremovexattr(path, OsStr::from_bytes(name))?;
    }
    Ok(())
}

/// Bytes of names and values.
pub(crate) fn bytes(attributes: &Attributes) -> usize {
    attributes.iter().map(|(name, value)| name.len() + value.len()).sum()
}

pub(crate) fn put_all(out: &mut Vec<u8>, attributes: &Attributes) {
    put(out, attributes.len() as u64);
    for (name, value) in attributes {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

pub(crate) fn get_all(reader: &mut Reader<'_>) -> Result<Attributes> {
    let count = reader.count()?;
    (0..count).map(|_| Ok((reader.bytes()?.to_vec(), reader.bytes()?.to_vec()))).collect()
}
