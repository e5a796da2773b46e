//! Blocks whose places are on disks that are out of service, so many of them that nothing else holds the block.
//!
//! What was written to one is lost with its disks, as all else there is. It must not wait in the buffer and the journal for a place that
//! never comes: other volumes need the room, and the rebuild, too.

use crate::destage::Flight;
use crate::store::Inner;
use crate::stripe::Slot;
use crate::tables::VolumeState;
use kura_block::{Error, Kind, Result};
use std::collections::BTreeSet;
use std::ops::Range;

impl Inner {
    /// True unless what is written to a block has no place: not one of its own that works, nor parity, nor a fast copy. The extent
    /// may be missing: it gets good places.
    pub fn has_place(&self, volume: &VolumeState, block: u64) -> bool {
        if self.tables.borrow().failed.is_empty() {
            return true;
        }
        let Some(extent) = volume.extent(self.index_of(block)) else { return true };
        let site = extent.group.site();
        if self.array.holds(&site) || self.takes_writes(&extent).is_some() {
            return true;
        }
        let Some(piece) = volume.shape.pieces(block..block + 1).next().filter(|_| volume.shape.parity) else { return false };
        let at = self.stripe_of(&extent, block / volume.shape.stripe_blocks());
        self.array.works(at.place(Slot::Column(piece.column)))
    }

    /// Refuses a write of blocks of which one has no place.
    pub fn check_places(&self, volume: &VolumeState, blocks: Range<u64>) -> Result<()> {
        let extent_blocks = self.array.extent_blocks() as u64;
        // Neighbours in an extent that lies in copies share their places.
        let step = if volume.shape.parity { 1 } else { extent_blocks };
        let mut at = blocks.start;
        while at < blocks.end {
            if !self.has_place(volume, at) {
                let name = volume.spec.borrow().name.clone();
                return Err(Error::device(format!(
                    "volume {name}: the disks of extent {} are out of service: trim it, and it gets a place on others",
                    self.index_of(at)
                )));
            }
            at = (at / step + 1) * step;
        }
        Ok(())
    }

    /// The blocks of a flight that failed which have no place any more.
    pub fn without_place(&self, flight: &Flight, error: &Error) -> BTreeSet<u64> {
        if error.kind() != Kind::Device {
            return BTreeSet::new();
        }
        let blocks = flight.blocks.iter().map(|(block, ..)| *block);
        let lost: BTreeSet<_> = blocks.filter(|block| !self.has_place(&flight.volume, *block)).collect();
        if !lost.is_empty() {
            tracing::error!(volume = flight.volume.id, blocks = lost.len(), "what was written lately is lost with its disks");
        }
        lost
    }
}
