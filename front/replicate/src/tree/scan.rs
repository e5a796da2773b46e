//! A tree as it is now, read by several threads at once.
//!
//! Everything is asked of an open directory, never by a path from the root: that is one look-up instead of many, and
//! somebody who swaps a directory for a link meanwhile does not lead the scan elsewhere.

use super::{Catalogue, Directory, Entry, Kind, Time, is_marker, is_unfinished, join, meta};
use crate::error::Failure;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, chmod, fstat, openat2, readlinkat, statat};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Something that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// Its path under the root.
    pub path: Vec<u8>,
    /// Whether everything under the path is unknown, or only this entry.
    pub is_directory: bool,
    /// Why.
    pub cause: String,
}

/// How a tree is scanned.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Threads that read.
    pub threads: usize,
    /// Whether to look for extended attributes: a call more for each entry.
    pub attributes: bool,
    /// Whether directories that forbid their owner to read them are opened for it: of a copy, whose owner this is.
    pub opens: bool,
}

/// Directories that were read, and when each had changed last.
pub type Seen<'a> = BTreeMap<&'a [u8], Time>;

/// A directory to be read, and the device of the one that it is in; of the root, none.
type Waiting = (Vec<u8>, Option<u64>);

/// Directories that wait to be read, and how many are being read.
struct Queue {
    waiting: Vec<Waiting>,
    busy: usize,
}

/// Reads the tree under `root`: each directory is shown to `visit` on the thread that read it, in no particular order.
/// What `visit` makes of it is returned, and what could not be read.
///
/// A directory that vanished meanwhile was not read: it may be under another name where the scan had been already. A file that
/// vanished is one that is not there.
pub fn scan<T: Send>(
    root: BorrowedFd<'_>,
    how: Scan,
    visit: impl Fn(Directory) -> Option<T> + Sync,
) -> (Vec<T>, Vec<Unread>) {
    scan_again(root, how, &Seen::new(), visit)
}

/// The same of what is not as it was seen: directories that have changed, and new ones in them; of all, where nothing was.
/// One that was seen and cannot be read now is as it was. Whether one that was seen is a mount is not told.
pub fn scan_again<T: Send>(
    root: BorrowedFd<'_>,
    how: Scan,
    seen: &Seen<'_>,
    visit: impl Fn(Directory) -> Option<T> + Sync,
) -> (Vec<T>, Vec<Unread>) {
    let waiting: Vec<Waiting> = match seen.len() {
        0 => vec![Waiting::default()],
        _ => seen.keys().map(|path| (path.to_vec(), None)).collect(),
    };
    let queue = Mutex::new(Queue { waiting, busy: 0 });
    let changed = Condvar::new();
    let closed = Mutex::new(Vec::new());
    let work = || {
        let (mut visited, mut unread) = (Vec::new(), Vec::new());
        while let Some((path, above)) = next(&queue, &changed) {
            let read = Reading { root, how, seen, unread: &mut unread, closed: &closed }.directory(path, above);
            let (directory, inner) =
                read.map_or_else(|| (None, Vec::new()), |(directory, inner)| (Some(directory), inner));
            let mut queue = lock(&queue);
            queue.busy -= 1;
            let wakes = !inner.is_empty() || (queue.busy == 0 && queue.waiting.is_empty());
            queue.waiting.extend(inner);
            drop(queue);
            if wakes {
                changed.notify_all();
            }
            visited.extend(directory.and_then(&visit));
        }
        (visited, unread)
    };
    let threads = how.threads.max(1);
    let done = std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = vec![work()];
        // A thread that panicked has nothing to give; the panic goes on here.
        done.extend(
            others.into_iter().map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))),
        );
        done
    });
    close(root, closed);
    let (mut visited, mut unread) = (Vec::new(), Vec::new());
    for (of_thread, unread_of_thread) in done {
        visited.extend(of_thread);
        unread.extend(unread_of_thread);
    }
    (visited, unread)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The next directory to read; none when all are read.
