//! An object store on any block device: a kura volume, a file, a disk.
//!
//! ```text
//!  device   | roots | segment | segment | ...                     4 MiB each (64 KiB on small devices)
//!             log segments    entries: a group of batches each; records, small content behind its record
//!             data segments   extents of large content, each with the checksums of its blocks behind it
//!             index segments  the last checkpoint of the index
//!  memory   | index: (partition, key, version) -> record, size, extents; ordered, packed
//! ```
//!
//! A [`Store`] has partitions (an S3 bucket is one), which have objects under keys of 1 to 1024 bytes, in byte order;
//! a key has one version or, put so, several. All changes go through a [`Batch`], which happens as a whole or not at
//! all, under [`Condition`]s. Everything is checksummed and held against its checksum when read.
//!
//! ```ignore
//! let store = Store::open(device, runtime, Options::default()).await?;
//! let bucket = store.create_partition(b"photos", Attributes::new(), now_ms).await?.id;
//!
//! let mut upload = store.upload();                    // a stream: pieces of any size; dropped, nothing is left
//! upload.write(bytes).await?;
//! let content = upload.finish().await?;
//! let mut batch = Batch::new();
//! batch.require(bucket, b"cat.jpg", Condition::Absent);
//! batch.put(bucket, b"cat.jpg", Put { content, attributes, tag: etag, modified_ms: now_ms, versioned: false });
//! let changed = store.commit(batch).await?;           // durable now; `Exists` when the condition did not hold
//!
//! let mut reader = store.read(bucket, b"cat.jpg", Which::Latest).await?;   // stat and attributes are in it
//! reader.range(0..reader.stat.size_bytes)?;
//! while let Some(bytes) = reader.next().await? { /* at most 1 MiB each */ }
//!
//! let page = store.list(bucket, &Query { delimiter: Some(b"/".to_vec()), ..Query::default() }).await?;
//! ```
//!
//! What must hold:
//! 1. A batch is acknowledged when its entry of the log is durable, or, asked for with [`Durability::Memory`], when it
//!    is in memory. An entry counts after a crash as a whole or not at all.
//! 2. An entry that names extents is durable when it and they are: it is written when they are, and one flush follows.
//!    A crash between may leave the entry without the extents: an entry that no later one calls durable counts only
//!    when all that it brings agrees with its checksums. Extents that a version had before it came with an earlier entry: what
//!    has rotted of those since costs no entry.
//! 3. What a record names is not written over before a record that no longer names it is durable, nor while a reader
//!    has it open. For an extent, a later entry or the root must say so: a replay does not look at extents then. After a start
//!    only the root's new opening does: before that, what is free is neither written nor given back to the device.
//! 4. A segment of the log is not written over while a replay would read it: a checkpoint behind it is durable first.
//! 5. A checkpoint counts when every change that it may hold is durable. Replaying the log from where it began, over it
//!    or over anything later, ends in the same state.
//! 6. Nobody sees a change that is to be durable before it is.
//! 7. A read returns the bytes that were put, or an error.
//! 8. A batch that the device has no room for is `Full` and did not happen; the store goes on, and what gives room can
//!    always be done. So does one that the device refuses for now, for a second: `Retry`.

mod batch;
mod commit;
mod content;
mod edit;
mod housekeeping;
mod index;
mod known;
mod list;
mod log;
mod object;
mod open;
mod partition;
mod policy;
mod read;
mod recent;
mod root;
mod space;
mod store;
mod upload;

#[cfg(test)]
mod tests;

pub use batch::{Batch, Changed, Condition, Durability, Put};
pub use content::Content;
pub use housekeeping::{Damage, ScrubPlace, Scrubbed, Violation};
pub use list::{After, Item, Page, Query};
pub use object::{
    ATTRIBUTES_LIMIT_BYTES, Attributes, KEY_LIMIT_BYTES, Partition, PartitionId, Stat, TAG_LIMIT_BYTES, Version, Which,
};
pub use open::Format;
pub use read::{Fetched, Reader};
pub use store::{Counters, Options, Store, Usage};
pub use upload::Upload;
