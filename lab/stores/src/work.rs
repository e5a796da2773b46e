//! What is done to a backend, and how long it took.

use anyhow::{Context, Result};
use serde::Serialize;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Objects of one size, by clients that each do one thing at a time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Work {
    /// Bytes of an object.
    pub size_bytes: usize,
    /// Objects.
    pub count: usize,
    /// Clients at once.
    pub clients: usize,
}

/// A phase as measured.
#[derive(Clone, Debug, Serialize)]
pub struct Phase {
    /// From the first request to the last answer.
    pub seconds: f64,
    /// Megabytes (10^6 bytes) of content a second.
    pub mb_s: f64,
    /// Objects a second.
    pub objects_s: f64,
    /// Half of the requests took at most this long.
    pub p50_us: f64,
    /// All but a hundredth did.
    pub p99_us: f64,
    /// Bytes written to the device for each byte of content, where the backend counts them.
    pub amplification: Option<f64>,
}

/// What the index of an object store takes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Index {
    /// Objects in it, and the partition.
    pub objects: u64,
    /// Bytes of its leaves.
    pub index_bytes: u64,
    /// Resident bytes of the process, above those before the store was opened.
    pub resident_bytes: u64,
    /// Seconds that opening the store took.
    pub open_s: f64,
}

/// A store being measured.
pub trait Backend {
    /// Puts every object, durably, in place of what is there.
    fn create(&mut self, work: &Work) -> Result<Phase>;

    /// Reads every object once, in an order of its own, nothing of it in memory before.
    fn read(&mut self, work: &Work) -> Result<Phase>;
}

impl Phase {
    /// From how long each request took.
    pub fn of(work: &Work, elapsed: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        let at = |share: f64| {
            let index = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
            latencies.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
        };
        let seconds = elapsed.as_secs_f64();
        Self {
            seconds,
            mb_s: (work.size_bytes * work.count) as f64 / 1e6 / seconds,
            objects_s: work.count as f64 / seconds,
            p50_us: at(0.5),
            p99_us: at(0.99),
            amplification: None,
        }
    }
}

impl Work {
    /// The object that comes `nth` when they are read: each once, neighbours apart.
    pub fn shuffled(&self, nth: usize) -> usize {
        // A step without a common divisor with the count meets each once.
        let mut step = (self.count as f64 * 0.618) as usize | 1;
        while gcd(step, self.count) != 1 {
            step += 2;
        }
        (nth * step) % self.count
    }

    /// The content of an object.
    pub fn content(&self, object: usize) -> Vec<u8> {
        let mut state = (object as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let words = (0..self.size_bytes.div_ceil(8)).flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        words.take(self.size_bytes).collect()
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Runs `each` for every object on as many threads as there are clients, each with a share of them.
pub fn run_clients<F>(work: &Work, each: F) -> Result<Phase>
where
    F: Fn(usize) -> Result<()> + Sync,
{
    let start = Instant::now();
    let latencies = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..work.clients)
            .map(|client| {
                let each = &each;
                scope.spawn(move || -> Result<Vec<Duration>> {
                    let mut latencies = Vec::with_capacity(work.count / work.clients + 1);
                    for object in (client..work.count).step_by(work.clients) {
                        let begin = Instant::now();
                        each(object)?;
                        latencies.push(begin.elapsed());
                    }
                    Ok(latencies)
                })
            })
            .collect();
        let mut all = Vec::with_capacity(work.count);
        for client in clients {
            all.extend(client.join().map_err(|_| anyhow::anyhow!("a client's thread has panicked"))??);
        }
        anyhow::Ok(all)
    })?;
    Ok(Phase::of(work, start.elapsed(), latencies))
}

/// Empties the page cache and the caches of names and inodes; it needs root.
pub fn drop_caches() -> Result<()> {
    Command::new("sync").status().context("sync")?;
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("dropping caches (/proc/sys/vm/drop_caches): needs root")
}

/// Makes what a folder names durable.
pub(crate) fn sync_folder(folder: &Path) -> Result<()> {
    std::fs::File::open(folder).and_then(|folder| folder.sync_all()).with_context(|| folder.display().to_string())
}
