//! Groups of blocks that read as zeroes at once.

use super::Branch;
use super::change::{Change, birth_now};
use super::tidy::{STEP, Tidying};
use crate::checkpoint::TABLES_FOR_GROUPS;
use crate::extent::Extent;
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::write::{Edges, PIECE_BLOCKS};
use kura_block::{BLOCK_BYTES_U64, Result};
use kura_snapshot::{Key, Location, Pvol};
use std::collections::BTreeSet;
use std::rc::Rc;

impl Inner {
    /// Makes a part of `first..end` read as zeroes, from its start on; where the next part begins. Its group as a whole
    /// takes one record, whatever its size.
    pub async fn clear_seen(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>, first: u64, end: u64) -> Result<u64> {
        let group_blocks = self.group_blocks(volume);
        let group_end = (first / group_blocks + 1) * group_blocks;
        // Also of a volume that grows meanwhile: what is behind its old end is another's.
        let has_all = || end >= group_end.min(volume.size_bytes() / BLOCK_BYTES_U64);
        if first.is_multiple_of(group_blocks) && has_all() {
            self.make_room(0).await?;
            self.released(volume).await;
            if !self.may_change(volume, branch)? || !has_all() {
                return Ok(first);
            }
            // Nothing changes between the last look and the hole.
            if let Some(unloaded) = Self::unloaded_to_empty(volume, self.index_of(first)) {
                self.load(&unloaded).await?;
                return Ok(first);
            }
            let untouched = self.next_touched(volume, first);
            if untouched >= group_end {
                // Nor need it be said.
                return Ok(end.min(untouched / group_blocks * group_blocks));
            }
            if branch.pvol.borrow().is_hole((first / group_blocks) as u32, first, group_end) {
                return Ok(group_end);
            }
            let superseded = Self::superseded(branch, (first, group_end));
            if superseded.is_empty() {
                self.dig(volume, branch, first / group_blocks)?;
                return Ok(group_end);
            }
            self.judge_all(volume, branch, superseded);
            return Ok(first);
        }
        let until = end.min(group_end).min(first + PIECE_BLOCKS as u64);
        let changed = self.change(volume, branch, first..until, &Change::Clear, &Edges::default()).await?;
        Ok(if changed { until } else { first })
    }

    /// An extent whose page must be loaded before [`Inner::empty`] of its group.
    pub(super) fn unloaded_to_empty(volume: &VolumeState, index: u32) -> Option<Rc<Extent>> {
        let group = if volume.spec.borrow().thick { volume.group_of(index) } else { Vec::new() };
        group.into_iter().find(|extent| !extent.is_loaded())
    }

    /// Gives a group up of which nobody sees anything. A thick volume keeps it, and its blocks read as zeroes.
    pub(super) fn empty(&self, volume: &Rc<VolumeState>, index: u32) {
        if volume.spec.borrow().thick {
            let (first, end) = self.group_range(volume, index);
            self.clear_loaded(volume, first, end);
        } else {
            self.unmap(volume, index);
        }
    }

    /// Some versions of a group's blocks that no snapshot sees, nor the volume itself.
    fn superseded(branch: &Branch, (first, end): (u64, u64)) -> Vec<Key> {
        let pvol = branch.pvol.borrow();
        let latest = pvol.era();
        let newer = |key: Key| pvol.index.next(key).is_some();
        let listed = pvol.index.listed(first, end).map(|(key, _)| key);
        listed.filter(|key| key.birth() >= latest && newer(*key)).take(STEP).collect()
    }

    /// Makes a group read as zeroes, of whose versions the snapshots see all but the present.
    ///
    /// ```text
    ///   slots, home            in the log
    ///   present in a slot      hole > pool entries: its slot is free
    ///   present at home        hole > pool entries: the slot that said what home has is silent
    ///   older ones             stay where they are, for the snapshots
    /// ```
    /// Cut behind the hole, the log leaves a block what it was, or zeroes: what is older is hidden by the hole, and home
    /// speaks no more. Nobody sees an older version instead, for there is none that is as young as the hole.
    ///
    /// Present versions whose end changes more pages than belong into one step of tidying up are left to that: such a hole has a number of
    /// its own, which no snapshot gets, so that it hides them, too.
    fn dig(&self, volume: &Rc<VolumeState>, branch: &Branch, group: u64) -> Result<()> {
        let group_blocks = self.group_blocks(volume);
        let (first, end) = (group * group_blocks, (group + 1) * group_blocks);
        // Looked at before anything is borrowed that it looks at.
        let room_for_hole = self.room_in_tables(0, TABLES_FOR_GROUPS);
        let mut pvol = branch.pvol.borrow_mut();
        let latest = pvol.era();
        let listed: Vec<_> = pvol.index.listed(first, end).collect();
        // What no snapshot sees must not be there when the hole is the newest of all.
        let (unseen, seen): (Vec<_>, Vec<_>) = listed.into_iter().partition(|(key, _)| key.birth() >= latest);
        let ends = |pvol: &Pvol, (key, at): (Key, Location)| match at {
            Location::Slot(slot) => Some((slot, None)),
            Location::Home => branch.pool_vol.silence(pvol, key),
        };
        let page = |version: &(Key, Location)| ends(&pvol, *version).map(|(slot, _)| slot.page());
        let index = self.index_of(first);
        let born = volume.extent(index).map(|extent| extent.owner.born);
        let base_is_seen = branch.parent.is_some() || born.is_some_and(|born| pvol.pairs.latest_at(born) < latest);
        let is_seen = base_is_seen
            || !seen.is_empty()
            || pvol.rolled.is_some()
            || pvol.index.hole(group as u32, kura_snapshot::Epoch::NOW).is_some();
        let is_large = unseen.iter().filter_map(page).collect::<BTreeSet<_>>().len() > STEP;
        if is_seen || is_large {
            room_for_hole?;
        }
        if is_large {
            let birth = pvol.pairs.next();
            pvol.pairs.skip(birth);
            self.append(&Record::Versions(VersionRecord::Hole { volume: volume.id, group: group as u32, birth }));
            let hidden = pvol.dig(group as u32, first, end, birth);
            drop(pvol);
            self.tidy.add_versions(volume, hidden);
            self.tidy.add(Tidying::Holes { volume: Rc::clone(volume), from: group as u32 });
            return Ok(());
        }
        for (key, _) in &unseen {
            pvol.index.remove(*key);
        }
        let ends: Vec<_> = unseen.into_iter().filter_map(|version| ends(&pvol, version)).collect();
        if !is_seen {
            drop(pvol);
            self.empty(volume, index);
            self.put_entries(&branch.pool_vol, &ends);
            self.tidy.add_family(&branch.pool_vol);
            return Ok(());
        }
        let birth = birth_now(&pvol, group as u32);
        self.append(&Record::Versions(VersionRecord::Hole { volume: volume.id, group: group as u32, birth }));
        let unseen = pvol.dig(group as u32, first, end, birth);
        drop(pvol);
        // Only now: before the hole, what is older would be the present.
        self.put_entries(&branch.pool_vol, &ends);
        self.tidy.add_versions(volume, unseen);
        self.tidy.add_family(&branch.pool_vol);
        Ok(())
    }
}
