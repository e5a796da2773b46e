//! What a file tree is: directories with their entries, as a scan finds them and a catalogue keeps them.

mod catalogue;
mod changes;
mod moved;
mod scan;

pub use catalogue::Catalogue;
pub use changes::{By, Changed, Changes, Known, Need, Visited, is_under, is_within};
pub use scan::{Scan, Seen, Unread, scan, scan_again};
pub(crate) use scan::{find_directory, is_empty, open_directory, told, told_at};

use crate::codec::{Reader, broken, put, put_bytes, put_signed};
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};
use std::io::Result;
use std::time::{SystemTime, UNIX_EPOCH};

/// At a target's root: whose copy it is and whether it is whole. Never part of a tree.
pub const MARKER: &[u8] = b".kura-replica";
/// What names of files begin with that are not whole yet.
pub const UNFINISHED: &[u8] = b".~kura~";

/// Whether an entry of this name, which is no directory, belongs to a copy's upkeep and not to the tree.
pub fn is_upkeep(directory: &[u8], name: &[u8]) -> bool {
    is_unfinished(directory, name) || is_marker(directory, name)
}

fn is_marker(directory: &[u8], name: &[u8]) -> bool {
    directory.is_empty() && name == MARKER
}

/// Whether it has the very name of a file that is not whole: 16 digits, or the marker's, which a temporary file has.
fn is_unfinished(directory: &[u8], name: &[u8]) -> bool {
    let Some(rest) = name.strip_prefix(UNFINISHED) else { return false };
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let of_marker = || rest.strip_prefix(b"marker-").filter(|_| directory.is_empty());
    (rest.len() == 16 && rest.iter().all(is_digit))
        || of_marker().is_some_and(|rest| rest.len() == 6 && rest.iter().all(u8::is_ascii_alphanumeric))
}

/// A point in time: seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    /// Seconds; before 1970 less than 0.
    pub s: i64,
    /// Less than a second.
    pub ns: u32,
}

impl Time {
    /// A moment as a scan tells it.
    pub fn of(moment: SystemTime) -> Self {
        let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { s: since.as_secs().cast_signed(), ns: since.subsec_nanos() }
    }

    fn put(self, out: &mut Vec<u8>) {
        put_signed(out, self.s);
        put(out, self.ns.into());
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self { s: reader.signed()?, ns: reader.small()? })
    }
}

/// What is known of a file or directory beside its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Permissions, with set-user-ID, set-group-ID and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the contents.
    pub modified: Time,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A file with contents.
    File,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket's name.
    Socket,
    /// A device read and written by characters.
    Characters,
    /// A device read and written by blocks.
    Blocks,
}

const KINDS: [Kind; 6] = [Kind::File, Kind::Symlink, Kind::Fifo, Kind::Socket, Kind::Characters, Kind::Blocks];

impl Kind {
    /// None for a directory.
    pub fn of(kind: FileType) -> Option<Self> {
        Some(match kind {
            FileType::RegularFile => Self::File,
            FileType::Symlink => Self::Symlink,
            FileType::Fifo => Self::Fifo,
            FileType::Socket => Self::Socket,
            FileType::CharacterDevice => Self::Characters,
            FileType::BlockDevice => Self::Blocks,
            _ => return None,
        })
    }

    /// The other way round.
    pub fn file_type(self) -> FileType {
        match self {
            Self::File => FileType::RegularFile,
            Self::Symlink => FileType::Symlink,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
            Self::Characters => FileType::CharacterDevice,
            Self::Blocks => FileType::BlockDevice,
        }
    }

    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.push(KINDS.iter().position(|kind| *kind == self).unwrap_or(0) as u8);
    }

    pub(crate) fn get(reader: &mut Reader<'_>) -> Result<Self> {
        let index: usize = reader.small()?;
        KINDS.get(index).copied().ok_or_else(broken)
    }
}

/// Anything in a directory but a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, any bytes but `/` and 0.
    pub name: Box<[u8]>,
    /// What it is.
    pub kind: Kind,
    /// What is known of it.
    pub meta: Meta,
    /// Bytes of a file; 0 of everything else.
    pub size_bytes: u64,
    /// Last change of anything about it; zero says that this entry is to be carried again.
    pub changed: Time,
    /// Device and number of the inode, which hard links share; the device is not kept in a record.
    pub inode: (u64, u64),
    /// Hard links to it.
    pub links: u32,
    /// Less is stored of it than its size.
    pub is_sparse: bool,
    /// Where a symbolic link leads; a device's number.
    pub target: Box<[u8]>,
    /// It has extended attributes; looked for only where there is no catalogue.
    pub has_attributes: bool,
}

impl Entry {
    /// Whether a file still is what the scan found. Another one of its size and time is it only where whoever may read the one may
    /// read the other: some file systems number their files anew.
    pub(crate) fn is_still(&self, stat: &Stat) -> bool {
        let now = meta(stat);
        stat.st_size as u64 == self.size_bytes
            && now.modified == self.meta.modified
            && ((stat.st_dev, stat.st_ino) == self.inode || now == self.meta)
    }

