//! Copies of buckets: a run from a kura, asked through its REST door, to a bucket of whatever speaks S3.
//!
//! All buckets are read as a snapshot of this moment has them, which lives as long as the run.

mod carry;
mod content;
mod lists;
mod store;
mod verify;
mod wire;

use super::sites::Home;
use crate::serve::s3::VOLUME;
use anyhow::{Result, ensure};
use carry::{Run, passes};
use futures::TryStreamExt;
use futures::future::try_join_all;
use kura_admin::{Client, NewSnapshots};
use kura_replicate::bucket::{Carried, Step, is_others, next};
use kura_replicate::volume::{is_own, point_name};
use kura_replicate::{Failure, Options, Origin, Place, Progress, Summary, Target, Verified};
use lists::twice;
use std::path::Path;
use std::time::{Instant, SystemTime};
use store::Store;
use verify::Compared;
use xxhash_rust::xxh3::xxh3_64;

/// A bucket and its copy.
pub struct Pair {
    source: Client,
    bucket: String,
    target: Store,
    /// What its snapshots are named by.
    id: u32,
}

impl Pair {
    /// Of a bucket of `home`, and what a target names. Nobody is asked for anything yet.
    pub fn of(home: &Home<'_>, bucket: &str, target: &Target, options: &Options) -> Result<Self> {
        let source = home.client(options.timeout)?;
        let id = xxh3_64(format!("{}\n{target}", Origin::Bucket(bucket.to_owned())).as_bytes()) as u32;
        Ok(Self { source, bucket: bucket.to_owned(), target: Store::of(target, options)?, id })
    }

    /// A run: until the target has what the source had when the run began, or it is known why not.
    pub async fn run(
        &self,
        target: &Target,
        options: &Options,
        place: &Place,
        progress: &Progress,
        summary: &mut Summary,
    ) -> Result<()> {
        let began = Instant::now();
        summary.dry_run = options.dry_run;
        let done = async |bucket: &str| self.follow(bucket, target, options, place, progress).await;
        let tally = self.at_a_point(done).await?;
        (summary.files, summary.bytes) = (tally.files, tally.bytes);
        (summary.deleted, summary.unchanged) = (tally.deleted, tally.unchanged);
        summary.sent_bytes = progress.workers().iter().map(kura_replicate::Counter::sent_bytes).sum();
        summary.seconds = began.elapsed().as_secs_f64();
        summary.failed = tally.failures.len() as u64;
        for failure in &tally.failures {
            *summary.causes.entry(failure.cause.clone()).or_default() += 1;
        }
        summary.failures = tally.failures;
        summary.is_complete = summary.failed == 0 && !options.dry_run;
        Ok(())
    }

    async fn follow(
        &self,
        bucket: &str,
        target: &Target,
        options: &Options,
        place: &Place,
        progress: &Progress,
    ) -> Result<carry::Tally> {
        let mut pairs = self.pairs(bucket, target).await?;
        let (is_empty_here, is_empty_there) = pairs.are_empty().await?;
        let is_new = !Carried::is_there(place.folder());
        ensure!(
            options.adopt || is_empty_there || !is_new,
            "the target {target}: is not empty, and no copy that was made from here: --adopt makes it one, and what only \
             it has is lost"
        );
        ensure!(
            options.allow_empty || !is_empty_here || is_empty_there,
            "the source bucket:{}: is empty, and its copy is not: --allow-empty empties the copy",
            self.bucket
        );
        let mut carried = Carried::open(place.folder())?;
        ensure!(
            options.adopt || !is_others(&pairs.first, &carried),
            "the target {target}: is not the copy that was made from here, but another bucket of its name: --adopt makes it one, \
             and what only it has is lost"
        );
        if !options.dry_run {
            carried.claim()?;
        }
        let run = Run::new(self, bucket, target, options, progress, carried)?;
        progress.carry(0, 0, 1);
        let work = pairs.stream().try_for_each_concurrent(options.workers, async |(here, there)| {
            let mut step = next(here.as_ref(), there.as_ref(), &run.carried());
            if let (Step::Keep, true, Some(here), Some(there)) = (step, options.recheck, &here, &there) {
                match self.differs(bucket, target, here, there).await? {
                    Compared::Alike => {}
                    Compared::Differs(_) => step = Step::Carry,
                    Compared::Unknown(why) => {
                        run.fail(&here.key, why);
                        return Ok(());
                    }
                }
            }
            match (step, here, there) {
                (Step::Carry, Some(here), _) => run.carry(&here).await,
                (Step::Delete, _, Some(there)) => run.delete(&there).await,
                (_, Some(here), _) => {
                    run.keep(&here);
                    Ok(())
                }
                _ => Ok(()),
            }
        });
        work.await?;
        progress.finish();
        run.end().await
    }

