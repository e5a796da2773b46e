//! Sets of bytes of a volume, in order of address: the temporary buffer's bitmap, and what is dirty.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    /// By their first byte, the first byte after them.
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Ranges {
    /// All bytes of the set.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range, joined to those it meets.
    pub fn insert(&mut self, range: Range<u64>) {
        let mut all = range.clone();
        let met = self.ends.range(..=range.end).next_back().filter(|(_, end)| **end >= range.start);
        let mut next = met.map(|(start, end)| (*start, *end));
        while let Some((start, end)) = next {
            self.ends.remove(&start);
            self.bytes -= end - start;
            all = all.start.min(start)..all.end.max(end);
            next = self.ends.range(..=range.end).next_back().map(|(start, end)| (*start, *end));
            next = next.filter(|(_, end)| *end >= range.start);
        }
        self.bytes += all.end - all.start;
        self.ends.insert(all.start, all.end);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range<u64>) {
        while let Some(part) = self.first_in(range.clone()) {
            let (start, end) = self.around(part.start);
            self.ends.remove(&start);
            if start < part.start {
                self.ends.insert(start, part.start);
            }
            if part.end < end {
                self.ends.insert(part.end, end);
            }
            self.bytes -= part.end - part.start;
        }
    }

    /// The first part of a range that is in the set.
    pub fn first_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let before = self.ends.range(..=range.start).next_back().filter(|(_, end)| **end > range.start);
        let first = before.or_else(|| self.ends.range(range.start..range.end).next());
        first.map(|(start, end)| range.start.max(*start)..range.end.min(*end))
    }

    /// Whether all of a range is in the set.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        self.first_in(range.clone()).as_ref() == Some(range)
    }

    /// The range of the set that has this byte, which is in it.
    fn around(&self, byte: u64) -> (u64, u64) {
        self.ends.range(..=byte).next_back().map_or((byte, byte), |(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use std::collections::BTreeSet;

    /// Held against a set of single bytes.
    #[test]
    fn it_is_a_set_of_bytes() {
        let mut rng = kura_sim::ChaCha8Rng::seed_from_u64(7);
        let (mut ranges, mut bytes) = (Ranges::default(), BTreeSet::new());
        for _ in 0..5_000 {
            let start = rng.random_range(0..60_u64);
            let range = start..start + rng.random_range(1..9_u64);
            if rng.random() {
                ranges.insert(range.clone());
                bytes.extend(range.clone());
            } else {
                ranges.remove(range.clone());
                bytes.retain(|byte| !range.contains(byte));
            }
            assert_eq!(ranges.bytes(), bytes.len() as u64);
            let asked = rng.random_range(0..60_u64);
            let asked = asked..asked + rng.random_range(1..9_u64);
            assert_eq!(ranges.covers(&asked), asked.clone().all(|byte| bytes.contains(&byte)), "{asked:?}");
            let first = bytes.range(asked.clone()).next().copied();
            assert_eq!(ranges.first_in(asked).map(|part| part.start), first);
        }
    }
}
