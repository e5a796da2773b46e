//! Snapshots by real clients: made, read, written to, compared, rolled back to and deleted, one and a thousand.

use crate::clients::nbdsh;
use crate::crash::Random;
use crate::harness::{Ends, Home, eventually, fails, ok, tool};
use crate::nbd::{Client, FUA, READ, WRITE};
use crate::serving::{get, json, volume};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;

/// A request to the REST door of this machine, and the answer's status and body; an error when the server dies.
pub fn rest(home: &Home, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = UnixStream::connect(home.data().join("admin.sock"))?;
    let head = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{method} /api/v1/{path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(gone)?;
    Ok((status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default()))
}

/// Runs a command until it succeeds: a client that has just left may still be counted, a roll-back may still go on.
pub fn soon(home: &Home, args: &[&str]) {
    eventually(Duration::from_mins(2), &args.join(" "), || {
        home.kura(args).output().is_ok_and(|output| output.status.success())
    });
}

fn free_bytes(home: &Home) -> u64 {
    json(home, &["pool", "status"])["free_bytes"].as_u64().expect("bytes")
}

/// The checksum of an export, by `nbdcopy`.
pub fn checksum(home: &Home, export: &str) -> String {
    ok(tool("sh").args(["-c", "nbdcopy -- \"$0\" - | sha256sum", &home.uri(export)]))
}

/// A file of random bytes, and its checksum.
fn random_file(home: &Home, name: &str, mib: u64) -> String {
    let path = home.path(name);
    ok(tool("sh").args(["-c", &format!("head -c {mib}M /dev/urandom > '{}'", path.display())]));
    ok(tool("sh").args(["-c", &format!("sha256sum < '{}'", path.display())]))
}

fn copy_in(home: &Home, name: &str, export: &str) {
    ok(tool("nbdcopy").args(["--flush", "--", &home.path(name).display().to_string(), &home.uri(export)]));
}

/// The ranges of an export that `nbdinfo` says have bit 0 in a context: offset and length in bytes.
pub fn mapped(home: &Home, context: &str, export: &str) -> Vec<(u64, u64)> {
    let map = ok(tool("nbdinfo").args([&format!("--map={context}"), "--json", &home.uri(export)]));
    let map: Value = serde_json::from_str(&map).expect("nbdinfo's map");
    let entry = |entry: &Value| (entry["offset"].as_u64().expect("offset"), entry["length"].as_u64().expect("length"));
    let entries = map.as_array().expect("a map").iter();
    entries.filter(|entry| entry["type"].as_u64().expect("a type") & 1 == 1).map(entry).collect()
}

#[test]
fn a_snapshot_stays_what_its_volume_was() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    let (one, two) = (random_file(&home, "one", 64), random_file(&home, "two", 64));
    copy_in(&home, "one", "v");
    home.ok(&["snapshot", "create", "v@one", "--read-only"]);
    let before = free_bytes(&home);
    copy_in(&home, "two", "v");
    assert_eq!((checksum(&home, "v@one"), checksum(&home, "v")), (one.clone(), two.clone()));
    fails(tool("nbdcopy").args(["--", &home.path("one").display().to_string(), &home.uri("v@one")]));

    // A clone is a volume of its own.
    home.ok(&["snapshot", "clone", "v@one", "c"]);
    assert_eq!(checksum(&home, "c"), one);
    nbdsh(&home.uri("c"), "h.connect_uri(URI); h.pwrite(b'c' * 4096, 0, nbd.CMD_FLAG_FUA)");
    assert_ne!(checksum(&home, "c"), one);
    assert_eq!((checksum(&home, "v@one"), checksum(&home, "v")), (one.clone(), two));
    let volumes = json(&home, &["volume", "list"]);
    let volume = |name: &str| volumes.as_array().and_then(|all| all.iter().find(|one| one["name"] == name)).cloned();
    assert_eq!(volume("v").expect("v")["snapshots"], 1);
    assert_eq!(volume("c").expect("c")["made_of"], "v@one");
    assert_eq!(volume("v@one"), None, "snapshots have a list of their own");

    // What is there is there after a crash.
    server.kill();
    let _server = home.serve();
    assert_eq!(checksum(&home, "v@one"), one);
    let complaint = fails(&mut home.kura(&["snapshot", "delete", "v@one"]));
    assert!(complaint.contains("made of it") && complaint.contains("delete"), "{complaint}");
    soon(&home, &["snapshot", "rollback", "v@one"]);
    assert_eq!(checksum(&home, "v"), one);
    soon(&home, &["volume", "delete", "c"]);
    soon(&home, &["snapshot", "delete", "v@one"]);
    assert_eq!(checksum(&home, "v"), one);
    eventually(Duration::from_mins(2), "what the snapshot had is given back", || {
        free_bytes(&home) + 24 * MIB >= before
    });
    home.ok(&["check"]);
}

