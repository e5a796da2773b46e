//! What the next run looks at again, though its times are those that the last one saw.

use super::*;

#[test]
fn what_was_changed_just_before_a_run_is_compared_by_the_next_one() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    // As if it had been written to again in the same instant after it was read: its times are those that the run saw.
    rot(&pair.copy.join("d/file"), "CONTENTS");
    settle();
    let second = pair.run(&target, &Options::default()).unwrap();
    assert_eq!((second.files, fs::read_to_string(pair.copy.join("d/file")).unwrap()), (1, "contents".to_owned()));
    // From now on it is trusted, for it is older.
    assert_eq!(pair.run(&target, &Options::default()).unwrap().files, 0);
}

/// A target that tells nothing compares what it is given by size and time.
#[test]
fn what_was_changed_just_before_a_run_is_compared_behind_rsync_too() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    let target = daemon.target("copy");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    rot(&pair.copy.join("d/file"), "CONTENTS");
    let recheck = Options { recheck: true, ..Options::default() };
    assert!(pair.run(&target, &recheck).unwrap().is_complete);
    assert_eq!(fs::read_to_string(pair.copy.join("d/file")).unwrap(), "contents");
}

#[test]
fn a_name_that_a_file_gets_under_the_scan_is_a_link_in_the_next_run() {
    let pair = Pair::new();
    fs::write(pair.source.join("a"), "contents").unwrap();
    let source = Source::open(&pair.source).unwrap();
    let nothing = Catalogue::default();
    let known = Known { tree: &nothing, by: By::Run, is_suspect: false, has_one_owner: false };
    let (visited, _) = scan(source.root.as_fd(), Scan { threads: 1, attributes: false, opens: false }, |directory| {
        if directory.path.is_empty() {
            fs::hard_link(pair.source.join("a"), pair.source.join("d/b")).unwrap();
        }
        Some(known.visit(directory))
    });
    let changes = known.changes(visited, &[]);
    assert!(changes.links.is_empty());
    let place = Place::take(&pair.folder.path().join("job")).unwrap();
    let done = Done { changes: &changes, unread: &[], failures: &[], since: SystemTime::now(), left: None };
    done.keep(&place, Uuid::new_v4(), &nothing).unwrap();
    let tree = place.catalogue().unwrap();
    let (again, _) = look(&source, Known { tree: &tree, ..known }, None, &Progress::default());
    assert_eq!(again.links.len(), 1, "{again:?}");
}

#[test]
fn a_link_to_what_was_not_carried_is_not_made() {
    for with in [With::Kura, With::Rsync] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options { with: Some(with), ..Options::default() };
        fs::write(pair.source.join("a"), "of another file").unwrap();
        fs::write(pair.source.join("b"), "of b").unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        fs::remove_file(pair.source.join("a")).unwrap();
        fs::hard_link(pair.source.join("b"), pair.source.join("a")).unwrap();
        let failures = pair.carried(&target, &options, pair.known(), || {
            fs::write(pair.source.join("b"), "of b, and more of it").unwrap();
        });
        assert!(failures.iter().any(|failure| failure.path == b"a"), "{failures:?}");
        let is = fs::read_to_string(pair.copy.join("b")).unwrap();
        match with {
            With::Kura => {
                assert!(failures.iter().any(|failure| failure.path == b"b"), "{failures:?}");
                assert_eq!(is, "of b");
            }
            // It carries what it reads.
            With::Rsync => assert_eq!(is, "of b, and more of it"),
        }
    }
}

