//! A pool that gets full says so before it is: once in the log, and in the status and the metrics for as long as it is so.

use crate::harness::{Home, Server, eventually};
use crate::nbd::{Client, FLUSH, TRIM, WRITE};
use crate::serving::{get, json};
use serde_json::Value;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// How soon a threshold is told, and what is given up is free.
const SOON: Duration = Duration::from_mins(2);
const POOL: &str = "demo = '0'
[pool]
controllers = 2
extent = '1M'
journal = '16M'
disks = [
    { path = 'fast0', class = 'fast', size = '64M' },
    { path = 'fast1', class = 'fast', size = '64M' },
    { path = 'slow', class = 'slow', size = '200M' },
]
";

/// Writes these megabytes of the volume, each to its end.
fn write(client: &mut Client, megabytes: std::ops::Range<u64>) {
    for at in megabytes {
        client.call(WRITE, 0, at * MIB, MIB as u32, &vec![at as u8 + 1; MIB as usize]).expect("a write");
    }
    client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
}

/// Waits until the status says that this threshold is passed and no higher one, and looks at all the ways to tell it.
fn expect_passed(home: &Home, server: &Server, percent: Option<u64>) -> Value {
    let pool = || json(home, &["status"])["pool"].clone();
    eventually(SOON, &format!("{percent:?} is passed"), || pool()["passed_percent"].as_u64() == percent);
    let metrics = get(server.port("http"), "/metrics");
    let metric = format!("\nkura_pool_passed_percent {}\n", percent.unwrap_or(0));
    assert!(metrics.contains(&metric), "no {metric} in {metrics}");
    let says = percent.map_or("the pool is filling up".to_owned(), |percent| format!("{percent}% is passed"));
    for text in [home.ok(&["status"]), home.ok(&["pool", "status"])] {
        assert_eq!(text.contains(&says), percent.is_some(), "{text}");
    }
    assert_eq!(json(home, &["status"])["health"], "healthy", "a pool that gets full is not broken");
    pool()
}

/// Waits until the log has so many lines with these words, and returns them: the status may tell of it first.
fn told(server: &Server, words: &str, times: usize) -> Vec<String> {
    let lines =
        || -> Vec<String> { server.log().lines().filter(|line| line.contains(words)).map(str::to_owned).collect() };
    eventually(SOON, &format!("{words:?} is in the log"), || lines().len() >= times);
    assert_eq!(lines().len(), times, "{words}: {}", server.log());
    lines()
}

#[test]
fn a_pool_that_gets_full_warns_until_there_is_room_again() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), POOL).expect("a configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    let data = json(&home, &["status"])["pool"]["data_bytes"].as_u64().expect("bytes") / MIB;
    let part = |percent: u64| data * percent / 100;
    home.ok(&["volume", "create", "v", "--size", &format!("{data}M"), "--layout", "none"]);
    let mut client = Client::connect(&home.socket(), "v").expect("a connection");

    // What snapshots keep counts, and is told apart from what volumes hold.
    write(&mut client, 0..part(60));
    expect_passed(&home, &server, None);
    home.ok(&["snapshot", "create", "v@one"]);
    write(&mut client, 0..part(24));
    let pool = expect_passed(&home, &server, Some(80));
    let bytes = |name: &str| pool[name].as_u64().expect("bytes");
    assert!((part(60) * MIB..part(64) * MIB).contains(&bytes("volume_bytes")), "{pool}");
    assert!((part(24) * MIB..part(28) * MIB).contains(&bytes("snapshot_bytes")), "{pool}");
    write(&mut client, part(24)..part(33));
    expect_passed(&home, &server, Some(95));
    for (percent, remedy) in [(80, "delete snapshots"), (95, "kura disk add")] {
        let lines = told(&server, &format!("{percent}% is passed"), 1);
        assert!(lines[0].contains("WARN") && lines[0].contains(remedy), "{lines:?}");
    }

    // Room again: by a snapshot that goes, and by what is trimmed.
    home.ok(&["snapshot", "delete", "v@one"]);
    expect_passed(&home, &server, None);
    told(&server, "less than 80% again", 1);
    // Far enough below the next one: some of what the snapshot held may be on its way back yet.
    write(&mut client, part(60)..part(86));
    expect_passed(&home, &server, Some(80));
    told(&server, "80% is passed", 2);
    for at in part(40)..part(86) {
        client.call(TRIM, 0, at * MIB, MIB as u32, &[]).expect("a trim");
    }
    client.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
    expect_passed(&home, &server, None);
    home.ok(&["check"]);
}

#[test]
fn thresholds_are_configured() {
    let home = Home::new();
    let config = POOL.replace("[pool]\n", "[pool]\nwarn_at_percent = [20]\n");
    std::fs::write(home.path("kura.toml"), config).expect("a configuration");
    let mut server = home.serve_with(&["--config", "kura.toml"]);
    home.ok(&["volume", "create", "v", "--size", "64M", "--layout", "none", "--thick"]);
    expect_passed(&home, &server, Some(20));
    // What is so at the start is told at the start.
    server.kill();
    server = home.serve_with(&["--config", "kura.toml"]);
    expect_passed(&home, &server, Some(20));
    told(&server, "20% is passed", 1);
}
