//! What the commands promise: directories that move, room that is there or refused, nouns and their verbs.

use crate::clients::nbdsh;
use crate::harness::{Home, Server, eventually, fails, ok, tool};
use crate::serving::{json, volume};
use serde_json::Value;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A server on a pool of small files, with two controllers.
fn small(home: &Home) -> Server {
    home.ok(&["pool", "create", "--controllers", "2", "--journal", "16M", "--fast", "f0=128M", "--fast", "f1=128M"]
        .into_iter()
        .chain(["--slow", "s0=512M", "--slow", "s1=512M", "--slow", "s2=512M"])
        .collect::<Vec<_>>());
    home.serve()
}

fn refused(home: &Home, args: &[&str], why: &str) {
    let said = fails(&mut home.kura(args));
    assert!(said.contains(why) && said.lines().count() == 1, "{args:?}: {said}");
}

/// Memory of a server, in MiB.
fn resident_mib(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server's status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("its memory");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("KiB") >> 10
}

#[test]
fn a_copied_data_directory_has_its_own_disks() {
    let home = Home::new();
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "64M", "--layout", "raid5"]);
    nbdsh(&home.uri("v"), "h.connect_uri(URI)\nfor i in range(0, 4096): h.pwrite(b'A' * 512, i * 9000)\nh.flush()");
    assert!(server.stop().success());
    let copy = home.path("copy");
    ok(tool("cp").args(["-a", "--sparse=always"]).arg(home.data()).arg(&copy));
    let uri = format!("nbd+unix:///v?socket={}", copy.join("nbd.sock").display());
    let mut other = home.serve_with(&["--data", "copy"]);
    assert!(!other.said().contains("replayed"), "a clean stop leaves nothing to replay: {}", other.said());
    nbdsh(&uri, "h.connect_uri(URI); assert h.pread(512, 0) == b'A' * 512; h.pwrite(b'B' * 4096, 0)");
    // Both at once: they have nothing in common.
    let mut server = home.serve();
    assert!(!server.said().contains("replayed"), "{}", server.said());
    nbdsh(&home.uri("v"), "h.connect_uri(URI); assert h.pread(512, 0) == b'A' * 512");
    assert!(server.stop().success() && other.stop().success());
    // And where it is moved to, it has them too.
    std::fs::rename(home.data(), home.path("moved")).expect("the directory");
    std::fs::rename(&copy, home.data()).expect("the directory");
    let _server = home.serve();
    nbdsh(&home.uri("v"), "h.connect_uri(URI); assert h.pread(4096, 0) == b'B' * 4096");
}

#[test]
fn a_thick_volume_that_does_not_fit_takes_no_room() {
    let home = Home::new();
    let _server = small(&home);
    let free = || json(&home, &["pool", "status"])["free_bytes"].as_u64().expect("bytes");
    for layout in ["mirror", "raid5", "none"] {
        let before = free();
        refused(
            &home,
            &["volume", "create", "big", "--size", "8G", "--layout", layout, "--thick"],
            "the pool has room for",
        );
        assert_eq!(free(), before, "{layout}");
    }
    refused(&home, &["volume", "show", "big"], "no such volume");
    // What fits to the last extent is made.
    let args = ["volume", "create", "v", "--size", "64M", "--layout", "mirror", "--thick"];
    home.ok(&args);
    home.ok(&["snapshot", "create", "v@a"]);
    refused(&home, &["volume", "resize", "v", "8G", "--dry-run"], "the pool has room for");
    refused(&home, &["volume", "resize", "v", "8G"], "the pool has room for");
    assert_eq!(volume(&home, "v")["size_bytes"], 64 << 20);
    home.ok(&["volume", "resize", "v", "96M"]);
    let grown = volume(&home, "v");
    assert_eq!((&grown["size_bytes"], &grown["allocated_bytes"]), (&(96 << 20).into(), &(96 << 20).into()));
}

#[test]
fn volumes_move_by_either_noun() {
    let home = Home::new();
    let _server = small(&home);
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    let at = || volume(&home, "v")["controller"].as_u64().expect("a number");
    for args in [&["volume", "move-to", "v"][..], &["controller", "move", "v"]] {
        let to = 1 - at();
        let said = home.ok(&[args, &[&to.to_string()]].concat());
        assert!(said.contains("has moved from controller"), "{said}");
        assert_eq!(at(), to);
    }
    home.ok(&["volume", "move-to", "v", "0"]);
}

