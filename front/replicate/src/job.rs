//! Named jobs: what is copied where, how, and how often.
//!
//! ```text
//!   DIR/NAME/job.toml   what was added; beside it what its runs keep (`Place`)
//!   DIR/.pairs/HASH/    the same for runs without a name
//!   DIR/.targets/HASH   held by the run to a target that is under way, whatever its name
//! ```

use crate::error::{Error, Result};
use crate::origin::Origin;
use crate::run::{Options, Place, Summary, is_held, last};
use crate::target::{Target, real};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use xxhash_rust::xxh3::xxh3_128;

/// How long a removal waits for the end of a run, which a server brings about within half a second.
const RUNS_END: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(100);

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What is copied; a directory is absolute.
    pub source: Origin,
    /// Where its copy is kept.
    pub target: String,
    /// How often it runs; never by itself where none is said.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub every: Option<Duration>,
    /// How old its recovery point may become.
    #[serde(default, with = "humantime_serde", skip_serializing_if = "Option::is_none")]
    pub rpo: Option<Duration>,
    /// It was failed over: it does not run until it is failed back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub failed_over: bool,
    /// It is being removed: no run begins, and a server ends its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removing: bool,
    /// How its runs are done.
    #[serde(default)]
    pub options: Options,
}

impl Job {
    /// Its target.
    pub fn target(&self) -> Result<Target> {
        self.target.parse().map_err(|cause: String| Error::target(self.target.clone(), cause))
    }
}

/// All jobs of a data directory.
pub struct Jobs {
    folder: PathBuf,
}

/// How a job fares.
#[derive(Clone, Debug)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// What was added.
    pub job: Job,
    /// The moment that the copy is of, RFC 3339; none before the first complete run.
    pub recovery_point: Option<String>,
    /// How old that is, in seconds; none where it is still to come, by a clock that was set back.
    pub age_s: Option<f64>,
    /// Whether that is older than it may become; a job of which nobody knows it is late too.
    pub is_late: bool,
    /// Its last run.
    pub last: Option<Summary>,
}

impl Standing {
    /// Whether so much time has gone by since its last run began.
    pub fn is_due(&self, now: SystemTime) -> bool {
        let rests = self.job.failed_over || self.job.removing;
        let Some(every) = self.job.every.filter(|_| !rests) else { return false };
        let last = self.last.as_ref().and_then(|last| humantime::parse_rfc3339(&last.started_at).ok());
        // A clock that was set back must not stop a schedule for as long.
        last.is_none_or(|last| now.duration_since(last).unwrap_or(every) >= every)
    }
}

/// What a run makes in a data directory before it copies anything.
pub struct Traces {
    folder: PathBuf,
    /// Not there before; the innermost first.
    made: Vec<PathBuf>,
}

impl Traces {
    /// Removes them again where they hold nothing to go on from, while the run has its locks.
    pub fn wipe(self) {
        const EMPTY: [&str; 3] = ["lock", "last.json", "failures.jsonl"];
        let Ok(entries) = std::fs::read_dir(&self.folder) else { return };
        let holds = |name: std::ffi::OsString| !EMPTY.iter().any(|empty| name == *empty);
        if !self.made.contains(&self.folder) || entries.flatten().any(|entry| holds(entry.file_name())) {
            return;
        }
        for name in EMPTY {
            let _ = std::fs::remove_file(self.folder.join(name));
        }
        for path in self.made {
            // What somebody else uses by now stays.
            let _ = if path.is_dir() { std::fs::remove_dir(&path) } else { std::fs::remove_file(&path) };
        }
    }
}

impl Jobs {
    /// The jobs under a data directory, which need not exist.
    pub fn under(data: &Path) -> Self {
        Self { folder: data.join("replicate") }
    }

