//! A layer that notes the requests that pass it.

use super::ring::{Entry, Op, Ring, nanoseconds};
use kura_block::{Block, Bufs, Geometry, Local, Result, Run, Runtime};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

/// What is recorded of a volume; every layer over that volume notes its requests here.
pub struct Recording {
    runtime: Rc<dyn Runtime>,
    /// When it began, by the runtime's clock.
    begin: Duration,
    /// When it began, since the beginning of 1970.
    pub time_of_day: Duration,
    /// True as long as requests are noted.
    pub running: Cell<bool>,
    pub ring: RefCell<Ring>,
}

impl Recording {
    /// A recording that begins now.
    pub fn new(runtime: Rc<dyn Runtime>, memory_bytes: u64, time_of_day: Duration) -> Result<Self> {
        let ring = RefCell::new(Ring::new(memory_bytes)?);
        Ok(Self { begin: runtime.now(), runtime, time_of_day, running: Cell::new(true), ring })
    }

    fn at_ns(&self) -> u64 {
        nanoseconds(self.runtime.now().saturating_sub(self.begin))
    }

    /// Notes a request that arrives now, and returns its number.
    fn arrived(&self, op: Op, offset_bytes: u64, len_bytes: u64) -> u64 {
        let len_bytes = u32::try_from(len_bytes).unwrap_or(u32::MAX);
        let entry = Entry { at_ns: self.at_ns(), offset_bytes, response_ns: 0, len_bytes, op };
        self.ring.borrow_mut().push(entry)
    }

    /// Notes that a request is answered now.
    fn answered(&self, number: u64) {
        let now_ns = self.at_ns();
        // 0 says that there was no answer.
        self.ring.borrow_mut().answer(number, |entry| now_ns.saturating_sub(entry.at_ns).max(1));
    }
}

/// Where a volume's layers find its recording, while there is one.
#[derive(Default)]
pub struct Tap(RefCell<Option<Rc<Recording>>>);

impl Tap {
    /// What is recorded of the volume, running or stopped.
    pub fn recording(&self) -> Option<Rc<Recording>> {
        self.0.borrow().clone()
    }

    /// Puts a recording in the place of the one that is there.
    pub fn set(&self, recording: Option<Rc<Recording>>) {
        *self.0.borrow_mut() = recording;
    }

    /// The recording, if it runs.
    fn running(&self) -> Option<Rc<Recording>> {
        self.0.borrow().as_ref().filter(|recording| recording.running.get()).cloned()
    }
}

/// A volume whose requests are noted while a recording runs. Otherwise they pass as they are: what that costs is one
/// look at the tap.
pub struct Recorder<B> {
    below: B,
    tap: Rc<Tap>,
}

impl<B: Block> Recorder<B> {
    /// A layer over `below` that notes its requests in what `tap` leads to.
    pub fn new(below: B, tap: Rc<Tap>) -> Self {
        Self { below, tap }
    }

    /// Notes a request, which `work` carries out when it is polled. What has a range and covers nothing is no request.
    fn note<'a, T: 'a>(
        &self,
        (op, offset_bytes, len_bytes): (Op, u64, u64),
        work: Local<'a, Result<T>>,
    ) -> Local<'a, Result<T>> {
        let Some(recording) = self.tap.running().filter(|_| op == Op::Flush || len_bytes > 0) else { return work };
        let number = recording.arrived(op, offset_bytes, len_bytes);
        Box::pin(async move {
            let answer = work.await;
            recording.answered(number);
            answer
        })
    }
}

impl<B: Block> Block for Recorder<B> {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        self.note((Op::Read, offset, len as u64), self.below.read(offset, len))
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        let len = data.len() as u64;
        // A write of nothing that must be durable is a flush.
        let what = if len == 0 && fua { (Op::Flush, 0, 0) } else { (Op::Write, offset, len) };
        self.note(what, self.below.write(offset, data, fua))
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        self.note((Op::Flush, 0, 0), self.below.flush())
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        self.note((Op::Discard, offset, len), self.below.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        self.note((Op::Write, offset, len), self.below.write_zeroes(offset, len, keep))
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        self.below.runs(offset, len)
    }
}
