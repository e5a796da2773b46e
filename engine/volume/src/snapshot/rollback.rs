//! Rolling back: a volume becomes what one of its snapshots is. It is so at once: what was not written since lies where the
//! snapshot has it; the blocks that differ are written to the volume in the background, and then it is a volume like any
//! other again.

use super::Branch;
use super::change::Change;
use super::locate::Place;
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::status::VolumeStatus;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use crate::write::{Edges, PIECE_BLOCKS, checksums_of};
use kura_block::{Amount, BLOCK_BYTES, Error, Result};
use kura_snapshot::{Epoch, Rolled};
use std::rc::Rc;

/// Groups looked at between two looks at what else goes on.
const STEP: u64 = 16;

impl Store {
    /// Refuses what [`Store::roll_back`] refuses.
    pub fn check_roll_back(&self, snapshot: &str) -> Result<()> {
        self.inner.rollable(snapshot).map(drop)
    }

    /// Makes a volume what a snapshot of it is; durable when the future resolves. A volume that grew since keeps its size:
    /// what is beyond the snapshot's end reads as zeroes.
    pub async fn roll_back(&self, snapshot: &str) -> Result<VolumeStatus> {
        let inner = &self.inner;
        let (svol, volume, branch) = inner.rollable(snapshot)?;
        let rolled = Rolled { svol: svol.id, since: branch.pvol.borrow().pairs.next() };
        inner.append(&Record::Versions(VersionRecord::RollBack { volume: volume.id, rolled }));
        Inner::begin_rolling(&volume, &branch, rolled);
        inner.commit_all().await?;
        inner.tidier.notify_one();
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
        self.refuse_rolling(&volume)?;
        self.refuse_rolling(&svol)?;
        let name = volume.spec.borrow().name.clone();
        if volume.spec.borrow().read_only {
            return Err(Error::read_only(format!("volume {name} is read-only")));
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
        self.refuse_rolled_to(&volume, &branch)?;
        Ok((svol, volume, branch))
    }

    fn begin_rolling(volume: &VolumeState, branch: &Branch, rolled: Rolled) {
        let mut pvol = branch.pvol.borrow_mut();
        pvol.pairs.skip(rolled.since);
        pvol.rolled = Some(rolled);
        volume.rolled_back.set(0);
    }

    /// Replays that a volume is being rolled back, or has been.
    pub fn replay_roll_back(&self, volume: u64, rolled: Option<Rolled>) {
        let state = self.tables.borrow().volumes.get(&volume).cloned();
        let Some(state) = state else { return };
        let Some(branch) = state.branch() else { return };
        match rolled {
            Some(rolled) => Self::begin_rolling(&state, &branch, rolled),
            None => branch.pvol.borrow_mut().rolled = None,
        }
    }

    /// Refuses what cannot be while a volume is being rolled back.
    pub fn refuse_rolling(&self, volume: &VolumeState) -> Result<()> {
        let rolled = volume.branch().is_some_and(|branch| branch.pvol.borrow().rolled.is_some());
        if !rolled {
            return Ok(());
        }
        let (done, all) = (volume.rolled_back.get(), u64::from(volume.extents().max(1)));
        let share = done * 100 / (all * self.array.extent_blocks() as u64).max(1);
        let name = volume.spec.borrow().name.clone();
        Err(Error::busy(format!("volume {name}: is being rolled back, {share} % done: try again when it is")))
    }

    /// Refuses to change a snapshot that its volume is being rolled back to.
    pub fn refuse_rolled_to(&self, svol: &VolumeState, branch: &Branch) -> Result<()> {
        let Some((parent, _)) = &branch.parent else { return Ok(()) };
        let to = parent.branch().and_then(|of| of.pvol.borrow().rolled).map(|rolled| rolled.svol);
        if to == Some(svol.id) { self.refuse_rolling(parent) } else { Ok(()) }
    }

    /// Writes some of the blocks that differ.
    pub async fn go_on_rolling_back(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>) -> Result<()> {
        let Some(rolled) = branch.pvol.borrow().rolled else { return Ok(()) };
        let svol = self.tables.borrow().volumes.get(&rolled.svol).cloned();
        let Some(svol) = svol else {
            return Err(Error::corrupt(format!("volume {}: the snapshot it is rolled back to is gone", volume.id)));
        };
        let end = volume.size_bytes() / BLOCK_BYTES as u64;
        let group_blocks = self.group_blocks(volume);
        for _ in 0..STEP {
            let first = volume.rolled_back.get();
            if first >= end {
                self.append(&Record::Versions(VersionRecord::RolledBack { volume: volume.id }));
                branch.pvol.borrow_mut().rolled = None;
                volume.disordered.set(true);
                return self.commit_all().await;
            }
            let until = end.min((first / group_blocks + 1) * group_blocks);
            if self.group_differs(volume, branch, &svol, first / group_blocks) {
                self.roll_group_back(volume, branch, &svol, (first, until)).await?;
            }
            volume.rolled_back.set(until);
        }
        Ok(())
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
        let extent = volume.extent((first / self.array.extent_blocks() as u64) as u32);
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
        let mut at = first;
        while at < end {
            let (place, run) = self.locate(volume, at, end.min(at + PIECE_BLOCKS as u64));
            let (wanted, alike) = self.locate(svol, at, at + run);
            let run = run.min(alike);
            // Written since, or left as the snapshot has it already.
            let done = place != wanted || self.locate_unrolled(volume, branch, at, at + run) == (place.clone(), run);
            if done {
                at += if place == wanted { run } else { 1 };
                continue;
            }
            let edges = Edges::of((at..at + run).map(|block| (block, self.seen(volume, block))));
            let data = self.read_seen(svol, at, at + run).await?;
            let empty = match &wanted {
                Place::Zero => true,
                Place::At(state, block) => state.extent((block / self.array.extent_blocks() as u64) as u32).is_none(),
            };
            let checksums = checksums_of(&data);
            let change = if empty { Change::Clear } else { Change::Write { data: &data, checksums: &checksums } };
            if self.change(volume, branch, at..at + run, &change, &edges).await? {
                at += run;
            }
        }
        Ok(())
    }

    /// Where a block would lie if the volume were not being rolled back.
    fn locate_unrolled(&self, volume: &Rc<VolumeState>, branch: &Branch, block: u64, end: u64) -> (Place, u64) {
        let rolled = branch.pvol.borrow_mut().rolled.take();
        let found = self.locate(volume, block, end);
        branch.pvol.borrow_mut().rolled = rolled;
        found
    }
}
