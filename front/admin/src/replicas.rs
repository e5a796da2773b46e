//! Copies of volumes as they travel, and who keeps them.

use crate::Timestamp;
use async_trait::async_trait;
use bytes::Bytes;
use kura_block::Result;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a copy of a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaState {
    /// It follows its source: nobody else writes to it, and it is read by its snapshots.
    Following,
    /// It was let go: a volume like any other.
    Promoted,
}

/// A volume that is, or was, kept as a copy of another one, which may be elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replica {
    /// The volume that is the copy.
    pub volume: String,
    /// What it is.
    pub state: ReplicaState,
    /// What it is the copy of, as its source says; absent before that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The newest point that is complete: the snapshot `VOLUME@POINT`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<String>,
    /// What is on its way to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<ReplicaTransfer>,
}

/// Changed blocks on their way to a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaTransfer {
    /// The point since which blocks changed; absent where all are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The point that the copy becomes.
    pub to: String,
    /// What lies below is there, durably.
    pub offset_bytes: u64,
}

/// A transfer to be begun, or gone on with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewTransfer {
    /// The point since which blocks changed; absent where all are sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// The point that the copy becomes.
    pub to: String,
    /// The size of that in bytes.
    pub size_bytes: u64,
    /// What the copy is of, in words that no other source says: another one's copy is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A volume that is to become a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Follow {
    /// The snapshot, without the volume's name, that it goes back to; absent where all of it may be overwritten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<String>,
    /// True refuses a volume that was written to after the snapshot was made.
    #[serde(default)]
    pub unchanged: bool,
    /// What it is to be the copy of, in words that no other source says; absent takes the first that comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// A point that all blocks of have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPoint {
    /// Its name.
    pub to: String,
}

/// The checksum of a part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PartHash {
    /// XXH3 of 128 bits, in hexadecimal digits, of the bytes as they are read.
    pub xxh3_128: String,
    /// Where the next part begins; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_offset_bytes: Option<u64>,
}

/// A copy that is kept elsewhere by this server's data directory, of a volume or of a tree, and how it fares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReplicationJob {
    /// Its name.
    pub name: String,
    /// What is copied.
    pub source: String,
    /// Where its copy is kept.
    pub target: String,
    /// How often it runs, in seconds; absent where it does not by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_s: Option<f64>,
    /// How old its recovery point may become, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rpo_s: Option<f64>,
    /// The moment that the copy is of; absent before the first complete run.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub recovery_point: Option<Timestamp>,
    /// How old that is, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery_point_age_s: Option<f64>,
    /// True when that is older than it may become.
    pub is_late: bool,
    /// True while it runs: over REST, by this server.
    pub is_running: bool,
    /// True when its last run could copy everything; absent before the first run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_complete: Option<bool>,
    /// True when it was failed over, and does not run.
    pub is_failed_over: bool,
    /// Why its last run could not, or one of the reasons.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Who keeps copies of volumes here, and tells what others' copies want to know.
#[async_trait]
pub trait Replicas: Send + Sync + 'static {
    /// The jobs of this server's data directory, by name.
    async fn jobs(&self) -> Result<Vec<ReplicationJob>>;

    /// All, by volume.
    async fn list(&self) -> Result<Vec<Replica>>;

    /// Makes a volume a copy, to be written by transfers only. `Busy` while a client has it open.
    async fn follow(&self, volume: &str, how: Follow) -> Result<Replica>;

    /// Begins a transfer, or goes on with it where it is under way; the volume is made if there is none. An answer without
    /// a transfer says that the point is complete already.
    async fn begin(&self, volume: &str, new: NewTransfer) -> Result<Replica>;

    /// Puts a frame of the transfer into its place, durably. One that came before changes nothing.
    async fn apply(&self, volume: &str, frame: Bytes) -> Result<()>;

    /// Makes the point that the transfer was to. `Invalid` while blocks are missing.
    async fn complete(&self, volume: &str, to: &str) -> Result<Replica>;

    /// Lets the copy go, as it was at its newest complete point; one that was let go before stays what it is.
    async fn promote(&self, volume: &str) -> Result<Replica>;

    /// `Busy` where the volume is a copy that follows its source, so that nobody but transfers may change it.
    async fn check_free(&self, volume: &str) -> Result<()>;

    /// True for a volume, of this name and number, that is a copy and follows its source.
    fn follows(&self, volume: &str, id: u64) -> bool;

    /// `Busy` where the volume or snapshot is a copy that follows its source, or a point that such a copy cannot do without.
    async fn check_unneeded(&self, name: &str) -> Result<()>;

    /// What a snapshot has from an offset on, or, with `since`, what changed after that snapshot: a frame.
    async fn frame(&self, snapshot: &str, since: Option<&str>, offset: u64) -> Result<Bytes>;

    /// The checksum of a part of a snapshot.
    async fn hash(&self, snapshot: &str, offset: u64) -> Result<PartHash>;
}
