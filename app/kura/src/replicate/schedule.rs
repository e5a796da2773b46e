//! Jobs by their schedule, in a server: those of its data directory, of trees, volumes and buckets.
//!
//! A run is a process of its own, with whatever it starts: whatever goes wrong in it harms no volume, and all of it ends when
//! the server does, which holds the other end of its standard input, also where that is killed.

use super::told::wire;
use crate::serve::data::DataDir;
use kura_admin::ReplicationJob;
use kura_replicate::{Error, Jobs, Origin, Standing};
use rustix::process::{Pid, Signal, kill_current_process_group, kill_process_group};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::watch;
use tokio::time::interval;

/// How often schedules are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long a job that left nothing to tell is let alone, if its schedule does not say less.
pub const AGAIN: Duration = Duration::from_mins(1);
/// Copies of buckets under way at once: each reads a snapshot of the object store, of which S3 has few open, and clients some of them.
const BUCKETS: usize = 3;
/// This program, even where its file was replaced by another version.
const SELF: &str = "/proc/self/exe";

/// A run under way.
struct Run {
    child: Child,
    /// When the last one began that left something, as that says it.
    before: Option<String>,
}

impl Run {
    /// Asks the system to end it with all that it has started.
    fn kill(&self) {
        // One that has ended by itself needs no end.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
    }

