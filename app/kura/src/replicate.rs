//! `kura replicate`: copies of file trees, without a server, of volumes, between two, and of buckets, to whatever speaks S3.

mod bar;
mod bucket;
mod carry;
mod jobs;
pub mod schedule;
mod serve;
mod sites;
mod text;
mod told;
mod volume;

use crate::cli::{Common, ReplicateCommand, ReplicateData as Data, ReplicateHow as How, ReplicateRun};
use crate::complain;
use crate::descriptors;
use crate::show::Out;
use anyhow::{Context, Result, anyhow, bail};
use carry::{BUCKETS, bring_back, carry, carry_job, waited_for};
use kura_replicate::{Job, Jobs, Options, Origin, Place, Progress, Summary, Target, Verified};
use sites::{Home, Site};
use std::collections::BTreeMap;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;
use volume::Pair;

/// Carries a command of replication out.
pub fn replicate(command: ReplicateCommand, common: &Common) -> Result<ExitCode> {
    let out = common.out();
    match command {
        ReplicateCommand::Add { name, source, target, every, rpo, how, data } => {
            let source = absolute_origin(source)?;
            let target = absolute(target.parse().map_err(anyhow::Error::msg)?)?;
            let options = absolute_files(how.over(Options::default()))?;
            match &source {
                Origin::Volume(volume) => Pair::of(&home(common), volume, &target, &options)?.check_names()?,
                Origin::Bucket(bucket) => drop(bucket::Pair::of(&home(common), bucket, &target, &options)?),
                Origin::Tree(_) => options.check(&target)?,
            }
            let job =
                Job { source, target: target.to_string(), every, rpo, failed_over: false, removing: false, options };
            Jobs::under(&data.path).add(&name, &job)?;
            let jobs = Jobs::under(&data.path);
            let told = told::ToldJob::new(&jobs, jobs.standing(&name, SystemTime::now())?);
            out.show(&told, |_| format!("added: `kura replicate run {name}` makes the copy"))?;
        }
        ReplicateCommand::Run(command) => {
            descriptors::raise();
            if command.until_eof {
                schedule::end_at_eof();
            }
            return run(&command, common);
        }
        ReplicateCommand::Serve { root, listen, token_file, cert, key, .. } => {
            descriptors::raise();
            serve::serve(&root, listen, token_file, cert.zip(key))?;
        }
        ReplicateCommand::Status { name, data } => status(&Jobs::under(&data.path), name, out)?,
        ReplicateCommand::Verify { what, how, data } => return verify(&what, &how, &data, common),
        ReplicateCommand::Failover { name, anyway, data } => {
            match Origin::from(name.clone()) {
                // Where the copy is: the source may be lost, and its jobs with it.
                Origin::Volume(volume) => promote(&home(common).volume(&volume, Options::default().timeout)?, out)?,
                Origin::Bucket(_) => bail!("{name}: {BUCKETS}"),
                Origin::Tree(_) => failover(&Jobs::under(&data.path), &name, anyway, common)?,
            }
        }
        ReplicateCommand::Failback { name, anyway, dry_run, data } => {
            return failback(&Jobs::under(&data.path), &name, (anyway, dry_run), common);
        }
        ReplicateCommand::Remove { name, dry_run, data } => remove(&Jobs::under(&data.path), &name, dry_run, common)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows how jobs fare, and fails where that is not known of one.
fn status(jobs: &Jobs, name: Option<String>, out: Out) -> Result<()> {
    let now = SystemTime::now();
    let (known, unknown) = match name {
        Some(name) => (vec![jobs.standing(&name, now)?], BTreeMap::new()),
        None => jobs.standings(now),
    };
    if !known.is_empty() || unknown.is_empty() {
        let told: Vec<_> = known.iter().map(|standing| told::ToldJob::new(jobs, standing.clone())).collect();
        out.show(&told, |_| text::standings(&known))?;
    }
    unknown.into_values().next().map_or(Ok(()), |error| Err(error.into()))
}

/// Removes a job, and the points of its source; one that nobody can read goes as it is.
fn remove(jobs: &Jobs, name: &str, dry_run: bool, common: &Common) -> Result<()> {
    if dry_run {
        let points = match jobs.get(name) {
            Err(_) if jobs.has(name) => Vec::new(),
            job => points(&job?, common)?,
        };
        return common.out().show(&serde_json::json!({ "removed": name, "points": points, "dry_run": true }), |_| {
            let points = if points.is_empty() { String::new() } else { format!(", and delete {}", points.join(", ")) };
            format!("would remove {name}{points}; its copy stays")
        });
    }
    let (job, place) = jobs.begin_removal(name)?;
    let left = job.map_or(Ok(()), |job| forget_points(&job, &place, common));
    jobs.remove(name, place)?;
    let said = left
        .as_ref()
        .err()
        .map(|error| format!("; so do its snapshots replica-... of the source, which could not be deleted: {error:#}"));
    let left = left.map_err(|error| format!("{error:#}")).err();
    common.out().show(&serde_json::json!({ "removed": name, "points_left": left, "dry_run": false }), |_| {
        format!("removed {name}; its copy stays{}", said.unwrap_or_default())
    })
}

/// Deletes the points of a job's source, which nobody has use for without the job, and what its runs left half done elsewhere.
fn forget_points(job: &Job, place: &Place, common: &Common) -> Result<()> {
    let (home, target, options) = (home(common), job.target()?, &job.options);
    match &job.source {
        Origin::Tree(_) => Ok(()),
        Origin::Volume(volume) => waited_for(Pair::of(&home, volume, &target, options)?.forget()),
        Origin::Bucket(bucket) => waited_for(bucket::Pair::of(&home, bucket, &target, options)?.forget(place.folder())),
    }
}

/// The points of a job's source.
fn points(job: &Job, common: &Common) -> Result<Vec<String>> {
    let (home, target, options) = (home(common), job.target()?, &job.options);
    match &job.source {
        Origin::Tree(_) => Ok(Vec::new()),
        Origin::Volume(volume) => waited_for(Pair::of(&home, volume, &target, options)?.source_points()),
        Origin::Bucket(bucket) => waited_for(bucket::Pair::of(&home, bucket, &target, options)?.points()),
    }
}

/// The kura that has the sources of volumes.
fn home(common: &Common) -> Home<'_> {
    Home { server: &common.server, token: common.token.as_ref(), ca: common.ca.as_deref() }
}

/// A job is run from other directories, too.
fn absolute(target: Target) -> Result<Target> {
    Ok(match target {
        Target::Local(path) => Target::Local(std::path::absolute(path)?),
        target => target,
    })
}

/// The same, of a source, which must be there.
fn absolute_origin(source: String) -> Result<Origin> {
    let source = Origin::from(source);
    let Origin::Tree(path) = &source else { return Ok(source) };
    Ok(Origin::Tree(path.canonicalize().with_context(|| format!("the source {}", path.display()))?))
}

fn absolute_files(options: Options) -> Result<Options> {
    let absolute = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
    Ok(Options {
        target_token_file: absolute(options.target_token_file)?,
        target_ca: absolute(options.target_ca)?,
        target_credentials: absolute(options.target_credentials)?,
        ..options
    })
}

fn run(command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    let jobs = Jobs::under(&command.data.path);
    match &command.what[..] {
        [name] => one(&jobs, name, command, common),
        [source, target] => {
            let target: Target = target.parse().map_err(anyhow::Error::msg)?;
            let options = said(command, Options::default());
            // A source that is not there leaves nothing behind.
            let source = absolute_origin(source.clone())?;
            let folder = jobs.folder_of_pair(&source, &target);
            let traces = jobs.traces(&folder, &target);
            let place = jobs.take(&folder, &target)?;
            let progress = Progress::default();
            let work = || carry((&source, &target), &options, &home(common), &place, &progress);
            let summary = bar::during(&progress, common.out(), work);
            if options.dry_run || summary.is_err() {
                traces.wipe();
            }
            tell(&summary?, &place.failures(), false, common)
        }
        _ if command.follow => jobs::follow(&jobs, command, common),
        _ => Ok(jobs::due(&jobs, command, common)),
    }
}

/// Runs a job, and tells of it.
fn one(jobs: &Jobs, name: &str, command: &ReplicateRun, common: &Common) -> Result<ExitCode> {
    tell(&carried(jobs, name, command, common)?, &Place::failures_in(&jobs.folder(name)), false, common)
}

/// Runs a job: what came of it.
fn carried(jobs: &Jobs, name: &str, command: &ReplicateRun, common: &Common) -> Result<Summary> {
    let options = said(command, jobs.get(name)?.options);
    let progress = Progress::default();
    let work = || carry_job(jobs, name, &options, &home(common), &progress);
    bar::during(&progress, common.out(), work)
}

fn said(command: &ReplicateRun, options: Options) -> Options {
    let ReplicateRun { plans: dry_run, recheck, adopt, allow_empty, .. } = *command;
    Options { dry_run, recheck, adopt, allow_empty, ..command.how.over(options) }
}

/// Shows what a run came to, and complains of what was not copied; where that was asked for, it is only told.
fn tell(summary: &Summary, failures: &Path, is_asked: bool, common: &Common) -> Result<ExitCode> {
    common.out().show(summary, text::summary)?;
    if !is_asked {
        return Ok(judge(summary, failures, None, common.json));
    }
    // Programs have it in the summary.
    for line in missing(summary, failures).iter().filter(|_| !common.json) {
        // Standard error may be closed; ignore that.
        let _ = writeln!(stderr(), "kura: note: {line}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Complains of what a run did not copy, by the job's name where there are several.
fn judge(summary: &Summary, failures: &Path, job: Option<&str>, json: bool) -> ExitCode {
    for line in missing(summary, failures) {
        complain(&anyhow!(line), job, json);
    }
    if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a run did not copy: a line a cause, and one that says where all is listed.
fn missing(summary: &Summary, failures: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    if summary.failed == 0 {
        return lines;
    }
    for (cause, count) in &summary.causes {
        let example = summary.failures.iter().find(|failure| failure.cause == *cause);
        let example = example.map(|failure| kura_replicate::escaped(&failure.path)).unwrap_or_default();
        let more = if *count > 1 { format!(" and {} more", count - 1) } else { String::new() };
        lines.push(format!("not copied: {example}{more}: {cause}"));
    }
    if !summary.dry_run {
        lines.push(format!("{} not copied, listed in {}", summary.failed, failures.display()));
    }
    lines
}

/// Compares, and fails where anything differs.
fn verify(what: &[String], how: &How, data: &Data, common: &Common) -> Result<ExitCode> {
    let jobs = Jobs::under(&data.path);
    let (source, target, options, folder) = match what {
        [name] => {
            let job = jobs.get(name)?;
            (job.source.clone(), job.target()?, how.over(job.options), jobs.folder(name))
        }
        [source, target, ..] => {
            let (source, target) = (Origin::from(source.clone()), target.parse().map_err(anyhow::Error::msg)?);
            let folder = jobs.folder_of_pair(&source, &target);
            (source, target, how.over(Options::default()), folder)
        }
        [] => bail!("name a job, or a source and a target"),
    };
    let held = match &source {
        Origin::Tree(_) => None,
        // A run deletes the points that this reads, and this a run's.
        Origin::Volume(_) | Origin::Bucket(_) => Some((jobs.traces(&folder, &target), jobs.take(&folder, &target)?)),
    };
    let verified = compared(&source, &target, (&options, &folder), common);
    if let Some((traces, _place)) = held {
        traces.wipe();
    }
    let verified = verified?;
    common.out().show(&verified, text::verified)?;
    if matches!(source, Origin::Tree(_)) && !verified.differing.is_empty() && folder.exists() {
        let place = jobs.take(&folder, &target).context("what differs is not copied by the next run")?;
        place.distrust(&verified.differing)?;
    }
    Ok(if verified.differing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What differs between both ends of a copy.
fn compared(
    source: &Origin,
    target: &Target,
    (options, folder): (&Options, &Path),
    common: &Common,
) -> Result<Verified> {
    match source {
        Origin::Volume(volume) => waited_for(Pair::of(&home(common), volume, target, options)?.verify()),
        Origin::Bucket(bucket) => {
            let pair = bucket::Pair::of(&home(common), bucket, target, options)?;
            waited_for(pair.verify(target, options, folder))
        }
        Origin::Tree(path) => Ok(kura_replicate::verify(path, target, options)?),
    }
}

fn failover(jobs: &Jobs, name: &str, anyway: bool, common: &Common) -> Result<()> {
    let job = jobs.get(name)?;
    let options = job.options.clone();
    match &job.source {
        Origin::Volume(volume) => {
            let pair = Pair::of(&home(common), volume, &job.target()?, &options)?;
            // From here on the schedule leaves it alone, even if what follows is cut off.
            jobs.change(name, |job| job.failed_over = true)?;
            if let Err(error) = promote(&pair.target, common.out()) {
                jobs.change(name, |now| now.failed_over = job.failed_over)?;
                return Err(error);
            }
            Ok(())
        }
        Origin::Bucket(_) => bail!("{name}: {BUCKETS}"),
        Origin::Tree(_) => {
            // No run of ours is under way that would go on in it.
            let _place = jobs.take(&jobs.folder(name), &job.target()?)?;
            let marker = kura_replicate::failover(&job, &options, anyway)?;
            jobs.change(name, |job| job.failed_over = true)?;
            common.out().show(&marker, |marker| {
                let point = marker.recovery_point.as_deref().unwrap_or("no moment in particular");
                // It comes from there.
                let point = kura_replicate::escaped(point.as_bytes());
                format!("failed over: the copy is the source as of {point}; `kura replicate failback {name}` goes back")
            })
        }
    }
}

/// Makes a copy of a volume a volume like any other.
fn promote(site: &Site, out: Out) -> Result<()> {
    let replica = waited_for(async { Ok(site.client.promote(&site.volume).await?) })?;
    out.show(&replica, |replica| {
        let point = replica.point.as_deref().unwrap_or_default();
        format!("failed over: volume {} is what its source was at {point}, and may be written to", replica.volume)
    })
}

fn failback(jobs: &Jobs, name: &str, (anyway, dry_run): (bool, bool), common: &Common) -> Result<ExitCode> {
    let job = jobs.get(name)?;
    let place = jobs.take(&jobs.folder(name).join("back"), &job.target()?)?;
    let progress = Progress::default();
    let options = Options { dry_run, ..job.options.clone() };
    let work = || bring_back(&job, &options, anyway, &home(common), &place, &progress);
    let summary = bar::during(&progress, common.out(), work)?;
    if summary.is_complete {
        jobs.change(name, |job| job.failed_over = false)?;
    }
    tell(&summary, &place.failures(), anyway && summary.has_only_what_stays(), common)
}
