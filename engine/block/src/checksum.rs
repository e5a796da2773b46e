//! The checksum of a block.

use crate::{BLOCK_BYTES, Buf};
use std::cell::OnceCell;
use std::sync::atomic::Ordering;

// The sums that a buffer keeps are of its pages.
const _: () = assert!(BLOCK_BYTES == crate::PAGE_BYTES);

/// CRC-32C of one block's bytes, never zero: zero is kept for "nothing is written here", so that a table of
/// checksums is at once the map of what is written. A block whose CRC is zero carries `!0` instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(std::num::NonZeroU32);

impl Checksum {
    /// The checksum of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let crc = crc32c::crc32c(bytes);
        Self(std::num::NonZeroU32::new(crc).unwrap_or(std::num::NonZeroU32::MAX))
    }

    /// The checksums of the whole blocks that a buffer is made of. Lent zeroes are not looked at, and a large buffer is
    /// summed once, however many layers ask: its bytes do not change.
    pub fn of_blocks(blocks: &Buf) -> impl Iterator<Item = Self> {
        thread_local!(static ZEROES: OnceCell<Checksum> = const { OnceCell::new() });
        let known =
            blocks.is_lent_zeroes().then(|| ZEROES.with(|zeroes| *zeroes.get_or_init(|| Self::of(&[0; BLOCK_BYTES]))));
        let sums = blocks.sums().filter(|_| known.is_none());
        blocks.chunks_exact(BLOCK_BYTES).enumerate().map(move |(at, block)| {
            let kept = sums.and_then(|sums| sums.get(at));
            let sum = known.or_else(|| Self::from_stored(kept?.load(Ordering::Relaxed)));
            sum.unwrap_or_else(|| {
                let sum = Self::of(block);
                if let Some(kept) = kept {
                    // Whoever else sums it now finds the same.
                    kept.store(sum.stored(), Ordering::Relaxed);
                }
                sum
            })
        })
    }

    /// The checksum as stored, or `None` where zero says that nothing is written.
    pub fn from_stored(stored: u32) -> Option<Self> {
        std::num::NonZeroU32::new(stored).map(Self)
    }

    /// The value to store; never zero.
    pub fn stored(self) -> u32 {
        self.0.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Bufs;

    #[test]
    fn lent_zeroes_have_the_checksum_of_zeroes() {
        let zeroes: Vec<_> = Bufs::zeroes(3 * BLOCK_BYTES).parts().iter().flat_map(Checksum::of_blocks).collect();
        assert_eq!(zeroes, [Checksum::of(&[0; BLOCK_BYTES]); 3]);
        let other = Buf::copy_of(&[7; 2 * BLOCK_BYTES]);
        assert_eq!(Checksum::of_blocks(&other).collect::<Vec<_>>(), [Checksum::of(&[7; BLOCK_BYTES]); 2]);
    }

    #[test]
    fn what_is_summed_once_is_right_for_every_slice() {
        let bytes: Vec<u8> = (0..20 * BLOCK_BYTES).map(|at| (at / 5 % 251) as u8).collect();
        let whole = Buf::copy_of(&bytes);
        let is_right = |from: usize, to: usize| {
            let sums: Vec<_> = Checksum::of_blocks(&whole.slice(from..to)).collect();
            let expected: Vec<_> = bytes[from..to].chunks_exact(BLOCK_BYTES).map(Checksum::of).collect();
            assert_eq!(sums, expected, "{from}..{to}");
        };
        let block = BLOCK_BYTES;
        for (from, to) in [(2, 5), (0, 20), (19, 20), (0, 20), (3, 3)] {
            is_right(from * block, to * block);
        }
        // Neither the blocks of its memory nor whole ones.
        for (from, to) in [(512, 512 + 9 * block), (block, 3 * block + 100), (100, 200)] {
            is_right(from, to);
        }
    }
}
