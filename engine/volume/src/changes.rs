//! What has changed in the tables since a checkpoint wrote them whole: the few bytes of its records, instead of tables that grow
//! with all that is mapped.
//!
//! ```text
//!  changes of a checkpoint, in whole blocks: bytes u32 of the records, (LSN u64, body length u16, body) each, zeroes
//! ```

use crate::extent::Extent;
use crate::record::{Effect, Record};
use crate::tables::Decoded;
use crate::tier::Known;
use kura_block::{BLOCK_BYTES, Error, Reader, Result, Writer};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// Changes are written, where there are no more of them than this or the tables they change, whichever is more.
const CHANGES_MIN_BYTES: u64 = 64 << 10;

/// The records since the last checkpoint that change the tables.
#[derive(Default)]
pub(crate) struct TableChanges {
    records: RefCell<Writer>,
    /// Changes do not do: the next checkpoint writes the tables whole.
    whole: Cell<bool>,
}

impl TableChanges {
    /// Notes a record of the log that changes the tables.
    pub fn note(&self, effect: Effect, lsn: u64, body: &[u8]) {
        if effect == Effect::Whole {
            self.want_whole();
        } else if !self.whole.get() {
            self.records.borrow_mut().u64(lsn).u16(body.len() as u16).bytes(body);
        }
    }

    /// True where the next checkpoint has something to write.
    pub fn are_there(&self) -> bool {
        self.whole.get() || !self.records.borrow().is_empty()
    }

    /// The next checkpoint writes the tables whole.
    pub fn want_whole(&self) {
        self.whole.set(true);
        self.records.take();
    }

    /// The changes since they were taken last, where these do beside tables of `whole_bytes` with changes of `changes_bytes` in an area
    /// of `area_bytes`; what was noted is forgotten.
    pub fn take(&self, (whole_bytes, changes_bytes): (u64, u64), area_bytes: u64) -> Option<Vec<u8>> {
        let (records, whole) = (self.records.take(), self.whole.take());
        let mut out = Writer::with_room(records.len() + BLOCK_BYTES);
        out.u32(records.len() as u32).bytes(records.as_slice()).pad_to(BLOCK_BYTES);
        let bytes = out.finish();
        let all_bytes = changes_bytes + bytes.len() as u64;
        let do_well = all_bytes <= whole_bytes.max(CHANGES_MIN_BYTES) && whole_bytes + all_bytes <= area_bytes;
        (!whole && do_well).then_some(bytes)
    }
}

impl Decoded {
    /// Applies the changes of checkpoints, in their order.
    pub fn change(&mut self, changes: &[u8], extent_bytes: u64) -> Result<()> {
        let mut copies: BTreeMap<_, _> =
            std::mem::take(&mut self.copies).into_iter().map(|copy| (copy.key, copy)).collect();
        let mut hot: BTreeMap<_, _> = std::mem::take(&mut self.hot).into_iter().collect();
        let mut of_checkpoints = Reader::new(changes);
        while !of_checkpoints.is_done() {
            let bytes = of_checkpoints.u32()? as usize;
            let mut records = Reader::new(of_checkpoints.bytes(bytes)?);
            of_checkpoints.bytes((4 + bytes).next_multiple_of(BLOCK_BYTES) - (4 + bytes))?;
            while !records.is_done() {
                let (lsn, bytes) = (records.u64()?, usize::from(records.u16()?));
                match Record::decode(records.bytes(bytes)?)? {
                    Record::HotExtent { places } => drop(hot.insert(lsn, places)),
                    Record::HotExtentGone { born } => drop(hot.remove(&born)),
                    Record::Promote { volume, index, places } => {
                        let key = (volume, index);
                        copies.insert(key, Known { key, born: lsn, places });
                    }
                    Record::Demote { volume, index } => drop(copies.remove(&(volume, index))),
                    record => {
                        for key in self.change_volume(record, lsn, extent_bytes)? {
                            copies.remove(&key);
                        }
                    }
                }
            }
        }
        self.copies = copies.into_values().collect();
        self.hot = hot.into_iter().collect();
        Ok(())
    }

    /// Applies one change; the extents that are no more.
    fn change_volume(&mut self, record: Record, lsn: u64, extent_bytes: u64) -> Result<Vec<(u64, u32)>> {
        match record {
            Record::DiskFailed { device } => drop(self.tables.failed.insert(device)),
            Record::DiskLeaving { device } => drop(self.tables.leaving.insert(device)),
            record => {
                let volume = record.volume().and_then(|id| self.tables.volumes.get(&id).cloned());
                let volume = volume
                    .ok_or_else(|| Error::corrupt("the tables' changes speak of a volume that they do not have"))?;
                match record {
                    Record::Size { bytes, .. } => {
                        volume.spec.borrow_mut().size_bytes = bytes;
                        volume.fit_map(extent_bytes);
                    }
                    Record::Map { index, places, .. } | Record::Succeed { index, places, .. } => {
                        drop(volume.put_group(index, lsn, places, Extent::stored)?);
                    }
                    Record::Unmap { index, .. } => {
                        let gone = volume.take_group(index);
                        return Ok(gone.iter().map(|extent| (volume.id, extent.owner.index)).collect());
                    }
                    Record::Move { index, places, .. } => {
                        let extent = volume.extent(index);
                        let extent = extent
                            .ok_or_else(|| Error::corrupt("the tables' changes move an extent that is not there"))?;
                        extent.group.found_at(places);
                    }
                    Record::TierRules { rules, .. } => volume.tier.set(rules),
                    other => {
                        return Err(Error::corrupt(format!(
                            "the tables' changes have a record that is none: {other:?}"
                        )));
                    }
                }
            }
        }
        Ok(Vec::new())
    }
}
