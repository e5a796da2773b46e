//! Rolling back: a volume becomes what one of its snapshots is. It is so at once: what was not written since lies where the
//! snapshot has it. In the background what nobody sees any more is given up, the blocks that differ still are written to the
//! volume, and then it is a volume like any other again.
//!
//! ```text
//!   versions of a block, snapshots a and b          rolled back to a      in the log
//!   born before a                                   the present again     nothing
//!   born before a, then one after a                 the present again     pool entries: the younger one's slot is free
//!   born before a, one after a, b sees that         written once more     data > pool entries
//!   of a's own                                      written once more     data > pool entries
//! ```
//!
//! What must hold:
//! 1. What is given up or written is so behind the record of the roll-back, which hides it: cut anywhere, the log leaves a volume
//!    that is rolled back to what the snapshot has.
//! 2. The snapshot's data is there until the roll-back is done. Deleted before, the snapshot is *left* to the roll-back: nobody
//!    else knows it, and it goes with the end of the roll-back, or with the volume.
//! 3. So what waits for room keeps nobody from making room: the volume can be deleted when its snapshots are.

use super::Branch;
use super::change::Change;
use super::locate::Place;
use super::order::BREATH;
use super::tidy::Tidying;
use crate::record::{Record, Spec};
use crate::snapshot::VersionRecord;
use crate::status::VolumeStatus;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use crate::write::{Edges, PIECE_BLOCKS, checksums_of};
use kura_block::{Amount, BLOCK_BYTES_U64, Error, Result};
use kura_snapshot::{Epoch, Location, Rolled};
use std::rc::Rc;

/// Groups looked at between two looks at what else goes on.
const STEP: u64 = 16;

impl Store {
    /// Refuses what [`Store::roll_back`] refuses.
    pub fn check_roll_back(&self, snapshot: &str) -> Result<()> {
        self.inner.rollable(snapshot).map(drop)
    }

    /// Makes a volume what a snapshot of it is before anything is waited for; durable when the future resolves. A volume that grew since keeps its size:
    /// what is beyond the snapshot's end reads as zeroes.
    pub async fn roll_back(&self, snapshot: &str) -> Result<VolumeStatus> {
        let inner = &self.inner;
        let (svol, volume, branch) = inner.rollable(snapshot)?;
        Inner::epochs_left(&volume)?;
        let rolled = Rolled { svol: svol.id, since: branch.pvol.borrow().pairs.next() };
        inner.append(&Record::Versions(VersionRecord::RollBack { volume: volume.id, rolled }));
        inner.begin_rolling(&volume, &branch, rolled);
        inner.commit_all().await?;
        inner.tidy.tidier.notify_one();
        Ok(inner.status_of(&volume))
    }
}

impl Inner {
    /// A snapshot, its volume, which can be rolled back to it, and what the volume is among its snapshots.
    fn rollable(&self, snapshot: &str) -> Result<(Rc<VolumeState>, Rc<VolumeState>, Rc<Branch>)> {
        let svol = self.find(snapshot)?;
        let parent = svol.branch().and_then(|branch| branch.parent.clone());
        let (volume, _) =
            parent.ok_or_else(|| Error::invalid(format!("{snapshot}: is no snapshot: give VOLUME@NAME")))?;
        self.ready(&volume)?;
        Self::refuse_rolling(&volume)?;
        Self::refuse_rolling(&svol)?;
        let name = volume.spec.borrow().name.clone();
        if volume.spec.borrow().read_only {
            return Err(Error::read_only(format!("volume {name} is read-only: clone the snapshot instead")));
        }
        if volume.size_bytes() < svol.size_bytes() {
            return Err(Error::invalid(format!(
                "volume {name}: has {} and {snapshot} has {}: give the volume the snapshot's size first (kura volume \
                 resize)",
                Amount(volume.size_bytes()),
                Amount(svol.size_bytes())
            )));
        }
        let Some(branch) = volume.branch() else { return Err(Error::missing(format!("{snapshot}: no such snapshot"))) };
        Self::refuse_rolled_to(&volume, &branch)?;
        self.refuse_doomed(&volume, &branch.pool_vol)?;
        Ok((svol, volume, branch))
    }

    fn begin_rolling(&self, volume: &VolumeState, branch: &Branch, rolled: Rolled) {
        self.tables.borrow_mut().rolling.insert(volume.id);
        let mut pvol = branch.pvol.borrow_mut();
        pvol.pairs.skip(rolled.since);
        pvol.rolled = Some(rolled);
        branch.rolling.over.set(0);
        branch.rolling.back.set(0);
    }

