//! `kura serve` and the commands beside it, as a user meets them.

use crate::harness::{Home, Server, eventually, fails, ok, tool};
use crate::nbd::{Client, FLUSH, FUA, READ, TRIM, WRITE};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn a_first_start_says_what_to_try_and_serves_it() {
    let home = Home::new();
    let server = home.serve();
    assert!(server.said().lines().count() <= 24, "more than a screen:\n{}", server.said());
    let tcp = format!("nbd://127.0.0.1:{}/demo", server.port("nbd"));
    assert!(server.said().contains(&tcp), "no {tcp} in:\n{}", server.said());
    for uri in [&tcp, &home.uri("demo")] {
        assert_eq!(ok(tool("nbdinfo").args(["--size", uri])).trim(), (1 << 30).to_string());
    }
    let health = get(server.port("http"), "/healthz");
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    // A first request over S3, so that there is something to tell of it.
    get(server.port("S3      http"), "/demo");
    let metrics = get(server.port("http"), "/metrics");
    let about = |what: &str| -> Vec<_> {
        metrics.lines().filter_map(|line| line.strip_prefix(what)?.split(' ').next()).collect()
    };
    let (typed, helped) = (about("# TYPE "), about("# HELP "));
    assert!(
        ["kura_nbd_requests_total", "kura_s3_requests_total", "kura_healthy"].iter().all(|name| typed.contains(name))
    );
    let silent: Vec<_> = typed.iter().filter(|name| !helped.contains(name)).collect();
    assert!(silent.is_empty(), "nothing is said of {silent:?}");
    let api = get(server.port("http"), "/api/v1/openapi.json");
    assert!(api.contains("\"/api/v1/volumes\""), "{api}");
}

#[test]
fn logs_are_objects_where_that_is_asked_for() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "[log]\nformat = \"json\"\nlevel = \"info,kura=debug\"\n").expect("a file");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    drop(Client::connect(&home.socket(), "demo").expect("a connection"));
    let volume = Client::connect(&home.socket(), "demo").expect("a connection");
    home.ok(&["volume", "create", "v", "--size", "64M"]);
    // An error has the number of its request, in its head and in its body.
    let refused = get(server.port("http"), "/api/v1/volumes/none");
    let (head, body) = refused.split_once("\r\n\r\n").expect("an answer");
    let problem: Value = serde_json::from_str(body).expect("a problem");
    let id = problem["request_id"].as_str().expect("a number");
    assert!(id.len() == 32 && head.contains(&format!("x-request-id: {id}")), "{refused}");
    let unsigned = get(server.port("S3      http"), "/demo/none");
    assert!(unsigned.starts_with("HTTP/1.1 403") && unsigned.contains("x-amz-request-id: "), "{unsigned}");
    assert!(server.stop().success());
    drop(volume);
    let lines: Vec<Value> = server.log().lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    for line in &lines {
        assert!(["timestamp", "level", "message", "target"].iter().all(|name| line[name].is_string()), "{line}");
    }
    let said =
        |message: &str| lines.iter().find(|line| line["message"] == message).unwrap_or_else(|| panic!("{lines:?}"));
    assert_eq!(said("stopped")["level"], "INFO");
    // What is said while a request is served, or of a connection, names it.
    let created = &said("volume created")["span"];
    assert!(created["name"] == "rest" && created["method"] == "POST" && created["request"].is_string(), "{created}");
    let left = &said("NBD client left")["span"];
    assert!(left["name"] == "nbd" && left["volume"] == "demo" && left["peer"].is_string(), "{left}");
}

#[test]
fn a_stop_is_clean_and_keeps_everything() {
    let home = Home::new();
    let mut server = home.serve();
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    client.call(WRITE, 0, MIB, 4096, &[0x5a; 4096]).expect("a write");
    // The client neither flushes nor leaves: a stop writes everything and does not wait for it.
    assert!(server.stop().success());
    let mut server = home.serve();
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    assert_eq!(client.call(READ, 0, MIB, 4096, &[]).expect("a read"), [0x5a; 4096]);
    assert!(server.stop().success());
}

