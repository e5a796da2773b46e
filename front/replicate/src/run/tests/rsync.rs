//! What is known of what rsync did.

use super::meanwhile::Mounted;
use super::*;

#[test]
fn what_is_in_a_directory_that_could_not_be_made_was_not_carried() {
    for is_known in [false, true] {
        let pair = Pair::new();
        let (target, options) =
            (Target::Local(pair.copy.clone()), Options { with: Some(With::Rsync), ..Options::default() });
        let module = pair.folder.path().join("module");
        let mounted = Mounted::by("mount -t tmpfs -o nr_inodes=64 tmpfs", module.clone());
        assert!(pair.run(&target, &options).unwrap().is_complete);
        fs::create_dir(pair.source.join("new")).unwrap();
        for name in ["new/x", "new/y"] {
            fs::write(pair.source.join(name), name).unwrap();
        }
        let known = pair.known().filter(|_| is_known);
        let failures = pair.carried(&target, &options, known, || {
            while fs::create_dir(module.join(Uuid::new_v4().to_string())).is_ok() {}
        });
        for path in ["new", "new/x", "new/y"] {
            let is_told = failures.iter().any(|it| it.path == path.as_bytes() && it.cause.contains("full"));
            assert!(is_told, "{is_known}, {path}: {failures:?}");
        }
        assert!(!pair.copy.join("new").exists());
        drop(mounted);
    }
}

#[test]
fn a_marker_that_is_written_over_another_one_is_as_long() {
    let pair = Pair::new();
    let daemon = Daemon::of(&pair);
    let target = daemon.target("copy");
    assert!(pair.run(&target, &Options::default()).unwrap().is_complete);
    let text = || fs::read(pair.copy.join(".kura-replica")).unwrap();
    let complete = text();
    let marker = Marker::read(&pair.copy).unwrap().unwrap();
    let carrier = Options::default().carrier(&target);
    // The longest and the shortest, of which each has those of the other one behind it at a power cut.
    for state in [State::Unfinished, State::Partial] {
        carrier.mark(&Marker { state, recovery_point: None, ..marker.clone() }, true).unwrap();
        assert_eq!((text().len(), Marker::read(&pair.copy).unwrap().unwrap().state), (complete.len(), state));
    }
}
