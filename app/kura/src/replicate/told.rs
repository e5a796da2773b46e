//! Jobs as programs are told of them: by the REST API's names, whatever their own file calls things.

use kura_admin::{ReplicationJob, Timestamp};
use kura_replicate::{Jobs, Node, Options, Split, Standing, Summary, With};
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// A job, how its runs are done, and what the last one came to.
#[derive(Serialize)]
pub struct ToldJob {
    #[serde(flatten)]
    job: ReplicationJob,
    options: ToldOptions,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Summary>,
}

/// How runs are done.
#[derive(Serialize)]
struct ToldOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<With>,
    split: Split,
    threshold_bytes: u64,
    cap_bytes: u64,
    workers: usize,
    nodes: Vec<Node>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bandwidth_bytes_per_s: Option<u64>,
    durable: bool,
    in_place: bool,
    keep: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_token_file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_ca: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_credentials: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_region: Option<String>,
    allow_plain: bool,
    timeout_s: f64,
}

impl ToldJob {
    /// A job of these, as it fares.
    pub fn new(jobs: &Jobs, standing: Standing) -> Self {
        let job = ReplicationJob { is_running: jobs.is_busy(&standing.name), ..wire(&standing) };
        Self { job, options: standing.job.options.into(), last: standing.last }
    }
}

/// A job that nobody runs, as the wire has it.
pub fn wire(standing: &Standing) -> ReplicationJob {
    let Standing { name, job, recovery_point, age_s, is_late, last } = standing;
    let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
    ReplicationJob {
        name: name.clone(),
        source: job.source.to_string(),
        target: job.target.clone(),
        every_s: seconds(job.every),
        rpo_s: seconds(job.rpo),
        recovery_point: recovery_point.as_deref().and_then(|text| humantime::parse_rfc3339(text).ok()).map(Timestamp),
        recovery_point_age_s: *age_s,
        is_late: *is_late,
        is_running: false,
        is_complete: last.as_ref().map(|last| last.is_complete),
        is_failed_over: job.failed_over,
        error: last.as_ref().and_then(|last| last.causes.keys().next().cloned()),
    }
}

impl From<Options> for ToldOptions {
    fn from(options: Options) -> Self {
        let Options {
            with,
            split,
            threshold_bytes,
            cap_bytes,
            workers,
            nodes,
            bandwidth: bandwidth_bytes_per_s,
            durable,
            in_place,
            keep,
            target_token_file,
            target_ca,
            target_credentials,
            target_region,
            allow_plain,
            timeout,
            // Of a single run.
            recheck: _,
            adopt: _,
            allow_empty: _,
            dry_run: _,
        } = options;
        Self {
            with,
            split,
            threshold_bytes,
            cap_bytes,
            workers,
            nodes,
            bandwidth_bytes_per_s,
            durable,
            in_place,
            keep,
            target_token_file,
            target_ca,
            target_credentials,
            target_region,
            allow_plain,
            timeout_s: timeout.as_secs_f64(),
        }
    }
}
