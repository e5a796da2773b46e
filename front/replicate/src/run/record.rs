//! What the next run is to know of the target: the tree as this one leaves it there, but for what is to be looked at again.

use super::Place;
use super::verify::MISSING;
use crate::error::{Failure, Result};
use crate::tree::{Catalogue, Changed, Changes, Directory, Entry, Need, Time, Unread, is_within};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};
use uuid::Uuid;

/// The coarsest time that a file system has: what was changed no longer than this before a run may be changed once more, and its
/// times stay.
pub(super) const TICK: Duration = Duration::from_secs(2);

/// So far ahead of this machine's a clock may be: what says that it was changed later than that would say so in every run.
const AHEAD: Duration = Duration::from_hours(24);

/// A run that is over.
pub(super) struct Done<'a> {
    pub changes: &'a Changes,
    pub unread: &'a [Unread],
    pub failures: &'a [Failure],
    /// When it began to look at the source.
    pub since: SystemTime,
    /// What the run before has kept, also where it was not trusted: it says what was mounted within the source.
    pub left: Option<&'a Catalogue>,
}

impl Done<'_> {
    /// Keeps what the target has now. What could not be deleted would be in no catalogue: then the next run, which finds this one to
    /// be of another run, asks the target.
    pub fn remember(&self, place: &Place, run: Uuid, known: &Catalogue) -> Result<()> {
        let unread = self.unread_paths();
        let is_unread = |path: &[u8]| is_within(path, &unread);
        if self.failures.iter().any(|failure| !self.changes.names(&failure.path) && !is_unread(&failure.path)) {
            return self.keep(place, Uuid::new_v4(), known);
        }
        self.keep(place, run, known)
    }

    /// Writes the catalogue of the target as it is now. What failed is in it so that it will be carried again, and deleted when it
    /// goes from the source. So is what was changed just before the run or in it: it may have been written to once more after it
    /// was read, or have got another name where the scan had been already, and its times do not tell. It is compared until a run
    /// begins later than that.
    pub fn keep(&self, place: &Place, run: Uuid, known: &Catalogue) -> Result<()> {
        let failed: HashSet<&[u8]> = self.failures.iter().map(|failure| &*failure.path).collect();
        let changed: Vec<_> = self.changes.directories.iter().map(|changed| as_named(changed, &failed)).collect();
        let changed = changed.iter().map(|directory| &**directory);
        let mut again = Again::of(failed, changed.clone());
        if !self.unread.is_empty() {
            again.inodes.extend(self.with_unseen_names());
        }
        let (since, until) = (Time::of(self.since - TICK), Time::of(SystemTime::now()));
        // Where another machine has the source, whose clock is ahead, what it has just changed is of later than now.
        let ahead = Time::of(SystemTime::now() + AHEAD);
        let is_fresh =
            |entry: &Entry| (since..=ahead).contains(&entry.changed) || (since..=until).contains(&entry.meta.modified);
        let record = |directory: &Directory| again.record(directory, is_fresh);
        let mounts = self.mounts(known);
        let changed: Vec<Vec<u8>> = changed.map(record).chain(mounts.iter().map(Directory::record)).collect();
        let mounts: HashSet<&[u8]> = mounts.iter().map(|mount| &*mount.path).collect();
        let kept = self.changes.kept.iter().filter(|index| !mounts.contains(known.path(**index)));
        let kept = kept.map(|&index| known.record(index));
        place.keep(run, changed.iter().map(Vec::as_slice).chain(kept).collect())
    }

    /// Files that were carried and have more names than were seen. The others may be in what could not be read: there they are to become
    /// links to these, of which nothing will have changed.
    fn with_unseen_names(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut seen: HashMap<(u64, u64), (u32, u32, bool)> = HashMap::new();
        for changed in &self.changes.directories {
            let entries = changed.directory.entries.iter().zip(&changed.needs);
            for (entry, need) in entries.filter(|(entry, _)| entry.links > 1) {
                let (names, _, is_carried) = seen.entry(entry.inode).or_insert((0, entry.links, false));
                *names += 1;
                *is_carried |= *need != Need::Nothing;
            }
        }
        seen.into_iter().filter(|(_, (names, links, is_carried))| *is_carried && names < links).map(|(inode, _)| inode)
    }

    fn unread_paths(&self) -> HashSet<&[u8]> {
        self.unread.iter().map(|unread| &*unread.path).collect()
    }

    /// What was mounted in what was not read, as the target has it. That something was, no target tells.
    fn mounts(&self, known: &Catalogue) -> Vec<Directory> {
        let unread = self.unread_paths();
        let directory = |tree: &Catalogue, at| Directory::of_record(tree.record(at)).ok();
        let mounts = self.left.into_iter().flat_map(|left| {
            let within = (0..left.directories()).filter(|at| is_within(left.path(*at), &unread));
            within.filter_map(|at| directory(left, at)).filter(|before| before.is_mount)
        });
        let as_known = |mount: Directory| {
            let there = known.find(&mount.path).and_then(|at| directory(known, at)).unwrap_or_default();
            Directory { path: mount.path, is_mount: true, ..there }
        };
        mounts.map(as_known).collect()
    }
}

