//! `kura replicate` of volumes between two servers: what a copy is, fail-over and back, and a copy of a volume at work.

use crate::crash::Random;
use crate::harness::{Ends, Home, Server, eventually, fails, tool};
use crate::nbd::{Client, FUA, READ, TRIM, WRITE};
use crate::replicate::forget_failback;
use crate::serving::{get, json};
use crate::tls::certificates;
use serde_json::Value;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A volume `db` of 16 MiB with something in it.
fn begin(home: &Home) -> Client {
    home.ok(&["volume", "create", "db", "--size", "16M"]);
    let mut db = Client::connect(&home.socket(), "db").expect("a connection");
    for (place, byte) in [(0, 1), (5, 2), (9, 3)] {
        db.call(WRITE, 0, place * MIB, MIB as u32, &vec![byte; MIB as usize]).expect("a write");
    }
    db
}

/// All that an export has.
pub fn read(home: &Home, export: &str) -> Vec<u8> {
    let mut client = Client::connect(&home.socket(), export).expect("a connection");
    let size = client.size_bytes as u32;
    client.call(READ, 0, 0, size, &[]).expect("a read")
}

/// The points at a home, the newest last.
pub fn points(home: &Home, volume: &str) -> Vec<String> {
    let list = json(home, &["snapshot", "list", volume]);
    list.as_array().expect("a list").iter().map(|one| one["name"].as_str().expect("a name").to_owned()).collect()
}

fn run(home: &Home, args: &[&str]) -> Value {
    serde_json::from_str(&home.ok(&[&["replicate", "run", "--json"], args].concat())).expect("a summary")
}

