//! Moves between the tiers: blocks copied up, stale ones written home.
//!
//! ```text
//!   up     record ─> what leaves the buffer goes up ─> blocks copied ─> flush ─> they are valid
//!   down   what leaves the buffer goes home ─> stale blocks written home ─> (checkpoint: flush) ─> record
//! ```
//!
//! Both go in pieces; while one is under way, nothing of its group leaves the write buffer.

use super::{Bits, FastCopy, Returned};
use crate::checkpoint::TABLES_FOR_GROUPS;
use crate::destage::{Destination, Flight};
use crate::extent::{Extent, Pins};
use crate::record::Record;
use crate::store::Inner;
use crate::stripe::stripe_id;
use crate::tables::VolumeState;
use crate::write::PIECE_BLOCKS;
use kura_array::{PageOwner, Urgency};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, Error, Kind, Result};
use kura_journal::Lsn;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

/// A block on its way, and what it must be.
type Expected = (usize, Checksum);

impl Inner {
    /// The fast copy of an extent, if it is one to go on with; else a new one on so many disks, which has no block yet. `None`
    /// when it is complete, leaves or is gone.
    pub async fn promote(&self, volume: &Rc<VolumeState>, index: u32, disks: usize) -> Result<Option<Rc<FastCopy>>> {
        if let Some(copy) = volume.extent(index).and_then(|extent| extent.fast()) {
            return Ok(Some(copy).filter(|copy| !copy.is_filled() && !copy.is_leaving()));
        }
        // Records without data count too: nothing else would make the journal shorter while nobody writes.
        self.make_room(0).await?;
        self.room_in_tables(0, TABLES_FOR_GROUPS)?;
        let places = self.allocate_fast(disks).await?;
        // Meanwhile it may have been deleted, or have to leave.
        let stays = !volume.deleted.get() && volume.kept_cold.get() == 0 && !self.is_stopping();
        let lacks = |extent: &Rc<Extent>| extent.fast().is_none() && stays;
        let Some(extent) = volume.extent(index).filter(lacks) else {
            self.put_back(&places).await?;
            return Ok(None);
        };
        let born = self.append(&Record::Promote { volume: volume.id, index, places: places.clone() });
        let owner = PageOwner { volume: volume.id, index, born: born.0 };
        let copy = Rc::new(FastCopy::empty(owner, places, self.array.extent_blocks()));
        self.put_copy(&extent, Rc::clone(&copy));
        Ok(Some(copy))
    }

    /// Copies those blocks of an extent up that are not there; bytes copied. `Retry` when the group is being moved
    /// otherwise.
    pub async fn copy_up(&self, copy: &Rc<FastCopy>) -> Result<u64> {
        let Some((volume, extent)) = self.extent_of(copy) else { return Ok(0) };
        let _pins = Pins::of([&extent]);
        let blocks = self.array.extent_blocks();
        let mut copied = Vec::new();
        for from in (0..blocks).step_by(PIECE_BLOCKS) {
            copied.extend(self.copy_piece(&volume, &extent, copy, from..blocks.min(from + PIECE_BLOCKS)).await?);
        }
        if copied.is_empty() {
            copy.set_filled();
            return Ok(0);
        }
        let disks: Vec<_> = copy.places.iter().map(|place| place.device).collect();
        self.heed(self.array.flush_disks(&disks).await).await?;
        let first = u64::from(extent.owner.index) * blocks as u64;
        let dirty = volume.dirty.borrow();
        let unchanged = |(inside, checksum): &&Expected| {
            !dirty.contains_key(&(first + *inside as u64))
                && extent.is_loaded()
                && extent.with_page(|page| page.get(*inside) == Some(*checksum))
        };
        let there: Vec<_> = copied.iter().filter(unchanged).collect();
        self.change_copy(copy, |bits| there.iter().for_each(|(inside, _)| bits.copied(*inside)));
        copy.set_filled();
        Ok((copied.len() * BLOCK_BYTES) as u64)
    }

