//! A disk that is waited for, and not for ever.
//!
//! ```text
//!   request ─> Patient ─> disk          no answer for `limit`: what is under way fails, and all after it, at once
//!                 └── refused for now: asked again
//! ```
//!
//! A disk that hangs looks to the layers above like one that refuses: they go on without it. It stays refused until it is
//! opened again: what was under way may still reach it, and nothing newer may come before that.
//!
//! What counts is how long the disk is silent: one that has more to do than it can keeps each request waiting, and answers others. That
//! one request alone has no answer is suffered for [`OTHERS`] times as long.
//!
//! Time is counted in looks at the disk. A process that is stopped for a while (SIGSTOP, a frozen container) looks once when it goes
//! on, with answers waiting that it could not take: what counts is how long the disk was waited for, not how late it is.
//!
//! One that refuses for now (`Retry`: the system is short of memory, say) is no broken disk, and all disks of a pool may do so
//! at once. Only a flush is not asked for again: one that is refused may have dropped what it was for, and the disk may say so
//! only once, to whoever asked. So all who flush it later, the journal, the array, hear the same.

use kura_block::{Block, Bufs, Error, Geometry, Kind, Local, Result, Run, Runtime};
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// How long to wait before asking a disk again that refused for now.
const AGAIN: Duration = Duration::from_millis(10);
/// Looks at a disk in the time after which it is given up.
const LOOKS: u32 = 8;
/// How many times as long a disk may leave a request without an answer while it answers others. With the limit that is the default it
/// is two minutes, after which a kernel says of who waits for a disk that it hangs.
const OTHERS: u32 = 4;

/// A disk whose requests end, one way or the other.
pub(crate) struct Patient {
    disk: Rc<dyn Block>,
    /// Why a flush was refused, once one was.
    refused: RefCell<Option<Error>>,
    watch: Rc<Watch>,
}

struct Watch {
    name: String,
    limit: Duration,
    runtime: Rc<dyn Runtime>,
    /// How many looks have found each request under way, and who waits for it.
    under_way: RefCell<Slab<(u32, Option<Waker>)>>,
    /// It has answered since the last look.
    answered: Cell<bool>,
    /// Somebody looks at it now and then.
    watched: Cell<bool>,
    given_up: Cell<bool>,
}

/// A request under way.
struct UnderWay<'a>(&'a Watch, usize);

impl UnderWay<'_> {
    /// Who waits is woken when the disk is given up.
    fn waits(&self, context: &Context<'_>) {
        if let Some((_, waker)) = self.0.under_way.borrow_mut().get_mut(self.1)
            && !waker.as_ref().is_some_and(|known| known.will_wake(context.waker()))
        {
            *waker = Some(context.waker().clone());
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.borrow_mut().remove(self.1);
    }
}

impl Patient {
    /// `disk`, given up when it owes answers and gives none for `limit`; zero waits for ever.
    pub(crate) fn new(disk: Rc<dyn Block>, name: &str, limit: Duration, runtime: &Rc<dyn Runtime>) -> Self {
        let watch = Watch {
            name: name.to_owned(),
            limit,
            runtime: Rc::clone(runtime),
            under_way: RefCell::default(),
            answered: Cell::new(false),
            watched: Cell::new(false),
            given_up: Cell::new(false),
        };
        Self { disk, refused: RefCell::default(), watch: Rc::new(watch) }
    }

    /// What comes of a flush: what came of the first one that was refused, if one was.
    fn flushed(&self, done: Result<()>) -> Result<()> {
        let refused = &mut *self.refused.borrow_mut();
        if let Err(error) = done {
            refused.get_or_insert(error);
        }
        refused.clone().map_or(Ok(()), Err)
    }

    async fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let watch = &self.watch;
        if watch.given_up.get() {
            return Err(watch.error());
        }
        let under_way = UnderWay(watch, watch.under_way.borrow_mut().insert((0, None)));
        if !watch.limit.is_zero() && !watch.watched.replace(true) {
            watch.runtime.spawn(Box::pin(Rc::clone(watch).look()));
        }
        let mut work = pin!(work);
        poll_fn(|context| {
            let done = work.as_mut().poll(context);
            if done.is_ready() {
                watch.answered.set(true);
                return done;
            }
            if watch.given_up.get() {
                return Poll::Ready(Err(watch.error()));
            }
            under_way.waits(context);
            Poll::Pending
        })
        .await
    }
}

