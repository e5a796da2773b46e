//! Making the journal shorter: what its tail holds is at its place, and the tables are written out.

use crate::extent::{DIRTY_BYTES, Extent};
use crate::policy::checkpoint_due;
use crate::store::Inner;
use futures::future::select;
use futures::{StreamExt, stream};
use kura_array::{Failure, Page};
use kura_block::{Error, Kind, Result};
use kura_journal::Lsn;
use std::rc::Rc;
use std::time::Duration;

/// Pages written at once.
const WIDTH: usize = 16;
/// Space given up goes back to the pool after this long at the latest.
const GIVE_BACK: Duration = Duration::from_secs(1);
/// How long to wait before trying a checkpoint again that failed.
const RETRY: Duration = Duration::from_secs(1);

impl Inner {
    /// The task that makes checkpoints and gives space back, until the store stops or its journal fails.
    pub async fn checkpoint_for_ever(self: Rc<Self>) {
        while !self.stopping.get() {
            let news = std::pin::pin!(self.checkpointer.notified());
            if self.freed.borrow().is_empty() && !self.hot_waits() {
                news.await;
            } else {
                select(news, self.runtime.sleep(GIVE_BACK)).await;
            }
            let done = self.checkpoint_if_due().await;
            if self.stopping.get() || self.journal().alive().is_err() {
                self.room.notify_waiters();
                return;
            }
            if let Err(error) = done {
                tracing::warn!(controller = self.id.0, %error, "a checkpoint failed and will be tried again");
                self.stalled.replace(Some(error));
                self.room.notify_waiters();
                self.runtime.sleep(RETRY).await;
                self.checkpointer.notify_one();
            }
        }
    }

    async fn checkpoint_if_due(&self) -> Result<()> {
        self.note_lost_journals().await?;
        let usage = self.journal().usage();
        let pages = self.dirty_pages.borrow().len();
        let freed = self.freed.borrow().len();
        let waited = self.runtime.now().saturating_sub(self.last_checkpoint.get());
        let used = usage.used_bytes + self.debt();
        if self.cramped.take()
            || checkpoint_due(used, usage.ring_bytes, pages, self.settings.pages)
            || (freed > 0 || self.hot_waits()) && waited >= GIVE_BACK
        {
            self.checkpoint().await?;
        }
        Ok(())
    }

    /// A disk whose journal copy failed is out of service as a whole.
    async fn note_lost_journals(&self) -> Result<()> {
        let disks = self.journal_disks.borrow().clone();
        for (copy, disk) in disks {
            let used = self.journal().is_live(copy) || self.journal().is_joining(copy);
            if !used && !self.tables.borrow().failed.contains(&disk) {
                self.fail_disk(disk).await?;
            }
        }
        Ok(())
    }

