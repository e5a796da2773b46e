//! 通信 (section 3.2): whoever changes control information tells the others, and they drop their copies.

use super::reach::Reach;
use super::{ControlMemory, Counters, EntryId, IndexEntry, Kind, Message, Method, PoolEntry, Region, Step, full};
use kura_block::Result;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Any controller may own any volume and use any pool. All is cached by all, and every change costs a message to every
/// other controller; whoever has dropped a copy reads it anew when he needs it. Free entries are searched in the copy,
/// lowest first, and claimed in shared memory.
pub struct ByMessage {
    reach: Reach,
    copies: RefCell<Copies>,
}

/// Which of this controller's copies are right.
struct Copies {
    /// Volumes of which there is a table.
    served: BTreeSet<u64>,
    index: Dropped<Region>,
    pool: Dropped<EntryId>,
    /// Entries that are not free, where that is not dropped.
    held: Vec<bool>,
    /// No entry below is free, as far as is known.
    first: u32,
}

/// What was dropped, and how often there was a drop before: a copy that was on its way when the next drop came is not
/// right.
struct Dropped<K> {
    at: BTreeMap<K, u64>,
    drops: u64,
}

impl<K: Ord + Copy> Dropped<K> {
    fn new() -> Self {
        Self { at: BTreeMap::new(), drops: 0 }
    }

    /// Drops a copy; true when it was right.
    fn drop(&mut self, key: K) -> bool {
        self.drops += 1;
        self.at.insert(key, self.drops).is_none()
    }

    /// A copy read when the last drop was `seen` has come; true when it is right.
    fn renew(&mut self, key: K, seen: Option<u64>) -> bool {
        let is_right = self.at.get(&key).copied() == seen;
        if is_right {
            self.at.remove(&key);
        }
        is_right
    }

    /// The last drop of a copy that has not come back.
    fn of(&self, key: K) -> Option<u64> {
        self.at.get(&key).copied()
    }
}

impl Copies {
    fn set_held(&mut self, entry: EntryId, held: bool) {
        if let Some(known) = self.held.get_mut(entry.0 as usize) {
            *known = held;
        }
        if !held {
            self.first = self.first.min(entry.0);
        }
    }

    /// The lowest entry that is free, or of which nothing is known.
    fn candidate(&mut self) -> Option<EntryId> {
        while (self.first as usize) < self.held.len() {
            let entry = EntryId(self.first);
            if !self.held[self.first as usize] || self.pool.of(entry).is_some() {
                return Some(entry);
            }
            self.first += 1;
        }
        None
    }

    /// The pool has grown to so many entries.
    fn grow(&mut self, entries: u32) {
        let known = self.held.len().max(entries as usize);
        self.held.resize(known, false);
    }
}

impl ByMessage {
    /// For the controller that `memory` is the way of; it reads nothing before it needs it.
    pub fn new(memory: Rc<dyn ControlMemory>) -> Self {
        let copies =
            Copies { served: BTreeSet::new(), index: Dropped::new(), pool: Dropped::new(), held: Vec::new(), first: 0 };
        Self { reach: Reach::new(memory), copies: RefCell::new(copies) }
    }

    /// Drops what others have changed. It comes before every look at a copy.
    fn drop_changed(&self) {
        while let Some((_, message)) = self.reach.receive() {
            let Message::Changed(changed) = message else { continue };
            let mut copies = self.copies.borrow_mut();
            let copies = &mut *copies;
            for (region, entry) in changed {
                let index = copies.served.contains(&region.volume) && copies.index.drop(region);
                let pool = copies.pool.drop(entry);
                copies.first = copies.first.min(entry.0);
                self.reach.drop_copies(u64::from(index) + u64::from(pool));
            }
        }
    }

    async fn fetch_index(&self, region: Region) -> Result<Option<IndexEntry>> {
        let seen = self.copies.borrow().index.of(region);
        let entry = self.reach.read_index(region).await?;
        self.drop_changed();
        self.copies.borrow_mut().index.renew(region, seen);
        Ok(Some(entry))
    }