#[test]
fn after_a_crash_the_next_start_says_what_it_replayed() {
    let home = Home::new();
    let mut server = home.serve();
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    client.call(WRITE, FUA, 0, 4096, &[7; 4096]).expect("a write");
    server.kill();
    let server = home.serve();
    let said = format!("{}{}", server.said(), server.log());
    assert!(said.to_lowercase().contains("replayed"), "nothing about replay in:\n{said}");
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    assert_eq!(client.call(READ, 0, 0, 4096, &[]).expect("a read"), [7; 4096]);
    let status = json(&home, &["status"]);
    let replayed = status["controllers"].as_array().into_iter().flatten().map(|c| c["replayed_entries"].as_u64());
    assert!(replayed.flatten().sum::<u64>() > 0, "{status:#}");
}

#[test]
fn volumes_are_made_shown_resized_and_deleted() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["volume", "create", "logs", "--size", "64M", "--layout", "mirror", "--thick"]);
    let logs = volume(&home, "logs");
    assert_eq!(logs["size_bytes"], 64 * MIB);
    assert_eq!(logs["allocated_bytes"], 64 * MIB, "a thick volume takes its space at once");
    assert_eq!(logs["raw_bytes"], 128 * MIB, "a mirror takes it twice");
    assert!(fails(&mut home.kura(&["volume", "create", "logs", "--size", "64M"])).contains("logs"));

    let mut before = Client::connect(&home.socket(), "logs").expect("a connection");
    home.ok(&["volume", "resize", "logs", "96M"]);
    let mut after = Client::connect(&home.socket(), "logs").expect("a connection");
    assert_eq!(after.size_bytes, 96 * MIB, "a new connection sees the new size");
    let size = ok(tool("nbdinfo").args(["--size", &home.uri("logs")]));
    assert_eq!(size.trim(), (96 * MIB).to_string());
    after.call(WRITE, 0, 95 * MIB, 4096, &[1; 4096]).expect("a write beyond the old end");
    before.call(WRITE, 0, 0, 4096, &[2; 4096]).expect("an old connection goes on");
    assert!(fails(&mut home.kura(&["volume", "resize", "logs", "32M"])).contains("shrink"));

    drop((before, after));
    home.ok(&["volume", "delete", "logs", "--force"]);
    assert!(Client::connect(&home.socket(), "logs").is_err());
    assert!(fails(&mut home.kura(&["volume", "show", "logs"])).contains("logs"));
}

#[test]
fn discard_gives_the_space_back() {
    let home = Home::new();
    let _server = home.serve();
    let free = |home: &Home| json(home, &["status"])["pool"]["free_bytes"].as_u64().expect("free bytes");
    let before = free(&home);
    let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
    for at in 0..64 {
        client.call(WRITE, 0, at * MIB, MIB as u32, &vec![at as u8 + 1; MIB as usize]).expect("a write");
    }
    client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    assert!(free(&home) <= before - 64 * MIB);
    client.call(TRIM, FUA, 0, 64 * MIB as u32, &[]).expect("a trim");
    assert_eq!(volume(&home, "demo")["allocated_bytes"], 0);
    // Once a checkpoint has made it durable that nobody holds it.
    eventually(Duration::from_mins(2), "the pool has its space back", || free(&home) == before);
}

#[test]
fn a_command_without_a_server_says_where_it_looked() {
    let home = Home::new();
    let complaint = fails(&mut home.kura(&["status"]));
    assert!(complaint.contains("kura-data/admin.sock") && complaint.contains("kura serve"), "{complaint}");
    let wrong = home.kura(&["volume", "create"]).status().expect("kura");
    assert_eq!(wrong.code(), Some(2), "a usage error");
    let failed = home.kura(&["status"]).status().expect("kura");
    assert_eq!(failed.code(), Some(1), "a failure");
}

/// What says nothing is said to be waited for, and nobody else is shown what opens the server.
#[test]
fn a_server_that_says_nothing_is_named_and_a_token_goes_to_no_other_machine() {
    let home = Home::new();
    let server = home.serve();
    let signal = |name: &str| ok(tool("kill").args([name, &server.pid().to_string()]));
    signal("-STOP");
    let mut status = tool("timeout");
    let status = status.args(["6", env!("CARGO_BIN_EXE_kura"), "status"]).current_dir(home.path("")).output();
    signal("-CONT");
    let said = String::from_utf8_lossy(&status.expect("timeout").stderr).into_owned();
    assert!(said.contains("waiting for the server at ") && said.lines().count() == 1, "{said}");
    for command in [&["status"][..], &["replicate", "run", "volume:demo", "http://127.0.0.1:1/copy"]] {
        let elsewhere = [command, &["--server", "http://192.0.2.1:1", "--token", "secret"]].concat();
        let refused = home.kura(&elsewhere).output().expect("kura");
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        assert!(said.contains("name https://") && said.lines().count() == 1, "{said}");
    }
}