#[test]
fn what_changed_is_told_to_people_nbdinfo_and_qemu() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    random_file(&home, "one", 64);
    copy_in(&home, "one", "v");
    let change = |script: &str| nbdsh(&home.uri("v"), &format!("h.connect_uri(URI)\n{script}\nh.flush()"));
    home.ok(&["snapshot", "create", "v@a"]);
    change("h.pwrite(b'x' * 8192, 4096)\nh.pwrite(b'x' * 4096, 2**20)\nh.trim(65536, 2**25)");
    home.ok(&["snapshot", "create", "v@b"]);
    change("h.pwrite(b'y' * 4096, 2**21)");
    let (since_a, since_b) = (vec![(4096, 8192), (1 << 20, 4096), (1 << 25, 65536)], vec![(1 << 21, 4096)]);
    let all = [&since_a[..2], &since_b, &since_a[2..]].concat();
    for (earlier, later, expected) in [("v@a", "v@b", &since_a), ("v@b", "v", &since_b), ("v@a", "v", &all)] {
        for namespace in ["kura:changed-since", "qemu:dirty-bitmap"] {
            assert_eq!(mapped(&home, &format!("{namespace}:{earlier}"), later), *expected, "{earlier} to {later}");
        }
        let diff = json(&home, &["snapshot", "diff", earlier, later]);
        let range = |range: &Value| (range["offset_bytes"].as_u64().unwrap(), range["size_bytes"].as_u64().unwrap());
        let ranges: Vec<_> = diff["ranges"].as_array().expect("ranges").iter().map(range).collect();
        assert_eq!(ranges, *expected, "{earlier} to {later}");
    }
    assert!(home.ok(&["snapshot", "diff", "v@a", "v@b"]).contains("76K in 3 ranges"));
    let contexts = ok(tool("nbdinfo").args(["--json", &home.uri("v@b")]));
    let contexts: Value = serde_json::from_str(&contexts).expect("nbdinfo's facts");
    let offered = ["base:allocation", "kura:changed-since:v@a", "qemu:dirty-bitmap:v@a"];
    assert_eq!(contexts["exports"][0]["contexts"], serde_json::json!(offered));

    // QEMU shows what is dirty as what is not there: the bit is the one of a hole.
    let image = format!(
        "driver=nbd,server.type=unix,server.path={},export=v,x-dirty-bitmap=qemu:dirty-bitmap:v@b",
        home.socket().display()
    );
    let map = ok(tool("qemu-img").args(["map", "--output=json", "--image-opts", &image]));
    let map: Value = serde_json::from_str(&map).expect("qemu-img's map");
    let dirty: Vec<_> = map.as_array().expect("a map").iter().filter(|entry| entry["data"] == false).collect();
    assert_eq!(dirty.len(), 1, "{map}");
    assert_eq!((&dirty[0]["start"], &dirty[0]["length"]), (&(1 << 21).into(), &4096.into()));
}

/// More than one answer tells: what is asked for goes on where the one before ended.
#[test]
fn thousands_of_ranges_are_told_to_the_last() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    random_file(&home, "one", 64);
    copy_in(&home, "one", "v");
    home.ok(&["snapshot", "create", "v@a"]);
    let every_second = "for at in range(4096, 2**26, 8192):\n    h.pwrite(b'x' * 4096, at)";
    nbdsh(&home.uri("v"), &format!("h.connect_uri(URI)\n{every_second}\nh.flush()"));
    let expected: Vec<(u64, u64)> = (0..8192).map(|number| (8192 * number + 4096, 4096)).collect();
    assert!(mapped(&home, "kura:changed-since:v@a", "v") == expected, "the export tells otherwise");
    let diff = json(&home, &["snapshot", "diff", "v@a", "v"]);
    let range = |range: &Value| (range["offset_bytes"].as_u64().unwrap(), range["size_bytes"].as_u64().unwrap());
    let ranges: Vec<_> = diff["ranges"].as_array().expect("ranges").iter().map(range).collect();
    assert!(ranges == expected, "{} ranges are listed", ranges.len());
}

