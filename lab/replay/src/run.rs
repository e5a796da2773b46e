//! Serving requests: each is done on the volume, timed and, where contents count, checked.

use crate::ledger::Ledger;
use crate::options::Options;
use crate::tally::Tally;
use kura_block::{Block, Bufs, PAGE_BYTES, Result, Runtime};
use kura_trace::{Op, Request};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// A volume under load.
pub(crate) struct Run {
    volume: Rc<dyn Block>,
    runtime: Rc<dyn Runtime>,
    pub(crate) tally: RefCell<Tally>,
    pub(crate) ledger: Option<RefCell<Ledger>>,
    /// Requests before this time are not counted.
    warm_ns: u64,
    /// Hands without work, the last used on top.
    idle: RefCell<Vec<Rc<Hand>>>,
    /// Who waits until nothing is under way.
    waiting: Cell<Option<Waker>>,
    last_answer: Cell<Duration>,
}

/// A task that does one request after the other: a request costs a wake, not a task.
#[derive(Default)]
struct Hand {
    work: Cell<Option<(Request, Duration)>>,
    waker: Cell<Option<Waker>>,
}

impl Run {
    pub(crate) fn new(volume: Rc<dyn Block>, runtime: Rc<dyn Runtime>, options: &Options) -> Rc<Self> {
        let last_answer = Cell::new(runtime.now());
        Rc::new(Self {
            volume,
            runtime,
            tally: RefCell::new(Tally::new()),
            ledger: options.verify.then(RefCell::default),
            warm_ns: options.warm_ns,
            idle: RefCell::default(),
            waiting: Cell::default(),
            last_answer,
        })
    }

    pub(crate) fn now(&self) -> Duration {
        self.runtime.now()
    }

    pub(crate) async fn sleep(&self, delay: Duration) {
        self.runtime.sleep(delay).await;
    }

    /// When the last request was answered.
    pub(crate) fn last_answer(&self) -> Duration {
        self.last_answer.get()
    }

    /// Begins a request beside everything else; its response time counts from `due`.
    pub(crate) fn begin(self: &Rc<Self>, request: Request, due: Duration) {
        self.tally.borrow_mut().begin();
        let idle = self.idle.borrow_mut().pop();
        let hand = idle.unwrap_or_else(|| {
            let hand = Rc::new(Hand::default());
            self.runtime.spawn(Box::pin(Rc::clone(self).work(Rc::clone(&hand))));
            hand
        });
        hand.work.set(Some((request, due)));
        if let Some(waker) = hand.waker.take() {
            waker.wake();
        }
    }

    async fn work(self: Rc<Self>, hand: Rc<Hand>) {
        loop {
            let work = poll_fn(|context| match hand.work.take() {
                Some(work) => Poll::Ready(work),
                None => {
                    hand.waker.set(Some(context.waker().clone()));
                    Poll::Pending
                }
            });
            let (request, due) = work.await;
            self.serve(request, due).await;
            self.idle.borrow_mut().push(Rc::clone(&hand));
            if self.tally.borrow().in_flight == 0
                && let Some(waiting) = self.waiting.take()
            {
                waiting.wake();
            }
        }
    }

    /// Does a request that has begun, and counts it unless it warms up: its response time from `begun`. What fails is told
    /// in either case.
    pub(crate) async fn serve(&self, request: Request, begun: Duration) {
        let done = self.ask(&request).await;
        let now = self.now();
        self.last_answer.set(now);
        let mut tally = self.tally.borrow_mut();
        tally.end();
        match done {
            Ok(()) if request.at_ns < self.warm_ns => {}
            Ok(()) => {
                let tally = &mut *tally;
                let times = match request.op {
                    Op::Read => &mut tally.reads,
                    Op::Write => &mut tally.writes,
                    Op::Discard | Op::Flush => &mut tally.others,
                };
                times.note(now.saturating_sub(begun).as_nanos() as u64, u64::from(request.len_bytes));
            }
            Err(error) => tally.failed(&error),
        }
    }

    async fn ask(&self, request: &Request) -> Result<()> {
        let (offset, len) = (request.offset_bytes, request.len_bytes as usize);
        match request.op {
            Op::Read => self.read(offset, len).await,
            Op::Write => self.write(offset, len).await,
            Op::Flush => self.volume.flush().await,
            Op::Discard => {
                let change =
                    self.ledger.as_ref().map(|ledger| ledger.borrow_mut().discard(offset..request.end_bytes()));
                let done = self.volume.discard(offset, len as u64).await;
                if let (Some(ledger), Some(change)) = (&self.ledger, change) {
                    ledger.borrow_mut().changed(change, done.is_ok());
                }
                done
            }
        }
    }

    /// Reads, and checks what is read.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<()> {
        let look = self.ledger.as_ref().map(|ledger| ledger.borrow_mut().read(offset..offset + len as u64));
        let bytes = self.volume.read(offset, len).await?;
        if let (Some(ledger), Some(look)) = (&self.ledger, look) {
            ledger.borrow_mut().check(look, &bytes);
        }
        Ok(())
    }

    /// Writes bytes of their own where they are checked, and zeroes elsewhere.
    pub(crate) async fn write(&self, offset: u64, len: usize) -> Result<()> {
        let Some(ledger) = &self.ledger else {
            // Where a block begins a page of memory begins: nothing is copied to get there.
            let skip = offset as usize % PAGE_BYTES;
            return self.volume.write(offset, Bufs::zeroes(skip + len).slice(skip..skip + len), false).await;
        };
        let (change, bytes) = ledger.borrow_mut().write(offset..offset + len as u64);
        let done = self.volume.write(offset, bytes, false).await;
        ledger.borrow_mut().changed(change, done.is_ok());
        done
    }

    /// Resolves when nothing is under way.
    pub(crate) async fn finished(&self) {
        poll_fn(|context| {
            if self.tally.borrow().in_flight == 0 {
                return Poll::Ready(());
            }
            self.waiting.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
