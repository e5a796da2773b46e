//! Blocks in the mirrored hot area: put there, read there, given up there.
//!
//! What must hold:
//! 1. A slot is written only while it is free, and on a pair of disks that work and stay; it is named in a record only when both copies
//!    have the block, or the one whose disk still works.
//! 2. A slot given up is free again only when the log's tail has passed the record that says so: until then a replay
//!    finds in it what the log says. One whose block lies durably at its cold place, and of which the log says durably
//!    that it was given up, is free at once: whatever the tail, a replay ends with the block there.
//! 3. A block's record (its write, in the journal) is needed until its slot is durable: the checkpoint's flush.
//! 4. What gives up blocks gives up their slots: an *unmap*, a *clear* or a *delete* says it in its one record, however many
//!    they are. No crash leaves a slot to a block that is gone, and the log takes no more of it than of any other volume.

mod cool;
mod loan;
mod migrate;

pub(crate) use cool::ColdStripe;

use crate::check::Report;
use crate::destage::{Destination, Flight, STALLED};
use crate::extent::{Dirty, Extent, Pins};
use crate::record::{HotBlock, Record};
use crate::store::{Freed, Inner};
use crate::tables::{HotPlace, VolumeState};
use crate::tier::Returned;
use futures::future::join_all;
use futures::{StreamExt, stream};
use kura_array::hot::{HotPage, HotTable, MirrorId, Owner, Pair};
use kura_array::policy::choose_pair;
use kura_array::{Place, Places, Urgency};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, DeviceId, Error, Kind, Result};
use kura_journal::Lsn;
use loan::Loan;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// Slots that one record names at most.
const RECORD_SLOTS: usize = 1000;
/// Pages of hot extents read at once when a store is opened.
const PAGES_AT_ONCE: usize = 32;

/// A controller's mirrored hot area.
pub(crate) struct HotArea {
    pub table: RefCell<HotTable>,
    /// Blocks that lie at their cold places too, not durably yet.
    pub cooled: RefCell<Vec<(u64, u64, MirrorId)>>,
    /// Stripes whose blocks are to go to their places, the best ones at the end: volume and stripe.
    pub cold_stripes: RefCell<Vec<(u64, u64)>>,
    /// Until then nobody looks for more of them: there were none.
    pub no_cold_until: Cell<Duration>,
    /// Writes have found no writable track.
    pub wanted: Cell<bool>,
    /// They wait for the area to grow.
    pub awaited: Cell<bool>,
    /// Until then it does not grow: the pool was full.
    pub full_until: Cell<Duration>,
    /// Until then nothing goes to these pairs: a disk of theirs had no space.
    pub full_pairs: RefCell<BTreeMap<Pair, Duration>>,
    /// The migrator has something to look at.
    pub migrator: Notify,
    /// What it has beyond its share.
    pub loan: Loan,
}

impl HotArea {
    pub fn new(table: HotTable) -> Self {
        Self {
            table: RefCell::new(table),
            cooled: RefCell::default(),
            cold_stripes: RefCell::default(),
            no_cold_until: Cell::default(),
            wanted: Cell::new(false),
            awaited: Cell::new(false),
            full_until: Cell::default(),
            full_pairs: RefCell::default(),
            migrator: Notify::new(),
            loan: Loan::default(),
        }
    }

    /// All its places.
    pub fn places(&self) -> Vec<Place> {
        self.table.borrow().extents().flat_map(|(_, extent)| extent.places.clone()).collect()
    }

    /// Where one of its extents lies.
    pub fn places_of(&self, born: u64) -> Option<Places> {
        self.table.borrow().extent(born).map(|extent| extent.places.clone())
    }

    fn pair_of(&self, id: MirrorId) -> Option<Pair> {
        self.places_of(id.born).map(|places| (places[0].device, places[1].device))
    }

    fn each_owned(&self, mut look: impl FnMut(Owner, MirrorId)) {
        for (born, extent) in self.table.borrow().extents() {
            let owners = extent.owners().into_iter().zip(0..);
            owners.for_each(|(owner, slot)| owner.into_iter().for_each(|owner| look(owner, MirrorId { born, slot })));
        }
    }
}

/// Whether blocks go to the hot area.
pub(crate) enum HotFlight {
    /// These do.
    Begins(Flight),
    /// The hot area grows first.
    Soon,
    /// None: what there is goes to its cold place.
    None,
}