/// Nor does a key remain that nobody can use.
#[test]
fn a_server_whose_output_is_full_serves_all_the_same() {
    let home = Home::new();
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a full device");
    let mut serve = Command::new(env!("CARGO_BIN_EXE_kura"));
    serve.args(["serve", "--nbd", "127.0.0.1:0", "--s3", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    serve.current_dir(home.path("")).stdin(Stdio::null()).stdout(full).stderr(Stdio::null());
    let mut server = serve.spawn().expect("kura");
    let status = || home.kura(&["status"]).output().expect("kura").status.success();
    eventually(Duration::from_mins(1), "it serves", status);
    let has_key = || home.ok(&["key", "list"]).contains("demo");
    eventually(Duration::from_mins(1), "nobody has the key", || !has_key());
    assert!(server.try_wait().expect("the server").is_none(), "it has ended");
    server.kill().and_then(|()| server.wait()).expect("the server");
}

#[test]
fn a_stop_does_not_wait_for_idle_clients() {
    let home = Home::new();
    let mut server = home.serve();
    let connections: Vec<Client> =
        (0..8).map(|_| Client::connect(&home.socket(), "demo").expect("a connection")).collect();
    assert!(server.stop().success());
    drop(connections);
    assert!(server.wait(Duration::from_secs(1)).is_some());
}

/// A server on disks that are slow to read, with a mirrored volume `v` of which a check takes half a minute.
pub fn slow_to_check(home: &Home) -> Server {
    let ssd = "channels = 1, read_latency_ns = 100_000, write_latency_ns = 1_000, flush_latency_ns = 1_000, \
               read_bytes_per_s = 4_000_000, write_bytes_per_s = 1_000_000_000";
    let disk = |name: &str| {
        format!("{{ path = \"{name}\", class = \"slow\", size = \"512M\", model = {{ ssd = {{ {ssd} }} }} }}")
    };
    let fast = |name: &str| format!("{{ path = \"{name}\", class = \"fast\", size = \"256M\" }}");
    let disks = [fast("f"), fast("g"), disk("a"), disk("b")].join(", ");
    let config = format!("demo = \"0\"\n[tier]\npolicy = \"off\"\n[pool]\njournal = \"32M\"\ndisks = [{disks}]\n");
    std::fs::write(home.path("kura.toml"), config).expect("a configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["volume", "create", "v", "--size", "128M"]);
    ok(tool("qemu-io").args(["-f", "raw", "-c", "write -P 7 0 64M", "-c", "flush", &home.uri("v")]));
    server
}

/// A stop does not wait for it, and who asked for it is told.
#[test]
fn a_stop_ends_a_check() {
    let home = Home::new();
    let mut server = slow_to_check(&home);
    let mut check = home.kura(&["check"]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("a check");
    let port = server.port("http");
    eventually(Duration::from_secs(30), "the check runs", || get(port, "/api/v1/jobs").contains("running"));
    assert!(check.try_wait().expect("the check").is_none(), "the check is over already");
    assert!(server.stop().success());
    assert_eq!(check.wait().expect("the check").code(), Some(1), "a check that was cut short says that all is well");
}

/// A client that names no export means the only volume, which its snapshots do not change.
#[test]
fn the_only_volume_is_the_default_export_beside_its_snapshots() {
    let home = Home::new();
    let _server = home.serve();
    home.ok(&["snapshot", "create", "demo@a"]);
    let unnamed = format!("nbd+unix:///?socket={}", home.socket().display());
    assert_eq!(ok(tool("nbdinfo").args(["--size", &unnamed])).trim(), (1 << 30).to_string());
    home.ok(&["volume", "create", "other", "--size", "64M"]);
    fails(tool("nbdinfo").args(["--size", &unnamed]));
}

#[test]
fn a_switch_in_the_environment_is_on_with_1() {
    let home = Home::new();
    let mut serve = home.kura(&["serve", "--config", "missing.toml"]);
    let said = fails(serve.env("KURA_DEGRADED", "1"));
    assert!(said.contains("missing.toml"), "{said}");
}

/// What a command prints with `--json`.
pub fn json(home: &Home, args: &[&str]) -> Value {
    let text = home.ok(&[args, &["--json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{args:?} --json: {error}:\n{text}"))
}

pub fn volume(home: &Home, name: &str) -> Value {
    json(home, &["volume", "show", name])
}

pub fn get(port: u16, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the REST door");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}
