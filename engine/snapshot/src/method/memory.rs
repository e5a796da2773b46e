//! Shared memory as a controller reaches it.

use kura_block::{ControllerId, DeviceId, Local, Result, Shared};
use std::rc::Rc;

/// A region of a volume that has snapshots: the unit of the save copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    /// The PVOL's number.
    pub volume: u64,
    /// The region, from 0.
    pub number: u64,
}

/// A region of the `PoolVOL`, from 0: the unit in which it is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(pub u32);

/// Index info of a region: where the snapshot's data lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexEntry {
    /// In the PVOL: the region was not written since.
    Pvol,
    /// In the pool.
    Pool(EntryId),
}

/// Pool management info of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolEntry {
    /// It holds nothing, and may be taken.
    Free,
    /// It is this controller's: allocated, or leased.
    Held(ControllerId),
    /// It is allocated, and no one controller's.
    Common,
}

/// What controllers tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Index info of the regions and pool management info of the entries have changed: drop your copies.
    Changed(Vec<(Region, EntryId)>),
    /// The pool has no free entry left: give back what you have leased and do not use, and answer.
    GiveBack,
    /// The answer: so many entries are given back.
    GivenBack(u32),
    /// The controller that this comes from was expelled.
    Gone,
}

/// The control information of a pool whose space is extents of devices: each device's are shared as entries.
pub trait SharedPool: Shared {
    /// The way of a controller that starts to the extents of a device. One that it had before is refused from now on. `Missing`
    /// when there is no such device.
    fn memory(&self, me: ControllerId, device: DeviceId) -> Local<'_, Result<Rc<dyn ControlMemory>>>;
}

/// One controller's way to the shared memory of a pool. Every call is an access to shared memory but
/// [`entries`](Self::entries), [`peers`](Self::peers) and the two for messages.
///
/// What must hold of every implementation:
/// - Accesses are atomic, and one that starts after another has resolved sees what it did.
/// - When [`send`](Self::send) has resolved, [`receive`](Self::receive) of those it went to finds the message; those of
///   one sender come in their order.
/// - A controller that was expelled is refused by all but the first two: `Fenced`. It comes back as a new member.
pub trait ControlMemory {
    /// Entries of the pool; they may grow in number.
    fn entries(&self) -> u32;

    /// The other controllers, as they are now.
    fn peers(&self) -> Vec<ControllerId>;

    /// How often entries were taken or made free so far, whoever did it, or were added: while it stays the same, nobody has got
    /// any and none has become free.
    fn changes(&self) -> Local<'_, Result<u64>>;

    /// Index info of a region.
    fn read_index(&self, region: Region) -> Local<'_, Result<IndexEntry>>;

    /// Sets the index info of a region from `from` to `to`; without effect when it is something else. What it is now.
    fn update_index(&self, region: Region, from: IndexEntry, to: IndexEntry) -> Local<'_, Result<IndexEntry>>;

    /// Pool management info of an entry.
    fn read_entry(&self, entry: EntryId) -> Local<'_, Result<PoolEntry>>;

    /// Makes this entry common; false when it is not free. What is common when its controller dies before the index
    /// points at it stays so until the next start.
    fn claim(&self, entry: EntryId) -> Local<'_, Result<bool>>;

    /// Searches for free entries and takes at most `count`, lowest first; fewer, or none, when there are no more.
    fn take(&self, count: u32) -> Local<'_, Result<Vec<EntryId>>>;

    /// Makes entries free that this controller holds or that are common; all or, with an error, none.
    fn release(&self, entries: Vec<EntryId>) -> Local<'_, Result<()>>;

    /// Takes entries that this controller's tables point at: at a start, with `from` when a volume moves, and from a
    /// controller that was expelled; what is common is anybody's who takes it `from` one. `Corrupt` where somebody else holds
    /// one: two volumes claim it.
    fn adopt(&self, from: Option<ControllerId>, entries: Vec<EntryId>) -> Local<'_, Result<()>>;

    /// From now on `dead` is refused, and all are told. What it holds stays held.
    fn expel(&self, dead: ControllerId) -> Local<'_, Result<()>>;

    /// Makes free what a controller still holds that was expelled; to be called when all that its tables point at was
    /// adopted. How many entries that is.
    fn reclaim(&self, dead: ControllerId) -> Local<'_, Result<u32>>;

    /// Sends a message to each of `to`; those that are gone are left out.
    fn send(&self, to: Vec<ControllerId>, message: Message) -> Local<'_, Result<()>>;

    /// The next message and who sent it, if one has come.
    fn receive(&self) -> Option<(ControllerId, Message)>;

    /// Resolves when a message is there to be received. All who wait are woken by each message, whoever then receives
    /// it. `Fenced` when this controller was expelled.
    fn arrived(&self) -> Local<'_, Result<()>>;
}
