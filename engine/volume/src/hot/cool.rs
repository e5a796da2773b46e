//! Cold blocks of the hot area go to their places in stripes.
//!
//! ```text
//!   cold blocks, by stripe ─> read, a track at once ─> their stripes, with parity ─> (checkpoint) ─> slots given up
//! ```
//!
//! Which ones: the oldest of a track of the pair that has least room, as the paper has it; or, by stripe, all cold ones of
//! the stripes that have most of them, since a stripe that is written costs nearly the same for one block or for many.

use crate::destage::{Destination, Flight};
use crate::store::Inner;
use crate::stripe::stripe_id;
use crate::tables::VolumeState;
use futures::future::join_all;
use kura_array::Urgency;
use kura_array::hot::{MirrorId, Owner, Pair};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, Result};
use kura_journal::Lsn;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// Blocks of a stripe that go to their places: volume, stripe, blocks.
pub(crate) type ColdStripe = (u64, u64, BTreeSet<u64>);

/// A block that is read from a slot, and what it must agree with.
type Wanted = (u64, MirrorId, Checksum);

/// Stripes that are written at once.
const WIDTH: usize = 4;
/// One search looks for one in so many of the blocks in the hot area, at least.
const SEARCH: usize = 64;
/// How long to wait before looking again where nothing was cold.
const SEARCH_AGAIN: Duration = Duration::from_millis(100);

impl Inner {
    /// Cold blocks to migrate, so that a pair gets room; with `any`, whatever their Age.
    pub fn cold_blocks(&self, pair: Pair, any: bool) -> Vec<ColdStripe> {
        if !self.settings.hot.by_stripe {
            let mut hot = self.hot.table.borrow_mut();
            let most = hot.tracks_of(pair);
            let slots = hot.cold(pair, most, any);
            drop(hot);
            return self.stripes_of_slots(slots);
        }
        let now = self.runtime.now();
        if self.hot.cold_stripes.borrow().is_empty() && now >= self.hot.no_cold_until.get() {
            self.find_cold_stripes(any);
            if self.hot.cold_stripes.borrow().is_empty() {
                self.hot.no_cold_until.set(now + SEARCH_AGAIN);
            }
        }
        let age = if any { 0 } else { self.settings.hot.cold_age };
        let mut chosen = Vec::new();
        while chosen.len() < WIDTH {
            let Some((id, stripe)) = self.hot.cold_stripes.borrow_mut().pop() else { break };
            let Some(volume) = self.tables.borrow().volumes.get(&id).cloned() else { continue };
            let blocks = self.cold_in_stripe(&volume, stripe, age);
            if !blocks.is_empty() {
                chosen.push((id, stripe, blocks));
            }
        }
        chosen
    }

    fn stripes_of_slots(&self, slots: Vec<MirrorId>) -> Vec<ColdStripe> {
        let mut stripes: BTreeMap<(u64, u64), BTreeSet<u64>> = BTreeMap::new();
        for id in slots {
            let Some(Owner { volume, block }) = self.hot.table.borrow().owner(id) else { continue };
            let Some(state) = self.tables.borrow().volumes.get(&volume).cloned() else { continue };
            stripes.entry((volume, block / state.shape.stripe_blocks())).or_default().insert(block);
        }
        stripes.into_iter().map(|((volume, stripe), blocks)| (volume, stripe, blocks)).collect()
    }

    /// Blocks of a stripe that lie in the hot area only and have at least this Age.
    pub fn cold_in_stripe(&self, volume: &VolumeState, stripe: u64, age: u8) -> BTreeSet<u64> {
        let stripe_blocks = volume.shape.stripe_blocks();
        let (hot, table) = (volume.hot.borrow(), self.hot.table.borrow());
        let alike = hot.range(stripe * stripe_blocks..(stripe + 1) * stripe_blocks);
        alike.filter(|(_, place)| table.is_cold(place.id, age)).map(|(block, _)| *block).collect()
    }

    /// Looks for the stripes with most cold blocks: as many as give every pair enough room.
    fn find_cold_stripes(&self, any: bool) {
        let table = self.hot.table.borrow();
        let age = if any { 0 } else { table.settings().cold_age };
        let mut stripes = Vec::new();
        for (id, volume) in self.tables.borrow().volumes.homes() {
            let stripe_blocks = volume.shape.stripe_blocks();
            for (block, place) in volume.hot.borrow().iter() {
                if !table.is_cold(place.id, age) {
                    continue;
                }
                match stripes.last_mut() {
                    Some((count, last, stripe)) if (*last, *stripe) == (*id, block / stripe_blocks) => *count += 1,
                    _ => stripes.push((1_usize, *id, block / stripe_blocks)),
                }
            }
        }
        stripes.sort_unstable_by(|one, other| other.cmp(one));
        let settings = table.settings();
        let lacks = |pair: &Pair| {
            let enough = settings.enough(table.tracks_of(*pair) as u32);
            enough.saturating_sub(table.coming(*pair)) as usize * usize::from(settings.batch)
        };
        let wanted = table.pairs().iter().map(lacks).sum::<usize>().max(table.occupied() / SEARCH);
        let mut found = 0;
        let enough = stripes.iter().take_while(|(count, ..)| {
            let more = found < wanted;
            found += count;
            more
        });
        let chosen: Vec<_> = enough.map(|(_, volume, stripe)| (*volume, *stripe)).collect();
        // The best ones are taken from the end.
        self.hot.cold_stripes.borrow_mut().extend(chosen.into_iter().rev());
    }

