//! What deleted snapshots leave behind: versions that nobody sees any more, and blocks whose places can be put in order.

use super::{Branch, Family};
use crate::extent::Pins;
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::future::select;
use kura_block::{Bufs, Checksum, Result};
use kura_snapshot::{Entry, Epoch, Key, Location, Slot};
use std::rc::Rc;
use std::time::Duration;

/// Versions looked at between two looks at what else goes on.
const STEP: usize = 256;
/// How long the clients must be quiet before blocks are put in order while there are snapshots.
const QUIET: Duration = Duration::from_millis(200);
/// How long to wait before trying again what did not succeed.
const AGAIN: Duration = Duration::from_secs(1);

/// Something to be tidied up.
pub(crate) enum Tidying {
    /// Versions of a volume that perhaps nobody sees.
    Versions { volume: Rc<VolumeState>, keys: Vec<Key> },
    /// Slots of a volume that is gone.
    Slots { family: Rc<Family>, slots: Vec<Slot> },
    /// Holes of a volume that perhaps hide nothing any more.
    Holes(Rc<VolumeState>),
    /// Whatever a family may be rid of.
    Family(Rc<Family>),
}

impl Inner {
    /// Hands something to the task that tidies up.
    pub fn tidy(&self, what: Tidying) {
        self.untidy.borrow_mut().push_back(what);
        self.tidier.notify_one();
    }

