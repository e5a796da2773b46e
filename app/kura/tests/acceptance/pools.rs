//! Pools and their data directories: what is refused before it is made, and a directory that is lost.

use crate::harness::{Home, fails, ok, tool};
use crate::serving::json;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const DISKS: [&str; 5] = ["f0", "f1", "s0", "s1", "s2"];

/// Makes a pool of files beside the data directory.
fn create(home: &Home, more: &[&str]) {
    let disks = ["pool", "create", "--controllers", "2", "--journal", "16M", "--fast", "f0=128M", "--fast", "f1=128M"];
    let slow = ["--slow", "s0=512M", "--slow", "s1=512M", "--slow", "s2=512M"];
    home.ok(&[&disks[..], &slow, more].concat());
}

fn qemu_io(home: &Home, command: &str) {
    ok(tool("qemu-io").args(["-f", "raw", "-c", command, &home.uri("v")]));
}

/// When each disk was written last.
fn written(home: &Home) -> [SystemTime; 5] {
    DISKS.map(|disk| fs::metadata(home.path(disk)).and_then(|file| file.modified()).expect("a time"))
}

fn import(home: &Home, disks: &[&str]) -> Command {
    home.kura(&[&["pool", "import"], disks].concat())
}

#[test]
fn a_pool_that_its_disks_cannot_carry_is_refused_before_it_is_made() {
    let home = Home::new();
    fs::write(home.path("kura.toml"), "pool.controllers = 64\n").expect("a configuration");
    let said =
        fails(&mut home.kura(&["serve", "--config", "kura.toml", "--nbd", "off", "--admin", "off", "--s3", "off"]));
    assert!(said.contains("journals of 64 controllers") && said.contains("fewer controllers"), "{said}");
    assert!(!home.data().join("disks").exists(), "a disk was made");

    let create = ["pool", "create", "--slow", "a=64M", "--slow", "b=1G"];
    let said = fails(&mut home.kura(&[&create[..], &["--controllers", "8"]].concat()));
    assert!(said.contains("/a: 64 MiB") && said.lines().count() == 1, "{said}");
    let said = fails(&mut home.kura(&[&create[..], &["--slow", "./a=64M", "--journal", "16M"]].concat()));
    assert!(said.contains("is named twice"), "{said}");
    assert!(!home.path("a").exists() && !home.path("b").exists(), "a disk was made");
    // What was refused is in nobody's way.
    home.ok(&[&create[..], &["--controllers", "1", "--journal", "16M"]].concat());
}

/// The same steps on the same disks, as of a script that is run again: nothing of the first pool is in the second.
#[test]
fn a_pool_made_of_the_disks_of_another_is_empty() {
    let home = Home::new();
    create(&home, &[]);
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    // Each stop writes another version of what tells where data is.
    for _ in 0..3 {
        qemu_io(&home, "write -P 0x5a 0 8M");
        server.stop();
        server = home.serve();
    }
    server.stop();
    fs::remove_dir_all(home.data()).expect("the data directory");

    let named = ["pool", "create", "--controllers", "2", "--journal", "16M", "--fast", "f0", "--fast", "f1"];
    home.ok(&[&named[..], &["--slow", "s0", "--slow", "s1", "--slow", "s2", "--force"]].concat());
    server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    qemu_io(&home, "write -P 0x6b 1M 64k");
    server.stop();
    let _server = home.serve();
    for read in ["read -P 0 0 1M", "read -P 0x6b 1M 64k", "read -P 0 1088k 62M"] {
        qemu_io(&home, read);
    }
    home.ok(&["check"]);
}