impl Watch {
    /// Asks until the disk does not refuse for now.
    async fn insist<'a, T>(&self, ask: impl Fn() -> Local<'a, Result<T>>) -> Result<T> {
        loop {
            match ask().await {
                Err(error) if error.kind() == Kind::Retry => {
                    tracing::debug!(disk = self.name, %error, "a disk refuses for now and will be asked again");
                    self.runtime.sleep(AGAIN).await;
                }
                done => return done,
            }
        }
    }

    /// Looks now and then, as long as there is something to look at.
    async fn look(self: Rc<Self>) {
        let mut silent = 0;
        loop {
            self.runtime.sleep(self.limit / LOOKS).await;
            silent = if self.answered.take() { 0 } else { silent + 1 };
            let look = |(looks, _): &mut (u32, _)| {
                *looks += 1;
                *looks
            };
            let Some(oldest) = self.under_way.borrow_mut().iter_mut().map(|(_, waiting)| look(waiting)).max() else {
                self.watched.set(false);
                return;
            };
            // The first look came at any time since the request began.
            if oldest > LOOKS && silent >= LOOKS || oldest > LOOKS * OTHERS {
                tracing::error!(disk = self.name, seconds = self.limit.as_secs(), "a disk does not answer: given up");
                self.given_up.set(true);
                let waiting: Vec<Waker> =
                    self.under_way.borrow_mut().iter_mut().filter_map(|(_, (_, waker))| waker.take()).collect();
                waiting.into_iter().for_each(Waker::wake);
                return;
            }
        }
    }

    fn error(&self) -> Error {
        let (name, seconds) = (&self.name, self.limit.as_secs_f64());
        Error::device(format!("{name}: no answer for {seconds} s: check the disk, then start again or replace it"))
    }
}

impl Block for Patient {
    fn geometry(&self) -> Geometry {
        self.disk.geometry()
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        Box::pin(self.wait(self.watch.insist(move || self.disk.read(offset, len))))
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            let done = self.wait(self.watch.insist(move || self.disk.write(offset, data.clone(), fua))).await;
            match &done {
                // It may have heard of what was written before. That a place has no space is said of that place alone.
                Err(error) if fua && error.kind() != Kind::Full => self.flushed(done),
                _ => done,
            }
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.flushed(Ok(()))?;
            let done = self.wait(self.disk.flush()).await;
            self.flushed(done)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        Box::pin(self.wait(self.watch.insist(move || self.disk.discard(offset, len))))
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        Box::pin(self.wait(self.watch.insist(move || self.disk.write_zeroes(offset, len, keep))))
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        Box::pin(self.wait(self.watch.insist(move || self.disk.runs(offset, len))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::future::{join, join_all};
    use kura_block::Buf;
    use kura_sim::{Constant, DiskSpec, FaultKind, Sim};
    use std::future::pending;

    /// The clock of a process that is stopped again and again: it gets on when it has slept eight times as long as it wanted.
    struct Stopped(Rc<dyn Runtime>);

    impl Runtime for Stopped {
        fn now(&self) -> Duration {
            self.0.now()
        }

        fn sleep(&self, delay: Duration) -> Local<'static, ()> {
            self.0.sleep(delay * 8)
        }

        fn spawn(&self, task: Local<'static, ()>) {
            self.0.spawn(task);
        }
    }

    #[test]
    fn time_in_which_nobody_looks_is_not_waited() {
        let read = |took_ms: u64, is_stopped: bool| {
            let sim = Sim::new(1);
            let model = Constant { service_ns: took_ms * 1_000_000, channels: 1 };
            let disk = sim.disk("disk", DiskSpec::new(1 << 20, model));
            let own: Rc<dyn Runtime> = sim.runtime();
            let runtime = if is_stopped { Rc::new(Stopped(own)) } else { own };
            let patient = Patient::new(disk.open(), "disk", Duration::from_secs(1), &runtime);
            sim.block_on(async { patient.read(0, 4096).await.is_ok() })
        };
        assert!(read(990, false) && !read(1200, false));
        assert!(read(7900, true) && !read(9200, true));
    }

    /// Twenty reads that a disk does one after the other, within a time that is long enough for ten.
    #[test]
    fn a_disk_that_is_busy_is_not_silent() {
        let sim = Sim::new(1);
        let model = Constant { service_ns: 100_000_000, channels: 1 };
        let disk = sim.disk("disk", DiskSpec::new(1 << 20, model));
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let patient = Patient::new(disk.open(), "disk", Duration::from_secs(1), &runtime);
        sim.block_on(async {
            let reads = join_all((0..20).map(|at| patient.read(at * 4096, 4096))).await;
            assert!(reads.iter().all(Result::is_ok), "{reads:?}");
        });
    }

    /// A disk that answers reads, and nothing else.
    struct OnlyReads(Rc<dyn Block>);

    impl Block for OnlyReads {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
            self.0.read(offset, len)
        }

        fn write(&self, _: u64, _: Bufs, _: bool) -> Local<'_, Result<()>> {
            Box::pin(pending())
        }

        fn flush(&self) -> Local<'_, Result<()>> {
            Box::pin(pending())
        }

