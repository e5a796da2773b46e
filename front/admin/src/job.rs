//! Long work as it travels.

use crate::Problem;
use crate::resources::{CheckResult, Disk, DrainedController, MovedVolume, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// What a job does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobKind {
    /// Checks tables and, as far as is asked, data.
    Check,
    /// Moves what a disk holds to the others, then the pool forgets it. It goes on after a restart.
    RemoveDisk,
    /// Copies what a disk held that failed or is missing to the others. It goes on after a restart.
    RebuildDisk,
    /// Makes another controller a volume's owner.
    MoveVolume,
    /// Moves all volumes of a controller to the others.
    DrainController,
}

impl JobKind {
    /// True where the work goes on by itself, whoever follows it: after a cancel or a restart as well.
    pub fn is_only_followed(self) -> bool {
        matches!(self, Self::RemoveDisk | Self::RebuildDisk)
    }
}

/// What a job's progress is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobUnit {
    /// Bytes.
    Bytes,
    /// Volumes, snapshots and clones among them.
    Volumes,
}

/// How far a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum JobState {
    /// At work.
    Running,
    /// Ended; `result` says how.
    Done,
    /// Ended before its work was done; `error` says why.
    Failed,
    /// Ended because somebody asked for it; `result` or `error` says how.
    Cancelled,
}

/// What came of a job: which of these follows from its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum JobResult {
    /// Of `check`.
    Check(CheckResult),
    /// Of `move-volume`.
    Moved(MovedVolume),
    /// Of `drain-controller`.
    Drained(DrainedController),
    /// Of `remove-disk`, as it was last; of `rebuild-disk`.
    Disk(Disk),
}

/// Long work. It is forgotten when the server stops, or after a hundred others; of what goes on after a restart there is a
/// new one then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// What it does.
    pub kind: JobKind,
    /// What it is about: the name of a volume, the number of a disk or of a controller; absent where it is all there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// How far it is.
    pub state: JobState,
    /// How much is done, in `unit`.
    pub done: u64,
    /// How much there is to do as far as is known, which may become more; 0 where nothing is known.
    pub total: u64,
    /// What these two count.
    pub unit: JobUnit,
    /// Why it does not go on just now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// When it started.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// What came of it, once it is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<JobResult>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Problem>,
}

/// A disk that takes the place of another one: the job moves what that one holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Replacing {
    /// The job.
    #[serde(flatten)]
    pub job: Job,
    /// The new disk's number.
    pub new_disk: u16,
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.of.as_deref().unwrap_or_default();
        match self.kind {
            JobKind::Check => f.write_str("check"),
            JobKind::RemoveDisk => write!(f, "removal of disk {of}"),
            JobKind::RebuildDisk => write!(f, "rebuild of disk {of}"),
            JobKind::MoveVolume => write!(f, "move of volume {of}"),
            JobKind::DrainController => write!(f, "drain of controller {of}"),
        }
    }
}
