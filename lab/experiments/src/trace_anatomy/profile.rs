//! What figures want beside the anatomy: distributions whole, and growth.

use kura_trace::{Op, Request};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Sizes, concentration and growth of the footprint, of reads and writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Reads and writes.
    pub requests: u64,
    /// Reads and writes up to so many bytes, a power of two, and more than the one before.
    pub sizes: BTreeMap<u64, [u64; 2]>,
    /// So many of the busiest regions take this share of the requests.
    pub concentration: Vec<(u64, f64)>,
    /// Bytes touched by this time, in nanoseconds.
    pub footprint: Vec<(u64, u64)>,
}

const REGION_BYTES: u64 = 1 << 20;
const BLOCK_BYTES: u64 = 4096;
/// The most points that a curve keeps.
const CURVE: usize = 200;

/// A region that was touched.
#[derive(Default)]
struct Region {
    /// Requests that begin in it.
    requests: u64,
    /// A bit for each of its blocks that was touched.
    touched: [u64; (REGION_BYTES / BLOCK_BYTES / 64) as usize],
}

/// Counts requests as they pass.
#[derive(Default)]
pub struct Counter {
    profile: Profile,
    regions: BTreeMap<u64, Region>,
    blocks: u64,
    growth: Growth,
}

impl Counter {
    /// The next request.
    pub fn take(&mut self, request: &Request) {
        let kind = match request.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Discard | Op::Flush => return,
        };
        self.profile.requests += 1;
        let size = u64::from(request.len_bytes).next_power_of_two();
        self.profile.sizes.entry(size).or_default()[kind] += 1;
        self.regions.entry(request.offset_bytes / REGION_BYTES).or_default().requests += 1;
        for block in request.offset_bytes / BLOCK_BYTES..request.end_bytes().div_ceil(BLOCK_BYTES) {
            let region = self.regions.entry(block * BLOCK_BYTES / REGION_BYTES).or_default();
            let bit = block % (REGION_BYTES / BLOCK_BYTES);
            let word = &mut region.touched[(bit / 64) as usize];
            self.blocks += u64::from(*word >> (bit % 64) & 1 == 0);
            *word |= 1 << (bit % 64);
        }
        self.growth.at(request.at_ns, self.blocks * BLOCK_BYTES);
    }

    /// All that was counted.
    pub fn end(self) -> Profile {
        let mut busy: Vec<u64> = self.regions.values().map(|region| region.requests).filter(|n| *n > 0).collect();
        busy.sort_unstable_by(|a, b| b.cmp(a));
        let (mut taken, mut concentration) = (0, Vec::new());
        // As many points in each doubling.
        let mut next = 1.0_f64;
        for (regions, requests) in (1..).zip(&busy) {
            taken += requests;
            if regions as f64 >= next || regions == busy.len() {
                concentration.push((regions as u64, taken as f64 / self.profile.requests as f64));
                next = (regions as f64 * 1.08).max(regions as f64 + 1.0);
            }
        }
        Profile { concentration, footprint: self.growth.points(), ..self.profile }
    }
}

/// A curve over time of at most [`CURVE`] points: when there are more, every other one goes, and the rest come at twice
/// the distance.
#[derive(Default)]
struct Growth {
    points: Vec<(u64, u64)>,
    step_ns: u64,
    last: Option<(u64, u64)>,
}

impl Growth {
    fn at(&mut self, at_ns: u64, value: u64) {
        let due = self.points.last().is_none_or(|(last_ns, _)| at_ns >= last_ns + self.step_ns);
        if due {
            self.points.push((at_ns, value));
        }
        if self.points.len() > CURVE {
            self.points = self.points.iter().copied().step_by(2).collect();
            let (first, last) = (self.points[0].0, at_ns);
            self.step_ns = ((last - first) / self.points.len() as u64).max(1);
        }
        self.last = Some((at_ns, value));
    }

    /// The points and the last of all.
    fn points(mut self) -> Vec<(u64, u64)> {
        if self.points.last() != self.last.as_ref() {
            self.points.extend(self.last);
        }
        self.points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(requests: impl IntoIterator<Item = (u64, Op, u64, u32)>) -> Profile {
        let mut counter = Counter::default();
        for (at_ns, op, offset_bytes, len_bytes) in requests {
            counter.take(&Request { at_ns, op, offset_bytes, len_bytes, response_ns: 0 });
        }
        counter.end()
    }

    #[test]
    fn sizes_and_footprint_are_counted() {
        let all = profile([
            (0, Op::Write, 0, 4096),
            (1, Op::Write, 0, 4096),
            (2, Op::Read, 4095, 2),
            (3, Op::Read, REGION_BYTES - 4096, 8192),
            (4, Op::Flush, 0, 0),
            (5, Op::Discard, 1 << 30, 4096),
        ]);
        assert_eq!(all.sizes, BTreeMap::from([(2, [1, 0]), (4096, [0, 2]), (8192, [1, 0])]));
        assert_eq!(all.footprint, [(0, 4096), (1, 4096), (2, 8192), (3, 16384)]);
        assert_eq!(all.concentration, [(1, 1.0)]);
    }

    #[test]
    fn concentration_is_of_the_busiest_first() {
        let requests = (0..1000).map(|n| (n, Op::Read, n % 10 * n % 7 * REGION_BYTES, 512));
        let all = profile(requests);
        assert!(all.concentration.is_sorted_by(|(_, low), (_, high)| low < high));
        assert_eq!(all.concentration.last(), Some(&(7, 1.0)));
        assert!(all.concentration[0].1 > 1.0 / 7.0);
    }

    #[test]
    fn growth_keeps_few_points_and_the_ends() {
        let all = profile((0..100_000).map(|n| (n * 1000, Op::Write, n * 4096, 4096)));
        assert!(all.footprint.len() > CURVE / 4 && all.footprint.len() <= CURVE + 1, "{}", all.footprint.len());
        assert_eq!(all.footprint[0], (0, 4096));
        assert_eq!(all.footprint.last(), Some(&(99_999_000, 100_000 * 4096)));
        assert!(all.footprint.is_sorted());
    }
}