#[test]
fn two_files_here_are_no_longer_one_at_the_target() {
    for (with, in_place) in [(With::Kura, false), (With::Kura, true), (With::Rsync, false), (With::Rsync, true)] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options { with: Some(with), in_place, recheck: true, ..Options::default() };
        let path = |name: &str| pair.source.join(name);
        fs::write(path("a"), vec![7; 2 << 20]).unwrap();
        fs::hard_link(path("a"), path("b")).unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        let time = fs::metadata(path("a")).unwrap().modified().unwrap();
        fs::copy(path("b"), path("c")).unwrap();
        fs::rename(path("c"), path("b")).unwrap();
        fs::File::options().write(true).open(path("b")).unwrap().set_modified(time).unwrap();
        fs::set_permissions(path("b"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        let mode = |name| fs::metadata(pair.copy.join(name)).unwrap().mode() & 0o777;
        assert_eq!((mode("a"), mode("b")), (0o644, 0o600), "{options:?}");
    }
}

#[test]
fn what_a_name_gets_does_not_go_into_the_file_that_it_was_a_link_to() {
    for with in [With::Kura, With::Rsync] {
        let pair = Pair::new();
        let target = Target::Local(pair.copy.clone());
        let options = Options { with: Some(with), in_place: true, workers: 1, ..Options::default() };
        let path = |name: &str| pair.source.join(name);
        fs::write(path("a"), vec![7; 2 << 20]).unwrap();
        fs::hard_link(path("a"), path("b")).unwrap();
        settle();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        fs::remove_file(path("b")).unwrap();
        fs::write(path("b"), vec![8; 2 << 20]).unwrap();
        // Slow enough for workers to be worth it.
        assert!(pair.run(&target, &Options { bandwidth: Some(2 << 20), ..options }).unwrap().is_complete);
        let is = |name, byte| fs::read(pair.copy.join(name)).unwrap() == vec![byte; 2 << 20];
        assert!(is("a", 7) && is("b", 8), "{with:?}");
    }
}

#[test]
fn what_was_not_made_durable_is_not_trusted_after_another_start() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    let (durable, quick) = (Options::default(), Options { durable: false, ..Options::default() });
    let marker = || Marker::read(&pair.copy).unwrap().unwrap();
    let complete = |options: &Options| {
        let summary = pair.run(&target, options).unwrap();
        assert!(summary.is_complete);
        summary.files
    };
    settle();
    complete(&quick);
    assert!(marker().volatile && !marker().is_suspect(&boot()));
    // As after a power cut.
    Marker { boot: "another start".to_owned(), ..marker() }.write(&pair.copy, false).unwrap();
    rot(&pair.copy.join("d/file"), "\0\0\0\0\0\0\0\0");
    let refused = failover(&pair.job(&durable), &durable, false).unwrap_err().to_string();
    assert!(refused.contains("--anyway"), "{refused}");
    complete(&quick);
    assert_eq!(fs::read_to_string(pair.copy.join("d/file")).unwrap(), "contents");
    // One that has nothing else to do makes it durable, and one that has nothing to do leaves it so.
    assert!(marker().volatile);
    for options in [&durable, &quick] {
        assert_eq!((complete(options), marker().volatile), (0, false));
    }
}

#[test]
fn what_a_comparison_found_is_carried_by_the_next_run() {
    let ways = [(With::Kura, false), (With::Rsync, false), (With::Rsync, true)];
    let ways = ways.into_iter().flat_map(|way| [(way, false), (way, true)]);
    for ((with, has_daemon), recheck) in ways {
        let pair = Pair::new();
        let daemon = has_daemon.then(|| Daemon::of(&pair));
        let target = daemon.as_ref().map_or_else(|| Target::Local(pair.copy.clone()), |daemon| daemon.target("copy"));
        let options = Options { with: Some(with), ..Options::default() };
        fs::hard_link(pair.source.join("d/file"), pair.source.join("link")).unwrap();
        fs::create_dir(pair.source.join("lost")).unwrap();
        fs::write(pair.source.join("lost/file"), "").unwrap();
        settle();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        rot(&pair.copy.join("d/file"), "CONTENTS");
        fs::remove_dir_all(pair.copy.join("lost")).unwrap();
        assert_eq!(pair.run(&target, &options).unwrap().files, 0);
        let differing = verify(&pair.source, &target, &options).unwrap().differing;
        Place::take(&pair.folder.path().join("job")).unwrap().distrust(&differing).unwrap();
        // Asked itself, the target would say that it has it.
        let options = Options { recheck, ..options };
        assert!(pair.run(&target, &options).unwrap().is_complete);
        let differing = verify(&pair.source, &target, &options).unwrap().differing;
        assert!(differing.is_empty(), "{target}, {options:?}: {differing:?}");
        // A name that has become a file of its own differs, too.
        fs::copy(pair.copy.join("link"), pair.copy.join("beside")).unwrap();
        let time = fs::metadata(pair.copy.join("link")).unwrap().modified().unwrap();
        fs::rename(pair.copy.join("beside"), pair.copy.join("link")).unwrap();
        fs::File::options().write(true).open(pair.copy.join("link")).unwrap().set_modified(time).unwrap();
        let differing = verify(&pair.source, &target, &options).unwrap().differing;
        assert!(!differing.is_empty(), "{target}, {with:?}");
        Place::take(&pair.folder.path().join("job")).unwrap().distrust(&differing).unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        assert_eq!(fs::metadata(pair.copy.join("link")).unwrap().nlink(), 2, "{target}, {with:?}");
    }
}

