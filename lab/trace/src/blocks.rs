//! Sets of blocks, in bounded memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Words of a chunk's bitmap.
const WORDS: usize = 64;
const CHUNK_BLOCKS: u64 = WORDS as u64 * 64;
/// Chunks of a set at most: 64 MiB of bitmaps. With blocks of 4 KiB they cover 2 TiB, wherever these lie.
const MOST_CHUNKS: usize = 1 << 17;

/// A set of blocks of equal size. When it grows beyond its bound, blocks double: a block is in the set when either of
/// its halves was.
#[derive(Clone, Debug)]
pub struct BlockSet {
    block_bytes: u64,
    /// Bitmaps by the number of their first block / `CHUNK_BLOCKS`.
    chunks: BTreeMap<u64, Box<[u64; WORDS]>>,
    most_chunks: usize,
}

impl BlockSet {
    /// An empty set of blocks of `block_bytes`, a power of two.
    pub fn new(block_bytes: u64) -> BlockSet {
        assert!(block_bytes.is_power_of_two());
        BlockSet { block_bytes, chunks: BTreeMap::new(), most_chunks: MOST_CHUNKS }
    }

    #[cfg(test)]
    fn with_most_chunks(block_bytes: u64, most_chunks: usize) -> BlockSet {
        BlockSet { most_chunks, ..BlockSet::new(block_bytes) }
    }

    /// Bytes of a block, as they are now.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Bytes of the blocks in the set.
    pub fn bytes(&self) -> u64 {
        self.chunks.values().map(|chunk| count(chunk.as_slice())).sum::<u64>() * self.block_bytes
    }

    /// Adds every block that has one of these bytes.
    pub fn add(&mut self, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let (first, last) = (bytes.start / self.block_bytes, (bytes.end - 1) / self.block_bytes);
        let mut block = first;
        while block <= last {
            let (chunk, within) = (block / CHUNK_BLOCKS, block % CHUNK_BLOCKS);
            let to = (last - block).min(CHUNK_BLOCKS - 1 - within) + within;
            let bitmap = self.chunks.entry(chunk).or_insert_with(|| Box::new([0; WORDS]));
            set(bitmap, within as usize, to as usize);
            block += to - within + 1;
        }
        while self.chunks.len() > self.most_chunks {
            self.coarsen();
        }
    }

    /// The bytes of its blocks, as ranges that do not touch each other, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
        let words = self.chunks.iter().flat_map(|(chunk, words)| (chunk * CHUNK_BLOCKS..).step_by(64).zip(**words));
        let mut blocks = words.flat_map(move |(first, word)| bits(word).map(move |bit| first + bit)).peekable();
        std::iter::from_fn(move || {
            let first = blocks.next()?;
            let mut end = first + 1;
            while blocks.next_if_eq(&end).is_some() {
                end += 1;
            }
            Some(first * self.block_bytes..end * self.block_bytes)
        })
    }

    /// Blocks doubled in size.
    fn coarsen(&mut self) {
        let fine = std::mem::take(&mut self.chunks);
        for (chunk, bits) in fine {
            let half = (chunk % 2) as usize * WORDS / 2;
            let coarse = self.chunks.entry(chunk / 2).or_insert_with(|| Box::new([0; WORDS]));
            for (index, pair) in bits.chunks_exact(2).enumerate() {
                coarse[half + index] |= halved(pair[0]) | halved(pair[1]) << 32;
            }
        }
        self.block_bytes *= 2;
    }

    /// The set as it is, to be asked for ranks.
    pub(crate) fn ranks(self) -> Ranks {
        let mut before = 0;
        let chunks = self.chunks.into_iter().map(|(chunk, bits)| {
            let entry = (chunk, before, bits);
            before += count(entry.2.as_slice());
            entry
        });
        Ranks { block_bytes: self.block_bytes, chunks: chunks.collect() }
    }
}

/// The blocks of a set, numbered in order.
#[derive(Clone, Debug)]
pub struct Ranks {
    pub block_bytes: u64,
    /// The chunk's number, members before it, its bitmap.
    chunks: Vec<(u64, u64, Box<[u64; WORDS]>)>,
}

impl Ranks {
    /// How many members are below the block that has this byte, if it is a member.
    pub fn rank(&self, byte: u64) -> Option<u64> {
        let block = byte / self.block_bytes;
        let (chunk, within) = (block / CHUNK_BLOCKS, (block % CHUNK_BLOCKS) as usize);
        let index = self.chunks.binary_search_by_key(&chunk, |(chunk, ..)| *chunk).ok()?;
        let (_, before, bits) = &self.chunks[index];
        let (word, bit) = (within / 64, 1 << (within % 64));
        let below = count(&bits[..word]) + u64::from((bits[word] & (bit - 1)).count_ones());
        (bits[word] & bit != 0).then_some(before + below)
    }

    /// Members.
    pub fn len(&self) -> u64 {
        self.chunks.last().map_or(0, |(_, before, bits)| before + count(bits.as_slice()))
    }
}

fn count(words: &[u64]) -> u64 {
    words.iter().map(|word| u64::from(word.count_ones())).sum()
}

/// Sets bits `from` to `to`, both included.
fn set(bits: &mut [u64; WORDS], from: usize, to: usize) {
    let (first, last) = (from / 64, to / 64);
    for (word, bits) in bits.iter_mut().enumerate().take(last + 1).skip(first) {
        let low = if word == first { u64::MAX << (from % 64) } else { u64::MAX };
        let high = if word == last { u64::MAX >> (63 - to % 64) } else { u64::MAX };
        *bits |= low & high;
    }
}

/// 32 bits, each of which says whether one of a pair is set.
fn halved(word: u64) -> u64 {
    let pairs = word | word >> 1;
    (0..32).fold(0, |halved, bit| halved | (pairs >> (2 * bit) & 1) << bit)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Ranges of bytes, near and far.
    fn ranges() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let begin = prop_oneof![0..1u64 << 16, 0..1u64 << 40];
        prop::collection::vec((begin, 1..20_000u64), 1..30)
    }

    proptest! {
        #[test]
        fn a_set_is_the_blocks_that_were_touched(ranges in ranges()) {
            let mut set = BlockSet::new(512);
            let mut model = BTreeSet::new();
            for (begin, len) in ranges {
                set.add(begin..begin + len);
                model.extend(begin / 512..=(begin + len - 1) / 512);
            }
            prop_assert_eq!(set.bytes(), model.len() as u64 * 512);
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
            let found: BTreeSet<u64> = ranges.into_iter().flat_map(|it| it.start / 512..it.end / 512).collect();
            prop_assert_eq!(&found, &model);
            let ranks = set.ranks();
            prop_assert_eq!(ranks.len(), model.len() as u64);
            for (rank, block) in model.iter().enumerate() {
                prop_assert_eq!(ranks.rank(block * 512 + 17), Some(rank as u64));
                let next = ranks.rank((block + 1) * 512);
                prop_assert_eq!(next.is_some(), model.contains(&(block + 1)));
            }
        }

        #[test]
        fn a_set_in_bounds_is_the_same_set_in_larger_blocks(ranges in ranges()) {
            let mut bounded = BlockSet::with_most_chunks(512, 2);
            for (begin, len) in &ranges {
                bounded.add(*begin..begin + len);
            }
            let mut large = BlockSet::new(bounded.block_bytes());
            for (begin, len) in &ranges {
                large.add(*begin..begin + len);
            }
            prop_assert!(bounded.chunks.len() <= 2);
            prop_assert_eq!(bounded.chunks, large.chunks);
        }
    }
}
