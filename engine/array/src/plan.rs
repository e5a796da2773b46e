//! The parts of one disk.

use crate::floating::{MAP_COPIES, map_bytes};
use crate::hot::HotPage;
use crate::layout::Shelf;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Error, ExtentId, Result};

/// The parts of one disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Where the checksum pages begin.
    pub pages_at: u64,
    /// Where the extents begin.
    pub extents_at: u64,
    /// How many extents there are.
    pub extents: u32,
    /// Blocks beside those of an extent in which its rows float; 0 in a pool without such room.
    pub spare_blocks: u32,
}

/// Where the journals begin on a journal disk.
pub(crate) const JOURNALS_AT: u64 = 1 << 20;
const ALIGN_BYTES: u64 = 1 << 20;
/// No disk is larger.
const DISK_MOST_BYTES: u64 = 1 << 62;
/// Pages beside an extent: two shelves, and on each the two that are written in turn.
const PAGES: u64 = 4;

impl Plan {
    /// The smallest and the largest extent.
    pub const EXTENT_RANGE_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=64 << 20;

    /// Blocks beside an extent that are so many percent of it, one at least of any.
    pub fn spare_of(extent_bytes: u64, percent: u8) -> u32 {
        let blocks = extent_bytes / BLOCK_BYTES_U64;
        (blocks * u64::from(percent)).div_ceil(100).min(blocks) as u32
    }

    /// Cuts a disk of `size_bytes` whose journals take `journal_bytes` into extents, each with `spare_blocks` blocks beside it.
    pub fn of(size_bytes: u64, extent_bytes: u64, journal_bytes: u64, spare_blocks: u32) -> Result<Self> {
        if !extent_bytes.is_power_of_two() || !Self::EXTENT_RANGE_BYTES.contains(&extent_bytes) {
            return Err(Error::invalid(format!(
                "an extent of {extent_bytes} bytes: give a power of two from 64 KiB to 64 MiB"
            )));
        }
        let pages_at = (JOURNALS_AT + journal_bytes).next_multiple_of(ALIGN_BYTES);
        let left = size_bytes.saturating_sub(pages_at + ALIGN_BYTES);
        let none = Self { extent_bytes, pages_at, extents_at: pages_at, extents: 0, spare_blocks };
        let extents = (left / (none.room_bytes() + none.beside_bytes())).min(u64::from(u32::MAX)) as u32;
        let extents_at = (pages_at + none.beside_bytes() * u64::from(extents)).next_multiple_of(ALIGN_BYTES);
        Ok(Self { extents_at, extents, ..none })
    }

    /// True when its parts lie one behind the other, none of them beyond any disk: what follows from a plan is computed
    /// without looking again.
    pub(crate) fn is_sound(&self) -> bool {
        let Self { extent_bytes, pages_at, extents_at, extents, spare_blocks } = *self;
        if !extent_bytes.is_power_of_two() || !Self::EXTENT_RANGE_BYTES.contains(&extent_bytes) {
            return false;
        }
        if u64::from(spare_blocks) > extent_bytes / BLOCK_BYTES_U64 {
            return false;
        }
        let ends = |at: u64, each: u64| at.checked_add(each * u64::from(extents)).filter(|end| *end <= DISK_MOST_BYTES);
        let aligned = [pages_at, extents_at].iter().all(|at| at.is_multiple_of(BLOCK_BYTES_U64));
        aligned
            && pages_at >= JOURNALS_AT
            && ends(pages_at, self.beside_bytes()).is_some_and(|end| end <= extents_at)
            && ends(extents_at, self.room_bytes()).is_some()
    }

    /// Blocks in an extent.
    pub fn extent_blocks(&self) -> usize {
        self.extent_bytes as usize / BLOCK_BYTES
    }

    /// Positions of an extent at which its rows may lie.
    pub fn positions(&self) -> usize {
        self.extent_blocks() + self.spare_blocks as usize
    }

    /// Bytes of an extent and of the room in which it floats.
    pub(crate) fn room_bytes(&self) -> u64 {
        self.extent_bytes + u64::from(self.spare_blocks) * BLOCK_BYTES_U64
    }

    /// Bytes of what is kept of an extent: its pages, and the copies of the two turns of its map.
    fn beside_bytes(&self) -> u64 {
        let maps = if self.spare_blocks > 0 { MAP_COPIES * 2 * map_bytes(self.extent_blocks()) } else { 0 };
        PAGES * self.page_bytes() + maps
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        page_bytes(self.extent_bytes)
    }

    /// Where an extent begins on the disk.
    pub fn extent_at(&self, extent: ExtentId) -> u64 {
        self.extents_at + u64::from(extent.0) * self.room_bytes()
    }

    /// Where a copy of the map with this sequence number of an extent's rows lies: behind all pages, next to those of its
    /// neighbours, which are written with it.
    pub fn map_at(&self, extent: ExtentId, sequence: u64, copy: u64) -> u64 {
        let (extents, extent) = (u64::from(self.extents), u64::from(extent.0));
        let maps_at = self.pages_at + PAGES * self.page_bytes() * extents;
        maps_at + (2 * (copy * extents + extent) + sequence % 2) * map_bytes(self.extent_blocks())
    }

    /// Where the page with this sequence number on a shelf of an extent lies: the two places are used in turn.
    pub fn page_at(&self, extent: ExtentId, shelf: Shelf, sequence: u64) -> u64 {
        let shelf = match shelf {
            Shelf::Own => 0,
            Shelf::Neighbour => 2,
        };
        self.pages_at + (PAGES * u64::from(extent.0) + shelf + sequence % 2) * self.page_bytes()
    }
}

impl Plan {
    /// Where the page with this sequence number of a hot extent or of a fast copy lies: it has all the room beside the
    /// extent.
    pub fn side_page_at(&self, extent: ExtentId, sequence: u64) -> u64 {
        self.pages_at + (PAGES * u64::from(extent.0) + PAGES / 2 * (sequence % 2)) * self.page_bytes()
    }
}

/// Bytes of the page of an extent of this size: two of them have room for the page of a hot extent.
fn page_bytes(extent_bytes: u64) -> u64 {
    let blocks = extent_bytes as usize / BLOCK_BYTES;
    let bytes = crate::page::encoded_bytes(blocks).max(HotPage::bytes(blocks) / 2);
    bytes.next_multiple_of(BLOCK_BYTES) as u64
}
