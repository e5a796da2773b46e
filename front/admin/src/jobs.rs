//! Long work: begun by a request, followed by others, cancelled where that makes sense.

use crate::job::{Job, JobKind, JobResult, JobState, JobUnit};
use crate::{Problem, ProblemKind, Timestamp};
use kura_block::Progress;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::interval;

/// Jobs that have ended and are still told about.
const KEPT: usize = 100;
/// How often it is told how far a job is.
const TELL: Duration = Duration::from_millis(200);

/// The jobs of this server, by number. When they are dropped, those that run end.
pub(crate) struct Jobs {
    /// Where they run.
    runtime: Handle,
    table: Mutex<BTreeMap<u64, Known>>,
}

/// A job, running or ended.
struct Known {
    seen: watch::Receiver<Job>,
    progress: Progress,
    task: AbortHandle,
}

/// What the work of a job tells.
#[derive(Clone)]
pub(crate) struct Teller {
    /// How far it is, and whether it is cancelled.
    pub progress: Progress,
    job: watch::Sender<Job>,
}

impl Teller {
    /// Why it does not go on just now, where that is so.
    pub fn waits(&self, why: Option<String>) {
        self.job.send_if_modified(|job| {
            let is_news = job.waits != why;
            job.waits = why;
            is_news
        });
    }

    fn tell(&self) {
        let (done, total) = self.progress.counts();
        self.job.send_if_modified(|job| {
            let is_news = (job.done, job.total) != (done, total);
            (job.done, job.total) = (done, total);
            is_news
        });
    }
}

impl JobKind {
    /// What its progress is counted in.
    fn unit(self) -> JobUnit {
        match self {
            Self::Check | Self::RemoveDisk | Self::RebuildDisk | Self::MoveVolume => JobUnit::Bytes,
            Self::DrainController => JobUnit::Volumes,
        }
    }
}

impl Jobs {
    /// None yet; they run where this is called, whoever begins them.
    pub(crate) fn here() -> Self {
        Self { runtime: Handle::current(), table: Mutex::default() }
    }

    /// Begins the work of a job of this kind, about this, beside everything else, and returns the job as it begins. While one
    /// like it runs: that one where its work is only followed, else `Busy`.
    pub(crate) fn start<F>(
        &self,
        kind: JobKind,
        of: Option<String>,
        work: impl FnOnce(Teller) -> F,
    ) -> Result<Job, Problem>
    where
        F: Future<Output = Result<JobResult, Problem>> + Send + 'static,
    {
        let mut table = self.table();
        let alike = table.values().map(|known| known.seen.borrow().clone());
        let running = alike.into_iter().find(|job| job.kind == kind && job.of == of && job.state == JobState::Running);
        if let Some(job) = running {
            if kind.is_only_followed() {
                return Ok(job);
            }
            let text = format!("the {job} is under way: follow it with `kura job follow {}`", job.id);
            return Err(Problem::new(ProblemKind::Busy, text));
        }
        let job = Job {
            id: table.last_key_value().map_or(1, |(last, _)| last + 1),
            kind,
            of,
            state: JobState::Running,
            done: 0,
            total: 0,
            unit: kind.unit(),
            waits: None,
            started_at: Timestamp::now(),
            ended_at: None,
            result: None,
            error: None,
        };
        let (sender, seen) = watch::channel(job.clone());
        let teller = Teller { progress: Progress::default(), job: sender };
        let (progress, work) = (teller.progress.clone(), work(teller.clone()));
        let task = self.runtime.spawn(run(teller, work)).abort_handle();
        table.insert(job.id, Known { seen, progress, task });
        forget_old(&mut table);
        Ok(job)
    }

    /// All jobs, oldest first.
    pub(crate) fn all(&self) -> Vec<Job> {
        self.table().values().map(|known| known.seen.borrow().clone()).collect()
    }

    /// The job `id` and its changes to come.
    pub(crate) fn get(&self, id: u64) -> Result<watch::Receiver<Job>, Problem> {
        self.table().get(&id).map(|known| known.seen.clone()).ok_or_else(|| missing(id))
    }

