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

/// The slots of tasks waiting for their turn. `std` wants wakers `Send`, so the queue is behind a lock nobody contends for.
#[derive(Default)]
struct Ready(Mutex<VecDeque<usize>>);

impl Ready {
    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<usize>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A task's right to be polled once after each wake. One that outlives its task wakes whoever has its slot by then, which
/// finds nothing new.
pub(crate) struct Turn {
    slot: usize,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.with(|queue| queue.push_back(self.slot));
        }
    }
}

impl Turn {
    /// It is the task's turn: the next wake queues it again.
    pub(crate) fn begin(&self) {
        self.queued.store(false, Ordering::Relaxed);
    }
}

struct Task {
    /// Empty while the task is being polled.
    work: Option<(Local<'static, ()>, Waker)>,
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
        let turn = Arc::new(Turn { slot, queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
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
        entry.insert(Task { work: Some((future, Waker::from(Arc::clone(&turn)))), turn });
    }

    /// The slot whose turn is next, or `None` when every task waits for something.
    pub(crate) fn next(&self) -> Option<usize> {
        self.ready.with(VecDeque::pop_front)
    }

    /// Polls the task whose turn it is, if it has not ended.
    pub(crate) fn poll(&self, slot: usize) {
        let begin = |task: &mut Task| {
            task.turn.begin();
            task.work.take()
        };
        let work = self.tasks.borrow_mut().get_mut(slot).and_then(begin);
        let Some((mut future, waker)) = work else { return };
        if future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            if let Some(task) = self.tasks.borrow_mut().get_mut(slot) {
                task.work = Some((future, waker));
            }
        } else {
            // The future is dropped after its slot is free: its destructor may spawn.
            drop(self.tasks.borrow_mut().remove(slot));
        }
    }

    /// Tasks that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.tasks.borrow().len()
    }

    /// Drops every task, as a power cut does. Their destructors may wake each other, to no effect; they may not spawn.
    pub(crate) fn clear(&self) {
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        drop(tasks);
        self.ready.with(VecDeque::clear);
    }
}
