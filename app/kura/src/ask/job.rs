//! Long work at the server, followed from here.

use crate::bar::JobBar;
use crate::cli::JobCommand;
use crate::show::{Out, table};
use crate::size::Size;
use crate::{ask, show};
use anyhow::{Result, bail};
use kura_admin::{Client, ClientError, Job, JobResult, JobState, JobUnit};
use std::process::ExitCode;

/// Carries out a command on jobs.
pub async fn job(client: &Client, out: Out, command: JobCommand) -> Result<ExitCode> {
    match command {
        JobCommand::List => out.show(client.jobs().await?.as_slice(), jobs)?,
        JobCommand::Follow { job } => {
            let job = follow(client, out, &client.job(job).await?).await?;
            out.show(&job, |job| {
                let found = match &job.result {
                    Some(JobResult::Check(result)) => vec![show::check(result)],
                    Some(JobResult::Drained(drained)) => show::drained(drained),
                    _ => Vec::new(),
                };
                [line(job)].into_iter().chain(found).collect::<Vec<_>>().join("\n")
            })?;
            // With the status of the command that began it.
            match ended(job)? {
                JobResult::Check(result) => return ask::verdict(out, &result),
                JobResult::Drained(drained) => ask::has_drained(&drained)?,
                JobResult::Moved(_) | JobResult::Disk(_) => {}
            }
        }
        JobCommand::Cancel { job } => {
            let asked = client.cancel_job(job).await?;
            out.show(&follow(client, out, &asked).await?, line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Follows a job to its end, with a bar.
pub async fn follow(client: &Client, out: Out, job: &Job) -> Result<Job> {
    let (id, mut bar) = (job.id, JobBar::new(out, job));
    tokio::select! {
        ended = client.follow(id, |job| bar.show(job)) => Ok(ended?),
        _ = tokio::signal::ctrl_c() => {
            let ends = if job.kind.is_only_followed() { String::new() } else { format!(", `kura job cancel {id}` stops it") };
            bail!("the {job} continues on the server: `kura job follow {id}` shows its progress{ends}")
        }
    }
}

/// What came of a job that has ended; an error where it did not do its work.
pub fn ended(job: Job) -> Result<JobResult> {
    match job {
        Job { state: JobState::Done, result: Some(result), .. } => Ok(result),
        Job { error: Some(error), .. } => Err(ClientError::Refused(error).into()),
        job => bail!("the {job} was cancelled after {}", done(&job)),
    }
}

/// Follows a job to its end; what came of it.
pub async fn result(client: &Client, out: Out, job: &Job) -> Result<JobResult> {
    ended(follow(client, out, job).await?)
}

fn done(job: &Job) -> String {
    match job.unit {
        JobUnit::Bytes => format!("{} of {}", Size(job.done), Size(job.total)),
        JobUnit::Volumes => format!("{} of {} volumes", job.done, job.total),
    }
}

fn state(job: &Job) -> &'static str {
    match job.state {
        JobState::Running if job.waits.is_some() => "waits",
        JobState::Running => "running",
        JobState::Done => "done",
        JobState::Failed => "failed",
        JobState::Cancelled => "cancelled",
    }
}

fn line(job: &Job) -> String {
    format!("job {}, {job}: {}, {}", job.id, state(job), done(job))
}

fn jobs(jobs: &[Job]) -> String {
    if jobs.is_empty() {
        return "no jobs: checks, and what moves data, are listed here".to_owned();
    }
    let row = |job: &Job| {
        let why = job.error.as_ref().map(|problem| problem.error.clone()).or_else(|| job.waits.clone());
        let (state, started) = (state(job).to_owned(), job.started_at.to_string());
        vec![job.id.to_string(), job.to_string(), state, done(job), started, why.unwrap_or_default()]
    };
    table(&["JOB>", "WHAT", "STATE", "DONE", "STARTED", "WHY"], jobs.iter().map(row))
}
