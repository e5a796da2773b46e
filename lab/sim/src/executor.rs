//! Tasks of one thread, polled in the order in which they were woken.

use kura_block::Local;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

/// Slot of the driver's own future, which lives on the driver's stack.
pub(crate) const MAIN: usize = usize::MAX;

/// Tasks waiting for their turn. `std` wants wakers `Send`, so the queue is behind a lock nobody contends for.
#[derive(Default)]
struct Ready(Mutex<VecDeque<Ticket>>);

impl Ready {
    fn with<T>(&self, work: impl FnOnce(&mut VecDeque<Ticket>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Which task it is: one that has its slot later has another number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) slot: usize,
    number: u64,
}

/// A task's right to be polled once after each wake.
pub(crate) struct Turn {
    ticket: Ticket,
    queued: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Turn {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.ready.with(|queue| queue.push_back(self.ticket));
        }
    }
}

impl Turn {
    /// If the ticket is its task's it is its turn now: the next wake queues it again.
    pub(crate) fn begin(&self, ticket: Ticket) -> bool {
        let is_its = self.ticket == ticket;
        if is_its {
            self.queued.store(false, Ordering::Relaxed);
        }
        is_its
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
    /// Turns so far.
    turns: Cell<u64>,
}

impl Executor {
    fn turn(&self, slot: usize) -> Arc<Turn> {
        let ticket = Ticket { slot, number: self.turns.replace(self.turns.get() + 1) };
        let turn = Arc::new(Turn { ticket, queued: AtomicBool::new(false), ready: Arc::clone(&self.ready) });
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

    /// Whose turn is next, or `None` when every task waits for something.
    pub(crate) fn next(&self) -> Option<Ticket> {
        self.ready.with(VecDeque::pop_front)
    }

    /// Polls the task whose turn it is, if it has not ended.
    pub(crate) fn poll(&self, ticket: Ticket) {
        let slot = ticket.slot;
        let begin = |task: &mut Task| if task.turn.begin(ticket) { task.work.take() } else { None };
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
