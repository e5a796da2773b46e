//! Everything that lives in one virtual time, and the loop that drives it.

use crate::agenda::{Agenda, Event};
use crate::executor::{Executor, MAIN};
use crate::fault::Strike;
use crate::medium::Medium;
use crate::model::Io;
use crate::trace::{Phase, Step, Trace};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use std::cell::{Cell, RefCell};
use std::fmt::Write as _;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// Polls at one moment of virtual time before the world is said to spin.
const POLLS_LIMIT: u64 = 50_000_000;
/// Virtual time after which a run is said to never end: a year.
const TIME_LIMIT: Duration = Duration::from_hours(365 * 24);

pub(crate) struct World {
    pub(crate) seed: u64,
    now_ns: Cell<u64>,
    pub(crate) limit_ns: Cell<u64>,
    pub(crate) agenda: RefCell<Agenda>,
    pub(crate) executor: Executor,
    incarnation: Cell<u32>,
    running: Cell<bool>,
    crash_due: Cell<bool>,
    /// Numbers of the operations at which the power goes, falling.
    pub(crate) crash_ops: RefCell<Vec<u64>>,
    operations: Cell<u64>,
    pub(crate) media: RefCell<Vec<Rc<Medium>>>,
    trace: RefCell<Trace>,
    pub(crate) strikes: RefCell<Vec<Strike>>,
}

/// Ends the run however it is left.
struct Running<'a>(&'a Cell<bool>);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            now_ns: Cell::new(0),
            limit_ns: Cell::new(nanos(TIME_LIMIT)),
            agenda: RefCell::default(),
            executor: Executor::default(),
            incarnation: Cell::new(0),
            running: Cell::new(false),
            crash_due: Cell::new(false),
            crash_ops: RefCell::default(),
            operations: Cell::new(0),
            media: RefCell::default(),
            trace: RefCell::new(Trace::new()),
            strikes: RefCell::default(),
        }
    }

    pub(crate) fn rng(&self, name: &str) -> ChaCha8Rng {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(xxh3_64(name.as_bytes()));
        rng
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.get()
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.incarnation.get()
    }

    pub(crate) fn operations(&self) -> u64 {
        self.operations.get()
    }

    pub(crate) fn digest(&self) -> u64 {
        self.trace.borrow().digest()
    }

    /// True when the power is gone and the tasks have not noticed.
    pub(crate) fn crash_is_due(&self) -> bool {
        self.crash_due.get()
    }

    /// Counts an operation that a device has been asked for, which may be the one at which the power goes.
    pub(crate) fn issued(&self, disk: u32, io: Io, fua: bool) -> u64 {
        let op = self.operations.get() + 1;
        self.operations.set(op);
        self.note(disk, op, io, fua, Phase::Issued);
        let mut crash_ops = self.crash_ops.borrow_mut();
        while crash_ops.pop_if(|at| *at <= op).is_some() {
            self.crash_due.set(true);
        }
        op
    }

    pub(crate) fn note(&self, disk: u32, op: u64, io: Io, fua: bool, phase: Phase) {
        self.trace.borrow_mut().note(Step { at_ns: self.now_ns(), disk, op, io, fua, phase });
    }

    /// Runs until `future` resolves; `None` when the power goes first.
    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        assert!(!self.running.replace(true), "the world runs already: await the future instead");
        let _running = Running(&self.running);
        let mut future = pin!(future);
        let main = self.executor.main_turn();
        let main_waker = Waker::from(Arc::clone(&main));
        let mut polls = 0;
        let mut value = Poll::Pending;
        while value.is_pending() && !self.crash_due.get() {
            match self.executor.next() {
                Some(ticket) if ticket.slot == MAIN => {
                    if main.begin(ticket) {
                        value = future.as_mut().poll(&mut Context::from_waker(&main_waker));
                    }
                }
                Some(ticket) => self.executor.poll(ticket),
                None => {
                    self.step();
                    polls = 0;
                }
            }
            polls += 1;
            assert!(polls < POLLS_LIMIT, "{}", self.report("tasks wake each other without end"));
        }
        match value {
            Poll::Ready(value) if !self.crash_due.get() => Some(value),
            _ => None,
        }
    }

    /// Lets time pass until the next event, and that event happen.
    fn step(&self) {
        let next = self.agenda.borrow_mut().next();
        let Some((at_ns, event, waker)) = next else {
            panic!("{}", self.report("deadlock: everything waits and nothing is going to happen"));
        };
        assert!(at_ns <= self.limit_ns.get(), "{}", self.report("the run goes on beyond its limit of virtual time"));
        self.now_ns.set(at_ns);
        let waker = match event {
            Event::Timer(_) => waker,
            Event::Device { disk, slot } => self.medium(disk).finish(self, slot),
            Event::Wake { disk } => {
                self.medium(disk).wake(self);
                None
            }
            Event::Fault { disk, index } => {
                self.medium(disk).time_has_come(self, index);
                None
            }
            Event::Crash => {
                self.crash_due.set(true);
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn medium(&self, disk: u32) -> Rc<Medium> {
        Rc::clone(&self.media.borrow()[disk as usize])
    }

    fn report(&self, what: &str) -> String {
        let mut text = format!(
            "{what} at {:?}, seed {}, {} tasks",
            Duration::from_nanos(self.now_ns()),
            self.seed,
            self.executor.len()
        );
        for medium in &*self.media.borrow() {
            medium.describe_pending(&mut text);
        }
        for strike in &*self.strikes.borrow() {
            let _ = write!(text, "\n  struck: {strike}");
        }
        for step in self.trace.borrow().last() {
            let _ = write!(text, "\n  {step}");
        }
        text
    }

    /// The power goes: tasks and sleeps are dropped, media keep what a power cut leaves. Time stands.
    pub(crate) fn crash(&self) {
        assert!(!self.running.get(), "a crash is the driver's: return from the run first, or plan it");
        self.end_incarnation();
        for medium in &*self.media.borrow() {
            medium.power_cut(self);
        }
        self.crash_due.set(false);
    }

    /// Drops all that runs. Destructors find a world in which they can do nothing.
    pub(crate) fn end_incarnation(&self) {
        self.incarnation.set(self.incarnation.get() + 1);
        self.executor.clear();
        let wakers = self.agenda.borrow_mut().clear();
        drop(wakers);
    }
}