impl Inner {
    /// The next blocks of a volume to go to the hot area, the first of `within`: those of a stripe that is written as a
    /// whole do not, and where the hot area is full or the volume is kept out of it none do.
    pub fn hot_flight(&self, volume: &Rc<VolumeState>, within: Range<u64>, durable: Lsn) -> HotFlight {
        if !volume.has_hot_area() || volume.kept_cold.get() > 0 {
            return HotFlight::None;
        }
        let stripe_blocks = volume.shape.stripe_blocks();
        // A checkpoint waits for what is older, and has counted what that takes of the journal.
        let durable = self.stripes.parity_below.get().map_or(durable, |below| below.min(durable));
        let mut dirty = volume.dirty.borrow_mut();
        let ripe = |entry: &Dirty| !entry.in_flight && entry.lsn < durable && entry.data.is_some();
        let fit = |block: u64, entry: &Dirty| {
            let rests = |extent: Rc<Extent>| !extent.group.is_moving() && self.takes_writes(&extent).is_none();
            ripe(entry) && volume.extent(self.index_of(block)).is_some_and(rests)
        };
        let Some(first) = dirty.range(within).find(|(block, entry)| fit(**block, entry)).map(|(block, _)| *block)
        else {
            return HotFlight::None;
        };
        let stripe = first / stripe_blocks * stripe_blocks;
        let whole = || dirty.range(stripe..stripe + stripe_blocks).filter(|(_, entry)| ripe(entry)).count() as u64;
        if self.settings.hot.eager && whole() == stripe_blocks {
            return HotFlight::None;
        }
        let batch = usize::from(self.settings.hot.batch);
        let count =
            dirty.range(first..).take(4 * batch).filter(|(block, entry)| fit(**block, entry)).take(batch).count();
        let mut writable: Vec<_> = self.hot.table.borrow().writable().collect();
        writable.retain(|(pair, _)| self.takes_hot(*pair));
        let facts = writable.into_iter().map(|(pair, tracks)| (pair, self.array.queue_of(pair), tracks));
        let facts: Vec<_> = facts.collect();
        let Some(pair) = choose_pair(&facts) else {
            self.hot.wanted.set(true);
            self.hot.migrator.notify_one();
            let grows = self.hot_can_grow();
            self.hot.awaited.set(grows);
            // A checkpoint gives it room soon; but what a checkpoint waits for does not wait for one.
            let comes = !grows
                && self.stripes.parity_below.get().is_none()
                && !self.is_stopping()
                && self.hot.table.borrow().wants_tail();
            if comes {
                self.checkpoint_wanted.set(true);
                self.checkpointer.notify_one();
            }
            return if grows || comes { HotFlight::Soon } else { HotFlight::None };
        };
        let slots = self.hot.table.borrow_mut().take(pair, count);
        let entries = dirty.range_mut(first..).filter(|(block, entry)| fit(**block, entry)).take(slots.len());
        HotFlight::Begins(Flight::of(volume, Vec::new(), Destination::Hot(slots), entries))
    }

    /// True for a pair of disks that work and stay, and had space when they were asked last, or were not asked lately.
    fn takes_hot(&self, pair: Pair) -> bool {
        let tables = self.tables.borrow();
        let is_wanted = |disk: DeviceId| self.array.is_in_service(disk) && !tables.is_unwanted(disk);
        let is_full = || self.hot.full_pairs.borrow().get(&pair).is_some_and(|until| *until > self.runtime.now());
        is_wanted(pair.0) && is_wanted(pair.1) && !is_full()
    }

