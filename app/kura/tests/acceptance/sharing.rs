//! What controllers tell of the pool that they share, and of the stops that snapshots make, counted while real clients write.

use crate::harness::{Ends, Home, Server, eventually};
use crate::nbd::{Client, READ, WRITE};
use crate::serving::{get, json, volume};
use serde_json::Value;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: u64 = 4096;
const EXTENT: u64 = 1 << 20;
/// Extents that each controller takes on each of two disks.
const EXTENTS: u64 = 256;
/// Writes of each client: the first of every four finds a new extent.
const REQUESTS: u64 = 4 * EXTENTS;

/// A server whose two controllers share two disks by a method, each with a volume.
fn served(sharing: &str) -> (Home, Server) {
    served_with(&format!("sharing = '{sharing}'"))
}

/// The same with a line of the configuration's `[pool]`.
fn served_with(line: &str) -> (Home, Server) {
    let home = Home::new();
    let disk =
        |name: &str| format!("{{ path = {:?}, class = 'slow', size = '64G' }}", home.path(name).display().to_string());
    let config =
        format!("demo = '0'\n[pool]\ncontrollers = 2\nextent = '1M'\n{line}\ndisks = [{}, {}]\n", disk("a"), disk("b"));
    std::fs::write(home.path("kura.toml"), config).expect("a configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    for (name, controller) in [("v0", "0"), ("v1", "1")] {
        home.ok(&["volume", "create", name, "--size", &(EXTENTS * EXTENT).to_string()]);
        home.ok(&["volume", "move-to", name, controller]);
    }
    (home, server)
}

/// A number that both controllers tell under `sharing`, summed.
fn sum(controllers: &Value, name: &str) -> u64 {
    let of = |one: &Value| one["sharing"][name].as_u64().unwrap_or_else(|| panic!("{name} in {controllers}"));
    controllers.as_array().expect("controllers").iter().map(of).sum()
}

#[test]
fn each_method_reaches_for_shared_memory_as_it_promises() {
    let taken = 2 * 2 * EXTENTS;
    for sharing in ["aggregate", "message", "access-change", "lease"] {
        let (home, _server) = served(sharing);
        let begun = Barrier::new(2);
        std::thread::scope(|scope| {
            for name in ["v0", "v1"] {
                let (home, begun) = (&home, &begun);
                scope.spawn(move || {
                    let mut client = Client::connect(&home.socket(), name).expect("a connection");
                    for request in 0..REQUESTS {
                        if request == 1 {
                            begun.wait();
                        }
                        let at = request / 4 * EXTENT + request % 4 * BLOCK;
                        client.call(WRITE, 0, at, BLOCK as u32, &[7; BLOCK as usize]).expect("a write");
                    }
                });
            }
        });
        let controllers = json(&home, &["controller", "list"]);
        let [accesses, messages, drops, hits, carried] =
            ["shared_accesses", "messages", "drops", "local_hits", "carried"].map(|name| sum(&controllers, name));
        let context = format!("{sharing}: {controllers}");
        assert_eq!(controllers[1]["sharing"]["method"], sharing, "{context}");
        assert!(hits >= 2 * REQUESTS && carried == 0, "{context}");
        match sharing {
            // Its part of each disk, once.
            "aggregate" => assert!(accesses <= 16 && messages == 0 && drops == 0, "{context}"),
            // Who has not used a disk yet is told nothing of it: that may be so for the first write's extents.
            "message" => assert!(accesses >= 3 * taken && messages >= taken - 4 && drops > 0, "{context}"),
            "access-change" => assert!(accesses >= 3 * taken && messages == 0 && drops == 0, "{context}"),
            _ => assert!(accesses * 8 <= 3 * taken && messages == 0 && drops == 0, "{context}"),
        }
        let stats = home.ok(&["controller", "stats"]);
        assert!(stats.contains(sharing) && stats.contains("SHARED ACCESSES/1000"), "{stats}");
        home.ok(&["check"]);
    }
}

#[test]
fn a_connection_follows_its_volume() {
    let (home, server) = served("lease");
    let mut client = Client::connect(&home.socket(), "v0").expect("a connection");
    let mut idle = Client::connect(&home.socket(), "v0").expect("another one");
    let write = |client: &mut Client| client.call(WRITE, 0, 0, BLOCK as u32, &[7; BLOCK as usize]).expect("a write");
    write(&mut client);
    let carried = || sum(&json(&home, &["controller", "list"]), "carried");
    for _ in 0..4 {
        let to = 1 - volume(&home, "v0")["controller"].as_u64().expect("a number");
        home.ok(&["volume", "move-to", "v0", &to.to_string()]);
        // Whatever comes before a connection is there is carried, and what comes then is not.
        for client in [&mut client, &mut idle] {
            eventually(Duration::from_mins(1), "the connection is where its volume is", || {
                let before = carried();
                (0..10).for_each(|_| drop(write(client)));
                carried() == before
            });
        }
        eventually(Duration::from_mins(1), "nobody is counted twice", || volume(&home, "v0")["clients"] == 2);
    }
    let metrics = get(server.port("http"), "/metrics");
    assert!(metrics.contains("kura_controller_carried_total{controller=\"0\"}"), "{metrics}");
}