    /// What the kernel tells of `name`. None for a directory.
    pub(crate) fn of(name: &[u8], stat: &Stat) -> Option<Self> {
        let kind = Kind::of(FileType::from_raw_mode(stat.st_mode))?;
        let size_bytes = if kind == Kind::File { stat.st_size as u64 } else { 0 };
        let is_device = matches!(kind, Kind::Characters | Kind::Blocks);
        Some(Self {
            name: name.into(),
            kind,
            meta: meta(stat),
            size_bytes,
            changed: Time { s: stat.st_ctime, ns: stat.st_ctime_nsec as u32 },
            inode: (stat.st_dev, stat.st_ino),
            links: stat.st_nlink as u32,
            is_sparse: (stat.st_blocks as u64) * 512 < size_bytes,
            target: if is_device { stat.st_rdev.to_le_bytes().into() } else { Box::default() },
            has_attributes: false,
        })
    }

    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, &self.name);
        self.kind.put(out);
        self.meta.put(out);
        put(out, self.size_bytes);
        self.changed.put(out);
        // A file system has another device number each time it is mounted, as a snapshot has.
        put(out, self.inode.1);
        put(out, self.links.into());
        out.push(u8::from(self.is_sparse) | u8::from(self.has_attributes) << 1);
        put_bytes(out, &self.target);
    }

    fn get(reader: &mut Reader<'_>) -> Result<Self> {
        let (name, kind, meta) = (reader.bytes()?.into(), Kind::get(reader)?, Meta::get(reader)?);
        let size_bytes = reader.number()?;
        let changed = Time::get(reader)?;
        let (inode, links) = ((0, reader.number()?), reader.small()?);
        let flags = reader.number()?;
        let target = reader.bytes()?.into();
        let (is_sparse, has_attributes) = (flags & 1 != 0, flags & 2 != 0);
        Ok(Self { name, kind, meta, size_bytes, changed, inode, links, is_sparse, target, has_attributes })
    }
}

impl Meta {
    /// Whether a copy's is as this one; where all belongs to whoever writes the copy, whose it is makes no difference.
    pub(crate) fn is_same(&self, copy: &Self, has_one_owner: bool) -> bool {
        let Self { uid, gid, .. } = *copy;
        if has_one_owner { *copy == Self { uid, gid, ..*self } } else { copy == self }
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        for number in [self.mode, self.uid, self.gid] {
            put(out, number.into());
        }
        self.modified.put(out);
    }

    pub(crate) fn get(reader: &mut Reader<'_>) -> Result<Self> {
        let (mode, uid, gid) = (reader.small()?, reader.small()?, reader.small()?);
        Ok(Self { mode, uid, gid, modified: Time::get(reader)? })
    }
}

pub(crate) fn meta(stat: &Stat) -> Meta {
    let modified = Time { s: stat.st_mtime, ns: stat.st_mtime_nsec as u32 };
    Meta { mode: stat.st_mode & 0o7777, uid: stat.st_uid, gid: stat.st_gid, modified }
}

/// A directory and what is in it, but for the directories in it, which stand for themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// Its path under the tree's root, whose own path is empty.
    pub path: Vec<u8>,
    /// What is known of it.
    pub meta: Meta,
    /// Last change of anything about it.
    pub changed: Time,
    /// It has extended attributes; looked for only where there is no catalogue.
    pub has_attributes: bool,
    /// It is the root of another file system than the directory that it is in.
    pub is_mount: bool,
    /// In the order of their names.
    pub entries: Vec<Entry>,
    /// Names in it of files that are not whole: what runs that were cut off have left. In no record; never directories.
    pub unfinished: Vec<Box<[u8]>>,
}

impl Directory {
    /// The path of an entry under the tree's root.
    pub fn path_of(&self, entry: &Entry) -> Vec<u8> {
        join(&self.path, &entry.name)
    }

    /// Of a source's directory: what has a name that is a copy's own, and is not carried.
    pub fn not_carried(&self) -> impl Iterator<Item = Unread> {
        let cause = "its name is one of a copy's own: rename it, or remove it where a run that was cut off has left it";
        let unread = |path| Unread { path, is_directory: false, cause: cause.to_owned() };
        self.unfinished.iter().map(move |name| unread(join(&self.path, name)))
    }

    /// The directory as a catalogue keeps it: two are equal where these bytes are.
    pub fn record(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.entries.len() * 64);
        put_bytes(&mut out, &self.path);
        self.meta.put(&mut out);
        self.changed.put(&mut out);
        out.push(u8::from(self.has_attributes) | u8::from(self.is_mount) << 1);
        put(&mut out, self.entries.len() as u64);
        self.entries.iter().for_each(|entry| entry.put(&mut out));
        out
    }

    /// The directory of a record.
    pub fn of_record(record: &[u8]) -> Result<Self> {
        let mut reader = Reader(record);
        let (path, meta) = (reader.bytes()?.to_vec(), Meta::get(&mut reader)?);
        let changed = Time::get(&mut reader)?;
        let flags = reader.number()?;
        let (has_attributes, is_mount) = (flags & 1 != 0, flags & 2 != 0);
        let count = reader.count()?;
        let entries = (0..count).map(|_| Entry::get(&mut reader)).collect::<Result<_>>()?;
        if reader.is_empty() {
            Ok(Self { path, meta, changed, has_attributes, is_mount, entries, unfinished: Vec::new() })
        } else {
            Err(broken())
        }
    }
}

/// `name` in a directory; the root's path is empty.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// A path's directory and its name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}
