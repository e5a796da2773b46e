//! The events of the kernel's block layer, and the requests they tell of: what was queued and when it completed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::window::Timed;
use crate::error::Complaint;
use crate::request::{Op, Request};

/// Bytes of a sector of the block layer.
pub const SECTOR_BYTES: u64 = 512;

/// By how much events may be out of order: each processor has a buffer and a clock of its own.
pub const DISORDER_NS: u64 = 10_000_000;

/// How many requests may wait for their completion to be read. Who waits longer is given out without a response time.
const MOST_WAITING: usize = 4096;

/// A request enters the block layer, or leaves it.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub at_ns: u64,
    pub stage: Stage,
    /// Major and minor number.
    pub device: (u32, u32),
    /// Flush: the event has no range.
    pub op: Op,
    /// The write flushes before it is done.
    pub preflush: bool,
    pub offset_bytes: u64,
    pub len_bytes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Queued,
    Completed,
}

impl Timed for Event {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

impl Event {
    /// What the event says, or nothing if it speaks of no data and no flush. `op` is `None` where the event has none.
    pub fn new(
        (at_ns, stage, device): (u64, Stage, (u32, u32)),
        (op, preflush): (Option<Op>, bool),
        (sector, bytes): (u64, u64),
    ) -> Result<Option<Event>, Complaint> {
        if bytes == 0 {
            let flush = Event { at_ns, stage, device, op: Op::Flush, preflush: false, offset_bytes: 0, len_bytes: 0 };
            return Ok(preflush.then_some(flush));
        }
        let Some(op) = op else { return Ok(None) };
        let offset_bytes = sector
            .checked_mul(SECTOR_BYTES)
            .ok_or_else(|| Complaint::new(format!("sector {sector} is beyond 8 EiB"), "mend or remove the event"))?;
        let len_bytes = u32::try_from(bytes).map_err(|_| {
            Complaint::new(format!("a request of {bytes} bytes"), "requests are below 4 GiB: mend or remove the event")
        })?;
        let event = Event { at_ns, stage, device, op, preflush, offset_bytes, len_bytes };
        event.request().sound()?;
        Ok(Some(event))
    }

    fn request(&self) -> Request {
        let Event { at_ns, op, offset_bytes, len_bytes, .. } = *self;
        Request { at_ns, op, offset_bytes, len_bytes, response_ns: 0 }
    }
}

/// The device that a recording is of: the first one that something was queued for.
#[derive(Default)]
pub struct OneDevice(Option<(u32, u32)>);

impl OneDevice {
    /// The event, if it is of this device. Refused: something queued for another one.
    pub fn only(&mut self, event: Option<Event>) -> Result<Option<Event>, Complaint> {
        let Some(event) = event else { return Ok(None) };
        let queued = event.stage == Stage::Queued;
        let (ours, theirs) = (self.0, event.device);
        if queued && ours.is_some_and(|ours| ours != theirs) {
            let (major, minor) = theirs;
            let what = format!("a request for a second device, {major},{minor}");
            return Err(Complaint::new(what, "a trace is of one device: record it alone, or split the trace"));
        }
        if queued {
            self.0 = Some(theirs);
        }
        Ok((self.0 == Some(theirs)).then_some(event))
    }
}

/// Joins what was queued with its completion. Requests come out in the order in which they were queued.
///
/// A completion may cover several requests that were merged, and a request that was split completes in parts: its
/// response time ends with the last of them.
#[derive(Default)]
pub struct Matcher {
    waiting: VecDeque<Waiting>,
    /// The number of the first that waits; numbers count up.
    first: u64,
    /// Who lacks bytes, by operation and place, the oldest first.
    open: BTreeSet<(Op, u64, u64)>,
    /// Bytes of the longest that was queued, by operation: so far back may begin what reaches into a completion.
    longest: BTreeMap<Op, u64>,
}

struct Waiting {
    request: Request,
    /// Bytes whose completion was not seen; 1 for a flush.
    left: u64,
}

impl Matcher {
    pub fn take(&mut self, event: &Event) {
        match event.stage {
            Stage::Queued => {
                if event.preflush {
                    let flush = Request { op: Op::Flush, offset_bytes: 0, len_bytes: 0, ..event.request() };
                    self.queue(flush);
                }
                self.queue(event.request());
            }
            Stage::Completed => self.complete(event),
        }
    }

    /// The next request, if all that will be known of it is known, or nothing more will come.
    pub fn pop(&mut self, at_end: bool) -> Option<Request> {
        let front = self.waiting.front()?;
        if front.left > 0 {
            if !at_end && self.waiting.len() <= MOST_WAITING {
                return None;
            }
            self.open.remove(&(front.request.op, front.request.offset_bytes, self.first));
        }
        self.first += 1;
        self.waiting.pop_front().map(|waiting| waiting.request)
    }

    fn queue(&mut self, request: Request) {
        let number = self.first + self.waiting.len() as u64;
        let longest = self.longest.entry(request.op).or_default();
        *longest = (*longest).max(u64::from(request.len_bytes));
        self.open.insert((request.op, request.offset_bytes, number));
        self.waiting.push_back(Waiting { request, left: u64::from(request.len_bytes).max(1) });
    }

    fn complete(&mut self, event: &Event) {
        let (begin, end) = (event.offset_bytes, event.offset_bytes + u64::from(event.len_bytes.max(1)));
        let is_it = |key: &&(Op, u64, u64)| {
            let Waiting { request, left } = &self.waiting[(key.2 - self.first) as usize];
            request.len_bytes == event.len_bytes && *left == u64::from(request.len_bytes).max(1)
        };
        // What was queued just so is what completes, whatever else is under way there.
        if let Some(key) = self.open.range((event.op, begin, 0)..(event.op, begin + 1, 0)).find(is_it).copied() {
            self.end(key, event.at_ns, end - begin);
            return;
        }
        // A request that began before may reach into what completes.
        let from = begin.saturating_sub(self.longest.get(&event.op).copied().unwrap_or(0));
        let touched: Vec<_> = self.open.range((event.op, from, 0)..(event.op, end, 0)).copied().collect();
        let mut done = begin;
        for key in touched {
            let request = self.waiting[(key.2 - self.first) as usize].request;
            let request_end = request.offset_bytes + u64::from(request.len_bytes.max(1));
            let (low, high) = (done.max(request.offset_bytes), end.min(request_end));
            if low < high {
                done = high;
                self.end(key, event.at_ns, high - low);
            }
        }
    }

    /// So many bytes of an open request have completed.
    fn end(&mut self, key: (Op, u64, u64), at_ns: u64, bytes: u64) {
        let Waiting { request, left } = &mut self.waiting[(key.2 - self.first) as usize];
        request.response_ns = at_ns.saturating_sub(request.at_ns);
        *left = left.saturating_sub(bytes);
        if *left == 0 {
            self.open.remove(&key);
        }
    }
}
