//! Jobs by their schedule.

use super::schedule::{AGAIN, begun, rest};
use super::{now, one};
use crate::cli::{Common, ReplicateRun};
use anyhow::{Result, ensure};
use kura_replicate::Jobs;
use std::collections::BTreeMap;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

/// How often schedules are looked at.
const TICK: Duration = Duration::from_millis(500);

/// Runs every job whose time has come. It fails where one of them failed, after all others were run.
pub fn due(jobs: &Jobs, command: &ReplicateRun, common: &Common) -> ExitCode {
    all_due(jobs, command, common, &mut BTreeMap::new())
}

/// The same but for those that rest: after a run that left nothing, a job does, and is still due.
fn all_due(jobs: &Jobs, command: &ReplicateRun, common: &Common, resting: &mut BTreeMap<String, Instant>) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    resting.retain(|_, until| *until > Instant::now());
    for (name, before) in jobs.standings(SystemTime::now()) {
        if resting.contains_key(&name) {
            continue;
        }
        let before = match before {
            Ok(before) => before,
            Err(error) => {
                complain(&name, &error.into());
                code = ExitCode::FAILURE;
                resting.insert(name, Instant::now() + AGAIN);
                continue;
            }
        };
        if !before.is_due(SystemTime::now()) || jobs.is_busy(&name) {
            continue;
        }
        match one(jobs, &name, command, common) {
            Ok(ExitCode::SUCCESS) => {}
            Ok(_) => code = ExitCode::FAILURE,
            Err(error) => {
                complain(&name, &error);
                code = ExitCode::FAILURE;
            }
        }
        if jobs.standing(&name, SystemTime::now()).is_ok_and(|after| begun(&after) == begun(&before)) {
            resting.insert(name, Instant::now() + rest(&before));
        }
    }
    code
}

fn complain(name: &str, error: &anyhow::Error) {
    // Standard error may be closed; ignore that.
    let _ = writeln!(stderr(), "kura: {} {name}: {error:#}", now());
}

/// Runs jobs whenever their time has come, until the process is stopped: a run that is cut off goes on at its next.
pub fn follow(jobs: &Jobs, command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    let has_schedule = |name: &String| jobs.get(name).is_ok_and(|job| job.every.is_some());
    ensure!(
        jobs.names().iter().any(has_schedule),
        "no job has a schedule: add one with `kura replicate add ... --every 5m`"
    );
    let mut resting = BTreeMap::new();
    loop {
        // One that failed was told; its next time comes.
        all_due(jobs, command, common, &mut resting);
        std::thread::sleep(TICK);
    }
}
