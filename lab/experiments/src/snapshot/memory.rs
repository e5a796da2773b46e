//! Shared memory that takes time.

use super::costs::{Costs, time};
use kura_block::{ControllerId, Local, Result, Runtime};
use kura_shared::Control;
use kura_sim::SimRuntime;
use kura_snapshot::method::{ControlMemory, EntryId, IndexEntry, Message, PoolEntry, Region};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// When shared memory is free for the next access.
pub type Line = Rc<Cell<Duration>>;

/// A controller's way to the tables of [`kura_shared`], each access after the time that it takes.
pub struct SimMemory {
    pub control: Control,
    pub runtime: Rc<SimRuntime>,
    pub line: Line,
    pub costs: Costs,
}

impl SimMemory {
    async fn access(&self, accesses: u32) {
        for _ in 0..accesses {
            let now = self.runtime.now();
            let begins = self.line.get().max(now);
            self.line.set(begins + time(self.costs.shared_held_us));
            self.runtime.sleep(begins.saturating_sub(now) + time(self.costs.shared_us)).await;
        }
    }

    fn after<'a, T: 'a>(&'a self, accesses: u32, work: impl AsyncFnOnce(&'a Control) -> T + 'a) -> Local<'a, T> {
        Box::pin(async move {
            self.access(accesses).await;
            work(&self.control).await
        })
    }
}

impl ControlMemory for SimMemory {
    fn entries(&self) -> u32 {
        self.control.entries()
    }

    fn peers(&self) -> Vec<ControllerId> {
        self.control.peers()
    }

    fn changes(&self) -> Local<'_, Result<u64>> {
        self.after(1, async move |it| it.changes().await)
    }

    fn read_index(&self, region: Region) -> Local<'_, Result<IndexEntry>> {
        self.after(1, async move |it| it.read_index(region).await)
    }

    fn update_index(&self, region: Region, from: IndexEntry, to: IndexEntry) -> Local<'_, Result<IndexEntry>> {
        self.after(1, async move |it| it.update_index(region, from, to).await)
    }

    fn read_entry(&self, entry: EntryId) -> Local<'_, Result<PoolEntry>> {
        self.after(1, async move |it| it.read_entry(entry).await)
    }

    fn claim(&self, entry: EntryId) -> Local<'_, Result<bool>> {
        self.after(1, async move |it| it.claim(entry).await)
    }

    /// A search and an update, for one entry or a batch: entries of a batch lie together.
    fn take(&self, count: u32) -> Local<'_, Result<Vec<EntryId>>> {
        self.after(2, async move |it| it.take(count).await)
    }

    fn release(&self, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.after(1, async move |it| it.release(entries).await)
    }

    fn adopt(&self, from: Option<ControllerId>, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.after(1, async move |it| it.adopt(from, entries).await)
    }

    fn expel(&self, dead: ControllerId) -> Local<'_, Result<()>> {
        self.after(1, async move |it| it.expel(dead).await)
    }

    fn reclaim(&self, dead: ControllerId) -> Local<'_, Result<u32>> {
        self.after(1, async move |it| it.reclaim(dead).await)
    }

    fn send(&self, to: Vec<ControllerId>, message: Message) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.runtime.sleep(time(self.costs.send_us * to.len() as f64)).await;
            self.control.send(to, message).await
        })
    }

    fn receive(&self) -> Option<(ControllerId, Message)> {
        self.control.receive()
    }

    fn arrived(&self) -> Local<'_, Result<()>> {
        self.control.arrived()
    }
}
