mod again;
mod back;
mod daemon;
mod links;
mod meanwhile;
mod rsync;
mod verify;

use super::*;
use crate::balance::Cost;
use crate::tree::Need;
use daemon::Daemon;
use std::fs;
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// This start of this machine.
fn boot() -> String {
    boot_of(Path::new("/proc/self"))
}

/// When nothing that a test made is new any more.
fn later() -> SystemTime {
    SystemTime::now() + Duration::from_mins(1)
}

/// Waits until what was made has been there for a while, for runs.
fn settle() {
    std::thread::sleep(Duration::from_millis(2100));
}

/// Other contents of the same length in the same file, and its time as it was.
fn rot(path: &Path, contents: &str) {
    let time = fs::metadata(path).unwrap().modified().unwrap();
    fs::write(path, contents).unwrap();
    fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// A source, its copy, and what is kept of the job.
struct Pair {
    folder: tempfile::TempDir,
    source: PathBuf,
    copy: PathBuf,
}

impl Pair {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (source, copy) = (folder.path().join("source"), folder.path().join("module/copy"));
        fs::create_dir_all(source.join("d")).unwrap();
        fs::create_dir(folder.path().join("module")).unwrap();
        fs::write(source.join("d/file"), "contents").unwrap();
        Self { folder, source, copy }
    }

    fn run(&self, target: &Target, options: &Options) -> Result<Summary> {
        let place = Place::take(&self.folder.path().join("job"))?;
        run(&self.source, target, options, &place, &Progress::default())
    }

    /// What the last run has kept of the target.
    fn known(&self) -> Option<Catalogue> {
        Place::take(&self.folder.path().join("job")).unwrap().catalogue()
    }

    /// Carries what there is to do, after somebody has meddled with what was looked at; what failed.
    fn carried(
        &self,
        target: &Target,
        options: &Options,
        known: Option<Catalogue>,
        meddle: impl FnOnce(),
    ) -> Vec<Failure> {
        let carrier = options.carrier(target);
        carrier.hold(true).unwrap();
        self.carried_by(&*carrier, options, known, meddle).unwrap()
    }

    fn carried_by(
        &self,
        carrier: &dyn Carrier,
        options: &Options,
        known: Option<Catalogue>,
        meddle: impl FnOnce(),
    ) -> Result<Vec<Failure>> {
        let (source, progress, is_known) = (Source::open(&self.source).unwrap(), Progress::default(), known.is_some());
        let known = known.unwrap_or_default();
        let by = if is_known { By::Run } else { By::Nobody };
        let known = Known { tree: &known, by, is_suspect: false, has_one_owner: false };
        let (changes, unread) = look(&source, known, None, &progress);
        let plan = Plan::of(&changes, options, carrier.cuts(), &Cost::default());
        progress.carry(plan.files(), plan.bytes(), options.all_workers());
        let carry = Carry {
            source: &source,
            changes: &changes,
            plan: &plan,
            options,
            progress: &progress,
            is_known,
            knows_attributes: !is_known,
            is_suspect: false,
            has_unread: unread.iter().any(|unread| unread.is_directory),
            was_empty: false,
            sweeps: false,
            dealer: Mutex::new(Dealer::new(plan.lists.clone())),
            learned: Mutex::new(Learned::default()),
            failures: Mutex::default(),
        };
        meddle();
        carrier.carry(&carry)?;
        Ok(std::mem::take(&mut *lock(&carry.failures)))
    }

    /// The copy as a target, where it lies or as another kura serves it, and what opens that.
    fn target(&self, is_served: bool) -> (Target, Options) {
        if !is_served {
            return (Target::Local(self.copy.clone()), Options::default());
        }
        let token = self.folder.path().join("token");
        fs::write(&token, "token").unwrap();
        let module = self.folder.path().join("module");
        let service = crate::kura::Service::listen(&module, "127.0.0.1:0", "token".to_owned(), None).unwrap();
        let target = format!("kura://{}/copy", service.address().unwrap()).parse().unwrap();
        std::thread::spawn(move || service.run());
        (target, Options { target_token_file: Some(token), ..Options::default() })
    }

    /// As a job that was added.
    fn job(&self, options: &Options) -> crate::job::Job {
        crate::job::Job {
            source: Origin::Tree(self.source.clone()),
            target: Target::Local(self.copy.clone()).to_string(),
            every: None,
            rpo: None,
            failed_over: false,
            removing: false,
            options: options.clone(),
        }
    }

    /// As a run leaves the copy that is cut off.
    fn cut_off(&self, boot: String) {
        let marker = Marker::read(&self.copy).unwrap().unwrap();
        let cut = Marker { run: Uuid::new_v4(), state: State::Unfinished, boot, ..marker };
        cut.write(&self.copy, false).unwrap();
    }
}

