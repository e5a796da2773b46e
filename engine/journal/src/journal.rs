//! The journal in service: appending, group commit, space, checkpoints.

use crate::Lsn;
use crate::entry::{ENTRY_LIMIT_BYTES, Group};
use crate::root::{Identity, ROOT_BYTES, Root, Shape, TablesRef};
use crate::state::{Joining, Kept, Mend, Start, State, Step};
use futures::future::{join_all, select};
use kura_block::{Block, Buf, Bufs, Checksum, Error, Result, Runtime};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::Notify;

/// One copy of a journal: a region of a device.
#[derive(Clone)]
pub struct JournalCopy {
    /// The device it lies on.
    pub device: Rc<dyn Block>,
    /// Where on the device its region begins, in bytes.
    pub offset: u64,
}

/// When records that nobody waits for are written.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// After this long.
    pub linger: Duration,
    /// Or when they are this many bytes.
    pub batch_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { linger: Duration::from_millis(5), batch_bytes: 512 << 10 }
    }
}

/// How full a journal is, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Of the ring.
    pub ring_bytes: u64,
    /// From the tail to the head, and what waits to be written.
    pub used_bytes: u64,
}

/// A controller's journal; clones are the same journal.
#[derive(Clone)]
pub struct Journal {
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    copies: RefCell<Vec<Option<JournalCopy>>>,
    shape: Shape,
    identity: Identity,
    limits: Limits,
    runtime: Rc<dyn Runtime>,
    state: RefCell<State>,
    /// The committer has something to look at.
    wake: Notify,
    /// `durable`, the tail or `failed` changed.
    progress: Notify,
}

impl Journal {
    pub(crate) fn start(
        copies: Vec<Option<JournalCopy>>,
        shape: Shape,
        identity: Identity,
        limits: Limits,
        runtime: Rc<dyn Runtime>,
        start: Start,
    ) -> Self {
        let state = State {
            groups: VecDeque::new(),
            pending_bytes: 0,
            pending_since: Duration::ZERO,
            next_lsn: start.next_lsn,
            written: start.next_lsn,
            unflushed_bytes: 0,
            unflushed_since: Duration::ZERO,
            durable: start.next_lsn,
            durable_sequence: start.sequence,
            wanted: start.next_lsn,
            wanted_first: None,
            told: start.live_copies,
            position: start.position,
            sequence: start.sequence,
            kept: start.kept,
            root: start.root,
            live_copies: start.live_copies,
            joining: None,
            mends: start.mends,
            sealed: true,
            closing: false,
            failed: None,
        };
        let inner = Inner {
            copies: RefCell::new(copies),
            shape,
            identity,
            limits,
            runtime: Rc::clone(&runtime),
            state: RefCell::new(state),
            wake: Notify::new(),
            progress: Notify::new(),
        };
        let journal = Self { inner: Rc::new(inner) };
        runtime.spawn(Box::pin(Rc::clone(&journal.inner).commit_groups()));
        journal
    }

    /// Appends a record, with the whole blocks of `data` behind it, one checksum each. It is not durable yet. Ask
    /// [`Journal::has_room`] first for records with data.
    pub fn append(&self, body: &[u8], data: &Bufs, checksums: &[Checksum]) -> Lsn {
        let state = &mut *self.inner.state.borrow_mut();
        assert!(!state.sealed, "no record is appended before recovery has begun a new epoch");
        let fresh = !state.groups.back().is_some_and(|group| group.takes(body.len(), checksums.len()));
        if state.groups.is_empty() {
            state.pending_since = self.inner.runtime.now();
        }
        let mut before = 0;
        if fresh {
            state.groups.push_back(Group::default());
        } else if let Some(group) = state.groups.back() {
            before = group.entry_bytes();
        }
        let mut after = 0;
        if let Some(group) = state.groups.back_mut() {
            group.push(body, data, checksums);
            after = group.entry_bytes();
        }
        let was_due = state.pending_bytes >= self.inner.limits.batch_bytes;
        state.pending_bytes += after - before;
        if fresh || (!was_due && state.pending_bytes >= self.inner.limits.batch_bytes) {
            self.inner.wake.notify_one();
        }
        let lsn = state.next_lsn;
        state.next_lsn = Lsn(lsn.0 + 1);
        lsn
    }

    /// True when a record with this many bytes of data may be appended; a quarter of the ring stays free for the
    /// records that emptying the write buffer needs.
    pub fn has_room(&self, bytes: u64) -> bool {
        let state = self.inner.state.borrow();
        state.used_bytes() + bytes + ENTRY_LIMIT_BYTES <= self.inner.shape.ring_bytes / 4 * 3
    }

