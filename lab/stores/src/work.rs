//! What is done to a store, and how long it took.

use anyhow::{Result, ensure};
use kura_block::{BufMut, PAGE_BYTES};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Objects of one size, by clients that each do one thing at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Work {
    /// Bytes of an object; at least [`STAMP_BYTES`].
    pub size_bytes: usize,
    /// Objects.
    pub count: usize,
    /// Clients at once.
    pub clients: usize,
}

/// A phase as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Megabytes (10^6 bytes) of content a second, from the first request to the last answer.
    pub mb_s: f64,
    /// Half of the requests took at most this long.
    pub p50_us: f64,
    /// All but a hundredth did.
    pub p99_us: f64,
}

/// A store being measured. What opens and closes it is outside of the phases' times.
pub(crate) trait Backend {
    /// Puts every object durably, in place of its earlier version. Ends when what this has the store do later is done,
    /// too, though the phase does not count that.
    fn create(&mut self, version: u64) -> Result<Phase>;

    /// Reads every object once, in an order of its own, nothing of it in memory before, and compares every byte.
    fn read(&mut self, version: u64) -> Result<Phase>;

    /// Overwrites objects in no order until three times as much was written as the store has room for, and all of them
    /// are of this version.
    fn age(&mut self, _version: u64) -> Result<()> {
        anyhow::bail!("only our store is aged")
    }
}

impl Phase {
    /// From how long each request took.
    pub(crate) fn of(work: &Work, elapsed: Duration, mut latencies: Vec<Duration>) -> Self {
        latencies.sort_unstable();
        // The least that so large a part of them is not above.
        let at = |share: f64| {
            let rank = (latencies.len() as f64 * share).ceil() as usize;
            latencies.get(rank.saturating_sub(1)).map_or(0.0, |latency| latency.as_secs_f64() * 1e6)
        };
        let content_bytes = (work.size_bytes * work.count) as f64;
        Self { mb_s: content_bytes / 1e6 / elapsed.as_secs_f64(), p50_us: at(0.5), p99_us: at(0.99) }
    }
}

impl Work {
    /// Refuses what cannot be measured.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { size_bytes, count, clients } = *self;
        ensure!(size_bytes >= STAMP_BYTES, "objects of {size_bytes} bytes: at least {STAMP_BYTES} tell them apart");
        ensure!(clients > 0 && count >= clients, "{count} objects for {clients} clients: at least one for each");
        Ok(())
    }

    /// From an object to the one that is read after it: without a common divisor with the count, it meets each once.
    pub(crate) fn step(&self) -> usize {
        let mut step = (self.count as f64 * 0.618) as usize | 1;
        while gcd(step, self.count) != 1 {
            step += 2;
        }
        step
    }

    /// The object that comes `nth` when they are read: each once, neighbours apart.
    pub(crate) fn shuffled(&self, nth: usize) -> usize {
        (nth * self.step()) % self.count
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The number after this one of Marsaglia's xorshift: random enough for content and order, and never zero.
pub(crate) fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^ (state << 17)
}

/// Bytes at the front of an object by which it differs from all others: its number and its version, u64 each.
pub const STAMP_BYTES: usize = 16;

/// The content of all objects of a size: the same random bytes behind a stamp each.
#[derive(Clone)]
pub(crate) struct Content {
    base: Vec<u8>,
}

impl Content {
    pub fn of(work: &Work) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let words = (0..work.size_bytes.div_ceil(8)).flat_map(|_| {
            state = xorshift(state);
            state.to_le_bytes()
        });
        Self { base: words.take(work.size_bytes).collect() }
    }

    /// What is behind the stamps, with room for one in front.
    pub fn base(&self) -> &[u8] {
        &self.base
    }

    /// Memory for one client, whole pages of it, that holds an object but for its stamp.
    pub fn memory(&self) -> BufMut {
        let mut memory = BufMut::zeroed(self.base.len().next_multiple_of(PAGE_BYTES));
        memory[..self.base.len()].copy_from_slice(&self.base);
        memory
    }

    /// Makes `memory` the object's content.
    pub fn stamp(memory: &mut [u8], object: usize, version: u64) {
        memory[..8].copy_from_slice(&(object as u64).to_le_bytes());
        memory[8..STAMP_BYTES].copy_from_slice(&version.to_le_bytes());
    }

    /// Refuses bytes at `from` of an object that are not what was put.
    pub fn check(&self, bytes: &[u8], from: usize, object: usize, version: u64) -> Result<()> {
        let mut stamp = [0; STAMP_BYTES];
        Self::stamp(&mut stamp, object, version);
        let stamped = STAMP_BYTES.saturating_sub(from).min(bytes.len());
        let expected = self.base.get(from + stamped..from + bytes.len());
        let is_right = (stamped == 0 || bytes[..stamped] == stamp[from..from + stamped])
            && expected.is_some_and(|expected| bytes[stamped..] == *expected);
        ensure!(is_right, "object {object} was read with another content than was put");
        Ok(())
    }
}

