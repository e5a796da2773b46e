//! What has to be done so that the target is as the source: the source as it is now against what the target is known
//! to have. Pure.

use super::{Catalogue, Directory, Entry, Kind, Meta, Time, Unread, is_upkeep, join, split};
use crate::error::UNMOUNTED;
use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;

/// What an entry needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It is at the target as it is here.
    Nothing,
    /// Owner, permissions, times and attributes; the contents are there.
    Meta,
    /// Contents too.
    Contents {
        /// There is an earlier version at the target, or a part of this one.
        exists: bool,
        /// That has its size and time of modification: only contents tell whether it is another one.
        is_alike: bool,
    },
    /// It is a hard link to an entry that comes before it.
    Link,
}

impl Need {
    /// Contents of what is not at the target.
    pub const NEW: Self = Self::Contents { exists: false, is_alike: false };
    /// Contents of what has its name at the target together with another file, into which they must not be written.
    pub const SHARED: Self = Self::Contents { exists: false, is_alike: true };
}

/// A directory with something to do in it.
#[derive(Clone, Debug)]
pub struct Changed {
    /// As it is now.
    pub directory: Directory,
    /// What each of its entries needs.
    pub needs: Vec<Need>,
    /// It is not at the target.
    pub is_new: bool,
    /// Its own owner, permissions, times or attributes are to be set, if only because entries come and go in it.
    pub has_new_meta: bool,
    /// Names of entries that are at the target and no more here.
    pub gone: Vec<Box<[u8]>>,
}

/// All there is to do.
#[derive(Debug, Default)]
pub struct Changes {
    /// Directories with something to do, in the order of paths, so that each comes after the one that holds it.
    pub directories: Vec<Changed>,
    /// Directories that are at the target and no more here, each with all it holds: none of them is in another one.
    pub gone: Vec<Vec<u8>>,
    /// Entries and directories that are at the target and no more here.
    pub deleted: u64,
    /// Directories as the catalogue has them: they go on into the next one.
    pub kept: Vec<usize>,
    /// For each entry that is a hard link: directory and entry of the one it is a link to.
    pub links: HashMap<(usize, usize), (usize, usize)>,
    /// Entries that did not need anything.
    pub unchanged: u64,
}

impl Changes {
    /// The target is as the source.
    pub fn is_nothing(&self) -> bool {
        self.gone.is_empty() && self.directories.iter().all(|changed| !changed.has_new_meta)
    }

    /// Paths of entries that are at the target and no more here, in directories that are.
    pub fn gone_entries(&self) -> impl Iterator<Item = Vec<u8>> {
        self.directories.iter().flat_map(|it| it.gone.iter().map(|name| join(&it.directory.path, name)))
    }

    /// How many of all that is to be carried belong to others.
    pub fn of_others(&self, owner: (u32, u32)) -> u64 {
        let is_other = |meta: &Meta| (meta.uid, meta.gid) != owner;
        let of = |changed: &Changed| {
            let entries = changed.directory.entries.iter().zip(&changed.needs);
            let entries = entries.filter(|(entry, need)| **need != Need::Nothing && is_other(&entry.meta)).count();
            entries as u64 + u64::from(changed.has_new_meta && is_other(&changed.directory.meta))
        };
        self.directories.iter().map(of).sum()
    }

    /// Has the files compared that a catalogue says are to be carried again, where what is known of the target does not speak against
    /// them; one of which nothing is known is not passed over there for its size and time either.
    pub fn doubt(&mut self, catalogue: Option<&Catalogue>, by: By) {
        let Some(catalogue) = catalogue else { return };
        for changed in &mut self.directories {
            let record = catalogue.find(&changed.directory.path).map(|at| catalogue.record(at));
            let Some(old) = record.and_then(|record| Directory::of_record(record).ok()) else { continue };
            for (entry, need) in changed.directory.entries.iter().zip(&mut changed.needs) {
                let before = old.entries.binary_search_by(|before| before.name.cmp(&entry.name));
                let is_doubted = before.is_ok_and(|at| old.entries[at].changed == Time::default());
                let may_be_alike = by == By::Nobody || matches!(need, Need::Nothing | Need::Meta);
                if is_doubted && may_be_alike && entry.kind == Kind::File && *need != Need::Link {
                    *need = Need::Contents { exists: true, is_alike: true };
                    changed.has_new_meta = true;
                }
            }
        }
    }

