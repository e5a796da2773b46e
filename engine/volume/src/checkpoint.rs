//! Making the journal shorter: what its tail holds is at its place, and the tables are written out.

use crate::extent::Extent;
use crate::store::Inner;
use futures::future::select;
use futures::{StreamExt, stream};
use kura_array::hot::HotPage;
use kura_array::{Failure, FastPage, Page, Places};
use kura_block::{Amount, BLOCK_BYTES_U64, Error, Kind, Result};
use kura_journal::Lsn;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Pages written at once.
pub(crate) const WIDTH: usize = 16;
/// Space given up goes back to the pool after this long at the latest.
const GIVE_BACK: Duration = Duration::from_secs(1);
/// And after this long where a stream has no room otherwise.
const GIVE_BACK_SOON: Duration = Duration::from_millis(100);
/// How long to wait before trying a checkpoint again that failed.
const RETRY: Duration = Duration::from_secs(1);

/// While this lives a checkpoint is made: only blocks with a record below go to places with parity.
struct Below<'a>(&'a Inner);

impl<'a> Below<'a> {
    fn new(inner: &'a Inner, tail: Lsn) -> Self {
        inner.stripes.parity_below.set(Some(tail));
        Self(inner)
    }
}

impl Drop for Below<'_> {
    fn drop(&mut self) {
        self.0.stripes.parity_below.set(None);
        self.0.destager.notify_one();
    }
}

/// How many sixteenths of the area for the tables may be taken before another volume or snapshot is refused, and before another
/// group of extents or another hole is: volumes that are there need those.
pub(crate) const TABLES_FOR_VOLUMES: u64 = 12;
pub(crate) const TABLES_FOR_GROUPS: u64 = 15;

/// What a checkpoint takes to write it out. Where the checkpoint ends before all of it is written, in whatever way, the
/// next one has to.
struct Leaving<'a> {
    inner: &'a Inner,
    pages: Vec<(Rc<Extent>, Rc<Page>)>,
    hot: Vec<(u64, Places, HotPage)>,
    fast: Vec<(Places, FastPage)>,
    /// The tables changed.
    tables: bool,
    written: bool,
}

impl<'a> Leaving<'a> {
    fn take(inner: &'a Inner) -> Self {
        Self {
            inner,
            pages: inner.take_dirty_pages(),
            hot: inner.hot.table.borrow_mut().take_dirty(),
            fast: inner.take_fast_pages(),
            tables: inner.changes.are_there(),
            written: false,
        }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.inner.pages_left(std::mem::take(&mut self.pages), self.written);
        if self.written {
            return;
        }
        if self.tables {
            self.inner.changes.want_whole();
        }
        for (born, ..) in &self.hot {
            self.inner.hot.table.borrow_mut().not_written(*born);
        }
        self.inner.fast_pages_again(&self.fast);
    }
}

impl Inner {
    /// The task that makes checkpoints and gives space back, until the store stops or its journal fails.
    pub async fn checkpoint_for_ever(self: Rc<Self>) {
        let mut told = None;
        while !self.has_stopped() && self.journal().alive().is_ok() {
            let news = std::pin::pin!(self.checkpointer.notified());
            if self.freed.borrow().is_empty() && !self.wants_checkpoint() {
                news.await;
            } else {
                select(news, self.runtime.sleep(GIVE_BACK)).await;
            }
            let asked = self.asked.take();
            let done = self.checkpoint_if_due(!asked.is_empty()).await;
            for who in asked {
                // One that is gone wants no answer.
                let _ = who.send(done.clone());
            }
            let why = done.as_ref().err().map(ToString::to_string);
            let is_news = std::mem::replace(&mut told, why.clone()) != why;
            if let Err(error) = done
                && self.goes_on()
            {
                if is_news {
                    tracing::warn!(controller = self.id.0, %error, "a checkpoint failed and will be tried again");
                }
                self.stalled.replace(Some(error));
                self.room.notify_waiters();
                self.runtime.sleep(RETRY).await;
                self.checkpointer.notify_one();
            }
        }
        self.room.notify_waiters();
        // Who still waits hears that none comes.
        self.asked.take();
    }

    /// Moves the journal's tail to where its head is now, or as far as the journal has room for. The checkpointer does it,
    /// and nobody else: who asks may be a client that leaves meanwhile, and a checkpoint goes on to its end.
    pub async fn checkpoint(&self) -> Result<()> {
        let over = || self.journal().alive().err().unwrap_or_else(|| Error::retry("the server is shutting down"));
        if self.has_stopped() || self.journal().alive().is_err() {
            return Err(over());
        }
        let (answer, answered) = oneshot::channel();
        self.asked.borrow_mut().push(answer);
        self.checkpointer.notify_one();
        answered.await.unwrap_or_else(|_| Err(over()))
    }