    async fn fetch_entry(&self, entry: EntryId) -> Result<Option<PoolEntry>> {
        let seen = self.copies.borrow().pool.of(entry);
        let state = self.reach.read_entry(entry).await?;
        self.drop_changed();
        let copies = &mut *self.copies.borrow_mut();
        if copies.pool.renew(entry, seen) {
            copies.set_held(entry, state != PoolEntry::Free);
        }
        Ok(Some(state))
    }

    async fn search(&self) -> Result<EntryId> {
        loop {
            self.drop_changed();
            let candidate = {
                let copies = &mut *self.copies.borrow_mut();
                copies.candidate().or_else(|| {
                    copies.grow(self.reach.entries());
                    copies.candidate()
                })
            };
            let entry = candidate.ok_or_else(full)?;
            let is_known = self.copies.borrow().pool.of(entry).is_none();
            if !is_known {
                self.fetch_entry(entry).await?;
                continue;
            }
            // Whoever else of this controller searches meanwhile looks further.
            self.copies.borrow_mut().set_held(entry, true);
            if self.reach.claim(entry).await? {
                return Ok(entry);
            }
        }
    }

    async fn publish(&self, region: Region, entry: EntryId) -> Result<IndexEntry> {
        let to = IndexEntry::Pool(entry);
        let now = self.reach.update_index(region, IndexEntry::Pvol, to).await?;
        if now != to {
            self.reach.release(vec![entry]).await?;
            self.copies.borrow_mut().set_held(entry, false);
        }
        self.tell(vec![(region, entry)]).await?;
        Ok(now)
    }

    async fn withdraw(&self, freed: Vec<(Region, EntryId)>) -> Result<()> {
        for (region, entry) in &freed {
            self.reach.update_index(*region, IndexEntry::Pool(*entry), IndexEntry::Pvol).await?;
        }
        self.reach.release(freed.iter().map(|(_, entry)| *entry).collect()).await?;
        for (_, entry) in &freed {
            self.copies.borrow_mut().set_held(*entry, false);
        }
        self.tell(freed).await
    }

    async fn tell(&self, changed: Vec<(Region, EntryId)>) -> Result<()> {
        self.reach.send(self.reach.peers(), Message::Changed(changed)).await
    }
}

impl Method for ByMessage {
    fn kind(&self) -> Kind {
        Kind::Message
    }

    fn serve(&self, volume: u64) {
        self.copies.borrow_mut().served.insert(volume);
    }

    fn leave(&self, volume: u64) {
        let copies = &mut *self.copies.borrow_mut();
        copies.served.remove(&volume);
        copies.index.at.retain(|region, _| region.volume != volume);
    }

    fn adopt(&self, entries: &[EntryId]) {
        let mut copies = self.copies.borrow_mut();
        copies.grow(self.reach.entries());
        for entry in entries {
            copies.set_held(*entry, true);
        }
    }

    fn lookup_index(&self, region: Region) -> Step<'_, Option<IndexEntry>> {
        self.drop_changed();
        let copies = self.copies.borrow();
        if copies.served.contains(&region.volume) && copies.index.of(region).is_none() {
            self.reach.hit();
            return Step::Done(None);
        }
        Step::wait(self.fetch_index(region))
    }

    fn lookup_entry(&self, entry: EntryId) -> Step<'_, Option<PoolEntry>> {
        self.drop_changed();
        if self.copies.borrow().pool.of(entry).is_none() {
            self.reach.hit();
            return Step::Done(None);
        }
        Step::wait(self.fetch_entry(entry))
    }

    fn take(&self) -> Step<'_, EntryId> {
        Step::wait(self.search())
    }

    fn saved(&self, region: Region, entry: EntryId) -> Step<'_, IndexEntry> {
        Step::wait(self.publish(region, entry))
    }

    fn free(&self, freed: &[(Region, EntryId)]) -> Step<'_, ()> {
        Step::wait(self.withdraw(freed.to_vec()))
    }

    fn attend(&self) -> Step<'_, ()> {
        self.drop_changed();
        Step::Done(())
    }

    fn reserved(&self) -> u32 {
        0
    }

    fn counters(&self) -> Counters {
        self.reach.counters()
    }
}