    async fn copy_piece(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        copy: &FastCopy,
        piece: Range<usize>,
    ) -> Result<Vec<Expected>> {
        let _moving = self.begin_move(&extent.group).ok_or_else(busy)?;
        self.landed(volume, extent.owner.index).await?;
        while !extent.is_loaded() {
            self.load(extent).await?;
        }
        let first = u64::from(extent.owner.index) * self.array.extent_blocks() as u64;
        let wanted: Vec<Expected> = {
            let (dirty, bits) = (volume.dirty.borrow(), copy.bits());
            let rests = |inside: &usize| !bits.valid.has(*inside) && !dirty.contains_key(&(first + *inside as u64));
            let expected = |inside: usize| Some((inside, extent.with_page(|page| page.get(inside))?));
            piece.filter(rests).filter_map(expected).collect()
        };
        let mut copied = Vec::new();
        for run in wanted.chunk_by(|one, next| one.0 + 1 == next.0) {
            let mut run = run;
            while let Some((inside, _)) = run.first() {
                let at = first + *inside as u64;
                let (source, count) = self.source_run(volume, extent, at, at + run.len() as u64);
                let (part, rest) = run.split_at(count as usize);
                let checksums: Vec<_> = part.iter().map(|(_, checksum)| *checksum).collect();
                run = rest;
                match self.read_source(volume, extent, at, &checksums, (&source, Urgency::Idle)).await {
                    Ok(read) => {
                        self.heed(self.array.write(&copy.places, *inside, &read.data, Urgency::Idle).await).await?;
                        copied.extend_from_slice(part);
                    }
                    // What is lost stays where it is, and a read of it says so.
                    Err(error) if error.kind() == Kind::Corrupt => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(copied)
    }

    /// Sends a copy down: what leaves the buffer goes home, and stale blocks are written there; bytes written. When none
    /// is stale any more, which takes a checkpoint where some were written, it is dropped; the result's flag says so.
    pub async fn demote(&self, copy: &Rc<FastCopy>) -> Result<(u64, bool)> {
        let mut bytes = 0;
        match self.send_home(copy, &mut bytes).await {
            // What was written counts, and the rest follows.
            Err(_) if bytes > 0 => {
                self.checkpointer.notify_one();
                Ok((bytes, false))
            }
            done => Ok((bytes, done?)),
        }
    }

    async fn send_home(&self, copy: &Rc<FastCopy>, bytes: &mut u64) -> Result<bool> {
        let Some((volume, extent)) = self.extent_of(copy) else { return Ok(true) };
        if !self.array.holds(&extent.group.site()) {
            return Err(Error::device("the disks of an extent are out of service: its fast copy stays"));
        }
        let _pins = Pins::of([&extent]);
        self.make_room(0).await?;
        let first = u64::from(extent.owner.index) * self.array.extent_blocks() as u64;
        let unit = if volume.shape.parity { volume.shape.stripe_blocks() } else { PIECE_BLOCKS as u64 };
        let stale: Vec<usize> = {
            let bits = copy.bits();
            (0..self.array.extent_blocks()).filter(|inside| bits.is_older(*inside)).collect()
        };
        let mut refused = Ok(());
        for piece in stale.chunk_by(|one, next| (first + *one as u64) / unit == (first + *next as u64) / unit) {
            match self.bring_home(&volume, &extent, copy, piece).await {
                Ok(more) => *bytes += more,
                // What else there is comes home all the same.
                Err(error) if error.kind() == Kind::Device => refused = refused.and(Err(error)),
                Err(error) => return Err(error),
            }
        }
        if *bytes > 0 {
            self.checkpointer.notify_one();
        }
        refused?;
        let _moving = self.begin_move(&extent.group).ok_or_else(busy)?;
        self.landed(&volume, extent.owner.index).await?;
        // One that was wanted again meanwhile stays.
        let drops = copy.is_leaving() && copy.is_clean() && self.extent_of(copy).is_some();
        if drops {
            let lsn = self.append(&Record::Demote { volume: volume.id, index: extent.owner.index });
            self.take_copy(&extent, Lsn(lsn.0 + 1));
            self.checkpointer.notify_one();
        }
        Ok(drops)
    }

    /// Writes stale blocks of an extent home, all of one stripe; bytes written.
    async fn bring_home(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        copy: &Rc<FastCopy>,
        piece: &[usize],
    ) -> Result<u64> {
        let _moving = self.begin_move(&extent.group).ok_or_else(busy)?;
        self.landed(volume, extent.owner.index).await?;
        while !extent.is_loaded() {
            self.load(extent).await?;
        }
        let first = u64::from(extent.owner.index) * self.array.extent_blocks() as u64;
        let wanted = self.to_bring_home(volume, extent, copy, piece);
        let mut found: Vec<(u64, Lsn, Checksum)> = Vec::new();
        let (mut data, mut lost, mut waits) = (Bufs::new(), Vec::new(), None);
        for run in wanted.chunk_by(|one, next| one.0 + 1 == next.0) {
            let checksums: Vec<_> = run.iter().map(|(_, checksum)| *checksum).collect();
            if let Ok(read) = self.array.read(&copy.places, run[0].0, &checksums, Urgency::Idle).await {
                found.extend(run.iter().map(|(inside, checksum)| (first + *inside as u64, Lsn(0), *checksum)));
                data.append(read.data);
                continue;
            }
            for (inside, checksum) in run {
                let block = first + *inside as u64;
                match self.last_copy(&copy.places, *inside, *checksum).await {
                    Ok(Some(read)) => {
                        found.push((block, Lsn(0), *checksum));
                        data.push(read);
                    }
                    // Home has the checksum of this, and an older one, mostly: a read of that says that it is lost. What memory has of
                    // a table is written again.
                    Ok(None) => {
                        tracing::error!(volume = volume.id, block, "a block of the fast tier is lost");
                        self.write_table_again(volume.id, block..block + 1);
                        lost.push(*inside);
                    }
                    Err(error) => waits = Some(error),
                }
            }
        }
        let bytes = data.len() as u64;
        // Given up meanwhile, it is nobody's; and what is written there since lies in another group.
        let is_there = volume.extent(extent.owner.index).is_some_and(|now| Rc::ptr_eq(&now, extent));
        if is_there && !lost.is_empty() {
            self.change_copy(copy, |bits| lost.iter().for_each(|inside| bits.left(*inside)));
        }
        if bytes == 0 || !is_there {
            return waits.filter(|_| is_there && lost.is_empty()).map_or(Ok(0), Err);
        }
        let insides: Vec<_> = found.iter().map(|(block, ..)| (block - first) as usize).collect();
        if volume.shape.parity {
            self.stripe_home(volume, extent, found, data).await?;
        } else {
            self.copies_home(extent, &insides, &data).await?;
        }
        self.change_copy(copy, |bits| {
            for inside in &insides {
                bits.returned.add(*inside);
            }
        });
        self.tier.returned.borrow_mut().extend(insides.into_iter().map(|inside| (Rc::clone(copy), inside)));
        Ok(bytes)
    }

    /// Those of some stale blocks that can be read now, and what they must be. One that is cleared since is no longer
    /// anywhere.
    fn to_bring_home(&self, volume: &VolumeState, extent: &Extent, copy: &FastCopy, piece: &[usize]) -> Vec<Expected> {
        let first = u64::from(extent.owner.index) * self.array.extent_blocks() as u64;
        let dirty = volume.dirty.borrow();
        let mut wanted = Vec::new();
        for inside in piece {
            if !copy.bits().stale.has(*inside) {
                continue;
            }
            match dirty.get(&(first + *inside as u64)) {
                // Where nobody knows what lies here, the version in the buffer goes home first.
                Some(entry) => wanted.extend(entry.at_rest.map(|checksum| (*inside, checksum))),
                None => match extent.with_page(|page| page.get(*inside)) {
                    Some(checksum) => wanted.push((*inside, checksum)),
                    None => self.change_copy(copy, |bits| bits.left(*inside)),
                },
            }
        }
        wanted
    }

    /// Writes blocks of an extent, which is the volume's now, to their places in a stripe. `Retry` while a checkpoint is made, or
    /// something happens to the stripe.
    async fn stripe_home(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Extent,
        blocks: Vec<(u64, Lsn, Checksum)>,
        data: Bufs,
    ) -> Result<()> {
        let Some(stripe) = blocks.first().map(|(block, ..)| block / volume.shape.stripe_blocks()) else {
            return Ok(());
        };
        let extents = volume.group_of(extent.owner.index);
        let refused = self.stripes.parity_below.get().is_some() || !self.may_fly();
        if refused || !self.stripes.take(stripe_id(volume, &extents, stripe)) {
            self.checkpointer.notify_one();
            return Err(busy());
        }
        let flight = Flight { volume: Rc::clone(volume), extents, blocks, data, to: Destination::Stripe(stripe) };
        self.write_stripe(&flight, stripe, Urgency::Idle).await
    }

    /// Writes blocks of an extent that lies in copies to all of them.
    async fn copies_home(&self, extent: &Extent, insides: &[usize], data: &Bufs) -> Result<()> {
        let places = extent.group.places();
        let mut at = 0;
        for run in insides.chunk_by(|one, next| one + 1 == *next) {
            let part = data.slice(at * BLOCK_BYTES..(at + run.len()) * BLOCK_BYTES);
            at += run.len();
            let failures = self.array.write(&places, run[0], &part, Urgency::Idle).await;
            self.landed_on(&places, failures).await?;
        }
        Ok(())
    }

    /// How many blocks have been written home that will be durable there with the next flush.
    pub fn returned_so_far(&self) -> usize {
        self.tier.returned.borrow().len()
    }

    /// The first so many of them, which are durable there.
    pub fn take_returned(&self, count: usize) -> Returned {
        take_durable(&mut self.tier.returned.borrow_mut(), count)
    }

    /// What was written home of a copy does not count, as long as no checkpoint is made: a place of it moved meanwhile. Nothing
    /// of it may be settled later, when the block may have been written home again, and not durably yet.
    pub fn forget_returned(&self, copy: &Rc<FastCopy>) {
        copy.change(Bits::forget_returned);
        self.tier.returned.borrow_mut().retain(|(of, _)| !Rc::ptr_eq(of, copy));
    }

    /// They are durable there: those that were not written again since are stale no more.
    pub fn settle_returned(&self, returned: Returned) {
        for (copy, inside) in returned {
            self.change_copy(&copy, |bits| bits.settle(inside));
        }
        self.tier.wake.notify_one();
    }
}

/// Takes the first `count` blocks, but for those that were written home again since: that is not durable yet.
fn take_durable(returned: &mut Returned, count: usize) -> Returned {
    let mut durable: Returned = returned.drain(..count).collect();
    // By the copy, and not by its extent: one that was given up has nothing to do with the next one there.
    let again: BTreeSet<_> = returned.iter().map(|(copy, inside)| (Rc::as_ptr(copy), *inside)).collect();
    durable.retain(|(copy, inside)| !again.contains(&(Rc::as_ptr(copy), *inside)));
    durable
}

fn busy() -> Error {
    Error::retry("something else happens to a group just now")
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_array::Places;

    /// What is written home a second time while a flush is under way was not flushed by that.
    #[test]
    fn what_was_written_home_again_is_not_durable_yet() {
        let owner = PageOwner { volume: 7, index: 0, born: 1 };
        let copy = Rc::new(FastCopy::empty(owner, Places::new(), 16));
        let home = |returned: &mut Returned, inside| {
            copy.change(|bits| {
                bits.landed(inside);
                bits.returned.add(inside);
            });
            returned.push((Rc::clone(&copy), inside));
        };
        let mut returned = Returned::new();
        home(&mut returned, 3);
        home(&mut returned, 4);
        let count = returned.len();
        home(&mut returned, 3);
        for (copy, inside) in take_durable(&mut returned, count) {
            copy.change(|bits| bits.settle(inside));
        }
        assert!(copy.bits().stale.has(3) && !copy.bits().stale.has(4));
        for (copy, inside) in take_durable(&mut returned, 1) {
            copy.change(|bits| bits.settle(inside));
        }
        assert!(copy.is_clean());
    }
}
