//! Taking back what the device did not take: entries that are not written, the newest first.
//!
//! A thin device may refuse a write that goes where nothing lies yet (`Full`), and any may refuse for now (`Retry`). What the
//! entry says is in the index by then, and so is what was built on it. All of it is undone, whoever waits for it is told
//! why, and the log goes on where the first of these entries began. The next entry is of a new opening, which the root says before it is written: what the
//! refused write may have left on the device never counts.

use crate::known::{Extent, Known};
use crate::object::{Partition, PartitionId, Row};
use crate::store::{Inner, State, passes};
use kura_block::{Error, Result};
use std::collections::BTreeSet;

/// What one record changed.
pub(crate) struct Undo {
    pub row: Row,
    /// The version as the record sets it; none where it is gone.
    pub now: Option<Known>,
    /// What it replaced.
    pub before: Vec<(Row, Known)>,
    /// The partition that it was, where the row is one.
    pub partition: Option<Partition>,
}

impl State {
    /// Takes back every entry that is not written, and tells those who wait for them `error`.
    pub fn take_back(&mut self, error: &Error) -> Result<u64> {
        let Some((memos, fresh)) = self.log.take_back() else { return Ok(0) };
        self.space.forget_deaths(memos[0].sequence);
        for memo in memos.iter().rev() {
            for batch in memo.undo.iter().rev() {
                self.undo(batch)?;
            }
            if memo.acknowledged {
                tracing::error!(%error, "the object store undoes what was acknowledged in memory: its device did not take it");
                self.log.lost = Some(error.clone());
            }
            // Set once: a group is taken back once.
            let _ = memo.fate.set(error.clone());
        }
        self.space.unseal(self.log.segments());
        for segment in fresh {
            self.space.free(segment);
        }
        self.settle();
        Ok(memos.len() as u64)
    }

    /// Undoes a batch.
    fn undo(&mut self, batch: &[Undo]) -> Result<()> {
        let (mut named, mut kept) = (BTreeSet::<Extent>::new(), BTreeSet::new());
        for Undo { row, now, before, partition } in batch.iter().rev() {
            if let Some(now) = now {
                self.index.edit(row, None)?;
                self.space.unwrite_record(now.place, now.log_bytes());
                named.extend(now.extents());
            }
            for (row, known) in before {
                self.index.edit(row, Some(known))?;
                self.space.add_record(known.place, known.log_bytes());
                kept.extend(known.extents());
            }
            if row.partition() == PartitionId::ROOT {
                self.partitions.remove(&row.version.0);
                self.partitions.extend(partition.iter().map(|partition| (row.version.0, partition.clone())));
            }
        }
        for extent in named.difference(&kept) {
            self.space.disown(extent.block, extent.all_blocks());
        }
        Ok(())
    }
}

impl Inner {
    /// Gives the entries up that are not written, and makes ready for others. First for others: what the device refused may lie
    /// there whole, and must not count after a crash once its client has heard that it did not happen.
    pub async fn give_up(&self, error: Error) -> Result<()> {
        tracing::warn!(%error, "the object store's device takes nothing more now: what was not written is refused");
        self.note_full(&error);
        self.state.borrow_mut().log.must_reopen = true;
        let begun = self.begin_opening().await;
        self.take_back(&error)?;
        begun.or_else(|error| if passes(&error) { Ok(()) } else { Err(error) })
    }

    /// Makes it durable that the next entry is of a new opening, where that must be. Where even that is refused, entries
    /// wait no longer: they are given up, too.
    pub async fn reopen(&self) -> Result<()> {
        if !self.state.borrow().log.must_reopen {
            return Ok(());
        }
        match self.begin_opening().await {
            Err(error) if passes(&error) => self.take_back(&error),
            result => result,
        }
    }

    fn take_back(&self, error: &Error) -> Result<()> {
        let entries = self.state.borrow_mut().take_back(error)?;
        self.count(|counters| counters.given_up_entries += entries);
        self.progress.notify_waiters();
        Ok(())
    }
}