#[test]
fn a_source_that_is_not_mounted_empties_no_copy_that_does_not_tell_what_it_has() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    let target = daemon.target("copy");
    let usual = Options::default();
    assert!(pair.run(&target, &usual).unwrap().is_complete);
    fs::remove_dir_all(pair.source.join("d")).unwrap();
    let refused = |options: &Options| {
        let error = pair.run(&target, options).unwrap_err().to_string();
        assert!(error.contains("mounted") && pair.copy.join("d/file").exists(), "{options:?}: {error}");
    };
    refused(&usual);
    refused(&Options { recheck: true, ..Options::default() });
    pair.cut_off(boot());
    refused(&usual);
    Marker::remove(&pair.copy).unwrap();
    refused(&Options { adopt: true, ..Options::default() });
    let emptied = pair.run(&target, &Options { adopt: true, allow_empty: true, ..Options::default() });
    assert!(emptied.unwrap().is_complete && !pair.copy.join("d").exists());
}

#[test]
fn only_what_is_not_there_or_has_nothing_is_empty_behind_rsync() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    fs::create_dir_all(pair.copy.join("inner")).unwrap();
    fs::write(pair.folder.path().join("module/file"), "").unwrap();
    let is_empty = |path| Options::default().carrier(&daemon.target(path)).is_empty();
    assert!(is_empty("none").unwrap() && is_empty("copy/inner").unwrap() && !is_empty("copy").unwrap());
    assert!(is_empty("file").is_err());
}

#[test]
fn all_names_of_a_file_that_failed_are_looked_at_again() {
    let pair = Pair::new();
    fs::write(pair.source.join("a"), "contents").unwrap();
    fs::hard_link(pair.source.join("a"), pair.source.join("d/b")).unwrap();
    let source = Source::open(&pair.source).unwrap();
    let nothing = Catalogue::default();
    let known = Known { tree: &nothing, by: By::Run, is_suspect: false, has_one_owner: false };
    let (changes, _) = look(&source, known, None, &Progress::default());
    let place = Place::take(&pair.folder.path().join("job")).unwrap();
    let failures = [Failure::new("a", "the target is full")];
    let done = Done { changes: &changes, unread: &[], failures: &failures, since: later(), left: None };
    done.keep(&place, Uuid::new_v4(), &nothing).unwrap();
    let tree = place.catalogue().unwrap();
    let (again, _) = look(&source, Known { tree: &tree, ..known }, None, &Progress::default());
    let needs = again.directories.iter().map(|changed| (&*changed.directory.path, &*changed.needs));
    // `d/file` was carried.
    assert_eq!(
        needs.collect::<Vec<_>>(),
        [(&b""[..], &[Need::SHARED][..]), (&b"d"[..], &[Need::Link, Need::Nothing][..])]
    );
}

/// At the target it is a name of the other file still: what is written into it would be written into that.
#[test]
fn a_name_that_failed_to_get_contents_of_its_own_is_one_of_several_still() {
    let pair = Pair::new();
    fs::write(pair.source.join("a"), "contents").unwrap();
    fs::hard_link(pair.source.join("a"), pair.source.join("b")).unwrap();
    let source = Source::open(&pair.source).unwrap();
    let place = Place::take(&pair.folder.path().join("job")).unwrap();
    let run = |failures: &[Failure]| {
        let tree = place.catalogue().unwrap_or_default();
        let known = Known { tree: &tree, by: By::Run, is_suspect: false, has_one_owner: false };
        let (changes, _) = look(&source, known, None, &Progress::default());
        let done = Done { changes: &changes, unread: &[], failures, since: later(), left: None };
        done.keep(&place, Uuid::new_v4(), &tree).unwrap();
        let root = changes.directories.iter().find(|changed| changed.directory.path.is_empty());
        root.map(|root| root.needs.clone()).unwrap_or_default()
    };
    run(&[]);
    fs::write(pair.source.join("new"), "others").unwrap();
    fs::rename(pair.source.join("new"), pair.source.join("b")).unwrap();
    let full = [Failure::new("b", "the target is full")];
    for failures in [&full[..], &full, &[]] {
        assert_eq!(run(failures).get(1), Some(&Need::SHARED), "{failures:?}");
    }
    assert_ne!(run(&[]).get(1), Some(&Need::SHARED), "it is a file of its own now");
}

