//! Jobs by their schedule.

use super::schedule::{AGAIN, begun, rest};
use super::{carried, judge, text};
use crate::cli::{Common, ReplicateRun};
use crate::complain;
use anyhow::{Result, ensure};
use kura_replicate::{Jobs, Place, Summary};
use serde::Serialize;
use std::collections::BTreeMap;
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
    for name in jobs.names() {
        if resting.contains_key(&name) {
            continue;
        }
        // As it is when those before have run.
        let before = match jobs.standing(&name, SystemTime::now()) {
            Ok(before) => before,
            Err(_) if !jobs.has(&name) => continue,
            Err(error) => {
                complain(&error.into(), Some(&name), common.json);
                code = ExitCode::FAILURE;
                resting.insert(name, Instant::now() + AGAIN);
                continue;
            }
        };
        if !before.is_due(SystemTime::now()) || jobs.is_busy(&name) {
            continue;
        }
        match one_of_several(jobs, &name, command, common) {
            Ok(ExitCode::SUCCESS) => {}
            Ok(_) => code = ExitCode::FAILURE,
            Err(error) => {
                complain(&error, Some(&name), common.json);
                code = ExitCode::FAILURE;
            }
        }
        if jobs.standing(&name, SystemTime::now()).is_ok_and(|after| begun(&after) == begun(&before)) {
            resting.insert(name, Instant::now() + rest(&before));
        }
    }
    code
}

/// What a run of one of several jobs came to.
#[derive(Serialize)]
struct Carried<'a> {
    job: &'a str,
    #[serde(flatten)]
    summary: &'a Summary,
}

/// Runs one of several jobs.
fn one_of_several(jobs: &Jobs, name: &str, command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    let summary = &carried(jobs, name, command, common)?;
    common.out().show_line(&Carried { job: name, summary }, |_| text::summary(summary))?;
    Ok(judge(summary, &Place::failures_in(&jobs.folder(name)), Some(name), common.json))
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