    /// The snapshot that a volume is being rolled back to.
    fn rolled_to(&self, volume: &VolumeState) -> Option<Rc<VolumeState>> {
        let rolled = volume.branch()?.pvol.borrow().rolled?;
        self.tables.borrow().volumes.get(&rolled.svol).cloned()
    }

    /// True for a snapshot that its volume is being rolled back to.
    pub fn is_rolled_to(&self, svol: &Rc<VolumeState>) -> bool {
        let parent = svol.branch().and_then(|branch| branch.parent.clone());
        parent.and_then(|(volume, _)| self.rolled_to(&volume)).is_some_and(|to| Rc::ptr_eq(&to, svol))
    }

    /// Deletes a snapshot but for its volume, which is being rolled back to it.
    pub fn leave_to_roll_back(&self, svol: &VolumeState) {
        self.append(&Record::Versions(VersionRecord::Left { svol: svol.id }));
        self.hide(svol.id);
    }

    pub(super) fn hide(&self, svol: u64) {
        self.tables.borrow_mut().volumes.rename(svol, Spec::left_name(svol));
    }

    /// The snapshot that is there only because the volume is being rolled back to it.
    pub fn left_to(&self, volume: &VolumeState) -> Option<Rc<VolumeState>> {
        self.rolled_to(volume).filter(|svol| svol.is_hidden())
    }

    /// Deletes snapshots that were left to a roll-back which is over, or whose volume is gone: the power went between two records.
    pub fn remove_left(&self) {
        let hidden = |volume: &&Rc<VolumeState>| volume.is_hidden() && !volume.is_pool();
        let left: Vec<_> = self.tables.borrow().volumes.values().filter(hidden).cloned().collect();
        for svol in left {
            let parent = svol.branch().and_then(|branch| branch.parent.clone()).map(|(parent, _)| parent);
            let there = parent.is_some_and(|parent| self.tables.borrow().volumes.contains_key(&parent.id));
            if !there || !self.is_rolled_to(&svol) {
                self.remove(&svol);
            }
        }
    }

    /// Replays that a volume is being rolled back, or has been.
    pub fn replay_roll_back(&self, volume: u64, rolled: Option<Rolled>) {
        let state = self.tables.borrow().volumes.get(&volume).cloned();
        let Some(state) = state else { return };
        let Some(branch) = state.branch() else { return };
        match rolled {
            Some(rolled) => self.begin_rolling(&state, &branch, rolled),
            None => branch.pvol.borrow_mut().rolled = None,
        }
    }

    /// Refuses what cannot be while a volume is being rolled back.
    pub fn refuse_rolling(volume: &VolumeState) -> Result<()> {
        let rolled = volume.branch().filter(|branch| branch.pvol.borrow().rolled.is_some());
        let Some(branch) = rolled else { return Ok(()) };
        // All of it is looked at twice.
        let (done, all) =
            (branch.rolling.over.get() + branch.rolling.back.get(), volume.size_bytes() / BLOCK_BYTES_U64);
        let share = (done * 50 / all.max(1)).min(100);
        let name = volume.spec.borrow().name.clone();
        let what = format!("volume {name}: is being rolled back, {share} % done");
        Err(Error::busy(match &*branch.rolling.waits.borrow() {
            None => format!("{what}: try again when it is"),
            Some(why) => format!("{what}, and waits: {why}: a block that is written anew is passed over"),
        }))
    }

    /// Refuses to change a snapshot that its volume is being rolled back to.
    pub fn refuse_rolled_to(svol: &VolumeState, branch: &Branch) -> Result<()> {
        let Some((parent, _)) = &branch.parent else { return Ok(()) };
        let to = parent.branch().and_then(|of| of.pvol.borrow().rolled).map(|rolled| rolled.svol);
        if to == Some(svol.id) { Self::refuse_rolling(parent) } else { Ok(()) }
    }

    /// Tells once that a roll-back waits, and why, until it goes on.
    pub(super) fn note_roll_back(&self, volume: &VolumeState, branch: &Branch, done: &Result<()>) {
        let waited = branch.rolling.waits.replace(done.as_ref().err().cloned()).is_some();
        if let Err(error) = done
            && !waited
            && self.ready(volume).is_ok()
        {
            let name = volume.spec.borrow().name.clone();
            tracing::warn!(volume = name, %error, "a roll-back waits and will be tried again");
        }
    }