#[test]
fn only_what_has_the_very_name_of_what_is_not_whole_is_ours() {
    let pair = Pair::new();
    let ours = ".~kura~0123456789abcdef";
    let theirs = [".~kura~", ".~kura~notes", ".~kura~0123456789ABCDEF", ".~kura~marker-", "d/.~kura~marker-abc123"];
    for name in theirs.iter().copied().chain([ours, "d/.kura-replica"]) {
        fs::write(pair.source.join(name), name).unwrap();
    }
    for name in [".~kura~folder", ".~kura~00000000000000ff"] {
        fs::create_dir(pair.source.join(name)).unwrap();
        fs::write(pair.source.join(name).join("file"), name).unwrap();
    }
    let summary = pair.run(&Target::Local(pair.copy.clone()), &Options::default()).unwrap();
    let told = &summary.failures[..];
    assert!(matches!(told, [one] if one.path == ours.as_bytes() && one.cause.contains("rename")), "{told:?}");
    let all = [".~kura~folder/file", ".~kura~00000000000000ff/file", "d/.kura-replica"];
    let has_all = |copy: &Path| theirs.iter().chain(&all).all(|name| copy.join(name).exists());
    assert!(has_all(&pair.copy) && !pair.copy.join(ours).exists());
    let verified = verify(&pair.source, &Target::Local(pair.copy.clone()), &Options::default()).unwrap();
    assert!(matches!(&verified.differing[..], [one] if one.path == ours.as_bytes()), "{verified:?}");
    // What a run has left that was cut off goes, and nothing else does.
    fs::rename(pair.source.join(ours), pair.copy.join(ours)).unwrap();
    pair.cut_off(boot());
    assert!(pair.run(&Target::Local(pair.copy.clone()), &Options::default()).unwrap().is_complete);
    assert!(has_all(&pair.copy) && !pair.copy.join(ours).exists());
}

#[test]
fn a_copy_in_a_copy_is_refused_and_one_that_is_there_stays() {
    let rsync = Options { with: Some(With::Rsync), ..Options::default() };
    for (options, has_daemon) in [(Options::default(), false), (rsync.clone(), false), (rsync, true)] {
        let pair = Pair::new();
        let daemon = has_daemon.then(|| Daemon::of(&pair));
        let target = |path: &str| match &daemon {
            Some(daemon) => daemon.target(path),
            None => Target::Local(pair.folder.path().join("module").join(path)),
        };
        assert!(pair.run(&target("copy"), &options).unwrap().is_complete);
        for inner in ["copy/in", "copy/d/in/deeper"] {
            let error = pair.run(&target(inner), &options).unwrap_err().to_string();
            assert!(error.contains("copy, a copy itself") && error.contains("choose another"), "{error}");
            assert!(!pair.copy.join("in").exists(), "{inner}");
        }
        // One that was made before copies were told from one another, and what else the source does not have.
        for path in ["old/in*", "old/stale"] {
            fs::create_dir_all(pair.copy.join(path)).unwrap();
            fs::write(pair.copy.join(path).join("work"), "precious").unwrap();
        }
        fs::write(pair.copy.join("old/in*/.kura-replica"), "{}").unwrap();
        for _ in 0..2 {
            let told = pair.run(&target("copy"), &Options { recheck: true, ..options.clone() }).unwrap();
            assert!(!told.is_complete && told.failures.len() == 1, "{options:?}: {:?}", told.failures);
            assert!(told.failures[0].cause.contains(crate::error::COPY), "{:?}", told.failures);
            assert!(pair.copy.join("old/in*/work").exists() && !pair.copy.join("old/stale").exists());
        }
        fs::remove_dir_all(pair.copy.join("old/in*")).unwrap();
        assert!(pair.run(&target("copy"), &options).unwrap().is_complete);
        assert!(!pair.copy.join("old").exists());
        // What the source itself has of the kind is part of it.
        fs::create_dir(pair.source.join("copies")).unwrap();
        fs::write(pair.source.join("copies/.kura-replica"), "{}").unwrap();
        let again = pair.run(&target("copy"), &Options { recheck: true, ..options.clone() }).unwrap();
        assert!(again.is_complete && pair.copy.join("copies/.kura-replica").exists(), "{:?}", again.failures);
    }
}

