//! How far a run is: counters that workers move and anyone may read.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// What a run is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It reads the source and finds what has changed.
    Scanning,
    /// Workers carry files.
    Carrying,
    /// Links, deletions, times of directories, and until all of it is durable.
    Finishing,
}

/// Files and bytes of one worker.
#[derive(Debug, Default)]
pub struct Counter {
    files: AtomicU64,
    bytes: AtomicU64,
    sent: AtomicU64,
    worked_us: AtomicU64,
}

impl Counter {
    /// Counts what was carried.
    pub fn add(&self, files: u64, bytes: u64) {
        self.files.fetch_add(files, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that went over the wire.
    pub fn sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
    }

    /// Bytes that went over the wire.
    pub fn sent_bytes(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Counts time that was worked.
    pub fn worked(&self, time: Duration) {
        self.worked_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    /// How long it worked, in seconds.
    pub fn worked_s(&self) -> f64 {
        self.worked_us.load(Relaxed) as f64 / 1e6
    }

    /// Files and bytes so far.
    pub fn get(&self) -> (u64, u64) {
        (self.files.load(Relaxed), self.bytes.load(Relaxed))
    }
}

/// How far a run is.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicUsize,
    scanned: AtomicU64,
    total: Counter,
    workers: OnceLock<Vec<Counter>>,
}

impl Progress {
    /// What it is doing.
    pub fn phase(&self) -> Phase {
        [Phase::Scanning, Phase::Carrying, Phase::Finishing][self.phase.load(Relaxed).min(2)]
    }

    /// Files that were looked at.
    pub fn scanned(&self) -> u64 {
        self.scanned.load(Relaxed)
    }

    /// Files and bytes to be carried; 0 while scanning.
    pub fn total(&self) -> (u64, u64) {
        self.total.get()
    }

    /// What each worker has carried.
    pub fn workers(&self) -> &[Counter] {
        self.workers.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn saw(&self, files: u64) {
        self.scanned.fetch_add(files, Relaxed);
    }

    /// Begins to carry, so much by so many workers.
    pub fn carry(&self, files: u64, bytes: u64, workers: usize) {
        self.total.add(files, bytes);
        // A progress is of one run.
        let _ = self.workers.set((0..workers).map(|_| Counter::default()).collect());
        self.phase.store(1, Relaxed);
    }

    /// More is to be carried than was said: a list is still read.
    pub fn expect(&self, files: u64, bytes: u64) {
        self.total.add(files, bytes);
    }

    /// All is carried.
    pub fn finish(&self) {
        self.phase.store(2, Relaxed);
    }
}
