//! The resources as they travel: JSON field names are stable, sizes are integers in bytes, times are RFC 3339.

use crate::objects::Acknowledge;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::time::SystemTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A point in time, RFC 3339 with milliseconds on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp(pub SystemTime);

impl Timestamp {
    /// The present.
    pub fn now() -> Self {
        Self(SystemTime::now())
    }
}

impl std::fmt::Display for Timestamp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        humantime::format_rfc3339_millis(self.0).fmt(f)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        humantime::parse_rfc3339(&text).map(Self).map_err(D::Error::custom)
    }
}

/// How a volume's extents are laid out on disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// One copy: a lost disk loses data.
    None,
    /// Two copies on two disks.
    Mirror,
    /// Stripes over several disks, each with its parity: one disk may be lost.
    Raid5,
    /// As `raid5`, with blocks that are used often in a mirrored area besides.
    HotMirror,
    /// As `raid5`, with data and parity that are written where a disk's head is next: in pools made with room for that.
    Floating,
}

impl Layout {
    /// Its name, as the API and the command line have it.
    pub fn name(self) -> &'static str {
        kura_controller::Layout::from(self).name()
    }
}

/// A volume; also the NBD export of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its number in the pool; never used again.
    pub id: u64,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of extents it holds, one copy counted.
    pub allocated_bytes: u64,
    /// Bytes of extents it holds, all copies counted.
    pub raw_bytes: u64,
    /// How its extents are laid on disks.
    pub layout: Layout,
    /// True when all its space was taken at creation.
    pub thick: bool,
    /// True when it refuses writes.
    pub read_only: bool,
    /// The controller that owns it.
    pub controller: u16,
    /// Clients that have it open.
    pub clients: u32,
    /// Snapshots of it, and clones made of it.
    pub snapshots: u32,
    /// True where it can only be deleted: what tells its blocks from those of its snapshots is lost with its disks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lost: bool,
    /// True where it can only be read, and is lost at the next start: what tells its blocks from those of its snapshots is in memory alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub doomed: bool,
    /// True for a copy that follows its source: only transfers write to it, and clients read its points.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub follows: bool,
    /// What it was made of, where it is a clone or a snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub made_of: Option<String>,
}

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name: 1 to 255 bytes.
    pub name: String,
    /// Size in bytes; a multiple of 4096, above zero.
    pub size_bytes: u64,
    /// How its extents are laid on disks; `hot-mirror` where three slow disks or more take data, else `mirror`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<Layout>,
    /// True takes all its space at once, so that no write can meet a full pool.
    #[serde(default)]
    pub thick: bool,
    /// True refuses writes.
    #[serde(default)]
    pub read_only: bool,
}

/// A volume's size to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeVolume {
    /// Size in bytes; a multiple of 4096, above zero.
    pub size_bytes: u64,
    /// True allows it to become smaller, which loses what lies beyond the new end.
    #[serde(default)]
    pub shrink: bool,
}

/// Where a volume is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveVolume {
    /// Number of the controller that is to own it.
    pub controller: u16,
}

/// A volume that moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MovedVolume {
    /// As it is now.
    pub volume: Volume,
    /// Number of the controller that owned it.
    pub from: u16,
    /// How long its writes waited, in microseconds.
    pub waited_us: u64,
}

/// What came of draining a controller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DrainedController {
    /// Volumes that moved; their snapshots and clones moved with them.
    pub moved: Vec<MovedVolume>,
    /// Volumes that stay.
    pub stays: Vec<StayingVolume>,
}

/// A volume that did not move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StayingVolume {
    /// Its name.
    pub volume: String,
    /// Why it stays.
    pub why: String,
}

/// What a disk is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskClass {
    /// Journals, and the fast tier.
    Fast,
    /// Data.
    Slow,
}

impl DiskClass {
    /// Its name, as the API, the command line and the configuration have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fast => "fast",
            Self::Slow => "slow",
        }
    }
}

/// Whether a disk works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiskState {
    /// In use.
    Healthy,
    /// Failed by errors or by hand: not used until it is replaced.
    Failed,
    /// Not found when the pool was opened.
    Missing,
    /// On its way out of the pool: it takes nothing new, and what it holds moves to the others.
    Leaving,
}