    /// Where a job keeps what it knows.
    pub fn folder(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where runs of a pair without a name keep it.
    pub fn folder_of_pair(&self, source: &Origin, target: &Target) -> PathBuf {
        let source = match source {
            Origin::Tree(path) => path.canonicalize().unwrap_or_else(|_| path.clone()).display().to_string(),
            source @ (Origin::Volume(_) | Origin::Bucket(_)) => source.to_string(),
        };
        let target = match target {
            Target::Local(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()).display().to_string(),
            target => target.to_string(),
        };
        let hash = xxh3_128(format!("{source}\n{target}").as_bytes());
        self.folder.join(".pairs").join(format!("{hash:032x}"))
    }

    /// Takes one of these folders for a run to a target: for as long nobody else here has a run to the same.
    pub fn take(&self, folder: &Path, target: &Target) -> Result<Place> {
        Place::take(folder)?.with(&self.lock_of(target))
    }

    /// Whether a run of the job, or one to its target, is under way here: another one would be refused.
    pub fn is_busy(&self, name: &str) -> bool {
        let target = self.get(name).and_then(|job| job.target());
        target.is_ok_and(|target| is_held(&self.lock_of(&target))) || is_held(&self.folder(name).join("lock"))
    }

    /// What [`Jobs::take`] would make for these, to be wiped where the run is refused.
    pub fn traces(&self, folder: &Path, target: &Target) -> Traces {
        let lock = self.lock_of(target);
        let parents = [folder.parent(), lock.parent(), Some(&*self.folder)].into_iter().flatten();
        let above = self.folder.parent().into_iter().flat_map(Path::ancestors);
        let all = [folder, &*lock].into_iter().chain(parents).chain(above);
        let made = all.filter(|path| !path.as_os_str().is_empty() && !path.exists()).map(Path::to_owned).collect();
        Traces { folder: folder.to_owned(), made }
    }

    /// The file that is locked by who has a run to a target.
    fn lock_of(&self, target: &Target) -> PathBuf {
        let name = match target {
            Target::Local(path) => real(path).unwrap_or_else(|| path.clone()).display().to_string(),
            target => target.to_string().trim_end_matches('/').to_owned(),
        };
        self.folder.join(".targets").join(format!("{:032x}", xxh3_128(name.as_bytes())))
    }

    /// Adds a job.
    pub fn add(&self, name: &str, job: &Job) -> Result<()> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        if name.is_empty() || name.len() > 64 || name.starts_with('.') || !name.chars().all(fits) {
            let text = format!("{name:?} is no name of a job: up to 64 letters, digits, -, _ and ., no . in front");
            return Err(Error::Usage(text));
        }
        if self.has(name) {
            return Err(Error::Usage(format!("there is a job {name}: `kura replicate remove {name}` removes it")));
        }
        std::fs::create_dir_all(self.folder(name)).map_err(|cause| Error::state(&self.folder(name), cause))?;
        self.write(name, job)
    }

