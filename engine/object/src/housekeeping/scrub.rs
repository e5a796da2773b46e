//! The scrub: every byte read and held against its checksum, in steps, so that its caller sets the pace.
//!
//! At its end also what only a start reads: the roots, the index of the last checkpoint, and the log behind it. What is damaged
//! there is in memory still, and costs nothing as long as it is found before the next start, which it would keep from being one.

use crate::housekeeping::agenda::Ask;
use crate::housekeeping::checkpoint;
use crate::known::Known;
use crate::log::ahead::READS;
use crate::log::replay;
use crate::object::{PartitionId, Row, Version};
use crate::read::Pins;
use crate::root::Root;
use crate::space::extent;
use crate::store::{Inner, Store};
use futures::future::join_all;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Error, Kind, Result};
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
            let rows = self.inner.rows_behind(&place, bytes - done.bytes)?;
            if rows.is_empty() {
                done.restart = self.inner.verify_restart().await?;
                return Ok(done);
            }
            let verified = join_all(rows.into_iter().map(|(row, known)| self.inner.verify(row, known)));
            for (row, known, verified) in verified.await {
                let damage = match verified {
                    // It is gone meanwhile, or elsewhere: what stands there now is looked at.
                    Err(error) if self.inner.was_taken_back(&row, known.place, &error)? => break,
                    Err(error) if error.kind() == Kind::Retry => return Err(error.at(&row)),
                    verified => verified.err(),
                };
                done.versions += 1;
                done.bytes += bytes_of(&known);
                if let Some(error) = damage {
                    let (partition, key, version) = (row.partition(), row.key().to_vec(), Version(row.version.0));
                    done.damaged.push(Damage { partition, key, version, error });
                }
                // Versions are counted from 1.
                place = Row::new(row.name, row.version.0 - 1);
            }
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
            {
                let _turn = self.rooting.lock().await;
                Root::verify(&*self.device).await?;
            }
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

    /// The rows at and behind a place that are read side by side: a few, of `bytes` together if there are so many.
    fn rows_behind(&self, place: &Row, bytes: u64) -> Result<Vec<(Row, Known)>> {
        let (mut rows, mut all_bytes) = (Vec::with_capacity(READS), 0);
        self.state.borrow().index.scan(place, |row, known| {
            all_bytes += bytes_of(&known);
            rows.push((row, known));
            rows.len() < READS && all_bytes < bytes
        })?;
        Ok(rows)
    }

    async fn verify(self: &Rc<Self>, row: Row, known: Known) -> (Row, Known, Result<()>) {
        let _pins = Pins::of(self, &known);
        let read = async {
            self.record_at(&row, known.clone()).await?;
            for extent in known.extents() {
                extent::read(&*self.device, extent, 0, extent.blocks as usize * BLOCK_BYTES, &mut None).await?;
            }
            Ok(())
        };
        let verified = read.await;
        (row, known, verified)
    }
}

/// What is read of a version: a block at least.
fn bytes_of(known: &Known) -> u64 {
    let extents = known.extents();
    let blocks: u64 = extents.iter().map(|extent| u64::from(extent.all_blocks())).sum();
    u64::from(known.log_bytes()).next_multiple_of(BLOCK_BYTES_U64) + blocks * BLOCK_BYTES_U64
}