    /// Leaves at the target, which has told what it has, what is no more at the source, and what was not changed at the source
    /// since then; nor does a directory take the place of anything else, or the other way round. Returns what differs and stays.
    ///
    /// What was only given another owner or name since, such as by `chown -R`, takes the place of nothing that is newer.
    pub fn leave(&mut self, there: &Catalogue, since: Time) -> Vec<Vec<u8>> {
        self.gone.clear();
        self.deleted = 0;
        let directory_at = |path: &[u8]| there.find(path).and_then(|at| Directory::of_record(there.record(at)).ok());
        let has_entry = |path: &[u8]| {
            let (directory, name) = split(path);
            directory_at(directory).is_some_and(|it| it.entries.iter().any(|entry| &*entry.name == name))
        };
        let mut stay: HashSet<Vec<u8>> = HashSet::new();
        for changed in &mut self.directories {
            changed.gone.clear();
            let path = &changed.directory.path;
            let old = directory_at(path);
            let stays = is_within(path, &stay);
            if stays || (old.is_none() && has_entry(path)) {
                stay.extend((!stays).then(|| path.clone()));
                changed.needs.fill(Need::Nothing);
                (changed.is_new, changed.has_new_meta) = (false, false);
                continue;
            }
            for (entry, need) in changed.directory.entries.iter().zip(&mut changed.needs) {
                let path = changed.directory.path_of(entry);
                let before = old.as_ref().and_then(|old| {
                    let at = old.entries.binary_search_by(|before| before.name.cmp(&entry.name)).ok()?;
                    old.entries.get(at)
                });
                let is_other_kind = there.find(&path).is_some();
                let is_older = |before: &Entry| entry.meta.modified < before.meta.modified.min(since);
                let is_work = before.is_none_or(|before| entry.changed >= since && !is_older(before));
                if *need == Need::Nothing || (is_work && !is_other_kind) {
                    continue;
                }
                // Attributes and links, which a target does not tell, are no difference.
                let has_its_look = before.is_some_and(|it| it.meta == entry.meta && it.size_bytes == entry.size_bytes);
                let is_alike = has_its_look && !matches!(need, Need::Contents { is_alike: false, .. });
                stay.extend((!is_alike).then_some(path));
                *need = Need::Nothing;
            }
            let is_idle = changed.needs.iter().all(|need| *need == Need::Nothing);
            changed.has_new_meta &= old.is_none() || changed.directory.changed >= since || !is_idle;
        }
        let directories = &self.directories;
        self.links.retain(|&(directory, entry), _| directories[directory].needs[entry] == Need::Link);
        stay.into_iter().collect()
    }

    /// Whether a path is of a directory with something to do in it, or of an entry of one, as the source has them now.
    pub fn names(&self, path: &[u8]) -> bool {
        let find = |path: &[u8]| self.directories.binary_search_by(|changed| (*changed.directory.path).cmp(path));
        let (directory, name) = split(path);
        let has =
            |changed: &Changed| changed.directory.entries.binary_search_by(|entry| (*entry.name).cmp(name)).is_ok();
        find(path).is_ok() || find(directory).is_ok_and(|at| has(&self.directories[at]))
    }
}

/// What the scan of a directory says of it.
pub enum Visited {
    /// It is as the catalogue has it.
    Same {
        /// Where it is in the catalogue.
        index: usize,
        /// How many entries it has.
        entries: u64,
    },
    /// It is not.
    Differs {
        /// As it is now.
        now: Directory,
        /// Where it was in the catalogue.
        index: Option<usize>,
    },
}

/// By whom it is known what the target has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// By the run that left it so.
    Run,
    /// By the target: inodes and times of change are its own and say nothing of the source.
    Target,
    /// By nobody: it cannot tell, and whoever carries compares.
    Nobody,
}

/// What is known of the target, and how well.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// The tree at the target; empty where nobody knows it.
    pub tree: &'a Catalogue,
    /// Who says so.
    pub by: By,
    /// The target's machine started anew in the middle of a run: times and sizes there may be those of files whose
    /// contents were lost.
    pub is_suspect: bool,
    /// All that is written at the target belongs to whoever writes it: owners that it tells say nothing.
    pub has_one_owner: bool,
}

