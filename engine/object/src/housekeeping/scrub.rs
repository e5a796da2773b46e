//! The scrub: every byte read and held against its checksum, in steps, so that its caller sets the pace.
//!
//! At its end also what only a start reads: the index of the last checkpoint, and the log behind it. What is damaged there is in
//! memory still, and costs nothing as long as it is found before the next start, which it would keep from being one.

use crate::housekeeping::agenda::Ask;
use crate::housekeeping::checkpoint;
use crate::known::Known;
use crate::log::replay;
use crate::object::{PartitionId, Row, Version};
use crate::read::Pins;
use crate::space::extent;
use crate::store::{Inner, Store};
use kura_block::{BLOCK_BYTES, Error, Kind, Result};
use std::rc::Rc;

/// An object that cannot be read as it was put.
#[derive(Clone, Debug)]
pub struct Damage {
    /// Its partition; that of the partitions themselves has no name.
    pub partition: PartitionId,
    /// Its key.
    pub key: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// What is wrong.
    pub error: Error,
}

/// Where a scrub goes on.
#[derive(Clone, Debug)]
pub struct ScrubPlace(Row);

/// What a step of a scrub found.
#[derive(Clone, Debug, Default)]
pub struct Scrubbed {
    /// Versions read.
    pub versions: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Those that cannot be read as they were put.
    pub damaged: Vec<Damage>,
    /// At the end: what a start would not have been able to read, and whether it has been written anew.
    pub restart: Option<Error>,
    /// Where the next step begins; `None` at the end.
    pub next: Option<ScrubPlace>,
}

impl Store {
    /// Reads the next versions, at least `bytes` of them or all that are left, and holds them against their checksums.
    /// `Retry` where the device refuses for now: nothing is said of what was not read.
    pub async fn scrub(&self, from: Option<ScrubPlace>, bytes: u64) -> Result<Scrubbed> {
        let mut done = Scrubbed::default();
        let mut place = from.map_or_else(|| Row::newest(Vec::new()), |ScrubPlace(row)| row);
        while done.bytes < bytes {
            let found = self.inner.state.borrow().index.seek(&place)?;
            let Some((row, known)) = found else {
                done.restart = self.inner.verify_restart().await?;
                return Ok(done);
            };
            let (record_at, log_bytes) = (known.place, u64::from(known.log_bytes()));
            let extent_bytes: u64 = known.extents().iter().map(|extent| u64::from(extent.all_blocks()) * 4096).sum();
            let damage = match self.inner.verify(&row, known).await {
                // It is gone meanwhile, or elsewhere: what stands there now is looked at.
                Err(error) if self.inner.was_taken_back(&row, record_at, &error)? => continue,
                Err(error) if error.kind() == Kind::Retry => return Err(error.at(&row)),
                verified => verified.err(),
            };
            done.versions += 1;
            done.bytes += log_bytes + extent_bytes;
            if let Some(error) = damage {
                let (partition, key, version) = (row.partition(), row.key().to_vec(), Version(row.version.0));
                done.damaged.push(Damage { partition, key, version, error });
            }
            // Versions are counted from 1.
            place = Row::new(row.name, row.version.0 - 1);
        }
        done.next = Some(ScrubPlace(place));
        Ok(done)
    }
}

impl Inner {
    /// Reads what a start would. What cannot be read is told, and a checkpoint is written, from which the next one begins.
    async fn verify_restart(&self) -> Result<Option<Error>> {
        let (root, durable, read_only) = {
            let state = self.state.borrow();
            (state.root, state.log.durable, state.read_only)
        };
        let read = async {
            checkpoint::read(&*self.device, &root, |_| Ok(())).await?;
            replay::verify(&*self.device, root, durable).await
        };
        let Err(error) = read.await else { return Ok(None) };
        // Behind a newer checkpoint, what was read here may be something else by now.
        let is_behind = || self.state.borrow().root.checkpoint != root.checkpoint;
        if is_behind() {
            return Ok(None);
        }
        if error.kind() == Kind::Retry {
            return Err(error.at("what a start reads"));
        }
        if !read_only {
            self.next_round(Ask::Renewal).await?;
        }
        let what = if is_behind() { "and was written anew" } else { "and could not be written anew: do not restart" };
        Ok(Some(error.at(format_args!("what a start reads was damaged, {what}"))))
    }

    async fn verify(self: &Rc<Self>, row: &Row, known: Known) -> Result<()> {
        let _pins = Pins::of(self, &known);
        let extents = known.extents();
        self.record_at(row, known).await?;
        for extent in extents {
            extent::read(&*self.device, extent, 0, extent.blocks as usize * BLOCK_BYTES, &mut None).await?;
        }
        Ok(())
    }
}
