use super::*;
use kura_block::Kind;
use std::process::{Child, Command, Stdio};

const HOLD: &str = "KURA_TEST_HOLD";

/// What the other process of the test below does: locks what it is told, and holds it until its input ends.
fn hold(what: &str) {
    let (kind, path) = what.split_once(' ').unwrap();
    let lock = if kind == "directory" { Lock::directory(path) } else { Lock::device(path) }.unwrap();
    println!("held");
    let mut end = String::new();
    std::io::stdin().read_line(&mut end).unwrap();
    drop(lock);
}

fn holder(what: String) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lock::tests::another_process_is_named_and_its_death_frees_the_lock", "--nocapture"])
        .env(HOLD, what)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    while !said.contains("held") {
        assert_ne!(std::io::BufRead::read_line(&mut out, &mut said).unwrap(), 0, "the child holds no lock: {said}");
    }
    child
}

#[test]
fn another_process_is_named_and_its_death_frees_the_lock() {
    if let Ok(what) = std::env::var(HOLD) {
        return hold(&what);
    }
    for kind in ["directory", "device"] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk");
        crate::create_sparse(&file, 4096).unwrap();
        let (path, lock): (&Path, fn(&Path) -> Result<Lock>) = if kind == "directory" {
            (dir.path(), |path| Lock::directory(path))
        } else {
            (&file, |path| Lock::device(path))
        };
        let mut child = holder(format!("{kind} {}", path.display()));
        let error = lock(path).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        let text = error.to_string();
        let begin = format!("{} is in use by process {} (kura_disk-", path.display(), child.id());
        assert!(text.starts_with(&begin) && text.contains("--exact): stop it or choose another "), "{text}");
        child.kill().unwrap();
        child.wait().unwrap();
        drop(lock(path).unwrap());
        drop(lock(path).unwrap());
    }
}

#[test]
fn one_process_locks_once_and_opens_often() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    crate::create_sparse(&file, 4096).unwrap();
    let _lock = Lock::device(&file).unwrap();
    assert_eq!(Lock::device(&file).unwrap_err().kind(), Kind::Busy);
    crate::run(async |_| {
        let one = crate::Disk::open(&file, crate::Options::default()).unwrap();
        let other = crate::Disk::open(&file, crate::Options::default()).unwrap();
        assert_eq!(one.path(), other.path());
    })
    .unwrap();
    assert_eq!(Lock::directory(dir.path().join("missing")).unwrap_err().kind(), Kind::Missing);
}
