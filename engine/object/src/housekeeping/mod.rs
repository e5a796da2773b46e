//! The task beside the log's writer: checkpoints, cleaning, discards, and room for those who wait for it.

pub(crate) mod agenda;
pub(crate) mod check;
pub(crate) mod checkpoint;
pub(crate) mod clean;
mod scrub;

pub use check::Violation;
pub use scrub::{Damage, ScrubPlace, Scrubbed};

use crate::policy::{self, For, Tail};
use crate::space::free::Query;
use crate::space::segment::Use;
use crate::store::{Inner, State, passes};
use agenda::{Ask, Facts, Round};
use futures::future::select;
use kura_block::{BLOCK_BYTES_U64, Error, Kind, Result, RunKind};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

/// Data segments that one sweep of the index empties at most. It looks at every row, so that many pay for it at once; but
/// whoever waits for room waits until all that is alive in them has moved.
const EVACUATE_SEGMENTS: usize = 64;
/// Log segments that a round cleans at most before it looks at everything anew.
const CLEAN_SEGMENTS: usize = 8;

/// What one who waits for room has seen: rounds that gained nothing are counted from the last one on that did. One in vain
/// may have moved what the next one gives back, and what a round takes first and gives back then is no gain.
#[derive(Default)]
pub(crate) struct Hope {
    vain: u32,
    most_blocks: u64,
}

impl State {
    /// Free segments that are not for the one who asks.
    pub fn floor(&self, who: For) -> usize {
        policy::floor(self.index.bytes(), u64::from(self.root.segment_bytes), who)
    }

    /// Blocks that could be taken, those left of the log's segment among them: where the cleaner packs closer what filled
    /// segments badly, the first it gains is there.
    fn room_blocks(&self) -> u64 {
        self.space.room_blocks() + self.log.rest_bytes() as u64 / BLOCK_BYTES_U64
    }

    /// The log since the last checkpoint began.
    fn tail(&self) -> Tail {
        let (log, index) = (&self.log, &self.index);
        Tail {
            log_bytes: log.bytes_since_checkpoint,
            records: log.next_revision - log.checkpoint_revision,
            index_bytes: index.bytes(),
            rows: index.rows(),
        }
    }

    /// True when the log is due for a checkpoint.
    fn is_long(&self) -> bool {
        policy::checkpoint_is_due(self.tail())
    }

    /// True when users wait for the checkpoint under way.
    pub fn outruns_checkpoint(&self) -> bool {
        self.in_checkpoint && policy::checkpoint_is_outrun(self.tail())
    }

    fn is_low(&self) -> bool {
        self.space.free.len() < policy::low_water(self.floor(For::Users), self.space.segments.len())
    }
}

impl Inner {
    /// Wakes the housekeeper when there is something to do.
    pub fn look_after(&self) {
        if self.agenda.borrow().is_due(self.facts()) {
            self.housekeeping.notify_one();
        }
    }

    fn facts(&self) -> Facts {
        let state = self.state.borrow();
        Facts {
            last_sequence: state.log.last_sequence(),
            is_long: state.is_long(),
            is_low: state.is_low(),
            // While the root is refused, no room is asked for: who writes tries it again.
            wants_to_ask: state.space.free.wants_to_ask() && !state.log.must_reopen,
        }
    }

    /// How long a segment is free before it is discarded, where that is done.
    fn discard_after(&self) -> Option<Duration> {
        self.options.discard_after.filter(|_| self.is_thin())
    }

    /// True where the device gives room as it is written, and takes it back.
    pub fn is_thin(&self) -> bool {
        self.device.geometry().discards
    }

    /// Lets a user take room, and counts it.
    pub fn use_room<T>(&self, take: impl FnOnce(&mut State) -> T) -> T {
        let state = &mut *self.state.borrow_mut();
        let before = state.room_blocks();
        let taken = take(state);
        let used = before.saturating_sub(state.room_blocks());
        self.used_blocks.set(self.used_blocks.get() + used);
        taken
    }

    /// Blocks that became room, from some number on: also where others have taken it already.
    fn gained_blocks(&self) -> u64 {
        self.state.borrow().room_blocks() + self.used_blocks.get()
    }