#[test]
fn a_target_has_one_run_at_a_time_wherever_it_comes_from() {
    for with in [With::Kura, With::Rsync] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options { with: Some(with), ..Options::default() };
        assert!(pair.run(&target, &options).unwrap().is_complete);
        let held = crate::marker::hold(&pair.copy, true).unwrap();
        let refused = pair.run(&target, &options).unwrap_err().to_string();
        assert!(refused.contains("another run carries to it"), "{refused}");
        drop(held);
        assert!(pair.run(&target, &options).unwrap().is_complete);
    }
}

#[test]
fn a_copy_is_suspect_until_a_run_has_gone_over_all_of_it() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    let marker = || Marker::read(&pair.copy).unwrap().unwrap();
    let slowly = Options { bandwidth: Some(100_000), ..Options::default() };
    // A run that was over before it was looked at says nothing.
    let is_seen = (0..20).any(|round| {
        pair.cut_off("another start".to_owned());
        let cut = marker().run;
        for index in 0..4 {
            let directory = pair.source.join(format!("{round}-{index}"));
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join("file"), vec![7; 50_000]).unwrap();
        }
        std::thread::scope(|scope| {
            let run = scope.spawn(|| pair.run(&target, &slowly));
            while marker().run == cut && !run.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
            }
            let now = marker();
            let is_under_way = now.run != cut && now.state == State::Unfinished;
            assert!(!is_under_way || now.is_suspect(&boot()) && now.boot == "another start", "{now:?}");
            assert!(run.join().unwrap().unwrap().is_complete);
            is_under_way
        })
    });
    assert!(is_seen);
    assert_eq!((marker().state, marker().boot), (State::Complete, boot()));
}

#[test]
fn what_a_run_that_was_cut_off_has_left_behind_rsync_is_always_suspect() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    let target = daemon.target("copy");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    // The source's machine did not start anew; of the target's nobody knows.
    pair.cut_off(boot());
    let lost = pair.copy.join("d/file");
    rot(&lost, "\0\0\0\0\0\0\0\0");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    assert_eq!(fs::read_to_string(&lost).unwrap(), "contents");
    let marker = Marker::read(&pair.copy).unwrap().unwrap();
    assert_eq!((marker.state, &*marker.boot), (State::Complete, ""));
}

#[test]
fn only_what_is_named_as_gone_is_deleted_behind_rsync() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    let options = Options { with: Some(With::Rsync), ..Options::default() };
    fs::write(pair.source.join("old"), "").unwrap();
    assert!(pair.run(&target, &options).unwrap().is_complete);
    fs::remove_file(pair.source.join("old")).unwrap();
    fs::write(pair.source.join("d/new"), "new").unwrap();
    fs::write(pair.source.join("top"), "top").unwrap();
    // Somebody puts another directory in its place just then.
    let failures = pair.carried(&target, &options, pair.known(), || {
        fs::rename(pair.source.join("d"), pair.source.join("d.old")).unwrap();
    });
    assert!(pair.copy.join("d/file").exists() && !pair.copy.join("old").exists());
    assert_eq!(fs::read(pair.copy.join("top")).unwrap(), b"top");
    assert!(failures.iter().any(|failure| failure.path.starts_with(b"d")), "{failures:?}");
}

#[test]
fn what_only_contents_tell_is_carried() {
    for with in [With::Kura, With::Rsync] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options { with: Some(with), ..Options::default() };
        let modified = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let write = |name: &str, text: &str| {
            fs::write(pair.source.join(name), text).unwrap();
            fs::File::options().write(true).open(pair.source.join(name)).unwrap().set_modified(modified).unwrap();
        };
        let carried = |text: &str| {
            assert!(pair.run(&target, &options).unwrap().is_complete);
            assert_eq!(fs::read_to_string(pair.copy.join("a")).unwrap(), text, "{with:?}");
        };
        write("a", "aaaa");
        carried("aaaa");
        // Another file of the same size and time.
        write("b", "bbbb");
        fs::rename(pair.source.join("b"), pair.source.join("a")).unwrap();
        carried("bbbb");
        // The same one, written to, and its time put back.
        write("a", "cccc");
        carried("cccc");
    }
}