impl Known<'_> {
    /// Compares a directory as a whole, on the thread that read it.
    pub fn visit(&self, now: Directory) -> Visited {
        let index = self.tree.find(&now.path);
        match index {
            Some(index) if self.by == By::Run && now.record() == self.tree.record(index) => {
                Visited::Same { index, entries: now.entries.len() as u64 }
            }
            index => Visited::Differs { now, index },
        }
    }

    /// Takes out what is empty now, and was the root of another file system when the catalogue was written: that is not mounted.
    pub fn unmounted(&self, visited: &mut Vec<Visited>, before: &Catalogue) -> Vec<Unread> {
        let was_mount = |path: &[u8]| {
            let before = before.find(path).and_then(|at| Directory::of_record(before.record(at)).ok());
            before.is_some_and(|before| before.is_mount)
        };
        let is_bare = |now: &Directory| !now.is_mount && now.entries.is_empty() && now.unfinished.is_empty();
        let mut bare: HashSet<Vec<u8>> = HashSet::new();
        for visited in visited.iter() {
            if let Visited::Differs { now, .. } = visited
                && is_bare(now)
                && was_mount(&now.path)
            {
                bare.insert(now.path.clone());
            }
        }
        if bare.is_empty() {
            return Vec::new();
        }
        // What has directories has something, too.
        for visited in visited.iter() {
            bare.remove(split(self.path(visited)).0);
        }
        visited.retain(|visited| !bare.contains(self.path(visited)));
        let unread = |path| Unread { path, is_directory: true, cause: UNMOUNTED.to_owned() };
        bare.into_iter().map(unread).collect()
    }

    pub(super) fn path<'v>(&'v self, visited: &'v Visited) -> &'v [u8] {
        match visited {
            Visited::Same { index, .. } => self.tree.path(*index),
            Visited::Differs { now, .. } => &now.path,
        }
    }

    /// What has to be done. What could not be read is left at the target as it is.
    pub fn changes(&self, visited: Vec<Visited>, unread: &[Unread]) -> Changes {
        let unread = &unread.iter().map(|unread| &*unread.path).collect();
        let mut changes = Changes::default();
        let mut is_there = vec![false; self.tree.directories()];
        for visited in visited {
            match visited {
                Visited::Same { index, entries } => {
                    is_there[index] = true;
                    changes.kept.push(index);
                    changes.unchanged += entries;
                }
                Visited::Differs { now, index } => {
                    if let Some(index) = index {
                        is_there[index] = true;
                    }
                    // A record that cannot be read is one that is not there.
                    let old = index.and_then(|index| Directory::of_record(self.tree.record(index)).ok());
                    changes.directories.push(self.compare(now, old, unread));
                }
            }
        }
        self.part(&is_there, unread, &mut changes);
        changes.kept.sort_unstable();
        changes.directories.sort_unstable_by(|one, other| one.directory.path.cmp(&other.directory.path));
        changes.links = links(&mut changes.directories);
        let unneeded = |changed: &Changed| changed.needs.iter().filter(|need| **need == Need::Nothing).count() as u64;
        changes.unchanged += changes.directories.iter().map(unneeded).sum::<u64>();
        changes
    }

    /// Directories that are not there any more are gone, unless it is only that they could not be read.
    fn part(&self, is_there: &[bool], unread: &HashSet<&[u8]>, changes: &mut Changes) {
        let mut is_gone = vec![false; is_there.len()];
        // In the order of paths: a directory comes before what is in it.
        for index in (0..is_there.len()).filter(|index| !is_there[*index]) {
            let path = self.tree.path(index);
            if is_within(path, unread) {
                changes.kept.push(index);
                continue;
            }
            is_gone[index] = true;
            let entries = Directory::of_record(self.tree.record(index)).map_or(0, |gone| gone.entries.len());
            changes.deleted += 1 + entries as u64;
            if !self.tree.find(split(path).0).is_some_and(|above| is_gone[above]) {
                changes.gone.push(path.to_vec());
            }
        }
        changes.deleted += changes.directories.iter().map(|changed| changed.gone.len() as u64).sum::<u64>();
    }

    fn compare(&self, mut now: Directory, old: Option<Directory>, unread: &HashSet<&[u8]>) -> Changed {
        // One that could not be made is in the catalogue all the same.
        let is_new = old.as_ref().is_none_or(|old| old.changed == Time::default());
        let is_touched = old.as_ref().is_none_or(|old| {
            let has_attributes = now.has_attributes || old.has_attributes;
            let differs = if self.by == By::Run { old.changed != now.changed } else { has_attributes };
            differs || !self.is_same(&now.meta, &old.meta)
        });
        let old_entries = old.map(|old| old.entries).unwrap_or_default();
        let mut old = old_entries.into_iter().peekable();
        let (mut needs, mut gone) = (Vec::with_capacity(now.entries.len()), Vec::new());
        // An entry that could not be read stays as it was.
        let mut unread_entries = Vec::new();
        let mut leave = |entry: Entry| {
            if !unread.is_empty() && unread.contains(&*join(&now.path, &entry.name)) {
                unread_entries.push(entry);
            } else if !is_upkeep(&now.path, &entry.name) {
                gone.push(entry.name);
            }
        };
        for entry in &now.entries {
            while let Some(before) = old.next_if(|old| old.name < entry.name) {
                leave(before);
            }
            let same = old.next_if(|old| old.name == entry.name);
            needs.push(self.need(same.as_ref(), entry));
        }
        old.for_each(leave);
        for entry in unread_entries {
            let at = now.entries.partition_point(|before| before.name < entry.name);
            now.entries.insert(at, entry);
            needs.insert(at, Need::Nothing);
        }
        let comes_or_goes = !gone.is_empty() || needs.iter().any(|need| *need != Need::Nothing);
        Changed { directory: now, needs, is_new, has_new_meta: is_touched || comes_or_goes, gone }
    }

    /// Whether the target is known to have this.
    fn is_same(&self, now: &Meta, old: &Meta) -> bool {
        now.is_same(old, self.has_one_owner && self.by == By::Target)
    }

    fn need(&self, old: Option<&Entry>, now: &Entry) -> Need {
        let Some(old) = old.filter(|old| old.kind == now.kind && old.target == now.target) else {
            return Need::NEW;
        };
        if self.by == By::Target && now.kind == Kind::File && old.links > 1 && now.links == 1 {
            return Need::SHARED;
        }
        let is_alike = old.size_bytes == now.size_bytes && old.meta.modified == now.meta.modified;
        let is_other = !is_alike || self.is_suspect || (self.by == By::Run && Self::may_be_other(old, now));
        if is_other && now.kind == Kind::File {
            // Its name may be one of several there, the others of which are not to change with it.
            return if old.links > 1 { Need::SHARED } else { Need::Contents { exists: true, is_alike } };
        }
        if old.changed == Time::default() {
            // It could not be made, perhaps.
            return Need::NEW;
        }
        let is_same = if self.by == By::Run {
            !is_other && old.meta == now.meta && old.changed == now.changed
        } else {
            self.is_same(&now.meta, &old.meta)
                && !old.has_attributes
                && !now.has_attributes
                && now.links == 1
                && old.links == 1
        };
        if is_same { Need::Nothing } else { Need::Meta }
    }
}