    /// Waits for a round of housekeeping: whether it is worth to try again.
    pub async fn make_room(&self, hope: &mut Hope) -> bool {
        if hope.vain == policy::ROUNDS_IN_VAIN {
            return false;
        }
        hope.most_blocks = hope.most_blocks.max(self.gained_blocks());
        let done = self.next_round(Ask::Room).await;
        if done.is_err() || self.state.borrow().closing {
            return false;
        }
        if self.gained_blocks() > hope.most_blocks {
            hope.vain = 0;
        } else {
            hope.vain += 1;
            self.wait_for_uploads().await;
        }
        true
    }

    /// Resolves when a round has ended that began after this was called, and saw what it is asked for.
    pub async fn next_round(&self, what: Ask) -> Result<()> {
        let target = self.agenda.borrow_mut().ask(what);
        self.housekeeping.notify_one();
        self.until(|state| self.agenda.borrow().rounds >= target || state.closing).await
    }

    /// Waits a while for uploads under way: what they replace is room as soon as they are committed.
    async fn wait_for_uploads(&self) {
        let last = {
            let state = self.state.borrow();
            if state.space.held.is_empty() {
                return;
            }
            state.log.last_sequence()
        };
        let committed = self.until(|state| state.closing || state.log.last_sequence() > last);
        select(pin!(committed), self.runtime.sleep(policy::PATIENCE)).await;
    }

    pub async fn keep_house(self: Rc<Self>) {
        loop {
            let woken = self.housekeeping.notified();
            {
                let state = self.state.borrow();
                if state.failed.is_some() || state.closing {
                    break;
                }
            }
            let begun = self.agenda.borrow_mut().take(self.facts());
            let Some(round) = begun else {
                woken.await;
                continue;
            };
            let before = self.gained_blocks();
            let result = self.round(round).await;
            let (last_sequence, gained) = (self.state.borrow().log.last_sequence(), self.gained_blocks() > before);
            self.agenda.borrow_mut().end(last_sequence, gained, result.is_err());
            if let Err(error) = result
                && !passes(&error)
            {
                tracing::error!(%error, "the object store stops: it cannot look after itself");
                self.fail(error);
            }
            self.progress.notify_waiters();
            // Those who waited try again before the next round takes segments out of use.
            give_way().await;
        }
        self.tasks.set(self.tasks.get() - 1);
        self.progress.notify_waiters();
    }

    /// One round. What became free in it counts, for those who wait, when it is known what the device has of it.
    async fn round(self: &Rc<Self>, round: Round) -> Result<()> {
        let done = self.work(round).await;
        match done {
            Err(error) if error.kind() != Kind::Full => Err(error),
            done => self.keep_reserve(false).await.and(done),
        }
    }

    async fn work(self: &Rc<Self>, Round { room, renewal, tidying }: Round) -> Result<()> {
        self.grow().await?;
        // Until then a replay looks at extents that are free by now.
        self.begin_opening().await?;
        self.complete_root().await?;
        self.keep_reserve(room).await?;
        let is_long = self.state.borrow().is_long();
        if renewal || is_long {
            self.checkpoint().await?;
        }
        if room || self.state.borrow().is_low() {
            self.gain(room).await?;
        }
        if tidying {
            self.tidy().await?;
        }
        Ok(())
    }

