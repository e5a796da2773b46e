//! The store in service: what it holds in memory, the task that writes the log, and who waits for it.

use crate::batch::Durability;
use crate::housekeeping::agenda::Agenda;
use crate::index::Index;
use crate::log::{Group, Log, Ticket};
use crate::object::Partition;
use crate::recent::Recent;
use crate::root::Root;
use crate::space::Space;
use futures::future::select;
use kura_block::{Block, Bufs, Error, Kind, Result, Runtime};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify};

/// How a store is run; all of it may differ from one start to the next.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// When changes are acknowledged whose batch does not say.
    pub durability: Durability,
    /// How long what was acknowledged in memory may stay volatile.
    pub volatile_for: Duration,
    /// Segments that are free for so long are discarded; `None`: never. At once would be too soon: what is about to be
    /// used again is quicker to write where the device has it still.
    pub discard_after: Option<Duration>,
    /// Bytes of extents' content that are kept in memory for those who read it again.
    pub recent_bytes: u64,
    /// Nothing is written, not even when the store is opened: for a device that is not to change, as a snapshot is.
    /// What a crash would leave is what is read; changes are `ReadOnly`.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            durability: Durability::Durable,
            volatile_for: Duration::from_millis(200),
            discard_after: Some(Duration::from_mins(1)),
            recent_bytes: 0,
            read_only: false,
        }
    }
}

/// An object store on a block device. Clones are the same store; it is used by one thread.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<Inner>,
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Versions, delete markers and partitions.
    pub versions: u64,
    /// Bytes of the index in memory, without what the allocator adds.
    pub index_bytes: u64,
    /// Bytes of the device that the store uses.
    pub size_bytes: u64,
    /// Bytes in segments that hold nothing: what is dead in the others comes back in time.
    pub free_bytes: u64,
}

/// What a store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Records of the log that were replayed when it was opened.
    pub replayed_records: u64,
    /// Bytes of the entries that they were in.
    pub replayed_bytes: u64,
    /// Entries of the log: groups of batches that were written together.
    pub entries: u64,
    /// Bytes of those.
    pub log_bytes: u64,
    /// Bytes of extents, with their checksums.
    pub extent_bytes: u64,
    /// Checkpoints of the index.
    pub checkpoints: u64,
    /// Bytes of those.
    pub checkpoint_bytes: u64,
    /// Segments of the log that were cleaned.
    pub cleaned_segments: u64,
    /// Segments of data that were emptied, or that it was tried with.
    pub evacuated_segments: u64,
    /// Entries that the device had no room for.
    pub given_up_entries: u64,
    /// Segments that the device was told of as free.
    pub discarded_segments: u64,
}

pub(crate) struct Inner {
    pub device: Rc<dyn Block>,
    pub runtime: Rc<dyn Runtime>,
    pub options: Options,
    pub segment_bytes: u32,
    pub state: RefCell<State>,
    pub recent: Rc<Recent>,
    /// The writer of the log has something to look at.
    pub wake: Notify,
    /// An entry was written or became durable, the store failed, or a round of housekeeping ended.
    pub progress: Notify,
    /// The housekeeper has something to look at.
    pub housekeeping: Notify,
    /// What it is to do next.
    pub agenda: RefCell<Agenda>,
    /// Blocks of room that were taken by users.
    pub used_blocks: Cell<u64>,
    pub counters: Cell<Counters>,
    /// A segment is being discarded.
    pub discarding: Cell<bool>,
    /// Held while a root is written.
    pub rooting: Mutex<()>,
    /// Flushes of the log under way.
    pub flushes: Cell<u32>,
    /// What was written, as the log counts it, when the last of them began.
    pub flushing_to: Cell<u64>,
    /// Tasks that go on until the store is closed.
    pub tasks: Cell<u32>,
}