        fn discard(&self, _: u64, _: u64) -> Local<'_, Result<()>> {
            Box::pin(pending())
        }

        fn write_zeroes(&self, _: u64, _: u64, _: bool) -> Local<'_, Result<()>> {
            Box::pin(pending())
        }
    }

    #[test]
    fn one_request_is_not_waited_for_for_ever() {
        let sim = Sim::new(1);
        let disk = OnlyReads(sim.disk("disk", DiskSpec::nvme(1 << 20)).open());
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let patient = Patient::new(Rc::new(disk), "disk", Duration::from_secs(1), &runtime);
        sim.block_on(async {
            let others = async {
                while patient.read(0, 4096).await.is_ok() {
                    runtime.sleep(Duration::from_millis(10)).await;
                }
            };
            let (flushed, ()) = join(patient.flush(), others).await;
            assert!(flushed.is_err());
            assert!((4..5).contains(&runtime.now().as_secs()), "{:?}", runtime.now());
        });
    }

    #[test]
    fn a_place_without_space_is_no_flush_that_was_refused() {
        let sim = Sim::new(1);
        let disk = sim.disk("disk", DiskSpec::nvme(1 << 20));
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let patient = Patient::new(disk.open(), "disk", Duration::ZERO, &runtime);
        sim.block_on(async {
            disk.inject(FaultKind::Full { lasts: Duration::MAX });
            let refused = patient.write(0, Buf::copy_of(&[1; 4096]).into(), true).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Full);
            patient.flush().await.unwrap();
        });
    }

    #[test]
    fn a_flush_that_was_refused_is_refused_for_good() {
        let sim = Sim::new(1);
        let disk = sim.disk("disk", DiskSpec::nvme(1 << 20));
        let runtime: Rc<dyn Runtime> = sim.runtime();
        sim.block_on(async {
            let patient = Patient::new(disk.open(), "disk", Duration::ZERO, &runtime);
            let write = async |fua| patient.write(0, Buf::copy_of(&[1; 4096]).into(), fua).await;
            write(false).await.unwrap();
            patient.flush().await.unwrap();
            write(false).await.unwrap();
            disk.inject(FaultKind::FlushError);
            for _ in 0..3 {
                assert!(patient.flush().await.is_err());
            }
            let again = Patient::new(disk.open(), "disk", Duration::ZERO, &runtime);
            again.flush().await.unwrap();
            disk.inject(FaultKind::WriteError);
            assert!(again.write(0, Buf::copy_of(&[1; 4096]).into(), true).await.is_err());
            assert!(again.flush().await.is_err());
        });
    }
}