/// A disk of the pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Disk {
    /// Its place in the pool's table of members.
    pub id: u16,
    /// The UUID in its label.
    pub uuid: Uuid,
    /// Where it was found.
    pub path: String,
    /// What it is used for.
    pub class: DiskClass,
    /// Whether it works.
    pub state: DiskState,
    /// Whether it takes volumes' data now: slow disks do, and fast ones where the pool has no slow one.
    pub takes_data: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes for volumes' data on it.
    pub data_bytes: u64,
    /// Bytes of `data_bytes` that nobody holds.
    pub free_bytes: u64,
    /// Where it is failed or leaving, bytes of volumes' data that have still to be moved to the others.
    pub unwanted_bytes: u64,
    /// Of these, bytes of which no working disk has a copy: they are lost unless the disk comes back.
    pub lost_bytes: u64,
    /// Why nothing is moved just now, or why it has no journals that it is to have, while that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<String>,
    /// Journals of which a copy lies on it.
    pub journals: u16,
    /// Journals of which a copy is to lie on it.
    pub journals_due: u16,
    /// Journals of which no other disk has a copy.
    pub only_journals: u16,
    /// I/O errors since the start.
    pub io_errors: u64,
    /// Blocks that failed their checksum since the start.
    pub checksum_errors: u64,
}

/// A disk that joins the pool; everything on it is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewDisk {
    /// A block device or a file, as the server sees it.
    pub path: String,
    /// What to use it for.
    pub class: DiskClass,
    /// Size in bytes of the sparse file to be made; absent, or its size, when the path names what there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// True takes it even though it is not blank.
    #[serde(default)]
    pub force: bool,
}

/// A disk that takes the place of another one of its class; everything on it is lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// A block device or a file, as the server sees it.
    pub path: String,
    /// Size in bytes of the sparse file to be made; absent, or its size, when the path names what there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// True takes it even though it is not blank.
    #[serde(default)]
    pub force: bool,
}

/// Whether everything is as it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    /// Everything works.
    Healthy,
    /// It serves, but something is wrong: `problems` says what.
    Degraded,
}

/// The pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its UUID.
    pub uuid: Uuid,
    /// Whether all its disks work.
    pub health: Health,
    /// Bytes in an extent.
    pub extent_bytes: u64,
    /// Raw bytes for volumes' data on healthy disks.
    pub data_bytes: u64,
    /// Raw bytes of these that nobody holds, or only until somebody wants them.
    pub free_bytes: u64,
    /// Of `free_bytes`, what the mirrored area of volumes of layout `hot-mirror` has borrowed.
    #[serde(default)]
    pub borrowed_bytes: u64,
    /// Raw bytes of these that volumes and clones hold.
    #[serde(default)]
    pub volume_bytes: u64,
    /// Raw bytes of these in the mirrored area of volumes of layout `hot-mirror`, without what it has borrowed.
    #[serde(default)]
    pub hot_bytes: u64,
    /// Raw bytes of these that are held because snapshots see other data than their volumes have.
    #[serde(default)]
    pub snapshot_bytes: u64,
    /// The highest of the configured thresholds (`pool.warn_at_percent`) that use has passed, in per cent of `data_bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_percent: Option<u8>,
    /// Its disks, by number.
    pub disks: Vec<Disk>,
}

/// A controller: one thread's volumes and their journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Controller {
    /// Its number.
    pub id: u16,
    /// Volumes it owns.
    pub volumes: u32,
    /// It was drained and takes no volume.
    #[serde(default)]
    pub drained: bool,
    /// Why it takes no writes, where its journal has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Bytes of its journal.
    pub journal_bytes: u64,
    /// Bytes of the journal that a crash now would replay.
    pub journal_used_bytes: u64,
    /// Bytes in the write buffer that are not at their place yet.
    pub dirty_bytes: u64,
    /// The most the write buffer takes, in bytes.
    pub dirty_limit_bytes: u64,
    /// Journal entries replayed when it started.
    pub replayed_entries: u64,
    /// Bytes of data replayed when it started.
    pub replayed_bytes: u64,
    /// Reads since the start.
    pub reads: u64,
    /// Writes since the start.
    pub writes: u64,
    /// Bytes read since the start.
    pub read_bytes: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Of these, bytes that did not go through the journal: of large writes to where nothing was, and of streams of them.
    #[serde(default)]
    pub straight_bytes: u64,
    /// What was written to stripes and the hot area.
    #[serde(default)]
    pub array: ControllerArray,
    /// Blocks of 4 KiB that snapshots had scattered and that were put back at their place since the start.
    #[serde(default)]
    pub ordered_blocks: u64,
    /// What sharing the pool with the other controllers has cost.
    #[serde(default)]
    pub sharing: ControllerSharing,
    /// How long writes stood still while snapshots were made.
    #[serde(default)]
    pub snapshot_stops: SnapshotStops,
}

/// What a controller wrote to volumes with parity since the start, in blocks of 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerArray {
    /// From the write buffer to the mirrored hot area.
    pub hot_blocks: u64,
    /// From the hot area to their cold places.
    pub cooled_blocks: u64,
    /// From the write buffer straight to their cold places.
    pub cold_blocks: u64,
}

