//! The words of the store: partitions, keys, versions, attributes, and what is known of an object without a read.

use kura_block::{Error, Result};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;

/// The longest key, in bytes.
pub const KEY_LIMIT_BYTES: usize = 1024;
/// The longest tag, in bytes.
pub const TAG_LIMIT_BYTES: usize = 64;
/// What all attributes of an object may take together, names and values, in bytes.
pub const ATTRIBUTES_LIMIT_BYTES: usize = 32 << 10;

/// Attributes of an object or a partition: names to bytes, opaque to the store.
pub type Attributes = BTreeMap<String, Vec<u8>>;

/// Whose objects: a partition's number, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId(pub(crate) u64);

impl PartitionId {
    /// The partition whose objects are the partitions: key the name, attributes the partition's.
    pub(crate) const ROOT: Self = Self(0);
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.0)
    }
}

/// A partition as it stands.
#[derive(Clone, Debug)]
pub struct Partition {
    /// Its number.
    pub id: PartitionId,
    /// Its name.
    pub name: Vec<u8>,
    /// Its attributes.
    pub attributes: Attributes,
    /// Why they could not be read when the store was opened: there are none then.
    pub unreadable: Option<Error>,
    /// Counts up with each change of the attributes: for [`crate::Condition`].
    pub revision: u64,
    /// As given when it was made or changed: milliseconds since 1970.
    pub modified_ms: u64,
}

/// The number of a version, in the whole store; later versions have greater numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

/// Which version of a key is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    /// The newest; where that is a delete marker, there is none.
    Latest,
    /// The one that was put without `versioned` (S3's version `null`).
    Unversioned,
    /// This one. Its number alone names nothing for good: a store that went back, as its volume was rolled back or as a
    /// crash took what was acknowledged in memory, gives numbers again.
    Version {
        /// Its number.
        number: Version,
        /// As given with the last put or change of its content: milliseconds since 1970.
        modified_ms: u64,
    },
}

/// What the store knows of a version without reading the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub version: Version,
    /// Changes with every change of content or attributes; above all revisions before.
    pub revision: u64,
    /// Bytes of content.
    pub size_bytes: u64,
    /// As given with the last put: milliseconds since 1970.
    pub modified_ms: u64,
    /// As given with the last put: up to 64 bytes that a list shall show (an `ETag`, say).
    pub tag: Vec<u8>,
    /// True for a version that a later put without `versioned` replaces.
    pub unversioned: bool,
    /// True for a delete marker: no content, and the key counts as absent while it is the newest.
    pub marker: bool,
    /// True when no later version of the key exists.
    pub latest: bool,
}

impl Stat {
    /// Means this version, and no other.
    pub fn which(&self) -> Which {
        Which::Version { number: self.version, modified_ms: self.modified_ms }
    }
}

/// Where a version stands in the index: partition and key, then the newest version first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    /// The partition's number, big-endian, and the key.
    pub name: Vec<u8>,
    pub version: Reverse<u64>,
}

/// Bytes of a partition's number before the key.
pub(crate) const PARTITION_BYTES: usize = 8;

/// Partition and key as the index has them.
pub(crate) fn name_of(partition: PartitionId, key: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(PARTITION_BYTES + key.len());
    name.extend_from_slice(&partition.0.to_be_bytes());
    name.extend_from_slice(key);
    name
}

impl Row {
    pub fn new(name: Vec<u8>, version: u64) -> Self {
        Self { name, version: Reverse(version) }
    }

    /// Before every version of `name`.
    pub fn newest(name: Vec<u8>) -> Self {
        Self::new(name, u64::MAX)
    }

    pub fn key(&self) -> &[u8] {
        &self.name[PARTITION_BYTES..]
    }

    pub fn partition(&self) -> PartitionId {
        let mut number = [0; PARTITION_BYTES];
        number.copy_from_slice(&self.name[..PARTITION_BYTES]);
        PartitionId(u64::from_be_bytes(number))
    }
}

/// For people.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, key {}", self.partition(), shown(self.key()))
    }
}

/// Refuses keys that are empty or too long.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > KEY_LIMIT_BYTES {
        return Err(Error::invalid(format!("a key has 1 to {KEY_LIMIT_BYTES} bytes, not {}", key.len())));
    }
    Ok(())
}

/// Refuses attributes that take too much.
pub(crate) fn check_attributes(attributes: &Attributes) -> Result<()> {
    let bytes: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
    if bytes > ATTRIBUTES_LIMIT_BYTES {
        return Err(Error::invalid(format!("attributes take at most {ATTRIBUTES_LIMIT_BYTES} bytes, not {bytes}")));
    }
    Ok(())
}

/// A key for people: as text where it is text.
pub(crate) fn shown(key: &[u8]) -> String {
    String::from_utf8_lossy(key).escape_debug().to_string()
}