pub(crate) struct State {
    pub index: Index,
    pub space: Space,
    pub log: Log,
    pub root: Root,
    /// By number; what the root partition's objects say.
    pub partitions: BTreeMap<u64, Partition>,
    /// What readers find in memory: what dies is dropped from it.
    pub recent: Rc<Recent>,
    /// Where the checkpoint of the index lies.
    pub index_segments: Vec<u32>,
    /// Where checkpoints lie that only the older one of the two roots may name.
    pub old_index_segments: Vec<u32>,
    /// Entries below are not replayed, whichever of the two roots is left.
    pub replay_from: u64,
    /// The next one is being written.
    pub in_checkpoint: bool,
    pub failed: Option<Error>,
    pub closing: bool,
    pub read_only: bool,
}

/// Flushes of the log at a time.
const FLUSHES_LIMIT: u32 = 2;

/// How long to wait before the device is asked again that refused to write an entry for now, and how often.
const AGAIN: Duration = Duration::from_millis(20);
const REFUSALS: u32 = 50;

/// True for an error of a write after which the store goes on: nothing of it happened, and a later one may succeed.
pub(crate) fn passes(error: &Error) -> bool {
    matches!(error.kind(), Kind::Full | Kind::Retry)
}

enum Step {
    Write(Group),
    /// Nothing is written before the root says that a new opening begins.
    Reopen,
    Flush,
    Wait(Option<Duration>),
    End,
}

impl State {
    /// Refuses changes where there are to be none.
    pub fn alive(&self) -> Result<()> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.read_only => Err(Error::read_only("the object store is open to be read only")),
            None if self.closing => Err(Error::retry("the object store is being closed: try again")),
            None => Ok(()),
        }
    }
}

impl Inner {
    /// Writes groups one after another until the store is closed. Flushes go on beside that, two at a time: what is
    /// written while one is under way need not wait for its end.
    pub async fn write_log(self: Rc<Self>) {
        let mut volatile_since = Duration::ZERO;
        loop {
            let woken = self.wake.notified();
            match self.next_step(volatile_since) {
                Step::Write(group) => {
                    if !self.state.borrow().log.is_unflushed() {
                        volatile_since = self.runtime.now();
                    }
                    let written = match self.write_group(group).await {
                        Err(error) if passes(&error) => self.give_up(error).await,
                        Ok(needs_flush) => {
                            if needs_flush {
                                volatile_since = self.begin_flush();
                            }
                            Ok(())
                        }
                        Err(error) => Err(error),
                    };
                    if let Err(error) = written {
                        self.stop(error);
                    }
                }
                Step::Reopen => {
                    if let Err(error) = self.reopen().await {
                        self.stop(error);
                    }
                }
                Step::Flush => volatile_since = self.begin_flush(),
                Step::Wait(None) => woken.await,
                Step::Wait(Some(delay)) => {
                    select(pin!(woken), self.runtime.sleep(delay)).await;
                }
                Step::End => break,
            }
        }
        self.tasks.set(self.tasks.get() - 1);
        self.progress.notify_waiters();
    }

    fn next_step(&self, volatile_since: Duration) -> Step {
        let state = &mut *self.state.borrow_mut();
        let flushes = self.flushes.get();
        if state.failed.is_some() {
            return if flushes == 0 { Step::End } else { Step::Wait(None) };
        }
        if flushes >= FLUSHES_LIMIT {
            return Step::Wait(None);
        }
        if state.log.must_reopen && state.log.is_waiting() {
            return Step::Reopen;
        }
        let exposed = self.runtime.now().saturating_sub(volatile_since);
        let left = self.options.volatile_for.checked_sub(exposed).filter(|left| !left.is_zero());
        let is_unflushed = state.log.is_unflushed();
        // Of what no flush under way is for.
        let is_exposed = is_unflushed && (flushes == 0 || state.log.written > self.flushing_to.get());
        // However much waits to be written.
        if is_exposed && left.is_none() {
            return Step::Flush;
        }
        if let Some(group) = state.log.take() {
            return Step::Write(group);
        }
        match (is_unflushed, state.closing) {
            _ if flushes > 0 => Step::Wait(left.filter(|_| is_exposed)),
            (true, true) => Step::Flush,
            (false, true) => Step::End,
            (false, false) => Step::Wait(None),
            (true, false) => Step::Wait(left),
        }
    }