#[test]
fn a_pool_grows_is_scrubbed_and_goes_elsewhere() {
    let home = Home::new();
    let mut server = small(&home);
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    home.ok(&["snapshot", "schedule", "add", "v", "--every", "1h", "--keep", "3"]);
    nbdsh(&home.uri("v"), "h.connect_uri(URI); h.pwrite(b'J' * 65536, 0, nbd.CMD_FLAG_FUA)");
    let said = home.ok(&["pool", "grow", "s3=512M", "s4=512M"]);
    assert!(said.contains("disk 5 (") && said.contains("disk 6 ("), "{said}");
    refused(&home, &["pool", "grow", "nowhere"], "there is no such disk");
    assert!(home.ok(&["pool", "scrub"]).contains("all is well"));
    let identity = json(&home, &["disk", "identify", "6"]);
    let path = home.path("s4").canonicalize().expect("the disk");
    assert_eq!(identity["device"].as_str(), path.to_str());
    assert!(home.ok(&["disk", "identify", "6"]).contains("a file, "));
    refused(&home, &["disk", "identify", "9"], "no such disk");

    refused(&home, &["pool", "export"], "is in use by process");
    assert!(server.stop().success());
    refused(&home, &["pool", "export", "--cancel"], "was not exported");
    // Access keys that a rollback keeps would not go along.
    let keys = home.data().join("keys-of-rollback.json");
    std::fs::write(&keys, "[]").expect("a file");
    refused(&home, &["pool", "export"], "start the server with S3");
    std::fs::remove_file(&keys).expect("the file");
    // What is no file stays what it is, and so does what lies beside the file.
    ok(tool("mkfifo").arg(home.path("pipe")));
    refused(&home, &["pool", "export", "-o", "pipe"], "is not a file");
    std::fs::write(home.path("along.new"), "another's").expect("a file");
    let said = home.ok(&["pool", "export", "-o", "along.json"]);
    assert_eq!(std::fs::read_to_string(home.path("along.new")).expect("it is there"), "another's");
    assert!(said.contains("kura pool import --export along.json"), "{said}");
    refused(&home, &["serve", "--nbd", "off", "--s3", "off", "--admin", "off"], "its pool was exported");
    // What another pool has is not this one's.
    home.ok(&["pool", "create", "--data", "other", "--fast", "o0=512M", "--fast", "o1=512M", "--slow", "o2=512M"]);
    refused(
        &home,
        &["pool", "import", "--data", "no", "--export", "along.json", "o0", "o1", "o2"],
        "from another pool",
    );
    assert!(!home.path("no").exists());
    let disks = ["f0", "f1", "s0", "s1", "s2", "s3", "s4"];
    home.ok(&[&["pool", "import", "--data", "there", "--export", "along.json"], &disks[..]].concat());
    let mut server = home.serve_with(&["--data", "there"]);
    let there = |args: &[&str]| home.ok(&[args, &["--server", "there/admin.sock"]].concat());
    assert!(there(&["snapshot", "schedule", "list"]).contains('v'));
    let uri = format!("nbd+unix:///v?socket={}", home.path("there").join("nbd.sock").display());
    nbdsh(&uri, "h.connect_uri(URI); assert h.pread(65536, 0) == b'J' * 65536");
    assert!(server.stop().success());
    home.ok(&["pool", "export", "--cancel"]);
    let _server = home.serve();
}

