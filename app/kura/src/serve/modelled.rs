//! A disk that answers no sooner than a model of it says: a slow class to try things on, made of files that are not slow.
//!
//! ```text
//!   request ──> the model's queue, and its time there ──┬──> both done ──> answer
//!           └─> the file or device ─────────────────────┘
//! ```
//!
//! It keeps what the file keeps: bytes, errors and durability are the file's own.

use kura_block::{Block, Bufs, Geometry, Local, Result, Run, Runtime};
use kura_sim::{Io, IoKind, Model, ServiceModel};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A device, as one controller sees it, and what it is as slow as.
pub struct Modelled {
    device: Rc<dyn Block>,
    runtime: Rc<dyn Runtime>,
    turns: bool,
    pace: Arc<Pace>,
}

/// How slow a device is: one queue for the requests of all controllers.
pub struct Pace {
    model: Model,
    /// The queue's time begins here: each controller's runtime has a clock of its own.
    begun: Instant,
    /// None before the device is opened, whose size it wants.
    queue: Mutex<Option<Queue>>,
}

/// Requests are served in the order in which they come.
struct Queue {
    model: Box<dyn ServiceModel>,
    /// When each channel that was used is free.
    free_ns: BinaryHeap<Reverse<u64>>,
}

impl Queue {
    /// When a request that comes at `now_ns` is done.
    fn done_ns(&mut self, io: &Io, now_ns: u64) -> u64 {
        // Channels that are free by now need not be remembered.
        while self.free_ns.peek().is_some_and(|Reverse(free)| *free <= now_ns) {
            self.free_ns.pop();
        }
        let busy = self.free_ns.len() >= self.model.channels();
        let start_ns = if busy { self.free_ns.pop().map_or(now_ns, |Reverse(free)| free) } else { now_ns };
        let done_ns = start_ns + self.model.service_ns(io, start_ns);
        self.free_ns.push(Reverse(done_ns));
        done_ns
    }
}

impl Pace {
    /// That of a model.
    pub fn new(model: Model) -> Self {
        Self { model, begun: Instant::now(), queue: Mutex::new(None) }
    }

    /// Takes the device's size; whether such a device turns.
    fn open(&self, size_bytes: u64) -> bool {
        let spec = self.model.disk(size_bytes);
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.get_or_insert(Queue { model: spec.model, free_ns: BinaryHeap::new() });
        spec.rotational
    }

    /// How long a request takes that comes at `now` of the queue's time.
    fn take(&self, io: &Io, now: impl FnOnce() -> Duration) -> Duration {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // Read under the lock, as a queue's time does not go back.
        let now_ns = u64::try_from(now().as_nanos()).unwrap_or(u64::MAX);
        let done_ns = queue.as_mut().map_or(now_ns, |queue| queue.done_ns(io, now_ns));
        Duration::from_nanos(done_ns - now_ns)
    }
}

impl Modelled {
    /// A device that is as slow as a model of its size.
    pub fn new(device: Rc<dyn Block>, pace: Arc<Pace>, runtime: Rc<dyn Runtime>) -> Self {
        let turns = pace.open(device.geometry().size_bytes);
        Self { device, runtime, turns, pace }
    }

    /// Does a request, and answers when the model has done it too.
    async fn serve<T>(&self, kind: IoKind, offset_bytes: u64, len_bytes: u64, work: impl Future<Output = T>) -> T {
        let model =
            self.runtime.sleep(self.pace.take(&Io { kind, offset_bytes, len_bytes }, || self.pace.begun.elapsed()));
        futures::join!(work, model).0
    }
}

impl Block for Modelled {
    fn geometry(&self) -> Geometry {
        Geometry { rotational: self.turns, ..self.device.geometry() }
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        Box::pin(self.serve(IoKind::Read, offset, len as u64, self.device.read(offset, len)))
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        let len = data.len() as u64;
        Box::pin(self.serve(IoKind::Write, offset, len, self.device.write(offset, data, fua)))
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(self.serve(IoKind::Flush, 0, 0, self.device.flush()))
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        Box::pin(self.serve(IoKind::Discard, offset, len, self.device.discard(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        Box::pin(self.serve(IoKind::WriteZeroes, offset, len, self.device.write_zeroes(offset, len, keep)))
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        self.device.runs(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_sim::Constant;

    fn queue(channels: usize) -> Queue {
        Queue { model: Box::new(Constant { service_ns: 100, channels }), free_ns: BinaryHeap::new() }
    }

    #[test]
    fn all_controllers_wait_in_one_queue() {
        let pace = Pace::new(Model::Hdd7200);
        pace.open(1 << 30);
        let far = |at: u64| {
            // All come at once.
            pace.take(&Io { kind: IoKind::Read, offset_bytes: at << 20, len_bytes: 4096 }, || Duration::ZERO)
        };
        let waits: Vec<Duration> = (0..8).map(|at| far(at * 97 % 1000)).collect();
        // Another controller opens it, and finds it as busy as it is.
        pace.open(1 << 30);
        let behind = far(500);
        assert!(waits.is_sorted() && behind > waits[7], "{waits:?} {behind:?}");
    }

    #[test]
    fn requests_wait_for_a_channel() {
        let io = Io { kind: IoKind::Read, offset_bytes: 0, len_bytes: 4096 };
        let done = |queue: &mut Queue, at: &[u64]| at.iter().map(|at| queue.done_ns(&io, *at)).collect::<Vec<_>>();
        assert_eq!(done(&mut queue(1), &[0, 0, 50, 1000]), [100, 200, 300, 1100]);
        assert_eq!(done(&mut queue(2), &[0, 10, 20, 20, 500]), [100, 110, 200, 210, 600]);
        assert_eq!(done(&mut queue(usize::MAX), &[5, 5, 5]), [105, 105, 105]);
    }
}