    /// Resolves when the journal has moved on: something became durable, the tail moved, or it failed.
    pub async fn progress(&self) {
        self.inner.progress.notified().await;
    }

    /// The number the next record gets: every record appended so far is below.
    pub fn next_lsn(&self) -> Lsn {
        self.inner.state.borrow().next_lsn
    }

    /// Every record below is durable.
    pub fn durable(&self) -> Lsn {
        self.inner.state.borrow().durable
    }

    /// Records below are never replayed again.
    pub fn tail(&self) -> Lsn {
        self.inner.state.borrow().root.tail_lsn
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        Usage { ring_bytes: self.inner.shape.ring_bytes, used_bytes: self.inner.state.borrow().used_bytes() }
    }

    /// True before a new epoch has begun after a scan.
    pub fn is_sealed(&self) -> bool {
        self.inner.state.borrow().sealed
    }

    /// The error that ended the journal, if one did.
    pub fn alive(&self) -> Result<()> {
        self.inner.state.borrow().alive()
    }

    /// True while copy `index` is written.
    pub fn is_live(&self, index: usize) -> bool {
        self.inner.state.borrow().live_copies & 1 << index != 0
    }

    /// Resolves when every record below `lsn` is durable on all live copies.
    pub async fn commit(&self, lsn: Lsn) -> Result<()> {
        loop {
            let progress = self.inner.progress.notified();
            {
                let state = &mut *self.inner.state.borrow_mut();
                if state.durable >= lsn {
                    return Ok(());
                }
                state.alive()?;
                if state.wanted < lsn {
                    state.wanted = lsn;
                    state.wanted_first.get_or_insert(lsn);
                    self.inner.wake.notify_one();
                }
            }
            progress.await;
        }
    }

    /// Begins a new epoch behind the log that was scanned, which stays: brings the live copies level, and makes durable
    /// what was read. From then on records may be appended.
    pub async fn begin(&self) -> Result<()> {
        let mends = std::mem::take(&mut self.inner.state.borrow_mut().mends);
        for Mend { copy: lacking, position, entry } in mends {
            let place = self.inner.shape.place(position);
            let mend = async |index: usize, copy: JournalCopy| {
                if index != lacking {
                    return Ok(());
                }
                copy.device.write(copy.offset + place, entry.clone(), false).await
            };
            self.inner.on_live_copies(mend).await?;
        }
        self.inner.on_live_copies(async |_, copy| copy.device.flush().await).await?;
        let root = self.inner.state.borrow().root;
        self.inner.write_root(root.tail_lsn, root.settled, root.tables).await
    }

    /// Moves the tail to `tail`: the caller vouches that all data of records below is at its place and durable. With
    /// `tables`, they hold every record below the LSN beside them; without, the last ones stay. `settled` is kept for the
    /// caller's recovery ([`crate::Scan::settled`]): what records below it speak of needs no mending.
    pub async fn checkpoint(&self, tail: Lsn, settled: Lsn, tables: Option<(Vec<u8>, Lsn)>) -> Result<()> {
        assert!(!self.is_sealed(), "no checkpoint is made before recovery has begun a new epoch");
        let before = self.inner.state.borrow().root.tables;
        let tables = match tables {
            Some((bytes, lsn)) => self.inner.write_tables(&bytes, before.area ^ 1, lsn).await?,
            None => before,
        };
        self.inner.write_root(tail, settled, tables).await?;
        let state = &mut *self.inner.state.borrow_mut();
        while state.kept.front().is_some_and(|kept| kept.end_lsn <= tail) {
            state.kept.pop_front();
        }
        self.inner.progress.notify_waiters();
        self.inner.wake.notify_one();
        Ok(())
    }

    /// Stops writing copy `index`; its absence is told in the next entry and root.
    pub fn drop_copy(&self, index: usize) {
        self.inner.kill(index, &Error::device("taken out of service"));
        if let Some(copy) = self.inner.copies.borrow_mut().get_mut(index) {
            *copy = None;
        }
    }

    /// Begins to write `copy` in the place of copy `index`, which must not be live. It counts from the checkpoint on that
    /// gives tables and whose tail has passed the next entry; until then a crash does without it.
    pub fn join(&self, index: usize, copy: JournalCopy) {
        assert!(!self.is_live(index), "copy {index} of the journal is in service");
        {
            let copies = &mut *self.inner.copies.borrow_mut();
            copies.resize(copies.len().max(index + 1), None);
            copies[index] = Some(copy);
        }
        let state = &mut *self.inner.state.borrow_mut();
        // The entry that is being written now, if there is one, does not go there: let there be another one soon.
        state.joining = Some(Joining { index, sequence: state.sequence + 1, has_tables: false });
        let group = Group::default();
        state.pending_bytes += group.entry_bytes();
        state.groups.push_back(group);
        self.inner.wake.notify_one();
    }

