//! A simulated device: its queue, its content, its troubles. It outlives the incarnations that use it.

use crate::agenda::Event;
use crate::content::Content;
use crate::disk::{Discard, DiskSpec};
use crate::fault::{FaultKind, Strike, When};
use crate::model::{Io, IoKind};
use crate::pages::Change;
use crate::trace::Phase;
use crate::trouble::{Fate, Scene, Struck, Trouble};
use crate::world::World;
use kura_block::{Bufs, Error, Geometry, PAGE_BYTES, Result};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::task::Waker;
use std::time::Duration;

/// What a disk has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads served.
    pub reads: u64,
    /// Writes served.
    pub writes: u64,
    /// Flushes served.
    pub flushes: u64,
    /// Discards and write-zeroes served.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Operations answered with an error.
    pub errors: u64,
    /// Nanoseconds in which at least one operation was in service.
    pub busy_ns: u64,
    /// Nanoseconds that operations waited for their service to begin, summed.
    pub wait_ns: u64,
    /// Nanoseconds that operations were in service, summed.
    pub service_ns: u64,
    /// Operations that wait or are served now.
    pub queue: usize,
    /// The most there have been.
    pub queue_max: usize,
}

pub(crate) enum Request {
    Read { offset: u64, len: usize },
    Write { offset: u64, data: Bufs, fua: bool },
    Flush,
    Discard { offset: u64, len: u64 },
    WriteZeroes { offset: u64, len: u64 },
}

impl Request {
    fn io(&self) -> Io {
        let (kind, offset_bytes, len_bytes) = match self {
            Self::Read { offset, len } => (IoKind::Read, *offset, *len as u64),
            Self::Write { offset, data, .. } => (IoKind::Write, *offset, data.len() as u64),
            Self::Flush => (IoKind::Flush, 0, 0),
            Self::Discard { offset, len } => (IoKind::Discard, *offset, *len),
            Self::WriteZeroes { offset, len } => (IoKind::WriteZeroes, *offset, *len),
        };
        Io { kind, offset_bytes, len_bytes }
    }

    fn fua(&self) -> bool {
        matches!(self, Self::Write { fua: true, .. })
    }

    /// What it writes, at most.
    fn change(self, discard: Discard) -> Option<Change> {
        match self {
            Self::Write { data, .. } => Some(Change::Data(data)),
            Self::WriteZeroes { len, .. } => Some(Change::Zeroes(len)),
            Self::Discard { len, .. } => (discard != Discard::Unsupported).then_some(Change::Zeroes(len)),
            Self::Read { .. } | Self::Flush => None,
        }
    }
}

struct Op {
    number: u64,
    io: Io,
    fua: bool,
    /// Taken when the operation has been served.
    request: Option<Request>,
    /// What was acknowledged when a flush was issued.
    mark: u64,
    fate: Fate,
    /// When it was issued, then when its service began.
    since_ns: u64,
    waker: Option<Waker>,
    answer: Option<Result<Bufs>>,
    /// The caller has dropped its future.
    abandoned: bool,
}

pub(crate) struct Medium {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) geometry: Geometry,
    discard: Discard,
    jitter: f64,
    channels: usize,
    state: RefCell<State>,
}

struct State {
    model: Box<dyn crate::model::ServiceModel>,
    content: Option<Content>,
    trouble: Trouble,
    ops: Slab<Op>,
    waiting: VecDeque<usize>,
    /// Operations in service.
    serving: usize,
    /// Operations that could not end because the disk is stalled.
    stuck: Vec<usize>,
    busy_since_ns: u64,
    counters: Counters,
    rng: ChaCha8Rng,
}

impl Medium {
    pub(crate) fn new(world: &World, id: u32, name: &str, spec: DiskSpec) -> Self {
        let geometry = Geometry {
            size_bytes: spec.size_bytes,
            align_bytes: spec.sector_bytes,
            optimal_bytes: spec.optimal_bytes,
            rotational: spec.rotational,
            discards: spec.discard != Discard::Unsupported,
        };
        let state = State {
            model: spec.model,
            content: spec.keep_content.then(|| Content::new(spec.cache.limit_bytes(), u64::from(spec.atom_bytes))),
            trouble: Trouble::new(world.rng(&format!("disk {name} faults"))),
            ops: Slab::new(),
            waiting: VecDeque::new(),
            serving: 0,
            stuck: Vec::new(),
            busy_since_ns: 0,
            counters: Counters::default(),
            rng: world.rng(&format!("disk {name}")),
        };
        let channels = state.model.channels().max(1);
        Self {
            id,
            name: name.to_owned(),
            geometry,
            discard: spec.discard,
            jitter: spec.jitter,
            channels,
            state: RefCell::new(state),
        }
    }