#[test]
fn failback_from_a_copy_that_was_not_whole_deletes_nothing() {
    for is_whole in [true, false] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options::default();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        if !is_whole {
            fs::write(pair.source.join("only"), "nowhere else").unwrap();
            pair.cut_off(boot());
        }
        let job = pair.job(&options);
        failover(&job, &options, true).unwrap();
        fs::write(pair.copy.join("work"), "work").unwrap();
        fs::remove_file(pair.copy.join("d/file")).unwrap();
        let back = Place::take(&pair.folder.path().join("back")).unwrap();
        assert!(failback(&job, &options, false, &back, &Progress::default()).unwrap().is_complete);
        assert_eq!(fs::read(pair.source.join("work")).unwrap(), b"work");
        assert_eq!(pair.source.join("d/file").exists(), !is_whole);
        assert_eq!(pair.source.join("only").exists(), !is_whole);
        let state = Marker::read(&pair.copy).unwrap().unwrap().state;
        assert_eq!(state, if is_whole { State::Complete } else { State::Unfinished });
        // As if it had been cut off before the job was told of it, which holds its runs back until it is.
        let done = |failed_over, dry_run| {
            let (job, options) =
                (crate::job::Job { failed_over, ..job.clone() }, Options { dry_run, ..options.clone() });
            failback(&job, &options, false, &back, &Progress::default()).map(|summary| summary.is_complete)
        };
        assert!(done(true, false).unwrap() && !done(true, true).unwrap());
        assert!(done(false, false).unwrap_err().to_string().contains("not failed over"));
        assert!(pair.run(&target, &options).unwrap().is_complete);
        assert_eq!(pair.copy.join("only").exists(), !is_whole);
    }
}

#[test]
fn a_copy_that_is_no_longer_there_is_not_made_anew_unasked() {
    for (with, is_served) in [(Some(With::Kura), false), (Some(With::Rsync), false), (None, true)] {
        let pair = Pair::new();
        let (target, options) = pair.target(is_served);
        let options = Options { with, ..options };
        assert!(pair.run(&target, &options).unwrap().is_complete);
        fs::remove_dir_all(&pair.copy).unwrap();
        let refused = pair.run(&target, &options).unwrap_err().to_string();
        // Nor is there a directory then, into which something else could be written.
        assert!(refused.contains("is it mounted") && !pair.copy.exists(), "{target}: {refused}");
        assert!(pair.run(&target, &Options { adopt: true, ..options }).unwrap().is_complete);
        assert!(pair.copy.join("d/file").exists());
    }
}

#[test]
fn failback_from_a_copy_that_was_not_whole_replaces_only_by_work() {
    let pair = Pair::new();
    let (target, options) = (Target::Local(pair.copy.clone()), Options::default());
    let here = |name: &str| pair.source.join(name);
    for name in ["log", "both", "turns"] {
        fs::write(here(name), "old").unwrap();
    }
    fs::create_dir(here("flat")).unwrap();
    fs::write(here("flat/inner"), "old").unwrap();
    assert!(pair.run(&target, &options).unwrap().is_complete);
    fs::write(here("log"), "newer").unwrap();
    fs::remove_file(here("turns")).unwrap();
    fs::create_dir(here("turns")).unwrap();
    fs::write(here("turns/inner"), "newer").unwrap();
    fs::remove_dir_all(here("flat")).unwrap();
    fs::write(here("flat"), "newer").unwrap();
    pair.cut_off(boot());
    let job = pair.job(&options);
    failover(&job, &options, true).unwrap();
    fs::write(pair.copy.join("both"), "work").unwrap();
    fs::write(pair.copy.join("new"), "work").unwrap();
    // Work in a directory is not worth what the source has in its place.
    fs::write(pair.copy.join("flat/work"), "work").unwrap();
    // What is done to all of it later is no work that a newer version gives way to, nor does it make work look old.
    settle();
    assert!(Command::new("chown").args(["-R", "1"]).arg(&pair.copy).status().unwrap().success());
    let back = Place::take(&pair.folder.path().join("back")).unwrap();
    let failback = |anyway| failback(&job, &options, anyway, &back, &Progress::default()).unwrap();
    let refused = failback(false);
    assert!(!refused.is_complete && pair.run(&target, &options).unwrap_err().to_string().contains("failed over"));
    let summary = failback(true);
    let told: Vec<_> = summary.failures.iter().map(|failure| (&*failure.path, &*failure.cause)).collect();
    assert_eq!(told, [(&b"flat"[..], STAYS), (b"log", STAYS), (b"turns", STAYS)]);
    let is = |name: &str| fs::read_to_string(here(name)).unwrap();
    assert_eq!(refused.failures, summary.failures);
    assert!(summary.is_complete && is("both") == "work" && is("new") == "work");
    assert_eq!(["log", "turns/inner", "flat"].map(is), ["newer"; 3]);
    drop(back);
    assert!(pair.run(&target, &options).unwrap().is_complete);
    assert_eq!(fs::read_to_string(pair.copy.join("turns/inner")).unwrap(), "newer");
}

