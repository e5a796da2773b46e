//! Tasks of one thread, polled in the order in which they were woken.

use kura_block::Local;
use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Slot of the driver's own future, which lives on the driver's stack.
pub(crate) const MAIN: usize = usize::MAX;

/// Tasks waiting for their turn. `std` wants wakers `Send`, so the queue is behind a lock nobody contends for.
#[derive(Default)]
struct Ready(Mutex<VecDeque<Arc<Turn>>>);

impl Ready {
    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<Arc<Turn>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A task's right to be polled once after each wake.
pub(crate) struct Turn {
    slot: usize,
    queued: AtomicBool,
    over: AtomicBool,
    ready: Arc<Ready>,
}

impl Turn {
    pub(crate) fn slot(&self) -> usize {
        self.slot
    }

    /// The task is gone: wakes have no effect from now on.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            let ready = Arc::clone(&self.ready);
            ready.with(|queue| queue.push_back(self));
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}

struct Task {
    /// Empty while the task is being polled.
    future: Option<Local<'static, ()>>,
    turn: Arc<Turn>,
}

/// The tasks of one incarnation after the other.
#[derive(Default)]
pub(crate) struct Executor {
    tasks: RefCell<Slab<Task>>,
    ready: Arc<Ready>,
}

impl Executor {
    fn turn(&self, slot: usize) -> Arc<Turn> {
        let turn =
            Turn { slot, queued: AtomicBool::new(false), over: AtomicBool::new(false), ready: Arc::clone(&self.ready) };
        let turn = Arc::new(turn);
        turn.wake_by_ref();
        turn
    }

    /// A turn for the driver's future, queued.
    pub(crate) fn main_turn(&self) -> Arc<Turn> {
        self.turn(MAIN)
    }

    /// Adds a task at the end of the queue.
    pub(crate) fn spawn(&self, future: Local<'static, ()>) {
        let mut tasks = self.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let turn = self.turn(entry.key());
        entry.insert(Task { future: Some(future), turn });
    }

    /// The next turn, or `None` when every task waits for something.
    pub(crate) fn next(&self) -> Option<Arc<Turn>> {
        loop {
            let turn = self.ready.with(VecDeque::pop_front)?;
            turn.queued.store(false, Ordering::Relaxed);
            if !turn.over.load(Ordering::Relaxed) {
                return Some(turn);
            }
        }
    }

    /// Polls the task whose turn it is.
    pub(crate) fn poll(&self, turn: Arc<Turn>) {
        let slot = turn.slot;
        let future = self.tasks.borrow_mut().get_mut(slot).and_then(|task| task.future.take());
        let Some(mut future) = future else { return };
        let waker = Waker::from(turn);
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            if let Some(task) = self.tasks.borrow_mut().get_mut(slot) {
                task.future = Some(future);
            }
        } else {
            // The future is dropped after its slot is free: its destructor may spawn.
            let task = self.tasks.borrow_mut().remove(slot);
            task.turn.end();
        }
    }

    /// Tasks that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Drops every task, as a power cut does. Their destructors may wake each other, to no effect; they may not spawn.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for (_, task) in tasks {
            task.turn.end();
            drop(task);
        }
        let queue = self.ready.with(std::mem::take);
        drop(queue);
    }
}