    /// Writes an entry: whether somebody waits for a flush behind it. Where nothing else is volatile, FUA does for both.
    async fn write_group(&self, group: Group) -> Result<bool> {
        let (durable, sequence, place) = (group.durable, group.sequence, group.place);
        let (entry, proof, needs_flush) = {
            let state = self.state.borrow();
            let proof = state.log.durable;
            let needs_flush = group.names_extents || state.log.is_unflushed();
            (group.encode(state.log.store, state.log.opening, proof), proof, needs_flush)
        };
        let entry_bytes = entry.len() as u64;
        self.insist(place, entry, durable && !needs_flush).await?;
        self.count(|counters| {
            counters.entries += 1;
            counters.log_bytes += entry_bytes;
        });
        self.state.borrow_mut().log.note_written(proof);
        if durable && !needs_flush {
            self.note_durable(sequence + 1);
        }
        self.progress.notify_waiters();
        Ok(durable && needs_flush)
    }

    /// Writes to the device, which may refuse for now: asked again for a while, as what waits behind it was asked for by
    /// clients that would have to come again.
    async fn insist(&self, place: u64, bytes: Bufs, fua: bool) -> Result<()> {
        for _ in 0..REFUSALS {
            match self.device.write(place, bytes.clone(), fua).await {
                Err(error) if error.kind() == Kind::Retry => self.runtime.sleep(AGAIN).await,
                done => return done,
            }
        }
        self.device.write(place, bytes, fua).await
    }

    /// Makes every entry written so far durable, beside all else; since when those behind them may be volatile.
    fn begin_flush(self: &Rc<Self>) -> Duration {
        let inner = Rc::clone(self);
        self.flushes.set(self.flushes.get() + 1);
        self.flushing_to.set(self.state.borrow().log.written);
        self.runtime.spawn(Box::pin(async move {
            // One that is refused has stopped the store.
            let _ = inner.flush_log().await;
            inner.flushes.set(inner.flushes.get() - 1);
            inner.wake.notify_one();
        }));
        self.runtime.now()
    }

    /// Makes every entry written so far durable. A flush that is refused, be it for now, may have dropped what it was for: it
    /// stops the store, whoever asked.
    pub async fn flush_log(&self) -> Result<()> {
        let written = self.state.borrow().log.written;
        if let Err(error) = self.device.flush().await {
            let error = if passes(&error) { Error::device(error.to_string()) } else { error };
            self.stop(error.clone());
            return Err(error);
        }
        self.note_durable(written);
        self.progress.notify_waiters();
        Ok(())
    }

    fn stop(&self, error: Error) {
        tracing::error!(%error, "the object store stops");
        self.fail(error);
    }

    pub fn note_durable(&self, sequence: u64) {
        {
            let state = &mut *self.state.borrow_mut();
            state.log.note_durable(sequence);
            state.settle();
        }
        self.look_after();
    }

    pub fn count(&self, add: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }

    pub fn fail(&self, error: Error) {
        self.state.borrow_mut().failed.get_or_insert(error);
        self.progress.notify_waiters();
        self.wake.notify_one();
        self.housekeeping.notify_one();
    }

    /// Resolves when the batch of `ticket` is acknowledged.
    pub async fn acknowledged(&self, ticket: &Ticket) -> Result<()> {
        if ticket.durable { self.durable(ticket).await } else { Ok(()) }
    }

    /// Resolves when the entry of `ticket` is durable, or with the reason why it was given up.
    pub async fn durable(&self, ticket: &Ticket) -> Result<()> {
        self.reached(ticket, |log| log.durable).await
    }