#[test]
fn a_group_is_of_one_instant_on_all_controllers() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "demo = '0'\npool.controllers = 2\n").expect("a configuration");
    let _server = home.serve_with(&["--config", "kura.toml"]);
    let names = ["a", "b", "c", "d"];
    for name in names {
        home.ok(&["volume", "create", name, "--size", "4M"]);
    }
    let controllers = json(&home, &["controller", "list"]);
    let busy = |one: &Value| one["volumes"].as_u64() > Some(0);
    assert!(controllers.as_array().expect("controllers").iter().all(busy), "{controllers}");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        // Each number is written to all volumes, one after the other: at any instant they differ by one at most.
        scope.spawn(|| {
            let mut clients = names.map(|name| Client::connect(&home.socket(), name).expect("a connection"));
            for number in 1_u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                for client in &mut clients {
                    client.call(WRITE, 0, 0, 8, &number.to_be_bytes()).expect("a write");
                }
            }
        });
        for round in 0..20 {
            let group: Vec<String> = names.iter().map(|name| format!("{name}@{round}")).collect();
            let args: Vec<&str> = ["snapshot", "create"].into_iter().chain(group.iter().map(String::as_str)).collect();
            home.ok(&args);
            let numbers: Vec<u64> = group
                .iter()
                .map(|name| {
                    let mut client = Client::connect(&home.socket(), name).expect("a connection");
                    let read = client.call(READ, 0, 0, 8, &[]).expect("a read");
                    u64::from_be_bytes(read.try_into().expect("eight bytes"))
                })
                .collect();
            let fits = numbers.windows(2).all(|pair| pair[0] >= pair[1]) && numbers[0] - numbers[3] <= 1;
            assert!(fits, "round {round}: {numbers:?} were not all there at one instant");
            let owner = |name: &str| volume(&home, name)["controller"].as_u64().expect("a number");
            let owners = [group.iter().map(|name| owner(name)).collect(), names.map(owner).to_vec()];
            assert_eq!(owners[0], owners[1], "round {round}: a snapshot is its volume's controller's");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    home.ok(&["check"]);
}

/// Runs a command that must fail, with one line that says why.
fn refused(home: &Home, line: &str, expected: &str) {
    let args: Vec<&str> = line.split(' ').collect();
    let complaint = fails(&mut home.kura(&args));
    assert!(complaint.contains(expected) && complaint.trim().lines().count() == 1, "{line}: {complaint}");
}

#[test]
fn what_cannot_be_is_refused_in_a_line() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "16M"]);
    home.ok(&["volume", "create", "w", "--size", "16M"]);
    home.ok(&["snapshot", "create", "v@a", "w@a"]);
    home.ok(&["snapshot", "clone", "v@a", "c"]);
    let client = Client::connect(&home.socket(), "v").expect("a connection");
    let cases: [(&str, &str); 17] = [
        ("create v@a", "choose another name"),
        ("create v@b v@a", "v@a: exists"),
        ("create absent@a", "volume absent: no such volume: see `kura volume list`"),
        ("create v", "give VOLUME@NAME"),
        ("create v@", "give VOLUME@NAME"),
        ("create v@a/b", "give VOLUME@NAME"),
        ("create v@b v@b", "named twice: give each"),
        ("list absent", "volume absent: no such volume"),
        ("delete v@a", "delete them first"),
        ("delete v@none", "v@none: no such snapshot; `kura snapshot list` lists them"),
        ("delete v", "give VOLUME@NAME"),
        ("rollback v@a", "say --force"),
        ("clone v@a w", "w: exists"),
        ("clone v@a x@y", "without @"),
        ("diff v@a w@a", "give two snapshots of one volume"),
        ("diff v@a absent", "volume absent: no such volume"),
        ("schedule add absent --every 1h --keep 1", "volume absent: no such volume"),
    ];
    for (line, expected) in cases {
        refused(&home, &format!("snapshot {line}"), expected);
    }
    assert_eq!(json(&home, &["snapshot", "list", "v"]).as_array().map(Vec::len), Some(1), "all or none are made");
    home.ok(&["snapshot", "rollback", "v@a", "--force"]);
    drop(client);
}

