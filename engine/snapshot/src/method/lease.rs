//! Beyond the paper: free entries are leased in batches.

use super::reach::Reach;
use super::reserve::{Reserve, Sizes, sizes};
use super::{ControlMemory, Counters, EntryId, IndexEntry, Kind, Message, Method, PoolEntry, Region, Step, full};
use futures::lock::Mutex;
use kura_block::{ControllerId, Result};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;

/// As [`AccessChange`](super::AccessChange), but entries are taken from a reserve of this controller's, and shared
/// memory is reached once a batch. The reserves of all controllers are at most a thousandth of the pool; when the pool
/// has nothing left, they are called back, so that it is used to the last entry.
pub struct Lease {
    reach: Reach,
    controllers: u16,
    reserve: RefCell<Reserve>,
    /// Whoever finds the reserve empty fills it; the others wait for that.
    refill: Mutex<()>,
    /// A batch is on its way: who asks for it is answered when it has come.
    is_leasing: Cell<bool>,
    /// Those who asked this controller to give back.
    askers: RefCell<Vec<ControllerId>>,
    /// Those whom it asked.
    asked: RefCell<Asked>,
}

#[derive(Default)]
struct Asked {
    /// They have not answered.
    waiting: BTreeSet<ControllerId>,
    /// Entries that the others gave back.
    given_back: u32,
}

impl Asked {
    fn answered(&mut self, by: ControllerId, given_back: u32) {
        self.waiting.remove(&by);
        self.given_back += given_back;
    }
}

/// Ends with the lease, or with whoever waited for it.
struct Leasing<'a>(&'a Cell<bool>);

impl<'a> Leasing<'a> {
    fn begin(is_leasing: &'a Cell<bool>) -> Self {
        is_leasing.set(true);
        Self(is_leasing)
    }
}

impl Drop for Leasing<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Lease {
    /// For one of `controllers` controllers: the one that `memory` is the way of.
    pub fn new(memory: Rc<dyn ControlMemory>, controllers: u16) -> Self {
        Self {
            reach: Reach::new(memory),
            controllers,
            reserve: RefCell::default(),
            refill: Mutex::new(()),
            is_leasing: Cell::new(false),
            askers: RefCell::default(),
            asked: RefCell::default(),
        }
    }

    /// They follow the pool as it grows.
    fn sizes(&self) -> Sizes {
        sizes(self.reach.entries(), self.controllers)
    }

    fn take_reserved(&self) -> Option<EntryId> {
        self.reserve.borrow_mut().take()
    }

    async fn take_leased(&self) -> Result<EntryId> {
        let _turn = self.refill.lock().await;
        // Where shared memory stood when the others were asked, and nobody had anything.
        let mut empty_at = None;
        loop {
            if let Some(entry) = self.take_reserved() {
                self.answer().await?;
                return Ok(entry);
            }
            let batch = {
                let _leasing = Leasing::begin(&self.is_leasing);
                self.reach.take(self.sizes().batch).await?
            };
            if !batch.is_empty() {
                self.reserve.borrow_mut().put(batch);
                continue;
            }
            // What was given back may be with somebody else by now, who does not use all of it, and who had nothing when it
            // was asked may have taken it since: only where nothing has changed meanwhile is everything in use.
            let changes = self.reach.changes().await?;
            if empty_at == Some(changes) {
                self.answer().await?;
                return Err(full());
            }
            empty_at = (self.call_back().await? == 0).then_some(changes);
        }
    }

    /// Has the others give back what they do not use: how many entries that was. A controller that does not answer is
    /// waited for until it is expelled.
    async fn call_back(&self) -> Result<u32> {
        let peers = self.reach.peers();
        *self.asked.borrow_mut() = Asked { waiting: peers.iter().copied().collect(), ..Asked::default() };
        self.reach.send(peers, Message::GiveBack).await?;
        loop {
            // Others may be asking at the same time.
            self.answer().await?;
            if self.asked.borrow().waiting.is_empty() {
                return Ok(self.asked.borrow().given_back);
            }
            self.answer_or_question().await?;
        }
    }

    /// Resolves when a message is there, or when somebody else of this controller has received the last answer.
    async fn answer_or_question(&self) -> Result<()> {
        let mut arrived = self.reach.arrived();
        poll_fn(|context| {
            let is_answered = self.asked.borrow().waiting.is_empty();
            if is_answered { Poll::Ready(Ok(())) } else { arrived.as_mut().poll(context) }
        })
        .await
    }

    /// Receives all messages, and answers all questions unless a batch is on its way.
    async fn answer(&self) -> Result<()> {
        while let Some((from, message)) = self.reach.receive() {
            match message {
                Message::GiveBack => self.askers.borrow_mut().push(from),
                Message::GivenBack(count) => self.asked.borrow_mut().answered(from, count),
                Message::Gone => self.asked.borrow_mut().answered(from, 0),
                Message::Changed(_) => {}
            }
        }
        if self.is_leasing.get() || self.askers.borrow().is_empty() {
            return Ok(());
        }
        let askers = self.askers.take();
        let entries = self.reserve.borrow_mut().empty();
        let count = entries.len() as u32;
        if count > 0 {
            self.reach.release(entries).await?;
        }
        self.reach.send(askers, Message::GivenBack(count)).await
    }
}

impl Method for Lease {
    fn kind(&self) -> Kind {
        Kind::Lease
    }

    fn lookup_index(&self, _: Region) -> Step<'_, Option<IndexEntry>> {
        self.reach.hit();
        Step::Done(None)
    }

    fn lookup_entry(&self, _: EntryId) -> Step<'_, Option<PoolEntry>> {
        self.reach.hit();
        Step::Done(None)
    }

    fn take(&self) -> Step<'_, EntryId> {
        match self.take_reserved() {
            Some(entry) => {
                self.reach.hit();
                Step::Done(entry)
            }
            None => Step::wait(self.take_leased()),
        }
    }

    fn saved(&self, _: Region, entry: EntryId) -> Step<'_, IndexEntry> {
        Step::Done(IndexEntry::Pool(entry))
    }

    fn free(&self, freed: &[(Region, EntryId)]) -> Step<'_, ()> {
        let mut reserve = self.reserve.borrow_mut();
        for (_, entry) in freed {
            reserve.put_one(*entry);
        }
        let excess = reserve.excess(self.sizes());
        if excess.is_empty() { Step::Done(()) } else { Step::wait(self.reach.release(excess)) }
    }

    fn attend(&self) -> Step<'_, ()> {
        Step::wait(self.answer())
    }

    fn reserved(&self) -> u32 {
        self.reserve.borrow().len()
    }

    fn counters(&self) -> Counters {
        self.reach.counters()
    }
}