/// A server that asks for a token and speaks TLS.
fn serve_with_tls(home: &Home) -> (Server, String) {
    certificates(&home.path("pki"));
    let config = "[admin]\ntoken = \"a-secret-of-many-letters\"\n[admin.tls]\ncert = \"pki/server-cert.pem\"\nkey = \"pki/server-key.pem\"\n";
    std::fs::write(home.path("kura.toml"), config).expect("the configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    let url = format!("https://127.0.0.1:{}", server.port("https"));
    (server, url)
}

#[test]
fn a_volume_is_copied_over_tls_and_worked_with_at_either_end() {
    let (here, there) = (Home::new(), Home::new());
    let _source = here.serve();
    let (_target, url) = serve_with_tls(&there);
    let mut db = begin(&here);
    std::fs::write(here.path("token"), "a-secret-of-many-letters\n").expect("the token");
    let ca = there.path("pki/ca-cert.pem").display().to_string();
    let target = format!("{url}/copy");
    here.ok(&[
        "replicate",
        "add",
        "dr",
        "volume:db",
        &target,
        "--target-ca",
        &ca,
        "--target-token-file",
        "token",
        "--keep",
        "2",
    ]);
    let would = run(&here, &["dr", "--dry-run"]);
    assert!(would["bytes"].as_u64() >= Some(3 * MIB) && would["dry_run"] == true, "{would}");
    let nothing = || there.kura(&["snapshot", "list", "copy"]).output().is_ok_and(|done| !done.status.success());
    assert!(nothing() && points(&here, "db").is_empty(), "a dry run changes nothing");
    let first = run(&here, &["dr"]);
    assert_eq!(first["is_complete"], true, "{first}");
    let point = format!("copy@{}", first["point"].as_str().expect("a point"));
    assert_eq!(read(&there, &point), read(&here, "db"));
    assert!(Client::connect(&there.socket(), "copy").is_err(), "nobody looks at a copy while it changes");
    for refused in [&["snapshot", "create", "copy@x"][..], &["volume", "resize", "copy", "32M"]] {
        let complaint = fails(&mut there.kura(refused));
        assert!(complaint.contains("follows its source"), "{complaint}");
    }

    // What changed is sent, and nothing else; what was trimmed is gone there, too.
    db.call(WRITE, 0, 7 * MIB + 512, 1024, &[9; 1024]).expect("a write");
    db.call(TRIM, 0, 5 * MIB, MIB as u32, &[]).expect("a trim");
    let would = run(&here, &["dr", "--dry-run"]);
    assert_eq!(would["bytes"], MIB + BLOCK, "{would}");
    assert!(here.ok(&["replicate", "run", "dr", "--dry-run"]).contains("would send about 1M,"));
    assert_eq!(points(&here, "db").len(), 1, "a dry run changes nothing");
    let second = run(&here, &["dr"]);
    assert!(second["sent_bytes"].as_u64().expect("bytes") < 2000, "{second}");
    let newest = format!("copy@{}", second["point"].as_str().expect("a point"));
    assert_eq!(read(&there, &newest), read(&here, "db"));
    run(&here, &["dr"]);
    assert_eq!((points(&here, "db").len(), points(&there, "copy").len()), (1, 2));
    assert!(here.ok(&["replicate", "verify", "dr"]).contains("nothing differs"));
    home_status(&here, "complete");
    // A run, which deletes the points that it reads, is none at the same time.
    let mut beside = tool("flock");
    beside.arg(here.data().join("replicate/dr/lock")).arg(env!("CARGO_BIN_EXE_kura"));
    let complaint = fails(beside.args(["replicate", "verify", "dr"]).current_dir(here.path("")));
    assert!(complaint.contains("another run of it is under way"), "{complaint}");

    // The source's site is lost: the copy is let go where it is.
    there.ok(&["replicate", "failover", "volume:copy"]);
    let as_of = read(&there, "copy");
    assert_eq!(as_of, read(&here, "db"));
    let mut copy = Client::connect(&there.socket(), "copy").expect("a connection");
    copy.call(WRITE, FUA, 3 * MIB, 4096, &[7; 4096]).expect("a write");
    let complaint = fails(&mut here.kura(&["replicate", "run", "dr"]));
    assert!(complaint.contains("was failed over"), "{complaint}");
    // Told so again, of a copy that is worked with, the job knows it, too.
    here.ok(&["replicate", "failover", "dr"]);
    home_status(&here, "failed over");
    db.call(WRITE, FUA, 12 * MIB, 4096, &[5; 4096]).expect("a write that is lost");
    let complaint = fails(&mut here.kura(&["replicate", "failback", "dr"]));
    assert!(complaint.contains("has it open"), "{complaint}");
    let work = read(&there, "copy");
    drop((db, copy));
    let back = here.ok(&["replicate", "failback", "dr", "--dry-run"]);
    assert!(back.contains("would send about 4K,"), "{back}");
    let fail_back = || here.kura(&["replicate", "failback", "dr"]).output().is_ok_and(|done| done.status.success());
    eventually(Duration::from_mins(2), "the clients have left, and fail-back", fail_back);
    assert_eq!(read(&here, "db"), work);
    assert!(Client::connect(&there.socket(), "copy").is_err(), "it follows again");
    forget_failback(&here, "dr");
    assert!(fails(&mut here.kura(&["replicate", "run", "dr"])).contains("failback"));
    for how in [&["--dry-run"][..], &[]] {
        here.ok(&[&["replicate", "failback", "dr"], how].concat());
    }
    let mut db = Client::connect(&here.socket(), "db").expect("a connection");
    db.call(WRITE, FUA, 0, 4096, &[8; 4096]).expect("a write");
    run(&here, &["dr"]);
    assert!(here.ok(&["replicate", "verify", "dr"]).contains("nothing differs"));
    there.ok(&["check"]);
    here.ok(&["check"]);
    // A point that somebody reads stays, and is told.
    let point = points(&here, "db").pop().expect("a point");
    let _reader = Client::connect(&here.socket(), &point).expect("a connection");
    let removed = json(&here, &["replicate", "remove", "dr"]);
    assert!(removed["points_left"].as_str().is_some_and(|left| left.contains(&point)), "{removed}");
    assert!(points(&here, "db").contains(&point));
}

fn home_status(home: &Home, state: &str) {
    let status = home.ok(&["replicate", "status"]);
    assert!(status.contains(state) && status.contains("volume:db"), "{status}");
}

#[test]
fn what_cannot_be_copied_is_told_in_a_line() {
    let (here, there) = (Home::new(), Home::new());
    let _source = here.serve();
    let target_server = there.serve();
    let _db = begin(&here);
    there.ok(&["volume", "create", "other", "--size", "16M"]);
    let url = format!("http://127.0.0.1:{}", target_server.port("http"));
    let complains = |args: &[&str], what: &str| {
        let complaint = fails(&mut here.kura(&[&["replicate"], args].concat()));
        assert!(complaint.contains(what), "{args:?}: {complaint}");
    };
    complains(&["run", "volume:nothing", &format!("{url}/copy")], "volume nothing: no such volume");
    complains(&["run", "volume:db", &format!("{url}/other")], "--adopt");
    complains(&["run", "volume:db", &format!("{url}/other"), "--dry-run"], "--adopt");
    complains(&["run", "volume:db", "elsewhere"], "REST door");
    complains(&["run", "kura-data", &format!("{url}/copy")], "a tree goes to");
    complains(&["run", "volume:db", "http://127.0.0.1:1/copy"], "no server at http://127.0.0.1:1");
    complains(&["run", "volume:db", "https://127.0.0.1:1/copy"], "--target-ca");
    complains(&["verify", "volume:db", &format!("{url}/copy")], "run it first");
    complains(&["failover", "volume:db"], "is not a copy");
    // The object store's, at neither end; and nothing is made for it.
    for pair in [["volume:objects", &format!("{url}/copy")], ["volume:db", &format!("{url}/objects")]] {
        complains(&[&["run"], &pair[..]].concat(), "has the object store");
        complains(&[&["add", "job"], &pair[..]].concat(), "has the object store");
    }
    assert!(points(&here, "objects").is_empty() && points(&here, "db").is_empty());
    assert_eq!(json(&there, &["volume", "list"]).as_array().map(Vec::len), Some(3), "demo, objects, other");
    here.ok(&["replicate", "run", "volume:db", &format!("{url}/other"), "--adopt"]);
    assert_eq!(points(&there, "other").len(), 1);
}

/// The source is a snapshot, which stays as it is, and the target is named in two ways.
#[test]
fn a_snapshot_is_copied_and_each_name_of_the_target_has_one_point() {
    let (here, there) = (Home::new(), Home::new());
    let (_source, target) = (here.serve(), there.serve());
    drop(begin(&here));
    here.ok(&["snapshot", "create", "db@fixed"]);
    let port = target.port("http");
    let by_number = format!("http://127.0.0.1:{port}/copy");
    let first = run(&here, &["volume:db@fixed", &by_number]);
    let copy = read(&there, &format!("copy@{}", first["point"].as_str().expect("a point")));
    assert_eq!(copy, read(&here, "db@fixed"));
    for (url, count) in [(by_number, 1), (format!("http://localhost:{port}/copy"), 2)] {
        let again = run(&here, &["volume:db@fixed", &url]);
        assert!(again["sent_bytes"].as_u64() < Some(1000), "what the copy has is not sent again: {again}");
        assert!(here.ok(&["replicate", "verify", "volume:db@fixed", &url]).contains("nothing differs"));
        assert_eq!(points(&here, "db@fixed").len(), count, "{url}");
    }
}

fn size_bytes(home: &Home, volume: &str) -> u64 {
    let list = json(home, &["volume", "list"]);
    let found = list.as_array().expect("a list").iter().find(|one| one["name"] == volume);
    found.expect("the volume")["size_bytes"].as_u64().expect("a size")
}

#[test]
fn a_volume_that_grew_fails_over_and_back() {
    let (here, there) = (Home::new(), Home::new());
    let _source = here.serve();
    let target = there.serve();
    drop(begin(&here));
    let url = format!("http://127.0.0.1:{}/copy", target.port("http"));
    here.ok(&["replicate", "add", "dr", "volume:db", &url, "--bandwidth", "1M"]);
    run(&here, &["dr"]);
    let before = read(&here, "db");

    // The source is lost in the middle of the run after it grew, which would take twenty seconds.
    here.ok(&["volume", "resize", "db", "32M"]);
    let mut db = Client::connect(&here.socket(), "db").expect("a connection");
    let mut random = Random(9);
    for place in [2, 16, 20, 24, 28] {
        let noise: Vec<u8> = (0..MIB / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        db.call(WRITE, FUA, place * MIB, MIB as u32, &noise).expect("a write");
    }
    drop(db);
    let mut cut = Command::new(env!("CARGO_BIN_EXE_kura"))
        .args(["replicate", "run", "dr", "--bandwidth", "256K", "--quiet"])
        .current_dir(here.path("."))
        .stderr(Stdio::null())
        .spawn()
        .expect("kura");
    eventually(Duration::from_mins(2), "the copy grows", || size_bytes(&there, "copy") == 32 * MIB);
    std::thread::sleep(Duration::from_millis(500));
    cut.kill().and_then(|()| cut.wait()).expect("it is killed");
    there.ok(&["replicate", "failover", "volume:copy"]);
    let copy = read(&there, "copy");
    assert!(copy[..before.len()] == before, "the copy is not what its point was");
    assert!(copy[before.len()..].iter().all(|byte| *byte == 0), "something lies beyond the point's end");

    // The source comes back and, meanwhile, grew once more.
    here.ok(&["volume", "resize", "db", "48M"]);
    let mut client = Client::connect(&there.socket(), "copy").expect("a connection");
    client.call(WRITE, FUA, 30 * MIB, 4096, &[7; 4096]).expect("a write");
    let work = read(&there, "copy");
    drop(client);
    let fail_back = || here.kura(&["replicate", "failback", "dr"]).output().is_ok_and(|done| done.status.success());
    eventually(Duration::from_mins(2), "the clients have left, and fail-back", fail_back);
    let back = read(&here, "db");
    assert_eq!(back.len() as u64, 48 * MIB);
    assert!(back[..work.len()] == work && back[work.len()..].iter().all(|byte| *byte == 0), "work was lost");
    run(&here, &["dr"]);
    assert!(here.ok(&["replicate", "verify", "dr"]).contains("nothing differs"));
    there.ok(&["check"]);
    here.ok(&["check"]);
}

/// Writes noise to so many MiB of an export, as far as there is room for it.
fn make_noise(home: &Home, export: &str, mib: u64, random: &mut Random) -> std::io::Result<()> {
    let mut client = Client::connect(&home.socket(), export)?;
    for place in 0..mib {
        let noise: Vec<u8> = (0..MIB / 8).flat_map(|_| random.next().to_le_bytes()).collect();
        client.call(WRITE, FUA, place * MIB, MIB as u32, &noise)?;
    }
    Ok(())
}

/// The target's pool drops snapshots where it is full, and has no room for a run beside what the copy goes back to.
#[test]
fn a_full_target_keeps_what_the_copy_goes_back_to() {
    let (here, there) = (Home::new(), Home::new());
    let _source = here.serve();
    let config = "demo = '0'\n[pool]\ncontrollers = 2\nextent = '1M'\njournal = '32M'\nwhen_full = 'drop-oldest'\ndisks = [\n\
                  { path = 'fast0', class = 'fast', size = '100M' },\n{ path = 'fast1', class = 'fast', size = '100M' },\n\
                  { path = 'slow', class = 'slow', size = '64M' },\n]\n";
    std::fs::write(there.path("kura.toml"), config).expect("a configuration");
    let serve = || there.serve_with(&["--config", "kura.toml"]);
    let mut target = serve();
    let mut random = Random(4);
    here.ok(&["volume", "create", "db", "--size", "40M"]);
    make_noise(&here, "db", 40, &mut random).expect("room at the source");
    let url = format!("http://127.0.0.1:{}/copy", target.port("http"));
    here.ok(&["replicate", "add", "dr", "volume:db", &url, "--keep", "1"]);
    run(&here, &["dr"]);
    let (before, point) = (read(&here, "db"), points(&there, "copy"));

    make_noise(&here, "db", 40, &mut random).expect("room at the source");
    let complaint = fails(&mut here.kura(&["replicate", "run", "dr"]));
    assert!(complaint.contains("full"), "{complaint}");
    assert_eq!(points(&there, "copy"), point);
    assert!(read(&there, &point[0]) == before, "the point is not what it was");
    let is_copy = || json(&there, &["volume", "show", "copy"])["follows"] == true;
    assert!(is_copy() && there.ok(&["volume", "list"]).contains("  copy  "));
    // It is all that there is if the source is lost now, which a slip of the hand does not take.
    for (delete, said) in [
        (&["snapshot", "delete", point[0].as_str()][..], "is what copy copy is if its source is lost"),
        (&["volume", "delete", "copy"], "is a copy that follows its source"),
    ] {
        for more in [&[][..], &["--dry-run"]] {
            let complaint = fails(&mut there.kura(&[delete, more].concat()));
            assert!(complaint.contains(said) && complaint.contains("--force"), "{complaint}");
        }
    }
    assert_eq!(points(&there, "copy"), point);
    let complaint = fails(&mut there.kura(&["snapshot", "schedule", "add", "copy", "--every", "1h", "--keep", "2"]));
    assert!(complaint.contains("is a copy that follows its source"), "{complaint}");
    // Nor does it go for anybody else, after a crash at that, and wherever it is.
    there.ok(&["volume", "create", "w", "--size", "64M", "--layout", "none"]);
    for _ in 0..2 {
        assert!(make_noise(&there, "w", 64, &mut random).is_err(), "the pool has no room for that");
        assert_eq!(points(&there, "copy"), point);
        target.kill();
        target = serve();
        there.ok(&["volume", "move-to", "copy", "1"]);
    }
    there.ok(&["replicate", "failover", "volume:copy"]);
    assert!(read(&there, "copy") == before, "the copy is not what its point was");
    assert!(!is_copy());
    there.ok(&["check"]);
    // From now on it is a snapshot like any other.
    eventually(Duration::from_mins(1), "the point makes room", || make_noise(&there, "copy", 40, &mut random).is_ok());
    assert!(points(&there, "copy").is_empty());
}

/// Slots of the ledger: record number N is in slot N modulo this, one block each.
const SLOTS: u64 = 512;

/// Appends records, each durable before the next one is begun, until it is told to stop. Returns how many.
fn keep_ledger(home: &Home, stop: &AtomicBool) -> u64 {
    let mut db = Client::connect(&home.socket(), "db").expect("a connection");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let record = u64::to_le_bytes(number).repeat(BLOCK as usize / 8);
        db.call(WRITE, FUA, number % SLOTS * BLOCK, BLOCK as u32, &record).expect("a write");
    }
    number
}

/// The newest record of a ledger, in which nothing may be missing: what recovery after a power cut would find.
fn recover_ledger(image: &[u8]) -> u64 {
    let slots: Vec<u64> = image[..(SLOTS * BLOCK) as usize]
        .chunks(BLOCK as usize)
        .map(|slot| {
            let number = u64::from_le_bytes(slot[..8].try_into().expect("eight bytes"));
            assert!(slot.chunks(8).all(|word| word == number.to_le_bytes()), "record {number} is torn");
            number
        })
        .collect();
    let newest = slots.iter().copied().max().unwrap_or(0);
    for number in newest.saturating_sub(SLOTS - 1).max(1)..=newest {
        assert_eq!(slots[(number % SLOTS) as usize], number, "record {number} of {newest} is missing");
    }
    newest
}

#[test]
fn a_volume_at_work_is_copied_by_the_server_and_recovers_at_the_other_end() {
    let (here, there) = (Home::new(), Home::new());
    let source = here.serve();
    let target = there.serve();
    here.ok(&["volume", "create", "db", "--size", "16M"]);
    let url = format!("http://127.0.0.1:{}/copy", target.port("http"));
    here.ok(&["replicate", "add", "dr", "volume:db", &url, "--every", "1s", "--rpo", "30s"]);
    // Of a tree, too.
    std::fs::create_dir(here.path("tree")).and_then(|()| std::fs::write(here.path("tree/file"), "x")).expect("a tree");
    here.ok(&["replicate", "add", "tree", "tree", "tree-copy", "--every", "1s"]);
    eventually(Duration::from_mins(2), "a tree's first copy", || here.path("tree-copy/.kura-replica").exists());
    std::fs::write(here.path("tree/later"), "y").expect("a file");
    eventually(Duration::from_mins(2), "a tree's next copy", || here.path("tree-copy/later").exists());
    let stop = AtomicBool::new(false);
    let jobs = || get(source.port("http"), "/api/v1/replication-jobs");
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        let ledger = scope.spawn(|| keep_ledger(&here, &stop));
        eventually(Duration::from_mins(2), "the first copy", || {
            there.kura(&["snapshot", "list", "copy"]).output().is_ok_and(|it| it.status.success())
        });
        let mut seen = Vec::new();
        let mut newest = 0;
        eventually(Duration::from_mins(2), "four points", || {
            for point in points(&there, "copy") {
                if !seen.contains(&point) {
                    // It may be deleted meanwhile, as the oldest of three.
                    let Ok(mut client) = Client::connect(&there.socket(), &point) else { continue };
                    let image = client.call(READ, 0, 0, (SLOTS * BLOCK) as u32, &[]).expect("a read");
                    let found = recover_ledger(&image);
                    assert!(found >= newest, "{found} after {newest}");
                    newest = found;
                    seen.push(point);
                }
            }
            seen.len() >= 4
        });
        assert!(newest > 0);
        // In the middle of whatever goes on.
        there.ok(&["replicate", "failover", "volume:copy"]);
        let found = recover_ledger(&read(&there, "copy"));
        stop.store(true, Ordering::Relaxed);
        let written = ledger.join().expect("the ledger");
        assert!(found >= newest && found <= written, "{found} of {written}, after {newest}");
    });
    eventually(Duration::from_mins(2), "the server tells of it", || {
        jobs().contains("was failed over") && jobs().contains("\"recovery_point\":")
    });
    let metrics = get(source.port("http"), "/metrics");
    assert!(metrics.contains("kura_replicate_recovery_point_age_seconds{job=\"dr\""), "{metrics}");
}
