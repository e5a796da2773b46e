//! Large files, parts of which several workers carry.

use super::message::{At, Present};
use crate::balance::Lists;
use crate::run::{Job, lock};
use std::collections::{BTreeSet, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A large file.
pub struct Large {
    pub job: Job,
    /// What of it is at the target.
    pub present: Present,
    path: Vec<u8>,
    in_place: bool,
    /// Where parts begin that are not known to be at the target.
    left: Mutex<BTreeSet<u64>>,
    failed: AtomicBool,
    finished: AtomicBool,
}

impl Large {
    pub fn new(job: Job, path: Vec<u8>, in_place: bool) -> Self {
        let (left, failed, finished) = (Mutex::default(), AtomicBool::new(false), AtomicBool::new(false));
        Self { job, present: Present::Refused, path, in_place, left, failed, finished }
    }

    /// As messages name it.
    pub fn at(&self) -> At<'_> {
        At { path: &self.path, in_place: self.in_place }
    }

    /// It does not become whole in this run.
    pub fn fail(&self) {
        self.failed.store(true, Relaxed);
    }

    /// It is whole at the target.
    pub fn finish(&self) {
        self.finished.store(true, Relaxed);
    }

    /// It is whole, or was told why it does not become so: nothing is left to do, not even for a worker that takes over
    /// what another one was lost with.
    pub fn is_over(&self) -> bool {
        self.failed.load(Relaxed) || self.finished.load(Relaxed)
    }

    /// A part is at the target. True where all are: the file is to be finished. A part may be done a second time, by who
    /// takes over from a lost worker.
    pub fn part_is_done(&self, offset: u64) -> bool {
        let mut left = lock(&self.left);
        left.remove(&offset);
        left.is_empty() && !self.is_over()
    }
}

/// All large files of a run.
pub struct Larges {
    /// For sums: another one each run, so that nobody can make two blocks of one sum.
    pub seed: u64,
    files: HashMap<usize, Large>,
    by_path: HashMap<Vec<u8>, usize>,
}

impl Larges {
    /// Files by the index of their job, with the parts that the lists cut them into.
    pub fn new(files: HashMap<usize, Large>, lists: &Lists) -> Self {
        for worker in 0..lists.of_workers.len() {
            for piece in lists.pieces(worker) {
                if let Some(large) = files.get(&piece.item) {
                    lock(&large.left).insert(piece.offset_bytes);
                }
            }
        }
        let by_path = files.iter().map(|(item, large)| (large.path.clone(), *item)).collect();
        Self { seed: uuid::Uuid::new_v4().as_u64_pair().0, files, by_path }
    }

    pub fn get(&self, item: usize) -> Option<&Large> {
        self.files.get(&item)
    }

    /// Paths of those of which the target has a part at most.
    pub fn left(&self) -> Vec<&[u8]> {
        self.files.values().filter(|large| !large.finished.load(Relaxed)).map(|large| &*large.path).collect()
    }

    /// The target could not do something with a path.
    pub fn fail(&self, path: &[u8]) {
        if let Some(large) = self.by_path.get(path).and_then(|item| self.files.get(item)) {
            large.fail();
        }
    }
}