    async fn checkpoint_if_due(&self, asked: bool) -> Result<()> {
        if !asked && self.is_stopping() {
            return Ok(());
        }
        self.note_lost_journals().await?;
        let freed = self.freed.borrow().len();
        let waited = self.runtime.now().saturating_sub(self.last_checkpoint.get());
        let give_back = if self.successors.lack_room() { GIVE_BACK_SOON } else { GIVE_BACK };
        if self.checkpoint_wanted.take()
            || asked
            || self.is_checkpoint_due()
            || freed > 0 && waited >= give_back
            || self.wants_checkpoint() && waited >= GIVE_BACK
        {
            let made = self.make_checkpoint().await;
            if made.is_err() {
                // Whoever wanted it wants it still.
                self.checkpoint_wanted.set(true);
            }
            made?;
        }
        Ok(())
    }

    /// A checkpoint, in steps where the journal is so full that one would not do.
    async fn make_checkpoint(&self) -> Result<()> {
        let _one = self.checkpointing.lock().await;
        let head = self.write_pool_pages().await?;
        loop {
            let before = self.journal().tail();
            // The tail itself stops where the entry begins that is being filled there.
            let reached = self.checkpoint_step(head).await?;
            if reached >= head || self.journal().tail() == before {
                // Whatever was in the way is no longer.
                self.stalled.take();
                return Ok(());
            }
        }
    }

    /// How far the tail can move at once: as far as the journal takes the records that bring the blocks before there to
    /// their places. What it has of them already it need not take, unless a disk fails meanwhile, which takes little.
    fn reachable(&self, head: Lsn) -> Lsn {
        let usage = self.journal().usage();
        let free = usage.ring_bytes.saturating_sub(usage.used_bytes).saturating_sub(self.stripes.flying_debt.get());
        let blocks = (free / 2 / Self::debt_of(BLOCK_BYTES_U64)) as usize;
        if self.bytes_for_stripes() <= Self::bytes_of(blocks as u64) {
            return head;
        }
        let tables = self.tables.borrow();
        let mut waiting: Vec<Lsn> = Vec::new();
        for volume in tables.volumes.homes().values().filter(|volume| volume.shape.parity) {
            let dirty = volume.dirty.borrow();
            let dirty =
                dirty.iter().filter(|(block, entry)| entry.data.is_some() && !self.is_announced(volume, **block));
            waiting.extend(dirty.map(|(_, entry)| entry.lsn));
        }
        waiting.sort_unstable();
        waiting.get(blocks).map_or(head, |lsn| head.min(Lsn(lsn.0.max(self.journal().tail().0 + 1))))
    }

    /// Moves the tail as far towards `head` as it can go at once: to where, or to the beginning of the entry there.
    async fn checkpoint_step(&self, head: Lsn) -> Result<Lsn> {
        self.last_checkpoint.set(self.runtime.now());
        let reached = self.reachable(head);
        let below = Below::new(self, reached);
        self.checkpoint_at(reached).await?;
        drop(below);
        let tail = self.journal().tail();
        self.last_records.borrow_mut().retain(|_, last| *last >= tail);
        self.hot.table.borrow_mut().tail_moved(tail.0);
        self.room.notify_waiters();
        self.destager.notify_one();
        self.hot.migrator.notify_one();
        self.give_back_ripe();
        Ok(reached)
    }

    async fn checkpoint_at(&self, tail: Lsn) -> Result<()> {
        let journal = self.journal();
        journal.commit(tail).await?;
        self.drain_below(tail).await?;
        let returned = self.returned_so_far();
        // Before anything says that what was written is at rest: no crash finds rows of it where they were before.
        let maps = self.array.leaving_maps(None);
        self.heed(self.array.write_maps(&maps).await).await?;
        self.flush_disks().await?;
        maps.written();
        self.give_up_cooled(self.take_returned(returned));
        self.level_pages().await?;
        let (mut leaving, reflected, tables) = loop {
            let leaving = Leaving::take(self);
            let (reflected, failed) = (journal.next_lsn(), self.tables.borrow().failed.len());
            let tables = leaving.tables.then(|| (self.tables_to_write(), reflected));
            journal.commit(reflected).await?;
            self.write_pages(&leaving.pages).await?;
            self.write_hot_pages(&leaving.hot).await?;
            self.write_fast_pages(&leaving.fast).await?;
            self.flush_disks().await?;
            // A disk that has failed meanwhile has older pages. A restart, where it may be back, must know that before it reads any:
            // from the tables, since the log tells it only in its turn.
            if self.tables.borrow().failed.len() == failed {
                break (leaving, reflected, tables);
            }
        };
        journal.checkpoint(tail, reflected, tables).await?;
        leaving.written = true;
        drop(leaving);
        // No stripe that the log had announced has been written since the flush: all that was written before is at rest.
        self.stripes.announced.borrow_mut().clear();
        Ok(())
    }

    /// What a checkpoint says of the tables: what has changed, as long as that is less than they are.
    fn tables_to_write(&self) -> kura_journal::Tables {
        let journal = self.journal();
        match self.changes.take(journal.tables_bytes(), journal.tables_area_bytes()) {
            Some(changes) => kura_journal::Tables::Changes(changes),
            None => kura_journal::Tables::Whole(self.encode_tables()),
        }
    }

