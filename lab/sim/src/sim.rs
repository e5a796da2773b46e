//! The driver's handle on a world, and the runtime it gives to the engine.

use crate::agenda::{Event, TimerKey};
use crate::disk::{DiskSpec, SimDisk};
use crate::fault::{CrashPoint, FaultPlan, Strike};
use crate::world::{World, nanos};
use kura_block::{Local, Runtime};
use rand_chacha::ChaCha8Rng;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The future resolved.
    Done(T),
    /// The power went first; the crash is over, and the next incarnation may begin.
    Crashed,
}

/// A world of virtual time. Dropping it drops all that runs in it.
pub struct Sim {
    world: Rc<World>,
}

impl Sim {
    /// A world at time 0. All that is random in it follows from `seed`.
    pub fn new(seed: u64) -> Self {
        Self { world: Rc::new(World::new(seed)) }
    }

    /// The seed.
    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// Virtual time since the beginning.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.world.now_ns())
    }

    /// The generator of this name, at its beginning: a stream of its own, so that a draw here moves no other. The same
    /// name gives the same numbers again: keep the generator.
    pub fn rng(&self, name: &str) -> ChaCha8Rng {
        self.world.rng(name)
    }

    /// The clock and task spawner of this incarnation.
    pub fn runtime(&self) -> Rc<SimRuntime> {
        Rc::new(SimRuntime { world: Rc::clone(&self.world), incarnation: self.world.incarnation() })
    }

    /// Adds a disk of zeroes. Its name is its own.
    pub fn disk(&self, name: &str, spec: DiskSpec) -> SimDisk {
        SimDisk::new(&self.world, name, spec)
    }

    /// Runs until `future` resolves. Time advances only while every task waits. Other tasks stay, and go on in the
    /// next run. Panics, with the seed, the time and the last device operations, when nothing is going to happen any
    /// more, or when a planned crash comes.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let value = self.world.run(future);
        value.unwrap_or_else(|| {
            panic!("the plan cuts the power at {:?}, seed {}: use run_until_crash_or", self.now(), self.seed())
        })
    }

    /// Runs until `future` resolves or the plan cuts the power; the cut is then done, as by [`Sim::crash`].
    pub fn run_until_crash_or<T>(&self, future: impl Future<Output = T>) -> Outcome<T> {
        match self.world.run(future) {
            Some(value) => Outcome::Done(value),
            None => {
                self.world.crash();
                Outcome::Crashed
            }
        }
    }

    /// Cuts the power: every task is dropped, each disk keeps what is at rest and, by the seed, some of what is not.
    /// Time stands. Open the disks again and begin the next incarnation with a new [`Sim::runtime`].
    pub fn crash(&self) {
        self.world.crash();
    }

    /// Sets what is going to go wrong, in place of what was still to come. Counts and times begin now.
    pub fn set_plan(&self, plan: &FaultPlan) {
        let world = &self.world;
        world.agenda.borrow_mut().clear_plan();
        for medium in &*world.media.borrow() {
            medium.disarm();
            for fault in plan.faults.iter().filter(|fault| fault.disk == medium.name) {
                medium.arm(world, fault.when, fault.what.clone());
            }
        }
        for fault in &plan.faults {
            let known = world.media.borrow().iter().any(|medium| medium.name == fault.disk);
            assert!(known, "the plan names disk {}, which is not in the world", fault.disk);
        }
        let mut crash_ops = Vec::new();
        for crash in &plan.crashes {
            match crash {
                CrashPoint::Op(nth) => crash_ops.push(world.operations().saturating_add(*nth)),
                CrashPoint::After(delay) => {
                    let at_ns = world.now_ns().saturating_add(nanos(*delay));
                    world.agenda.borrow_mut().enter(at_ns, Event::Crash);
                }
            }
        }
        crash_ops.sort_unstable_by(|a, b| b.cmp(a));
        *world.crash_ops.borrow_mut() = crash_ops;
    }

    /// The faults that have struck, in order.
    pub fn strikes(&self) -> Vec<Strike> {
        self.world.strikes.borrow().clone()
    }

    /// Operations that all devices together have been asked for.
    pub fn operations(&self) -> u64 {
        self.world.operations()
    }

    /// A hash of every operation issued and answered, with its time: two runs that agree in it, in [`Sim::now`] and in
    /// each [`SimDisk::digest`] were the same.
    pub fn digest(&self) -> u64 {
        self.world.digest()
    }

    /// Panics when a run goes on beyond this virtual time; a year unless set.
    pub fn set_limit(&self, limit: Duration) {
        self.world.limit_ns.set(nanos(limit));
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // Tasks hold the world and the world holds them: somebody has to let go first.
        self.world.end_incarnation();
    }
}

/// Virtual time and tasks for the engine: one incarnation's. After the crash it does nothing any more.
pub struct SimRuntime {
    world: Rc<World>,
    incarnation: u32,
}

impl Runtime for SimRuntime {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.world.now_ns())
    }

    fn sleep(&self, delay: Duration) -> Local<'static, ()> {
        let at_ns = self.world.now_ns().saturating_add(nanos(delay));
        let key = self.world.agenda.borrow_mut().sleep_until(at_ns);
        Box::pin(Sleep { world: Rc::clone(&self.world), incarnation: self.incarnation, key })
    }

    fn spawn(&self, task: Local<'static, ()>) {
        // Destructors of what a crash drops may come here too.
        if self.incarnation == self.world.incarnation() {
            self.world.executor.spawn(task);
        }
    }
}

struct Sleep {
    world: Rc<World>,
    incarnation: u32,
    key: TimerKey,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let alive = self.incarnation == self.world.incarnation();
        if alive && self.world.agenda.borrow_mut().poll(self.key, context.waker()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.world.agenda.borrow_mut().cancel(self.key);
    }
}