    /// Moves the journal's tail to where its head is now, in steps where the journal is so full that one would not do.
    pub async fn checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock().await;
        let head = self.write_pool_pages().await?;
        loop {
            let before = self.journal().tail();
            self.checkpoint_step(head).await?;
            let tail = self.journal().tail();
            if tail >= head || tail == before {
                return Ok(());
            }
        }
    }

    /// How far the tail can move at once: as far as the journal takes the records that bring the blocks before there to
    /// their places.
    fn reachable(&self, head: Lsn) -> Lsn {
        let usage = self.journal().usage();
        let free = (usage.ring_bytes - usage.used_bytes).saturating_sub(self.flying_debt.get());
        let blocks = (free / 2 / Self::debt_of(DIRTY_BYTES)) as usize;
        if self.dirty_in_stripes.get() <= Self::bytes_of(blocks as u64) {
            return head;
        }
        let tables = self.tables.borrow();
        let mut waiting: Vec<Lsn> = Vec::new();
        for volume in tables.volumes.values().filter(|volume| volume.shape.parity) {
            let dirty = volume.dirty.borrow();
            waiting.extend(dirty.values().filter(|entry| entry.data.is_some()).map(|entry| entry.lsn));
        }
        waiting.sort_unstable();
        waiting.get(blocks).map_or(head, |lsn| head.min(Lsn(lsn.0.max(self.journal().tail().0 + 1))))
    }

    async fn checkpoint_step(&self, head: Lsn) -> Result<()> {
        self.last_checkpoint.set(self.runtime.now());
        let tail = self.reachable(head);
        self.parity_below.set(Some(tail));
        let done = self.checkpoint_at(tail).await;
        self.parity_below.set(None);
        self.destager.notify_one();
        done?;
        let tail = self.journal().tail();
        self.last_records.borrow_mut().retain(|_, last| *last >= tail);
        self.room.notify_waiters();
        self.reclaim().await
    }

    async fn checkpoint_at(&self, tail: Lsn) -> Result<()> {
        let journal = self.journal();
        journal.commit(tail).await?;
        self.drain_below(tail).await?;
        let returned = self.take_returned();
        self.flush_disks().await?;
        self.give_up_cooled(returned);
        let pages = self.take_dirty_pages();
        let hot_pages = self.hot.borrow_mut().take_dirty();
        let fast_pages = self.take_fast_pages();
        let reflected = journal.next_lsn();
        let tables = self
            .tables_changed
            .replace(false)
            .then(|| (self.tables.borrow().encode(&self.hot.borrow(), &self.tier, &self.owners.borrow()), reflected));
        let wrote_tables = tables.is_some();
        let done = async {
            journal.commit(reflected).await?;
            self.write_pages(&pages).await?;
            self.write_hot_pages(&hot_pages).await?;
            self.write_fast_pages(&fast_pages).await?;
            self.flush_disks().await?;
            journal.checkpoint(tail, reflected, tables).await
        };
        let done = done.await;
        if done.is_err() && wrote_tables {
            self.tables_changed.set(true);
        }
        self.pages_left(pages, done.is_ok());
        if done.is_err() {
            for (born, ..) in hot_pages {
                self.hot.borrow_mut().make_dirty(born);
            }
            self.fast_pages_again(&fast_pages);
        }
        done?;
        // No stripe has been written since the flush: all that was written before is at rest.
        self.touched.borrow_mut().clear();
        Ok(())
    }

    /// Waits until no block in the buffer is older than `tail`.
    async fn drain_below(&self, tail: Lsn) -> Result<()> {
        let older = |volume: &Rc<crate::tables::VolumeState>| {
            let dirty = volume.dirty.borrow();
            dirty.values().filter(|entry| entry.data.is_some() && entry.lsn < tail).count() as u64
        };
        let left = self.tables.borrow().volumes.values().map(older).sum();
        self.drain.set((tail, left));
        self.destager.notify_one();
        loop {
            let room = self.room.notified();
            self.journal().alive()?;
            // A stripe on its way counts although its blocks were overwritten meanwhile: its parity is not at rest.
            if self.torn.get() {
                return Err(Error::full("a stripe could not be written whole"));
            }
            if self.drain.get().1 == 0 && self.flying_stripes.get() == 0 {
                return Ok(());
            }
            if let Some(error) = self.stalled.borrow().clone() {
                self.drain.set((Lsn(0), 0));
                return Err(error);
            }
            room.await;
        }
    }

    /// The pages to write out now; clean from here on.
    pub fn take_dirty_pages(&self) -> Vec<(Rc<Extent>, Page)> {
        let extents = std::mem::take(&mut *self.dirty_pages.borrow_mut());
        extents.into_iter().filter_map(|extent| extent.take_dirty().map(|page| (extent, page))).collect()
    }

    /// Notes that pages are on the disks, or that they must be written again.
    pub fn pages_left(&self, pages: Vec<(Rc<Extent>, Page)>, written: bool) {
        for (extent, _) in pages {
            let dirty_again = extent.left(written);
            self.page_changed(&extent, dirty_again);
        }
    }

    /// Writes pages beside their extents, on all copies.
    pub async fn write_pages(&self, pages: &[(Rc<Extent>, Page)]) -> Result<()> {
        let mut writes = stream::iter(pages)
            .map(|(extent, page)| async move {
                self.array.write_page(&extent.group.site(), extent.member(), extent.owner, page).await
            })
            .buffer_unordered(WIDTH);
        while let Some(failures) = writes.next().await {
            self.heed(failures).await?;
        }
        Ok(())
    }

    /// Makes all that was written to the disks durable.
    pub async fn flush_disks(&self) -> Result<()> {
        let failures = self.array.flush().await;
        self.heed(failures).await
    }

    /// Disks that refuse go out of service; one that is only full makes the caller try again later.
    pub async fn heed(&self, failures: Vec<Failure>) -> Result<()> {
        for failure in failures {
            if failure.error.kind() == Kind::Full {
                return Err(failure.error);
            }
            self.fail_disk(failure.device).await?;
        }
        Ok(())
    }
}
