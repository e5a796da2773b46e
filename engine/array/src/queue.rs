//! The order in which a disk that turns does what it is asked: what somebody waits for first, and of that the nearest.
//!
//! ```text
//!   waiting:  Client  Client  Buffer  Buffer  Idle          at most `depth` under way ──> disk
//!               │                 └─ the next one on the way of the head outwards, then from the beginning again
//!               └─ the nearest to where the last one ended; of what is less urgent one now and then
//! ```
//!
//! A client's request is one of a few, anywhere: the shortest seek is best. What nobody waits for lies in runs, which are only read
//! without a lost turn from their beginning to their end. Where the head is only the disk knows: the end of what it was asked for
//! last stands for it.

use futures::channel::oneshot;
use kura_block::{Error, Result};
use std::cell::RefCell;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Who waits for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A client.
    Client,
    /// The write buffer, or a checkpoint.
    Buffer,
    /// Nobody: migration, rebuild, scrub.
    Idle,
}

/// Of so many requests that go before one less urgent, the next one gives way.
const PATIENCE: [u32; 3] = [u32::MAX, 8, 32];
/// So many others go before a request of the same urgency at most, however near they are.
const PASSED: u32 = 24;

/// A request that waits.
struct Waiting {
    urgency: Urgency,
    bytes: Range<u64>,
    passed: u32,
    go: oneshot::Sender<()>,
}

impl Waiting {
    /// How long a way the head has there that is at `head`: the least goes first.
    fn way_from(&self, head: u64) -> (bool, u64) {
        let begin = self.bytes.start;
        match self.urgency {
            Urgency::Client => (false, begin.abs_diff(head)),
            Urgency::Buffer | Urgency::Idle if begin < head => (true, begin),
            Urgency::Buffer | Urgency::Idle => (false, begin - head),
        }
    }
}

#[derive(Default)]
struct State {
    under_way: usize,
    /// In the order in which they came.
    waiting: Vec<Waiting>,
    head: u64,
    /// Requests that went before each kind since one of it went.
    before: [u32; 3],
}

/// A disk's queue.
#[derive(Default)]
pub(crate) struct Queue(RefCell<State>);

/// A request's turn at the disk; the next one's when dropped.
pub(crate) struct Turn<'a>(&'a Queue);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.0.borrow_mut().under_way -= 1;
        self.0.begin();
    }
}

impl Queue {
    /// Resolves when it is the turn of a request for these bytes, of which `depth` are under way at most.
    pub(crate) async fn turn(&self, depth: usize, urgency: Urgency, bytes: Range<u64>) -> Result<Turn<'_>> {
        let (go, granted) = oneshot::channel();
        {
            let state = &mut *self.0.borrow_mut();
            if state.under_way < depth {
                state.under_way += 1;
                state.head = bytes.end;
                return Ok(Turn(self));
            }
            state.waiting.push(Waiting { urgency, bytes, passed: 0, go });
        }
        Grant { queue: self, granted }.await
    }

    /// How far a place is from the last one asked for, in bytes.
    pub(crate) fn distance(&self, offset: u64) -> u64 {
        self.0.borrow().head.abs_diff(offset)
    }

    /// Gives the turn that has become free to the next request.
    fn begin(&self) {
        let state = &mut *self.0.borrow_mut();
        while let Some(next) = state.next() {
            let Waiting { bytes, go, .. } = state.waiting.remove(next);
            // One that was given up meanwhile has no use for it.
            if go.send(()).is_ok() {
                state.under_way += 1;
                state.head = bytes.end;
                return;
            }
        }
    }
}