    /// Compares both sides, contents by sums; the next run of the job that `folder` is of carries what is seen to differ.
    pub async fn verify(&self, target: &Target, options: &Options, folder: &Path) -> Result<Verified> {
        let began = Instant::now();
        let compare = async |bucket: &str| self.compare(bucket, target, (options, folder)).await;
        let mut verified = self.at_a_point(compare).await?;
        verified.differing.sort();
        verified.seconds = began.elapsed().as_secs_f64();
        Ok(verified)
    }

    /// Does `work` with the name under which the bucket stays as it is now.
    async fn at_a_point<T>(&self, work: impl AsyncFnOnce(&str) -> Result<T>) -> Result<T> {
        let name = &self.bucket;
        // The snapshot may have it though it is gone.
        if name.contains('@') {
            return work(name).await;
        }
        let is_there = self.source.buckets().await?.iter().any(|bucket| bucket.name == *name);
        ensure!(
            is_there,
            "the source bucket:{name}: there is no such bucket: `kura bucket list` shows those there are"
        );
        // A run that was killed leaves its own.
        for left in self.points().await? {
            self.drop_snapshot(&left).await;
        }
        let point = point_name(self.id, SystemTime::now());
        let snapshot = format!("{VOLUME}@{point}");
        self.source.create_snapshots(&NewSnapshots { names: vec![snapshot.clone()], read_only: true }).await?;
        let done = work(&format!("{name}@{point}")).await;
        self.drop_snapshot(&snapshot).await;
        done
    }

    /// The snapshots that its runs left, by their names.
    pub async fn points(&self) -> Result<Vec<String>> {
        let all = self.source.snapshots(Some(VOLUME)).await?.into_iter().map(|snapshot| snapshot.name);
        let is_ours = |name: &String| name.split_once('@').is_some_and(|(_, own)| is_own(self.id, own));
        Ok(all.filter(is_ours).collect())
    }

    /// Deletes what its runs left here and, as far as it is to be had, what they began at the target: no run follows that would,
    /// so a snapshot that stays is an error. `folder` is their job's.
    pub async fn forget(&self, folder: &Path) -> Result<()> {
        let points = self.points().await?;
        let deleted = try_join_all(points.iter().map(async |point| {
            // What was read for a run that was killed may not be let go yet.
            twice(async || self.source.delete_snapshot(point, false).await, passes).await
        }));
        let deleted = deleted.await;
        for upload in Carried::open(folder)?.uploads() {
            if self.target.abort((&upload.key, &upload.id)).await.is_err() {
                break;
            }
        }
        deleted?;
        Ok(())
    }

    async fn drop_snapshot(&self, snapshot: &str) {
        // What is still read, or a server that is away, keeps it: the next run sees to it.
        self.source.delete_snapshot(snapshot, false).await.ok();
    }
}

/// Something that was not carried, or differs.
fn failure(key: &str, cause: impl ToString) -> Failure {
    Failure::new(key.as_bytes(), cause)
}
