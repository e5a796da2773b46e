//! Jobs by their schedule, in a server: those of its data directory, of trees and of volumes.

use super::carry::carry_job;
use super::sites::Home;
use crate::data::DataDir;
use kura_admin::{ReplicationJob, ServerUri, Timestamp};
use kura_replicate::{Jobs, Progress, Standing};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio::time::interval;

/// How often schedules are looked at.
const LOOK: Duration = Duration::from_millis(500);

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
        loop {
            tokio::select! {
                _ = stopping.changed() => return,
                _ = ticks.tick() => {}
            }
            let all = self.clone();
            // Looking reads files.
            let Ok(standings) = tokio::task::spawn_blocking(move || all.standings()).await else { continue };
            for standing in standings.iter().filter(|standing| standing.is_due(SystemTime::now())) {
                if self.running().insert(standing.name.clone()) {
                    self.begin(standing.clone());
                }
            }
        }
    }

    /// Runs a job on a thread of its own: nobody waits for it when the server stops.
    fn begin(&self, standing: Standing) {
        let (all, name) = (self.clone(), standing.name.clone());
        let thread = std::thread::Builder::new().name(format!("replicate-{name}")).spawn(move || {
            let server = ServerUri::Unix(all.data.join("admin.sock"));
            let home = Home { server: &server, token: None, ca: None };
            let (jobs, options) = (Jobs::under(&all.data), &standing.job.options);
            let name = &standing.name;
            let before = standing.last.map(|last| last.causes).unwrap_or_default();
            match carry_job(&jobs, name, options, &home, &Progress::default()) {
                Ok(done) if done.failed > 0 => {
                    tracing::warn!(job = name, failed = done.failed, "a copy is not complete: see its failures.jsonl");
                }
                Ok(done) => tracing::info!(job = name, seconds = done.seconds, sent = done.sent_bytes, "copied"),
                // What was told at the last run is not told again.
                Err(error) if before.contains_key(&format!("{error:#}")) => {}
                Err(error) => tracing::warn!(job = name, error = format!("{error:#}"), "not copied"),
            }
            all.running().remove(name);
        });
        if let Err(error) = thread {
            tracing::warn!(job = name, %error, "a job could not be begun");
            self.running().remove(&name);
        }
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