    /// Writes blocks to slots of the hot area, and notes that they lie there now.
    pub async fn write_hot(&self, flight: &Flight, slots: &[MirrorId]) -> Result<()> {
        let written = self.fill_slots(flight, slots).await;
        if let Err(error) = &written {
            if let Some(pair) =
                slots.first().and_then(|id| self.hot.pair_of(*id)).filter(|_| error.kind() == Kind::Full)
            {
                self.hot.full_pairs.borrow_mut().insert(pair, self.runtime.now() + STALLED);
            }
            for slot in slots {
                self.hot.table.borrow_mut().empty(*slot);
            }
            return written;
        }
        let volume = &*flight.volume;
        let mut placed = Vec::new();
        for ((block, version, _), id) in flight.blocks.iter().zip(slots) {
            // One that was cleared or written again meanwhile has no use for the slot.
            let dirty = volume.dirty.borrow();
            let now = dirty.get(block).filter(|entry| entry.data.is_some() && entry.lsn == *version);
            if now.is_none() {
                self.hot.table.borrow_mut().empty(*id);
                continue;
            }
            let owner = Owner { volume: volume.id, block: *block };
            self.hot.table.borrow_mut().fill(*id, owner);
            let before = volume.hot.borrow().get(block).copied();
            let at_rest = now.and_then(|entry| entry.at_rest).filter(|_| !self.is_stale(volume, *block));
            let cold = before.map_or(at_rest, |before| before.cold);
            volume.hot.borrow_mut().insert(*block, HotPlace { id: *id, cold });
            placed.push(HotBlock { id: *id, owner, old: before.map(|before| before.id) });
        }
        if let Some(pair) = slots.first().and_then(|id| self.hot.pair_of(*id)) {
            self.hot.table.borrow_mut().grow_old(pair);
        }
        if placed.is_empty() {
            return Ok(());
        }
        self.count(|counts| counts.array.hot_blocks += placed.len() as u64);
        let olds: Vec<_> = placed.iter().filter_map(|placed| placed.old).collect();
        let lsn = self.append(&Record::HotBlocks { blocks: placed });
        for old in olds {
            self.hot.table.borrow_mut().give_up(old, lsn.0 + 1);
        }
        self.hot.migrator.notify_one();
        Ok(())
    }

    async fn fill_slots(&self, flight: &Flight, slots: &[MirrorId]) -> Result<()> {
        let mut runs: Vec<(MirrorId, Bufs)> = Vec::new();
        for (number, id) in slots.iter().enumerate() {
            let data = flight.data.slice(number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES);
            match runs.last_mut() {
                Some((first, run)) if usize::from(first.slot) + run.len() / BLOCK_BYTES == usize::from(id.slot) => {
                    run.append(data);
                }
                _ => runs.push((*id, data)),
            }
        }
        let Some(places) = slots.first().and_then(|id| self.hot.places_of(id.born)) else {
            return Err(Error::retry("a hot extent is gone"));
        };
        let writes = runs.iter().map(|(id, data)| self.array.write(&places, id.slot.into(), data, Urgency::Buffer));
        let failures = join_all(writes).await.into_iter().flatten().collect();
        self.landed_on(&places, failures).await
    }

    /// The slot of a block in the hot area, and how many of the blocks after it, up to `end`, lie in the slots after it;
    /// or up to where none lies there.
    pub fn hot_run(volume: &VolumeState, at: u64, end: u64) -> (Option<MirrorId>, u64) {
        let hot = volume.hot.borrow();
        let mut range = hot.range(at..end);
        match range.next() {
            None => (None, end - at),
            Some((block, _)) if *block > at => (None, block - at),
            Some((_, first)) => {
                let first = first.id;
                let follows = |(number, (block, HotPlace { id, .. })): (u64, (&u64, &HotPlace))| {
                    *block == at + number
                        && id.born == first.born
                        && u64::from(id.slot) == u64::from(first.slot) + number
                };
                let run = (1..).zip(range).take_while(|next| follows(*next)).count();
                (Some(first), 1 + run as u64)
            }
        }
    }

    /// Reads blocks from slots of the hot area, one for each expected checksum.
    pub async fn read_hot(
        &self,
        id: MirrorId,
        expected: &[Checksum],
        urgency: Urgency,
    ) -> Result<kura_array::Verified> {
        let places = self.hot.places_of(id.born).ok_or_else(|| Error::corrupt("a hot extent is gone"))?;
        for number in 0..expected.len() as u16 {
            self.hot.table.borrow_mut().touch(MirrorId { slot: id.slot + number, ..id });
        }
        self.array.read(&places, id.slot.into(), expected, urgency).await
    }

    /// Gives up the slots of a volume's blocks from `first` to before `end`.
    pub fn leave_hot(&self, volume: &VolumeState, first: u64, end: u64) {
        let blocks: Vec<_> = volume.hot.borrow().range(first..end).map(|(block, place)| (*block, place.id)).collect();
        for part in blocks.chunks(RECORD_SLOTS) {
            let slots: Vec<_> = part.iter().map(|(_, id)| *id).collect();
            let lsn = self.append(&Record::HotGivenUp { slots });
            for (block, id) in part {
                volume.hot.borrow_mut().remove(block);
                self.hot.table.borrow_mut().give_up(*id, lsn.0 + 1);
            }
        }
    }

