//! Virtual time and tasks: their order, their clock, their end.

use crate::{DiskSpec, Outcome, Sim};
use kura_block::{Local, Runtime};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);

#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.borrow_mut().push(line.into());
    }
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}

/// Lets every other ready task have its turn once.
fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    poll_fn(move |context: &mut Context<'_>| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

#[test]
fn tasks_take_turns_in_the_order_in_which_they_were_woken() {
    let (sim, log) = (Sim::new(1), Log::default());
    let runtime = sim.runtime();
    sim.block_on(async {
        for name in ["a", "b", "c"] {
            let log = log.clone();
            runtime.spawn(Box::pin(async move {
                log.add(format!("{name}1"));
                yield_now().await;
                log.add(format!("{name}2"));
            }));
        }
        runtime.sleep(MS).await;
    });
    assert_eq!(log.take(), ["a1", "b1", "c1", "a2", "b2", "c2"]);
}

#[test]
fn a_task_woken_twice_has_one_turn() {
    let (sim, polls) = (Sim::new(1), Rc::new(Cell::new(0)));
    let runtime = sim.runtime();
    let counter = Rc::clone(&polls);
    runtime.spawn(Box::pin(poll_fn(move |context: &mut Context<'_>| {
        counter.set(counter.get() + 1);
        if counter.get() == 1 {
            context.waker().wake_by_ref();
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })));
    sim.block_on(runtime.sleep(MS));
    assert_eq!(polls.get(), 2);
}

#[test]
fn sleeps_end_by_time_then_by_the_order_in_which_they_began() {
    let (sim, log) = (Sim::new(1), Log::default());
    let runtime = sim.runtime();
    for (name, nanos) in [("late", 300), ("first", 7), ("twin1", 200), ("twin2", 200), ("now", 0)] {
        let (log, clock) = (log.clone(), Rc::clone(&runtime));
        let sleep = runtime.sleep(Duration::from_nanos(nanos));
        runtime.spawn(Box::pin(async move {
            sleep.await;
            log.add(format!("{name} {}", clock.now().as_nanos()));
        }));
    }
    sim.block_on(runtime.sleep(Duration::from_nanos(301)));
    assert_eq!(log.take(), ["now 0", "first 7", "twin1 200", "twin2 200", "late 300"]);
    assert_eq!(sim.now(), Duration::from_nanos(301));
}

#[test]
fn time_stands_while_a_task_can_run() {
    let sim = Sim::new(1);
    sim.block_on(async {
        for _ in 0..1000 {
            yield_now().await;
        }
    });
    assert_eq!(sim.now(), Duration::ZERO);
}

#[test]
fn a_dropped_sleep_neither_wakes_nor_moves_the_clock() {
    let sim = Sim::new(1);
    let runtime = sim.runtime();
    for _ in 0..10_000 {
        drop(runtime.sleep(Duration::from_hours(1)));
    }
    sim.block_on(runtime.sleep(MS));
    assert_eq!(sim.now(), MS);
    let stuck = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| sim.block_on(std::future::pending::<()>())));
    assert!(stuck.is_err());
    assert_eq!(sim.now(), MS, "no cancelled sleep is left to wait for");
}

#[test]
#[should_panic(expected = "deadlock: everything waits and nothing is going to happen at 1ms, seed 77")]
fn a_deadlock_is_a_clear_panic() {
    let sim = Sim::new(77);
    let runtime = sim.runtime();
    sim.block_on(async {
        runtime.sleep(MS).await;
        std::future::pending::<()>().await;
    });
}

#[test]
#[should_panic(expected = "beyond its limit of virtual time")]
fn a_run_that_never_ends_is_a_clear_panic() {
    let sim = Sim::new(1);
    sim.set_limit(Duration::from_secs(1));
    let runtime = sim.runtime();
    let ticker = sim.runtime();
    runtime.spawn(Box::pin(async move {
        loop {
            ticker.sleep(MS).await;
        }
    }));
    sim.block_on(std::future::pending::<()>());
}

#[test]
fn tasks_stay_for_the_next_run() {
    let sim = Sim::new(1);
    let runtime = sim.runtime();
    let done = Rc::new(Cell::new(false));
    let (sleep, flag) = (runtime.sleep(2 * MS), Rc::clone(&done));
    runtime.spawn(Box::pin(async move {
        sleep.await;
        flag.set(true);
    }));
    sim.block_on(runtime.sleep(MS));
    assert!(!done.get());
    sim.block_on(runtime.sleep(2 * MS));
    assert!(done.get());
}

/// Spawns, sleeps and wakes when it is dropped, as careless destructors do.
struct Careless {
    runtime: Rc<dyn Runtime>,
    drops: Rc<Cell<u32>>,
}

