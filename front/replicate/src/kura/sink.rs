//! The target's end: does what is asked under its root, and nowhere else.
//!
//! Directories are opened beneath the root without following any link, so that neither a link in the tree nor a path
//! from a stranger leads out of it. A file has its name only when it is whole: it is written under another one
//! ([`UNFINISHED`]) and renamed, unless nothing has its name yet and all of it is in one message.

use super::contents::{READ, Uncopied, copy, digest, read_full, sum_blocks};
use super::entry::{How, describe, let_in, make, mode, name, own, remove, remove_directory, take_place, times};
use super::failed::{each, failed, is_full, one};
use super::message::{At, FAILURES, Hold, MOST, Present, Reply, Request, Small, VERSION, Welcome};
use crate::attributes::{self, Attributes};
use crate::error::{Failure, GONE};
use crate::marker::{HELD, Marker, boot_of};
use crate::target::{identities, leads_to, owner};
use crate::tree::{Kind, Meta, Scan, UNFINISHED, is_under, scan, split};
use rustix::fs::{
    Advice, AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, ResolveFlags, Stat, fadvise, fallocate,
    fchmod, flock, fstat, ftruncate, futimens, linkat, mkdirat, openat, openat2, statat, unlinkat,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// How long the links of a run that was cut off may take to be gone.
const PATIENCE: Duration = Duration::from_secs(5);

/// A target's end.
pub struct Sink {
    /// For calls that take a path: that of the open root.
    path: PathBuf,
    root: OwnedFd,
    /// By which it was opened: what is there by the end of a run is to be this. None where somebody else sees to that.
    named: Option<PathBuf>,
    /// What files have in memory may not be what they have: the run that the copy was marked for compares with the latter.
    is_doubted: bool,
    /// The directory that was last used.
    directory: Option<(Vec<u8>, OwnedFd)>,
    /// New entries of it come with an access control list that it gives them.
    bequeaths: bool,
    /// The large file that was last used.
    large: Option<(Vec<u8>, File)>,
    /// Where large files are written that were prepared: no two in one place.
    prepared: HashSet<Vec<u8>>,
    /// What could not be read of the tree that was told last.
    unread: Vec<Failure>,
    is_root: bool,
}

/// A name for what is not whole yet. Nobody finds a second name that has the same one: he would write into the file of the first.
fn unfinished(of: &[u8]) -> Vec<u8> {
    let first = Sha256::digest(of).first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    [UNFINISHED, format!("{first:016x}").as_bytes()].concat()
}

/// A path that names something under the root.
fn is_inside(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').all(|name| !matches!(name, b"" | b"." | b"..") && !name.contains(&0))
}

fn outside() -> Error {
    Error::other("it is no path under the target")
}

impl Sink {
    /// The end of the copy in a directory, which is made if that is said.
    pub fn open(path: &Path, makes: bool) -> Result<Self> {
        if makes {
            std::fs::create_dir_all(path)?;
        }
        Ok(Self { named: Some(path.to_owned()), ..Self::of(rustix::fs::open(path, DIRECTORY, Mode::empty())?) })
    }

    /// The same in a directory beneath another one, to which no link leads.
    pub fn beneath(root: &Path, path: &Path, makes: bool) -> Result<Self> {
        let mut at = rustix::fs::open(root, DIRECTORY, Mode::empty())?;
        for part in path {
            if makes {
                match mkdirat(&at, part, Mode::RWXU | Mode::RGRP | Mode::XGRP | Mode::ROTH | Mode::XOTH) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            at = openat2(&at, part, DIRECTORY, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS)
                .map_err(|error| match error {
                    Errno::LOOP => Error::other("a link leads there, and none is followed: name the directory itself"),
                    error => error.into(),
                })?;
        }
        Ok(Self { named: Some(root.join(path)), ..Self::of(at) })
    }

    /// The end of the copy in an open directory.
    pub fn of(root: OwnedFd) -> Self {
        Self {
            // Whatever is put under its name meanwhile.
            path: format!("/proc/self/fd/{}", root.as_raw_fd()).into(),
            root,
            named: None,
            is_doubted: false,
            directory: None,
            bequeaths: false,
            large: None,
            prepared: HashSet::new(),
            unread: Vec::new(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    /// Takes the copy for what a link is for, for as long as this lives. The links of a run share it, and come and go; another run
    /// gets it when all of them are gone. Those of a run that was cut off may be about to.
    pub fn hold(&self, hold: Hold) -> std::result::Result<(), String> {
        let began = Instant::now();
        let take = |how| loop {
            match flock(&self.root, how) {
                Err(Errno::WOULDBLOCK) if began.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 100),
                Err(Errno::WOULDBLOCK) => return Err(HELD.to_owned()),
                // Some file systems know no locks.
                _ => return Ok(()),
            }
        };
        if matches!(hold, Hold::Run | Hold::Again) {
            take(FlockOperation::NonBlockingLockExclusive)?;
        }
        if hold == Hold::No { Ok(()) } else { take(FlockOperation::NonBlockingLockShared) }
    }

    /// What there is to know before anything is asked.
    pub fn welcome(&self) -> Result<Welcome> {
        let mut welcome = Welcome::of(&self.path)?;
        if let Some(itself) = welcome.lies_in.first_mut() {
            // By its path it may be another one by now.
            let is = fstat(&self.root)?;
            *itself = (is.st_dev, is.st_ino);
        }
        Ok(welcome)
    }

    /// Does what is asked.
    pub fn handle(&mut self, request: Request<'_>) -> Reply {
        match request {
            Request::Nothing | Request::Hello { version: VERSION, .. } => Reply::Done(Vec::new()),
            Request::Hello { version, .. } => {
                Reply::Refused(format!("it speaks version {VERSION} and not {version}: use the same kura at both ends"))
            }
            Request::IsEmpty => match crate::tree::is_empty(&self.path) {
                Ok(is_empty) => Reply::Bytes(vec![is_empty.into()]),
                Err(error) => Reply::Refused(error.to_string()),
            },
            Request::Tree => self.tree(),
            Request::Unread => Reply::Done(std::mem::take(&mut self.unread)),
            Request::Mark { text, durably } => match self.mark(text, durably) {
                Ok(()) => Reply::Done(Vec::new()),
                Err(error) => Reply::Refused(error.to_string()),
            },
            Request::Prepare(list) => self.prepare(&list),
            Request::Sums { at, seed, block, ranges } => match self.sums(at, seed, block, &ranges) {
                Ok(sums) => Reply::Bytes(sums),
                Err(error) => Reply::Done(vec![failed(at.path, error)]),
            },
            Request::Digests(list) => {
                let mut digest = |(path, is_of_attributes)| {
                    let sum = if is_of_attributes { self.digest_attributes(path) } else { self.digest(path) };
                    sum.unwrap_or_default().to_le_bytes()
                };
                Reply::Bytes(list.into_iter().flat_map(&mut digest).collect())
            }
            request => Reply::Done(self.change(request)),
        }
    }

    /// What changes the tree; returns what could not be changed.
    fn change(&mut self, request: Request<'_>) -> Vec<Failure> {
        match request {
            Request::Directories(list) => each(&list, |(path, meta)| (*path, self.make_directory(path, meta))),
            Request::Batch { directory, files } => match self.directory(directory).and_then(|()| self.let_in()) {
                Ok(()) => each(&files, |file| (file.name, self.small(file)))
                    .into_iter()
                    .map(|failure| Failure { path: crate::tree::join(directory, &failure.path), ..failure })
                    .collect(),
                Err(error) => {
                    let cause = super::failed::cause(&error);
                    files.iter().map(|file| Failure::new(crate::tree::join(directory, file.name), &cause)).collect()
                }
            },
            Request::Data { at, offset, bytes } => one(at.path, self.data(at, offset, &bytes)),
            Request::Hole { at, offset, length } => one(at.path, self.hole(at, offset, length)),
            Request::Keep { at, offset, length } => one(at.path, self.keep(at, offset, length)),
            Request::Finish { at, meta, attributes } => one(at.path, self.finish(at, &meta, &attributes)),
            Request::Links(list) => each(&list, |(path, to)| (*path, self.link(path, to))),
            Request::Delete(list) => each(&list, |(path, is_directory)| (*path, self.delete(path, *is_directory))),
            Request::Touch(list) => each(&list, |(path, meta, attributes)| (*path, self.touch(path, meta, attributes))),
            Request::Sweep(keep) => self.sweep(&keep),
            _ => Vec::new(),
        }
    }

    fn mark(&mut self, text: &[u8], durably: bool) -> Result<()> {
        let marker = Marker::of_text(text).ok_or_else(|| Error::other("it was sent a marker that is none"))?;
        if self.named.as_ref().is_some_and(|path| !leads_to(path, &self.root)) {
            return Err(Error::other(GONE));
        }
        self.is_doubted = marker.boot.is_empty();
        marker.put(&self.root, &self.path, durably)
    }

    fn tree(&mut self) -> Reply {
        match crate::tree::told(self.root.as_fd()) {
            Ok((records, mut unread)) => {
                unread.truncate(FAILURES);
                self.unread = unread;
                Reply::Records(records)
            }
            Err(error) => Reply::Refused(error.to_string()),
        }
    }

    /// Makes `self.directory` the directory at a path.
    fn directory(&mut self, path: &[u8]) -> Result<()> {
        if self.directory.as_ref().is_none_or(|(open, _)| open != path) {
            let fd = self.open_directory(path)?;
            self.bequeaths = attributes::has_default_list(fd.as_fd());
            self.directory = Some((path.to_vec(), fd));
        }
        Ok(())
    }

    fn open_directory(&self, path: &[u8]) -> Result<OwnedFd> {
        match crate::tree::open_directory(self.root.as_fd(), path) {
            Err(Errno::ACCESS) => Ok(crate::tree::find_directory(self.root.as_fd(), path)?),
            opened => Ok(opened?),
        }
    }

    /// The open directory of a path, and its name there.
    fn parent<'p>(&mut self, path: &'p [u8]) -> Result<(BorrowedFd<'_>, &'p [u8])> {
        if !is_inside(path) {
            return Err(outside());
        }
        let (directory, name) = split(path);
        self.directory(directory)?;
        Ok((self.current()?, name))
    }

    /// The same, to change what is in it.
    fn parent_to_change<'p>(&mut self, path: &'p [u8]) -> Result<(BorrowedFd<'_>, &'p [u8])> {
        let (_, name) = self.parent(path)?;
        self.let_in()?;
        Ok((self.current()?, name))
    }

    fn let_in(&self) -> Result<()> {
        let_in(self.current()?);
        Ok(())
    }

    fn current(&self) -> Result<BorrowedFd<'_>> {
        self.directory.as_ref().map(|(_, fd)| fd.as_fd()).ok_or_else(outside)
    }

    fn make_directory(&mut self, path: &[u8], meta: &Meta) -> Result<()> {
        if path.is_empty() {
            return Ok(());
        }
        let is_root = self.is_root;
        let (parent, at) = self.parent_to_change(path)?;
        // Until its own permissions come at the end, its owner may fill it.
        match mkdirat(parent, name(at), mode(meta) | Mode::RWXU) {
            Ok(()) => {}
            Err(Errno::EXIST) => {
                let stat = statat(parent, name(at), AtFlags::SYMLINK_NOFOLLOW)?;
                if !FileType::from_raw_mode(stat.st_mode).is_dir() {
                    unlinkat(parent, name(at), AtFlags::empty())?;
                    mkdirat(parent, name(at), mode(meta) | Mode::RWXU)?;
                }
            }
            Err(error) => return Err(error.into()),
        }
        own(parent, at, meta, is_root)
    }

    /// An entry of the open directory.
    fn small(&self, file: &Small<'_>) -> Result<()> {
        let directory = self.current()?;
        if !is_inside(file.name) || file.name.contains(&b'/') {
            return Err(outside());
        }
        let Some(contents) = &file.contents else {
            return describe_small(directory, file.name, file, How { is_root: self.is_root, ..How::default() });
        };
        // What nothing has the name of yet gets it at once: one change of the directory instead of two.
        match make(directory, file.name, file, contents) {
            Ok(made) => return describe_small(directory, file.name, file, self.made(made.as_ref())),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            // Not even looked for, perhaps: what has the name stays.
            Err(error) => return Err(error),
        }
        let beside = unfinished(file.name);
        let _ = unlinkat(directory, name(&beside), AtFlags::empty());
        let made = make(directory, &beside, file, contents)
            .and_then(|made| describe_small(directory, &beside, file, self.made(made.as_ref())))
            .and_then(|()| take_place(directory, &beside, file.name));
        if made.is_err() {
            let _ = unlinkat(directory, name(&beside), AtFlags::empty());
        }
        made
    }

    /// What is known of an entry that was just made.
    fn made<'f>(&self, open: Option<&'f File>) -> How<'f> {
        How { open, is_bare: !self.bequeaths, is_root: self.is_root }
    }

    /// A large file's name while it is written.
    fn writing(at: At<'_>) -> Vec<u8> {
        let (directory, name) = split(at.path);
        if at.in_place { at.path.to_vec() } else { crate::tree::join(directory, &unfinished(name)) }
    }

    fn prepare(&mut self, list: &[(At<'_>, u64)]) -> Reply {
        let mut failures = Vec::new();
        let mut one = |(at, size): &(At<'_>, u64)| {
            self.prepare_one(*at, *size).unwrap_or_else(|error| {
                failures.push(failed(at.path, error));
                Present::Refused
            })
        };
        let present = list.iter().map(&mut one).collect();
        Reply::Present(present, failures)
    }

    fn prepare_one(&mut self, at: At<'_>, size: u64) -> Result<Present> {
        let writing = Self::writing(at);
        if !self.prepared.insert(writing.clone()) {
            return Err(Error::other("another file is written in its place already"));
        }
        let (_, own_name) = split(at.path);
        let is_doubted = self.is_doubted;
        let (parent, writing_name) = self.parent_to_change(&writing)?;
        let stat_of = |at: &[u8]| statat(parent, name(at), AtFlags::SYMLINK_NOFOLLOW).ok();
        let is_file = |stat: &Stat| Kind::of(FileType::from_raw_mode(stat.st_mode)) == Some(Kind::File);
        let has_old = !at.in_place && stat_of(own_name).is_some_and(|stat| is_file(&stat) && stat.st_size > 0);
        let before = stat_of(writing_name);
        // What has other names is not written into: they may be those of other files of the source by now.
        let left = before.filter(|stat| is_file(stat) && stat.st_nlink == 1);
        if before.is_some() && left.is_none() {
            if at.in_place {
                remove(parent, writing_name)?;
            } else {
                // A directory is one of the tree.
                unlinkat(parent, name(writing_name), AtFlags::empty())?;
            }
        }
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(parent, name(writing_name), flags, Mode::RUSR | Mode::WUSR)?;
        if is_doubted {
            // It is read again; where it cannot be, that is told when it is.
            let _ = fadvise(&file, 0, None, Advice::DontNeed);
        }
        let is_left = left.is_some_and(|stat| stat.st_size > 0);
        let shares = !is_left && has_old && {
            // Where the file system can, the new version begins as the old one, and shares its blocks.
            let old = openat(parent, name(own_name), READ, Mode::empty());
            old.and_then(|old| rustix::fs::ioctl_ficlone(&file, &old)).is_ok()
        };
        ftruncate(&file, size)?;
        Ok(match (is_left || shares, has_old) {
            // The old version, what a run that was cut off has left, or the file itself.
            (true, _) => Present::Something,
            (false, true) => Present::Elsewhere,
            (false, false) => Present::Zeroes,
        })
    }

    /// The large file that is written.
    fn large(&mut self, at: At<'_>) -> Result<&File> {
        let writing = Self::writing(at);
        if self.large.as_ref().is_none_or(|(open, _)| *open != writing) {
            let (parent, at) = self.parent(&writing)?;
            let file = openat(parent, name(at), OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            self.large = Some((writing, file.into()));
        }
        self.large.as_ref().map(|(_, file)| file).ok_or_else(outside)
    }

    fn data(&mut self, at: At<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
        let written = self.large(at)?.write_all_at(bytes, offset);
        self.leave_if_full(at, written)
    }

    /// A file for which there is no room does not take the room of others.
    fn leave_if_full(&mut self, at: At<'_>, written: Result<()>) -> Result<()> {
        if written.as_ref().is_err_and(is_full) && !at.in_place {
            self.large = None;
            let writing = Self::writing(at);
            let (parent, at) = self.parent_to_change(&writing)?;
            let _ = unlinkat(parent, name(at), AtFlags::empty());
        }
        written
    }

    /// Data from a file of this machine, without a way through this process where the kernel can.
    pub fn data_of(
        &mut self,
        at: At<'_>,
        source: &File,
        offset: u64,
        length: u64,
    ) -> std::result::Result<(), Uncopied> {
        match copy(source, self.large(at).map_err(Uncopied::To)?, offset, length) {
            Err(Uncopied::To(error)) => self.leave_if_full(at, Err(error)).map_err(Uncopied::To),
            done => done,
        }
    }

    /// The bytes of a large file that are there, up to its end.
    pub fn read(&mut self, at: At<'_>, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_full(self.large(at)?, offset, buffer)
    }

    fn hole(&mut self, at: At<'_>, offset: u64, length: u64) -> Result<()> {
        let file = self.large(at)?;
        match fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            Err(Errno::NOTSUP) => {
                let zeroes = vec![0; 1 << 20];
                let mut done = 0;
                while done < length {
                    let part = (length - done).min(1 << 20);
                    file.write_all_at(&zeroes[..part as usize], offset + done)?;
                    done += part;
                }
                Ok(())
            }
            punched => Ok(punched?),
        }
    }

    /// Takes a part from the earlier version. What of it cannot be read is compared with what is there instead, and sent.
    fn keep(&mut self, at: At<'_>, offset: u64, length: u64) -> Result<()> {
        let (parent, own_name) = self.parent(at.path)?;
        let old: File = openat(parent, name(own_name), READ, Mode::empty())?.into();
        let length = old.metadata()?.len().saturating_sub(offset).min(length);
        match copy(&old, self.large(at)?, offset, length) {
            Err(Uncopied::To(error)) => self.leave_if_full(at, Err(error)),
            Ok(()) | Err(Uncopied::From(_)) => Ok(()),
        }
    }

    /// 128 bits for each block of each range, in order. A block at the end may be short.
    fn sums(&mut self, at: At<'_>, seed: u64, block: u64, ranges: &[(u64, u64)]) -> Result<Vec<u8>> {
        let count = |(_, length): &(u64, u64)| length.div_ceil(block.max(1)) as usize;
        let most = MOST / size_of::<u128>();
        let is_much = ranges.iter().fold(0, |all: usize, range| all.saturating_add(count(range))) >= most;
        if is_much || ranges.iter().any(|(offset, length)| offset.checked_add(*length).is_none()) {
            return Err(Error::other("it was asked for more sums than a message holds"));
        }
        let file = self.large(at)?;
        let mut sums = Vec::new();
        let mut buffer = vec![0; 1 << 20];
        sum_blocks(file, seed, block, ranges, &mut buffer, |sum| sums.extend_from_slice(&sum.to_le_bytes()))?;
        Ok(sums)
    }

    fn finish(&mut self, at: At<'_>, meta: &Meta, attributes: &Attributes) -> Result<()> {
        let writing = Self::writing(at);
        if self.large.as_ref().is_some_and(|(open, _)| *open == writing) {
            self.large = None;
        }
        let is_root = self.is_root;
        let (_, own_name) = split(at.path);
        let (parent, writing_name) = self.parent_to_change(&writing)?;
        // What it is named while it is written may be older than this run.
        describe(parent, writing_name, Kind::File, meta, attributes, How { is_root, ..How::default() })?;
        if at.in_place { Ok(()) } else { take_place(parent, writing_name, own_name) }
    }

    fn link(&mut self, path: &[u8], to: &[u8]) -> Result<()> {
        if !is_inside(path) || !is_inside(to) {
            return Err(outside());
        }
        let ((to_directory, to_name), (directory, own_name)) = (split(to), split(path));
        let (from, into) = (self.open_directory(to_directory)?, self.open_directory(directory)?);
        let_in(into.as_fd());
        let stat = |fd: &OwnedFd, at| statat(fd, name(at), AtFlags::SYMLINK_NOFOLLOW);
        let first = stat(&from, to_name)?;
        if stat(&into, own_name).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (first.st_dev, first.st_ino)) {
            return Ok(());
        }
        let beside = unfinished(own_name);
        let _ = unlinkat(&into, name(&beside), AtFlags::empty());
        linkat(&from, name(to_name), &into, name(&beside), AtFlags::empty())?;
        let linked = take_place(into.as_fd(), &beside, own_name);
        if linked.is_err() {
            let _ = unlinkat(&into, name(&beside), AtFlags::empty());
        }
        linked
    }

    fn delete(&mut self, path: &[u8], is_directory: bool) -> Result<()> {
        // A directory that is deleted must not stay open under its path.
        if self.directory.as_ref().is_some_and(|(open, _)| is_under(open, path)) {
            self.directory = None;
        }
        let deleted = self.parent_to_change(path).and_then(|(parent, at)| {
            if is_directory { remove_directory(parent, at) } else { Ok(unlinkat(parent, name(at), AtFlags::empty())?) }
        });
        match deleted.as_ref().map_err(Errno::from_io_error) {
            // It is gone, or something else came since under the same name.
            Err(Some(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR)) => Ok(()),
            _ => deleted,
        }
    }

    /// Removes all files that are not whole, but those of the paths that are kept. Directories keep their times.
    fn sweep(&self, keep: &[&[u8]]) -> Vec<Failure> {
        let kept: HashSet<Vec<u8>> = keep.iter().map(|path| Self::writing(At { path, in_place: false })).collect();
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let (left, _) = scan(self.root.as_fd(), Scan { threads, attributes: false, opens: false }, |directory| {
            (!directory.unfinished.is_empty()).then_some((directory.path, directory.unfinished))
        });
        let sweep = |path: &[u8], names: &[Box<[u8]>]| -> Result<()> {
            let directory = self.open_directory(path)?;
            let before = crate::tree::meta(&fstat(&directory)?);
            let_in(directory.as_fd());
            for at in names.iter().filter(|at| !kept.contains(&crate::tree::join(path, at))) {
                unlinkat(&directory, name(at), AtFlags::empty())?;
            }
            fchmod(&directory, mode(&before))?;
            Ok(futimens(&directory, &times(before.modified))?)
        };
        let mut failures = each(&left, |(path, names)| (&**path, sweep(path, names)));
        failures.truncate(FAILURES);
        failures
    }

    fn touch(&mut self, path: &[u8], meta: &Meta, attributes: &Attributes) -> Result<()> {
        let how = How { is_root: self.is_root, ..How::default() };
        if path.is_empty() {
            self.directory(b"")?;
            let root = self.current()?;
            return describe(root, b".", Kind::File, meta, attributes, how);
        }
        let (parent, at) = self.parent(path)?;
        describe(parent, at, Kind::File, meta, attributes, how)
    }

    /// A sum of the attributes of an entry, or of a directory.
    fn digest_attributes(&mut self, path: &[u8]) -> Result<u128> {
        if path.is_empty() {
            return attributes::digest(self.root.as_fd(), b".");
        }
        let (parent, at) = self.parent(path)?;
        attributes::digest(parent, at)
    }

    /// A sum of a file's contents.
    fn digest(&mut self, path: &[u8]) -> Result<u128> {
        let (parent, at) = self.parent(path)?;
        digest(&openat(parent, name(at), READ, Mode::empty())?.into())
    }
}

impl Welcome {
    /// Of a directory, which need not be there.
    pub fn of(root: &Path) -> Result<Self> {
        let marker = Marker::text_in(root)?.unwrap_or_default();
        let above = Marker::above(root).map(|above| above.display().to_string()).unwrap_or_default();
        Ok(Self { marker, above, boot: boot_of(root), lies_in: identities(root), owner: owner() })
    }
}

fn describe_small(directory: BorrowedFd<'_>, at: &[u8], file: &Small<'_>, how: How<'_>) -> Result<()> {
    describe(directory, at, file.kind, &file.meta, &file.attributes, how)
}

#[cfg(test)]
mod tests;