    /// True while copy `index` is written and does not count yet.
    pub fn is_joining(&self, index: usize) -> bool {
        self.inner.state.borrow().joining.is_some_and(|joining| joining.index == index)
    }

    /// Ends the committer once everything appended is written.
    pub async fn close(&self) -> Result<()> {
        let end = self.next_lsn();
        let result = if self.is_sealed() { Ok(()) } else { self.commit(end).await };
        self.inner.state.borrow_mut().closing = true;
        self.inner.wake.notify_one();
        result
    }
}

impl Inner {
    /// The committer: one entry at a time, and a flush when somebody waits or much is unflushed.
    async fn commit_groups(self: Rc<Self>) {
        loop {
            let done = match self.next_step().await {
                Step::Write { group, durable } => self.write_group(&group, durable).await,
                Step::Flush => self.flush_entries().await,
                Step::End => return,
            };
            if let Err(error) = done {
                tracing::error!(controller = self.identity.controller, %error, "the journal failed");
                self.state.borrow_mut().failed = Some(error);
                self.progress.notify_waiters();
                return;
            }
        }
    }

    /// Waits until there is something to do.
    async fn next_step(&self) -> Step {
        loop {
            let linger = {
                let state = &mut *self.state.borrow_mut();
                match state.step(self.runtime.now(), self.limits) {
                    Ok(step) => return step,
                    Err(linger) => linger,
                }
            };
            match linger {
                None => self.wake.notified().await,
                Some(rest) => {
                    select(std::pin::pin!(self.wake.notified()), self.runtime.sleep(rest)).await;
                }
            }
        }
    }

    async fn write_group(&self, group: &Group, durable: bool) -> Result<()> {
        self.write_entry(group, durable).await?;
        let (bytes, written) = {
            let state = &mut *self.state.borrow_mut();
            state.pending_bytes -= group.entry_bytes();
            (group.entry_bytes(), (state.written, state.sequence))
        };
        if durable {
            return self.made_durable(written).await;
        }
        let state = &mut *self.state.borrow_mut();
        if state.unflushed_bytes == 0 {
            state.unflushed_since = self.runtime.now();
        }
        state.unflushed_bytes += bytes;
        Ok(())
    }

    async fn flush_entries(&self) -> Result<()> {
        let written = {
            let state = &mut *self.state.borrow_mut();
            state.unflushed_bytes = 0;
            (state.written, state.sequence)
        };
        self.on_live_copies(async |_, copy| copy.device.flush().await).await?;
        self.made_durable(written).await
    }

    /// Lets what was written up to here count as durable; where a copy died meanwhile, only after the others say so.
    async fn made_durable(&self, (lsn, sequence): (Lsn, u64)) -> Result<()> {
        while self.state.borrow().told != self.state.borrow().live_copies {
            self.write_entry(&Group::default(), true).await?;
        }
        let state = &mut *self.state.borrow_mut();
        state.alive()?;
        (state.durable, state.durable_sequence) = (lsn, sequence);
        state.wanted_first = Some(state.wanted).filter(|wanted| *wanted > lsn);
        self.progress.notify_waiters();
        Ok(())
    }

    /// Writes one entry to all live copies.
    async fn write_entry(&self, group: &Group, durable: bool) -> Result<()> {
        let bytes = group.entry_bytes();
        let (position, stamp) = loop {
            let progress = self.progress.notified();
            {
                let state = &mut *self.state.borrow_mut();
                let position = self.shape.fit(state.position, bytes);
                if position + bytes - state.tail_position() <= self.shape.ring_bytes {
                    break (position, state.stamp());
                }
            }
            progress.await;
        };
        let entry = group.encode(stamp);
        let place = self.shape.place(position);
        self.on_live_copies(async |_, copy| copy.device.write(copy.offset + place, entry.clone(), durable).await)
            .await?;
        let state = &mut *self.state.borrow_mut();
        let end_lsn = Lsn(stamp.first_lsn.0 + u64::from(group.count));
        state.kept.push_back(Kept { first_lsn: stamp.first_lsn, end_lsn, sequence: stamp.sequence, position });
        state.position = position + bytes;
        state.sequence += 1;
        state.written = end_lsn;
        state.told = stamp.live_copies;
        Ok(())
    }