    /// Changes a job as it is by now.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Job)) -> Result<()> {
        let mut job = self.get(name)?;
        change(&mut job);
        self.write(name, &job)
    }

    /// Writes a job down.
    pub fn write(&self, name: &str, job: &Job) -> Result<()> {
        let path = self.path(name);
        let text = toml::to_string_pretty(job).map_err(|cause| Error::Usage(cause.to_string()))?;
        let written = tempfile::NamedTempFile::new_in(self.folder(name)).and_then(|mut file| {
            std::io::Write::write_all(&mut file, text.as_bytes())?;
            file.as_file().sync_all()?;
            Ok(file.persist(&path).map(drop)?)
        });
        written.map_err(|cause| Error::state(&path, cause))
    }

    /// A job.
    pub fn get(&self, name: &str) -> Result<Job> {
        let path = self.path(name);
        let text = std::fs::read_to_string(&path).map_err(|cause| match cause.kind() {
            std::io::ErrorKind::NotFound => Error::Usage(self.unknown(name)),
            _ => Error::state(&path, cause),
        })?;
        toml::from_str(&text).map_err(|cause| Error::Usage(format!("{}: {}", path.display(), cause.message())))
    }

    /// Whether there is such a job, be its file unreadable.
    pub fn has(&self, name: &str) -> bool {
        // What cannot be looked at is not gone.
        self.path(name).try_exists().unwrap_or(true)
    }

    /// Takes a job to remove it: no run begins any more, and a server ends its own, which is waited for. Refused while one goes on
    /// that was begun by hand. Cut off, it may be begun again. The job is told where its file can be read.
    pub fn begin_removal(&self, name: &str) -> Result<(Option<Job>, Place)> {
        if !self.has(name) {
            return Err(Error::Usage(self.unknown(name)));
        }
        let job = self.get(name).ok();
        if job.is_some() {
            self.change(name, |job| job.removing = true)?;
        }
        let target = job.as_ref().and_then(|job| job.target().ok());
        let until = Instant::now() + RUNS_END;
        loop {
            let place = Place::take(&self.folder(name));
            let taken = match &target {
                Some(target) => place.and_then(|place| place.with(&self.lock_of(target))),
                None => place,
            };
            match taken {
                Ok(place) => return Ok((job, place)),
                Err(_) if Instant::now() < until => std::thread::sleep(LOOK),
                Err(error) => {
                    if job.is_some() {
                        self.change(name, |job| job.removing = false)?;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Forgets a job that was taken for it; its copy stays. Its own file goes when all is gone that another job of its name would
    /// take for its own: cut off, it is to be removed again.
    pub fn remove(&self, name: &str, _taken: Place) -> Result<()> {
        let folder = self.folder(name);
        let forget = || {
            for entry in std::fs::read_dir(&folder)? {
                let (entry, own) = (entry?, ["job.toml", "lock"]);
                match entry.file_type()? {
                    kind if kind.is_dir() => std::fs::remove_dir_all(entry.path())?,
                    _ if own.iter().any(|name| entry.file_name() == *name) => {}
                    _ => std::fs::remove_file(entry.path())?,
                }
            }
            std::fs::remove_dir_all(&folder)
        };
        forget().map_err(|cause| Error::state(&folder, cause))
    }

    /// Names of all jobs, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().filter_map(std::result::Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| self.has(name)).collect();
        names.sort();
        names
    }

    /// How all jobs fare now; and, by name, why that is not known of those whose file cannot be read.
    pub fn standings(&self, now: SystemTime) -> (Vec<Standing>, BTreeMap<String, Error>) {
        let (mut known, mut unknown) = (Vec::new(), BTreeMap::new());
        for name in self.names() {
            match self.standing(&name, now) {
                Ok(standing) => known.push(standing),
                // One that was removed meanwhile is none.
                Err(error) => drop(self.has(&name).then(|| unknown.insert(name, error))),
            }
        }
        (known, unknown)
    }

    /// How a job fares now.
    pub fn standing(&self, name: &str, now: SystemTime) -> Result<Standing> {
        let job = self.get(name)?;
        let last = last(&self.folder(name));
        let recovery_point = std::fs::read_to_string(self.folder(name).join("recovery-point")).ok();
        let point = recovery_point.as_deref().and_then(|text| humantime::parse_rfc3339(text).ok());
        // Of one that is still to come nobody knows how old it is: the clock was set back.
        let age = point.and_then(|point| now.duration_since(point).ok());
        let is_late = job.rpo.is_some_and(|rpo| age.is_none_or(|age| age > rpo));
        Ok(Standing {
            name: name.to_owned(),
            job,
            recovery_point,
            age_s: age.map(|age| age.as_secs_f64()),
            is_late,
            last,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder(name).join("job.toml")
    }

    fn unknown(&self, name: &str) -> String {
        let names = self.names();
        if names.is_empty() {
            format!("no job {name}: add one with `kura replicate add {name} SOURCE TARGET`")
        } else {
            format!("no job {name}: there are {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_one_run_at_a_time_whatever_names_it() {
        let data = tempfile::tempdir().unwrap();
        let jobs = Jobs::under(data.path());
        let copy = data.path().join("copy");
        std::os::unix::fs::symlink(&copy, data.path().join("link")).unwrap();
        let target = |text: &str| text.parse::<Target>().unwrap();
        for (one, same) in [
            (Target::Local(copy.clone()), Target::Local(data.path().join("link"))),
            (target("kura://h:1/a"), target("kura://h:1/a/")),
        ] {
            let pair = jobs.folder_of_pair(&Origin::from("/a".to_owned()), &one);
            let run = jobs.take(&pair, &one).unwrap();
            // The run makes it where it was not there.
            std::fs::create_dir_all(&copy).unwrap();
            let refused = jobs.take(&jobs.folder("job"), &same).unwrap_err().to_string();
            assert!(refused.contains("another run to this target"), "{refused}");
            jobs.take(&jobs.folder("job"), &target("kura://h:1/b")).unwrap();
            drop(run);
            jobs.take(&jobs.folder("job"), &same).unwrap();
        }
    }

    #[test]
    fn jobs_are_kept_as_they_were_added() {
        let data = tempfile::tempdir().unwrap();
        let jobs = Jobs::under(data.path());
        let options = Options { nodes: vec!["local=b".parse().unwrap()], bandwidth: Some(7), ..Options::default() };
        let job = Job {
            source: Origin::from("/a".to_owned()),
            target: "kura://h:1/x".into(),
            every: Some(Duration::from_mins(5)),
            rpo: None,
            failed_over: false,
            removing: false,
            options,
        };
        for bad in ["", ".x", "a/b", "..", "a b"] {
            assert!(jobs.add(bad, &job).is_err(), "{bad:?}");
        }
        jobs.add("a", &job).unwrap();
        assert!(jobs.add("a", &job).unwrap_err().to_string().contains("remove a"));
        assert_eq!((jobs.get("a").unwrap(), jobs.names()), (job.clone(), vec!["a".to_owned()]));
        assert!(jobs.get("b").unwrap_err().to_string().contains("there are a"));
        let standing = jobs.standing("a", SystemTime::now()).unwrap();
        assert!(standing.recovery_point.is_none() && !standing.is_late);
        // By a clock that was set back it is still to come.
        let (point, late) =
            (jobs.folder("a").join("recovery-point"), Job { rpo: Some(Duration::from_mins(1)), ..job.clone() });
        std::fs::write(&point, "2100-01-01T00:00:00Z").unwrap();
        jobs.write("a", &late).unwrap();
        let standing = jobs.standing("a", SystemTime::now()).unwrap();
        assert!(standing.is_late && standing.age_s.is_none());
        jobs.write("a", &job).unwrap();
        // A run of the job, and one by another name to the same target.
        let other = jobs.folder("other");
        assert!(!jobs.is_busy("a") && !other.exists());
        for (folder, target) in [(jobs.folder("a"), "kura://h:1/y"), (other, "kura://h:1/x")] {
            let run = jobs.take(&folder, &target.parse().unwrap()).unwrap();
            assert!(jobs.is_busy("a"), "{target}");
            drop(run);
            assert!(!jobs.is_busy("a"), "{target}");
        }
        let (known, place) = jobs.begin_removal("a").unwrap();
        assert!(known.is_some() && jobs.get("a").unwrap().removing && jobs.is_busy("a"));
        jobs.remove("a", place).unwrap();
        assert!(jobs.names().is_empty() && jobs.begin_removal("a").is_err());
    }
}