    /// Hands versions of a volume, if any, to the task that tidies up.
    pub fn tidy_versions(&self, volume: &Rc<VolumeState>, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.tidy(Tidying::Versions { volume: Rc::clone(volume), keys });
        }
    }

    /// The task that tidies up, until the store stops or its journal fails.
    pub async fn tidy_for_ever(self: Rc<Self>) {
        while !self.stopping.get() && self.journal().alive().is_ok() {
            let waits = !self.untidy.borrow().is_empty();
            let done = if waits { self.tidy_next().await.map(|()| true) } else { self.put_in_order().await };
            if matches!(done, Ok(false)) {
                let news = std::pin::pin!(self.tidier.notified());
                if self.families_wait() {
                    select(news, self.runtime.sleep(QUIET)).await;
                } else {
                    news.await;
                }
            }
            if let Err(error) = done {
                tracing::debug!(controller = self.id.0, %error, "tidying up waits");
                self.runtime.sleep(AGAIN).await;
            }
        }
    }

    /// Tidies up what there is now.
    pub async fn tidy_all(&self) -> Result<()> {
        while !self.untidy.borrow().is_empty() {
            self.tidy_next().await?;
        }
        Ok(())
    }

    /// Tidies up the next thing, if any. It is in the queue until it is this one's turn: what moves away goes from there.
    async fn tidy_next(&self) -> Result<()> {
        let _one = self.tidying.lock().await;
        let next = self.untidy.borrow_mut().pop_front();
        match next {
            Some(what) => self.tidy_one(what).await,
            None => Ok(()),
        }
    }

    async fn tidy_one(&self, what: Tidying) -> Result<()> {
        match what {
            Tidying::Versions { volume, mut keys } => {
                while !keys.is_empty() && !volume.deleted.get() {
                    if let Err(error) = self.make_room(0).await {
                        self.untidy.borrow_mut().push_front(Tidying::Versions { volume, keys });
                        return Err(error);
                    }
                    let Some(branch) = volume.branch() else { return Ok(()) };
                    for key in keys.split_off(keys.len().saturating_sub(STEP)) {
                        let changes = self.judge(&volume, &branch, key);
                        self.put_entries(&branch.family, &changes);
                    }
                }
                if let Some(branch) = volume.branch() {
                    self.tidy(Tidying::Family(Rc::clone(&branch.family)));
                }
            }
            // Its new owner tidies up.
            Tidying::Slots { family, .. } | Tidying::Family(family) if family.pool.departed.get() => {}
            Tidying::Slots { family, mut slots } => {
                while !slots.is_empty() {
                    if let Err(error) = self.make_room(0).await {
                        self.untidy.borrow_mut().push_front(Tidying::Slots { family, slots });
                        return Err(error);
                    }
                    let part = slots.split_off(slots.len().saturating_sub(STEP));
                    self.put_entries(&family, &part.into_iter().map(|slot| (slot, None)).collect::<Vec<_>>());
                }
                self.tidy(Tidying::Family(family));
            }
            Tidying::Holes(volume) => {
                if let Err(error) = self.fill_holes(&volume).await {
                    self.untidy.borrow_mut().push_front(Tidying::Holes(volume));
                    return Err(error);
                }
            }
            Tidying::Family(family) => {
                if let Err(error) = self.make_room(0).await {
                    self.untidy.borrow_mut().push_front(Tidying::Family(family));
                    return Err(error);
                }
                self.give_back_slots(&family);
                self.end_family(&family);
            }
        }
        self.stir();
        Ok(())
    }

    /// Groups of a PoolVOL without a slot in use go back to the pool.
    fn give_back_slots(&self, family: &Family) {
        let pool = &family.pool;
        let group_blocks = self.group_blocks(pool);
        for first in pool.groups() {
            let group = u64::from(first.owner.index / pool.shape.extents());
            let (start, end) = (group * group_blocks, (group + 1) * group_blocks);
            let unused = family.table.borrow().is_unused(start, end);
            if unused {
                drop(first);
                self.unmap(pool, (start / self.array.extent_blocks() as u64) as u32);
                self.forget_pages(family, start, end);
            }
        }
    }

    fn forget_pages(&self, family: &Family, first: u64, end: u64) {
        let mut table = family.table.borrow_mut();
        let before = table.dirty().len();
        table.forget(first, end);
        let gone = (before - table.dirty().len()) as u64;
        self.dirty_pool_pages.set(self.dirty_pool_pages.get().saturating_sub(gone));
    }

    /// Holes of a volume that hide nothing any more are gone, and the groups behind them go back to the pool.
    async fn fill_holes(&self, volume: &Rc<VolumeState>) -> Result<()> {
        let mut from = 0;
        loop {
            self.make_room(0).await?;
            let Some(branch) = volume.branch().filter(|branch| branch.parent.is_none()) else { return Ok(()) };
            if branch.pvol.borrow().rolled.is_some() || volume.deleted.get() {
                return Ok(());
            }
            let groups = branch.pvol.borrow().index.holed_from(from, STEP);
            let Some(last) = groups.last() else { return Ok(()) };
            from = last + 1;
            for group in groups {
                if !self.hole_is_needed(volume, &branch, group) {
                    self.unmap(volume, group * volume.shape.extents());
                    self.append(&Record::Versions(VersionRecord::NoHoles { volume: volume.id, group }));
                    branch.pvol.borrow_mut().index.fill(group);
                }
            }
        }
    }

    /// True when a hole hides something, or a snapshot sees what was there before it.
    fn hole_is_needed(&self, volume: &VolumeState, branch: &Branch, group: u32) -> bool {
        let group_blocks = self.group_blocks(volume);
        let (start, end) = (u64::from(group) * group_blocks, (u64::from(group) + 1) * group_blocks);
        let pvol = branch.pvol.borrow();
        let Some(newest) = pvol.index.hole(group, Epoch::NOW) else { return true };
        let oldest = pvol.index.oldest_hole(group).unwrap_or(newest);
        let hides = pvol.index.listed(start, end).any(|(key, at)| key.birth() < newest || at == Location::Home);
        let extent = volume.extent(group * volume.shape.extents());
        let base = extent.map(|extent| pvol.pairs.latest_at(extent.owner.born));
        hides || base.is_some_and(|base| pvol.pairs.sees(base, oldest).is_some())
    }

    /// A volume without snapshots whose blocks are all at home is a plain volume again, and its PoolVOL is gone.
    fn end_family(&self, family: &Rc<Family>) {
        let volumes: Vec<_> = self.tables.borrow().volumes.values().cloned().collect();
        let of_family =
            |volume: &&Rc<VolumeState>| volume.branch().is_some_and(|branch| Rc::ptr_eq(&branch.family, family));
        let members: Vec<_> = volumes.iter().filter(of_family).collect();
        let plain = |volume: &&&Rc<VolumeState>| {
            volume.branch().is_some_and(|branch| {
                let pvol = branch.pvol.borrow();
                branch.parent.is_none() && pvol.pairs.is_empty() && pvol.index.is_empty() && pvol.rolled.is_none()
            })
        };
        if members.iter().any(|volume| !plain(&volume))
            || family.table.borrow().owned() > 0
            || family.pool.deleted.get()
        {
            return;
        }
        self.forget_pages(family, 0, family.pool.size_bytes() / kura_block::BLOCK_BYTES as u64);
        self.remove(&family.pool);
        for volume in members {
            volume.branch.replace(None);
        }
    }

    /// True when some volume has blocks that may be brought home later.
    fn families_wait(&self) -> bool {
        let tables = self.tables.borrow();
        tables.volumes.values().any(|volume| {
            volume.branch().is_some_and(|branch| {
                let pvol = branch.pvol.borrow();
                pvol.rolled.is_some() || branch.parent.is_none() && !pvol.index.is_empty()
            })
        })
    }

    /// Brings some blocks of one volume home whose home no snapshot sees; false when there is nothing to do now.
    async fn put_in_order(&self) -> Result<bool> {
        let rolled =
            |volume: &&Rc<VolumeState>| volume.branch().is_some_and(|branch| branch.pvol.borrow().rolled.is_some());
        let rolling: Vec<_> = self.tables.borrow().volumes.values().filter(rolled).cloned().collect();
        for volume in &rolling {
            if let Some(branch) = volume.branch() {
                self.go_on_rolling_back(volume, &branch).await?;
            }
        }
        if !rolling.is_empty() {
            return Ok(true);
        }
        let _one = self.tidying.lock().await;
        let quiet = self.runtime.now().saturating_sub(self.last_write.get()) >= QUIET;
        let volumes: Vec<_> = self.tables.borrow().volumes.values().cloned().collect();
        for volume in volumes {
            let Some(branch) = volume.branch() else { continue };
            if branch.parent.is_some() {
                continue;
            }
            if !quiet && !branch.pvol.borrow().pairs.is_empty() {
                continue;
            }
            if branch.pvol.borrow().rolled.is_some() {
                // A roll-back has begun while this waited, and goes by the same cursor.
                continue;
            }
            let blocks = self.homeless(&volume, &branch);
            if blocks.is_empty() {
                continue;
            }
            for block in blocks {
                self.bring_block_home(&volume, &branch, block).await?;
            }
            if branch.pvol.borrow().pairs.is_empty() {
                self.tidy(Tidying::Holes(Rc::clone(&volume)));
            }
            self.tidy(Tidying::Family(Rc::clone(&branch.family)));
            return Ok(true);
        }
        Ok(false)
    }

    /// Some blocks that lie in a slot although their home is free for them.
    fn homeless(&self, volume: &Rc<VolumeState>, branch: &Branch) -> Vec<u64> {
        let pvol = branch.pvol.borrow();
        let from = volume.put_in_order.get();
        let around = pvol.index.listed(from, super::BLOCKS_LIMIT);
        let mut blocks: Vec<u64> = Vec::new();
        let mut looked = 0;
        for (key, _) in around {
            looked += 1;
            volume.put_in_order.set(key.block() + 1);
            if blocks.last() != Some(&key.block()) && self.may_come_home(volume, branch, key.block()).is_some() {
                blocks.push(key.block());
            }
            if blocks.len() == STEP || looked == 16 * STEP {
                return blocks;
            }
        }
        // The next look begins at the first block again.
        volume.put_in_order.set(0);
        blocks
    }

    /// The slot of a block that can be brought home, and the version it is.
    fn may_come_home(&self, volume: &VolumeState, branch: &Branch, block: u64) -> Option<(Key, Slot)> {
        let pvol = branch.pvol.borrow();
        if pvol.rolled.is_some() {
            // What is listed is not what the volume is.
            return None;
        }
        let group = (block / self.group_blocks(volume)) as u32;
        let (key, Location::Slot(slot)) = pvol.index.find(block, Epoch::NOW)? else { return None };
        let extent = volume.extent((block / self.array.extent_blocks() as u64) as u32);
        let born = extent.map_or(u64::MAX, |extent| extent.owner.born);
        let listed_home = pvol.index.listed(block, block + 1).any(|(_, at)| at == Location::Home);
        // A snapshot looks for nothing in an extent that is younger than itself.
        let too_young = pvol.pairs.sees(key.birth(), pvol.pairs.latest_at(born)).is_some();
        let holed = pvol.index.hole(group, Epoch::NOW).is_some();
        let free = !holed && !listed_home && !too_young && !pvol.home_is_seen(block, group, born);
        free.then_some((key, slot))
    }

    /// Writes a block to its home and gives its slot up, unless something else happens to it meanwhile.
    async fn bring_block_home(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>, block: u64) -> Result<()> {
        let pool = &branch.family.pool;
        loop {
            if self.ready(volume).is_err() || !volume.branch().is_some_and(|now| Rc::ptr_eq(&now, branch)) {
                return Ok(());
            }
            let Some((key, slot)) = self.may_come_home(volume, branch, block) else { return Ok(()) };
            let home = (block / self.array.extent_blocks() as u64) as u32;
            let Some(at_home) = volume.extent(home) else {
                // No snapshot is given up for this: whoever does that waits until nothing is tidied up.
                self.map_into_free(volume, home).await?;
                continue;
            };
            let in_slot = pool.extent((slot.0 / self.array.extent_blocks() as u64) as u32);
            let _pinned = Pins::of(in_slot.iter().chain([&at_home]));
            let data = self.read_blocks(pool, slot.0, slot.0 + 1).await?;
            self.make_room(Self::bytes_of(1)).await?;
            if let Some(extent) = self.unloaded(volume, block).or_else(|| self.unloaded(pool, slot.0)) {
                self.load(&extent).await?;
                continue;
            }
            if volume.extent(home).is_none() {
                continue;
            }
            // From here on nothing waits: it is as it was read, or it is looked at again.
            let now = self.checksum(pool, slot.0);
            let unchanged = now.is_none_or(|now| now == Checksum::of(&data.contiguous()));
            if !unchanged
                || self.may_come_home(volume, branch, block) != Some((key, slot))
                || self.ready(volume).is_err()
            {
                continue;
            }
            self.come_home(volume, branch, (key, slot), now.map(|checksum| (data, checksum)));
            return Ok(());
        }
    }

    fn come_home(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Branch,
        (key, slot): (Key, Slot),
        data: Option<(Bufs, Checksum)>,
    ) {
        let block = key.block();
        match data {
            Some((data, checksum)) => self.put_blocks(volume, block, &data, &[checksum]),
            None => self.clear_loaded(volume, block, block + 1),
        }
        let mut pvol = branch.pvol.borrow_mut();
        pvol.index.remove(key);
        let mut entries = vec![(slot, None)];
        // A younger version than any that is left says so: home has what was born then.
        if let Some((older, Location::Slot(carrier))) = pvol.index.find(block, Epoch::NOW) {
            entries.insert(0, (carrier, Some(Entry { owner: volume.number(), key: older, home: key.birth() })));
            pvol.index.insert(key, Location::Home);
        }
        drop(pvol);
        self.put_entries(&branch.family, &entries);
    }
}
