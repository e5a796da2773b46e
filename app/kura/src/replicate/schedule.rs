//! Jobs by their schedule, in a server: those of its data directory, of trees, volumes and buckets.
//!
//! A run is a process of its own: whatever goes wrong in it harms no volume, and it ends when the server does.

use crate::data::DataDir;
use kura_admin::{ReplicationJob, Timestamp};
use kura_replicate::{Jobs, Standing};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::interval;

/// How often schedules are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// This program, even where its file was replaced by another version.
const SELF: &str = "/proc/self/exe";

/// The jobs of a data directory.
#[derive(Clone)]
pub struct ReplicationJobs {
    data: PathBuf,
    /// Names of those that run, by this server.
    running: Arc<Mutex<BTreeSet<String>>>,
}

impl ReplicationJobs {
    /// Those of the data directory.
    pub fn of(data: &DataDir) -> Self {
        Self { data: data.path().to_owned(), running: Arc::default() }
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A set is whole even if its holder panicked.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How all fare. Reads files.
    fn standings(&self) -> Vec<Standing> {
        let (jobs, now) = (Jobs::under(&self.data), SystemTime::now());
        // A job that is just being removed, or whose file is broken, has nothing to tell.
        jobs.names().iter().filter_map(|name| jobs.standing(name, now).ok()).collect()
    }

    /// Runs each job whenever its time has come, until the server stops: a run that is cut off goes on at its next.
    pub async fn carry_out(self, mut stopping: watch::Receiver<bool>) {
        let mut ticks = interval(LOOK);
        let mut runs: BTreeMap<String, Child> = BTreeMap::new();
        let mut told: BTreeMap<String, String> = BTreeMap::new();
        loop {
            tokio::select! {
                _ = stopping.changed() => break,
                _ = ticks.tick() => {}
            }
            // An error says that it is nobody's child any more.
            let ended: Vec<String> = runs
                .iter_mut()
                .filter_map(|(name, run)| (!matches!(run.try_wait(), Ok(None))).then(|| name.clone()))
                .collect();
            let all = self.clone();
            // Looking reads files.
            let Ok(standings) = tokio::task::spawn_blocking(move || all.standings()).await else { continue };
            for name in ended {
                runs.remove(&name);
                tell(&name, &standings, &mut told);
            }
            for standing in standings.iter().filter(|standing| standing.is_due(SystemTime::now())) {
                let name = &standing.name;
                if !runs.contains_key(name) {
                    match self.begin(name) {
                        Ok(run) => drop(runs.insert(name.clone(), run)),
                        Err(error) => tracing::warn!(job = name, %error, "a job could not be begun"),
                    }
                }
            }
            *self.running() = runs.keys().cloned().collect();
        }
        for run in runs.values_mut() {
            // One that has ended by itself needs no end.
            let _ = run.kill().and_then(|()| run.wait());
        }
    }

    fn begin(&self, name: &str) -> std::io::Result<Child> {
        let mut run = Command::new(SELF);
        run.args(["replicate", "run", name, "--quiet", "--data"]).arg(&self.data);
        run.arg("--server").arg(self.data.join("admin.sock"));
        // What it has to say stands in what it leaves.
        run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
    }

    /// As the wire has them.
    pub fn told(&self) -> Vec<ReplicationJob> {
        let running = self.running().clone();
        let told = |standing: Standing| ReplicationJob {
            is_running: running.contains(&standing.name),
            is_complete: standing.last.as_ref().is_some_and(|last| last.is_complete),
            error: standing.last.and_then(|last| last.causes.into_keys().next()),
            name: standing.name,
            source: standing.job.source.to_string(),
            target: standing.job.target,
            every_s: standing.job.every.map(|every| every.as_secs_f64()),
            rpo_s: standing.job.rpo.map(|rpo| rpo.as_secs_f64()),
            recovery_point: standing
                .recovery_point
                .and_then(|text| humantime::parse_rfc3339(&text).ok())
                .map(Timestamp),
            recovery_point_age_s: standing.age_s,
            is_late: standing.is_late,
            is_failed_over: standing.job.failed_over,
        };
        self.standings().into_iter().map(told).collect()
    }
}

/// Tells how a run ended; what was told of the one before is not told again.
fn tell(name: &str, standings: &[Standing], told: &mut BTreeMap<String, String>) {
    let Some(last) = standings.iter().find(|standing| standing.name == name).and_then(|it| it.last.as_ref()) else {
        return;
    };
    let Some(cause) = last.causes.keys().next() else {
        told.remove(name);
        tracing::info!(job = name, seconds = last.seconds, sent_bytes = last.sent_bytes, "copied");
        return;
    };
    if told.insert(name.to_owned(), cause.clone()).is_none_or(|before| before != *cause) {
        tracing::warn!(job = name, failed = last.failed, cause, "not copied");
    }
}