    /// Writes some of the blocks that differ.
    pub async fn go_on_rolling_back(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>) -> Result<()> {
        let Some(rolled) = branch.pvol.borrow().rolled else { return Ok(()) };
        let svol = self.tables.borrow().volumes.get(&rolled.svol).cloned();
        let Some(svol) = svol else {
            return Err(Error::corrupt(format!("volume {}: the snapshot it is rolled back to is gone", volume.id)));
        };
        let end = volume.size_bytes() / BLOCK_BYTES_U64;
        let group_blocks = self.group_blocks(volume);
        for _ in 0..STEP {
            self.ready(volume)?;
            if branch.rolling.over.get() < end {
                self.give_up_rolled_over(volume, branch, &svol, end).await?;
                if branch.rolling.over.get() == end {
                    // What was given up is free behind a checkpoint, and may be what is written next.
                    return self.reclaim().await;
                }
                continue;
            }
            // Where neither has anything of its own they are alike.
            let at = branch.rolling.back.get();
            let first = self.next_own(volume, at).min(self.next_own(&svol, at));
            if first >= end {
                self.append(&Record::Versions(VersionRecord::RolledBack { volume: volume.id }));
                let left = self.left_to(volume);
                branch.pvol.borrow_mut().rolled = None;
                // What waited for the end of this.
                branch.look_again();
                self.tidy.add(Tidying::holes(volume));
                if let Some(svol) = left {
                    self.remove(&svol);
                }
                return self.commit_all().await;
            }
            let (first, until) = self.group_range(volume, self.index_of(first));
            let until = until.min(end);
            if self.group_differs(volume, branch, &svol, first / group_blocks) {
                self.roll_group_back(volume, branch, &svol, (first, until)).await?;
            }
            branch.rolling.back.set(until);
        }
        // It may have waited for no disk: clients have their turn.
        self.runtime.sleep(BREATH / 10).await;
        Ok(())
    }

    /// Gives up some of what the roll-back has superseded and no snapshot sees: the newest versions, so that older ones are what the
    /// snapshot has, and homes that are younger than it. All of it goes before anything is written: it makes the room for that.
    async fn give_up_rolled_over(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Rc<Branch>,
        svol: &VolumeState,
        end: u64,
    ) -> Result<()> {
        let _one = self.tidy.turn.lock().await;
        self.make_room(0).await?;
        let here = volume.branch().is_some_and(|now| Rc::ptr_eq(&now, branch));
        let made = svol.branch().and_then(|of| of.parent.as_ref().map(|(_, epoch)| *epoch));
        if !here || branch.pvol.borrow().rolled.is_none() {
            return Ok(());
        }
        let Some(made) = made else {
            return Err(Error::corrupt(format!("volume {}: what it is rolled back to is no snapshot", volume.id)));
        };
        let at = branch.rolling.over.get();
        let first = self.next_own(volume, at);
        let mut until = end;
        if first < end {
            let (start, group_end) = self.group_range(volume, self.index_of(first));
            let listed = branch.pvol.borrow().index.first_in(first, group_end).is_some();
            until = if listed { group_end.min(first + super::tidy::STEP as u64) } else { group_end }.min(end);
            let keys = branch.pvol.borrow().rolled_over(first, until, made);
            self.judge_all(volume, branch, keys);
            if until == end.min(group_end) {
                self.give_up_home(volume, branch, start);
                self.give_up_holes(volume, branch, start, made);
            }
            self.stir();
        }
        branch.rolling.over.set(until);
        if until == end {
            // What was looked at before may be something else behind what was given up.
            branch.rolling.back.set(0);
            self.tidy.add_family(&branch.pool_vol);
        }
        Ok(())
    }

    /// Gives the group up that begins with this block, where no snapshot sees what is there at home.
    fn give_up_home(&self, volume: &Rc<VolumeState>, branch: &Branch, start: u64) {
        let index = self.index_of(start);
        let Some(extent) = volume.extent(index).filter(|_| !volume.spec.borrow().thick) else { return };
        let pvol = branch.pvol.borrow();
        let mut listed = pvol.index.listed(start, start + self.group_blocks(volume));
        let is_seen = pvol.base_is_seen(extent.owner.born) || listed.any(|(_, at)| at == Location::Home);
        drop(extent);
        if !is_seen {
            self.unmap(volume, index);
        }
    }

    /// Gives the holes up of the group that begins with this block, where they are no older than the snapshot, whose number is `made`,
    /// and nobody sees them any more: what they hide is what the snapshot had when it was made.
    fn give_up_holes(&self, volume: &VolumeState, branch: &Branch, start: u64, made: Epoch) {
        let (index, group) = (self.index_of(start), (start / self.group_blocks(volume)) as u32);
        let pvol = &mut *branch.pvol.borrow_mut();
        let holes = pvol.index.oldest_hole(group).zip(pvol.index.hole(group, Epoch::NOW));
        let (Some(Rolled { since, .. }), Some((oldest, newest))) = (pvol.rolled, holes) else { return };
        // In a home that is younger than the snapshot they hide what it has not.
        let fresh = volume.extent(index).is_some_and(|extent| pvol.pairs.latest_at(extent.owner.born) >= made);
        if !fresh && oldest >= made && newest < since && pvol.pairs.sees(oldest, since).is_none() {
            self.append(&Record::Versions(VersionRecord::NoHoles { volume: volume.id, group }));
            pvol.index.fill(group);
        }
    }

