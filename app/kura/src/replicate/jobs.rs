//! Jobs by their schedule.

use super::{now, one};
use crate::cli::{Common, ReplicateRun};
use anyhow::{Result, ensure};
use kura_replicate::Jobs;
use std::io::{Write, stderr};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

/// How often schedules are looked at.
const TICK: Duration = Duration::from_millis(500);

/// Runs every job whose time has come. It fails where one of them failed, after all others were run.
pub fn due(jobs: &Jobs, command: &ReplicateRun, common: &Common) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for name in jobs.names() {
        if jobs.standing(&name, SystemTime::now()).is_ok_and(|standing| standing.is_due(SystemTime::now())) {
            match one(jobs, &name, command, common) {
                Ok(ExitCode::SUCCESS) => {}
                Ok(_) => code = ExitCode::FAILURE,
                Err(error) => {
                    let _ = writeln!(stderr(), "kura: {} {name}: {error:#}", now());
                    code = ExitCode::FAILURE;
                }
            }
        }
    }
    code
}

/// Runs jobs whenever their time has come, until the process is stopped: a run that is cut off goes on at its next.
pub fn follow(jobs: &Jobs, command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    let has_schedule = |name: &String| jobs.get(name).is_ok_and(|job| job.every.is_some());
    ensure!(
        jobs.names().iter().any(has_schedule),
        "no job has a schedule: add one with `kura replicate add ... --every 5m`"
    );
    loop {
        // One that failed was told; its next time comes.
        due(jobs, command, common);
        std::thread::sleep(TICK);
    }
}
