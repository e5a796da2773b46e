//! Snapshots as they travel.

use crate::Timestamp;
use kura_block::Result;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot; also the NBD export of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name: `VOLUME@NAME`.
    pub name: String,
    /// The volume it was made of.
    pub volume: String,
    /// Its number among that volume's snapshots and clones: a later one has a higher number.
    pub number: u32,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub made_at: Timestamp,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes that are given back when it is deleted, as far as that is known without a look at every block.
    pub unique_bytes: u64,
    /// True when it refuses writes.
    pub read_only: bool,
    /// Snapshots and clones that are made of it.
    pub snapshots: u32,
    /// True where it can only be deleted: what tells its blocks from its volume's is lost with their disks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// True where it can only be read, and is lost at the next start: what tells its blocks from those of its volume is in memory alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doomed: bool,
    /// The controller that owns it.
    pub controller: u16,
    /// Clients that have it open.
    pub clients: u32,
}

/// Snapshots to be made, all at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewSnapshots {
    /// Their names: each `VOLUME@NAME`.
    pub names: Vec<String>,
    /// True makes them refuse writes.
    #[serde(default)]
    pub read_only: bool,
}

/// A clone to be made: a volume that begins as what the snapshot is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewClone {
    /// Its name.
    pub name: String,
}

/// How a volume is rolled back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// True does it even while clients have the volume open, and of the object store's volume even while S3 is not served: then
    /// access keys are rolled back as well, and those revoked since work again.
    #[serde(default)]
    pub force: bool,
}

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ByteRange {
    /// Where it begins, in bytes.
    pub offset_bytes: u64,
    /// How long it is, in bytes.
    pub size_bytes: u64,
}

/// Where a snapshot and a later one, or the volume, differ: a page of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangePage {
    /// The ranges, in order.
    pub ranges: Vec<ByteRange>,
    /// Where to ask for the next page; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset_bytes: Option<u64>,
}

/// Snapshots of a volume that are made by the clock, and deleted when newer ones are there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotSchedule {
    /// The volume.
    pub volume: String,
    /// What the snapshots' names begin with: `VOLUME@PREFIX-TIME`. A volume has one schedule a prefix.
    pub prefix: String,
    /// Seconds from one to the next.
    pub every_s: u64,
    /// How many are kept: the oldest beyond go.
    pub keep: u32,
}

/// A schedule that is kept, and how it fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KeptSchedule {
    /// The schedule.
    #[serde(flatten)]
    pub schedule: SnapshotSchedule,
    /// Why it could not be carried out, while that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Who keeps schedules and carries them out. These calls may block.
pub trait Schedules: Send + Sync + 'static {
    /// All, by volume and prefix.
    fn list(&self) -> Vec<KeptSchedule>;

    /// Adds one, durably; `volume` is the volume's number. `Exists` when the volume has one of this prefix.
    fn add(&self, volume: u64, new: SnapshotSchedule) -> Result<()>;

    /// Refuses what [`Schedules::remove`] refuses.
    fn check_remove(&self, volume: &str, prefix: &str) -> Result<()>;

    /// Removes one, durably; its snapshots stay.
    fn remove(&self, volume: &str, prefix: &str) -> Result<()>;
}