    /// Brings blocks of the hot area to their cold places too; how many. An error where there are none, and a stripe took nothing.
    pub async fn cool(&self, chosen: Vec<ColdStripe>, urgency: Urgency) -> Result<usize> {
        let stripes = chosen.into_iter().map(|(id, stripe, blocks)| async move {
            let volume = self.tables.borrow().volumes.get(&id).cloned();
            match volume {
                Some(volume) => self.cool_stripe(&volume, stripe, blocks, urgency).await,
                None => Ok(0),
            }
        });
        let cooled = join_all(stripes).await;
        let blocks = cooled.iter().flatten().sum();
        let refused = cooled.into_iter().find_map(Result::err).filter(|_| blocks == 0);
        refused.map_or(Ok(blocks), Err)
    }

    async fn cool_stripe(
        &self,
        volume: &Rc<VolumeState>,
        stripe: u64,
        blocks: BTreeSet<u64>,
        urgency: Urgency,
    ) -> Result<usize> {
        // While a checkpoint is made, and while something else happens to the stripe, it stays as it is; and when the store
        // stops.
        let rests = || self.stripes.parity_below.get().is_none() && self.may_fly() && !self.is_stopping();
        if !rests() {
            return Ok(0);
        }
        let read = self.read_to_cool(volume, blocks, urgency).await;
        let Some((first, ..)) = read.first() else { return Ok(0) };
        let extents = volume.group_of(self.index_of(*first));
        let moving = extents.first().is_none_or(|extent| extent.group.is_moving());
        if moving || !rests() || !self.stripes.take(stripe_id(volume, &extents, stripe)) {
            return Ok(0);
        }
        let (mut found, mut checksums, mut data) = (Vec::new(), Vec::new(), Bufs::new());
        for (block, id, bytes) in read {
            let checksum = Checksum::of(&bytes.contiguous());
            // One that has left the hot area meanwhile has something newer at its cold place, or will have; and one that has left it
            // and came again may lie in the same slot.
            if volume.slot(block) == Some(id) && self.checksum(volume, block) == Some(checksum) {
                checksums.push(checksum);
                found.push((block, id));
                data.append(bytes);
            }
        }
        let blocks = found.iter().zip(&checksums).map(|((block, _), checksum)| (*block, Lsn(0), *checksum)).collect();
        let flight = Flight { volume: Rc::clone(volume), extents, blocks, data, to: Destination::Stripe(stripe) };
        self.write_stripe(&flight, stripe, urgency).await?;
        for ((block, id), (.., checksum)) in found.iter().zip(&flight.blocks) {
            if let Some(place) = volume.hot.borrow_mut().get_mut(block).filter(|_| flight.is_for(self.index_of(*block)))
            {
                place.cold = Some(*checksum);
            }
            if volume.slot(*block) == Some(*id) {
                self.hot.table.borrow_mut().cool(*id);
                self.hot.cooled.borrow_mut().push((volume.id, *block, *id));
            }
        }
        self.count(|counts| counts.array.cooled_blocks += found.len() as u64);
        Ok(found.len())
    }

    /// Blocks of the hot area that are not being written, in order, and their slots; what lies in one track is read at
    /// once, with what lies between.
    pub async fn read_to_cool(
        &self,
        volume: &Rc<VolumeState>,
        blocks: BTreeSet<u64>,
        urgency: Urgency,
    ) -> Vec<(u64, MirrorId, Bufs)> {
        let mut tracks: BTreeMap<(u64, u16), Vec<Wanted>> = BTreeMap::new();
        for block in blocks {
            if let Some((id, expected)) = self.settled_slot(volume, block).await {
                let track = (id.born, id.slot / self.settings.hot.track_slots);
                tracks.entry(track).or_default().push((block, id, expected));
            }
        }
        let reads = tracks.into_iter().map(|((born, _), wanted)| self.read_track(born, wanted, urgency));
        let mut read: Vec<_> = join_all(reads).await.into_iter().flatten().collect();
        read.sort_unstable_by_key(|(block, ..)| *block);
        read
    }

    /// The slot of a block of the hot area that is not being written, and its checksum.
    async fn settled_slot(&self, volume: &Rc<VolumeState>, block: u64) -> Option<(MirrorId, Checksum)> {
        let (index, inside) = self.split(block);
        let extent = volume.extent(index)?;
        if !extent.is_loaded() {
            self.load(&extent).await.ok()?;
        }
        let id = volume.slot(block)?;
        if !extent.is_loaded() || volume.dirty.borrow().contains_key(&block) {
            return None;
        }
        Some((id, extent.with_page(|page| page.get(inside))?))
    }

    /// Reads blocks that lie in one track; those without a good copy are left out.
    async fn read_track(&self, born: u64, wanted: Vec<Wanted>, urgency: Urgency) -> Vec<(u64, MirrorId, Bufs)> {
        let Some(places) = self.hot.places_of(born) else { return Vec::new() };
        let slots = || wanted.iter().map(|(_, id, _)| usize::from(id.slot));
        let (Some(first), Some(last)) = (slots().min(), slots().max()) else { return Vec::new() };
        let span = self.array.read_any(&places, first, last + 1 - first, urgency).await.ok();
        let mut read = Vec::new();
        for (block, id, expected) in wanted {
            let at = usize::from(id.slot) - first;
            let found = span.as_ref().map(|span| span.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES));
            let good = found.filter(|found| Checksum::of(&found.contiguous()) == expected);
            let data = match good {
                Some(good) => good,
                None => match self.array.read(&places, id.slot.into(), &[expected], urgency).await {
                    Ok(read) => read.data,
                    Err(_) => continue,
                },
            };
            read.push((block, id, data));
        }
        read
    }
}