/// A directory that changed. What failed to get contents of its own is one of several names at the target still, and said to be.
fn as_named<'d>(changed: &'d Changed, failed: &HashSet<&[u8]>) -> Cow<'d, Directory> {
    let mut directory = Cow::Borrowed(&changed.directory);
    for (index, need) in changed.needs.iter().enumerate() {
        let path = || changed.directory.path_of(&changed.directory.entries[index]);
        if *need == Need::SHARED && failed.contains(&*path()) {
            directory.to_mut().entries[index].links = 2;
        }
    }
    directory
}

/// The path of what differs: rsync tells directories with a slash at their end, the root as a dot.
fn path(failure: &Failure) -> &[u8] {
    let path = failure.path.strip_suffix(b"/").unwrap_or(&failure.path);
    if path == b"." { b"" } else { path }
}

/// The records of a catalogue, in which all that differs is to be looked at again. Of a directory that the target lost, all entries are.
pub(super) fn again(catalogue: &Catalogue, differing: &[Failure]) -> Vec<Vec<u8>> {
    let lost: HashSet<&[u8]> = differing.iter().filter(|it| it.cause == MISSING).map(path).collect();
    let records = (0..catalogue.directories()).map(|index| catalogue.record(index));
    let directories: Vec<Directory> = records.filter_map(|record| Directory::of_record(record).ok()).collect();
    let again = Again::of(differing.iter().map(path).collect(), directories.iter());
    directories.iter().map(|directory| again.record(directory, |_| lost.contains(&*directory.path))).collect()
}

/// What the next run looks at again: paths, and all names of the inodes that they are names of, which may have become links to an
/// earlier version.
struct Again<'a> {
    paths: HashSet<&'a [u8]>,
    inodes: HashSet<(u64, u64)>,
}

impl<'a> Again<'a> {
    fn of<'d>(paths: HashSet<&'a [u8]>, directories: impl Iterator<Item = &'d Directory>) -> Self {
        let directories = directories.filter(|_| !paths.is_empty());
        let entries = directories.flat_map(|directory| directory.entries.iter().map(move |entry| (directory, entry)));
        let inodes = entries
            .filter(|(directory, entry)| entry.links > 1 && paths.contains(&*directory.path_of(entry)))
            .map(|(_, entry)| entry.inode)
            .collect();
        Self { paths, inodes }
    }

    /// The record of a directory, of which also these entries are looked at again.
    fn record(&self, directory: &Directory, as_well: impl Fn(&Entry) -> bool) -> Vec<u8> {
        let mut directory = Cow::Borrowed(directory);
        if self.paths.contains(&*directory.path) {
            directory.to_mut().changed = Time::default();
        }
        for index in 0..directory.entries.len() {
            let entry = &directory.entries[index];
            let is_of_them = || !self.paths.is_empty() && self.paths.contains(&*directory.path_of(entry));
            if as_well(entry) || (entry.links > 1 && self.inodes.contains(&entry.inode)) || is_of_them() {
                directory.to_mut().entries[index].changed = Time::default();
            }
        }
        directory.record()
    }
}
