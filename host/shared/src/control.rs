//! [`ControlTables`] and [`Control`].

use crate::extents::{Extents, State};
use kura_block::{ControllerId, Error, ExtentId, Local, Result};
use kura_snapshot::method::{ControlMemory, EntryId, IndexEntry, Message, PoolEntry, Region};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// The control information of a pool for snapshots, shared by the controllers of one process.
pub struct ControlTables {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    pool: Extents,
    /// Regions whose snapshot lies in the pool.
    index: BTreeMap<Region, EntryId>,
    members: BTreeMap<ControllerId, Member>,
}

/// A controller that has joined.
#[derive(Default)]
struct Member {
    /// Counts up with each time it joins: what an earlier one asks for is refused.
    epoch: u64,
    is_expelled: bool,
    inbox: VecDeque<(ControllerId, Message)>,
    /// Who waits for the inbox.
    wakers: Vec<Waker>,
}

impl Member {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// One controller's way to the tables; it may be sent to the controller's thread.
pub struct Control {
    shared: Arc<ControlTables>,
    me: ControllerId,
    epoch: u64,
}

impl ControlTables {
    /// Those of a pool of so many free entries.
    pub fn new(entries: u32) -> Arc<Self> {
        let mut tables = Tables::default();
        tables.pool.grow(entries);
        Arc::new(Self { tables: Mutex::new(tables) })
    }

    /// The pool has grown to so many entries; without effect where it has them already.
    pub fn grow(&self, entries: u32) {
        self.lock().pool.grow(entries);
    }

    /// The way of a controller that starts. One that it had before is refused from now on.
    pub fn join(self: &Arc<Self>, me: ControllerId) -> Control {
        let mut tables = self.lock();
        let member = tables.members.entry(me).or_default();
        let epoch = member.epoch + 1;
        member.wake();
        *member = Member { epoch, ..Member::default() };
        Control { shared: Arc::clone(self), me, epoch }
    }

    /// Entries of the pool.
    pub fn entries(&self) -> u32 {
        self.lock().pool.count()
    }

    /// Entries that nobody holds.
    pub fn free(&self) -> u32 {
        self.lock().pool.free()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic under the lock is a broken invariant, and stops its controller: the others go on with what stands.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn index(&self, region: Region) -> IndexEntry {
        self.index.get(&region).map_or(IndexEntry::Pvol, |entry| IndexEntry::Pool(*entry))
    }

    fn entry(&self, entry: EntryId) -> Result<PoolEntry> {
        match self.pool.state(ExtentId(entry.0)) {
            State::Free => Ok(PoolEntry::Free),
            State::Held(COMMON) => Ok(PoolEntry::Common),
            State::Held(holder) => Ok(PoolEntry::Held(holder)),
            State::Beyond => Err(Error::invalid(format!("pool entry {}: the pool has {}", entry.0, self.pool.count()))),
        }
    }

    /// Gives `entries` to `to`, each of which must be as `fits` says: all or none.
    fn pass(
        &mut self,
        entries: &[EntryId],
        to: Option<ControllerId>,
        fits: impl Fn(EntryId, PoolEntry) -> Result<()>,
    ) -> Result<()> {
        let mut passed: Vec<(ExtentId, PoolEntry)> = Vec::with_capacity(entries.len());
        for entry in entries {
            let state = self.entry(*entry).and_then(|state| fits(*entry, state).map(|()| state));
            match state {
                Ok(state) => {
                    self.put(ExtentId(entry.0), state, to);
                    passed.push((ExtentId(entry.0), state));
                }
                Err(refused) => {
                    for (extent, before) in passed.into_iter().rev() {
                        self.put(extent, to.map_or(PoolEntry::Free, PoolEntry::Held), holder(before));
                    }
                    return Err(refused);
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, extent: ExtentId, now: PoolEntry, to: Option<ControllerId>) {
        if holder(now).is_some() {
            self.pool.release(extent);
        }
        if let Some(to) = to {
            self.pool.take(to, extent);
        }
    }

    fn post(&mut self, from: ControllerId, to: ControllerId, message: &Message) {
        if let Some(member) = self.members.get_mut(&to).filter(|member| !member.is_expelled) {
            member.inbox.push_back((from, message.clone()));
            member.wake();
        }
    }

    fn expel(&mut self, dead: ControllerId) {
        if let Some(member) = self.members.get_mut(&dead) {
            member.is_expelled = true;
            member.inbox.clear();
            member.wake();
        }
        for peer in self.peers(dead) {
            self.post(dead, peer, &Message::Gone);
        }
    }

    fn peers(&self, me: ControllerId) -> Vec<ControllerId> {
        let others = self.members.iter().filter(|(id, member)| **id != me && !member.is_expelled);
        others.map(|(id, _)| *id).collect()
    }
}

/// Holds what is no one controller's; no controller has this number.
const COMMON: ControllerId = ControllerId(u16::MAX);

fn holder(entry: PoolEntry) -> Option<ControllerId> {
    match entry {
        PoolEntry::Free => None,
        PoolEntry::Common => Some(COMMON),
        PoolEntry::Held(holder) => Some(holder),
    }
}

impl Control {
    /// The tables, unless this controller was expelled.
    fn tables(&self) -> Result<MutexGuard<'_, Tables>> {
        let tables = self.shared.lock();
        let is_gone = |member: &Member| member.epoch != self.epoch || member.is_expelled;
        if tables.members.get(&self.me).is_none_or(is_gone) {
            let me = self.me.0;
            return Err(Error::fenced(format!("controller {me}: it was expelled from the pool: restart it")));
        }
        Ok(tables)
    }

    fn with<T: 'static>(&self, work: impl FnOnce(&mut Tables) -> Result<T>) -> Local<'_, Result<T>> {
        let done = self.tables().and_then(|mut tables| work(&mut tables));
        Box::pin(std::future::ready(done))
    }
}

impl Drop for Control {
    /// Nobody waits for a controller whose thread has ended.
    fn drop(&mut self) {
        let mut tables = self.shared.lock();
        if tables.members.get(&self.me).is_some_and(|member| member.epoch == self.epoch && !member.is_expelled) {
            tables.expel(self.me);
        }
    }
}

impl ControlMemory for Control {
    fn entries(&self) -> u32 {
        self.shared.lock().pool.count()
    }

    fn peers(&self) -> Vec<ControllerId> {
        self.shared.lock().peers(self.me)
    }

    fn changes(&self) -> Local<'_, Result<u64>> {
        self.with(|tables| Ok(tables.pool.changes()))
    }

    fn read_index(&self, region: Region) -> Local<'_, Result<IndexEntry>> {
        self.with(|tables| Ok(tables.index(region)))
    }

    fn update_index(&self, region: Region, from: IndexEntry, to: IndexEntry) -> Local<'_, Result<IndexEntry>> {
        self.with(|tables| {
            let now = tables.index(region);
            if now != from {
                return Ok(now);
            }
            match to {
                IndexEntry::Pvol => tables.index.remove(&region),
                IndexEntry::Pool(entry) => tables.index.insert(region, entry),
            };
            Ok(to)
        })
    }