fn next(queue: &Mutex<Queue>, changed: &Condvar) -> Option<Waiting> {
    let mut queue = lock(queue);
    loop {
        if let Some(waiting) = queue.waiting.pop() {
            queue.busy += 1;
            return Some(waiting);
        }
        if queue.busy == 0 {
            return None;
        }
        queue = changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Opens the directory at a path under `root`; the root itself where the path is empty. No link on the way is followed.
pub(crate) fn open_directory(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    open(root, path, OFlags::RDONLY)
}

/// The same, not to be read: what is in it can be reached by that, where its permissions forbid more.
pub(crate) fn find_directory(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<OwnedFd> {
    open(root, path, OFlags::PATH)
}

fn open(root: BorrowedFd<'_>, path: &[u8], how: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = how | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    openat2(root, OsStr::from_bytes(path), flags, Mode::empty(), within)
}

/// What a copy has under its open root, as a catalogue keeps it, and what of it cannot be read.
///
/// # Errors
/// Its root cannot be.
pub(crate) fn told(root: BorrowedFd<'_>) -> std::io::Result<(Vec<Vec<u8>>, Vec<Failure>)> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let how = Scan { threads, attributes: true, opens: true };
    let (records, unread) = scan(root, how, |directory| Some(directory.record()));
    if let Some(root) = unread.iter().find(|unread| unread.path.is_empty()) {
        return Err(std::io::Error::other(root.cause.clone()));
    }
    let unread = unread.into_iter().map(|unread| Failure::new(unread.path, format!("target: {}", unread.cause)));
    Ok((records, unread.collect()))
}

/// The same of a directory of this machine, which need not be there.
pub(crate) fn told_at(root: &Path) -> std::io::Result<(Catalogue, Vec<Failure>)> {
    if !root.try_exists()? {
        return Ok((Catalogue::default(), Vec::new()));
    }
    let (records, unread) = told(std::fs::File::open(root)?.as_fd())?;
    Ok((Catalogue::of_records(records)?, unread))
}

/// Whether a directory of this machine has nothing in it, or is not there.
pub(crate) fn is_empty(root: &Path) -> std::io::Result<bool> {
    match std::fs::read_dir(root) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// A directory that its owner, who this is, may not read: from now on he may. Its permissions before are told.
fn open_closed(root: BorrowedFd<'_>, path: &[u8]) -> rustix::io::Result<(OwnedFd, Mode)> {
    let before = permit(root, path, |mode| mode | Mode::RWXU).map_err(|_| Errno::ACCESS)?;
    Ok((open_directory(root, path)?, before))
}

/// Sets permissions of the directory at a path under `root`; those that it had.
fn permit(root: BorrowedFd<'_>, path: &[u8], to: impl Fn(Mode) -> Mode) -> rustix::io::Result<Mode> {
    let directory = find_directory(root, path)?;
    let before = Mode::from_raw_mode(fstat(&directory)?.st_mode);
    chmod(format!("/proc/self/fd/{}", directory.as_raw_fd()), to(before))?;
    Ok(before)
}

/// Takes back what was permitted, of inner directories first: through one that is closed none is reached.
fn close(root: BorrowedFd<'_>, closed: Mutex<Vec<(Vec<u8>, Mode)>>) {
    let mut closed = closed.into_inner().unwrap_or_else(PoisonError::into_inner);
    closed.sort_by(|(one, _), (other, _)| other.cmp(one));
    for (path, before) in closed {
        // It is the copy's own, and was reached a moment ago. A run may have set it anew since.
        let _ = permit(root, &path, |now| if now == before | Mode::RWXU { before } else { now });
    }
}

struct Reading<'a> {
    root: BorrowedFd<'a>,
    how: Scan,
    seen: &'a Seen<'a>,
    unread: &'a mut Vec<Unread>,
    /// Directories that were opened, and their permissions.
    closed: &'a Mutex<Vec<(Vec<u8>, Mode)>>,
}

impl Reading<'_> {
    /// A directory, and those in it; none where it cannot be read, or is as it was seen. `above` is the device of the one that it is in.
    fn directory(&mut self, path: Vec<u8>, above: Option<u64>) -> Option<(Directory, Vec<Waiting>)> {
        let mut directory = Directory { path, ..Directory::default() };
        match self.fill(&mut directory, above) {
            Ok(inner) => inner.map(|inner| (directory, inner)),
            Err(_) if self.seen.contains_key(&*directory.path) => None,
            Err(error) => {
                self.unread(directory.path, true, error);
                None
            }
        }
    }

    fn fill(&mut self, directory: &mut Directory, above: Option<u64>) -> rustix::io::Result<Option<Vec<Waiting>>> {
        let (fd, before) = match open_directory(self.root, &directory.path) {
            Err(Errno::ACCESS) if self.how.opens && !directory.path.is_empty() => {
                let (fd, before) = open_closed(self.root, &directory.path)?;
                lock(self.closed).push((directory.path.clone(), before));
                (fd, Some(before))
            }
            fd => (fd?, None),
        };
        let stat = fstat(&fd)?;
        directory.meta = meta(&stat);
        if let Some(before) = before {
            directory.meta.mode = before.as_raw_mode() & 0o7777;
        }
        directory.changed = Time { s: stat.st_ctime, ns: stat.st_ctime_nsec as u32 };
        if self.seen.get(&*directory.path) == Some(&directory.changed) {
            return Ok(None);
        }
        directory.is_mount = above.is_some_and(|above| above != stat.st_dev);
        directory.has_attributes = self.how.attributes && has_attributes(&fd, c".");
        let mut inner = Vec::new();
        let waiting = |path| (path, Some(stat.st_dev));
        let mut buffer = [MaybeUninit::uninit(); 16 << 10];
        let mut names = RawDir::new(fd.try_clone().map_err(|_| Errno::MFILE)?, &mut buffer);
        while let Some(name) = names.next() {
            let name = name?;
            let (name, kind) = (name.file_name(), name.file_type());
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if is_marker(&directory.path, name.to_bytes()) {
                let stat = statat(&fd, name, AtFlags::SYMLINK_NOFOLLOW);
                if stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir()) {
                    let cause = "a copy has a file of its own of this name: rename it".to_owned();
                    self.unread.push(Unread { path: name.to_bytes().to_vec(), is_directory: true, cause });
                }
                continue;
            }
            if kind == FileType::Directory {
                inner.push(waiting(join(&directory.path, name.to_bytes())));
                continue;
            }
            match self.entry(fd.as_fd(), name) {
                Ok(Some(entry)) if is_unfinished(&directory.path, &entry.name) => directory.unfinished.push(entry.name),
                Ok(Some(entry)) => directory.entries.push(entry),
                // Some file systems do not tell kinds while they list.
                Ok(None) => inner.push(waiting(join(&directory.path, name.to_bytes()))),
                Err(Errno::NOENT) => {}
                Err(error) => self.unread(join(&directory.path, name.to_bytes()), false, error),
            }
        }
        directory.entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        inner.retain(|(path, _)| !self.seen.contains_key(&**path));
        Ok(Some(inner))
    }

    fn entry(&self, directory: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Option<Entry>> {
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let Some(mut entry) = Entry::of(name.to_bytes(), &stat) else { return Ok(None) };
        if entry.kind == Kind::Symlink {
            entry.target = readlinkat(directory, name, Vec::new())?.into_bytes().into();
        }
        entry.has_attributes = self.how.attributes && has_attributes(directory, name);
        Ok(Some(entry))
    }

    fn unread(&mut self, path: Vec<u8>, is_directory: bool, error: Errno) {
        self.unread.push(Unread { path, is_directory, cause: std::io::Error::from(error).to_string() });
    }
}

/// Whether `name` in an open directory has extended attributes that a copy would carry.
fn has_attributes(directory: impl AsFd, name: &CStr) -> bool {
    crate::attributes::any(directory.as_fd(), name.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{By, Catalogue, Known};

    #[test]
    fn a_directory_that_moves_under_the_scan_is_not_gone() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("a/b")).unwrap();
        let root = rustix::fs::open(folder.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let how = Scan { threads: 1, attributes: false, opens: false };
        let (records, unread) = scan(root.as_fd(), how, |directory| Some(directory.record()));
        assert!(records.len() == 3 && unread.is_empty());
        let tree = Catalogue::of_records(records).unwrap();
        let known = Known { tree: &tree, by: By::Run, is_suspect: false, has_one_owner: false };
        let (visited, unread) = scan(root.as_fd(), how, |directory| {
            if directory.path.is_empty() {
                std::fs::rename(folder.path().join("a"), folder.path().join("z")).unwrap();
            }
            Some(known.visit(directory))
        });
        assert_eq!(unread.iter().map(|unread| &*unread.path).collect::<Vec<_>>(), [b"a"]);
        let changes = known.changes(visited, &unread);
        assert!(changes.gone.is_empty() && changes.deleted == 0, "{changes:?}");
    }
}
