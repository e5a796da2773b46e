//! What is carried, by whom.

use super::{Options, Split};
use crate::balance::{Balanced, Cost, Item, Lists, Load, SizeAware, balanced, by_count, size_aware};
use crate::tree::{Changes, Entry, Kind, Need};

/// An entry that is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    /// Its directory among the changed ones.
    pub directory: usize,
    /// Its place in that.
    pub entry: usize,
}

/// Jobs and lists of them.
pub(crate) struct Plan {
    /// In the order of a scan.
    pub jobs: Vec<Job>,
    /// Lists of jobs, by their index.
    pub lists: Lists,
}

impl Plan {
    pub fn of(changes: &Changes, options: &Options, may_cut: bool, cost: &Cost) -> Self {
        let mut jobs = Vec::new();
        let mut paths = Vec::new();
        for (directory, changed) in changes.directories.iter().enumerate() {
            for (entry, need) in changed.needs.iter().enumerate() {
                if matches!(need, Need::Meta | Need::Contents { .. }) {
                    jobs.push(Job { directory, entry });
                    paths.push(changed.directory.path_of(&changed.directory.entries[entry]));
                }
            }
        }
        let items: Vec<Item<'_>> = jobs
            .iter()
            .zip(&paths)
            .map(|(job, path)| Item { path, size_bytes: job.bytes(changes), place: job.directory as u32 })
            .collect();
        let workers = options.all_workers();
        let how = SizeAware { threshold_bytes: options.threshold_bytes, cap_bytes: options.cap_bytes };
        let lists = match options.split {
            Split::ByCount => by_count(&items, workers, cost),
            Split::SizeAware => size_aware(&items, workers, how, cost),
            Split::Balanced => balanced(&items, workers, Balanced { may_cut, ..Balanced::default() }, cost),
        };
        Self { jobs, lists }
    }

    /// Entries to carry.
    pub fn files(&self) -> u64 {
        self.jobs.len() as u64
    }

    /// Bytes of them.
    pub fn bytes(&self) -> u64 {
        self.loads().iter().map(|load| load.bytes).sum()
    }

    /// How long one worker should take for all of it, in seconds.
    pub fn cost_s(&self) -> f64 {
        self.loads().iter().map(|load| load.cost_s).sum()
    }

    /// What each worker's list holds.
    pub fn loads(&self) -> Vec<Load> {
        self.lists.loads()
    }
}

impl Job {
    /// The entry.
    pub fn entry<'a>(&self, changes: &'a Changes) -> &'a Entry {
        &changes.directories[self.directory].directory.entries[self.entry]
    }

    /// Its path under the root.
    pub fn path(&self, changes: &Changes) -> Vec<u8> {
        changes.directories[self.directory].directory.path_of(self.entry(changes))
    }

    /// What it needs.
    pub fn need(&self, changes: &Changes) -> Need {
        changes.directories[self.directory].needs[self.entry]
    }

    /// Bytes that have to be looked at.
    pub fn bytes(&self, changes: &Changes) -> u64 {
        let entry = self.entry(changes);
        let has_contents = entry.kind == Kind::File && matches!(self.need(changes), Need::Contents { .. });
        if has_contents { entry.size_bytes } else { 0 }
    }
}
