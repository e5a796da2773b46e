//! What the source's kura asks of the target's, and how that is written.
//!
//! ```text
//!   frame    length u32 little-endian   kind u8   body, of `codec`'s numbers and bytes
//! ```
//! Every request has one reply, in the order of the requests; many requests may be on their way. A request whose effects
//! went wrong in part says which paths, and all others were done. Between replies come signs of life.

use crate::attributes::{Attributes, get_all, put_all};
use crate::codec::{Reader, broken, put, put_bytes};
use crate::error::Failure;
use crate::tree::{Kind, Meta};
use std::borrow::Cow;
use std::io::{Error, ErrorKind, Read, Result};

/// What both ends must speak.
pub const VERSION: u64 = 8;
/// The most bytes of a frame: what is larger is nothing that an end of ours has sent.
pub const MOST: usize = 64 << 20;
/// The same of a frame of records, one of which is a whole directory: of about four million entries.
pub const MOST_RECORD: usize = 256 << 20;
/// Records that are sent together have so many bytes, or the last one begins before: none has less than ten.
pub const RECORDS: usize = 4 << 20;
/// A frame that says nothing but that an end is alive, whatever it is at.
pub const ALIVE: [u8; 5] = [0, 0, 0, 0, 6];
/// The most failures of a request that names no paths.
pub const FAILURES: usize = 10_000;
/// The most bytes of a failure's cause, and of the longest path.
const CAUSE: usize = 512;
const PATH: usize = 4096;
/// Bytes of a reply beside those of its items: whose copy it is, or why nothing more is done.
const FEW: usize = 128 << 10;

/// An entry whose contents fit into a message with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Small<'a> {
    pub name: &'a [u8],
    pub kind: Kind,
    pub meta: Meta,
    pub attributes: Attributes,
    /// Of a file, its contents; of a link, where it leads; of a device, its number. None: they are there.
    pub contents: Option<Cow<'a, [u8]>>,
}

/// A large file, by its path; its parts are written beside it under another name, or in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At<'a> {
    pub path: &'a [u8],
    pub in_place: bool,
}

/// What is there of a large file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Present {
    /// Nothing but its size, and zeroes.
    Zeroes,
    /// Some of it, from a run that was cut off, or all of an earlier version: compare.
    Something,
    /// Nothing, but an earlier version under its own name: keep parts of it, and compare.
    Elsewhere,
    /// It cannot be written; the failure was told.
    Refused,
}

const PRESENT: [Present; 4] = [Present::Zeroes, Present::Something, Present::Elsewhere, Present::Refused];

/// For what a link wants the copy, until its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// To look at it.
    No,
    /// For a run, while no link of another run is there.
    Run,
    /// For a worker of the run that has it.
    Worker,
    /// For a run to a copy that was there before: where there is none, none is made.
    Again,
}

