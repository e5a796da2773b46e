//! The hot area kept ready: it grows while it may, cold blocks go to their places in stripes, and what lies on a disk that
//! fails or leaves is written anew.
//!
//! ```text
//!   cold blocks of a track ─> read ─> their stripes, with parity ─> (checkpoint: flush) ─> their slots are given up
//! ```
//!
//! A block is in both areas until a checkpoint has made its cold place durable: a crash before that finds it hot.

use crate::destage::{Destination, Flight};
use crate::policy::{Migration, migration};
use crate::record::Record;
use crate::store::{Freed, Inner};
use crate::stripe::stripe_id;
use crate::tables::VolumeState;
use futures::future::select;
use kura_array::hot::{HotExtent, MirrorId, Owner, Pair};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, DeviceId, Result};
use kura_journal::Lsn;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// How long to wait before asking a pool again that was full.
const FULL: Duration = Duration::from_secs(1);
/// How long to wait for disks that have something to do, or for blocks to become cold.
const BUSY: Duration = Duration::from_millis(10);

/// What the migrator does next.
enum Step {
    Grow(Pair),
    Cool(Vec<MirrorId>),
    Rest(Option<Duration>),
}

impl Inner {
    /// The task that keeps the hot area ready, until the store stops or its journal fails.
    pub async fn migrate_for_ever(self: Rc<Self>) {
        while !self.stopping.get() && self.journal().alive().is_ok() {
            let news = std::pin::pin!(self.migrator.notified());
            match self.next_step() {
                Step::Grow(pair) => {
                    let grown = self.grow_hot(pair).await;
                    self.hot_refused.set(grown.is_err());
                    self.hot_wanted.set(false);
                    self.destager.notify_one();
                    if grown.is_err() {
                        select(news, self.runtime.sleep(FULL)).await;
                        self.hot_refused.set(false);
                    }
                }
                Step::Cool(slots) => {
                    if self.cool(slots).await == 0 {
                        self.runtime.sleep(BUSY).await;
                    }
                }
                Step::Rest(Some(rest)) => {
                    select(news, self.runtime.sleep(rest)).await;
                }
                Step::Rest(None) => news.await,
            }
        }
    }

    /// True while the hot area has less than its share of the disks, and the pool has not refused.
    pub fn hot_can_grow(&self) -> bool {
        !self.stopping.get() && !self.hot_refused.get() && self.hot.borrow().extents().count() < self.hot_limit()
    }

    /// The most extents of this controller's hot area: at least one on each pair.
    fn hot_limit(&self) -> usize {
        let disks = self.data_disks();
        let extents: u64 =
            disks.iter().filter_map(|disk| self.array.member(*disk)).map(|disk| u64::from(disk.plan.extents)).sum();
        let share = extents * u64::from(self.settings.hot.share_permille) / 1000 / 2;
        (share / u64::from(self.controllers.max(1))).max(self.ring().len() as u64) as usize
    }

    /// Chained declustering: each disk's first half is mirrored on the next one's second half.
    fn ring(&self) -> Vec<Pair> {
        let disks = self.data_disks();
        match disks.len() {
            0 | 1 => Vec::new(),
            2 => vec![(disks[0], disks[1])],
            count => (0..count).map(|at| (disks[at], disks[(at + 1) % count])).collect(),
        }
    }

    fn next_step(&self) -> Step {
        if self.hot_wanted.get() && self.hot_can_grow() {
            let hot = self.hot.borrow();
            if let Some(pair) = self.ring().into_iter().min_by_key(|pair| hot.extents_of(*pair)) {
                return Step::Grow(pair);
            }
        }
        self.hot_wanted.set(false);
        let mut hot = self.hot.borrow_mut();
        let writable: BTreeMap<Pair, u32> = hot.writable().collect();
        let pairs = hot.pairs().into_iter();
        let mut facts: Vec<_> = pairs.map(|pair| (writable.get(&pair).copied().unwrap_or(0), pair)).collect();
        facts.sort_unstable();
        let grows = hot.extents().count() < self.hot_limit();
        let mut wants = false;
        for (tracks, pair) in facts {
            let all = hot.tracks_of(pair) as u32;
            let idle = self.array.queue_of(pair) == 0;
            match migration(tracks, all, self.settings.hot.enough_tracks, idle, grows) {
                Migration::Rest => {}
                Migration::Later => wants = true,
                Migration::Now { any } => {
                    wants = true;
                    let cold = hot.cold(pair, all as usize, any);
                    if !cold.is_empty() {
                        return Step::Cool(cold);
                    }
                }
            }
        }
        Step::Rest(wants.then_some(BUSY))
    }