#[test]
fn bad_sizes_and_families_are_refused_in_a_line() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "16M"]);
    home.ok(&["snapshot", "create", "v@a"]);
    home.ok(&["snapshot", "clone", "v@a", "c"]);
    home.ok(&["snapshot", "create", "v@large"]);
    home.ok(&["volume", "resize", "v@large", "32M"]);
    let long = format!("snapshot create v@{}", "n".repeat(255));
    let cases = [
        ("volume create v --size 16M", "v: exists"),
        ("volume create c --size 16M", "c: exists"),
        ("volume create x --size 0", "give a multiple of 4096"),
        ("volume create x --size 1000", "give a multiple of 4096"),
        ("volume create x --size 4097", "give a multiple of 4096"),
        ("volume create x@y --size 16M", "without / and @"),
        ("volume resize v 0 --shrink", "give a multiple of 4096"),
        ("volume resize v@a 0 --shrink", "give a multiple of 4096"),
        ("volume resize v@a 16777217", "give a multiple of 4096"),
        ("volume resize c 1000 --shrink", "give a multiple of 4096"),
        ("volume resize v 8M", "say --shrink"),
        ("volume resize v 8M --shrink", "can grow but not shrink"),
        ("volume delete v", "delete them first"),
        ("volume delete v --force", "delete them first"),
        ("snapshot delete v@a --force", "delete them first"),
        ("snapshot create v@a@", "give VOLUME@NAME"),
        ("snapshot create v@none@b", "volume v@none: no such volume"),
        ("snapshot rollback v@a@none", "v@a@none: no such snapshot"),
        (&long, "1 to 255 bytes"),
        ("snapshot clone v x", "give VOLUME@NAME"),
        ("snapshot clone v@none x", "v@none: no such snapshot"),
        ("snapshot clone v@a c", "c: exists"),
        ("snapshot clone v@a x/y", "without /"),
        ("snapshot rollback v", "give VOLUME@NAME"),
        ("snapshot rollback v@none", "v@none: no such snapshot"),
        ("snapshot rollback v@large", "kura volume resize"),
        ("snapshot schedule add v --every 0s --keep 1", "from 1s to"),
        ("snapshot schedule add v --every 1h --keep 0", "1..=4096"),
        ("snapshot schedule add v --every 1h --keep 1 --prefix a@b", "without / and @"),
        ("snapshot schedule remove v", "has no schedule"),
    ];
    for (line, expected) in cases {
        refused(&home, line, expected);
    }
    // Whoever asks for a size of its own is not given another one.
    for (path, body) in [
        ("snapshots", r#"{"names": ["v@b"], "size_bytes": 1000}"#),
        ("snapshots/v@a/clone", r#"{"name": "x", "size_bytes": 0}"#),
    ] {
        let (status, answer) = rest(&home, "POST", path, body).expect("an answer");
        assert!(status == 400 && answer.contains("size_bytes"), "{path}: {status} {answer}");
    }
    let volumes = json(&home, &["volume", "list"]);
    let names: Vec<_> = volumes.as_array().expect("volumes").iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["c", "demo", "objects", "v"], "nothing is made of what is refused");
}

#[test]
fn schedules_make_and_delete_snapshots_and_outlive_a_crash() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "16M"]);
    home.ok(&["snapshot", "create", "v@mine"]);
    home.ok(&["snapshot", "schedule", "add", "v", "--every", "1s", "--keep", "2"]);
    let complaint = fails(&mut home.kura(&["snapshot", "schedule", "add", "v", "--every", "1h", "--keep", "2"]));
    assert!(complaint.contains("--prefix"), "{complaint}");
    let names = || -> Vec<String> {
        let list = json(&home, &["snapshot", "list", "v"]);
        let name = |one: &Value| one["name"].as_str().expect("a name").to_owned();
        list.as_array().expect("a list").iter().map(name).collect()
    };
    let mut first = Vec::new();
    eventually(Duration::from_mins(1), "two are made", || {
        first = names();
        first.len() == 3
    });
    assert!(first[0] == "v@mine" && first[1..].iter().all(|name| name.starts_with("v@auto-20")), "{first:?}");
    server.kill();
    server = home.serve();
    eventually(Duration::from_mins(1), "others take their place", || {
        let now = names();
        now.len() == 3 && now[0] == "v@mine" && !now.contains(&first[1]) && !now.contains(&first[2])
    });
    // A copy is made by its source alone.
    let failing = || {
        let list = json(&home, &["snapshot", "schedule", "list"]);
        let metrics = get(server.port("http"), "/metrics");
        let told = metrics.lines().find_map(|line| line.strip_prefix("kura_snapshot_schedule_failing"));
        told.expect("a gauge").ends_with(" 1") && list[0]["error"].as_str().is_some_and(|error| error.contains("copy"))
    };
    assert!(!failing());
    let (status, answer) = rest(&home, "PUT", "replicas/v", r#"{"point":"mine"}"#).expect("an answer");
    assert!(status == 200, "{answer}");
    eventually(Duration::from_mins(1), "why it fails is told", failing);
    assert!(home.ok(&["snapshot", "schedule", "list"]).contains("copy"));
    let (status, answer) = rest(&home, "POST", "replicas/v/promote", "").expect("an answer");
    assert!(status == 200, "{answer}");
    eventually(Duration::from_mins(1), "it fails no more", || !failing());
    home.ok(&["snapshot", "schedule", "remove", "v"]);
    assert_eq!(json(&home, &["snapshot", "schedule", "list"]), serde_json::json!([]));
    assert!(server.stop().success());
}