const HOLDS: [Hold; 4] = [Hold::No, Hold::Run, Hold::Worker, Hold::Again];

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Request<'a> {
    Hello {
        version: u64,
        path: &'a [u8],
        token: &'a [u8],
        hold: Hold,
    },
    IsEmpty,
    Tree,
    /// What could not be read of the tree that was told.
    Unread,
    Mark {
        text: &'a [u8],
        durably: bool,
    },
    Directories(Vec<(&'a [u8], Meta)>),
    Batch {
        directory: &'a [u8],
        files: Vec<Small<'a>>,
    },
    Prepare(Vec<(At<'a>, u64)>),
    Data {
        at: At<'a>,
        offset: u64,
        bytes: Cow<'a, [u8]>,
    },
    Hole {
        at: At<'a>,
        offset: u64,
        length: u64,
    },
    Keep {
        at: At<'a>,
        offset: u64,
        length: u64,
    },
    Sums {
        at: At<'a>,
        seed: u64,
        block: u64,
        ranges: Vec<(u64, u64)>,
    },
    Finish {
        at: At<'a>,
        meta: Meta,
        attributes: Attributes,
    },
    Links(Vec<(&'a [u8], &'a [u8])>),
    /// Paths, and whether each is to be deleted as a directory, with all it holds: what is something else by now stays.
    Delete(Vec<(&'a [u8], bool)>),
    Touch(Vec<(&'a [u8], Meta, Attributes)>),
    /// Paths, and of which a sum is wanted of attributes, not of contents.
    Digests(Vec<(&'a [u8], bool)>),
    /// Away with all files that are not whole, but those of these paths.
    Sweep(Vec<&'a [u8]>),
    /// Its reply comes after all before it.
    Nothing,
}

/// What is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// It was done, but for these.
    Done(Vec<Failure>),
    /// Bytes that were asked for.
    Bytes(Vec<u8>),
    /// Directories' records.
    Records(Vec<Vec<u8>>),
    /// What is there of large files, and what went wrong.
    Present(Vec<Present>, Vec<Failure>),
    /// Nothing more will be done.
    Refused(String),
    /// Of a hello, and what there is to know of the copy.
    Welcome(Welcome),
}

/// What a reply has at most. What is more was not asked for, and is not taken in.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bytes: usize,
    pub items: usize,
}

impl Bounds {
    /// Of a frame of records.
    pub const RECORDS: Self = Self { bytes: MOST_RECORD, items: RECORDS / 10 + 1 };
}

/// What a target's end says of its copy before anything is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The text of its marker; empty where it has none.
    pub marker: Vec<u8>,
    /// The nearest directory above it that is a copy itself; empty where there is none.
    pub above: String,
    /// Which start it is of the machine that has its files; empty where that end cannot say.
    pub boot: String,
    /// Which directory it is, and which are above it, by device and inode.
    pub lies_in: Vec<(u64, u64)>,
    /// The owner of every file written there; `None` where ownership can be set.
    pub owner: Option<(u32, u32)>,
}

fn put_at(out: &mut Vec<u8>, at: At<'_>) {
    put_bytes(out, at.path);
    out.push(at.in_place.into());
}

fn get_at<'a>(reader: &mut Reader<'a>) -> Result<At<'a>> {
    Ok(At { path: reader.bytes()?, in_place: reader.number()? != 0 })
}

fn list<'a, T>(reader: &mut Reader<'a>, one: impl Fn(&mut Reader<'a>) -> Result<T>) -> Result<Vec<T>> {
    list_of(reader, usize::MAX, one)
}

/// The same, of so many at most.
fn list_of<'a, T>(reader: &mut Reader<'a>, most: usize, one: impl Fn(&mut Reader<'a>) -> Result<T>) -> Result<Vec<T>> {
    let count = reader.count()?;
    if count > most {
        return Err(unasked());
    }
    (0..count).map(|_| one(reader)).collect()
}

/// Bytes of all of them.
fn length<'a>(paths: impl Iterator<Item = &'a [u8]>) -> usize {
    paths.map(<[u8]>::len).sum()
}

fn hold(reader: &mut Reader<'_>) -> Result<Hold> {
    HOLDS.get(reader.small::<usize>()?).copied().ok_or_else(broken)
}

fn unasked() -> Error {
    Error::new(ErrorKind::InvalidData, "it answers more than it was asked for")
}

fn put_list<T>(out: &mut Vec<u8>, list: &[T], one: impl Fn(&mut Vec<u8>, &T)) {
    put(out, list.len() as u64);
    for item in list {
        one(out, item);
    }
}

impl<'a> Request<'a> {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello { .. } => 0,
            Self::IsEmpty => 2,
            Self::Tree => 3,
            Self::Mark { .. } => 4,
            Self::Directories(_) => 5,
            Self::Batch { .. } => 6,
            Self::Prepare(_) => 7,
            Self::Data { .. } => 8,
            Self::Hole { .. } => 9,
            Self::Keep { .. } => 10,
            Self::Sums { .. } => 11,
            Self::Finish { .. } => 12,
            Self::Links(_) => 13,
            Self::Delete(_) => 14,
            Self::Touch(_) => 15,
            Self::Digests(_) => 16,
            Self::Nothing => 17,
            Self::Sweep(_) => 18,
            Self::Unread => 19,
        }
    }

    /// What its reply has at most; what names paths is answered with those at most.
    pub fn bounds(&self) -> Bounds {
        let paths = |count: usize, bytes: usize| Bounds { bytes: FEW + bytes + count * CAUSE, items: count };
        match self {
            Self::Hello { .. } | Self::IsEmpty | Self::Mark { .. } | Self::Nothing => paths(0, 0),
            Self::Tree => Bounds::RECORDS,
            Self::Directories(list) => paths(list.len(), length(list.iter().map(|(path, _)| *path))),
            Self::Batch { directory, files } => {
                paths(files.len(), files.iter().map(|file| directory.len() + 1 + file.name.len()).sum())
            }
            Self::Prepare(list) => paths(list.len(), list.iter().map(|(at, _)| 1 + at.path.len()).sum()),
            Self::Data { at, .. } | Self::Hole { at, .. } | Self::Keep { at, .. } | Self::Finish { at, .. } => {
                paths(1, at.path.len())
            }
            Self::Sums { at, block, ranges, .. } => {
                let sums = ranges.iter().map(|(_, length)| length.div_ceil((*block).max(1)) as usize);
                paths(1, at.path.len() + size_of::<u128>() * sums.sum::<usize>())
            }
            Self::Links(list) => paths(list.len(), length(list.iter().map(|(path, _)| *path))),
            Self::Delete(list) => paths(list.len(), length(list.iter().map(|(path, _)| *path))),
            Self::Touch(list) => paths(list.len(), length(list.iter().map(|(path, ..)| *path))),
            Self::Digests(list) => paths(list.len(), length(list.iter().map(|(path, _)| *path))),
            Self::Sweep(_) | Self::Unread => paths(FAILURES, FAILURES * PATH),
        }
    }

    /// The frame.
    pub fn frame(&self) -> Vec<u8> {
        let mut out = vec![0, 0, 0, 0, self.kind()];
        match self {
            Self::Hello { version, path, token, hold } => {
                put(&mut out, *version);
                put_bytes(&mut out, path);
                put_bytes(&mut out, token);
                out.push(HOLDS.iter().position(|known| known == hold).unwrap_or(0) as u8);
            }
            Self::IsEmpty | Self::Tree | Self::Unread | Self::Nothing => {}
            Self::Mark { text, durably } => {
                put_bytes(&mut out, text);
                out.push((*durably).into());
            }
            Self::Directories(list) => put_list(&mut out, list, |out, (path, meta)| {
                put_bytes(out, path);
                meta.put(out);
            }),
            Self::Batch { directory, files } => {
                put_bytes(&mut out, directory);
                put_list(&mut out, files, |out, file| file.put(out));
            }
            Self::Prepare(list) => put_list(&mut out, list, |out, (at, size)| {
                put_at(out, *at);
                put(out, *size);
            }),
            Self::Data { at, offset, bytes } => {
                put_at(&mut out, *at);
                put(&mut out, *offset);
                put_bytes(&mut out, bytes);
            }
            Self::Hole { at, offset, length } | Self::Keep { at, offset, length } => {
                put_at(&mut out, *at);
                put(&mut out, *offset);
                put(&mut out, *length);
            }
            Self::Sums { at, seed, block, ranges } => {
                put_at(&mut out, *at);
                put(&mut out, *seed);
                put(&mut out, *block);
                put_list(&mut out, ranges, |out, (offset, length)| {
                    put(out, *offset);
                    put(out, *length);
                });
            }
            Self::Finish { at, meta, attributes } => {
                put_at(&mut out, *at);
                meta.put(&mut out);
                put_all(&mut out, attributes);
            }
            Self::Links(list) => put_list(&mut out, list, |out, (path, to)| {
                put_bytes(out, path);
                put_bytes(out, to);
            }),
            Self::Delete(list) | Self::Digests(list) => put_list(&mut out, list, |out, (path, which)| {
                put_bytes(out, path);
                out.push((*which).into());
            }),
            Self::Sweep(list) => put_list(&mut out, list, |out, path| put_bytes(out, path)),
            Self::Touch(list) => put_list(&mut out, list, |out, (path, meta, attributes)| {
                put_bytes(out, path);
                meta.put(out);
                put_all(out, attributes);
            }),
        }
        sealed(out)
    }

    /// The request of a frame's kind and body.
    pub fn of(kind: u8, body: &'a [u8]) -> Result<Self> {
        let reader = &mut Reader(body);
        Ok(match kind {
            0 => {
                let (version, path, token) = (reader.number()?, reader.bytes()?, reader.bytes()?);
                // Of another version nothing else is understood.
                let hold = if version == VERSION { hold(reader)? } else { Hold::No };
                Self::Hello { version, path, token, hold }
            }
            2 => Self::IsEmpty,
            3 => Self::Tree,
            4 => Self::Mark { text: reader.bytes()?, durably: reader.number()? != 0 },
            5 => Self::Directories(list(reader, |it| Ok((it.bytes()?, Meta::get(it)?)))?),
            6 => Self::Batch { directory: reader.bytes()?, files: list(reader, Small::get)? },
            7 => Self::Prepare(list(reader, |it| Ok((get_at(it)?, it.number()?)))?),
            8 => Self::Data { at: get_at(reader)?, offset: reader.number()?, bytes: reader.bytes()?.into() },
            9 => Self::Hole { at: get_at(reader)?, offset: reader.number()?, length: reader.number()? },
            10 => Self::Keep { at: get_at(reader)?, offset: reader.number()?, length: reader.number()? },
            11 => {
                let (at, seed, block) = (get_at(reader)?, reader.number()?, reader.number()?);
                Self::Sums { at, seed, block, ranges: list(reader, |it| Ok((it.number()?, it.number()?)))? }
            }
            12 => Self::Finish { at: get_at(reader)?, meta: Meta::get(reader)?, attributes: get_all(reader)? },
            13 => Self::Links(list(reader, |it| Ok((it.bytes()?, it.bytes()?)))?),
            14 => Self::Delete(list(reader, |it| Ok((it.bytes()?, it.number()? != 0)))?),
            15 => Self::Touch(list(reader, |it| Ok((it.bytes()?, Meta::get(it)?, get_all(it)?)))?),
            16 => Self::Digests(list(reader, |it| Ok((it.bytes()?, it.number()? != 0)))?),
            17 => Self::Nothing,
            18 => Self::Sweep(list(reader, Reader::bytes)?),
            19 => Self::Unread,
            _ => return Err(broken()),
        })
    }
}

impl<'a> Small<'a> {
    fn put(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.name);
        self.kind.put(out);
        self.meta.put(out);
        put_all(out, &self.attributes);
        out.push(self.contents.is_some().into());
        if let Some(contents) = &self.contents {
            put_bytes(out, contents);
        }
    }

    fn get(reader: &mut Reader<'a>) -> Result<Self> {
        let (name, kind, meta) = (reader.bytes()?, Kind::get(reader)?, Meta::get(reader)?);
        let attributes = get_all(reader)?;
        let contents = if reader.number()? != 0 { Some(Cow::Borrowed(reader.bytes()?)) } else { None };
        Ok(Self { name, kind, meta, attributes, contents })
    }
}

impl Reply {
    /// The frame.
    pub fn frame(&self) -> Vec<u8> {
        let mut out = vec![0; 5];
        out[4] = match self {
            Self::Done(_) => 0,
            Self::Bytes(_) => 1,
            Self::Records(_) => 2,
            Self::Present(..) => 3,
            Self::Refused(_) => 4,
            Self::Welcome(_) => 5,
        };
        match self {
            Self::Done(failures) => put_failures(&mut out, failures),
            Self::Bytes(bytes) => put_bytes(&mut out, bytes),
            Self::Records(records) => put_list(&mut out, records, |out, record| put_bytes(out, record)),
            Self::Present(present, failures) => {
                put_list(&mut out, present, |out, one| {
                    out.push(PRESENT.iter().position(|known| known == one).unwrap_or(3) as u8);
                });
                put_failures(&mut out, failures);
            }
            Self::Refused(why) => put_bytes(&mut out, why.as_bytes()),
            Self::Welcome(Welcome { marker, above, boot, lies_in, owner }) => {
                put_bytes(&mut out, marker);
                put_bytes(&mut out, above.as_bytes());
                put_bytes(&mut out, boot.as_bytes());
                put_list(&mut out, lies_in, |out, (device, inode)| {
                    put(out, *device);
                    put(out, *inode);
                });
                put_list(&mut out, owner.as_slice(), |out, (uid, gid)| {
                    put(out, (*uid).into());
                    put(out, (*gid).into());
                });
            }
        }
        sealed(out)
    }

    /// The reply of a frame's kind and body, with so many items at most.
    pub fn of(kind: u8, body: &[u8], most: usize) -> Result<Self> {
        let reader = &mut Reader(body);
        let present = |it: &mut Reader<'_>| PRESENT.get(it.small::<usize>()?).copied().ok_or_else(broken);
        Ok(match kind {
            0 => Self::Done(get_failures(reader, most)?),
            1 => Self::Bytes(reader.bytes()?.to_vec()),
            2 => Self::Records(list_of(reader, most, |it| Ok(it.bytes()?.to_vec()))?),
            3 => Self::Present(list_of(reader, most, present)?, get_failures(reader, most)?),
            4 => Self::Refused(line(reader.bytes()?)),
            5 => {
                let (marker, above, boot) = (reader.bytes()?.to_vec(), line(reader.bytes()?), line(reader.bytes()?));
                let lies_in = list(reader, |it| Ok((it.number()?, it.number()?)))?;
                let owner = list(reader, |it| Ok((it.small()?, it.small()?)))?.pop();
                Self::Welcome(Welcome { marker, above, boot, lies_in, owner })
            }
            _ => return Err(broken()),
        })
    }
}

fn put_failures(out: &mut Vec<u8>, failures: &[Failure]) {
    put_list(out, failures, |out, failure| {
        put_bytes(out, &failure.path);
        put_bytes(out, &failure.cause.as_bytes()[..failure.cause.len().min(CAUSE / 2)]);
    });
}

fn get_failures(reader: &mut Reader<'_>, most: usize) -> Result<Vec<Failure>> {
    list_of(reader, most, |it| Ok(Failure::new(it.bytes()?, line(it.bytes()?))))
}

/// What the other end says, as a line that does nothing to a terminal.
pub fn line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace(char::is_control, " ")
}

/// A frame with its length in front.
fn sealed(mut frame: Vec<u8>) -> Vec<u8> {
    let length = (frame.len() - 5) as u32;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    frame
}

/// Reads a frame of at most so many bytes into `body` and returns its kind; none at the end of the stream.
///
/// # Errors
/// What is longer is not read.
pub fn read_frame(stream: &mut impl Read, body: &mut Vec<u8>, most: usize) -> Result<Option<u8>> {
    let mut head = [0; 5];
    let mut filled = 0;
    while filled < head.len() {
        match stream.read(&mut head[filled..]) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(broken()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let [a, b, c, d, kind] = head;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > most {
        return Err(unasked());
    }
    body.resize(length, 0);
    stream.read_exact(body)?;
    Ok(Some(kind))
}

#[cfg(test)]
mod tests;
