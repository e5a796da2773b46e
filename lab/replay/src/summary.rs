//! What a replay tells. Plain data, the same for the same run; times are virtual nanoseconds.

use crate::node::NodeSpec;
use crate::options::{Pace, Prefill};
use kura_controller::{Layout, TierSettings};
use serde::Serialize;
use std::collections::BTreeMap;

/// A replay: what went in, how it was answered, what the parts did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Of all chance.
    pub seed: u64,
    /// The node.
    pub node: NodeSpec,
    /// The volume.
    pub volume: VolumeSummary,
    /// What was replayed.
    pub load: LoadSummary,
    /// When requests were issued.
    pub pace: Pace,
    /// What was written before.
    pub prefill: Prefill,
    /// Bytes written before.
    pub prefill_bytes: u64,
    /// Requests before this time warmed the node up: nothing of them is counted below but failures, in `load` they are.
    pub warm_ns: u64,
    /// So many they were.
    pub warm_requests: u64,
    /// From the issue of the first request that counts to the last answer.
    pub elapsed_ns: u64,
    /// Requests answered a second; none where no virtual time passed.
    pub iops: Option<f64>,
    /// Bytes read a second; none as above.
    pub read_bytes_per_s: Option<f64>,
    /// Bytes written a second; none as above.
    pub written_bytes_per_s: Option<f64>,
    /// Response times of reads; none without reads.
    pub read: Option<Response>,
    /// Response times of writes; none without writes.
    pub write: Option<Response>,
    /// Response times of flushes and discards; none without them.
    pub other: Option<Response>,
    /// The most requests that were issued and not answered at one time.
    pub in_flight_max: u64,
    /// Failed requests, by the kind of error.
    pub errors: BTreeMap<String, u64>,
    /// What the first of them says.
    pub first_error: Option<String>,
    /// Disks that were given up: they gave no answer for as long as the node waits.
    pub failed_disks: Vec<String>,
    /// What each disk did from the first request that counts to the last answer.
    pub disks: Vec<DiskSummary>,
    /// What each controller did, and how it stood at the last answer.
    pub controllers: Vec<ControllerSummary>,
    /// The pool's use at the last answer.
    pub pool: PoolSummary,
    /// What the fast tier did; none without a policy.
    pub tier: Option<TierSummary>,
    /// What checking the contents found; none where they were not checked.
    pub verify: Option<VerifySummary>,
    /// A hash of every operation of every disk with its time, as 16 hexadecimal digits.
    pub digest: String,
}

/// The volume that was replayed on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VolumeSummary {
    /// Its size.
    pub size_bytes: u64,
    /// How its data lies on the disks.
    #[serde(with = "LayoutName")]
    pub layout: Layout,
    /// Bytes of extents it held at the end, one copy counted.
    pub allocated_bytes: u64,
}

#[derive(Serialize)]
#[serde(remote = "Layout", rename_all = "kebab-case")]
enum LayoutName {
    None,
    Mirror,
    Raid5,
    HotMirror,
    Floating,
}

/// The requests that are replayed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LoadSummary {
    /// All of them.
    pub requests: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Discards among them.
    pub discards: u64,
    /// Flushes among them.
    pub flushes: u64,
    /// Bytes that they read.
    pub read_bytes: u64,
    /// Bytes that they write.
    pub written_bytes: u64,
    /// From the first request's time to the last one's.
    pub span_ns: u64,
}

/// Response times. Percentiles are good to three digits, the mean and the longest to the nanosecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Response {
    /// Requests.
    pub count: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

/// What a disk did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiskSummary {
    /// Its name.
    pub name: String,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards and write-zeroes.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// The part of the time, 0 to 1, in which it served something.
    pub busy: f64,
    /// Operations that waited or were served, mean over the time.
    pub queue_mean: f64,
    /// The most there were.
    pub queue_max: usize,
}

/// What a controller did from the first request that counts to the last answer, and how it stood then.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ControllerSummary {
    /// Its number.
    pub id: u16,
    /// Reads of its volumes.
    pub reads: u64,
    /// Writes of its volumes.
    pub writes: u64,
    /// Bytes read of its volumes.
    pub read_bytes: u64,
    /// Bytes written to its volumes.
    pub written_bytes: u64,
    /// Blocks of 4 KiB that the write buffer put into the mirrored hot area.
    pub hot_blocks: u64,
    /// Blocks of 4 KiB that the migration brought from there to their stripes.
    pub cooled_blocks: u64,
    /// Blocks of 4 KiB that the write buffer put straight into their stripes.
    pub cold_blocks: u64,
    /// Bytes in the write buffer, not at their place.
    pub dirty_bytes: u64,
    /// Bytes of the journal that a crash would replay.
    pub journal_used_bytes: u64,
    /// Bytes of the journal.
    pub journal_bytes: u64,
}

/// The pool's use at the last answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolSummary {
    /// Bytes of the disks that take data.
    pub data_bytes: u64,
    /// Of these, bytes that are not free.
    pub used_bytes: u64,
}

/// What the fast tier did from the first request that counts to the last answer, and how it stood then.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TierSummary {
    /// The policy and its parameters.
    pub policy: TierSettings,
    /// Why nothing went up, where that is so.
    pub hindrance: Option<String>,
    /// Bytes that the fast tier holds, one copy counted.
    pub total_bytes: u64,
    /// Bytes of blocks that lie in it, one copy counted.
    pub valid_bytes: u64,
    /// Of these, what the slow tier has older.
    pub stale_bytes: u64,
    /// Moves decided.
    pub moves: u64,
    /// Reads.
    pub reads: u64,
    /// Reads whose first block lay in the fast tier.
    pub fast_reads: u64,
    /// Writes.
    pub writes: u64,
    /// Writes to what lay in the fast tier.
    pub fast_writes: u64,
}

/// What happened in a part of a [`Session`](crate::Session).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// From its beginning to its end.
    pub elapsed_ns: u64,
    /// Response times of reads answered in it; none without reads.
    pub read: Option<Response>,
    /// Response times of writes answered in it; none without writes.
    pub write: Option<Response>,
    /// The most requests that were issued and not answered at one time.
    pub in_flight_max: u64,
    /// Requests that failed.
    pub errors: u64,
    /// What the first of them says.
    pub first_error: Option<String>,
    /// What each disk did.
    pub disks: Vec<DiskSummary>,
    /// True when the requests ended before the window did.
    pub trace_ended: bool,
}

/// What checking the contents found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VerifySummary {
    /// Bytes of answers that were held against what was written.
    pub checked_bytes: u64,
    /// Blocks that were not what was written, and ranges that could not be read back.
    pub mismatches: u64,
    /// The first of them.
    pub first_mismatch: Option<String>,
}

impl Summary {
    /// True when every request was answered, by all of the disks, and nothing that was checked is wrong.
    pub fn is_good(&self) -> bool {
        self.errors.is_empty()
            && self.failed_disks.is_empty()
            && self.verify.as_ref().is_none_or(|verify| verify.mismatches == 0)
    }
}