#[test]
fn a_pool_outlives_its_data_directory() {
    let home = Home::new();
    create(&home, &[]);
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    home.ok(&["snapshot", "schedule", "add", "v", "--every", "1h", "--keep", "3"]);
    qemu_io(&home, "write -P 0x5a 1M 4M");
    let said = fails(&mut import(&home, &DISKS));
    assert!(said.contains("is in use by process"), "{said}");
    server.kill();
    fs::remove_dir_all(home.data()).expect("the data directory");

    // What is not a whole pool, and nothing else, is refused, and leaves nothing.
    let other = Home::new();
    create(&other, &[]);
    let theirs = other.path("s0");
    fs::write(home.path("blank"), vec![0; 1 << 20]).expect("a file");
    fs::copy(home.path("s1"), home.path("copy")).expect("a copy");
    let cases: [(&[&str], &[&str]); 5] = [
        (&["f0", "f1", "s1"], &["disk 2 (slow, ", "disk 4 (slow, ", "--incomplete"]),
        (&["f0", "f1", "s0", "s1", theirs.to_str().expect("UTF-8")], &["another pool"]),
        (&["f0", "f1", "s0", "s1", "s2", "blank"], &["blank: no kura label"]),
        (&["f0", "f1", "s0", "s1", "s2", "copy"], &["is the same disk of the pool as"]),
        (&["f0", "f1", "s0", "s1", "s9"], &["s9"]),
    ];
    for (disks, says) in cases {
        let said = fails(&mut import(&home, disks));
        assert!(says.iter().all(|part| said.contains(part)) && said.lines().count() == 1, "{disks:?}: {said}");
        assert!(!home.data().exists(), "{disks:?}");
    }
    // Nor is it overwritten unasked.
    let said = fails(&mut home.kura(&["pool", "create", "--slow", "s0"]));
    assert!(said.contains("belongs to a pool") && said.contains("kura pool import"), "{said}");
    assert!(!home.data().exists(), "what is refused leaves something behind");

    let before = written(&home);
    let said = ok(&mut import(&home, &DISKS));
    assert!(said.contains("5 of its 5 disks") && said.contains("kura serve --data"), "{said}");
    assert!(said.contains("schedules of snapshots") && said.contains("ordinary volumes now"), "{said}");
    assert_eq!(written(&home), before, "an import only reads the disks");
    let said = fails(&mut import(&home, &DISKS));
    assert!(said.contains("holds a pool already"), "{said}");

    let mut server = home.serve();
    assert!(server.said().contains("replayed"), "the crash before is recovered from: {}", server.said());
    qemu_io(&home, "read -P 0x5a 1M 4M");
    assert_eq!(json(&home, &["snapshot", "schedule", "list"]).as_array().map(Vec::len), Some(0));
    home.ok(&["check"]);
    assert!(server.stop().success());

    // A disk that is lost, too, is a failed one.
    fs::remove_dir_all(home.data()).expect("the data directory");
    fs::remove_file(home.path("s1")).expect("a disk");
    ok(&mut import(&home, &["f0", "f1", "s0", "s2", "--incomplete"]));
    let _server = home.serve();
    qemu_io(&home, "read -P 0x5a 1M 4M");
    let disks = json(&home, &["disk", "list"]);
    let missing = disks.as_array().expect("disks").iter().filter(|disk| disk["state"] == "missing");
    assert_eq!(missing.map(|disk| disk["id"].clone()).collect::<Vec<_>>(), [3]);
    // A disk that belongs to a pool takes its place only when that is said, and once.
    let add = ["disk", "add", "copy", "--class", "slow"];
    assert!(fails(&mut home.kura(&add)).contains("--force wipes it"));
    let force = [&add[..], &["--force"]].concat();
    assert_eq!(json(&home, &force)["state"], "healthy");
    assert!(fails(&mut home.kura(&force)).contains("is in the pool already"));
}

/// What only the pool can tell of the configuration is told before anything is written.
#[test]
fn a_region_that_the_pool_has_no_extents_for_is_refused() {
    let home = Home::new();
    create(&home, &["--extent", "8M"]);
    let mut server = home.serve();
    assert!(server.stop().success());
    fs::write(home.path("kura.toml"), "tier.region = '4M'\n").expect("a configuration");
    let before = written(&home);
    let said =
        fails(&mut home.kura(&["serve", "--config", "kura.toml", "--nbd", "off", "--admin", "off", "--s3", "off"]));
    assert!(said.contains("tier.region: 4M is less than an extent of the pool: give 8M"), "{said}");
    assert_eq!(written(&home), before);
}

/// A link is followed anew at each start: under /dev/disk/by-id it leads where the disk is by then.
#[test]
fn an_import_keeps_the_names_that_it_was_given() {
    let home = Home::new();
    create(&home, &["--data", "first"]);
    for disk in DISKS {
        std::os::unix::fs::symlink(home.path(disk), home.path(&format!("id-{disk}"))).expect("a link");
    }
    let said = fails(&mut import(&home, &["f0", "f1", "s0", "s1", "s2", "id-s2"]));
    assert!(said.contains("is the same disk of the pool as"), "{said}");
    ok(&mut import(&home, &["id-f0", "id-f1", "id-s0", "id-s1", "id-s2"]));
    for disk in DISKS {
        let (link, moved) = (home.path(&format!("id-{disk}")), home.path(&format!("moved-{disk}")));
        fs::rename(home.path(disk), &moved).expect("a disk elsewhere");
        fs::remove_file(&link).expect("the link");
        std::os::unix::fs::symlink(moved, link).expect("a link");
    }
    let _server = home.serve();
    assert_eq!(json(&home, &["status"])["health"], "healthy");
}

#[test]
fn an_import_that_is_killed_can_be_done_again() {
    let home = Home::new();
    create(&home, &["--data", "first"]);
    for wait_ms in (0..20).step_by(2) {
        let mut kura = Command::new(env!("CARGO_BIN_EXE_kura"));
        kura.args(["pool", "import"]).args(DISKS).current_dir(home.path("")).stderr(Stdio::null());
        let mut child = kura.stdout(Stdio::null()).spawn().expect("kura");
        std::thread::sleep(Duration::from_millis(wait_ms));
        // It may have ended already.
        let _ = child.kill();
        child.wait().expect("kura");
        let book = fs::read_to_string(home.data().join("disks.json")).unwrap_or_default();
        if home.data().join("version").exists() {
            assert!(
                DISKS.iter().all(|disk| book.contains(&format!("/{disk}\""))),
                "a directory is whole or none: {book}"
            );
            fs::remove_dir_all(home.data()).expect("the data directory");
        } else if !book.is_empty() {
            let said = fails(&mut home.kura(&["serve", "--nbd", "off", "--admin", "off", "--s3", "off"]));
            assert!(said.contains("kura pool import"), "{said}");
        }
    }
    ok(&mut import(&home, &DISKS));
    let _server = home.serve();
}
