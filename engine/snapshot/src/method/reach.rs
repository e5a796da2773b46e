//! Shared memory with its accesses counted.

use super::{ControlMemory, EntryId, IndexEntry, Message, PoolEntry, Region};
use kura_block::{ControllerId, Local, Result};
use std::cell::Cell;
use std::ops::{AddAssign, Sub};
use std::rc::Rc;

/// What one controller has done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Control information read from shared memory; a search for free entries is one.
    pub shared_reads: u64,
    /// Changes of shared memory; a batch of entries is one.
    pub shared_updates: u64,
    /// Messages sent, one for each receiver.
    pub messages: u64,
    /// Messages received.
    pub received: u64,
    /// Copies that were right and are dropped.
    pub drops: u64,
    /// Look-ups and entries taken without an access to shared memory.
    pub hits: u64,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.shared_reads += other.shared_reads;
        self.shared_updates += other.shared_updates;
        self.messages += other.messages;
        self.received += other.received;
        self.drops += other.drops;
        self.hits += other.hits;
    }
}

impl Sub for Counters {
    type Output = Self;

    /// What was counted since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            shared_reads: self.shared_reads - earlier.shared_reads,
            shared_updates: self.shared_updates - earlier.shared_updates,
            messages: self.messages - earlier.messages,
            received: self.received - earlier.received,
            drops: self.drops - earlier.drops,
            hits: self.hits - earlier.hits,
        }
    }
}

/// The way to shared memory, counted.
pub(super) struct Reach {
    memory: Rc<dyn ControlMemory>,
    counters: Cell<Counters>,
}

impl Reach {
    pub fn new(memory: Rc<dyn ControlMemory>) -> Self {
        Self { memory, counters: Cell::default() }
    }

    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn count(&self, add: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        add(&mut counters);
        self.counters.set(counters);
    }

    /// The controller's own table was right.
    pub fn hit(&self) {
        self.count(|it| it.hits += 1);
    }

    /// So many copies are dropped.
    pub fn drop_copies(&self, copies: u64) {
        self.count(|it| it.drops += copies);
    }

    pub fn entries(&self) -> u32 {
        self.memory.entries()
    }

    pub fn peers(&self) -> Vec<ControllerId> {
        self.memory.peers()
    }

    pub async fn changes(&self) -> Result<u64> {
        self.count(|it| it.shared_reads += 1);
        self.memory.changes().await
    }

    pub async fn read_index(&self, region: Region) -> Result<IndexEntry> {
        self.count(|it| it.shared_reads += 1);
        self.memory.read_index(region).await
    }

    pub async fn update_index(&self, region: Region, from: IndexEntry, to: IndexEntry) -> Result<IndexEntry> {
        self.count(|it| it.shared_updates += 1);
        self.memory.update_index(region, from, to).await
    }

    pub async fn read_entry(&self, entry: EntryId) -> Result<PoolEntry> {
        self.count(|it| it.shared_reads += 1);
        self.memory.read_entry(entry).await
    }

    pub async fn claim(&self, entry: EntryId) -> Result<bool> {
        self.count(|it| it.shared_updates += 1);
        self.memory.claim(entry).await
    }

    pub async fn take(&self, count: u32) -> Result<Vec<EntryId>> {
        self.count(|it| it.shared_reads += 1);
        let taken = self.memory.take(count).await?;
        self.count(|it| it.shared_updates += u64::from(!taken.is_empty()));
        Ok(taken)
    }

    pub async fn release(&self, entries: Vec<EntryId>) -> Result<()> {
        self.count(|it| it.shared_updates += 1);
        self.memory.release(entries).await
    }

    pub async fn send(&self, to: Vec<ControllerId>, message: Message) -> Result<()> {
        self.count(|it| it.messages += to.len() as u64);
        self.memory.send(to, message).await
    }

    pub fn receive(&self) -> Option<(ControllerId, Message)> {
        let received = self.memory.receive()?;
        self.count(|it| it.received += 1);
        Some(received)
    }

    pub fn arrived(&self) -> Local<'_, Result<()>> {
        self.memory.arrived()
    }
}