#[test]
fn a_thin_volume_of_a_pebibyte_costs_what_it_holds() {
    let home = Home::new();
    let mut server = home.serve();
    let before = resident_mib(&server);
    let began = Instant::now();
    home.ok(&["volume", "create", "huge", "--size", "1P"]);
    home.ok(&["snapshot", "create", "huge@a"]);
    nbdsh(
        &home.uri("huge"),
        "h.connect_uri(URI); h.pwrite(b'Z' * 8192, (1 << 50) - 8192); h.pwrite(b'Z' * 8192, 1 << 49); h.flush()",
    );
    for (one, other) in [("huge@a", "huge"), ("huge", "huge@a")] {
        let diff = json(&home, &["snapshot", "diff", one, other]);
        let ranges = diff["ranges"].as_array().expect("ranges");
        let at: Vec<_> = ranges.iter().map(|range| range["offset_bytes"].as_u64()).collect();
        assert_eq!(at, [Some(1 << 49), Some((1 << 50) - 8192)], "{diff}");
        assert_eq!(diff["changed_bytes"], 16384, "{diff}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    let grown = resident_mib(&server) - before;
    assert!(grown < 256, "{grown} MiB for a volume that holds 16 KiB");
    server.kill();
    let _server = home.serve();
    nbdsh(&home.uri("huge"), "h.connect_uri(URI); assert h.pread(8192, (1 << 50) - 8192) == b'Z' * 8192");
    assert!(home.ok(&["check"]).contains("all is well"));
    home.ok(&["snapshot", "delete", "huge@a"]);
    home.ok(&["volume", "resize", "huge", "1G", "--shrink"]);
}

#[test]
fn what_makes_no_sense_is_refused_on_a_line_and_makes_nothing() {
    let home = Home::new();
    for (args, why) in [
        (&["volume", "crate", "v"][..], "`kura volume --help`"),
        (&["volume", "create", "v"], "--size <SIZE>"),
        (&["replicate", "add", "j", ".", "/t", "--every", "0s"], "from 1s"),
        (&["replicate", "add", "j", ".", "ftp://there/t"], "ftp:// is no target"),
        (&["replicate", "run", ".", "gopher://t"], "s3://"),
        (&["snapshot", "schedule", "add", "v", "--every", "10ms", "--keep", "2"], "from 1s"),
    ] {
        refused(&home, args, why);
    }
    let (source, full) = (home.path("source"), home.path("full"));
    for folder in [&source, &full] {
        std::fs::create_dir(folder).expect("a folder");
        std::fs::write(folder.join("file"), "of somebody").expect("a file");
    }
    refused(&home, &["replicate", "run", "source", "full"], "is not empty");
    assert!(!home.data().exists(), "a refused run left a data directory");
    home.ok(&["replicate", "run", "source", "copy"]);
}

#[test]
fn mistakes_are_objects_where_json_is_asked_for() {
    let home = Home::new();
    let told = |args: &[&str]| -> Value {
        let said = fails(&mut home.kura(args));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{args:?}: {error}: {said}"))
    };
    let usage = told(&["volume", "create", "v", "--json"]);
    assert_eq!(usage["kind"], "usage");
    assert!(usage["error"].as_str().is_some_and(|error| error.contains("--size <SIZE>")), "{usage}");
    assert_eq!(usage["remedy"], "`kura volume create --help` tells more");
    assert_eq!(home.kura(&["volume", "create", "v", "--json"]).output().expect("kura").status.code(), Some(2));
    std::fs::write(home.path("kura.toml"), "[nbd]\nlistn = 1\n").expect("a file");
    let one = told(&["config", "check", "kura.toml", "--json"]);
    let place = serde_json::json!({
        "file": "kura.toml", "line": 2, "column": 1, "key": "nbd.listn", "text": "no such key: listn; did you mean listen?"
    });
    assert_eq!((&one["kind"], &one["findings"]), (&"invalid".into(), &serde_json::json!([place])));
    std::fs::write(home.path("kura.toml"), "[nbd]\nin_flight = 0\nconnections = 0\n").expect("a file");
    let two = told(&["config", "check", "kura.toml", "--json"]);
    assert_eq!(
        (two["findings"].as_array().map(Vec::len), &two["error"]),
        (Some(2), &"2 mistakes in the configuration".into())
    );
    assert_eq!(told(&["status", "--json"])["kind"], "no-server");
}

#[test]
fn a_command_that_could_never_be_right_has_a_status_of_its_own() {
    let home = Home::new();
    let _server = home.serve();
    for (args, named) in [
        (&["bench", "volume", "--block", "3"][..], "block"),
        (&["bench", "object", "--size", "128M"], "--size"),
        (&["object", "get", "demo/a"], "name a file"),
        (&["lab", "run", "nosuch"], "nosuch"),
        (&["status", "--server", "https://127.0.0.1:1"], "--ca"),
        (&["status", "--token", "abc\n"], "--token <TOKEN>: "),
        (&["status", "--token", ""], "--token <TOKEN>: "),
        (&["key", "create", "k", "--bucket", "demo=read", "--bucket", "demo=write"], "--bucket says demo twice"),
        (&["object", "put", "demo/a", "-", "--metadata", "a=1", "--metadata", "A=2"], "--metadata says a twice"),
        (&["object", "put", "demo/a", "-", "--metadata", "a b=1"], "--metadata <NAME=VALUE>"),
        (&["object", "put", "demo/a", "-", "--metadata", "a=b\nc"], "--metadata <NAME=VALUE>"),
        (&["object", "put", "demo/a", "-", "--content-type", "a\nb"], "--content-type <TYPE>"),
        (&["bench", "volume", "--server", "http://192.0.2.1:7400"], "is another machine"),
        (&["disk", "identify", "0", "--server", "http://192.0.2.1:7400"], "is another machine"),
        (&["volume"], "kura volume wants one of: create, delete, "),
        (&[], "kura wants one of: bench, bucket, "),
    ] {
        let output = home.kura(args).arg("--json").output().expect("kura");
        let said: Value = serde_json::from_slice(&output.stderr).expect("an object");
        assert_eq!((output.status.code(), &said["kind"]), (Some(2), &"usage".into()), "{args:?}: {said}");
        assert!(said["error"].as_str().is_some_and(|error| error.contains(named)), "{args:?}: {said}");
    }
    assert_eq!(json(&home, &["key", "list"]).as_array().map(Vec::len), Some(1), "beside that of the demo");
    // A command that wants another word is explained, whatever is in the environment.
    for (args, named) in [(&[][..], "Usage: kura "), (&["volume"], "Usage: kura volume ")] {
        let output = home.kura(args).env("KURA_SERVER", "kura-data/admin.sock").output().expect("kura");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(2) && said.contains(named) && said.lines().count() > 5,
            "{args:?}: {said}"
        );
    }
}

/// A variable that is there and empty is as good as none; one that cannot be is told, but for a secret.
#[test]
fn an_empty_variable_counts_as_unset() {
    let home = Home::new();
    let _server = home.serve();
    let mut status = home.kura(&["status"]);
    for name in ["KURA_SERVER", "KURA_TOKEN", "KURA_CA", "KURA_DATA"] {
        status.env(name, "");
    }
    ok(&mut status);
    let output = home.kura(&["status"]).env("KURA_TOKEN", "abc\n").output().expect("kura");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("--token") && !said.contains("abc"), "{said}");
}