impl Future for Careless {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }
}

impl Drop for Careless {
    fn drop(&mut self) {
        self.drops.set(self.drops.get() + 1);
        if self.drops.get() < 100 {
            let again = Careless { runtime: Rc::clone(&self.runtime), drops: Rc::clone(&self.drops) };
            self.runtime.spawn(Box::pin(again));
        }
        drop(self.runtime.sleep(MS));
    }
}

#[test]
fn a_crash_drops_every_task_and_its_sleeps() {
    let sim = Sim::new(1);
    let runtime: Rc<dyn Runtime> = sim.runtime();
    let drops = Rc::new(Cell::new(0));
    runtime.spawn(Box::pin(Careless { runtime: Rc::clone(&runtime), drops: Rc::clone(&drops) }));
    let ticker = Rc::clone(&runtime);
    runtime.spawn(Box::pin(async move { ticker.sleep(Duration::from_secs(5)).await }));
    let old_sleep = runtime.sleep(Duration::ZERO);
    sim.block_on(runtime.sleep(MS));
    sim.crash();
    assert_eq!(drops.get(), 100, "what a destructor spawns is dropped at once");
    assert_eq!(sim.now(), MS);

    // The old runtime does nothing any more; the new one goes on in time.
    let ran = Rc::new(Cell::new(false));
    let flag = Rc::clone(&ran);
    runtime.spawn(Box::pin(async move { flag.set(true) }));
    let next = sim.runtime();
    sim.block_on(next.sleep(MS));
    assert!(!ran.get());
    assert_eq!(sim.now(), 2 * MS, "the dead incarnation's sleeps are gone");
    sim.block_on(async { assert!(futures::poll!(old_sleep).is_pending()) });
}

#[test]
fn a_waker_of_a_dead_task_wakes_nobody() {
    let sim = Sim::new(1);
    let waker = Rc::new(RefCell::new(None));
    let kept = Rc::clone(&waker);
    let wait = |polls: Rc<Cell<u32>>, kept: Rc<RefCell<Option<std::task::Waker>>>| -> Local<'static, ()> {
        Box::pin(poll_fn(move |context: &mut Context<'_>| {
            polls.set(polls.get() + 1);
            *kept.borrow_mut() = Some(context.waker().clone());
            Poll::Pending
        }))
    };
    sim.runtime().spawn(wait(Rc::default(), kept));
    sim.block_on(sim.runtime().sleep(MS));
    sim.crash();
    let (polls, runtime) = (Rc::new(Cell::new(0)), sim.runtime());
    runtime.spawn(wait(Rc::clone(&polls), Rc::default()));
    sim.block_on(runtime.sleep(MS));
    waker.take().unwrap().wake();
    sim.block_on(runtime.sleep(MS));
    assert_eq!(polls.get(), 1, "its place is another task's now");
}

#[test]
fn a_task_that_holds_itself_alive_is_let_go_by_a_crash_and_by_the_end_of_the_world() {
    struct Held {
        runtime: Rc<dyn Runtime>,
    }
    for by_crash in [true, false] {
        let sim = Sim::new(1);
        let held = Rc::new(Held { runtime: sim.runtime() });
        let weak = Rc::downgrade(&held);
        let task: Local<'static, ()> = {
            let held = Rc::clone(&held);
            Box::pin(async move { held.runtime.sleep(Duration::from_secs(1)).await })
        };
        held.runtime.spawn(task);
        drop(held);
        sim.block_on(sim.runtime().sleep(MS));
        assert!(weak.upgrade().is_some(), "the task holds it");
        if by_crash {
            sim.crash();
        } else {
            drop(sim);
        }
        assert!(weak.upgrade().is_none());
    }
}

#[test]
fn a_run_without_a_crash_in_its_plan_ends_as_done() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", DiskSpec::constant(1 << 20, MS)).open();
    assert_eq!(sim.run_until_crash_or(async { kura_block::Block::flush(&*disk).await.is_ok() }), Outcome::Done(true));
    assert_eq!((sim.now(), sim.operations()), (MS, 1));
}

#[test]
fn named_generators_do_not_move_each_other() {
    use rand::RngExt;
    let draw = |seed: u64, name: &str, before: usize| {
        let sim = Sim::new(seed);
        let mut other = sim.rng("other");
        for _ in 0..before {
            let _: u64 = other.random();
        }
        sim.rng(name).random::<u64>()
    };
    assert_eq!(draw(1, "a", 0), draw(1, "a", 9));
    assert_ne!(draw(1, "a", 0), draw(1, "b", 0));
    assert_ne!(draw(1, "a", 0), draw(2, "a", 0));
}
