//! What has moved while the tree was read: from where the scan was to come to where it had been, so that it found it nowhere.
//!
//! Before anything that the target has is taken for gone, directories are read once more that have changed since they were. This only
//! adds to what was found: what is not there the second time was there a moment ago, and is the next run's. The first look finds what
//! has moved once by the end of the scan, and each further one what has moved once more.

use super::{By, Catalogue, Directory, Entry, Known, Seen, Time, Unread, Visited, is_within, join, split};
use crate::error::MOVES;
use std::collections::{HashMap, HashSet};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

/// How often is looked again, as long as directories change.
const LOOKS: usize = 3;
/// Longer than all that has the same time, where the kernel of this machine says what it is: it counts in ticks of 10 ms at most.
const INSTANT: Duration = Duration::from_millis(20);

impl Known<'_> {
    /// Finds what has moved, if the target may have anything that was not found; `scan` reads what is not as it was seen. What nobody
    /// finds although directories go on changing is told as unread, where it went no earlier than `since`.
    pub fn look_again(
        &self,
        visited: &mut Vec<Visited>,
        unread: &mut Vec<Unread>,
        since: Time,
        scan: impl Fn(&Seen<'_>) -> (Vec<Directory>, Vec<Unread>),
    ) {
        let mut fresh = since;
        for _ in 0..LOOKS {
            if !self.misses(visited) {
                return;
            }
            let mut seen = self.seen(visited);
            let now = Time::of(SystemTime::now());
            // They may have changed once more in the same instant after they were read, and their times do not tell.
            let mut is_any = false;
            for changed in seen.values_mut().filter(|changed| **changed >= fresh) {
                (*changed, is_any) = (Time::default(), true);
            }
            if is_any {
                sleep(INSTANT);
            }
            fresh = now;
            let (again, unread_again) = scan(&seen);
            unread.extend(unread_again);
            if again.is_empty() {
                return;
            }
            self.add(visited, again);
        }
        let known_unread = unread.iter().map(|unread| &*unread.path).collect();
        let lost = self.lost(visited, &known_unread, since);
        unread.extend(lost.into_iter().map(|path| Unread { path, is_directory: true, cause: MOVES.to_owned() }));
    }

    /// Whether the target may have something that was not found.
    fn misses(&self, visited: &[Visited]) -> bool {
        let lacks = |now: &Directory, old: &Directory| old.entries.iter().any(|entry| !has(now, entry));
        let old = |index| Directory::of_record(self.tree.record(index)).ok();
        let lacks_any = |visited: &Visited| match visited {
            Visited::Differs { now, index: Some(index) } => old(*index).is_some_and(|old| lacks(now, &old)),
            _ => false,
        };
        let is_known = |visited: &&Visited| !matches!(visited, Visited::Differs { index: None, .. });
        self.by == By::Nobody
            || visited.iter().filter(is_known).count() < self.tree.directories()
            || visited.iter().any(lacks_any)
    }

    /// Directories, and when each had changed last as it was read.
    fn seen<'v>(&'v self, visited: &'v [Visited]) -> Seen<'v> {
        let changed = |visited: &Visited| match visited {
            Visited::Same { index, .. } => self.tree.changed(*index),
            Visited::Differs { now, .. } => now.changed,
        };
        visited.iter().map(|visited| (self.path(visited), changed(visited))).collect()
    }

    /// Directories that are nowhere, but were in one that has changed since then.
    fn lost(&self, visited: &[Visited], unread: &HashSet<&[u8]>, since: Time) -> Vec<Vec<u8>> {
        let seen = self.seen(visited);
        let was_lately = |path: &[u8]| seen.get(split(path).0).is_some_and(|changed| *changed >= since);
        let is_lost = |path: &&[u8]| !seen.contains_key(path) && was_lately(path) && !is_within(path, unread);
        (0..self.tree.directories()).map(|index| self.tree.path(index)).filter(is_lost).map(<[u8]>::to_vec).collect()
    }

    /// Adds what was read again to what was found.
    fn add(&self, visited: &mut Vec<Visited>, again: Vec<Directory>) {
        let place = |(at, visited)| (self.path(visited).to_vec(), at);
        let places: HashMap<Vec<u8>, usize> = visited.iter().enumerate().map(place).collect();
        let (seen, new): (Vec<_>, Vec<_>) = again.into_iter().partition(|now| places.contains_key(&now.path));
        let new_paths: HashSet<Vec<u8>> = new.iter().map(|now| now.path.clone()).collect();
        let is_directory = |path: &Vec<u8>| places.contains_key(path) || new_paths.contains(path);
        for now in seen {
            let before = &mut visited[places[&now.path]];
            let mut both = joined(found(self.tree, before), now);
            let path = std::mem::take(&mut both.path);
            both.entries.retain(|entry| !is_directory(&join(&path, &entry.name)));
            *before = self.visit(Directory { path, ..both });
        }
        visited.extend(new.into_iter().map(|now| self.visit(now)));
    }
}