#[test]
fn a_controller_with_much_to_do_gives_a_volume_away() {
    const AREA: u64 = 256;
    let (home, server) = served_with("balance_s = 1");
    let names = ["v0", "v1"];
    for name in names {
        home.ok(&["volume", "move-to", name, "0"]);
        let mut client = Client::connect(&home.socket(), name).expect("a connection");
        for block in 0..AREA {
            client.call(WRITE, 0, block * BLOCK, BLOCK as u32, &[1; BLOCK as usize]).expect("a write");
        }
        home.ok(&["snapshot", "create", &format!("{name}@before")]);
    }
    let done = AtomicBool::new(false);
    let images = std::thread::scope(|scope| {
        let _ends = Ends(&done);
        let clients = names.map(|name| {
            let (home, done) = (&home, &done);
            scope.spawn(move || {
                let mut client = Client::connect(&home.socket(), name).expect("a connection");
                let mut image = vec![1; AREA as usize];
                for number in 0.. {
                    if done.load(Ordering::Relaxed) {
                        break;
                    }
                    let (block, byte) = (number % AREA, (number / AREA % 200 + 2) as u8);
                    client.call(WRITE, 0, block * BLOCK, BLOCK as u32, &[byte; BLOCK as usize]).expect("a write");
                    image[block as usize] = byte;
                }
                image
            })
        });
        let owner = |name: &str| volume(&home, name)["controller"].as_u64().expect("a number");
        let owners = || names.map(owner);
        eventually(Duration::from_mins(2), "each controller has one", || owners()[0] != owners()[1]);
        let now = owners();
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(owners(), now, "there is nothing more to gain");
        assert_eq!(["v0@before", "v1@before"].map(owner), now, "snapshots go along");
        done.store(true, Ordering::Relaxed);
        clients.map(|client| client.join().expect("the client"))
    });
    let told = server.log().lines().filter(|line| line.contains("moved to a less busy controller")).count();
    assert_eq!(told, 1, "{}", server.log());
    for (name, image) in names.into_iter().zip(images) {
        hold(&home, &format!("{name}@before"), &[1; AREA as usize]);
        hold(&home, name, &image);
    }
    home.ok(&["check"]);
}

/// Each block of an export is full of its byte.
fn hold(home: &Home, export: &str, image: &[u8]) {
    let mut client = Client::connect(&home.socket(), export).expect("a connection");
    for (byte, block) in image.iter().zip(0..) {
        let read = client.call(READ, 0, block * BLOCK, BLOCK as u32, &[]).expect("a read");
        assert!(read == [*byte; BLOCK as usize], "{export}: block {block} is not all {byte}");
    }
}

/// What all controllers tell of the stops that snapshots made: a number of each, summed.
fn stops(home: &Home, name: &str) -> u64 {
    let controllers = json(home, &["controller", "list"]);
    let of = |one: &Value| one["snapshot_stops"][name].as_u64().unwrap_or_else(|| panic!("{name} in {controllers}"));
    controllers.as_array().expect("controllers").iter().map(of).sum()
}

/// No time is held to a bound here, for a busy machine would break it: the work of a stop is counted instead.
#[test]
fn a_snapshot_is_the_same_work_for_a_volume_of_any_size() {
    let home = Home::new();
    std::fs::write(home.path("kura.toml"), "demo = '0'\n").expect("a configuration");
    let server = home.serve_with(&["--config", "kura.toml"]);
    let done = AtomicBool::new(false);
    let mut made = 0;
    for (name, size) in [("small", "1M"), ("large", "1P")] {
        home.ok(&["volume", "create", name, "--size", size, "--layout", "none"]);
        let mut client = Client::connect(&home.socket(), name).expect("a connection");
        client.call(WRITE, 0, 0, BLOCK as u32, &[1; BLOCK as usize]).expect("a write");
        std::thread::scope(|scope| {
            let (done, _ends) = (&done, Ends(&done));
            done.store(false, Ordering::Relaxed);
            let writer = scope.spawn(move || {
                let mut writes = 0;
                while !done.load(Ordering::Relaxed) {
                    client.call(WRITE, 0, 0, BLOCK as u32, &[2; BLOCK as usize]).expect("a write");
                    writes += 1;
                }
                writes
            });
            for number in 0..10 {
                let before = stops(&home, "records");
                home.ok(&["snapshot", "create", &format!("{name}@{number}")]);
                made += 1;
                // The snapshot, and with the first one what they share.
                let records = stops(&home, "records") - before;
                assert_eq!(records, if number == 0 { 2 } else { 1 }, "{name}@{number}");
                assert_eq!(stops(&home, "count"), made);
            }
            done.store(true, Ordering::Relaxed);
            let writes: u64 = writer.join().expect("the client");
            println!("{name}: {writes} writes, the longest stop so far {} ns", stops(&home, "longest_ns"));
            assert!(writes > 0);
        });
    }
    let metrics = get(server.port("http"), "/metrics");
    let count = |line: &&str| line.starts_with("kura_snapshot_stop_seconds_count");
    let counts = metrics.lines().filter(count).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert_eq!(counts.sum::<u64>(), made, "{metrics}");
    assert!(metrics.contains("# TYPE kura_snapshot_stop_seconds histogram"), "{metrics}");
}
