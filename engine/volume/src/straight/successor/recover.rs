//! Successors as the log tells of them: what lies there comes into the write buffer again, as if the log had carried it.
//!
//! Nothing of it is read before the log has ended. Until then a block that goes ahead of its extent is an entry of the buffer without
//! its bytes: whatever the log says of the block later takes it away, as it would take away any other one.

use crate::disks::{APART, TIMES};
use crate::extent::{Dirty, Extent};
use crate::open::unknown;
use crate::store::{Freed, Inner};
use crate::tables::VolumeState;
use kura_array::{Places, Urgency};
use kura_block::{BLOCK_BYTES, Buf, Checksum, Error, Result};
use kura_journal::Lsn;
use std::ops::Range;
use std::rc::Rc;

/// Blocks that went ahead of their extent, as the log says.
pub(crate) struct Told {
    volume: u64,
    first: u64,
    checksums: Vec<Checksum>,
    lsn: Lsn,
    places: Places,
}

impl Inner {
    /// Blocks went ahead of their extent, to these places.
    pub async fn replay_ahead(
        &self,
        volume: &VolumeState,
        first: u64,
        places: Places,
        checksums: &[Checksum],
        lsn: Lsn,
    ) -> Result<()> {
        if self.replayed_extent(volume, first, lsn).await?.is_none() {
            return Ok(());
        }
        self.drop_dirty(volume, first, first + checksums.len() as u64);
        for (block, checksum) in (first..).zip(checksums) {
            self.set_checksum(volume, block, Some(*checksum));
            let unread = Dirty { data: None, lsn, checksum: *checksum, at_rest: None, in_flight: false };
            volume.dirty.borrow_mut().insert(block, unread);
        }
        let told = Told { volume: volume.id, first, checksums: checksums.to_vec(), lsn, places };
        self.successors.told.borrow_mut().push(told);
        Ok(())
    }

    /// All of an extent lies in these places, which are its own from now on. Of those that the tables know already, the page on the
    /// disks says so too.
    pub async fn replay_succeed(
        &self,
        (volume, index): (u64, u32),
        places: Places,
        lsn: Lsn,
        known: bool,
    ) -> Result<()> {
        if known {
            return Ok(());
        }
        let volume = &self.replayed_volume(volume).ok_or_else(|| unknown(volume))?;
        let gone = || {
            Error::corrupt(format!("the journal replaces extent {index} of volume {}, which is not there", volume.id))
        };
        let before = volume.extent(index).ok_or_else(gone)?;
        // It lies on the disks of the extent: where that could not be read, no more is lost.
        let missed = before.group.was_missed();
        if !missed && !before.is_loaded() {
            self.load(&before).await?;
        }
        self.successors.told.borrow_mut().retain(|told| told.places != places);
        for extent in volume.put_group(index, lsn.0, places, Extent::stored)? {
            if missed {
                extent.group.set_missed();
                continue;
            }
            self.renew_page(&extent).await?;
            let checksums = before.page().ok_or_else(gone)?;
            for block in 0..self.array.extent_blocks() {
                extent.set(block, checksums.get(block));
            }
        }
        // What the log carries, although it lies there too, stays in the buffer.
        let (start, end) = self.group_range(volume, index);
        volume.dirty.borrow_mut().extract_if(start..end, |_, entry| entry.data.is_none()).for_each(drop);
        self.give_up_group(vec![before], Lsn(lsn.0 + 1));
        Ok(())
    }

    /// Reads into the write buffer what lies ahead of its extent and is still what the log says last.
    pub async fn read_successors(&self, degraded: bool) -> Result<()> {
        for told in self.successors.told.take() {
            // Another restart would read it again.
            let until = Lsn(told.lsn.0 + 1);
            let volume = self.tables.borrow().volumes.get(&told.volume).cloned();
            if let Some(volume) = volume {
                self.read_told(&volume, &told, degraded).await?;
            }
            let mut freed = self.freed.borrow_mut();
            match freed.iter_mut().find(|freed| freed.is_told && freed.places == told.places) {
                Some(freed) => freed.until = until,
                None => freed.push(Freed { is_told: true, ..Freed::places(told.places, until) }),
            }
        }
        Ok(())
    }

    async fn read_told(&self, volume: &Rc<VolumeState>, told: &Told, degraded: bool) -> Result<()> {
        let end = told.first + told.checksums.len() as u64;
        let is_unread = |entry: &Dirty| entry.lsn == told.lsn && entry.data.is_none();
        let unread: Vec<u64> = {
            let dirty = volume.dirty.borrow();
            dirty.range(told.first..end).filter(|(_, entry)| is_unread(entry)).map(|(block, _)| *block).collect()
        };
        for run in unread.chunk_by(|block, next| block + 1 == *next) {
            let run = run[0]..run[0] + run.len() as u64;
            let found = self.read_ahead(volume, told, run.clone(), degraded).await?;
            let mut dirty = volume.dirty.borrow_mut();
            for (block, data) in run.zip(found) {
                let Some(data) = data else {
                    // Its checksum stays: where its place has something else, it is known to be lost.
                    tracing::error!(
                        volume = volume.id,
                        block,
                        "a block cannot be read where the log says that it lies"
                    );
                    dirty.remove(&block);
                    continue;
                };
                if let Some(entry) = dirty.get_mut(&block) {
                    entry.data = Some(data);
                    self.count_dirty(volume, 1);
                }
            }
        }
        Ok(())
    }

    /// Blocks as they lie ahead of their extent; `None` for those that are lost.
    async fn read_ahead(
        &self,
        volume: &VolumeState,
        told: &Told,
        blocks: Range<u64>,
        degraded: bool,
    ) -> Result<Vec<Option<Buf>>> {
        let (inside, at) = (self.split(blocks.start).1, (blocks.start - told.first) as usize);
        let expected = &told.checksums[at..at + blocks.count()];
        if let Ok(found) = self.array.read(&told.places, inside, expected, Urgency::Client).await {
            let block = |at: usize| Some(found.data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES).contiguous());
            return Ok((0..expected.len()).map(block).collect());
        }
        let away = self.may_come_back();
        let only_away = told.places.iter().filter(|place| !self.array.works(**place) && away.contains(&place.device));
        if let Some(place) = only_away.last().filter(|_| !degraded) {
            return Err(Error::invalid(format!(
                "disk {} is away, and what was last written to volume {} may lie nowhere else: bring the disk back, or start with \
                 --degraded to give up what only it has",
                place.device.0,
                volume.spec.borrow().name
            )));
        }
        let mut found = vec![None; expected.len()];
        let mut missing: Vec<usize> = (0..expected.len()).collect();
        // What is refused may be read a moment later.
        for tries in 0..=TIMES {
            let mut refused = Vec::new();
            for at in missing {
                match self.last_copy(&told.places, inside + at, expected[at]).await {
                    Ok(block) => found[at] = block,
                    Err(error) => refused.push((at, error)),
                }
            }
            let Some((_, error)) = refused.first() else { break };
            if tries == TIMES {
                return Err(error.clone());
            }
            tracing::warn!(controller = self.id.0, %error, "recovery waits");
            self.runtime.sleep(APART).await;
            missing = refused.into_iter().map(|(at, _)| at).collect();
        }
        Ok(found)
    }
}
