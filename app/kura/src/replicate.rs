//! `kura replicate`: copies of file trees, without a server.

mod bar;
mod jobs;
mod serve;
mod text;

use crate::cli::{Common, ReplicateCommand, ReplicateData as Data, ReplicateHow as How, ReplicateRun};
use crate::show::Out;
use anyhow::{Context, Result, bail};
use kura_replicate::{Job, Jobs, Options, Place, Progress, Summary, Target, rfc3339};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// Carries a command of replication out.
pub fn replicate(command: ReplicateCommand, common: &Common) -> Result<ExitCode> {
    let out = common.out();
    match command {
        ReplicateCommand::Add { name, source, target, every, rpo, how, data } => {
            let source = source.canonicalize().with_context(|| format!("the source {}", source.display()))?;
            let target = absolute(target.parse().map_err(anyhow::Error::msg)?)?;
            let options = how.over(Options::default());
            let job = Job { source, target: target.to_string(), every, rpo, failed_over: false, options };
            Jobs::under(&data.path).add(&name, &job)?;
            let standing = Jobs::under(&data.path).standing(&name, SystemTime::now())?;
            out.show(&standing, |_| format!("added: `kura replicate run {name}` makes the copy"))?;
        }
        ReplicateCommand::Run(command) => return run(&command, common),
        ReplicateCommand::Serve { root, listen, token_file, .. } => serve::serve(&root, listen, token_file)?,
        ReplicateCommand::Status { name, data } => {
            let jobs = Jobs::under(&data.path);
            let names = name.map_or_else(|| jobs.names(), |name| vec![name]);
            let now = SystemTime::now();
            let standings = names.iter().map(|name| jobs.standing(name, now)).collect::<Result<Vec<_>, _>>()?;
            out.show(&standings, |standings| text::standings(standings))?;
        }
        ReplicateCommand::Verify { what, how, data } => return verify(&what, &how, &data, common),
        ReplicateCommand::Failover { name, anyway, data } => {
            let jobs = Jobs::under(&data.path);
            let job = jobs.get(&name)?;
            let token = common.token.clone().unwrap_or_default();
            let marker = kura_replicate::failover(&job, &Options { token, ..job.options.clone() }, anyway)?;
            jobs.write(&name, &Job { failed_over: true, ..job })?;
            out.show(&marker, |marker| {
                let point = marker.recovery_point.as_deref().unwrap_or("no moment in particular");
                format!("failed over: the copy is the source as of {point}; `kura replicate failback {name}` goes back")
            })?;
        }
        ReplicateCommand::Failback { name, data } => return failback(&Jobs::under(&data.path), &name, out),
        ReplicateCommand::Remove { name, data } => {
            Jobs::under(&data.path).remove(&name)?;
            out.show(&serde_json::json!({ "removed": name }), |_| format!("removed {name}; its copy stays"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A job is run from other directories, too.
fn absolute(target: Target) -> Result<Target> {
    Ok(match target {
        Target::Local(path) => Target::Local(std::path::absolute(path)?),
        target => target,
    })
}

fn run(command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    let jobs = Jobs::under(&command.data.path);
    match &command.what[..] {
        [name] => one(&jobs, name, command, common),
        [source, target] => {
            let target: Target = target.parse().map_err(anyhow::Error::msg)?;
            let options = said(command, common, Options::default());
            let folder = jobs.folder_of_pair(Path::new(source), &target);
            pass(Path::new(source), &target, &options, &folder, common.out())
        }
        _ if command.follow => jobs::follow(&jobs, command, common),
        _ => Ok(jobs::due(&jobs, command, common)),
    }
}

/// Runs a job.
fn one(jobs: &Jobs, name: &str, command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    let job = jobs.get(name)?;
    if job.failed_over {
        bail!("{name} was failed over: its target may hold newer work, and does not become a copy again by a run");
    }
    let options = said(command, common, job.options.clone());
    pass(&job.source, &job.target()?, &options, &jobs.folder(name), common.out())
}

fn said(command: &ReplicateRun, common: &Common, options: Options) -> Options {
    let ReplicateRun { plans: dry_run, recheck, adopt, allow_empty, .. } = *command;
    let token = common.token.clone().unwrap_or_default();
    Options { dry_run, recheck, adopt, allow_empty, token, ..command.how.over(options) }
}

/// One run, with its bar, its summary and its complaints.
fn pass(source: &Path, target: &Target, options: &Options, folder: &Path, out: Out) -> Result<ExitCode> {
    // A source that is not there leaves nothing behind.
    let source = source.canonicalize().with_context(|| format!("the source {}", source.display()))?;
    let place = Place::take(folder)?;
    let progress = Progress::default();
    let done = bar::during(&progress, out, || kura_replicate::run(&source, target, options, &place, &progress));
    let summary = done?;
    tell(&summary, &place, out)
}

/// Shows what a run came to, and complains of what was not copied.
fn tell(summary: &Summary, place: &Place, out: Out) -> Result<ExitCode> {
    out.show(summary, text::summary)?;
    if summary.failed == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    for (cause, count) in &summary.causes {
        let example = summary.failures.iter().find(|failure| failure.cause == *cause);
        let example = example.map(|failure| kura_replicate::escaped(&failure.path)).unwrap_or_default();
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        // Nobody to tell is nobody to tell.
        let _ = writeln!(stderr(), "kura: not copied: {example}{more}: {cause}");
    }
    if !summary.dry_run {
        let _ = writeln!(stderr(), "kura: {} not copied, listed in {}", summary.failed, place.failures().display());
    }
    Ok(ExitCode::FAILURE)
}

/// Compares, and fails where anything differs.
fn verify(what: &[String], how: &How, data: &Data, common: &Common) -> Result<ExitCode> {
    let (source, target, options) = match what {
        [name] => {
            let job = Jobs::under(&data.path).get(name)?;
            (job.source.clone(), job.target()?, how.over(job.options))
        }
        [source, target, ..] => {
            let target = target.parse().map_err(anyhow::Error::msg)?;
            (PathBuf::from(source), target, how.over(Options::default()))
        }
        [] => bail!("name a job, or a source and a target"),
    };
    let token = common.token.clone().unwrap_or_default();
    let verified = kura_replicate::verify(&source, &target, &Options { token, ..options })?;
    common.out().show(&verified, text::verified)?;
    Ok(if verified.differing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn failback(jobs: &Jobs, name: &str, out: Out) -> Result<ExitCode> {
    let job = jobs.get(name)?;
    let place = Place::take(&jobs.folder(name).join("back"))?;
    let progress = Progress::default();
    let done = bar::during(&progress, out, || kura_replicate::failback(&job, &job.options, &place, &progress));
    let summary = done?;
    if summary.is_complete {
        jobs.write(name, &Job { failed_over: false, ..job })?;
    }
    tell(&summary, &place, out)
}

/// Now, as messages tell it.
fn now() -> String {
    rfc3339(SystemTime::now())
}
