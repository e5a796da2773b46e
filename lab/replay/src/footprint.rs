//! Which parts of a volume are touched, in bounded memory.

use std::collections::BTreeMap;
use std::ops::Range;

const WORDS: usize = 64;
/// Granules in a chunk.
const CHUNK: u64 = 64 * WORDS as u64;
/// Chunks kept: 16 MiB of them, 512 GiB in granules of 4 KiB.
const CHUNKS_LIMIT: usize = 1 << 15;

/// A set of granules, as bits. Where there are too many, granules become twice as large: what is in the set then is more
/// than was put in, never less.
#[derive(Clone, Debug)]
pub(crate) struct Footprint {
    granule_bytes: u64,
    chunks: BTreeMap<u64, [u64; WORDS]>,
}

impl Footprint {
    /// Nothing, in granules of a power of two of bytes.
    pub(crate) fn new(granule_bytes: u64) -> Self {
        Self { granule_bytes, chunks: BTreeMap::new() }
    }

    /// Adds the granules that `range` touches.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.add_granules(range.start / self.granule_bytes..=(range.end - 1) / self.granule_bytes);
        while self.chunks.len() > CHUNKS_LIMIT {
            self.coarsen();
        }
    }

    fn add_granules(&mut self, granules: std::ops::RangeInclusive<u64>) {
        let (mut at, end) = (*granules.start(), *granules.end());
        while at <= end {
            // A word at a time: requests touch neighbours.
            let (word, bit) = (at / 64, at % 64);
            let bits = (end - at + 1).min(64 - bit);
            let chunk = self.chunks.entry(at / CHUNK).or_insert([0; WORDS]);
            chunk[word as usize % WORDS] |= u64::MAX >> (64 - bits) << bit;
            at += bits;
        }
    }

    fn coarsen(&mut self) {
        let finer = std::mem::take(&mut self.chunks);
        self.granule_bytes *= 2;
        for granule in granules(&finer) {
            self.add_granules(granule / 2..=granule / 2);
        }
    }

    /// Bytes of all granules.
    pub(crate) fn bytes(&self) -> u64 {
        let bits: u64 = self.chunks.values().flatten().map(|word| u64::from(word.count_ones())).sum();
        bits * self.granule_bytes
    }

    /// What is in the set, as ranges of bytes that do not touch each other, in order.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let bytes = self.granule_bytes;
        let mut granules = granules(&self.chunks).peekable();
        std::iter::from_fn(move || {
            let first = granules.next()?;
            let mut end = first + 1;
            while granules.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(first * bytes..end * bytes)
        })
    }
}

fn granules(chunks: &BTreeMap<u64, [u64; WORDS]>) -> impl Iterator<Item = u64> {
    let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
    chunks.iter().flat_map(move |(chunk, words)| {
        let words = words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(move |(at, word)| bits(*word).map(move |bit| chunk * CHUNK + at as u64 * 64 + bit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_holds_the_granules_touched(ranges in prop::collection::vec((0_u64..1 << 26, 0_u64..1 << 18), 0..20)) {
            let mut footprint = Footprint::new(4096);
            let mut expected = BTreeSet::new();
            for (start, len) in ranges {
                footprint.add(start..start + len);
                expected.extend((start / 4096..(start + len).div_ceil(4096)).filter(|_| len > 0));
            }
            prop_assert_eq!(footprint.bytes(), expected.len() as u64 * 4096);
            let found: BTreeSet<u64> = footprint.ranges().flat_map(|range| range.start / 4096..range.end / 4096).collect();
            prop_assert_eq!(found, expected);
            let ranges: Vec<_> = footprint.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
        }
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_forgotten() {
        let mut footprint = Footprint::new(4096);
        let places: Vec<u64> = (0..100_000).map(|at| at * (1 << 33) + 4096 * at).collect();
        for place in &places {
            footprint.add(*place..place + 1);
        }
        assert!(footprint.chunks.len() <= CHUNKS_LIMIT);
        let ranges: Vec<_> = footprint.ranges().collect();
        let holds = |place: &u64| ranges[ranges.partition_point(|range| range.end <= *place)].contains(place);
        assert!(places.iter().all(holds));
    }
}
