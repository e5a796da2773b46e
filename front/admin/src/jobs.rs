//! Long work: started by a request, followed by others.

use crate::resources::{CheckResult, Job, JobState, Timestamp};
use crate::{Problem, ProblemKind};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Jobs that have ended and are still told about.
const KEPT: usize = 100;

/// The jobs of this server, by number.
#[derive(Clone, Default)]
pub(crate) struct Jobs {
    table: Arc<Mutex<BTreeMap<u64, watch::Receiver<Job>>>>,
}

impl Jobs {
    /// Starts `work` beside everything else and returns the job as it begins; `Busy` while one of its kind runs.
    pub(crate) fn start<F>(&self, kind: &str, work: F) -> Result<Job, Problem>
    where
        F: Future<Output = kura_block::Result<CheckResult>> + Send + 'static,
    {
        let mut table = self.table();
        let running = |job: &Job| job.kind == kind && job.state == JobState::Running;
        if let Some((id, _)) = table.iter().find(|(_, job)| running(&job.borrow())) {
            return Err(Problem::new(ProblemKind::Busy, format!("a {kind} is running: follow it as job {id}")));
        }
        let job = Job {
            id: table.last_key_value().map_or(1, |(last, _)| last + 1),
            kind: kind.to_owned(),
            state: JobState::Running,
            started_at: Timestamp::now(),
            ended_at: None,
            result: None,
            error: None,
        };
        let (changes, seen) = watch::channel(job.clone());
        table.insert(job.id, seen);
        while table.len() > KEPT {
            table.pop_first();
        }
        tokio::spawn(async move {
            let ended = work.await;
            changes.send_modify(|job| end(job, ended));
        });
        Ok(job)
    }

    /// All jobs, oldest first.
    pub(crate) fn all(&self) -> Vec<Job> {
        self.table().values().map(|job| job.borrow().clone()).collect()
    }

    /// The job `id` and its changes to come.
    pub(crate) fn get(&self, id: u64) -> Result<watch::Receiver<Job>, Problem> {
        let missing = || Problem::new(ProblemKind::Missing, format!("job {id}: no such job"));
        self.table().get(&id).cloned().ok_or_else(missing)
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Receiver<Job>>> {
        // No code panics while it holds the table, and a map is whole even if some did.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn end(job: &mut Job, ended: kura_block::Result<CheckResult>) {
    job.ended_at = Some(Timestamp::now());
    match ended {
        Ok(result) => {
            job.state = JobState::Done;
            job.result = Some(result);
        }
        Err(error) => {
            job.state = JobState::Failed;
            job.error = Some(error.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_block::Error;
    use tokio::sync::oneshot;

    const CLEAN: CheckResult = CheckResult { volumes: 1, blocks: 2, dry_run: false, repaired: 0, violations: vec![] };

    #[tokio::test]
    async fn one_of_a_kind_runs_at_a_time_and_its_end_is_told() {
        let jobs = Jobs::default();
        let (go, wait) = oneshot::channel::<kura_block::Result<CheckResult>>();
        let first = jobs.start("check", async { wait.await.unwrap() }).unwrap();
        assert_eq!((first.id, first.state), (1, JobState::Running));

        let refused = jobs.start("check", async { Ok(CLEAN) }).unwrap_err();
        assert_eq!(refused.kind, ProblemKind::Busy);
        assert!(refused.error.contains("job 1"), "{refused}");

        let mut changes = jobs.get(1).unwrap();
        go.send(Ok(CLEAN)).unwrap();
        let ended = changes.wait_for(|job| job.state != JobState::Running).await.unwrap().clone();
        assert_eq!((ended.state, ended.result), (JobState::Done, Some(CLEAN)));

        let second = jobs.start("check", async { Err(Error::device("disk 3: gone")) }).unwrap();
        let mut changes = jobs.get(second.id).unwrap();
        let ended = changes.wait_for(|job| job.state != JobState::Running).await.unwrap().clone();
        assert_eq!(ended.error.unwrap().kind, ProblemKind::Device);
        assert_eq!(jobs.all().len(), 2);
        assert_eq!(jobs.get(3).unwrap_err().kind, ProblemKind::Missing);
    }

    #[tokio::test]
    async fn old_jobs_are_forgotten() {
        let jobs = Jobs::default();
        for _ in 0..=KEPT {
            let id = jobs.start("check", async { Ok(CLEAN) }).unwrap().id;
            jobs.get(id).unwrap().wait_for(|job| job.state == JobState::Done).await.unwrap();
        }
        assert_eq!(jobs.all().len(), KEPT);
        assert!(jobs.get(1).is_err());
    }
}
