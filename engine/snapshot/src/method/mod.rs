//! Four methods to keep control information in local memory, and their costs.
//!
//! Control information lies in shared memory ([`ControlMemory`]), so that another controller can take over, and each
//! controller keeps a copy in tables of its own. A [`Method`] decides when that copy may be used, and what has to go to
//! shared memory. The paper (Deguchi et al., *Performance Improvement of Copy-on-Write Snapshot for Storage Systems*)
//! has the first three; `lease` is ours, and the default.
//!
//! | | [`aggregate`](Aggregate) | [`message`](ByMessage) | [`access-change`](AccessChange) | [`lease`](Lease) |
//! | --- | --- | --- | --- | --- |
//! | section of the paper | 3.2 | 3.2 | 4.2 | |
//! | owners of PVOL and SVOL | one | any | one | one |
//! | a `PoolVOL` is used by | one controller | all | all | all |
//! | index info | cached | cached, dropped by messages | cached | cached |
//! | info of an allocated pool entry | cached | cached, dropped by messages | cached | cached |
//! | info of a free pool entry | cached | cached, dropped by messages | never cached | cached once it is leased |
//! | a save copy costs | nothing | a claim, an index update, a message to every other | a search and an update | one of both a batch |
//! | speed, use of the pool (Table 2) | ideal, poor | poor, full | near ideal, full | ideal, full |
//!
//! **A method keeps no copies itself.** They are the controller's own tables, which are folds of its journal; the
//! method says whether they are right. So a look-up that hits is a count and a branch.
//!
//! A save copy goes:
//! ```text
//!   lookup_index ─ in the PVOL ─> take ─> copy the old data ─> saved ─> write the new data
//! ```
//! An entry that was taken and is pointed at by no index entry after a crash is free: at a start each controller
//! [adopts](ControlMemory::adopt) what its tables point at, and nothing else is held.
//!
//! What must hold of every method:
//! 1. No entry is handed out twice before it is freed.
//! 2. Where a look-up says that the controller's own table is right, it is what shared memory says, or would say if it
//!    was told; except while a `saved` or `free` of the same region is under way, when both are right.
//! 3. A save copy fails for want of room only when no entry is free: in the pool, and with any controller. With
//!    `aggregate`, which cannot share, in its own part of the pool.

mod access_change;
mod aggregate;
mod lease;
mod memory;
mod message;
mod reach;
mod reserve;

pub use access_change::AccessChange;
pub use aggregate::Aggregate;
pub use lease::Lease;
pub use memory::{ControlMemory, EntryId, IndexEntry, Message, PoolEntry, Region, SharedPool};
pub use message::ByMessage;
pub use reach::Counters;

use kura_block::{ControllerId, Error, Local, Result};
use std::fmt;
use std::rc::Rc;
use std::str::FromStr;

/// What one controller does with control information. One object a controller and pool, on the controller's thread.
pub trait Method {
    /// Which one it is.
    fn kind(&self) -> Kind;

    /// Who is to own a new SVOL of a PVOL of `pvol`'s, where by load it would be `wanted`: ownership moves where the
    /// method wants one owner. The same holds when a PVOL is moved later: its SVOLs go with it.
    fn svol_owner(&self, pvol: ControllerId, wanted: ControllerId) -> ControllerId {
        if self.kind().one_owner() { pvol } else { wanted }
    }

    /// This controller's own table of the volume is as shared memory has it: from now on it may be used.
    fn serve(&self, _volume: u64) {}

    /// This controller has no table of the volume any more.
    fn leave(&self, _volume: u64) {}

    /// These entries are this controller's besides what it took: its tables point at them.
    fn adopt(&self, _entries: &[EntryId]) {}

    /// Another controller has adopted these entries, which this one held.
    fn part_with(&self, _entries: &[EntryId]) {}

    /// Where the region's snapshot lies: `None` when the controller's own table is right, else what it is to hold from
    /// now on.
    fn lookup_index(&self, region: Region) -> Step<'_, Option<IndexEntry>>;

    /// Whose a pool entry is; `None` as above.
    fn lookup_entry(&self, entry: EntryId) -> Step<'_, Option<PoolEntry>>;

    /// A free entry for a save copy. `Full` when there is none. Poll it to its end: dropped before, it may leave an
    /// entry to nobody until the next start.
    fn take(&self) -> Step<'_, EntryId>;

    /// The region's old data are in `entry`, and the controller's own table points there. What the index says from now
    /// on: something else when another controller saved the region first, and `entry` is free again.
    fn saved(&self, region: Region, entry: EntryId) -> Step<'_, IndexEntry>;

    /// The regions are saved no more, and their entries are free.
    fn free(&self, freed: &[(Region, EntryId)]) -> Step<'_, ()>;

    /// Does what other controllers have asked for. To be called when [`ControlMemory::arrived`] resolves, and may be
    /// called at any time.
    fn attend(&self) -> Step<'_, ()>;

    /// Entries that are this controller's and hold nothing.
    fn reserved(&self) -> u32;

    /// What has been counted since the start.
    fn counters(&self) -> Counters;
}

/// Something that is done already, or waits for shared memory.
pub enum Step<'a, T> {
    /// It is done.
    Done(T),
    /// It will be.
    Wait(Local<'a, Result<T>>),
}

impl<'a, T> Step<'a, T> {
    fn wait(work: impl Future<Output = Result<T>> + 'a) -> Self {
        Self::Wait(Box::pin(work))
    }

    /// What it comes to.
    pub async fn done(self) -> Result<T> {
        match self {
            Self::Done(value) => Ok(value),
            Self::Wait(work) => work.await,
        }
    }
}

/// The names of the methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// 集約: all that shares a pool is one controller's.
    Aggregate,
    /// 通信: whoever changes something tells the others.
    Message,
    /// アクセス変更: what is free is never cached, what is allocated is.
    AccessChange,
    /// What is free is leased in batches.
    #[default]
    Lease,
}

impl Kind {
    /// All of them, the paper's first.
    pub const ALL: [Self; 4] = [Self::Aggregate, Self::Message, Self::AccessChange, Self::Lease];

    /// Its name in configuration and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aggregate => "aggregate",
            Self::Message => "message",
            Self::AccessChange => "access-change",
            Self::Lease => "lease",
        }
    }

    /// True when a PVOL and its SVOLs must have one owner.
    pub fn one_owner(self) -> bool {
        self != Self::Message
    }

    /// The method, for one of `controllers` controllers that reaches shared memory by `memory`.
    pub fn method(self, memory: Rc<dyn ControlMemory>, controllers: u16) -> Rc<dyn Method> {
        match self {
            Self::Aggregate => Rc::new(Aggregate::new(memory, controllers)),
            Self::Message => Rc::new(ByMessage::new(memory)),
            Self::AccessChange => Rc::new(AccessChange::new(memory)),
            Self::Lease => Rc::new(Lease::new(memory, controllers)),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            Error::invalid(format!("method {name}: there is none: choose aggregate, message, access-change or lease"))
        })
    }
}

/// The error of a pool without free entries.
fn full() -> Error {
    Error::full("the pool is full: delete snapshots, or let the pool grow")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.to_string().parse::<Kind>().unwrap(), kind);
        }
        let error = "leese".parse::<Kind>().unwrap_err().to_string();
        assert!(error.contains("leese") && error.contains("access-change"), "{error}");
        assert_eq!(Kind::default(), Kind::Lease);
    }
}
