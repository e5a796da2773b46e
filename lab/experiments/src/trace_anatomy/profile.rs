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
    /// Bytes of a region: 1 MiB, or more where more than a million of these are touched. A block is a 256th of it.
    pub region_bytes: u64,
    /// So many of the busiest regions take this share of the requests.
    pub concentration: Vec<(u64, f64)>,
    /// Bytes touched by this time, in nanoseconds.
    pub footprint: Vec<(u64, u64)>,
}

const REGION_BYTES: u64 = 1 << 20;
/// Blocks of a region: of the smallest one, 4 KiB each.
pub const BLOCKS: u64 = 256;
/// Regions that are counted apart, at most: some 80 MB of memory.
const MOST_REGIONS: usize = 1 << 20;
/// The most points that a curve keeps.
const CURVE: usize = 200;

/// A region that was touched.
#[derive(Default)]
struct Region {
    /// Requests that begin in it.
    requests: u64,
    /// A bit for each of its blocks that was touched.
    touched: [u64; (BLOCKS / 64) as usize],
}

impl Region {
    /// Touches a block; whether it is the first time.
    fn touch(&mut self, block: u64) -> bool {
        let (word, bit) = (&mut self.touched[(block / 64) as usize], 1 << (block % 64));
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

/// Counts requests as they pass, in bounded memory: regions double in size when there would be too many.
pub struct Counter {
    profile: Profile,
    regions: BTreeMap<u64, Region>,
    most_regions: usize,
    /// Blocks that were touched.
    blocks: u64,
    growth: Growth,
}

impl Default for Counter {
    fn default() -> Self {
        let profile = Profile { region_bytes: REGION_BYTES, ..Profile::default() };
        Self { profile, regions: BTreeMap::new(), most_regions: MOST_REGIONS, blocks: 0, growth: Growth::default() }
    }
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
        self.regions.entry(request.offset_bytes / self.profile.region_bytes).or_default().requests += 1;
        let block_bytes = self.profile.region_bytes / BLOCKS;
        for block in request.offset_bytes / block_bytes..request.end_bytes().div_ceil(block_bytes) {
            self.blocks += u64::from(self.regions.entry(block / BLOCKS).or_default().touch(block % BLOCKS));
        }
        while self.regions.len() > self.most_regions {
            self.double();
        }
        self.growth.at(request.at_ns, self.blocks * self.profile.region_bytes / BLOCKS);
    }

    /// Two neighbours become one, of regions and of blocks.
    fn double(&mut self) {
        let fine = std::mem::take(&mut self.regions);
        self.profile.region_bytes *= 2;
        self.blocks = 0;
        for (number, region) in fine {
            let coarse = self.regions.entry(number / 2).or_default();
            coarse.requests += region.requests;
            let is_touched = |block: &u64| region.touched[(block / 64) as usize] >> (block % 64) & 1 == 1;
            for block in (0..BLOCKS).filter(is_touched) {
                self.blocks += u64::from(coarse.touch(number % 2 * (BLOCKS / 2) + block / 2));
            }
        }
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
    fn regions_double_when_there_are_too_many() {
        let request = |n: u64| Request {
            at_ns: n,
            op: Op::Read,
            offset_bytes: n % 100 * REGION_BYTES,
            len_bytes: 8192,
            response_ns: 0,
        };
        let mut counter = Counter { most_regions: 30, ..Counter::default() };
        (0..1000).for_each(|n| counter.take(&request(n)));
        assert!(counter.regions.len() <= 30);
        let all = counter.end();
        // A hundred of 1 MiB are 25 of 4 MiB, and of each of the hundred one block of 16 KiB is touched.
        assert_eq!((all.region_bytes, all.concentration.last()), (4 * REGION_BYTES, Some(&(25, 1.0))));
        assert_eq!(all.footprint.last(), Some(&(999, 100 * 16384)));
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