    /// True when a group of the volume may be something else than the snapshot's.
    fn group_differs(&self, volume: &VolumeState, branch: &Branch, svol: &VolumeState, group: u64) -> bool {
        let group_blocks = self.group_blocks(volume);
        let (first, end) = (group * group_blocks, (group + 1) * group_blocks);
        let has = |of: &Branch, since: Epoch| {
            let pvol = of.pvol.borrow();
            let hole = pvol.index.hole(group as u32, Epoch::NOW).is_some_and(|hole| hole >= since);
            hole || pvol.index.listed(first, end).any(|(key, _)| key.birth() >= since)
        };
        let Some(own) = svol.branch() else { return true };
        let Some((_, epoch)) = own.parent.clone() else { return true };
        let made = branch.pvol.borrow().pairs.get(epoch).map_or(0, |pair| pair.lsn);
        let extent = volume.extent(self.index_of(first));
        let fresh = branch.parent.is_none() && extent.is_some_and(|extent| extent.owner.born > made);
        fresh || has(&own, Epoch::FIRST) || has(branch, epoch)
    }

    /// Writes what the snapshot has to those blocks of `first..end` that nobody has written since.
    async fn roll_group_back(
        &self,
        volume: &Rc<VolumeState>,
        branch: &Rc<Branch>,
        svol: &Rc<VolumeState>,
        (first, end): (u64, u64),
    ) -> Result<()> {
        // What is replaced there cannot be told: its page lies on lost disks.
        let (mut at, mut pins, mut lost) = (first, None, None);
        while at < end {
            let (place, run) = self.locate(volume, at, end.min(at + PIECE_BLOCKS as u64));
            let (wanted, alike) = self.locate(svol, at, at + run);
            if place != wanted {
                // Written since.
                at += 1;
                continue;
            }
            let (unrolled, run) = self.locate_unrolled(volume, branch, at, at + run.min(alike));
            if unrolled == wanted {
                at += run;
                continue;
            }
            let pinned = pins.insert(self.pinned(wanted.spots(run)));
            if let Some(unloaded) = pinned.extents().iter().find(|extent| !extent.is_loaded()) {
                self.load(unloaded).await?;
                continue;
            }
            let empty = self.is_empty(&wanted, 0);
            let mut run = (1..run).find(|ahead| self.is_empty(&wanted, *ahead) != empty).unwrap_or(run);
            if empty && lost != Some(at) {
                let pinned =
                    pins.insert(self.pinned([&wanted, &unrolled].into_iter().flat_map(|place| place.spots(run))));
                if let Some(unloaded) = pinned.extents().iter().find(|extent| !extent.is_loaded()) {
                    lost = self.load(unloaded).await.is_err().then_some(at);
                    continue;
                }
                let was_empty = self.is_empty(&unrolled, 0);
                run = (1..run).find(|ahead| self.is_empty(&unrolled, *ahead) != was_empty).unwrap_or(run);
                if was_empty {
                    at += run;
                    continue;
                }
            }
            // What is held here cannot be given back to the pool.
            pins.take();
            let edges = Edges::of((at..at + run).map(|block| (block, self.seen(volume, block))));
            let read = self.read_seen(svol, at, at + run).await;
            let data = read.map_err(|error| error.at(format!("blocks {at} to {} of the snapshot", at + run - 1)))?;
            let checksums = checksums_of(&data);
            let change = if empty { Change::Clear } else { Change::Write { data: &data, checksums: &checksums } };
            if self.change(volume, branch, at..at + run, &change, &edges).await? {
                at += run;
            }
        }
        Ok(())
    }

    /// True for a place where nothing is, so many blocks ahead: it reads as zeroes. Its page is loaded.
    fn is_empty(&self, place: &Place, ahead: u64) -> bool {
        match place {
            Place::Zero => true,
            Place::At(state, block) => self.checksum(state, block + ahead).is_none(),
        }
    }

    /// Where a block would lie if the volume were not being rolled back.
    fn locate_unrolled(&self, volume: &Rc<VolumeState>, branch: &Branch, block: u64, end: u64) -> (Place, u64) {
        let rolled = branch.pvol.borrow_mut().rolled.take();
        let found = self.locate(volume, block, end);
        branch.pvol.borrow_mut().rolled = rolled;
        found
    }
}