    /// Takes an extent on a pair of disks into the hot area.
    async fn grow_hot(&self, pair: Pair) -> Result<()> {
        let places = self.allocate_on(&[pair.0, pair.1]).await?;
        if places.iter().any(|place| !self.array.works(*place)) || self.stopping.get() {
            self.put_back(&places);
            return Err(kura_block::Error::retry("a disk went out of service"));
        }
        let born = self.append(&Record::HotExtent { places: places.clone() });
        self.hot.borrow_mut().add(born.0, places, 0, None);
        Ok(())
    }

    /// Brings blocks of the hot area to their cold places too; how many.
    async fn cool(&self, slots: Vec<MirrorId>) -> usize {
        let mut stripes: BTreeMap<(u64, u64), BTreeSet<u64>> = BTreeMap::new();
        for id in slots {
            let Some(Owner { volume, block }) = self.hot.borrow().owner(id) else { continue };
            let Some(state) = self.tables.borrow().volumes.get(&volume).cloned() else { continue };
            let stripe_blocks = state.shape.stripe_blocks();
            let stripe = block / stripe_blocks;
            let blocks = stripes.entry((volume, stripe)).or_default();
            blocks.insert(block);
            if self.settings.hot.by_stripe {
                let hot = state.hot.borrow();
                let alike = hot.range(stripe * stripe_blocks..(stripe + 1) * stripe_blocks);
                let table = self.hot.borrow();
                let old = alike.filter(|(_, place)| table.age(place.id) >= self.settings.hot.cold_age);
                blocks.extend(old.map(|(block, _)| *block));
            }
        }
        let mut cooled = 0;
        for ((volume, stripe), blocks) in stripes {
            let state = self.tables.borrow().volumes.get(&volume).cloned();
            if let Some(state) = state {
                cooled += self.cool_stripe(&state, stripe, blocks).await;
            }
        }
        cooled
    }

    async fn cool_stripe(&self, volume: &Rc<VolumeState>, stripe: u64, blocks: BTreeSet<u64>) -> usize {
        let mut read = Vec::new();
        for block in blocks {
            if let Some((id, data)) = self.read_to_cool(volume, block).await {
                read.push((block, id, data));
            }
        }
        let Some((first, ..)) = read.first() else { return 0 };
        let extents = volume.group_of((first / self.array.extent_blocks() as u64) as u32);
        let moving = extents.first().is_none_or(|extent| extent.group.is_moving());
        // While a checkpoint is made, and while something else happens to the stripe, it stays as it is.
        let busy = moving || self.parity_below.get().is_some() || !self.may_fly();
        if busy || !self.take_stripe(stripe_id(volume, &extents, stripe)) {
            return 0;
        }
        // One that has left the hot area meanwhile has something newer at its cold place, or will have.
        read.retain(|(block, id, _)| volume.slot(*block) == Some(*id));
        let (mut found, mut checksums, mut data) = (Vec::new(), Vec::new(), Bufs::new());
        for (block, id, bytes) in read {
            checksums.push(Checksum::of(&bytes.contiguous()));
            found.push((block, id));
            data.append(bytes);
        }
        let debt = Self::debt_of(data.len() as u64);
        self.flying_debt.set(self.flying_debt.get() + debt);
        let blocks = found.iter().zip(&checksums).map(|((block, _), checksum)| (*block, Lsn(0), *checksum)).collect();
        let flight = Flight { volume: Rc::clone(volume), extents, blocks, data, to: Destination::Stripe(stripe) };
        let written = self.write_stripe(&flight, stripe).await;
        self.flying_debt.set(self.flying_debt.get() - debt);
        if written.is_err() {
            return 0;
        }
        for ((block, id), (.., checksum)) in found.iter().zip(&flight.blocks) {
            if let Some(place) = volume.hot.borrow_mut().get_mut(block) {
                place.cold = Some(*checksum);
            }
            if volume.slot(*block) == Some(*id) {
                self.hot.borrow_mut().cool(*id);
                self.cooled.borrow_mut().push((volume.id, *block, *id));
            }
        }
        self.checkpointer.notify_one();
        found.len()
    }