    /// Takes an operation; its answer is fetched by [`Medium::poll`].
    pub(crate) fn issue(&self, world: &World, request: Request, waker: &Waker) -> usize {
        let state = &mut *self.state.borrow_mut();
        let (io, fua) = (request.io(), request.fua());
        let op = Op {
            number: world.issued(self.id, io, fua),
            io,
            fua,
            request: Some(request),
            mark: state.content.as_ref().map_or(0, Content::mark),
            fate: if state.trouble.dead { Fate::Dead } else { Fate::Normal },
            since_ns: world.now_ns(),
            waker: Some(waker.clone()),
            answer: None,
            abandoned: false,
        };
        let slot = state.ops.insert(op);
        state.counters.queue += 1;
        state.counters.queue_max = state.counters.queue_max.max(state.counters.queue);
        if state.serving < self.channels {
            self.begin(world, state, slot);
        } else {
            state.waiting.push_back(slot);
        }
        slot
    }

    /// The answer of an issued operation, once.
    pub(crate) fn poll(&self, slot: usize, waker: &Waker) -> Option<Result<Bufs>> {
        let state = &mut *self.state.borrow_mut();
        let op = &mut state.ops[slot];
        if let Some(answer) = op.answer.take() {
            state.ops.remove(slot);
            return Some(answer);
        }
        match &mut op.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        None
    }

    /// The caller is no longer interested; the operation takes effect all the same.
    pub(crate) fn abandon(&self, slot: usize) {
        let state = &mut *self.state.borrow_mut();
        let op = &mut state.ops[slot];
        op.abandoned = true;
        if op.answer.is_some() {
            state.ops.remove(slot);
        }
    }