    /// The tables as a checkpoint has them.
    pub fn encode_tables(&self) -> Vec<u8> {
        let tables = self.tables.borrow().encode(&self.hot.table.borrow(), &self.tier, &self.owners.borrow());
        self.tables_bytes.set((tables.len() as u64, 0));
        tables
    }

    /// Refuses what makes the tables grow once they take so many sixteenths of their area in the journal, or would with `more_bytes`: with
    /// tables that do not fit no checkpoint would be made any more, and nothing could be written.
    pub fn room_in_tables(&self, more_bytes: u64, sixteenths: u64) -> Result<()> {
        let area = self.journal().tables_area_bytes();
        let fit = |(known, since): (u64, u64)| known + since + more_bytes <= area / 16 * sixteenths;
        if !fit(self.tables_bytes.get()) && self.tables_bytes.get().1 > 0 {
            // They may be smaller than what was said of them.
            self.encode_tables();
        }
        if fit(self.tables_bytes.get()) {
            return Ok(());
        }
        Err(Error::full(format!(
            "controller {}'s tables are nearly full, {} of {}: delete snapshots, clones or volumes, or make a pool with more controllers or larger extents",
            self.id.0,
            Amount(self.tables_bytes.get().0),
            Amount(area)
        )))
    }

    /// Waits until no block in the buffer is older than `tail`.
    async fn drain_below(&self, tail: Lsn) -> Result<()> {
        let older = |volume: &Rc<crate::tables::VolumeState>| {
            let dirty = volume.dirty.borrow();
            dirty.values().filter(|entry| entry.data.is_some() && entry.lsn < tail).count() as u64
        };
        let left = self.tables.borrow().volumes.homes().values().map(older).sum();
        // What stopped the last checkpoint may be over. Left there, its error would stop this one, too, before anything is
        // tried: with the journal full, only what a checkpoint waits for may go to its place.
        self.stalled.take();
        self.drain.set((tail, left));
        self.destager.notify_one();
        loop {
            let room = self.room.notified();
            self.journal().alive()?;
            // A stripe on its way counts although its blocks were overwritten meanwhile: its parity is not at rest.
            if self.stripes.torn.get() {
                return Err(Error::full("a stripe could not be written whole"));
            }
            let flies = self.stripes.flying.get() > 0 || self.straight.has_stripes_below(tail);
            if self.drain.get().1 == 0 && !flies {
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
    fn take_dirty_pages(&self) -> Vec<(Rc<Extent>, Rc<Page>)> {
        let extents = std::mem::take(&mut *self.dirty_pages.borrow_mut());
        extents.into_iter().filter_map(|extent| extent.take_dirty().map(|page| (extent, page))).collect()
    }

    /// Notes that pages are on the disks, or that they must be written again.
    fn pages_left(&self, pages: Vec<(Rc<Extent>, Rc<Page>)>, written: bool) {
        for (extent, _) in pages {
            let dirty_again = extent.left(written);
            self.page_changed(&extent, dirty_again);
        }
    }

    /// Writes pages beside their extents, on all copies.
    pub async fn write_pages(&self, pages: &[(Rc<Extent>, Rc<Page>)]) -> Result<()> {
        let writes = stream::iter(pages).map(|(extent, page)| async move {
            self.array.write_page(&extent.group.site(), extent.member(), extent.owner, page).await
        });
        // To the end in any case: one that is dropped on its way may still land, over the page that is written there next.
        let failures: Vec<_> = writes.buffer_unordered(WIDTH).collect().await;
        self.heed(failures.into_iter().flatten()).await
    }

    /// Makes all that was written to the disks durable.
    pub async fn flush_disks(&self) -> Result<()> {
        let failures = self.array.flush().await;
        self.heed(failures).await
    }

    /// Disks that refuse go out of service; where one is only `Full`, that error makes the caller try again later.
    pub async fn heed(&self, failures: impl IntoIterator<Item = Failure>) -> Result<()> {
        let (full, noted) = self.put_out(failures).await;
        noted?;
        full.map_or(Ok(()), Err)
    }

    /// As [`Inner::heed`], for who goes on where the journal fails: that ends the store's writes by itself.
    pub async fn dismiss(&self, failures: impl IntoIterator<Item = Failure>) -> Option<Error> {
        self.put_out(failures).await.0
    }

    /// Puts disks that refuse out of service, but for those that are only full: what one of these says, and whether it was noted
    /// durably of the others.
    async fn put_out(&self, failures: impl IntoIterator<Item = Failure>) -> (Option<Error>, Result<()>) {
        let (mut full, mut noted) = (None, Ok(()));
        for failure in failures {
            if failure.error.kind() == Kind::Full {
                full = Some(failure.error);
            } else {
                noted = noted.and(self.fail_disk(failure.device).await);
            }
        }
        (full, noted)
    }
}