    /// A block of the hot area that is not being written, and its slot.
    async fn read_to_cool(&self, volume: &Rc<VolumeState>, block: u64) -> Option<(MirrorId, Bufs)> {
        let blocks = self.array.extent_blocks() as u64;
        let extent = volume.extent((block / blocks) as u32)?;
        if !extent.is_loaded() {
            self.load(&extent).await.ok()?;
        }
        let id = volume.slot(block)?;
        if !extent.is_loaded() || volume.dirty.borrow().contains_key(&block) {
            return None;
        }
        let expected = extent.with_page(|page| page.get((block % blocks) as usize))?;
        let places = self.hot_places(id.born)?;
        let read = self.array.read(&places, id.slot.into(), &[expected]).await.ok()?;
        Some((id, read.data))
    }

    /// Hot extents on disks that are out of service or leaving.
    pub fn unwanted_hot(&self) -> Vec<u64> {
        let tables = self.tables.borrow();
        let unwanted = |disk: DeviceId| tables.failed.contains(&disk) || tables.leaving.contains(&disk);
        let hot = self.hot.borrow();
        let extents = hot.extents().filter(|(_, extent)| extent.places.iter().any(|place| unwanted(place.device)));
        extents.map(|(born, _)| born).collect()
    }

    /// Writes the blocks of a hot extent on an unwanted disk anew, elsewhere, and gives it up when it is empty; bytes
    /// written, or `None` when nothing more can be done.
    pub async fn evacuate(&self, born: u64) -> Result<Option<u64>> {
        self.hot.borrow_mut().leave(born);
        let owners = self.hot.borrow().extent(born).map(HotExtent::owners).unwrap_or_default();
        let (mut bytes, mut unreadable) = (0, 0);
        for (slot, owner) in owners.into_iter().enumerate() {
            let Some(Owner { volume, block }) = owner else { continue };
            let id = MirrorId { born, slot: slot as u16 };
            let Some(state) = self.tables.borrow().volumes.get(&volume).cloned() else { continue };
            self.make_room(BLOCK_BYTES as u64).await?;
            if state.slot(block) != Some(id) || state.dirty.borrow().contains_key(&block) {
                continue;
            }
            match self.read_to_cool(&state, block).await {
                Some((_, data)) => bytes += self.write_anew(&state, block, data),
                None => unreadable += 1,
            }
        }
        // What is in the buffer goes to other slots; then the tail passes the records that gave these up.
        self.checkpoint().await?;
        self.checkpoint().await?;
        let hot = self.hot.borrow();
        let empty = hot.extent(born).is_some_and(HotExtent::is_empty);
        let left = hot.extent(born).map_or(0, |extent| extent.owners().into_iter().flatten().count());
        drop(hot);
        if empty {
            self.give_up_hot_extent(born);
        }
        Ok((empty || left == 0 || left > unreadable).then_some(bytes))
    }

    /// Writes a block of the hot area as if a client had: it gets another slot. Bytes written.
    fn write_anew(&self, volume: &Rc<VolumeState>, block: u64, data: Bufs) -> u64 {
        let blocks = self.array.extent_blocks() as u64;
        let Some(extent) = volume.extent((block / blocks) as u32).filter(|extent| extent.is_loaded()) else { return 0 };
        let Some(expected) = extent.with_page(|page| page.get((block % blocks) as usize)) else { return 0 };
        let unchanged = Checksum::of(&data.contiguous()) == expected;
        if unchanged && self.write_again(volume, &extent, block, data, expected) { BLOCK_BYTES as u64 } else { 0 }
    }

    fn give_up_hot_extent(&self, born: u64) {
        let lsn = self.append(&Record::HotExtentGone { born });
        if let Some(extent) = self.hot.borrow_mut().remove(born) {
            self.freed.borrow_mut().push(Freed::places(extent.places, Lsn(lsn.0 + 1)));
            self.checkpointer.notify_one();
        }
    }
}