#[test]
fn work_of_an_older_time_is_told_and_brought_back_when_it_is_touched() {
    let pair = Pair::new();
    let (target, options) = (Target::Local(pair.copy.clone()), Options::default());
    assert!(pair.run(&target, &options).unwrap().is_complete);
    pair.cut_off(boot());
    let job = pair.job(&options);
    failover(&job, &options, true).unwrap();
    // As `tar x` and `cp -p` leave it.
    let work = pair.copy.join("d/file");
    fs::write(&work, "of an archive").unwrap();
    let is_of = |time| fs::File::options().write(true).open(&work).unwrap().set_modified(time).unwrap();
    is_of(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    let back = Place::take(&pair.folder.path().join("back")).unwrap();
    let failback = |anyway, options: &Options| failback(&job, options, anyway, &back, &Progress::default()).unwrap();
    let planned = failback(true, &Options { dry_run: true, ..options.clone() });
    assert!(!planned.is_complete && planned.has_only_what_stays());
    for told in [planned, failback(false, &options)] {
        assert!(
            matches!(&told.failures[..], [one] if one.path == b"d/file" && one.cause.contains("touch")),
            "{told:?}"
        );
        assert_eq!((told.failed, told.causes.len()), (1, 1));
    }
    is_of(SystemTime::now());
    assert!(failback(false, &options).is_complete);
    assert_eq!(fs::read_to_string(pair.source.join("d/file")).unwrap(), "of an archive");
}

#[test]
fn a_directory_that_is_named_as_the_marker_is_told() {
    let pair = Pair::new();
    fs::create_dir(pair.source.join(".kura-replica")).unwrap();
    fs::write(pair.source.join(".kura-replica/file"), "").unwrap();
    let told = pair.run(&Target::Local(pair.copy.clone()), &Options::default()).unwrap().failures;
    assert!(matches!(&told[..], [one] if one.path == b".kura-replica" && one.cause.contains("rename")), "{told:?}");
    assert!(pair.copy.join("d/file").exists());
}

#[test]
fn a_source_that_is_unmounted_meanwhile_empties_no_copy() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    let target = daemon.target("copy");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    fs::write(pair.copy.join("stranger"), "").unwrap();
    let failures = pair.carried(&target, &Options::default(), None, || {
        fs::rename(&pair.source, pair.folder.path().join("elsewhere")).unwrap();
        fs::create_dir(&pair.source).unwrap();
    });
    assert!(failures.iter().any(|failure| failure.cause.contains("not deleted")), "{failures:?}");
    assert!(pair.copy.join("d/file").exists());
}

#[test]
fn a_target_that_is_served_from_within_the_source_is_refused() {
    let pair = Pair::new();
    let token = pair.folder.path().join("token");
    fs::write(&token, "token").unwrap();
    let options = Options { target_token_file: Some(token), ..Options::default() };
    for (served, name, is_refused) in [("source/d", "copy", true), ("source", "d", true), ("module", "copy", false)] {
        let root = pair.folder.path().join(served);
        let service = crate::kura::Service::listen(&root, "127.0.0.1:0", "token".to_owned(), None).unwrap();
        let target = format!("kura://{}/{name}", service.address().unwrap()).parse().unwrap();
        std::thread::spawn(move || service.run());
        let done = pair.run(&target, &options);
        if is_refused {
            let refused = done.unwrap_err().to_string();
            assert!(refused.contains("one in the other"), "{refused}");
        } else {
            assert!(done.unwrap().is_complete);
        }
    }
}

#[test]
fn work_is_brought_back_to_no_tree_of_which_something_is_unknown() {
    let unread = [Failure::new(b"d".to_vec(), "target: Permission denied".to_owned())];
    let since = Some(Time::default());
    let refused = refuse_unknown(since, By::Target, &unread).unwrap_err().to_string();
    assert!(refused.contains("d: target: Permission denied"), "{refused}");
    assert!(refuse_unknown(since, By::Target, &[]).is_ok() && refuse_unknown(since, By::Nobody, &[]).is_err());
    assert!(refuse_unknown(None, By::Target, &unread).is_ok() && refuse_unknown(None, By::Nobody, &[]).is_ok());
}