/// Runs `each` for every object on as many threads as there are clients, each with a share of the objects and memory of
/// its own.
pub(crate) fn run_clients<F>(work: &Work, content: &Content, each: F) -> Result<Phase>
where
    F: Fn(&mut BufMut, usize) -> Result<()> + Sync,
{
    let barrier = std::sync::Barrier::new(work.clients + 1);
    let client = |client: usize| -> Result<(Instant, Vec<Duration>)> {
        let mut memory = content.memory();
        let mut latencies = Vec::with_capacity(work.count / work.clients + 1);
        barrier.wait();
        let begun = Instant::now();
        for object in (client..work.count).step_by(work.clients) {
            let begin = Instant::now();
            each(&mut memory, object)?;
            latencies.push(begin.elapsed());
        }
        Ok((begun, latencies))
    };
    let (latencies, elapsed) = std::thread::scope(|scope| {
        let client = &client;
        let clients: Vec<_> = (0..work.clients).map(|nth| scope.spawn(move || client(nth))).collect();
        barrier.wait();
        // The first of them may be at work before this thread is on a core again.
        let mut start = Instant::now();
        let mut all = Vec::with_capacity(work.count);
        for client in clients {
            let (begun, latencies) = client.join().map_err(|_| anyhow::anyhow!("a client's thread has panicked"))??;
            start = start.min(begun);
            all.extend(latencies);
        }
        anyhow::Ok((all, start.elapsed()))
    })?;
    Ok(Phase::of(work, elapsed, latencies))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: Work = Work { size_bytes: 5000, count: 100, clients: 3 };

    #[test]
    fn another_object_an_older_version_and_a_wrong_byte_are_seen() {
        let content = Content::of(&WORK);
        let mut memory = content.memory();
        Content::stamp(&mut memory, 7, 2);
        for (from, to) in [(0, 5000), (0, 3), (3, 20), (16, 5000), (4999, 5000)] {
            content.check(&memory[from..to], from, 7, 2).unwrap();
        }
        assert!(content.check(&memory[..5000], 0, 8, 2).is_err());
        assert!(content.check(&memory[..5000], 0, 7, 1).is_err());
        assert!(content.check(&memory[..5001], 0, 7, 2).is_err(), "it has no such byte");
        memory[4999] ^= 1;
        assert!(content.check(&memory[..5000], 0, 7, 2).is_err());
    }

    #[test]
    fn each_object_is_read_once() {
        for count in [1, 2, 3, 16, 32, 100, 10_000] {
            let mut read: Vec<usize> = (0..count).map(|nth| Work { count, ..WORK }.shuffled(nth)).collect();
            read.sort_unstable();
            assert!(read.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn a_percentile_is_the_least_that_so_many_are_not_above() {
        for (count, p50_us, p99_us) in [(1, 1.0, 1.0), (2, 1.0, 2.0), (100, 50.0, 99.0), (400, 200.0, 396.0)] {
            let latencies = (1..=count).rev().map(Duration::from_micros).collect();
            let phase = Phase::of(&WORK, Duration::from_secs(1), latencies);
            assert!((phase.p50_us - p50_us).abs() < 1e-6 && (phase.p99_us - p99_us).abs() < 1e-6, "{count}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        assert!(Work { size_bytes: 15, ..WORK }.check().is_err());
        assert!(Work { clients: 0, ..WORK }.check().is_err());
        assert!(Work { count: 2, ..WORK }.check().is_err());
        WORK.check().unwrap();
    }

    #[test]
    fn a_client_that_fails_ends_the_phase() {
        let content = Content::of(&WORK);
        let phase = run_clients(&WORK, &content, |_, object| {
            ensure!(object != 50, "no room for it");
            Ok(())
        });
        assert_eq!(phase.unwrap_err().to_string(), "no room for it");
    }
}