    /// Forgets the slots of a volume's blocks from `first` to before `end`, which the record at `lsn` gives up.
    pub fn forget_hot(&self, volume: &VolumeState, first: u64, end: u64, lsn: Lsn) {
        let blocks: Vec<_> = volume.hot.borrow().range(first..end).map(|(block, place)| (*block, place.id)).collect();
        for (block, id) in blocks {
            volume.hot.borrow_mut().remove(&block);
            self.hot.table.borrow_mut().give_up(id, lsn.0 + 1);
        }
    }

    /// Gives up the slots of blocks that have been written to their cold places.
    pub fn leave_hot_behind(&self, flight: &Flight) {
        let volume = &*flight.volume;
        for (block, version, checksum) in &flight.blocks {
            let current = volume.dirty.borrow().get(block).is_some_and(|now| now.lsn == *version && now.data.is_some());
            if current {
                self.leave_hot(volume, *block, *block + 1);
            } else if let Some(place) =
                volume.hot.borrow_mut().get_mut(block).filter(|_| flight.is_for(self.index_of(*block)))
            {
                place.cold = Some(*checksum);
            }
        }
    }

    /// Gives up the slots of blocks that lie at their cold places too, and notes which blocks of fast copies are at home
    /// again: the caller has made those durable, and no stripe that the log has announced is on its way.
    pub fn give_up_cooled(&self, returned: Returned) {
        let cooled = self.hot.cooled.take();
        if cooled.is_empty() && returned.is_empty() {
            return;
        }
        // A replay must not take their stripes for torn: it would not find in the hot area what it misses there.
        self.append(&Record::Settled);
        // Nor must what is written from now on: this checkpoint may fail yet, and what was written before counts as at rest; what was
        // said of it before does not count any more.
        self.stripes.announced.borrow_mut().clear();
        self.settle_returned(returned);
        let mut slots = Vec::new();
        for (volume, block, id) in cooled {
            let Some(volume) = self.tables.borrow().volumes.get(&volume).cloned() else { continue };
            if volume.slot(block) == Some(id) {
                volume.hot.borrow_mut().remove(&block);
                self.hot.table.borrow_mut().give_up_at_rest(id);
                slots.push(id);
            }
        }
        for part in slots.chunks(RECORD_SLOTS) {
            self.append(&Record::HotGivenUp { slots: part.to_vec() });
        }
    }

    /// Writes the pages of hot extents, on both copies.
    pub async fn write_hot_pages(&self, pages: &[(u64, Places, HotPage)]) -> Result<()> {
        let writes = pages.iter().map(|(_, places, page)| self.array.write_hot_page(places, page));
        self.heed(join_all(writes).await.into_iter().flatten()).await
    }

    /// True when slots, or blocks of fast copies, wait for a checkpoint that are wanted soon.
    pub fn wants_checkpoint(&self) -> bool {
        self.hot.table.borrow().wants_tail() || self.tier.waits() || self.loan_waits()
    }

    /// Reads both copies of the blocks of an extent that lie in the hot area, and writes those again that have a bad one.
    pub async fn check_hot(&self, volume: &Rc<VolumeState>, extent: &Rc<Extent>, report: &mut Report) {
        let blocks = self.array.extent_blocks() as u64;
        let first = u64::from(extent.owner.index) * blocks;
        let hot: Vec<_> =
            volume.hot.borrow().range(first..first + blocks).map(|(block, place)| (*block, place.id)).collect();
        let _pins = Pins::of([extent]);
        for (block, id) in hot {
            if !extent.is_loaded() && self.load(extent).await.is_err() {
                // Who checks the extent itself says so.
                return;
            }
            let inside = (block - first) as usize;
            let settled = volume.slot(block) == Some(id) && !volume.dirty.borrow().contains_key(&block);
            let Some(expected) = extent.with_page(|page| page.get(inside)).filter(|_| settled) else { continue };
            let Some(places) = self.hot.places_of(id.born) else { continue };
            report.blocks += 1;
            let found = self.array.verify(&places, id.slot.into(), &[expected]).await;
            let still = volume.slot(block) == Some(id) && !volume.dirty.borrow().contains_key(&block);
            if found.bad.is_empty() || !still {
                continue;
            }
            found.bad.iter().for_each(|bad| self.array.confirm(bad));
            if found.lost[0] {
                report.found(volume, "block", block, "no copy in the hot area is good".to_owned());
            } else {
                match self.array.read(&places, id.slot.into(), &[expected], Urgency::Idle).await {
                    Ok(good) => self.mend(volume, extent, block, (good.data, expected), report).await,
                    Err(error) => report.not_mended(volume, block, &error),
                }
            }
        }
    }

