//! 集約 (section 3.2): a controller has a pool of its own, and owns all that uses it.

use super::reach::Reach;
use super::reserve::Reserve;
use super::{ControlMemory, Counters, EntryId, IndexEntry, Kind, Method, PoolEntry, Region, Step, full};
use futures::lock::Mutex;
use kura_block::Result;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// All is cached, nothing is shared, and what other controllers have free is no use: the ideal of speed, and poor in
/// its use of the pool.
pub struct Aggregate {
    reach: Reach,
    controllers: u16,
    free: RefCell<Reserve>,
    /// Entries that it has: fewer than its part where others have more than theirs, for they came with volumes, or at a start.
    part: Cell<u32>,
    /// Held by whoever takes more of it.
    taking: Mutex<()>,
}

impl Aggregate {
    /// For one of `controllers` controllers, each of which has the same part of the pool: the one that `memory` is the
    /// way of.
    pub fn new(memory: Rc<dyn ControlMemory>, controllers: u16) -> Self {
        Self {
            reach: Reach::new(memory),
            controllers,
            free: RefCell::default(),
            part: Cell::new(0),
            taking: Mutex::new(()),
        }
    }

    /// The part of the pool that is each controller's.
    fn due(&self) -> u32 {
        self.reach.entries() / u32::from(self.controllers.max(1))
    }

    /// Takes its part of the pool, or what that has grown by.
    async fn take_part(&self) -> Result<EntryId> {
        let _one = self.taking.lock().await;
        let lacks = self.due().saturating_sub(self.part.get());
        if lacks > 0 {
            let batch = self.reach.take(lacks).await?;
            self.part.set(self.part.get() + batch.len() as u32);
            self.free.borrow_mut().put(batch);
        }
        self.free.borrow_mut().take().ok_or_else(full)
    }
}

impl Method for Aggregate {
    fn kind(&self) -> Kind {
        Kind::Aggregate
    }

    fn adopt(&self, entries: &[EntryId]) {
        self.part.set(self.part.get() + entries.len() as u32);
    }

    fn part_with(&self, entries: &[EntryId]) {
        self.part.set(self.part.get().saturating_sub(entries.len() as u32));
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
        match self.free.borrow_mut().take() {
            Some(entry) => {
                self.reach.hit();
                Step::Done(entry)
            }
            None => Step::wait(self.take_part()),
        }
    }

    fn saved(&self, _: Region, entry: EntryId) -> Step<'_, IndexEntry> {
        Step::Done(IndexEntry::Pool(entry))
    }

    fn free(&self, freed: &[(Region, EntryId)]) -> Step<'_, ()> {
        let mut free = self.free.borrow_mut();
        for (_, entry) in freed {
            free.put_one(*entry);
        }
        // What it has beyond its part is some other controller's.
        let beyond = self.part.get().saturating_sub(self.due());
        let surplus: Vec<EntryId> = (0..beyond).map_while(|_| free.take()).collect();
        if surplus.is_empty() {
            return Step::Done(());
        }
        self.part.set(self.part.get() - surplus.len() as u32);
        Step::wait(self.reach.release(surplus))
    }

    fn attend(&self) -> Step<'_, ()> {
        while self.reach.receive().is_some() {}
        Step::Done(())
    }

    fn reserved(&self) -> u32 {
        self.free.borrow().len()
    }

    fn counters(&self) -> Counters {
        self.reach.counters()
    }
}