#[test]
fn a_measurement_that_is_interrupted_leaves_nothing() {
    let home = Home::new();
    let _server = home.serve();
    let list = |noun: &str| json(&home, &[noun, "list"]).to_string();
    for (bench, noun) in [("volume", "volume"), ("object", "bucket")] {
        let mut running = home.kura(&["bench", bench, "--time", "1m"]);
        // `timeout` passes signals on.
        let mut running = running.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kura");
        eventually(Duration::from_secs(30), "it is at work", || list(noun).contains("bench-"));
        let asked = Instant::now();
        ok(tool("kill").args(["-TERM", &running.id().to_string()]));
        let status = running.wait().expect("kura");
        // It ends itself, however early it is asked: the signal ends nothing half way.
        assert!(
            status.code() == Some(1) && asked.elapsed() < Duration::from_secs(30),
            "{status} {:?}",
            asked.elapsed()
        );
        assert!(!list(noun).contains("bench-"), "{}", list(noun));
    }
}

#[test]
fn objects_go_to_standard_output_and_keys_stay_on_their_lines() {
    let home = Home::new();
    let _server = home.serve();
    std::fs::write(home.path("file"), "content").expect("a file");
    home.ok(&["object", "put", "demo/two\nlines\x1b[1m", "file"]);
    assert_eq!(home.ok(&["object", "get", "demo/two\nlines\x1b[1m", "-"]), "content");
    assert!(!home.path("-").exists());
    let listed = home.ok(&["object", "list", "demo"]);
    assert!(listed.lines().count() == 1 && listed.contains(r"two\nlines\u{1b}[1m"), "{listed}");
}

#[test]
fn a_server_is_measured_and_nothing_is_left() {
    let home = Home::new();
    let _server = home.serve();
    let volumes = || json(&home, &["volume", "list"]);
    let before = volumes();
    let loads = json(&home, &["bench", "volume", "--time", "1s", "--clients", "2"]);
    let what: Vec<_> = loads.as_array().expect("rows").iter().map(|row| row["requests"].as_u64() > Some(0)).collect();
    assert_eq!(what, [true; 4], "{loads}");
    assert_eq!(volumes().as_array().map(Vec::len), before.as_array().map(Vec::len));
    nbdsh(&home.uri("demo"), "h.connect_uri(URI); h.pwrite(b'K' * 4096, 0)");
    let said = home.ok(&["bench", "volume", "demo", "--time", "1s"]);
    assert!(said.contains("read, anywhere") && !said.contains("write"), "{said}");
    nbdsh(&home.uri("demo"), "h.connect_uri(URI); assert h.pread(4096, 0) == b'K' * 4096");
    refused(&home, &["bench", "volume", "absent"], "no such volume");
    let said = home.ok(&["bench", "object", "--time", "1s", "--clients", "2"]);
    assert!(said.contains("put") && said.contains("get"), "{said}");
    assert!(!home.ok(&["bucket", "list"]).contains("bench"));
}
