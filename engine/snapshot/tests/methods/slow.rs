//! Shared memory whose every access takes a random time, so that controllers come between each other.

use kura_block::{ControllerId, Local, Result, Runtime};
use kura_shared::Control;
use kura_sim::SimRuntime;
use kura_snapshot::method::{ControlMemory, EntryId, IndexEntry, Message, PoolEntry, Region};
use rand::RngExt;
use rand::rngs::SmallRng;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

pub struct Slow {
    pub control: Control,
    pub runtime: Rc<SimRuntime>,
    pub chance: RefCell<SmallRng>,
}

impl Slow {
    async fn wait(&self) {
        let nanos = self.chance.borrow_mut().random_range(0..20_000);
        self.runtime.sleep(Duration::from_nanos(nanos)).await;
    }

    /// Half of the time goes before the access, half after it.
    fn slowly<'a, T: 'a>(&'a self, access: impl AsyncFnOnce(&'a Control) -> T + 'a) -> Local<'a, T> {
        Box::pin(async move {
            self.wait().await;
            let done = access(&self.control).await;
            self.wait().await;
            done
        })
    }
}

impl ControlMemory for Slow {
    fn entries(&self) -> u32 {
        self.control.entries()
    }

    fn peers(&self) -> Vec<ControllerId> {
        self.control.peers()
    }

    fn changes(&self) -> Local<'_, Result<u64>> {
        self.slowly(async move |it| it.changes().await)
    }

    fn read_index(&self, region: Region) -> Local<'_, Result<IndexEntry>> {
        self.slowly(async move |it| it.read_index(region).await)
    }

    fn update_index(&self, region: Region, from: IndexEntry, to: IndexEntry) -> Local<'_, Result<IndexEntry>> {
        self.slowly(async move |it| it.update_index(region, from, to).await)
    }

    fn read_entry(&self, entry: EntryId) -> Local<'_, Result<PoolEntry>> {
        self.slowly(async move |it| it.read_entry(entry).await)
    }

    fn claim(&self, entry: EntryId) -> Local<'_, Result<bool>> {
        self.slowly(async move |it| it.claim(entry).await)
    }

    fn take(&self, count: u32) -> Local<'_, Result<Vec<EntryId>>> {
        self.slowly(async move |it| it.take(count).await)
    }

    fn release(&self, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.slowly(async move |it| it.release(entries).await)
    }

    fn adopt(&self, from: Option<ControllerId>, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.slowly(async move |it| it.adopt(from, entries).await)
    }

    fn expel(&self, dead: ControllerId) -> Local<'_, Result<()>> {
        self.control.expel(dead)
    }

    fn reclaim(&self, dead: ControllerId) -> Local<'_, Result<u32>> {
        self.control.reclaim(dead)
    }

    fn send(&self, to: Vec<ControllerId>, message: Message) -> Local<'_, Result<()>> {
        self.slowly(async move |it| it.send(to, message).await)
    }

    fn receive(&self) -> Option<(ControllerId, Message)> {
        self.control.receive()
    }

    fn arrived(&self) -> Local<'_, Result<()>> {
        self.control.arrived()
    }
}
