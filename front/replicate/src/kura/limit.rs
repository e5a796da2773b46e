//! So many bytes a second, for all workers together.

use crate::run::lock;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A limit that workers wait for.
pub struct Limit {
    bytes_per_s: Option<u64>,
    free_at: Mutex<Instant>,
}

impl Limit {
    /// None: no limit.
    pub fn new(bytes_per_s: Option<u64>) -> Self {
        Self { bytes_per_s, free_at: Mutex::new(Instant::now()) }
    }

    /// Whether there is one.
    pub fn is_set(&self) -> bool {
        self.bytes_per_s.is_some()
    }

    /// Waits until these bytes may go.
    pub fn wait(&self, bytes: u64) {
        std::thread::sleep(self.book(bytes));
    }

    /// Books these bytes: they may go after this time.
    pub fn book(&self, bytes: u64) -> Duration {
        let Some(bytes_per_s) = self.bytes_per_s else { return Duration::ZERO };
        let takes = Duration::from_secs_f64(bytes as f64 / bytes_per_s.max(1) as f64);
        let goes_at = {
            let mut free_at = lock(&self.free_at);
            let goes_at = (*free_at).max(Instant::now());
            *free_at = goes_at + takes;
            goes_at
        };
        goes_at.saturating_duration_since(Instant::now())
    }
}
