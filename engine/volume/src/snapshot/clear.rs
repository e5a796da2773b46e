//! Groups of blocks that read as zeroes at once.

use super::Branch;
use super::change::{Change, birth_now};
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::write::{Edges, PIECE_BLOCKS};
use kura_block::{BLOCK_BYTES, Result};
use kura_snapshot::{Key, Location, Slot};
use std::rc::Rc;

impl Inner {
    /// Makes a part of `first..end` read as zeroes, from its start on; where the next part begins. Its group as a whole
    /// takes one record, whatever its size.
    pub async fn clear_seen(&self, volume: &Rc<VolumeState>, branch: &Rc<Branch>, first: u64, end: u64) -> Result<u64> {
        let group_blocks = self.group_blocks(volume);
        let group_end = (first / group_blocks + 1) * group_blocks;
        let volume_end = volume.size_bytes() / BLOCK_BYTES as u64;
        if first.is_multiple_of(group_blocks) && end >= volume_end.min(group_end) {
            self.make_room(0).await?;
            self.released(volume).await;
            self.ready(volume)?;
            self.refuse_rolled_to(volume, branch)?;
            let same = volume.branch().is_some_and(|now| Rc::ptr_eq(&now, branch));
            if same && self.dig(volume, branch, first / group_blocks) {
                return Ok(group_end);
            }
        }
        let until = end.min(group_end).min(first + PIECE_BLOCKS as u64);
        let changed = self.change(volume, branch, first..until, &Change::Clear, &Edges::default()).await?;
        Ok(if changed { until } else { first })
    }

    /// Makes a group read as zeroes; false when some of its blocks must be cleared one by one.
    fn dig(&self, volume: &Rc<VolumeState>, branch: &Branch, group: u64) -> bool {
        let group_blocks = self.group_blocks(volume);
        let (first, end) = (group * group_blocks, (group + 1) * group_blocks);
        let mut pvol = branch.pvol.borrow_mut();
        let latest = pvol.era();
        let listed: Vec<_> = pvol.index.listed(first, end).collect();
        if listed.iter().any(|(_, at)| *at == Location::Home) {
            return false;
        }
        // What no snapshot sees must not be there when the hole is the newest of all.
        let (unseen, seen): (Vec<_>, Vec<_>) = listed.into_iter().partition(|(key, _)| key.birth() >= latest);
        let unseen: Vec<(Key, Slot)> = unseen
            .into_iter()
            .filter_map(|(key, at)| match at {
                Location::Slot(slot) => Some((key, slot)),
                Location::Home => None,
            })
            .collect();
        for (key, _) in &unseen {
            pvol.index.remove(*key);
        }
        let frees: Vec<_> = unseen.into_iter().map(|(_, slot)| (slot, None)).collect();
        let index = (first / self.array.extent_blocks() as u64) as u32;
        let born = volume.extent(index).map(|extent| extent.owner.born);
        let base_is_seen = branch.parent.is_some() || born.is_some_and(|born| pvol.pairs.latest_at(born) < latest);
        let whole = pvol.rolled.is_none();
        if whole
            && !base_is_seen
            && seen.is_empty()
            && pvol.index.hole(group as u32, kura_snapshot::Epoch::NOW).is_none()
        {
            drop(pvol);
            self.unmap(volume, index);
            self.put_entries(&branch.family, &frees);
            return true;
        }
        let birth = birth_now(&pvol, group as u32);
        self.append(&Record::Versions(VersionRecord::Hole { volume: volume.id, group: group as u32, birth }));
        let unseen = pvol.dig(group as u32, first, end, birth);
        drop(pvol);
        // Only now: before the hole, what is older would be the present.
        self.put_entries(&branch.family, &frees);
        self.tidy_versions(volume, unseen);
        true
    }
}