/// What sharing the pool has cost a controller since the start: divided by its reads and writes, what a request costs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ControllerSharing {
    /// How free extents are shared: `aggregate`, `message`, `access-change` or `lease`.
    pub method: String,
    /// Accesses to memory that all controllers share: reads of what is free, and changes of it.
    pub shared_accesses: u64,
    /// Messages sent to other controllers about it, one for each that gets it.
    pub messages: u64,
    /// What it knew and dropped because another controller said that it has changed.
    pub drops: u64,
    /// Look-ups and extents taken without an access to shared memory.
    pub local_hits: u64,
    /// Requests that other controllers did for clients that are connected to this one: their volumes have moved.
    pub carried: u64,
}

/// How long writes of a controller's volumes stood still while snapshots were made, since the start: once for all that were made
/// at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotStops {
    /// How many stops there were.
    pub count: u64,
    /// The longest, in nanoseconds.
    pub longest_ns: u64,
    /// All of them, one after the other, in nanoseconds.
    pub total_ns: u64,
    /// Records of the journal that the snapshots are: the work of a stop, whatever the volume's size.
    pub records: u64,
    /// Stops that were as long at most, by length.
    pub up_to: Vec<StopsUpTo>,
}

/// Stops that were so long at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopsUpTo {
    /// The length in microseconds.
    pub us: u64,
    /// How many.
    pub count: u64,
}

/// The node at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of kura that serves.
    pub version: String,
    /// When this server started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// The data directory.
    pub data: String,
    /// Where volumes are reached: NBD URIs, in which `{volume}` stands for a volume's name.
    pub nbd: Vec<String>,
    /// Where S3's clients reach buckets: a URL; absent when S3 is off, and when it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<String>,
    /// When what changes objects is acknowledged; absent where there is no object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3_acknowledge: Option<Acknowledge>,
    /// Where the REST API is reached over TCP: a URL; absent when it is on its socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<String>,
    /// Whether all is well.
    pub health: Health,
    /// What is not well: one line each.
    pub problems: Vec<String>,
    /// The pool.
    pub pool: Pool,
    /// The controllers, by number.
    pub controllers: Vec<Controller>,
    /// The volumes, by name.
    pub volumes: Vec<Volume>,
}

/// A check to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckRequest {
    /// True also reads and verifies every copy of every written block; false checks tables only.
    pub data: bool,
    /// True repairs nothing, and counts what could be.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckResult {
    /// Volumes looked at.
    pub volumes: u64,
    /// Blocks whose copies were read and verified.
    pub blocks: u64,
    /// True when nothing was repaired.
    #[serde(default)]
    pub dry_run: bool,
    /// Blocks repaired from good copies, or with `dry_run`, blocks that could be.
    pub repaired: u64,
    /// What does not hold: one line each, and one for neighbouring blocks; after 1000 lines of a controller the others are only counted.
    /// Empty when all is well.
    pub violations: Vec<String>,
}

/// Whether a recording goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecordingState {
    /// Requests are recorded.
    Recording,
    /// It has ended; what it holds stays.
    Stopped,
}

/// A recording of a volume's requests, in the server's memory. It is gone when it or its volume is deleted, and when the
/// server ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recording {
    /// The volume's name.
    pub volume: String,
    /// Whether it goes on.
    pub state: RecordingState,
    /// When it began.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Bytes of memory it may take, at 32 bytes a request.
    pub memory_bytes: u64,
    /// Requests it has seen.
    pub requests: u64,
    /// The oldest of these, which newer ones have overwritten.
    pub overwritten: u64,
}

/// A recording to be begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewRecording {
    /// Bytes of memory it may take, at 32 bytes a request: from 64 KiB to 4 GiB. The newest requests stay.
    #[serde(default = "recording_memory_bytes")]
    #[schema(default = recording_memory_bytes)]
    pub memory_bytes: u64,
}

/// Room for a million requests.
fn recording_memory_bytes() -> u64 {
    32 << 20
}

/// What a recorded request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum RecordedOp {
    /// Bytes were read.
    Read,
    /// Bytes, or zeroes, were written.
    Write,
    /// Space was given back.
    Discard,
    /// What was acknowledged became durable.
    Flush,
}

/// A recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecordedRequest {
    /// Its number, counted from 0 when the recording began, in the order of arrival. Where numbers are missing, requests
    /// were overwritten.
    pub number: u64,
    /// When it arrived, in nanoseconds since the recording began.
    pub at_ns: u64,
    /// What it did.
    pub op: RecordedOp,
    /// Where it begins, in bytes; 0 for a flush.
    pub offset_bytes: u64,
    /// How many bytes it covers; 0 for a flush.
    pub len_bytes: u32,
    /// How long it took, in nanoseconds; 0 when it was not answered yet.
    pub response_ns: u64,
}
