//! The checksum of a block.

use crate::{BLOCK_BYTES, Buf};
use std::cell::OnceCell;

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

    /// The checksums of the whole blocks that a buffer is made of. Lent zeroes are not looked at.
    pub fn of_blocks(blocks: &Buf) -> impl Iterator<Item = Self> {
        thread_local!(static ZEROES: OnceCell<Checksum> = const { OnceCell::new() });
        let known =
            blocks.is_lent_zeroes().then(|| ZEROES.with(|zeroes| *zeroes.get_or_init(|| Self::of(&[0; BLOCK_BYTES]))));
        blocks.chunks_exact(BLOCK_BYTES).map(move |block| known.unwrap_or_else(|| Self::of(block)))
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
}