impl State {
    /// The request whose turn it is, and what that means for those that go on waiting.
    fn next(&mut self) -> Option<usize> {
        let waits = |urgency: Urgency| self.waiting.iter().any(|waiting| waiting.urgency == urgency);
        let kinds = [Urgency::Client, Urgency::Buffer, Urgency::Idle].into_iter().filter(|kind| waits(*kind));
        let kinds: Vec<_> = kinds.collect();
        let starved = kinds.iter().rev().find(|kind| self.before[**kind as usize] >= PATIENCE[**kind as usize]);
        let kind = *starved.or(kinds.first())?;
        for waits in &kinds {
            self.before[*waits as usize] += 1;
        }
        self.before[kind as usize] = 0;
        let head = self.head;
        let mut of_kind = self.waiting.iter_mut().enumerate().filter(|(_, waiting)| waiting.urgency == kind);
        let (mut best, first) = of_kind.next()?;
        let (mut least, oldest_passed) = (first.way_from(head), first.passed);
        first.passed += 1;
        for (at, waiting) in of_kind {
            waiting.passed += 1;
            if oldest_passed < PASSED && waiting.way_from(head) < least {
                (best, least) = (at, waiting.way_from(head));
            }
        }
        Some(best)
    }
}

/// Waits for a turn; one that comes when nobody waits any more goes to the next request.
struct Grant<'a> {
    queue: &'a Queue,
    granted: oneshot::Receiver<()>,
}

impl<'a> Future for Grant<'a> {
    type Output = Result<Turn<'a>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let queue = self.queue;
        Pin::new(&mut self.granted).poll(context).map(|granted| match granted {
            Ok(()) => Ok(Turn(queue)),
            Err(_) => Err(Error::device("the disk is gone")),
        })
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        self.granted.close();
        if let Ok(Some(())) = self.granted.try_recv() {
            drop(Turn(self.queue));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order in which requests go that all wait, the head being at 0.
    fn order(requests: &[(Urgency, u64)]) -> Vec<u64> {
        let mut state = State::default();
        for (urgency, offset) in requests {
            let (go, _) = oneshot::channel();
            state.waiting.push(Waiting { urgency: *urgency, bytes: *offset..offset + 1, passed: 0, go });
        }
        let mut order = Vec::new();
        while let Some(next) = state.next() {
            let bytes = state.waiting.remove(next).bytes;
            state.head = bytes.end;
            order.push(bytes.start);
        }
        order
    }

    #[test]
    fn clients_go_first_and_of_each_kind_the_nearest() {
        let requests = [(Urgency::Idle, 1), (Urgency::Buffer, 9), (Urgency::Client, 70), (Urgency::Client, 50)];
        assert_eq!(order(&requests), [50, 70, 9, 1]);
        assert_eq!(order(&[]), []);
    }

    #[test]
    fn runs_are_read_from_their_beginning_to_their_end() {
        let runs = [30, 31, 32, 10, 11, 12];
        assert_eq!(order(&runs.map(|at| (Urgency::Idle, at))), [10, 11, 12, 30, 31, 32]);
        let behind_a_client = [(Urgency::Client, 31)].into_iter().chain(runs.map(|at| (Urgency::Buffer, at)));
        assert_eq!(order(&behind_a_client.collect::<Vec<_>>()), [31, 32, 10, 11, 12, 30, 31]);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let clients = (0..200).map(|offset| (Urgency::Client, offset));
        let order_of = |other| order(&clients.clone().chain([(other, 1 << 20)]).collect::<Vec<_>>());
        let at = |other| order_of(other).iter().position(|offset| *offset == 1 << 20);
        assert_eq!((at(Urgency::Buffer), at(Urgency::Idle)), (Some(8), Some(32)));
        let far: Vec<_> = [(Urgency::Client, 1 << 20)].into_iter().chain(clients.clone()).collect();
        assert_eq!(order(&far).iter().position(|offset| *offset == 1 << 20), Some(PASSED as usize));
    }

    #[test]
    fn a_turn_nobody_waits_for_any_more_is_the_next_ones() {
        futures::executor::block_on(async {
            let queue = Queue::default();
            let first = queue.turn(1, Urgency::Client, 0..1).await.unwrap();
            let mut dropped = Box::pin(queue.turn(1, Urgency::Client, 1..2));
            let mut second = Box::pin(queue.turn(1, Urgency::Client, 2..3));
            assert!(futures::poll!(&mut dropped).is_pending() && futures::poll!(&mut second).is_pending());
            // Granted, and dropped before it knew.
            drop(first);
            drop(dropped);
            assert!(second.await.is_ok());
            assert_eq!(queue.0.borrow().under_way, 0);
        });
    }
}
