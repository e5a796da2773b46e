//! How much a disk has to do: measured at every begin and end of a request, so that nobody has to look now and then.

use kura_block::Runtime;
use std::cell::Cell;
use std::time::Duration;

/// What a disk had to do in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// For how long it had anything to do.
    pub busy: Duration,
    /// How long requests waited or were served, summed over them: over the time that is the queue's mean length.
    pub waited: Duration,
}

/// A disk's requests and its work so far.
#[derive(Default)]
pub(crate) struct Load {
    queue: Cell<u32>,
    work: Cell<Work>,
    /// When the work was summed up last.
    summed: Cell<Duration>,
}

/// One request in a disk's queue; leaves it when dropped, so that a cancelled request does not count for ever.
pub(crate) struct Queued<'a>(&'a Load, &'a dyn Runtime);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.sum_up(self.1.now());
        self.0.queue.set(self.0.queue.get() - 1);
    }
}

impl Load {
    /// Requests that wait or are served.
    pub(crate) fn queue(&self) -> u32 {
        self.queue.get()
    }

    /// A request comes.
    pub(crate) fn begin<'a>(&'a self, clock: &'a dyn Runtime) -> Queued<'a> {
        self.sum_up(clock.now());
        self.queue.set(self.queue.get() + 1);
        Queued(self, clock)
    }

    /// The work since this was asked last.
    pub(crate) fn take(&self, now: Duration) -> Work {
        self.sum_up(now);
        self.work.take()
    }

    fn sum_up(&self, now: Duration) {
        let passed = now.saturating_sub(self.summed.replace(now));
        let queue = self.queue.get();
        if queue > 0 && !passed.is_zero() {
            let Work { busy, waited } = self.work.get();
            self.work.set(Work { busy: busy + passed, waited: waited + passed * queue });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_sim::Sim;

    #[test]
    fn work_is_summed_over_requests_and_taken_once() {
        let sim = Sim::new(1);
        let (runtime, load) = (sim.runtime(), Load::default());
        sim.block_on(async {
            let ms = Duration::from_millis;
            runtime.sleep(ms(5)).await;
            let first = load.begin(&*runtime);
            runtime.sleep(ms(10)).await;
            let second = load.begin(&*runtime);
            runtime.sleep(ms(20)).await;
            drop(first);
            runtime.sleep(ms(40)).await;
            assert_eq!(load.take(runtime.now()), Work { busy: ms(70), waited: ms(90) });
            runtime.sleep(ms(1)).await;
            drop(second);
            runtime.sleep(ms(100)).await;
            assert_eq!(load.take(runtime.now()), Work { busy: ms(1), waited: ms(1) });
            assert_eq!((load.queue(), load.take(runtime.now())), (0, Work::default()));
        });
    }
}
