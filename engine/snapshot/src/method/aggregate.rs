//! 集約 (section 3.2): a controller has a pool of its own, and owns all that uses it.

use super::reach::Reach;
use super::reserve::Reserve;
use super::{ControlMemory, Counters, EntryId, IndexEntry, Kind, Method, PoolEntry, Region, Step, full};
use kura_block::Result;
use std::cell::RefCell;
use std::rc::Rc;

/// All is cached, nothing is shared, and what other controllers have free is no use: the ideal of speed, and poor in
/// its use of the pool.
pub struct Aggregate {
    reach: Reach,
    free: RefCell<Reserve>,
}

impl Aggregate {
    /// Takes this controller's part of the pool: the same for each.
    pub async fn open(memory: Rc<dyn ControlMemory>, controllers: u16) -> Result<Self> {
        let part = memory.entries() / u32::from(controllers.max(1));
        let reach = Reach::new(memory);
        let free = RefCell::<Reserve>::default();
        let batch = reach.take(part).await?;
        free.borrow_mut().put(batch);
        Ok(Self { reach, free })
    }
}

impl Method for Aggregate {
    fn kind(&self) -> Kind {
        Kind::Aggregate
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
            None => Step::wait(async { Err(full()) }),
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
        Step::Done(())
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