impl Known<'_> {
    /// Whether a file of the source may have other contents than before under the same size and time.
    fn may_be_other(old: &Entry, now: &Entry) -> bool {
        // Another inode is another file that was given them; what failed is carried again.
        old.inode.1 != now.inode.1
            || old.changed == Time::default()
            // Written to, and its time put back: nothing else of it changed that would explain the time of change. Where
            // something did, the contents are not looked at: `chmod -R` would have all of a tree carried again.
            || (old.changed != now.changed && old.meta == now.meta && old.links == now.links)
    }
}

/// Whether a path is one of these or under one.
pub fn is_within<P: Borrow<[u8]> + Eq + Hash>(mut path: &[u8], paths: &HashSet<P>) -> bool {
    loop {
        if paths.contains(path) {
            return true;
        }
        if path.is_empty() || paths.is_empty() {
            return false;
        }
        path = split(path).0;
    }
}

/// Whether a path is this one or under it.
pub fn is_under(path: &[u8], directory: &[u8]) -> bool {
    let below = || path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
    directory.is_empty() || below()
}

/// Finds hard links: of the entries with an inode in common that need something, all but the first become links to it.
/// (When a link is made or goes, the inode's time of change is another one, so that all its entries need something.)
fn links(directories: &mut [Changed]) -> HashMap<(usize, usize), (usize, usize)> {
    let mut first = HashMap::new();
    let mut links = HashMap::new();
    for (directory, changed) in directories.iter_mut().enumerate() {
        for (entry, (at, need)) in changed.directory.entries.iter().zip(&mut changed.needs).enumerate() {
            if at.links < 2 || *need == Need::Nothing {
                continue;
            }
            let leader = *first.entry(at.inode).or_insert((directory, entry));
            if leader != (directory, entry) {
                *need = Need::Link;
                links.insert((directory, entry), leader);
            }
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, size_bytes: u64, inode: u64, changed_s: i64) -> Entry {
        let meta = Meta { mode: 0o644, modified: Time { s: 100, ns: 5 }, ..Meta::default() };
        Entry {
            name: name.as_bytes().into(),
            kind: Kind::File,
            meta,
            size_bytes,
            changed: Time { s: changed_s, ns: 0 },
            inode: (1, inode),
            links: 1,
            is_sparse: false,
            target: Box::default(),
            has_attributes: false,
        }
    }

    fn directory(path: &str, entries: Vec<Entry>) -> Directory {
        Directory { path: path.into(), entries, ..Directory::default() }
    }

    fn changes(before: &[Directory], now: Vec<Directory>, by: By, unread: &[Unread]) -> Changes {
        let tree = Catalogue::of_records(before.iter().map(Directory::record).collect()).unwrap();
        let known = Known { tree: &tree, by, is_suspect: false, has_one_owner: true };
        let visited = now.into_iter().map(|directory| known.visit(directory)).collect();
        known.changes(visited, unread)
    }

    fn needs(before: Entry, now: Entry, by: By) -> Vec<Need> {
        let changes = changes(&[directory("", vec![before])], vec![directory("", vec![now])], by, &[]);
        changes.directories.into_iter().flat_map(|changed| changed.needs).collect()
    }

    #[test]
    fn an_entry_needs_what_differs() {
        let contents = Need::Contents { exists: true, is_alike: false };
        let alike = Need::Contents { exists: true, is_alike: true };
        let closed = |mut entry: Entry| {
            entry.meta.mode = 0o600;
            entry
        };
        let was = || entry("a", 7, 1, 9);
        let cases = [
            (entry("a", 7, 1, 9), vec![], vec![Need::Nothing]),
            (entry("a", 8, 1, 10), vec![contents], vec![contents]),
            // Permissions.
            (closed(entry("a", 7, 1, 10)), vec![Need::Meta], vec![Need::Meta]),
            // Touched, and nothing says how: attributes, or written to and its time put back.
            (entry("a", 7, 1, 10), vec![alike], vec![Need::Nothing]),
            // Another file under the name, size and time of the one before.
            (entry("a", 7, 2, 10), vec![alike], vec![Need::Nothing]),
        ];
        for (now, known, told) in cases {
            assert_eq!(needs(was(), now.clone(), By::Run), known, "{now:?}");
            assert_eq!(needs(was(), now.clone(), By::Target), told, "{now:?}, told by the target");
        }
        let failed = Entry { changed: Time::default(), ..was() };
        assert_eq!(needs(failed, was(), By::Run), [alike], "what failed is carried again");
        let link = Entry { kind: Kind::Symlink, ..was() };
        assert_eq!(needs(was(), link.clone(), By::Run), [Need::NEW]);
        let failed = Entry { changed: Time::default(), ..link.clone() };
        assert_eq!(needs(failed, link, By::Run), [Need::NEW], "a link that could not be made");
        let linked = Entry { links: 2, ..was() };
        assert_eq!(needs(linked.clone(), was(), By::Target), [Need::SHARED], "a name of a file of its own by now");
        assert_eq!(needs(linked, entry("a", 7, 2, 10), By::Run), [Need::SHARED], "the same, where it is known");
        let given = |uid| Entry { meta: Meta { uid, ..was().meta }, ..was() };
        assert_eq!(needs(given(7), given(8), By::Run), [Need::Meta], "given to somebody else");
        assert_eq!(needs(given(7), given(8), By::Target), [Need::Nothing], "whoever writes it owns it");
        let attributes = Entry { has_attributes: true, ..was() };
        assert_eq!(needs(attributes, was(), By::Target), [Need::Meta], "attributes that went");
    }

    #[test]
    fn what_is_gone_is_told_and_what_could_not_be_read_is_not() {
        let before = [
            directory("", vec![entry("a", 1, 1, 1), entry("b", 1, 2, 1)]),
            directory("d", vec![]),
            directory("d-", vec![]),
            directory("d/e", vec![]),
            directory("de", vec![entry("x", 1, 3, 1)]),
        ];
        let now = || vec![directory("", vec![entry("b", 1, 2, 1)])];
        let all = changes(&before, now(), By::Run, &[]);
        // A directory goes with all it holds: here an entry, four directories and what is in one of them.
        assert_eq!((&all.gone[..], all.deleted), (&[b"d".to_vec(), b"d-".to_vec(), b"de".to_vec()][..], 6));
        assert_eq!(all.directories[0].gone, [b"a"[..].into()]);
        assert_eq!(
            ["", "b", "a", "d", "x/b"].map(|path| all.names(path.as_bytes())),
            [true, true, false, false, false]
        );
        let unread = |path: &str, is_directory| Unread { path: path.into(), is_directory, cause: String::new() };
        let some = changes(&before, now(), By::Run, &[unread("d", true), unread("a", false)]);
        assert_eq!(some.gone, [&b"d-"[..], b"de"]);
        assert!(some.directories[0].gone.is_empty() && some.directories[0].directory.entries.len() == 2);
        assert_eq!(some.kept, [1, 3]);
        assert!(changes(&before, vec![], By::Run, &[unread("", true)]).gone.is_empty());
    }

    #[test]
    fn what_belongs_to_others_is_counted_where_it_is_carried() {
        let found = changes(&[], vec![directory("", vec![entry("a", 1, 1, 1)])], By::Run, &[]);
        // Root's, all of it: a file, and the directory that it is in.
        assert_eq!((found.of_others((0, 0)), found.of_others((0, 7))), (0, 2));
        let now = || directory("", vec![entry("a", 1, 1, 1)]);
        assert_eq!(changes(&[now()], vec![now()], By::Run, &[]).of_others((7, 7)), 0);
    }

    #[test]
    fn a_directory_that_could_not_be_made_is_made_again() {
        let failed = [directory("", vec![]), directory("d", vec![])];
        let now = Directory { changed: Time { s: 9, ns: 0 }, ..directory("d", vec![]) };
        let again = changes(&failed, vec![directory("", vec![]), now], By::Run, &[]);
        assert!(matches!(&again.directories[..], [d] if d.is_new && d.has_new_meta), "{again:?}");
    }

    #[test]
    fn hard_links_follow_the_first_of_them() {
        let twice = |name: &str| Entry { links: 2, ..entry(name, 1, 7, 1) };
        let found = changes(&[], vec![directory("d", vec![twice("b")]), directory("", vec![twice("a")])], By::Run, &[]);
        assert_eq!(found.directories[0].needs, [Need::NEW]);
        assert_eq!(found.directories[1].needs, [Need::Link]);
        assert_eq!(found.links[&(1, 0)], (0, 0));
        // A target does not tell which of its links belong together with which of ours: all are gone over.
        let same = vec![directory("", vec![twice("a"), twice("b")])];
        let told = changes(&same.clone(), same, By::Target, &[]);
        assert_eq!(told.directories[0].needs, [Need::Meta, Need::Link]);
    }

    #[test]
    fn a_catalogue_is_read_as_it_was_written_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("catalogue");
        let directories = [directory("b", vec![entry("x", 1, 2, 3)]), directory("", vec![]), directory("a/b", vec![])];
        let records: Vec<Vec<u8>> = directories.iter().map(Directory::record).collect();
        let run = uuid::Uuid::from_u128(5);
        Catalogue::write(&path, run, records.iter().map(Vec::as_slice).collect()).unwrap();
        let read = Catalogue::read(&path).unwrap();
        assert_eq!((read.directories(), read.run(), read.path(1)), (3, run, &b"a/b"[..]));
        for directory in &directories {
            let index = read.find(&directory.path).unwrap();
            assert_eq!(Directory::of_record(read.record(index)).unwrap().record(), directory.record());
        }
        assert_eq!(read.find(b"c"), None);
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            assert!(Catalogue::read(&path).is_none(), "cut off at {length}");
            let mut flipped = whole.clone();
            flipped[length] ^= 4;
            std::fs::write(&path, flipped).unwrap();
            assert!(Catalogue::read(&path).is_none(), "a bit of byte {length}");
        }
    }
}
