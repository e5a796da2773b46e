//! What a run came to.

use super::{Carry, Plan};
use crate::balance::{Load, imbalance};
use crate::error::{Failure, STAYS};
use crate::marker::{State, rfc3339};
use crate::origin::Origin;
use crate::progress::Counter;
use crate::target::Target;
use crate::tree::Changes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, SystemTime};

/// What a worker did, or is to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// Files in its list.
    pub planned_files: u64,
    /// Bytes in its list.
    pub planned_bytes: u64,
    /// How long its list should take, in seconds.
    pub planned_s: f64,
    /// Files it carried.
    pub files: u64,
    /// Bytes it carried.
    pub bytes: u64,
    /// How long it worked, in seconds.
    #[serde(default)]
    pub seconds: f64,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The source's path.
    pub source: String,
    /// The target.
    pub target: String,
    /// The moment that the copy is of: when the scan began.
    pub started_at: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether the target is all of the source.
    pub is_complete: bool,
    /// Only what would be done was asked for.
    pub dry_run: bool,
    /// Files and other entries that were carried, or are to be; none of those that failed.
    pub files: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of contents that were sent: what the target had already was not.
    pub sent_bytes: u64,
    /// Entries that were at the target already.
    pub unchanged: u64,
    /// Entries that were deleted at the target, or are to be, directories too.
    pub deleted: u64,
    /// Entries and directories among what is carried that belong to somebody else, and come to belong to whoever writes the copy.
    #[serde(default)]
    pub taken_over: u64,
    /// By worker.
    pub workers: Vec<Worker>,
    /// The longest list over the mean, by what they should take; 1 is perfect.
    pub imbalance: f64,
    /// How often a worker took from another one.
    pub stolen: u64,
    /// How many entries were not carried.
    pub failed: u64,
    /// Causes and how many entries each kept from being carried.
    pub causes: BTreeMap<String, u64>,
    /// Which entries were not carried.
    #[serde(skip)]
    pub failures: Vec<Failure>,
    /// Of a volume: the snapshot of this name, at both ends, is what was copied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub point: Option<String>,
}

impl Summary {
    /// Of a run that begins.
    pub fn begun(source: &Origin, target: &Target, at: SystemTime) -> Self {
        Self {
            source: source.to_string(),
            target: target.to_string(),
            started_at: rfc3339(at),
            imbalance: 1.0,
            ..Self::default()
        }
    }

    /// Of a run that came to nothing.
    pub fn broken_off(self, took: Duration, why: String) -> Self {
        let causes = BTreeMap::from([(why, 1)]);
        Self { seconds: took.as_secs_f64(), is_complete: false, failed: 1, causes, ..self }
    }

    /// Whether nothing was left out but what stays at the source when work is brought back from a copy that was not whole.
    pub fn has_only_what_stays(&self) -> bool {
        self.failures.iter().all(|failure| failure.cause == STAYS)
    }

    pub(super) fn plan(&mut self, changes: &Changes, plan: &Plan, owner: Option<(u32, u32)>) {
        self.taken_over = owner.map_or(0, |owner| changes.of_others(owner));
        let loads = plan.loads();
        self.imbalance = imbalance(loads.iter().map(|load| load.cost_s));
        let worker = |load: &Load| Worker {
            planned_files: load.items,
            planned_bytes: load.bytes,
            planned_s: load.cost_s,
            ..Worker::default()
        };
        self.workers = loads.iter().map(worker).collect();
        (self.unchanged, self.deleted) = (changes.unchanged, changes.deleted);
        (self.files, self.bytes) = (plan.files(), plan.bytes());
    }

    /// Of a run that was not to carry anything; this it would leave out.
    pub(super) fn only_planned(mut self, failures: Vec<Failure>, took: Duration) -> Self {
        self.leave_out(failures);
        Self { dry_run: true, seconds: took.as_secs_f64(), ..self }
    }

    fn leave_out(&mut self, mut failures: Vec<Failure>) {
        failures.sort();
        failures.dedup_by(|one, other| one.path == other.path);
        for failure in &failures {
            *self.causes.entry(failure.cause.clone()).or_default() += 1;
        }
        self.failed = failures.len() as u64;
        self.failures = failures;
    }

    pub(super) fn end(&mut self, carry: &Carry<'_>, failures: Vec<Failure>, state: State, took: Duration) {
        let counters = carry.progress.workers();
        for (worker, counter) in self.workers.iter_mut().zip(counters) {
            (worker.files, worker.bytes) = counter.get();
            worker.seconds = counter.worked_s();
        }
        self.sent_bytes = counters.iter().map(Counter::sent_bytes).sum();
        self.leave_out(failures);
        self.take_out(carry);
        self.is_complete = state == State::Complete;
        self.seconds = took.as_secs_f64();
    }

    /// What was planned and failed was neither carried nor deleted.
    fn take_out(&mut self, &Carry { changes, plan, .. }: &Carry<'_>) {
        let failed: HashSet<&[u8]> = self.failures.iter().map(|failure| &*failure.path).collect();
        if failed.is_empty() {
            return;
        }
        for job in plan.jobs.iter().filter(|job| failed.contains(&*job.path(changes))) {
            (self.files, self.bytes) = (self.files - 1, self.bytes - job.bytes(changes));
        }
        let gone = changes.gone_entries().chain(changes.gone.iter().cloned());
        self.deleted -= gone.filter(|path| failed.contains(&**path)).count() as u64;
    }
}