/// Snapshots of one volume: the issue's number.
const MANY: usize = 1000;
/// Blocks of their volume, and blocks written before each of them.
const BLOCKS: u64 = 256;
const BURST: u64 = 8;

#[test]
fn a_thousand_snapshots_are_read_back_and_deleted() {
    many_are_read_back_and_deleted("redirect", MANY);
}

#[test]
fn many_snapshots_are_read_back_and_deleted_where_old_data_is_copied() {
    many_are_read_back_and_deleted("copy", MANY / 4);
}

fn many_are_read_back_and_deleted(saving: &str, many: usize) {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), format!("demo = '0'\npool.saving = '{saving}'\n")).expect("a configuration");
    // An object store takes an extent more when it tidies up, a minute after it was opened.
    let _server = home.serve_with(&["--config", "kura.toml", "--s3", "off"]);
    let empty = free_bytes(&home);
    home.ok(&["volume", "create", "v", "--size", "1M", "--thick"]);
    let alone = free_bytes(&home);
    let mut random = Random(5);
    let mut image = vec![0; (BLOCKS * BLOCK) as usize];
    let mut client = Client::connect(&home.socket(), "v").expect("a connection");
    let (mut sums, mut creates, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
    let timed = |times: &mut Vec<Duration>, method, path: &str, body: &str| {
        let begun = Instant::now();
        let (status, answer) = rest(&home, method, path, body).expect("an answer");
        times.push(begun.elapsed());
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
    };
    for number in 0..many {
        for _ in 0..BURST {
            let at = (random.below(BLOCKS) * BLOCK) as usize;
            let block = &mut image[at..at + BLOCK as usize];
            block.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
            client.call(WRITE, 0, at as u64, BLOCK as u32, block).expect("a write");
        }
        sums.push(crc32c::crc32c(&image));
        timed(&mut creates, "POST", "snapshots", &format!("{{\"names\": [\"v@{number}\"]}}"));
    }
    let shuffled = |random: &mut Random| {
        let mut order: Vec<usize> = (0..many).collect();
        (1..many).rev().for_each(|last| order.swap(last, random.below(last as u64 + 1) as usize));
        order
    };
    for number in shuffled(&mut random) {
        let mut snapshot = Client::connect(&home.socket(), &format!("v@{number}")).expect("a connection");
        let read = snapshot.call(READ, 0, 0, (BLOCKS * BLOCK) as u32, &[]).expect("a read");
        assert_eq!(crc32c::crc32c(&read), sums[number], "snapshot {number}");
    }
    for number in shuffled(&mut random) {
        timed(&mut deletes, "DELETE", &format!("snapshots/v@{number}?force=true"), "");
    }
    let read = client.call(READ, 0, 0, (BLOCKS * BLOCK) as u32, &[]).expect("a read");
    assert_eq!(crc32c::crc32c(&read), sums[many - 1]);
    client.call(WRITE, FUA, 0, 1, &image[..1]).expect("a write");
    drop(client);
    home.ok(&["check"]);
    let (made, deleted) = (growth("create", &creates), growth("delete", &deletes));
    assert!(made < 5.0 && deleted < 5.0, "what a snapshot costs grows with their number: {made:.1}, {deleted:.1}");
    eventually(Duration::from_mins(2), "the volume is alone again", || free_bytes(&home) == alone);
    soon(&home, &["volume", "delete", "v"]);
    eventually(Duration::from_mins(1), "the pool is empty", || free_bytes(&home) == empty);
}

/// How much longer one half took than the other, each by the median of its quickest fifty in a row, for the machine may be
/// busy with something else most of the time. A cost that grows with their number is ten times as much in one half.
fn growth(what: &str, times: &[Duration]) -> f64 {
    let median = |part: &[Duration]| {
        let mut part = part.to_vec();
        part.sort();
        part[part.len() / 2].as_secs_f64() * 1e3
    };
    let quickest = |half: &[Duration]| half.chunks(50).map(median).fold(f64::INFINITY, f64::min);
    let (first, last) = times.split_at(times.len() / 2);
    let (first, last) = (quickest(first), quickest(last));
    println!("{what}: {first:.2} ms at the quickest of the first half, {last:.2} ms of the second");
    (first / last).max(last / first)
}
