//! Blocks whose places are on disks that are out of service, so many of them that nothing else holds the block.
//!
//! What was written to one is lost with its disks, as all else there is. It must not wait in the buffer and the journal for a place that
//! never comes: other volumes need the room, and the rebuild, too.

use crate::destage::Flight;
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
        self.lost_extent(volume, block).is_none_or(|extent| self.column_works(volume, &extent, block))
    }

    /// Refuses a write of blocks of which one has no place.
    pub fn check_places(&self, volume: &VolumeState, blocks: Range<u64>) -> Result<()> {
        let extent_blocks = self.array.extent_blocks() as u64;
        let mut at = blocks.start;
        while at < blocks.end {
            let next = (at / extent_blocks + 1) * extent_blocks;
            if let Some(extent) = self.lost_extent(volume, at)
                && !(at..next.min(blocks.end)).all(|block| self.column_works(volume, &extent, block))
            {
                let name = volume.spec.borrow().name.clone();
                return Err(Error::device(format!(
                    "volume {name}: the disks of extent {} are out of service: trim it, and it gets a place on others",
                    extent.owner.index
                )));
            }
            at = next;
        }
        Ok(())
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

    /// True where a block of a stripe lies on a disk that works.
    fn column_works(&self, volume: &VolumeState, extent: &Extent, block: u64) -> bool {
        let piece = volume.shape.pieces(block..block + 1).next().filter(|_| volume.shape.parity);
        piece.is_some_and(|piece| {
            let at = self.stripe_of(extent, block / volume.shape.stripe_blocks());
            self.array.works(at.place(Slot::Column(piece.column)))
        })
    }

    /// The blocks of a flight that failed which have no place any more.
    pub fn without_place(&self, flight: &Flight, error: &Error) -> BTreeSet<u64> {
        if error.kind() != Kind::Device {
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
