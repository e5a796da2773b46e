//! One run, of whatever is copied: the same for the command line and for the server's schedule.

use super::bucket;
use super::sites::Home;
use super::volume::Pair;
use anyhow::{Context, Result, bail, ensure};
use kura_replicate::{Counter, Job, Jobs, Options, Origin, Place, Progress, Summary, Target};
use std::path::Path;
use std::time::{Instant, SystemTime};

/// What is said of buckets.
pub const BUCKETS: &str = "the copy of a bucket is a bucket like any other: `kura replicate remove` ends its job";

/// What is copied, and where to.
pub type Names<'a> = (&'a Origin, &'a Target);

/// Makes the target as the source is. What it came to, or why it came to nothing, is kept in `place`.
pub fn carry(
    names: Names<'_>,
    options: &Options,
    home: &Home<'_>,
    place: &Place,
    progress: &Progress,
) -> Result<Summary> {
    let begun = (Summary::begun(names.0, names.1, SystemTime::now()), Instant::now());
    let done = match names.0 {
        Origin::Tree(path) => tree(path, names.1, options, place, progress),
        Origin::Volume(volume) => volume_run(volume, names, options, home, place, progress),
        Origin::Bucket(bucket) => bucket_run(bucket, names, options, home, place, progress),
    };
    if let Err(error) = &done
        && !options.dry_run
    {
        // Where that cannot be kept, it is told all the same.
        let _ = place.note(&begun.0.broken_off(begun.1.elapsed(), format!("{error:#}")));
    }
    done
}

fn tree(path: &Path, target: &Target, options: &Options, place: &Place, progress: &Progress) -> Result<Summary> {
    Ok(kura_replicate::run(path, target, options, place, progress)?)
}

fn volume_run(
    volume: &str,
    names: Names<'_>,
    options: &Options,
    home: &Home<'_>,
    place: &Place,
    progress: &Progress,
) -> Result<Summary> {
    let pair = Pair::of(home, volume, names.1, options)?;
    pair.check_names()?;
    let (mut summary, began) = (Summary::begun(names.0, names.1, SystemTime::now()), Instant::now());
    if options.dry_run {
        summary.dry_run = true;
        waited_for(pair.plan(names, options, &mut summary))?;
        return Ok(summary);
    }
    waited_for(pair.run(names, options, progress, &mut summary))?;
    count(&mut summary, progress, began);
    place.note(&summary)?;
    Ok(summary)
}

fn bucket_run(
    bucket: &str,
    names: Names<'_>,
    options: &Options,
    home: &Home<'_>,
    place: &Place,
    progress: &Progress,
) -> Result<Summary> {
    let pair = bucket::Pair::of(home, bucket, names.1, options)?;
    let mut summary = Summary::begun(names.0, names.1, SystemTime::now());
    waited_for(pair.run(names.1, options, place, progress, &mut summary))?;
    if !options.dry_run {
        place.note(&summary)?;
    }
    Ok(summary)
}

/// A job's run.
pub fn carry_job(jobs: &Jobs, name: &str, options: &Options, home: &Home<'_>, progress: &Progress) -> Result<Summary> {
    let target = jobs.get(name)?.target()?;
    let place = jobs.take(&jobs.folder(name), &target)?;
    // As it is now that nobody else has it.
    let job = jobs.get(name)?;
    ensure!(
        !job.failed_over,
        "{name} was failed over: its target may hold newer work: `kura replicate failback {name}` brings it back"
    );
    ensure!(!job.removing, "{name} is being removed: `kura replicate remove {name}` ends that");
    carry((&job.source, &target), options, home, &place, progress)
}

/// Brings work with a job's copy back, where the source of a tree keeps something of its own only if it shall be so.
pub fn bring_back(
    job: &Job,
    options: &Options,
    anyway: bool,
    home: &Home<'_>,
    place: &Place,
    progress: &Progress,
) -> Result<Summary> {
    let volume = match &job.source {
        Origin::Volume(volume) => volume,
        Origin::Tree(_) => return Ok(kura_replicate::failback(job, options, anyway, place, progress)?),
        Origin::Bucket(_) => bail!("{}: {BUCKETS}", job.source),
    };
    let target = job.target()?;
    let pair = Pair::of(home, volume, &target, options)?;
    let (mut summary, began) = (Summary::begun(&job.source, &target, SystemTime::now()), Instant::now());
    if options.dry_run {
        summary.dry_run = true;
        waited_for(pair.plan_back((&job.source, &target), &mut summary))?;
        return Ok(summary);
    }
    waited_for(pair.fail_back((&job.source, &target), options, progress, &mut summary))?;
    count(&mut summary, progress, began);
    Ok(summary)
}

fn count(summary: &mut Summary, progress: &Progress, began: Instant) {
    summary.files = 1;
    summary.bytes = progress.workers().iter().map(|counter| counter.get().1).sum();
    summary.sent_bytes = progress.workers().iter().map(Counter::sent_bytes).sum();
    summary.seconds = began.elapsed().as_secs_f64();
}

/// Runs what waits for servers to its end.
pub fn waited_for<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("a runtime")?.block_on(work)
}
