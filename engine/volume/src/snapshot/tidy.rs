//! What deleted snapshots leave behind: versions that nobody sees any more.

use super::order::{BREATH, Progress, QUIET};
use super::{Branch, Family};
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::future::select;
use kura_block::Result;
use kura_snapshot::{Epoch, Key, Location, Slot};
use std::rc::Rc;
use std::time::Duration;

/// Versions looked at between two looks at what else goes on.
pub(super) const STEP: usize = 256;
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

    /// Has slots that nobody uses any more given back to the pool; asked for often, it is done once.
    pub fn tidy_family(&self, family: &Rc<Family>) {
        let asked = |what: &Tidying| matches!(what, Tidying::Family(asked) if Rc::ptr_eq(asked, family));
        if !self.untidy.borrow().back().is_some_and(asked) {
            self.tidy(Tidying::Family(Rc::clone(family)));
        }
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
            let done = if waits { self.tidy_next().await.map(|()| Progress::Moved) } else { self.put_in_order().await };
            let rest = match done {
                Ok(Progress::Moved) | Err(_) => None,
                Ok(Progress::Looked) => Some(BREATH),
                Ok(Progress::Nothing) => Some(QUIET),
            };
            if let Some(rest) = rest {
                let news = std::pin::pin!(self.tidier.notified());
                if self.families_wait() {
                    select(news, self.runtime.sleep(rest)).await;
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
                    let part = keys.split_off(keys.len().saturating_sub(STEP));
                    self.judge_all(&volume, &branch, part);
                }
                volume.look_again();
                if let Some(branch) = volume.branch() {
                    self.tidy(Tidying::Family(Rc::clone(&branch.family)));
                }
            }
            // Its new owner tidies up, or there is nothing left.
            Tidying::Slots { family, .. } | Tidying::Family(family) if family.pool.deleted.get() => {}
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

    /// Decides on versions that perhaps nobody sees, each with what was decided before.
    pub(super) fn judge_all(&self, volume: &VolumeState, branch: &Branch, keys: Vec<Key>) {
        for key in keys {
            let changes = self.judge(volume, branch, key);
            self.put_entries(&branch.family, &changes);
        }
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
                    volume.look_again();
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
}