/// A directory as it was found.
fn found(tree: &Catalogue, visited: &Visited) -> Directory {
    match visited {
        Visited::Same { index, .. } => Directory::of_record(tree.record(*index)).unwrap_or_default(),
        Visited::Differs { now, .. } => now.clone(),
    }
}

/// A directory as it is now, with what it had before and has no more.
fn joined(before: Directory, mut now: Directory) -> Directory {
    let left: Vec<Entry> = before.entries.into_iter().filter(|entry| !has(&now, entry)).collect();
    now.entries.extend(left);
    now.entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Directory { is_mount: before.is_mount, ..now }
}

/// Whether a directory has something of that name; its entries are in order.
fn has(directory: &Directory, entry: &Entry) -> bool {
    directory.entries.binary_search_by(|it| it.name.cmp(&entry.name)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Changes, Scan, scan, scan_again};
    use rustix::fs::{Mode, OFlags};
    use std::cell::Cell;
    use std::fs;
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const HOW: Scan = Scan { threads: 1, attributes: false, opens: false };

    /// What a run finds while somebody meddles with what was just read, each time that is looked.
    fn looked(root: &Path, since: Time, meddle: impl Fn(usize, &[u8]) + Sync) -> (Changes, Vec<Unread>) {
        // What comes has times of its own.
        sleep(INSTANT);
        let fd = rustix::fs::open(root, OFlags::RDONLY, Mode::empty()).unwrap();
        let (records, _) = scan(fd.as_fd(), HOW, |directory| Some(directory.record()));
        let tree = Catalogue::of_records(records).unwrap();
        let known = Known { tree: &tree, by: By::Run, is_suspect: false, has_one_owner: false };
        let looks = Cell::new(0);
        let scan = |seen: &Seen<'_>| {
            let look = looks.replace(looks.get() + 1);
            scan_again(fd.as_fd(), HOW, seen, |directory| {
                meddle(look, &directory.path);
                Some(directory)
            })
        };
        let (found, mut unread) = scan(&Seen::new());
        let mut visited = found.into_iter().map(|directory| known.visit(directory)).collect();
        known.look_again(&mut visited, &mut unread, since, scan);
        (known.changes(visited, &unread), unread)
    }

    /// Two directories with something in each; the first is the one that is read first.
    fn two() -> (tempfile::TempDir, [&'static str; 2]) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::create_dir_all(folder.path().join(name).join("stays")).unwrap();
        }
        let fd = rustix::fs::open(folder.path(), OFlags::RDONLY, Mode::empty()).unwrap();
        let (paths, _) = scan(fd.as_fd(), HOW, |directory| Some(directory.path));
        let at = |name: &[u8]| paths.iter().position(|path| path == name);
        let order = if at(b"a") < at(b"b") { ["a", "b"] } else { ["b", "a"] };
        (folder, order)
    }

    fn never() -> Time {
        Time { s: i64::MAX, ns: 0 }
    }

    #[test]
    fn what_moves_to_where_the_scan_has_been_is_found_there() {
        let (folder, [first, last]) = two();
        let path = |directory: &str, name: &str| folder.path().join(directory).join(name);
        fs::create_dir(path(last, "moves")).unwrap();
        fs::write(path(last, "moves/inner"), "").unwrap();
        fs::write(path(last, "file"), "").unwrap();
        fs::write(path(first, "left"), "").unwrap();
        // As long as only its time tells, and where that is too coarse to.
        for since in [never(), Time::default()] {
            let (changes, unread) = looked(folder.path(), since, |look, read| {
                if look == 0 && read == first.as_bytes() {
                    for name in ["moves", "file"] {
                        fs::rename(path(last, name), path(first, name)).unwrap();
                    }
                    // What goes meanwhile is what was read, until the next run.
                    fs::rename(path(first, "left"), folder.path().join("left")).unwrap();
                }
            });
            assert!(unread.is_empty(), "{unread:?}");
            let [gone, moved] = [last, first].map(|directory| format!("{directory}/moves").into_bytes());
            assert_eq!((&changes.gone[..], changes.deleted), (&[gone][..], 3), "{changes:?}");
            assert!(changes.names(&moved) && changes.names(format!("{first}/file").as_bytes()), "{changes:?}");
            assert!(changes.names(&[&moved[..], b"/inner"].concat()) && changes.names(b"left"), "{changes:?}");
            for name in ["moves", "file"] {
                fs::rename(path(first, name), path(last, name)).unwrap();
            }
            fs::rename(folder.path().join("left"), path(first, "left")).unwrap();
        }
    }

    #[test]
    fn what_goes_on_moving_is_not_gone() {
        let (folder, [first, last]) = two();
        let path = |directory: &str| folder.path().join(directory).join("moves");
        fs::create_dir(path(last)).unwrap();
        let (changes, unread) = looked(folder.path(), Time::default(), |look, read| {
            // It is wherever was looked just now; later looks begin with `b`, and it is in `a` by then.
            let (from, to) = match read {
                b"a" => ("b", "a"),
                b"b" => ("a", "b"),
                _ => return,
            };
            if look > 0 || to == first || to == "a" {
                fs::rename(path(from), path(to)).unwrap();
            }
        });
        assert!(changes.gone.is_empty() && changes.deleted == 0, "{changes:?}");
        let told = [(format!("{last}/moves").into_bytes(), MOVES)];
        assert!(unread.iter().map(|it| (it.path.clone(), &*it.cause)).eq(told), "{unread:?}");
    }

    #[test]
    fn what_has_just_changed_is_read_once_more_where_something_is_missing() {
        for (since, is_missing, reads) in [(never(), true, 0), (Time::default(), true, 5), (Time::default(), false, 0)]
        {
            let (folder, [_, last]) = two();
            let goes = folder.path().join(last).join("goes");
            fs::create_dir(&goes).unwrap();
            let again = AtomicUsize::new(0);
            looked(folder.path(), since, |look, read| {
                if look > 0 {
                    again.fetch_add(1, Ordering::Relaxed);
                } else if is_missing && read.is_empty() {
                    fs::remove_dir(&goes).unwrap();
                }
            });
            assert_eq!(again.into_inner(), reads, "{since:?}, {is_missing}");
        }
    }

    #[test]
    fn what_went_before_is_gone_whatever_else_changes() {
        let (folder, [_, last]) = two();
        fs::create_dir(folder.path().join(last).join("goes")).unwrap();
        for since in [never(), Time::default()] {
            let goes = folder.path().join(last).join("goes");
            let (changes, unread) = looked(folder.path(), since, |look, read| {
                let _ = fs::remove_dir(&goes);
                if read.is_empty() {
                    fs::write(folder.path().join(format!("{look} {}", since.s)), "").unwrap();
                }
            });
            let is_told = since == Time::default();
            assert_eq!((unread.len(), changes.gone.len()), if is_told { (1, 0) } else { (0, 1) }, "{unread:?}");
            fs::create_dir(&goes).unwrap();
        }
    }
}
