//! What carrying costs: so long a file, so long a byte, learned from what was carried.

use serde::{Deserialize, Serialize};

/// How long a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// For a file, however small, in seconds.
    pub file_s: f64,
    /// For a byte, in seconds.
    pub byte_s: f64,
}

impl Default for Cost {
    /// Until something is learned: a tenth of a millisecond a file, 500 MB/s.
    fn default() -> Self {
        Self { file_s: 1e-4, byte_s: 2e-9 }
    }
}

impl Cost {
    /// For so much, in seconds.
    pub fn of(&self, files: u64, bytes: u64) -> f64 {
        self.file_s * files as f64 + self.byte_s * bytes as f64
    }
}

/// A cost by least squares over what workers took; the newest counts most.
///
/// `seconds = file_s x files + byte_s x bytes`: sums of products are kept, not samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learned {
    files_files: f64,
    files_bytes: f64,
    bytes_bytes: f64,
    files_seconds: f64,
    bytes_seconds: f64,
}

/// Part of the older samples' weight that is left when a sample comes.
const KEPT: f64 = 0.995;

impl Learned {
    /// A worker took so long for so much.
    pub fn add(&mut self, files: u64, bytes: u64, seconds: f64) {
        if !seconds.is_finite() || seconds <= 0.0 || (files == 0 && bytes == 0) {
            return;
        }
        // In megabytes, sums of squares have the size of those of files.
        let (files, megabytes) = (files as f64, bytes as f64 * 1e-6);
        // A long sample tells no more than a short one.
        let weight = 1.0 / (seconds * seconds);
        let keep = |sum: &mut f64, product: f64| *sum = *sum * KEPT + product * weight;
        keep(&mut self.files_files, files * files);
        keep(&mut self.files_bytes, files * megabytes);
        keep(&mut self.bytes_bytes, megabytes * megabytes);
        keep(&mut self.files_seconds, files * seconds);
        keep(&mut self.bytes_seconds, megabytes * seconds);
    }

    /// The cost that fits best; none before anything was learned.
    pub fn cost(&self) -> Option<Cost> {
        let determinant = self.files_files * self.bytes_bytes - self.files_bytes * self.files_bytes;
        let (file_s, megabyte_s) = if determinant > 1e-6 * self.files_files * self.bytes_bytes {
            (
                (self.files_seconds * self.bytes_bytes - self.bytes_seconds * self.files_bytes) / determinant,
                (self.bytes_seconds * self.files_files - self.files_seconds * self.files_bytes) / determinant,
            )
        } else {
            (-1.0, -1.0)
        };
        let alone = |seconds: f64, squares: f64| if squares > 0.0 { seconds / squares } else { 0.0 };
        let (file_s, megabyte_s) = match (file_s >= 0.0, megabyte_s >= 0.0) {
            (true, true) => (file_s, megabyte_s),
            // Time does not run backwards: what comes out negative costs nothing, and the other explains all.
            (true, false) => (alone(self.files_seconds, self.files_files), 0.0),
            (false, true) => (0.0, alone(self.bytes_seconds, self.bytes_bytes)),
            // Files that were all alike: half of the time to each.
            (false, false) => {
                (alone(self.files_seconds, self.files_files) / 2.0, alone(self.bytes_seconds, self.bytes_bytes) / 2.0)
            }
        };
        let learned = file_s > 0.0 || megabyte_s > 0.0;
        // Nothing is for nothing, or a balance of it would be no balance.
        learned.then(|| Cost { file_s: file_s.max(1e-6), byte_s: (megabyte_s * 1e-6).max(1e-11) })
    }
}
