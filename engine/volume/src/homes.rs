//! Blocks whose places are on disks that are out of service, so many of them that nothing else holds the block.
//!
//! What was written to one is lost with its disks, as all else there is. It must not wait in the buffer and the journal for a place that
//! never comes: other volumes need the room, and the rebuild, too.

use crate::destage::{Destination, Flight};
use crate::extent::Extent;
use crate::store::Inner;
use crate::stripe::Slot;
use crate::tables::VolumeState;
use kura_block::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

impl Inner {
    /// True unless what is written to a block has no place: not one of its own that works, nor parity, nor a fast copy. The extent
    /// may be missing: it gets good places.
    pub fn has_place(&self, volume: &VolumeState, block: u64) -> bool {
        self.lost_extent(volume, block).is_none_or(|extent| self.stripe_takes(volume, &extent, block))
    }

    /// Refuses a write of blocks of which one has no place.
    pub fn check_places(&self, volume: &VolumeState, blocks: Range<u64>) -> Result<()> {
        let extent_blocks = self.array.extent_blocks() as u64;
        let mut at = blocks.start;
        while at < blocks.end {
            let next = (at / extent_blocks + 1) * extent_blocks;
            if let Some(extent) = self.lost_extent(volume, at)
                && !(at..next.min(blocks.end)).all(|block| self.stripe_takes(volume, &extent, block))
            {
                return Err(Self::no_place(volume, extent.owner.index));
            }
            at = next;
        }
        Ok(())
    }

    /// What a client is told whose write would have no place.
    pub fn no_place(volume: &VolumeState, index: u32) -> Error {
        let name = volume.spec.borrow().name.clone();
        Error::device(format!(
            "volume {name}: the disks of extent {index} are out of service: trim it, and it gets a place on others"
        ))
    }

    /// The extent of a block, where so many of its disks are out of service that not all of it is held.
    fn lost_extent(&self, volume: &VolumeState, block: u64) -> Option<Rc<Extent>> {
        if self.tables.borrow().failed.is_empty() {
            return None;
        }
        let extent = volume.extent(self.index_of(block))?;
        let is_held = self.array.holds(&extent.group.site()) || self.takes_writes(&extent).is_some();
        (!is_held).then_some(extent)
    }

    /// True where a block of a stripe lies on a disk that works, and so do the pages that all of its stripe need.
    fn stripe_takes(&self, volume: &VolumeState, extent: &Extent, block: u64) -> bool {
        let shape = volume.shape;
        let Some(piece) = shape.pieces(block..block + 1).next().filter(|_| shape.parity) else { return false };
        let stripe = block / shape.stripe_blocks();
        let at = self.stripe_of(extent, stripe);
        let first = self.index_of(stripe * shape.stripe_blocks());
        let last = self.index_of((stripe + 1) * shape.stripe_blocks() - 1);
        let has_page = |index: u32| {
            let keepers = shape.page_places((index % shape.extents()) as usize);
            keepers.iter().any(|(keeper, _)| self.array.works(at.site.places[*keeper]))
        };
        self.array.works(at.place(Slot::Column(piece.column))) && (first..=last).all(has_page)
    }

    /// The blocks of a flight that failed which have no place any more.
    pub fn without_place(&self, flight: &Flight, error: &Error) -> BTreeSet<u64> {
        if error.kind() != Kind::Device || matches!(flight.to, Destination::Hot(_)) {
            // Slots of the hot area that are gone are others the next time, or their stripes tell.
            return BTreeSet::new();
        }
        let blocks = flight.blocks.iter().map(|(block, ..)| *block);
        let lost: BTreeSet<_> = blocks.filter(|block| !self.has_place(&flight.volume, *block)).collect();
        if !lost.is_empty() {
            tracing::error!(
                volume = flight.volume.id,
                blocks = lost.len(),
                "what was written lately is lost with its disks"
            );
        }
        lost
    }
}
