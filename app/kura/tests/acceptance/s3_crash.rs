//! Objects through `kill -9`, full pools and broken connections.

use crate::clients::nbdsh;
use crate::harness::{Home, eventually, fails, ok, tool};
use crate::object_cli::bytes;
use crate::s3::{Key, script};
use crate::serving::get;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, UNIX_EPOCH};

/// Crashes of the server under eight clients at work.
const ROUNDS: u32 = 8;

fn python(name: &str, server: &crate::harness::Server, key: &Key, args: &[&str]) -> Command {
    let mut command = script(name, server, key);
    command.args(args).env("ADMIN_URL", format!("http://127.0.0.1:{}", server.port("http")));
    command
}

#[test]
fn what_was_acknowledged_survives_kills() {
    let home = Home::new();
    let notes = home.path("notes");
    let notes = notes.to_str().unwrap();
    let mut server = home.serve();
    let key = Key::of(&server);
    for round in 1..=ROUNDS {
        let mut work = python("crash_work.py", &server, &key, &[notes, &round.to_string()]);
        let mut work = work.stdout(Stdio::piped()).spawn().expect("python3");
        let mut said = BufReader::new(work.stdout.take().expect("its output"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "at work\n");
        sleep(Duration::from_millis(300 + u64::from(round) * 370 % 1500));
        server.kill();
        said.read_to_string(&mut line).expect("its last line");
        assert!(work.wait().expect("python3").success(), "round {round}: {line}");
        server = home.serve();
        ok(&mut python("crash_look.py", &server, &key, &[notes]));
        let told = home.ok(&["check", "--tables"]);
        assert!(told.contains("all is well"), "round {round}: {told}");
    }
    assert!(home.ok(&["check"]).contains("all is well"));
}

/// The same of a server that acknowledges in memory: what it promises then.
#[test]
fn what_was_acknowledged_in_memory_is_durable_a_moment_later() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "[s3]\nacknowledge = 'memory'\n").expect("a configuration");
    let serve = || home.serve_with(&["--config", "kura.toml"]);
    let notes = home.path("notes");
    let notes = notes.to_str().unwrap();
    let mut server = serve();
    let key = Key::of(&server);
    let said = home.ok(&["status"]);
    assert!(said.contains("acknowledges in memory"), "{said}");
    for round in ["1", "2", "3"] {
        let mut work = python("memory_work.py", &server, &key, &[notes, round]);
        let mut work = work.stdout(Stdio::piped()).spawn().expect("python3");
        let mut said = BufReader::new(work.stdout.take().expect("its output"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert_eq!(line, "at work\n");
        sleep(Duration::from_secs(4));
        let crashed = UNIX_EPOCH.elapsed().expect("a clock that is right").as_secs_f64().to_string();
        server.kill();
        said.read_to_string(&mut line).expect("its last line");
        assert!(work.wait().expect("python3").success(), "round {round}: {line}");
        server = serve();
        // How many were lost: none where the pool's journal was quicker, as it often is.
        let said = ok(&mut python("memory_look.py", &server, &key, &[notes, round, &crashed]));
        said.trim().parse::<u32>().expect("how many are lost");
        assert!(home.ok(&["check", "--tables"]).contains("all is well"), "round {round}");
    }
    // Buckets and keys are durable all the same.
    home.ok(&["bucket", "create", "kept"]);
    home.ok(&["key", "create", "kept"]);
    server.kill();
    let mut server = serve();
    assert!(home.ok(&["bucket", "list"]).contains("kept") && home.ok(&["key", "list"]).contains("kept"));
    // A stop loses nothing, and what is set on the server counts from its next start on.
    home.ok(&["object", "put", "demo/last", "kura.toml"]);
    assert!(server.stop().success());
    let _server = home.serve();
    home.ok(&["object", "stat", "demo/last"]);
    assert!(!home.ok(&["status"]).contains("in memory"));
}

/// A server with a pool of so many MiB for data.
pub fn small_pool(home: &Home, mib: u32) -> crate::harness::Server {
    make_small_pool(home, mib);
    home.serve()
}

fn make_small_pool(home: &Home, mib: u32) {
    let disk = |name: &str, mib: u32| format!("{}={mib}M", home.path(name).display());
    let (fast, slow, data) = (disk("fast", 80), disk("slow", mib), home.data());
    let data = data.to_str().expect("UTF-8");
    home.ok(&[
        "pool",
        "create",
        "--fast",
        &fast,
        "--slow",
        &slow,
        "--data",
        data,
        "--controllers",
        "1",
        "--single-fast",
    ]);
}

/// Volumes that take all that is left of a pool.
pub fn fill_up(home: &Home) -> Vec<String> {
    let hog = |size: &str, name: &str| {
        let thick = ["volume", "create", name, "--size", size, "--thick", "--layout", "none"];
        home.kura(&thick).output().expect("kura").status.success()
    };
    let mut hogs = Vec::new();
    for size in ["64M", "16M", "4M"] {
        loop {
            let name = format!("hog-{}", hogs.len());
            if !hog(size, &name) {
                break;
            }
            hogs.push(name);
        }
    }
    hogs
}

#[test]
fn a_server_without_room_for_objects_serves_its_volumes() {
    let home = Home::new();
    make_small_pool(&home, 160);
    let mut without = Command::new(env!("CARGO_BIN_EXE_kura"));
    without.args(["serve", "--nbd", "127.0.0.1:0", "--s3", "off", "--admin", "127.0.0.1:0"]);
    let without = without.current_dir(home.path("")).stdin(Stdio::null());
    let mut without = without.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("kura");
    let answers = || home.kura(&["status"]).output().expect("kura").status.success();
    eventually(Duration::from_mins(1), "it serves", answers);
    let hogs = fill_up(&home);
    ok(tool("kill").args(["-TERM", &without.id().to_string()]));
    assert!(without.wait().expect("the first server").success());

    let mut server = home.serve();
    let log = server.log();
    assert!(log.contains("S3 is not served") && log.contains("the pool is full"), "{log}");
    let said = home.ok(&["status"]);
    assert!(said.contains("degraded") && said.contains("S3 is not served") && said.contains("make room"), "{said}");
    assert!(get(server.port("http"), "/metrics").contains("\nkura_healthy 0"), "the metrics say that all is well");
    nbdsh(&home.uri(&hogs[0]), "h.connect_uri(URI); h.pwrite(b'V' * 4096, 0); assert h.pread(4096, 0) == b'V' * 4096");
    let said = fails(&mut home.kura(&["bucket", "list"]));
    assert!(said.contains("could not open it"), "{said}");
    home.ok(&["volume", "delete", &hogs[0]]);
    assert!(server.stop().success());
    let _server = home.serve();
    home.ok(&["bucket", "create", "now"]);
}

#[test]
fn a_full_pool_refuses_puts_and_loses_nothing() {
    let home = Home::new();
    let mut server = small_pool(&home, 400);
    home.ok(&["bucket", "create", "demo"]);
    let made = home.ok(&["key", "create", "--json"]);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    let key = Key { id: text("id"), secret: text("secret") };
    let notes = home.path("notes");
    let notes = notes.to_str().unwrap();
    // Another volume takes most of the pool, and gives it back.
    home.ok(&["volume", "create", "hog", "--size", "240M", "--thick", "--layout", "none"]);
    ok(&mut python("full.py", &server, &key, &["fill", notes]));
    assert!(home.ok(&["check"]).contains("all is well"));
    server.kill();
    let mut server = home.serve();
    ok(&mut python("full.py", &server, &key, &["look", notes]));
    let hogs = fill_up(&home);
    ok(&mut python("full.py", &server, &key, &["inside", notes]));
    for hog in hogs {
        home.ok(&["volume", "delete", &hog]);
    }
    home.ok(&["volume", "delete", "hog"]);
    ok(&mut python("full.py", &server, &key, &["more", notes]));
    home.ok(&["volume", "create", "hog", "--size", "200M", "--thick", "--layout", "none"]);
    ok(&mut python("full.py", &server, &key, &["room", notes]));
    assert!(home.ok(&["check"]).contains("all is well"));
    assert!(server.stop().success());
}

/// Stores files of 8 MiB until there is no room for another one: how many.
fn fill(home: &Home, prefix: &str) -> usize {
    std::fs::write(home.path("file"), bytes(1, 8 << 20)).expect("a file");
    let stored = |at: &usize| {
        let put = home.kura(&["object", "put", &format!("demo/{prefix}{at}"), "file"]).output().expect("kura");
        let said = String::from_utf8_lossy(&put.stderr).into_owned();
        assert!(put.status.success() || said.contains("no space is left"), "{said}");
        put.status.success()
    };
    (0..1000).take_while(stored).count()
}

#[test]
fn the_object_store_grows_with_the_pool() {
    let home = Home::new();
    let config = "demo = '0'\n[pool]\nextent = '1M'\njournal = '32M'\ncontrollers = 1\n\
                  disks = [{ path = 'a', class = 'slow', size = '200M' }]\n";
    std::fs::write(home.path("kura.toml"), config).expect("a configuration");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["bucket", "create", "demo"]);
    let first = fill(&home, "first");
    assert!(first > 5, "{first} objects of 8 MiB fit");
    home.ok(&["pool", "grow", "b=300M", "--class", "slow"]);
    // Its size in the beginning was the pool's.
    home.ok(&["volume", "resize", "objects", "220M"]);
    let resized = fill(&home, "resized");
    assert!(resized > 1, "{resized} more fit after the resize");
    assert!(server.stop().success());
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    let started = fill(&home, "started");
    assert!(
        resized + started > first,
        "{first} in the beginning, {resized} after the resize, {started} after the start"
    );
    home.ok(&["object", "get", &format!("demo/started{}", started - 1), "back"]);
    assert!(std::fs::read(home.path("back")).expect("a file") == bytes(1, 8 << 20));
    assert!(home.ok(&["check"]).contains("all is well"));
    assert!(server.stop().success());
}

#[test]
fn half_bodies_and_cut_connections_leave_nothing() {
    let home = Home::new();
    let server = home.serve();
    ok(&mut python("broken.py", &server, &Key::of(&server), &[]));
    assert!(home.ok(&["check"]).contains("all is well"));
}