    /// Replays that an extent was taken into the hot area.
    pub async fn replay_hot_extent(&self, places: Places, lsn: Lsn, known: bool) -> Result<()> {
        if known {
            return Ok(());
        }
        // Its page may have been written since: the next one must have a higher sequence number.
        let sequence = self.find_hot_page(&places, lsn.0, false).await?.map_or(0, |page| page.sequence);
        self.hot.table.borrow_mut().add(lsn.0, places, sequence, None);
        Ok(())
    }

    /// Replays that an extent was given up by the hot area.
    pub fn replay_hot_gone(&self, born: u64, lsn: Lsn) {
        if let Some(extent) = self.hot.table.borrow_mut().remove(born) {
            self.freed.borrow_mut().push(Freed::places(extent.places, Lsn(lsn.0 + 1)));
        }
    }

    /// Replays that blocks were put into the hot area, or left it.
    pub fn replay_hot_blocks(&self, blocks: &[HotBlock], lsn: Lsn) {
        for block in blocks {
            if self.hot.table.borrow().extent(block.id.born).is_some() {
                self.hot.table.borrow_mut().fill(block.id, block.owner);
                self.note_slot(block.owner, block.id);
            } else if let Some(volume) = self.tables.borrow().volumes.get(&block.owner.volume) {
                // The tables know already that its extent is gone: it has left that since, for its place or another slot.
                volume.hot.borrow_mut().remove(&block.owner.block);
            }
            if let Some(old) = block.old {
                self.hot.table.borrow_mut().give_up(old, lsn.0 + 1);
            }
        }
    }

    /// Tells a volume, if there is one, which slot a block of it has.
    fn note_slot(&self, owner: Owner, id: MirrorId) {
        if let Some(volume) = self.tables.borrow().volumes.get(&owner.volume) {
            volume.hot.borrow_mut().insert(owner.block, HotPlace { id, cold: None });
        }
    }

    /// True when a slot's volume says that the slot is its block's.
    fn is_noted(&self, owner: Owner, id: MirrorId) -> bool {
        let tables = self.tables.borrow();
        tables.volumes.get(&owner.volume).is_some_and(|volume| volume.slot(owner.block) == Some(id))
    }

    /// Replays that slots were given up.
    pub fn replay_hot_given_up(&self, slots: &[MirrorId], lsn: Lsn) {
        for slot in slots {
            let owner = self.hot.table.borrow().owner(*slot).filter(|owner| self.is_noted(*owner, *slot));
            if let Some(Owner { volume, block }) = owner
                && let Some(volume) = self.tables.borrow().volumes.get(&volume)
            {
                volume.hot.borrow_mut().remove(&block);
            }
            self.hot.table.borrow_mut().give_up(*slot, lsn.0 + 1);
        }
    }

    /// Reads the pages of the hot extents that the tables name. They may be newer than the log's tail: what they say that the
    /// log says again, later, is so for now.
    pub async fn load_hot(&self, extents: Vec<(u64, Places)>) -> Result<()> {
        let read = extents.into_iter().map(|(born, places)| async move {
            let page = self.find_hot_page(&places, born, true).await;
            (born, places, page)
        });
        let mut read = stream::iter(read).buffered(PAGES_AT_ONCE);
        while let Some((born, places, page)) = read.next().await {
            let page = page?;
            let (sequence, owners) = page.map_or((0, None), |page| (page.sequence, Some(page.slots)));
            self.hot.table.borrow_mut().add(born, places, sequence, owners);
        }
        self.hot.each_owned(|owner, id| self.note_slot(owner, id));
        Ok(())
    }

    /// Gives up the slots, when the log has been replayed, that no block has: of volumes that are gone, and of blocks that
    /// have another one or none since.
    pub fn settle_hot(&self) {
        let mut strays = Vec::new();
        self.hot.each_owned(|owner, id| strays.extend((!self.is_noted(owner, id)).then_some(id)));
        let end = self.journal().next_lsn();
        for id in strays {
            self.hot.table.borrow_mut().give_up(id, end.0);
        }
    }
}
