//! The parts of one disk.

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

    /// Cuts a disk of `size_bytes` whose journals take `journal_bytes` into extents.
    pub fn of(size_bytes: u64, extent_bytes: u64, journal_bytes: u64) -> Result<Self> {
        if !extent_bytes.is_power_of_two() || !Self::EXTENT_RANGE_BYTES.contains(&extent_bytes) {
            return Err(Error::invalid(format!(
                "an extent of {extent_bytes} bytes: give a power of two from 64 KiB to 64 MiB"
            )));
        }
        let pages_at = (JOURNALS_AT + journal_bytes).next_multiple_of(ALIGN_BYTES);
        let page_bytes = page_bytes(extent_bytes);
        let left = size_bytes.saturating_sub(pages_at + ALIGN_BYTES);
        let extents = (left / (extent_bytes + PAGES * page_bytes)).min(u64::from(u32::MAX)) as u32;
        let extents_at = (pages_at + PAGES * page_bytes * u64::from(extents)).next_multiple_of(ALIGN_BYTES);
        Ok(Self { extent_bytes, pages_at, extents_at, extents })
    }

    /// True when its parts lie one behind the other, none of them beyond any disk: what follows from a plan is computed
    /// without looking again.
    pub(crate) fn is_sound(&self) -> bool {
        let Self { extent_bytes, pages_at, extents_at, extents } = *self;
        if !extent_bytes.is_power_of_two() || !Self::EXTENT_RANGE_BYTES.contains(&extent_bytes) {
            return false;
        }
        let ends = |at: u64, each: u64| at.checked_add(each * u64::from(extents)).filter(|end| *end <= DISK_MOST_BYTES);
        let aligned = [pages_at, extents_at].iter().all(|at| at.is_multiple_of(BLOCK_BYTES_U64));
        aligned
            && pages_at >= JOURNALS_AT
            && ends(pages_at, PAGES * self.page_bytes()).is_some_and(|end| end <= extents_at)
            && ends(extents_at, extent_bytes).is_some()
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        page_bytes(self.extent_bytes)
    }

    /// Where an extent begins on the disk.
    pub fn extent_at(&self, extent: ExtentId) -> u64 {
        self.extents_at + u64::from(extent.0) * self.extent_bytes
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