#[test]
fn a_name_that_could_not_be_read_for_a_while_becomes_a_link_when_it_can() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    let inner = pair.source.join("d/inner");
    fs::create_dir(&inner).unwrap();
    for name in ["a", "b"] {
        fs::hard_link(pair.source.join("d/file"), inner.join(name)).unwrap();
    }
    fs::hard_link(pair.source.join("d/file"), pair.source.join("outer")).unwrap();
    fs::write(pair.source.join("e"), "").unwrap();
    fs::hard_link(pair.source.join("e"), pair.source.join("e too")).unwrap();
    settle();
    let mounted = meanwhile::Mounted::dead(inner.clone());
    assert!(!pair.run(&target, &Options::default()).unwrap().is_complete);
    // All of whose names were seen, is not looked at again.
    let again = pair.run(&target, &Options::default()).unwrap();
    assert!(!again.is_complete && (again.files, again.unchanged) == (1, 2), "{again:?}");
    drop(mounted);
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    assert_eq!(fs::metadata(pair.copy.join("outer")).unwrap().nlink(), 4);
    assert_eq!(pair.run(&target, &Options::default()).unwrap().files, 0);
}

#[test]
fn values_of_attributes_are_compared_too() {
    for is_served in [false, true] {
        let pair = Pair::new();
        let (target, options) = pair.target(is_served);
        let paths = ["", "d", "d/file"];
        let set = |root: &Path, value: &str| {
            for path in paths {
                let set = Command::new("setfattr").args(["-n", "user.a", "-v", value]).arg(root.join(path)).status();
                assert!(set.unwrap().success());
            }
        };
        set(&pair.source, "1");
        settle();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        let differing = || verify(&pair.source, &target, &options).unwrap().differing;
        assert_eq!(differing(), []);
        set(&pair.copy, "2");
        let differs = differing();
        let found: Vec<_> = differs.iter().map(|it| String::from_utf8_lossy(&it.path).into_owned()).collect();
        assert!(found == paths && differs.iter().all(|it| it.cause.contains("attributes")), "{differs:?}");
        Place::take(&pair.folder.path().join("job")).unwrap().distrust(&differs).unwrap();
        assert!(pair.run(&target, &options).unwrap().is_complete);
        assert_eq!(differing(), []);
    }
}

#[test]
fn a_moment_of_another_copy_is_forgotten() {
    let pair = Pair::new();
    let target = Target::Local(pair.copy.clone());
    let point = pair.folder.path().join("job/recovery-point");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete && point.exists());
    fs::remove_dir_all(&pair.copy).unwrap();
    fs::create_dir(pair.source.join(".kura-replica")).unwrap();
    assert!(!pair.run(&target, &Options { adopt: true, ..Options::default() }).unwrap().is_complete);
    assert!(!point.exists() && Marker::read(&pair.copy).unwrap().unwrap().recovery_point.is_none());
}