    /// Looks which free segments a thin device has room for already, until the reserve has as many as it is to have.
    pub async fn find_reserve(&self) -> Result<()> {
        if !self.is_thin() {
            return Ok(());
        }
        let free = {
            let state = &mut *self.state.borrow_mut();
            state.space.free.reserve = state.floor(For::Users) + policy::RESERVE_SPARE;
            state.space.free.lowest(policy::LOOK_SEGMENTS)
        };
        // A new store's log goes on where nothing was ever written.
        let of_log = self.state.borrow().log.segments();
        for segment in of_log {
            if self.bytes_there(segment).await? == 0 {
                self.ask_for_room(segment).await?;
            }
        }
        for segment in free {
            if self.has_room(segment).await? {
                let free = &mut self.state.borrow_mut().space.free;
                free.add_seen(segment, true);
                if free.reserve_is_complete() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// How much of a segment the device has room for already: all of it, where it is not thin.
    async fn bytes_there(&self, segment: u32) -> Result<u64> {
        let place = self.state.borrow().space.place(segment);
        let runs = self.device.runs(place, u64::from(self.segment_bytes)).await?;
        Ok(runs.iter().filter(|run| run.kind != RunKind::Hole).map(|run| run.len_bytes).sum())
    }

    async fn has_room(&self, segment: u32) -> Result<bool> {
        Ok(self.bytes_there(segment).await? == u64::from(self.segment_bytes))
    }

    /// Asks the device for room for a segment that holds nothing: whether it gave it.
    async fn ask_for_room(&self, segment: u32) -> Result<bool> {
        let place = self.state.borrow().space.place(segment);
        match self.device.write_zeroes(place, u64::from(self.segment_bytes), true).await {
            Err(error) if error.kind() != Kind::Full => Err(error),
            given => Ok(given.is_ok()),
        }
    }

    async fn discard(&self, segment: u32) -> Result<()> {
        let place = self.state.borrow().space.place(segment);
        self.device.discard(place, u64::from(self.segment_bytes)).await
    }

    /// Asks a thin device what it has of the segments that became free, and for room, before it is needed, until the reserve has
    /// as many segments as it is to have. When the device gave none lately, only somebody who waits is a reason to ask again.
    async fn keep_reserve(&self, mut waits: bool) -> Result<()> {
        if !self.is_thin() {
            return Ok(());
        }
        loop {
            let query = {
                let state = &mut *self.state.borrow_mut();
                // What was freed since the device refused entries may be what a replay looks at, until the root says more.
                if state.log.must_reopen {
                    return Ok(());
                }
                state.space.free.reserve = state.floor(For::Users) + policy::RESERVE_SPARE;
                let query = state.space.take_to_ask(waits);
                if query.is_none() && !state.space.free.device_is_full {
                    state.space.reopen_short();
                }
                query
            };
            let Some(query) = query else { return Ok(()) };
            let segment = query.segment();
            let answer = self.put(query).await;
            self.state.borrow_mut().space.give_asked(segment, matches!(answer, Ok(true)));
            answer?;
            waits &= matches!(query, Query::Look(_));
        }
    }

    /// Whether the device has, or gives, room for all of a segment. One that it cannot have all of goes back to it: it has more
    /// for others then.
    async fn put(&self, query: Query) -> Result<bool> {
        let segment = query.segment();
        let there = self.bytes_there(segment).await?;
        if there == u64::from(self.segment_bytes) {
            return Ok(true);
        }
        let asks = matches!(query, Query::Room(_)) || !self.state.borrow().space.free.device_is_full;
        if asks && self.ask_for_room(segment).await? {
            self.state.borrow_mut().space.free.device_is_full = false;
            return Ok(true);
        }
        self.state.borrow_mut().space.free.device_is_full = true;
        if there == 0 && !asks {
            return Ok(false);
        }
        match self.discard(segment).await {
            Err(error) if !passes(&error) => Err(error),
            _ => Ok(false),
        }
    }

    /// Notes that a thin device has no room, where an error says so.
    pub fn note_full(&self, error: &Error) {
        if error.kind() == Kind::Full && self.is_thin() {
            self.state.borrow_mut().space.free.device_is_full = true;
        }
    }

    /// Gains free segments: by a checkpoint, where that is what they wait for; else by cleaning.
    async fn gain(self: &Rc<Self>, wanted: bool) -> Result<()> {
        let before = self.state.borrow().space.room_blocks();
        // What died lately is room as soon as that is durable.
        self.flush_written().await?;
        let worth = if wanted { 1 } else { 2 + self.state.borrow().index_segments.len() };
        self.checkpoint_for(worth).await?;
        let is_enough = {
            let state = self.state.borrow();
            if wanted { state.space.room_blocks() > before } else { !state.is_low() }
        };
        if is_enough {
            return Ok(());
        }
        let (log_room, data_room) = self.room_to_clean();
        let mut log = self.victims(Use::Log, CLEAN_SEGMENTS, wanted);
        let mut data = self.victims(Use::Data, EVACUATE_SEGMENTS, wanted);
        log.truncate(policy::affordable(&log, log_room));
        data.truncate(policy::affordable(&data, data_room));
        let least = |victims: &[(u32, f64)]| victims.iter().map(|(_, alive)| *alive).reduce(f64::min);
        if policy::evacuates(least(&log), least(&data)) {
            let victims = data.into_iter().map(|(segment, _)| segment).collect();
            self.evacuate(&victims).await?;
        } else {
            for (victim, _) in log {
                self.clean_log_segment(victim).await?;
            }
        }
        self.flush_written().await?;
        self.checkpoint_for(worth).await
    }

    /// Makes what is dead free though there is room enough: the device gets it back then, and may have others who want it.
    async fn tidy(self: &Rc<Self>) -> Result<()> {
        self.flush_written().await?;
        let (log_room, _) = self.room_to_clean();
        let mut log = self.victims(Use::Log, policy::TIDY_SEGMENTS, false);
        log.retain(|(_, alive)| *alive < policy::TIDY_ALIVE);
        log.truncate(policy::affordable(&log, log_room));
        for (victim, _) in log {
            self.clean_log_segment(victim).await?;
        }
        self.flush_written().await?;
        let worth = {
            let state = self.state.borrow();
            policy::checkpoint_worth(state.index.bytes(), u64::from(self.segment_bytes), state.index_segments.len())
        };
        self.checkpoint_for(worth).await
    }

    /// Writes a checkpoint where so many log segments are free by it.
    async fn checkpoint_for(&self, segments: usize) -> Result<()> {
        let waiting = self.state.borrow().space.waiting_for_checkpoint();
        if waiting >= segments { self.checkpoint().await } else { Ok(()) }
    }

    /// Segments that the cleaner may fill with what it moves of the log, and of data segments. Where it may take none, there is
    /// what is left of the log's. Extents may fill their segments by half only, all victims are full of holes if one finds no
    /// room, and the log may want a segment for their records.
    fn room_to_clean(&self) -> (f64, f64) {
        let state = self.state.borrow();
        let whole = state.space.free.len().saturating_sub(state.floor(For::Cleaner));
        let rest = state.log.rest_bytes() as f64 / f64::from(self.segment_bytes);
        ((whole as f64).max(rest), if whole > 1 { whole as f64 / 2.0 } else { 0.0 })
    }

    /// Makes what was taken so far durable, and what died by it room.
    async fn flush_written(&self) -> Result<()> {
        let ticket = self.state.borrow().log.ticket(false);
        match self.written(&ticket).await {
            // Given up, it holds no room either.
            Err(_) if ticket.fate.get().is_some() => {}
            done => done?,
        }
        if self.state.borrow().log.is_unflushed() {
            self.flush_log().await?;
        }
        self.prove().await
    }

    /// Lets an entry without records say what is durable, where extents wait for that.
    async fn prove(&self) -> Result<()> {
        let ticket = {
            let state = &mut *self.state.borrow_mut();
            if !state.space.has_limbo() || state.log.proven >= state.log.durable {
                return Ok(());
            }
            let floor = state.floor(For::Proof);
            state.log.reserve(&mut state.space, 0, floor)?;
            if let Some((group, _)) = state.log.open_group() {
                group.durable = true;
            }
            state.log.ticket(true)
        };
        self.wake.notify_one();
        self.durable(&ticket).await
    }

    /// Tells the device of segments that have been free for long, until the store is closed or nobody has it any more.
    pub async fn discard_free(inner: Weak<Self>) {
        let Some(begin) = inner.upgrade() else { return };
        let Some(age) = begin.discard_after() else { return };
        let runtime = Rc::clone(&begin.runtime);
        drop(begin);
        loop {
            runtime.sleep(age).await;
            let Some(inner) = inner.upgrade() else { return };
            // What nothing else makes free in time, where nothing happens any more.
            if !inner.state.borrow().log.must_reopen {
                inner.agenda.borrow_mut().ask(Ask::Tidying);
                inner.housekeeping.notify_one();
            }
            // What became free since is looked at the next time: it has been free for as long then.
            let before = runtime.now().saturating_sub(age);
            let old = inner.state.borrow().space.free.old(before);
            for segment in old {
                if !inner.begin_discard(segment, before) {
                    continue;
                }
                let result = inner.discard(segment).await;
                inner.state.borrow_mut().space.give_asked(segment, false);
                inner.discarding.set(false);
                inner.progress.notify_waiters();
                match result {
                    Ok(()) => inner.count(|counters| counters.discarded_segments += 1),
                    Err(error) => tracing::warn!(%error, "the object store cannot give space back"),
                }
            }
            let state = &mut *inner.state.borrow_mut();
            if state.alive().is_err() {
                return;
            }
            state.space.free.note_old(runtime.now());
        }
    }

    fn begin_discard(&self, segment: u32, before: Duration) -> bool {
        let state = &mut *self.state.borrow_mut();
        let begins = state.alive().is_ok() && !state.log.must_reopen && state.space.free.may_go(segment, before);
        if begins {
            state.space.lend(segment);
        }
        self.discarding.set(begins);
        begins
    }
}

/// Lets the tasks of this thread that are ready go first.
async fn give_way() {
    let mut went = false;
    poll_fn(|context| {
        if std::mem::replace(&mut went, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