    /// The same of one that is written.
    pub async fn written(&self, ticket: &Ticket) -> Result<()> {
        self.reached(ticket, |log| log.written).await
    }

    async fn reached(&self, ticket: &Ticket, behind: fn(&Log) -> u64) -> Result<()> {
        self.until(|state| ticket.fate.get().is_some() || behind(&state.log) > ticket.sequence).await?;
        ticket.fate.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// What `look` finds, as soon as all of that may be seen: when the entry is durable that `pending` tells of. What is
    /// changed meanwhile is not waited for: also what is always being changed can be read.
    pub async fn seen<T>(&self, pending: impl Fn(&Log) -> Option<Ticket>, look: impl Fn() -> Result<T>) -> Result<T> {
        loop {
            let ticket = pending(&self.state.borrow().log);
            let found = look()?;
            let Some(ticket) = ticket else { return Ok(found) };
            match self.durable(&ticket).await {
                // What was looked at was given up.
                Err(_) if ticket.fate.get().is_some() => {}
                done => return done.map(|()| found),
            }
        }
    }

    /// Resolves when `holds`, or with the error that ended the store.
    pub async fn until(&self, holds: impl Fn(&State) -> bool) -> Result<()> {
        loop {
            let progress = self.progress.notified();
            {
                let state = self.state.borrow();
                if holds(&state) {
                    return Ok(());
                }
                if let Some(error) = &state.failed {
                    return Err(error.clone());
                }
            }
            progress.await;
        }
    }
}

impl State {
    /// Gives back what died, as far as it may be.
    pub fn settle(&mut self) {
        let proven = self.log.proven.max(self.replay_from);
        self.space.settle(self.log.durable, proven, self.replay_from);
    }

    /// Both roots say the same from now on: gives back what only the older one named.
    pub fn note_both_roots(&mut self) {
        self.replay_from = self.root.start.sequence;
        for segment in std::mem::take(&mut self.old_index_segments) {
            self.space.free(segment);
        }
        self.settle();
    }

    /// True where the newest root has one place only: the other one was refused.
    pub fn root_is_alone(&self) -> bool {
        self.replay_from < self.root.start.sequence || !self.old_index_segments.is_empty()
    }
}

impl Store {
    /// How full it is.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.borrow();
        let segment_bytes = u64::from(self.inner.segment_bytes);
        Usage {
            versions: state.index.rows(),
            index_bytes: state.index.bytes(),
            size_bytes: state.space.segments.len() as u64 * segment_bytes,
            free_bytes: state.space.free.len() as u64 * segment_bytes,
        }
    }

    /// Bytes of content that are kept in memory for those who read it again, and how many may be; none where none are.
    pub fn recent_bytes(&self) -> Option<(u64, u64)> {
        self.inner.recent.bytes()
    }

    /// What it has done since it was opened.
    pub fn counters(&self) -> Counters {
        self.inner.counters.get()
    }

    /// Makes every change that was acknowledged so far durable. `Full` or `Retry` when the device did not take what was
    /// acknowledged in memory: it is undone then, and this is said once.
    pub async fn flush(&self) -> Result<()> {
        let ticket = {
            let state = &mut *self.inner.state.borrow_mut();
            if state.read_only {
                return Ok(());
            }
            state.alive()?;
            if let Some((group, _)) = state.log.open_group() {
                group.durable = true;
            }
            state.log.ticket(true)
        };
        match self.inner.written(&ticket).await {
            // Given up, with or without what was acknowledged.
            Err(_) if ticket.fate.get().is_some() => {}
            done => done?,
        }
        if self.inner.state.borrow().log.is_unflushed() {
            self.inner.flush_log().await?;
        }
        self.inner.state.borrow_mut().log.lost.take().map_or(Ok(()), Err)
    }
}