    /// Asks a job to end where it stands, and returns it as it is; it ends soon.
    pub(crate) fn cancel(&self, id: u64) -> Result<Job, Problem> {
        let table = self.table();
        let known = table.get(&id).ok_or_else(|| missing(id))?;
        let job = known.seen.borrow().clone();
        if job.state != JobState::Running {
            return Err(Problem::new(ProblemKind::Invalid, format!("job {id}: it has ended")));
        }
        if job.kind.is_only_followed() {
            let text = format!("job {id}: what moves data off a disk cannot be cancelled");
            return Err(Problem::new(ProblemKind::Invalid, text));
        }
        known.progress.cancel();
        Ok(job)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, Known>> {
        // No code panics while it holds the table, and a map is whole even if some did.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        for known in self.table().values() {
            known.task.abort();
        }
    }
}

fn missing(id: u64) -> Problem {
    Problem::new(ProblemKind::Missing, format!("job {id}: no such job; `kura job list` lists them"))
}

/// Forgets jobs that have ended, the oldest first, until few enough are left.
fn forget_old(table: &mut BTreeMap<u64, Known>) {
    let ended = table.iter().filter(|(_, known)| known.seen.borrow().state != JobState::Running);
    let ended: Vec<u64> = ended.map(|(id, _)| *id).collect();
    for id in ended.iter().take(ended.len().saturating_sub(KEPT)) {
        table.remove(id);
    }
}

