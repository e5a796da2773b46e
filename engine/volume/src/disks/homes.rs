//! Blocks whose places are on disks that are out of service, so many of them that nothing else holds the block.
//!
//! What was written to one is lost with its disks, as is all else there. It must not wait in the buffer and the journal for a place that
//! never comes: other volumes need the room, and the rebuild, too.

use crate::destage::{Destination, Flight};
use crate::extent::Extent;
use crate::store::Inner;
use crate::stripe::Slot;
use crate::tables::VolumeState;
use kura_block::{Amount, Error, Kind, Result};
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
                && let Some(block) =
                    (at..next.min(blocks.end)).find(|block| !self.stripe_takes(volume, &extent, *block))
            {
                return Err(self.no_place(volume, block));
            }
            at = next;
        }
        Ok(())
    }

    /// What a client is told whose write would have no place.
    pub fn no_place(&self, volume: &VolumeState, block: u64) -> Error {
        let (spec, group) = (volume.spec.borrow(), Self::bytes_of(self.group_blocks(volume)));
        let (byte, first) = (Self::bytes_of(block), Self::bytes_of(block) / group * group);
        let advice = if spec.thick {
            "copy what is left of it to another volume".to_owned()
        } else {
            format!("trim all of the {} from byte {first} on, and they get a place on others", Amount(group))
        };
        Error::device(format!(
            "volume {}: the disks of what lies at byte {byte} are out of service: {advice}",
            spec.name
        ))
    }

    /// The extent of a block, where so many of its disks are out of service that not all of it is held.
    fn lost_extent(&self, volume: &VolumeState, block: u64) -> Option<Rc<Extent>> {
        if self.tables.borrow().failed.is_empty() {
            return None;
        }
        let extent = volume.extent(self.index_of(block))?;
        let has_copy = || self.keeps_page(&extent) && self.takes_writes(&extent).is_some();
        let is_held = self.array.holds(&extent.group.site()) || has_copy();
        (!is_held).then_some(extent)
    }

    /// True where a disk works that keeps the page of an extent, without which nobody knows what its blocks were.
    pub fn keeps_page(&self, extent: &Extent) -> bool {
        let site = extent.group.site();
        site.shape.page_places(extent.member()).iter().any(|(keeper, _)| self.array.works(site.places[*keeper]))
    }

    /// True where a block of a stripe lies on a disk that works, and so do the pages that all of its stripe need.
    fn stripe_takes(&self, volume: &VolumeState, extent: &Extent, block: u64) -> bool {
        let shape = volume.shape;
        let Some(piece) = shape.pieces(block..block + 1).next().filter(|_| shape.parity) else { return false };
        let stripe = block / shape.stripe_blocks();
        let at = self.stripe_of(extent, stripe);
        let first = self.index_of(stripe * shape.stripe_blocks());
        let last = self.index_of((stripe + 1) * shape.stripe_blocks() - 1);
        let has_page = |index: u32| volume.extent(index).is_some_and(|extent| self.keeps_page(&extent));
        self.array.works(at.place(Slot::Column(piece.column))) && (first..=last).all(has_page)
    }

    /// The blocks of a flight that failed which have no place any more.
    pub fn without_place(&self, flight: &Flight, error: &Error) -> BTreeSet<u64> {
        if error.kind() != Kind::Device || matches!(flight.to, Destination::Hot(_)) {
            // The next try takes other slots, or goes to the blocks' stripes: then it turns out whether they have places.
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
