//! Batches: changes of several objects that commit as a whole or not at all.

use crate::content::Content;
use crate::object::{Attributes, PartitionId, Stat, Version, Which};

/// When a change is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// When it would survive power off.
    Durable,
    /// When it is in memory; a crash may lose the last moments, always whole batches and always the newest.
    Memory,
}

/// What must hold of a key when a batch commits; otherwise nothing of the batch happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The key has no newest version, or a delete marker; else the commit fails with `Exists`.
    Absent,
    /// The key has content; else the commit fails with `Missing`.
    Present,
    /// The newest version has this number; else the commit fails with `Exists`, or `Missing` where there is none.
    Version(Version),
    /// The newest version has this revision; else the commit fails as above.
    Revision(u64),
    /// The partition exists, whatever the key; else the commit fails with `Missing`.
    Partition,
}

/// What a put stores.
#[derive(Default)]
pub struct Put {
    /// The bytes: `Bufs::into` for what is in memory, [`crate::Upload::finish`] for a stream.
    pub content: Content,
    /// Opaque to the store.
    pub attributes: Attributes,
    /// Up to 64 bytes that [`Stat`] and lists show without a read.
    pub tag: Vec<u8>,
    /// Milliseconds since 1970: the store has no clock of its own.
    pub modified_ms: u64,
    /// True adds a version that stays until it is removed by its number. False replaces the version that was put
    /// without it, and leaves all others.
    pub versioned: bool,
}

/// One change of a batch.
pub(crate) enum Change {
    Put { put: Put, join: Vec<(PartitionId, Vec<u8>)> },
    Remove { which: Which },
    Mark { modified_ms: u64, versioned: bool },
    SetAttributes { which: Which, changes: Vec<(String, Option<Vec<u8>>)> },
}

pub(crate) struct Named {
    pub partition: PartitionId,
    pub key: Vec<u8>,
    pub change: Change,
}

/// Changes that happen together or not at all. Conditions are held against the store as it is before the batch. A key
/// may be named by one change only, but for removals of different versions of it. Puts that follow one another get numbers that do.
#[derive(Default)]
pub struct Batch {
    pub(crate) conditions: Vec<(PartitionId, Vec<u8>, Condition)>,
    pub(crate) changes: Vec<Named>,
    pub(crate) durability: Option<Durability>,
}

/// What a change of a batch did, in the batch's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// What stands now: what was put, marked or given attributes; none after a removal.
    pub now: Option<Stat>,
    /// What it replaced or removed, if there was such a version.
    pub before: Option<Stat>,
}

impl Batch {
    /// No changes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Commits only if `condition` holds of the key.
    pub fn require(&mut self, partition: PartitionId, key: &[u8], condition: Condition) -> &mut Self {
        self.conditions.push((partition, key.to_vec(), condition));
        self
    }

    /// Stores an object.
    pub fn put(&mut self, partition: PartitionId, key: &[u8], put: Put) -> &mut Self {
        self.change(partition, key, Change::Put { put, join: Vec::new() })
    }

    /// Stores an object whose content is that of `parts`, one after another, and `put.content` behind. The parts, the
    /// latest versions of their keys, are removed by this; their bytes are not copied. Parts come from
    /// [`crate::Store::upload_part`].
    pub fn join(
        &mut self,
        partition: PartitionId,
        key: &[u8],
        parts: Vec<(PartitionId, Vec<u8>)>,
        put: Put,
    ) -> &mut Self {
        self.change(partition, key, Change::Put { put, join: parts })
    }

    /// Removes a version, for good; that it does not exist is no error. `Which::Latest` removes the newest version that
    /// there is, be it a marker.
    pub fn remove(&mut self, partition: PartitionId, key: &[u8], which: Which) -> &mut Self {
        self.change(partition, key, Change::Remove { which })
    }

    /// Puts a delete marker: the key counts as absent, its versions stay. As with a put, without `versioned` it
    /// replaces the version that was put without it.
    pub fn mark(&mut self, partition: PartitionId, key: &[u8], modified_ms: u64, versioned: bool) -> &mut Self {
        self.change(partition, key, Change::Mark { modified_ms, versioned })
    }

    /// Sets attributes (`Some`) and removes them (`None`); the others stay. `Missing` when there is no such version.
    pub fn set_attributes(
        &mut self,
        partition: PartitionId,
        key: &[u8],
        which: Which,
        changes: Vec<(String, Option<Vec<u8>>)>,
    ) -> &mut Self {
        self.change(partition, key, Change::SetAttributes { which, changes })
    }

    /// Acknowledges as this says, whatever the store's own setting.
    pub fn durability(&mut self, durability: Durability) -> &mut Self {
        self.durability = Some(durability);
        self
    }

    fn change(&mut self, partition: PartitionId, key: &[u8], change: Change) -> &mut Self {
        self.changes.push(Named { partition, key: key.to_vec(), change });
        self
    }
}
