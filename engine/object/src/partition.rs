//! Partitions: made, found, changed, removed. They are the objects of a partition that nobody sees. Whatever the store's own setting,
//! what changes them is acknowledged when it is durable.

use crate::batch::{Batch, Condition, Durability, Put};
use crate::object::{Attributes, Partition, PartitionId, Which, name_of, shown};
use crate::store::Store;
use kura_block::{Error, Kind, Result};

impl Store {
    /// Makes a partition; `Exists` when there is one of this name.
    pub async fn create_partition(&self, name: &[u8], attributes: Attributes, modified_ms: u64) -> Result<Partition> {
        let mut batch = durable();
        batch.require(PartitionId::ROOT, name, Condition::Absent);
        batch.put(PartitionId::ROOT, name, Put { attributes, modified_ms, ..Put::default() });
        self.commit(batch).await.map_err(|error| match error.kind() {
            Kind::Exists => Error::exists(format!("partition {}: exists already", shown(name))),
            _ => named(error, name),
        })?;
        self.partition(name).await
    }

    /// The partition of this name, or `Missing`. No read of the device.
    pub async fn partition(&self, name: &[u8]) -> Result<Partition> {
        let whole = name_of(PartitionId::ROOT, name);
        let look = || {
            let state = self.inner.state.borrow();
            let found = state.find(&whole, Which::Latest)?;
            Ok(found.and_then(|(row, _)| state.partitions.get(&row.version.0).cloned()))
        };
        let partition = self.inner.seen(|log| log.pending(&whole), look).await?;
        partition.ok_or_else(|| Error::missing(format!("partition {}: does not exist", shown(name))))
    }

    /// Sets (`Some`) and removes (`None`) attributes of a partition, if its revision is still the given one: else `Exists`.
    pub async fn set_partition_attributes(
        &self,
        name: &[u8],
        revision: Option<u64>,
        changes: Vec<(String, Option<Vec<u8>>)>,
    ) -> Result<Partition> {
        let mut batch = durable();
        if let Some(revision) = revision {
            batch.require(PartitionId::ROOT, name, Condition::Revision(revision));
        }
        batch.set_attributes(PartitionId::ROOT, name, Which::Latest, changes);
        self.commit(batch).await.map_err(|error| named(error, name))?;
        self.partition(name).await
    }

    /// Removes a partition: `Busy` while it has objects, versions or markers; `Missing` when it does not exist.
    pub async fn remove_partition(&self, name: &[u8]) -> Result<()> {
        let mut batch = durable();
        batch.require(PartitionId::ROOT, name, Condition::Present);
        batch.remove(PartitionId::ROOT, name, Which::Latest);
        self.commit(batch).await.map_err(|error| named(error, name)).map(drop)
    }
}

fn durable() -> Batch {
    let mut batch = Batch::new();
    batch.durability(Durability::Durable);
    batch
}

/// The error in terms of the partition that the caller named.
fn named(error: Error, name: &[u8]) -> Error {
    match error.kind() {
        Kind::Missing => Error::missing(format!("partition {}: does not exist", shown(name))),
        _ => error.at(format_args!("partition {}", shown(name))),
    }
}