    fn read_entry(&self, entry: EntryId) -> Local<'_, Result<PoolEntry>> {
        self.with(|tables| tables.entry(entry))
    }

    fn claim(&self, entry: EntryId) -> Local<'_, Result<bool>> {
        self.with(|tables| {
            let is_free = tables.entry(entry)? == PoolEntry::Free;
            if is_free {
                tables.pool.take(COMMON, ExtentId(entry.0));
            }
            Ok(is_free)
        })
    }

    fn take(&self, count: u32) -> Local<'_, Result<Vec<EntryId>>> {
        self.with(|tables| {
            let taken = tables.pool.take_lowest(self.me, count);
            Ok(taken.into_iter().map(|extent| EntryId(extent.0)).collect())
        })
    }

    fn release(&self, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.with(|tables| {
            let is_mine = |entry: EntryId, state| match state {
                PoolEntry::Held(holder) if holder == self.me => Ok(()),
                PoolEntry::Common => Ok(()),
                _ => Err(Error::invalid(format!(
                    "pool entry {}: controller {} gives back what it does not hold",
                    entry.0, self.me.0
                ))),
            };
            tables.pass(&entries, None, is_mine)
        })
    }

    fn adopt(&self, from: Option<ControllerId>, entries: Vec<EntryId>) -> Local<'_, Result<()>> {
        self.with(|tables| {
            let is_claimed_once = |entry: EntryId, state| {
                let is_passed = |holder: &ControllerId| Some(*holder) == from || from.is_some() && *holder == COMMON;
                let other = holder(state).filter(|holder| !is_passed(holder));
                other.map_or(Ok(()), |other| {
                    let (entry, me, other) = (entry.0, self.me.0, other.0);
                    let what = format!("pool entry {entry}: controller {me} holds it and so does controller {other}");
                    Err(Error::corrupt(format!("{what}: check the pool")))
                })
            };
            tables.pass(&entries, Some(self.me), is_claimed_once)
        })
    }

    fn expel(&self, dead: ControllerId) -> Local<'_, Result<()>> {
        self.with(|tables| {
            tables.expel(dead);
            Ok(())
        })
    }

    fn reclaim(&self, dead: ControllerId) -> Local<'_, Result<u32>> {
        self.with(|tables| {
            if tables.members.get(&dead).is_some_and(|member| !member.is_expelled) {
                let dead = dead.0;
                return Err(Error::busy(format!(
                    "controller {dead}: it is alive, and what it holds is its own: expel it first"
                )));
            }
            let before = tables.pool.free();
            for extent in (0..tables.pool.count()).map(ExtentId) {
                if tables.pool.state(extent) == State::Held(dead) {
                    tables.pool.release(extent);
                }
            }
            Ok(tables.pool.free() - before)
        })
    }

    fn send(&self, to: Vec<ControllerId>, message: Message) -> Local<'_, Result<()>> {
        self.with(|tables| {
            for to in to {
                tables.post(self.me, to, &message);
            }
            Ok(())
        })
    }

    fn receive(&self) -> Option<(ControllerId, Message)> {
        self.tables().ok()?.members.get_mut(&self.me)?.inbox.pop_front()
    }

    fn arrived(&self) -> Local<'_, Result<()>> {
        Box::pin(poll_fn(|context| {
            let mut tables = match self.tables() {
                Ok(tables) => tables,
                Err(fenced) => return Poll::Ready(Err(fenced)),
            };
            let Some(member) = tables.members.get_mut(&self.me) else { return Poll::Pending };
            if !member.inbox.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if !member.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                member.wakers.push(context.waker().clone());
            }
            Poll::Pending
        }))
    }
}

#[cfg(test)]
mod tests;