    fn scene<'a>(&self, now_ns: u64, content: Option<&'a mut Content>) -> Scene<'a> {
        let sector_bytes = u64::from(self.geometry.align_bytes);
        Scene { now_ns, size_bytes: self.geometry.size_bytes, sector_bytes, content }
    }

    /// The service of an operation begins: faults strike, and its end is known.
    fn begin(&self, world: &World, state: &mut State, slot: usize) {
        let now_ns = world.now_ns();
        let op = &mut state.ops[slot];
        let mut struck = Vec::new();
        let was_dead = state.trouble.dead;
        let met = state.trouble.meet(&op.io, self.scene(now_ns, state.content.as_mut()), &mut struck);
        op.fate = if was_dead { Fate::Dead } else { met };
        for strike in struck {
            self.log(world, strike);
        }
        let mut service_ns = state.model.service_ns(&op.io, now_ns);
        if self.jitter > 0.0 {
            let factor = 1.0 + self.jitter * state.rng.random_range(-1.0..=1.0);
            service_ns = (service_ns as f64 * factor) as u64;
        }
        service_ns = service_ns.saturating_mul(u64::from(state.trouble.slowness(now_ns)));
        // Summed over many operations, these pass what the clock tells.
        let counters = &mut state.counters;
        counters.wait_ns = counters.wait_ns.saturating_add(now_ns - op.since_ns);
        counters.service_ns = counters.service_ns.saturating_add(service_ns);
        op.since_ns = now_ns;
        if state.serving == 0 {
            state.busy_since_ns = now_ns;
        }
        state.serving += 1;
        let end_ns = now_ns.saturating_add(service_ns);
        world.agenda.borrow_mut().enter(end_ns, Event::Device { disk: self.id, slot });
    }

    /// Notes a fault that struck; a stall that ends wakes the disk then.
    fn log(&self, world: &World, (what, range): Struck) {
        if let FaultKind::Stall { lasts } = what {
            let until_ns = world.now_ns().saturating_add(crate::world::nanos(lasts));
            if until_ns < u64::MAX {
                world.agenda.borrow_mut().enter(until_ns, Event::Wake { disk: self.id });
            }
        }
        let at = Duration::from_nanos(world.now_ns());
        world.strikes.borrow_mut().push(Strike { at, disk: self.name.clone(), what, range });
    }

    /// An operation has been served. Returns who waits for it.
    pub(crate) fn finish(&self, world: &World, slot: usize) -> Option<Waker> {
        let state = &mut *self.state.borrow_mut();
        let now_ns = world.now_ns();
        if state.trouble.stalled_until_ns > now_ns {
            state.stuck.push(slot);
            return None;
        }
        let op = &mut state.ops[slot];
        let request = op.request.take();
        let (number, io, fua, fate, mark) = (op.number, op.io, op.fua, op.fate, op.mark);
        let answer = match request {
            Some(request) => self.serve(state, now_ns, request, fate, mark),
            None => Ok(Bufs::new()),
        };
        let phase = if answer.is_ok() { Phase::Done } else { Phase::Failed };
        world.note(self.id, number, io, fua, phase);
        state.count(io, phase == Phase::Failed);
        state.serving -= 1;
        if state.serving == 0 {
            state.counters.busy_ns += now_ns - state.busy_since_ns;
        }
        let op = &mut state.ops[slot];
        let waker = op.waker.take();
        if op.abandoned {
            state.ops.remove(slot);
        } else {
            op.answer = Some(answer);
        }
        if let Some(next) = state.waiting.pop_front() {
            self.begin(world, state, next);
        }
        waker
    }

    /// Does what the operation asks for.
    fn serve(&self, state: &mut State, now_ns: u64, request: Request, fate: Fate, mark: u64) -> Result<Bufs> {
        let name = &self.name;
        let Io { offset_bytes: offset, len_bytes: len, .. } = request.io();
        if state.trouble.dead || fate == Fate::Dead {
            let fua = request.fua();
            if let Some(change) = request.change(self.discard) {
                state.land((offset, change), fate.cut_short(), fua);
            }
            return Err(Error::device(format!("disk {name}: dead")));
        }
        if state.trouble.refuses(now_ns) && !matches!(request, Request::Flush) {
            return Err(Error::retry(format!("disk {name}: takes no request just now")));
        }
        match request {
            Request::Read { .. } if fate == Fate::ReadError => {
                Err(Error::device(format!("disk {name}: read of {offset}+{len} failed")))
            }
            Request::Read { len, .. } => {
                if let Some(range) = state.trouble.unreadable(offset, len as u64) {
                    return Err(Error::device(format!(
                        "disk {name}: read of {offset}+{len}: medium error at {}+{}",
                        range.start,
                        range.end - range.start
                    )));
                }
                Ok(state.content.as_ref().map_or_else(|| Bufs::zeroes(len), |content| content.read(offset, len)))
            }
            Request::Flush => {
                state.trouble.lost_flushes += u32::from(fate == Fate::FlushError);
                match &mut state.content {
                    Some(content) if fate == Fate::FlushError => content.lose(mark),
                    Some(content) => content.flush(mark),
                    None => {}
                }
                Ok(Bufs::new())
            }
            Request::Discard { .. } => {
                self.give_back(state, offset, len);
                Ok(Bufs::new())
            }
            Request::Write { .. } | Request::WriteZeroes { .. } => self.store(state, now_ns, request, fate),
        }
    }

    fn store(&self, state: &mut State, now_ns: u64, request: Request, fate: Fate) -> Result<Bufs> {
        let (Io { offset_bytes: offset, len_bytes: len, .. }, fua) = (request.io(), request.fua());
        let (Some(content), Some(change)) = (&state.content, request.change(self.discard)) else {
            return Ok(Bufs::new());
        };
        if state.trouble.is_full(now_ns) {
            let pages = crate::pages::page_numbers(offset, len);
            if (content.present(offset, len).len() as u64) < pages.end - pages.start {
                return Err(Error::full(format!("disk {}: write of {offset}+{len}: no space left", self.name)));
            }
        }
        state.land((offset, change), fate, fua);
        if fate == Fate::WriteError {
            return Err(Error::device(format!("disk {}: write of {offset}+{len} failed", self.name)));
        }
        Ok(Bufs::new())
    }

    fn give_back(&self, state: &mut State, offset: u64, len: u64) {
        let Some(content) = &mut state.content else { return };
        match self.discard {
            Discard::Unsupported => {}
            Discard::Zeroes => content.put(offset, Change::Zeroes(len), false),
            Discard::Unspecified => {
                let page_bytes = PAGE_BYTES as u64;
                for page in content.present(offset, len) {
                    let (from, to) = (offset.max(page * page_bytes), (offset + len).min((page + 1) * page_bytes));
                    if state.rng.random() {
                        content.put(from, Change::Zeroes(to - from), false);
                    }
                }
            }
        }
    }

    /// A fault planned for now strikes, or waits for an operation.
    pub(crate) fn time_has_come(&self, world: &World, index: usize) {
        let state = &mut *self.state.borrow_mut();
        let scene = self.scene(world.now_ns(), state.content.as_mut());
        if let Some(strike) = state.trouble.time_has_come(index, scene) {
            self.log(world, strike);
        }
    }

    /// Adds a fault to come, or lets it strike where its time is now.
    pub(crate) fn arm(&self, world: &World, when: When, what: FaultKind) {
        let index = self.state.borrow_mut().trouble.arm(when, what);
        if let When::After(delay) = when {
            if delay.is_zero() {
                self.time_has_come(world, index);
            } else {
                let at_ns = world.now_ns().saturating_add(crate::world::nanos(delay));
                world.agenda.borrow_mut().enter(at_ns, Event::Fault { disk: self.id, index });
            }
        }
    }

    /// Flushes that have failed so far.
    pub(crate) fn lost_flushes(&self) -> u32 {
        self.state.borrow().trouble.lost_flushes
    }

    pub(crate) fn disarm(&self) {
        self.state.borrow_mut().trouble.disarm();
    }

    /// The disk works again: what was stuck ends now.
    pub(crate) fn revive(&self, world: &World) {
        self.state.borrow_mut().trouble.revive();
        self.wake(world);
    }

    /// What is stuck ends now, unless the disk is stalled still.
    pub(crate) fn wake(&self, world: &World) {
        let state = &mut *self.state.borrow_mut();
        if state.trouble.stalled_until_ns > world.now_ns() {
            return;
        }
        for slot in std::mem::take(&mut state.stuck) {
            world.agenda.borrow_mut().enter(world.now_ns(), Event::Device { disk: self.id, slot });
        }
    }

    /// The power goes: what was asked and not answered may have happened, in part or whole.
    pub(crate) fn power_cut(&self, world: &World) {
        let state = &mut *self.state.borrow_mut();
        if state.serving > 0 {
            state.counters.busy_ns += world.now_ns() - state.busy_since_ns;
        }
        state.serving = 0;
        state.counters.queue = 0;
        state.waiting.clear();
        state.stuck.clear();
        let ops = std::mem::take(&mut state.ops);
        let Some(content) = &mut state.content else { return };
        let mut in_flight = Vec::new();
        for (_, op) in ops {
            if let Some(change) = op.request.and_then(|request| request.change(self.discard)) {
                in_flight.extend(content.landing((op.io.offset_bytes, &change), op.fate, &mut state.rng));
            }
        }
        content.power_cut(in_flight, &mut state.rng);
    }

    pub(crate) fn counters(&self, world: &World) -> Counters {
        let state = self.state.borrow();
        let running_ns = if state.serving > 0 { world.now_ns() - state.busy_since_ns } else { 0 };
        Counters { busy_ns: state.counters.busy_ns + running_ns, ..state.counters }
    }

    pub(crate) fn reset_counters(&self, world: &World) {
        let state = &mut *self.state.borrow_mut();
        let queue = state.counters.queue;
        state.counters = Counters { queue, queue_max: queue, ..Counters::default() };
        state.busy_since_ns = world.now_ns();
    }

    /// Something of the content, or `None` where none is kept.
    pub(crate) fn with_content<T>(&self, look: impl FnOnce(&Content) -> T) -> Option<T> {
        self.state.borrow().content.as_ref().map(look)
    }

    /// One line an operation that is not answered, of the oldest few.
    pub(crate) fn describe_pending(&self, text: &mut String) {
        let state = self.state.borrow();
        let mut pending: Vec<&Op> = state.ops.iter().map(|(_, op)| op).filter(|op| op.answer.is_none()).collect();
        pending.sort_unstable_by_key(|op| op.number);
        let stuck = if state.stuck.is_empty() { "" } else { ", the disk is stalled" };
        for op in pending.iter().take(8) {
            let _ =
                write!(text, "\n  disk {} ({}): operation {} is not answered{stuck}", self.id, self.name, op.number);
        }
    }
}

impl State {
    /// Puts what this fate leaves of a change.
    fn land(&mut self, (offset, change): (u64, Change), fate: Fate, fua: bool) {
        let Some(content) = &mut self.content else { return };
        for (offset, piece) in content.landing((offset, &change), fate, &mut self.rng) {
            self.trouble.rewritten(offset, piece.len());
            content.put(offset, piece, fua);
        }
    }

    fn count(&mut self, io: Io, failed: bool) {
        let counters = &mut self.counters;
        counters.queue -= 1;
        if failed {
            counters.errors += 1;
            return;
        }
        match io.kind {
            IoKind::Read => {
                counters.reads += 1;
                counters.read_bytes += io.len_bytes;
            }
            IoKind::Write => {
                counters.writes += 1;
                counters.written_bytes += io.len_bytes;
            }
            IoKind::Flush => counters.flushes += 1,
            IoKind::Discard | IoKind::WriteZeroes => counters.discards += 1,
        }
    }
}
