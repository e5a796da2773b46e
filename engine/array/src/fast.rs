//! Fast copies of extents: their pages, which say which blocks lie there. Written here, read here.
//!
//! ```text
//!  0  magic u32   4  CRC u32 (over the page, itself as zero)   8  volume u64   16  born u64
//! 24  index u32  28  blocks u32  32  sequence u64
//! 40  a bit for each block: it lies here; then a bit for each: the copy at home is older; zeroes to the end
//! ```

use crate::array::{Array, Failure};
use crate::blocks::Blocks;
use crate::layout::Place;
use crate::page::{Head, PageOwner};
use crate::queue::Urgency;
use kura_block::{BLOCK_BYTES, Buf, Writer};

const MAGIC: u32 = 0x5046_754b; // "KuFP"

/// Which blocks of an extent its fast copy has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastPage {
    /// The extent of the volume, and the LSN of the record that made the copy.
    pub owner: PageOwner,
    /// Counts up with each time it is written.
    pub sequence: u64,
    /// Blocks that lie here.
    pub valid: Blocks,
    /// Of these, blocks of which the copy at home is older.
    pub stale: Blocks,
}

impl FastPage {
    /// Bytes of the page of an extent of so many blocks, in whole blocks.
    pub fn bytes(blocks: usize) -> usize {
        (Head::BYTES + 2 * blocks.div_ceil(8)).next_multiple_of(BLOCK_BYTES)
    }

    pub(crate) fn encode(&self, blocks: usize) -> Buf {
        let mut out = Writer::with_room(Self::bytes(blocks));
        Head { magic: MAGIC, owner: self.owner, blocks }.write(self.sequence, &mut out);
        out.bytes(self.valid.as_bytes()).bytes(self.stale.as_bytes()).pad_to(BLOCK_BYTES);
        out.seal(Head::CRC_AT);
        Buf::copy_of(out.as_slice())
    }

    pub(crate) fn decode(bytes: &[u8], owner: PageOwner, blocks: usize) -> Option<Self> {
        let (sequence, mut reader) = Head { magic: MAGIC, owner, blocks }.read(bytes)?;
        let mut bits = || Blocks::read(&mut reader, blocks);
        Some(Self { owner, sequence, valid: bits()?, stale: bits()? })
    }
}

impl Array {
    /// Writes a fast copy's page beside each of its places; returns the disks that refused.
    pub async fn write_fast_page(&self, places: &[Place], page: &FastPage) -> Vec<Failure> {
        let at = |plan: &crate::Plan, place: Place| plan.side_page_at(place.extent, page.sequence);
        self.write_copies(places, page.encode(self.extent_blocks()).into(), Urgency::Buffer, at).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_comes_back_and_not_for_another_owner() {
        let owner = PageOwner { volume: 1 << 16, index: 3, born: 77 };
        let (mut valid, mut stale) = (Blocks::none(16), Blocks::none(16));
        assert!(valid.add(3) && valid.add(15) && stale.add(15) && !stale.add(15));
        assert!(stale.are_among(&valid) && !valid.are_among(&stale));
        let page = FastPage { owner, sequence: 5, valid, stale };
        let bytes = page.encode(16);
        assert_eq!(FastPage::decode(&bytes, owner, 16), Some(page.clone()));
        assert_eq!(FastPage::decode(&bytes, PageOwner { born: 78, ..owner }, 16), None);
        assert_eq!(FastPage::decode(&bytes, PageOwner { volume: 2 << 16, ..owner }, 16), None);
        let mut torn = bytes.to_vec();
        torn[50] ^= 1;
        assert_eq!(FastPage::decode(&torn, owner, 16), None);
    }
}
