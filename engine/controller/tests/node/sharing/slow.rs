//! Shared memory that takes time, as far away as another controller's is.

use kura_block::{ControllerId, DeviceId, Local, Names, Result, Runtime, Shared};
use kura_shared::InProcess;
use kura_snapshot::method::{ControlMemory, EntryId, IndexEntry, Message, PoolEntry, Region, SharedPool};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// An access; the controller waits for it.
const ACCESS: Duration = Duration::from_micros(38);
/// The part of it in which others wait in line.
const HELD: Duration = Duration::from_micros(1);
/// A message to one controller.
const MESSAGE: Duration = Duration::from_micros(180);

/// What controllers share, each access after the time that it takes.
pub struct SlowPool {
    pool: InProcess,
    time: Time,
}

/// Passes when shared memory is reached.
#[derive(Clone)]
struct Time {
    runtime: Rc<dyn Runtime>,
    /// When shared memory is free for the next access.
    line: Rc<Cell<Duration>>,
}

impl Time {
    async fn access(&self) {
        let now = self.runtime.now();
        let begins = self.line.get().max(now);
        self.line.set(begins + HELD);
        self.runtime.sleep(begins.saturating_sub(now) + ACCESS).await;
    }
}

impl SlowPool {
    pub fn new(runtime: &Rc<dyn Runtime>) -> Self {
        Self { pool: InProcess::new(), time: Time { runtime: Rc::clone(runtime), line: Rc::default() } }
    }
}

impl Shared for SlowPool {
    fn free(&self, device: DeviceId) -> Local<'_, Result<u32>> {
        Box::pin(async move {
            self.time.access().await;
            self.pool.free(device).await
        })
    }

    fn add_device(&self, device: DeviceId, extents: u32) -> Local<'_, Result<()>> {
        self.pool.add_device(device, extents)
    }

    fn names(&self, me: ControllerId) -> Local<'_, Result<Rc<dyn Names>>> {
        self.pool.names(me)
    }
}

impl SharedPool for SlowPool {
    fn memory(&self, me: ControllerId, device: DeviceId) -> Local<'_, Result<Rc<dyn ControlMemory>>> {
        Box::pin(async move {
            self.time.access().await;
            let memory = self.pool.memory(me, device).await?;
            Ok(Rc::new(SlowMemory { memory, time: self.time.clone() }) as Rc<dyn ControlMemory>)
        })
    }
}

struct SlowMemory {
    memory: Rc<dyn ControlMemory>,
    time: Time,
}

impl SlowMemory {
    fn after<'a, T: 'a>(&'a self, work: Local<'a, T>) -> Local<'a, T> {
        Box::pin(async move {
            self.time.access().await;
            work.await
        })
    }
}

impl ControlMemory for SlowMemory {
    fn entries(&self) -> u32 {
        self.memory.entries()
    }

    fn peers(&self) -> Vec<ControllerId> {
        self.memory.peers()
    }

    fn changes(&self) -> Local<'_, Result<u64>> {
        self.after(Box::pin(async move { self.memory.changes().await }))
    }

    fn read_index(&self, region: Region) -> Local<'_, Result<IndexEntry>> {
        self.after(Box::pin(async move { self.memory.read_index(region).await }))
    }

    fn update_index(&self, region: Region, from: IndexEntry, to: IndexEntry) -> Local<'_, Result<IndexEntry>> {
        self.after(Box::pin(async move { self.memory.update_index(region, from, to).await }))
    }

    fn read_entry(&self, entry: EntryId) -> Local<'_, Result<PoolEntry>> {
        self.after(Box::pin(async move { self.memory.read_entry(entry).await }))
    }

    fn claim(&self, entry: EntryId) -> Local<'_, Result<bool>> {
        self.after(Box::pin(async move { self.memory.claim(entry).await }))
    }

    /// A search and an update, for one entry or a batch: entries of a batch lie together.
    fn take(&self, count: u32) -> Local<'_, Result<Vec<EntryId>>> {
        self.after(Box::pin(async move {
            self.time.access().await;
            self.memory.take(count).await
        }))
    }

    fn release(&self, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.after(Box::pin(async move { self.memory.release(entries).await }))
    }

    fn adopt(&self, from: Option<ControllerId>, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.after(Box::pin(async move { self.memory.adopt(from, entries).await }))
    }

    fn expel(&self, dead: ControllerId) -> Local<'_, Result<()>> {
        self.after(Box::pin(async move { self.memory.expel(dead).await }))
    }

    fn reclaim(&self, dead: ControllerId) -> Local<'_, Result<u32>> {
        self.after(Box::pin(async move { self.memory.reclaim(dead).await }))
    }

    fn send(&self, to: Vec<ControllerId>, message: Message) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.time.runtime.sleep(MESSAGE * to.len() as u32).await;
            self.memory.send(to, message).await
        })
    }

    fn receive(&self) -> Option<(ControllerId, Message)> {
        self.memory.receive()
    }

    fn arrived(&self) -> Local<'_, Result<()>> {
        self.memory.arrived()
    }
}
