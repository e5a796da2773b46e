//! Work with a copy comes back from another machine.

use super::*;

/// A copy that was failed over to, which another kura serves; not whole, where that is said.
fn failed_over(is_whole: bool) -> (Pair, crate::job::Job) {
    let pair = Pair::new();
    let (target, options) = pair.target(true);
    fs::write(pair.source.join("log"), "old").unwrap();
    assert!(pair.run(&target, &options).unwrap().is_complete);
    if !is_whole {
        fs::write(pair.source.join("log"), "newer").unwrap();
        fs::write(pair.source.join("only"), "nowhere else").unwrap();
        pair.cut_off(boot());
        // What it was cut off in.
        fs::write(pair.copy.join(".~kura~0123456789abcdef"), "not whole").unwrap();
    }
    let job = crate::job::Job { target: target.to_string(), ..pair.job(&options) };
    failover(&job, &options, !is_whole).unwrap();
    fs::write(pair.copy.join("work"), "work").unwrap();
    (pair, job)
}

impl Pair {
    /// A run where the copy is.
    fn brought_back(&self, target: &Target) -> Result<Summary> {
        let place = Place::take(&self.folder.path().join("there")).unwrap();
        let options = Options { adopt: true, ..Options::default() };
        run(&self.copy, target, &options, &place, &Progress::default())
    }

    fn failed_back(&self, job: &crate::job::Job, anyway: bool) -> Result<Summary> {
        let back = Place::take(&self.folder.path().join("back")).unwrap();
        failback(job, &job.options, anyway, &back, &Progress::default())
    }
}

#[test]
fn a_copy_elsewhere_follows_again_when_its_work_is_back() {
    let (pair, job) = failed_over(true);
    let refused = || pair.failed_back(&job, true).unwrap_err().to_string();
    assert!(refused().contains("kura replicate run COPY SOURCE"), "{}", refused());
    // Nor is it back where the source is the copy of something else.
    let marker = Marker::read(&pair.copy).unwrap().unwrap();
    let other = Marker { source: "another:/tree".to_owned(), state: State::Complete, released: None, ..marker };
    other.write(&pair.source, false).unwrap();
    assert!(refused().contains("kura replicate run COPY SOURCE"), "{}", refused());
    assert!(pair.brought_back(&Target::Local(pair.source.clone())).unwrap().is_complete);
    assert!(pair.failed_back(&job, false).unwrap().is_complete);
    assert!(Marker::read(&pair.source).unwrap().is_none());
    fs::write(pair.source.join("later"), "").unwrap();
    assert!(pair.run(&job.target().unwrap(), &job.options).unwrap().is_complete);
    assert!(["work", "later"].iter().all(|name| pair.copy.join(name).exists()));
}

#[test]
fn a_run_from_a_copy_that_was_not_whole_deletes_nothing() {
    let (pair, job) = failed_over(false);
    let daemon = Daemon::of(&pair);
    let refused = pair.brought_back(&daemon.target("other")).unwrap_err().to_string();
    assert!(refused.contains("may be newer"), "{refused}");
    let told = pair.brought_back(&Target::Local(pair.source.clone())).unwrap().failures;
    assert!(matches!(&told[..], [one] if one.path == b"log" && one.cause == STAYS), "{told:?}");
    assert!(pair.source.join("only").exists() && pair.source.join("work").exists());
    assert!(pair.failed_back(&job, false).is_err());
    assert!(pair.failed_back(&job, true).unwrap().is_complete);
    assert!(pair.run(&job.target().unwrap(), &job.options).unwrap().is_complete);
    assert!(pair.copy.join("only").exists());
    assert_eq!(fs::read_to_string(pair.copy.join("log")).unwrap(), "newer");
}