    /// Does `work` on every live copy at once; a copy that fails is dead from then on, and with the last one the
    /// journal.
    async fn on_live_copies(&self, work: impl AsyncFn(usize, JournalCopy) -> Result<()>) -> Result<()> {
        let written = {
            let state = self.state.borrow();
            state.live_copies | state.joining.map_or(0, |joining| 1 << joining.index)
        };
        let copies: Vec<_> = self.copies.borrow().iter().cloned().enumerate().collect();
        let copies = copies.into_iter().filter(|(index, _)| written & 1 << index != 0);
        let work = copies.filter_map(|(index, copy)| {
            let done = work(index, copy?);
            Some(async move { (index, done.await) })
        });
        for (index, done) in join_all(work).await {
            if let Err(error) = done {
                self.kill(index, &error);
            }
        }
        self.state.borrow().alive()
    }

    fn kill(&self, index: usize, error: &Error) {
        let state = &mut *self.state.borrow_mut();
        if state.joining.is_some_and(|joining| joining.index == index) {
            state.joining = None;
        }
        if state.live_copies & 1 << index == 0 {
            return;
        }
        tracing::warn!(controller = self.identity.controller, copy = index, %error, "a journal copy is out of service");
        state.live_copies &= !(1 << index);
        if state.live_copies == 0 {
            state.failed = Some(Error::device(format!(
                "no copy of controller {}'s journal is left: {error}",
                self.identity.controller
            )));
            self.progress.notify_waiters();
        }
    }

    async fn write_tables(&self, bytes: &[u8], area: u32, lsn: Lsn) -> Result<TablesRef> {
        const CHUNK_BYTES: usize = 1 << 20;
        let joining = self.state.borrow().joining;
        let tables = TablesRef { area, crc: crc32c::crc32c(bytes), bytes: bytes.len() as u64, lsn };
        if tables.bytes.next_multiple_of(ROOT_BYTES) > self.shape.tables_bytes {
            return Err(Error::full(format!(
                "controller {}'s tables take {} bytes and its journal has room for {}: make a pool with more controllers or larger extents",
                self.identity.controller, tables.bytes, self.shape.tables_bytes
            )));
        }
        let mut padded = bytes.to_vec();
        padded.resize(bytes.len().next_multiple_of(ROOT_BYTES as usize), 0);
        for (number, chunk) in padded.chunks(CHUNK_BYTES).enumerate() {
            let at = self.shape.tables_at(area) + (number * CHUNK_BYTES) as u64;
            let chunk = Buf::copy_of(chunk);
            let write = async |_: usize, copy: JournalCopy| {
                copy.device.write(copy.offset + at, chunk.clone().into(), false).await
            };
            self.on_live_copies(write).await?;
        }
        self.on_live_copies(async |_, copy| copy.device.flush().await).await?;
        if let Some(joining) = joining
            && let Some(now) = &mut self.state.borrow_mut().joining
        {
            now.has_tables |= now.index == joining.index && now.sequence == joining.sequence;
        }
        Ok(tables)
    }

    /// Writes the root that says where the log begins; the first one after a scan begins a new epoch.
    async fn write_root(&self, tail: Lsn, settled: Lsn, tables: TablesRef) -> Result<()> {
        loop {
            let root = {
                let state = self.state.borrow();
                let kept = state.kept.iter().find(|kept| kept.end_lsn > tail);
                let (tail_position, tail_sequence, tail_lsn) = kept
                    .map_or((state.position, state.sequence, state.written), |kept| {
                        (kept.position, kept.sequence, kept.first_lsn)
                    });
                let joined = state.joining.filter(|joining| joining.has_tables && joining.sequence <= tail_sequence);
                Root {
                    generation: state.root.generation + 1,
                    epoch: state.root.epoch + u64::from(state.sealed),
                    epoch_sequence: if state.sealed { state.sequence } else { state.root.epoch_sequence },
                    tail_position,
                    tail_sequence,
                    tail_lsn,
                    settled,
                    tables,
                    live_copies: state.live_copies | joined.map_or(0, |joining| 1 << joining.index),
                }
            };
            let at = root.generation % 2 * ROOT_BYTES;
            let block = root.encode(self.identity);
            let write = async |_: usize, copy: JournalCopy| {
                copy.device.write(copy.offset + at, block.clone().into(), true).await
            };
            self.on_live_copies(write).await?;
            let state = &mut *self.state.borrow_mut();
            if let Some(joining) = state.joining.take_if(|joining| root.live_copies & 1 << joining.index != 0) {
                state.live_copies |= 1 << joining.index;
            }
            state.root = root;
            state.sealed = false;
            if state.live_copies == root.live_copies {
                return Ok(());
            }
        }
    }
}