    /// Ends it.
    fn end(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// A run that left nothing to tell.
#[derive(Clone)]
struct Lost {
    /// When the last one began that left something.
    before: Option<String>,
    cause: String,
}

/// The jobs of a data directory.
#[derive(Clone)]
pub struct ReplicationJobs {
    data: PathBuf,
    /// Names of those that run, by this server.
    running: Arc<Mutex<BTreeSet<String>>>,
    /// Jobs of whose runs none has left anything since this one.
    lost: Arc<Mutex<BTreeMap<String, Lost>>>,
}

impl ReplicationJobs {
    /// Those of the data directory.
    pub fn of(data: &DataDir) -> Self {
        Self { data: data.path().to_owned(), running: Arc::default(), lost: Arc::default() }
    }

    fn running(&self) -> MutexGuard<'_, BTreeSet<String>> {
        // A set is whole even if its holder panicked.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> MutexGuard<'_, BTreeMap<String, Lost>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Warns of a run that left nothing, which is told until another one leaves something.
    fn lose(&self, standing: &Standing, cause: String, told: &mut BTreeMap<String, String>) {
        let lost = Lost { before: begun(standing), cause: cause.clone() };
        self.lost().insert(standing.name.clone(), lost);
        warn(&standing.name, None, cause, told);
    }

    /// How all fare, and why that is not known of others, by name. Reads files.
    fn standings(&self) -> (Vec<Standing>, BTreeMap<String, Error>) {
        Jobs::under(&self.data).standings(SystemTime::now())
    }

    /// The same, and whose time has come: none of those that this server runs, and none whose run would be refused, as another one
    /// is under way or it was failed over.
    fn look(&self, own: &BTreeSet<String>) -> (Vec<Standing>, BTreeMap<String, Error>, BTreeSet<String>) {
        let ((standings, unknown), jobs, now) = (self.standings(), Jobs::under(&self.data), SystemTime::now());
        let is_due = |standing: &&Standing| {
            standing.is_due(now) && !own.contains(&standing.name) && !jobs.is_busy(&standing.name)
        };
        let due = standings.iter().filter(is_due).map(|standing| standing.name.clone()).collect();
        (standings, unknown, due)
    }

    /// Keeps of the lost runs those since which none has left anything; of a job that was failed over there is none to come.
    fn find_lost(&self, standings: &[Standing]) {
        let is_of = |standing: &Standing, name: &str, lost: &Lost| {
            standing.name == name && begun(standing) == lost.before && !standing.job.failed_over
        };
        self.lost().retain(|name, lost| standings.iter().any(|standing| is_of(standing, name, lost)));
    }

    /// Runs each job whenever its time has come, until the server stops: a run that is cut off goes on at its next.
    pub async fn carry_out(self, mut stopping: watch::Receiver<bool>) {
        let mut ticks = interval(LOOK);
        let mut runs: BTreeMap<String, Run> = BTreeMap::new();
        let mut told: BTreeMap<String, String> = BTreeMap::new();
        let mut resting: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            tokio::select! {
                _ = stopping.changed() => break,
                _ = ticks.tick() => {}
            }
            let mut ended = Vec::new();
            runs.retain(|name, run| {
                let how = match run.child.try_wait() {
                    Ok(None) => return true,
                    Ok(Some(status)) => status.to_string(),
                    // It is nobody's child any more.
                    Err(error) => error.to_string(),
                };
                ended.push((name.clone(), run.before.take(), how));
                false
            });
            let (all, own) = (self.clone(), runs.keys().cloned().collect());
            // Looking reads files.
            let look = tokio::task::spawn_blocking(move || all.look(&own)).await;
            let Ok((standings, unknown, due)) = look else { continue };
            self.find_lost(&standings);
            for (name, error) in &unknown {
                warn(name, None, error.to_string(), &mut told);
            }
            // Nobody waits for the run of a job that is gone, or goes.
            let jobs = Jobs::under(&self.data);
            let goes = |name: &String| match standings.iter().find(|standing| standing.name == *name) {
                Some(standing) => standing.job.removing,
                None => !jobs.has(name),
            };
            // How long its end takes is the device's affair that it waits for.
            runs.iter().filter(|(name, _)| goes(name)).for_each(|(_, run)| run.kill());
            for (name, before, how) in ended {
                let Some(standing) = standings.iter().find(|standing| standing.name == name) else { continue };
                if begun(standing) != before {
                    tell(standing, &mut told);
                } else if due.contains(&name) {
                    resting.insert(name.clone(), Instant::now() + rest(standing));
                    let cause =
                        format!("its run ended with {how} and left nothing: `kura replicate run {name}` says why");
                    self.lose(standing, cause, &mut told);
                }
            }
            resting.retain(|_, until| *until > Instant::now());
            let under_way = |standing: &&Standing| is_of_bucket(standing) && runs.contains_key(&standing.name);
            let places = BUCKETS.saturating_sub(standings.iter().filter(under_way).count());
            let wait = |name: &String| due.contains(name) && !resting.contains_key(name);
            for standing in next(standings.iter().filter(|standing| wait(&standing.name)).collect(), places) {
                let name = &standing.name;
                match self.begin(name) {
                    Ok(child) => drop(runs.insert(name.clone(), Run { child, before: begun(standing) })),
                    Err(error) => {
                        resting.insert(name.clone(), Instant::now() + rest(standing));
                        self.lose(standing, format!("it could not be begun: {error}"), &mut told);
                    }
                }
            }
            *self.running() = runs.keys().cloned().collect();
        }
        runs.values_mut().for_each(Run::end);
    }

    fn begin(&self, name: &str) -> std::io::Result<Child> {
        let mut run = Command::new(SELF);
        run.args(["replicate", "run", name, "--quiet", "--until-eof", "--data"]).arg(&self.data);
        run.arg("--server").arg(self.data.join("admin.sock"));
        // What it has to say stands in what it leaves.
        run.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn()
    }

    /// As the wire has them.
    pub fn told(&self) -> Vec<ReplicationJob> {
        let (running, mut lost) = (self.running().clone(), self.lost().clone());
        let told = |standing: Standing| {
            let job = ReplicationJob { is_running: running.contains(&standing.name), ..wire(&standing) };
            match lost.remove(&standing.name) {
                Some(Lost { cause, .. }) => ReplicationJob { is_complete: Some(false), error: Some(cause), ..job },
                None => job,
            }
        };
        let (known, unknown) = self.standings();
        known.into_iter().map(told).chain(unknown.into_iter().map(untold)).collect()
    }
}

/// A job whose file cannot be read, as the wire has it.
fn untold((name, error): (String, Error)) -> ReplicationJob {
    let nobody_knows = || "?".to_owned();
    ReplicationJob {
        name,
        source: nobody_knows(),
        target: nobody_knows(),
        every_s: None,
        rpo_s: None,
        recovery_point: None,
        recovery_point_age_s: None,
        is_late: false,
        is_running: false,
        is_complete: Some(false),
        is_failed_over: false,
        error: Some(error.to_string()),
    }
}

/// Has this process end, with all that it starts, when nobody has the other end of its standard input any more.
pub fn end_at_eof() {
    std::thread::spawn(|| {
        // What is read is nothing, and a broken pipe is an end as well.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = kill_current_process_group(Signal::KILL);
    });
}

fn is_of_bucket(standing: &Standing) -> bool {
    matches!(standing.job.source, Origin::Bucket(_))
}

/// Which of those whose time has come begin: who waited longest goes first, and so many copies of buckets do.
fn next(mut waiting: Vec<&Standing>, mut places: usize) -> Vec<&Standing> {
    waiting.sort_by_key(|standing| begun(standing));
    waiting.retain(|standing| {
        let has_place = !is_of_bucket(standing) || places > 0;
        places -= usize::from(has_place && is_of_bucket(standing));
        has_place
    });
    waiting
}

/// How long a job is let alone after a run that left nothing.
pub fn rest(standing: &Standing) -> Duration {
    standing.job.every.map_or(AGAIN, |every| every.min(AGAIN))
}

/// When the last run began that left something, as that says it.
pub fn begun(standing: &Standing) -> Option<String> {
    standing.last.as_ref().map(|last| last.started_at.clone())
}

/// Tells how a run ended.
fn tell(standing: &Standing, told: &mut BTreeMap<String, String>) {
    let Some(last) = &standing.last else { return };
    let Some(cause) = last.causes.keys().next() else {
        told.remove(&standing.name);
        tracing::info!(job = standing.name, seconds = last.seconds, sent_bytes = last.sent_bytes, "copied");
        return;
    };
    warn(&standing.name, Some(last.failed), cause.clone(), told);
}

/// Warns of a run; what was told of the one before is not told again.
fn warn(name: &str, failed: Option<u64>, cause: String, told: &mut BTreeMap<String, String>) {
    if told.get(name) != Some(&cause) {
        tracing::warn!(job = name, failed, cause, "not copied");
        told.insert(name.to_owned(), cause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_replicate::{Job, Options, Summary};

    #[test]
    fn a_job_is_neither_due_nor_failing_while_its_runs_would_be_refused() {
        let data = tempfile::tempdir().unwrap();
        let all = ReplicationJobs { data: data.path().to_owned(), running: Arc::default(), lost: Arc::default() };
        let jobs = Jobs::under(data.path());
        let source = Origin::from("/a".to_owned());
        let target = "/b".to_owned();
        let every = Some(Duration::from_secs(1));
        let job =
            Job { source, target, every, rpo: None, failed_over: false, removing: false, options: Options::default() };
        jobs.add("job", &job).unwrap();
        let is_due = |own: &[&str]| !all.look(&own.iter().map(|&name| name.to_owned()).collect()).2.is_empty();
        assert!(is_due(&[]) && !is_due(&["job"]));
        let by_hand = jobs.take(&jobs.folder("job"), &job.target().unwrap()).unwrap();
        assert!(!is_due(&[]));
        drop(by_hand);
        assert!(is_due(&[]));

        let is_complete = || all.told()[0].is_complete;
        all.lose(&all.standings().0[0], "why".into(), &mut BTreeMap::new());
        all.find_lost(&all.standings().0);
        assert_eq!(is_complete(), Some(false));
        jobs.write("job", &Job { failed_over: true, ..job }).unwrap();
        all.find_lost(&all.standings().0);
        assert_eq!(is_complete(), None);
    }

    #[test]
    fn who_waited_longest_begins_and_few_copies_of_buckets_are_under_way() {
        let target = "http://host/copy".to_owned();
        let standing = |name: &str, source: &str, began_s: Option<u64>| {
            let source = Origin::from(source.to_owned());
            let at = |began_s| SystemTime::UNIX_EPOCH + Duration::from_secs(began_s);
            let last = began_s.map(|began_s| Summary::begun(&source, &target.parse().unwrap(), at(began_s)));
            let (target, options) = (target.clone(), Options::default());
            let job = Job { source, target, every: None, rpo: None, failed_over: false, removing: false, options };
            Standing { name: name.to_owned(), job, recovery_point: None, age_s: None, is_late: false, last }
        };
        let all = [
            standing("a", "bucket:a", Some(9)),
            standing("b", "bucket:b", Some(7)),
            standing("c", "bucket:c@monday", Some(8)),
            standing("d", "bucket:d", None),
            standing("tree", "/tree", Some(10)),
        ];
        let begin = |places| -> Vec<&str> {
            next(all.iter().collect(), places).iter().map(|standing| standing.name.as_str()).collect()
        };
        assert_eq!(begin(BUCKETS), ["d", "b", "c", "tree"]);
        assert_eq!(begin(1), ["d", "tree"]);
        assert_eq!(begin(0), ["tree"]);
    }
}
