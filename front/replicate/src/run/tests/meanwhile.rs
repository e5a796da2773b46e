//! What becomes of the source while a run is under way.

use super::*;

#[test]
fn what_others_may_not_read_is_not_carried_under_the_name_of_what_they_may() {
    for size in [8, 3 << 20] {
        let pair = Pair::new();
        let path = |name: &str| pair.source.join(name);
        for (name, byte, mode) in [("open", b'o', 0o644), ("secret", b's', 0o600)] {
            fs::write(path(name), vec![byte; size]).unwrap();
            fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        }
        let time = fs::metadata(path("open")).unwrap().modified().unwrap();
        fs::File::options().write(true).open(path("secret")).unwrap().set_modified(time).unwrap();
        let target = Target::Local(pair.copy.clone());
        let failures = pair.carried(&target, &Options::default(), None, || {
            fs::rename(path("secret"), path("open")).unwrap();
        });
        assert!(failures.iter().any(|failure| failure.path == b"open"), "{size}: {failures:?}");
        assert!(!pair.copy.join("open").exists() && pair.copy.join("d/file").exists(), "{size}");
    }
}