/// Does the work, and tells now and then how far it is.
async fn run(teller: Teller, work: impl Future<Output = Result<JobResult, Problem>>) {
    let (mut work, mut ticks) = (pin!(work), interval(TELL));
    let ended = loop {
        tokio::select! {
            ended = &mut work => break ended,
            _ = ticks.tick() => teller.tell(),
        }
    };
    let (done, total) = teller.progress.counts();
    let is_cancelled = teller.progress.is_cancelled();
    teller.job.send_modify(|job| {
        // What was told of beforehand was a guess; and a check looks at more than it tells of.
        let is_cut_off = is_cancelled && (job.kind == JobKind::Check || done < total);
        let is_whole = ended.is_ok() && !is_cut_off;
        (job.done, job.total, job.waits) = (if is_whole { total } else { done }, total, None);
        job.ended_at = Some(Timestamp::now());
        job.state = match (&ended, is_cancelled) {
            (Ok(_), _) if is_whole => JobState::Done,
            (_, true) => JobState::Cancelled,
            _ => JobState::Failed,
        };
        match ended {
            Ok(result) => job.result = Some(result),
            Err(error) => job.error = Some(error),
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::CheckResult;
    use kura_block::Error;
    use tokio::sync::oneshot;
    use tokio::time::sleep;

    const CLEAN: JobResult =
        JobResult::Check(CheckResult { volumes: 1, blocks: 2, dry_run: false, repaired: 0, violations: vec![] });

    fn check<F>(jobs: &Jobs, work: impl FnOnce(Teller) -> F) -> Result<Job, Problem>
    where
        F: Future<Output = Result<JobResult, Problem>> + Send + 'static,
    {
        jobs.start(JobKind::Check, None, work)
    }

    async fn end_of(jobs: &Jobs, id: u64) -> Job {
        let mut changes = jobs.get(id).unwrap();
        changes.wait_for(|job| job.state != JobState::Running).await.unwrap().clone()
    }

    #[tokio::test]
    async fn one_of_a_kind_runs_at_a_time_and_its_end_is_told() {
        let jobs = Jobs::here();
        let (go, wait) = oneshot::channel::<Result<JobResult, Problem>>();
        let first = check(&jobs, |_| async { wait.await.unwrap() }).unwrap();
        assert_eq!((first.id, first.state), (1, JobState::Running));

        let refused = check(&jobs, |_| async { Ok(CLEAN) }).unwrap_err();
        assert_eq!(refused.kind, ProblemKind::Busy);
        assert!(refused.error.contains("job follow 1"), "{refused}");

        go.send(Ok(CLEAN)).unwrap();
        let ended = end_of(&jobs, 1).await;
        assert_eq!((ended.state, ended.result), (JobState::Done, Some(CLEAN)));

        let second = check(&jobs, |_| async { Err(Error::device("disk 3: gone").into()) }).unwrap();
        assert_eq!(end_of(&jobs, second.id).await.error.unwrap().kind, ProblemKind::Device);
        assert_eq!(jobs.all().len(), 2);
        assert_eq!(jobs.get(3).unwrap_err().kind, ProblemKind::Missing);
    }

    #[tokio::test]
    async fn old_jobs_are_forgotten_and_running_ones_are_not() {
        let jobs = Jobs::here();
        let (_go, wait) = oneshot::channel::<Result<JobResult, Problem>>();
        let disk = Some("3".to_owned());
        let moving = jobs.start(JobKind::RemoveDisk, disk.clone(), |_| async { wait.await.unwrap() }).unwrap();
        for _ in 0..=KEPT {
            let id = check(&jobs, |_| async { Ok(CLEAN) }).unwrap().id;
            assert_eq!(end_of(&jobs, id).await.state, JobState::Done);
        }
        assert_eq!(jobs.all().len(), KEPT + 2, "the last one has ended since");
        check(&jobs, |_| async { Ok(CLEAN) }).unwrap();
        assert!(jobs.get(2).is_err());
        // Who wants the same is told of that one.
        let again = jobs.start(JobKind::RemoveDisk, disk, |_| async { Ok(CLEAN) }).unwrap();
        assert_eq!(again.id, moving.id);
        assert_eq!(jobs.cancel(moving.id).unwrap_err().kind, ProblemKind::Invalid);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_told_how_far_a_job_is_and_one_that_is_cancelled_ends_there() {
        let jobs = Jobs::here();
        let work = |teller: Teller| async move {
            teller.progress.expect(100);
            teller.waits(Some("for a disk".to_owned()));
            while !teller.progress.is_cancelled() {
                sleep(Duration::from_secs(1)).await;
                teller.progress.advance(10);
            }
            Ok(CLEAN)
        };
        let id = check(&jobs, work).unwrap().id;
        let mut changes = jobs.get(id).unwrap();
        let seen = changes.wait_for(|job| job.done == 30).await.unwrap().clone();
        assert_eq!((seen.total, seen.unit, seen.waits.as_deref()), (100, JobUnit::Bytes, Some("for a disk")));
        assert_eq!(jobs.cancel(id).unwrap().state, JobState::Running);
        let ended = end_of(&jobs, id).await;
        assert_eq!((ended.state, ended.done, ended.total), (JobState::Cancelled, 40, 100));
        assert_eq!((ended.result, ended.waits), (Some(CLEAN), None), "what was found until then");
        assert_eq!(jobs.cancel(id).unwrap_err().kind, ProblemKind::Invalid);
    }

    #[tokio::test]
    async fn a_cancelled_check_is_never_told_as_done() {
        let jobs = Jobs::here();
        let (go, wait) = oneshot::channel::<()>();
        let work = |teller: Teller| async move {
            teller.progress.expect(100);
            teller.progress.advance(100);
            wait.await.unwrap();
            Ok(CLEAN)
        };
        let id = check(&jobs, work).unwrap().id;
        jobs.cancel(id).unwrap();
        go.send(()).unwrap();
        let ended = end_of(&jobs, id).await;
        assert_eq!((ended.state, ended.result), (JobState::Cancelled, Some(CLEAN)));
    }

    #[tokio::test]
    async fn no_work_outlives_the_jobs() {
        let jobs = Jobs::here();
        let (held, mut dropped) = oneshot::channel::<()>();
        check(&jobs, |_| async move {
            let _held = held;
            std::future::pending().await
        })
        .unwrap();
        tokio::task::yield_now().await;
        assert!(dropped.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(jobs);
        assert!(dropped.await.is_err());
    }
}
