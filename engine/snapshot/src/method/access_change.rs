//! アクセス変更 (section 4.2): pool management info is accessed by the state of its entry.

use super::reach::Reach;
use super::{ControlMemory, Counters, EntryId, IndexEntry, Kind, Method, PoolEntry, Region, Step, full};
use std::rc::Rc;

/// PVOL and SVOL have one owner, so index info is one controller's, and so is the info of an entry once it is allocated:
/// it does not change any more until it is freed. What is free is searched, read and changed in shared memory only.
pub struct AccessChange {
    reach: Reach,
}

impl AccessChange {
    /// For the controller that `memory` is the way of.
    pub fn new(memory: Rc<dyn ControlMemory>) -> Self {
        Self { reach: Reach::new(memory) }
    }
}

impl Method for AccessChange {
    fn kind(&self) -> Kind {
        Kind::AccessChange
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
        Step::wait(async { self.reach.take(1).await?.pop().ok_or_else(full) })
    }

    fn saved(&self, _: Region, entry: EntryId) -> Step<'_, IndexEntry> {
        Step::Done(IndexEntry::Pool(entry))
    }

    fn free(&self, freed: &[(Region, EntryId)]) -> Step<'_, ()> {
        let entries = freed.iter().map(|(_, entry)| *entry).collect();
        Step::wait(self.reach.release(entries))
    }

    fn attend(&self) -> Step<'_, ()> {
        while self.reach.receive().is_some() {}
        Step::Done(())
    }

    fn reserved(&self) -> u32 {
        0
    }

    fn counters(&self) -> Counters {
        self.reach.counters()
    }
}
