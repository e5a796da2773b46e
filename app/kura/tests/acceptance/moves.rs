//! Volumes that change their controller while clients write to them, and the server killed in the middle of it.
//!
//! A writer keeps what it was told; a mover moves the volume back and forth. Of what was under way when the server was killed
//! each block is old or new, and the volume has one owner. Hot blocks are their controller's: they go cold before they move.

use crate::crash::Random;
use crate::harness::{Ends, Home, Server, eventually, fails};
use crate::nbd::{Client, FUA, READ, WRITE};
use crate::serving::{json, volume};
use crate::snapshots::rest;
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 2048;
/// Blocks of a write.
const RUN: u64 = 4;

fn content(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if version > 0 {
        for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&(version << 20 ^ block << 9 ^ at as u64).to_le_bytes());
        }
    }
    bytes
}

fn run(first: u64, version: u64) -> Vec<u8> {
    (first..first + RUN).map(|block| content(block, version)).collect::<Vec<_>>().concat()
}

/// What a client was told of each block, and what it asked for last.
struct Writer {
    versions: Vec<u64>,
    pending: Option<(u64, u64)>,
    version: u64,
    random: Random,
    slowest: Duration,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let versions = vec![0; BLOCKS as usize];
        Self { versions, pending: None, version: 0, random: Random(seed), slowest: Duration::ZERO }
    }

    /// Writes and reads until told to stop, over one connection; an error when the server died.
    fn work(&mut self, home: &Home, stop: &AtomicBool) -> std::io::Result<u64> {
        let mut client = Client::connect(&home.socket(), "v")?;
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            let first = self.random.below(BLOCKS - RUN);
            self.version += 1;
            self.pending = Some((first, self.version));
            let begun = Instant::now();
            client.call(WRITE, FUA, first * BLOCK, (RUN * BLOCK) as u32, &run(first, self.version))?;
            self.slowest = self.slowest.max(begun.elapsed());
            self.versions[first as usize..(first + RUN) as usize].fill(self.version);
            self.pending = None;
            let block = self.random.below(BLOCKS);
            let read = client.call(READ, 0, block * BLOCK, BLOCK as u32, &[])?;
            assert_eq!(read, content(block, self.versions[block as usize]), "block {block}");
            done += 1;
        }
        Ok(done)
    }

    /// Works for a while, and returns what the volume holds then.
    fn work_for(&mut self, home: &Home, time: Duration) -> Vec<u64> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            let client = scope.spawn(|| self.work(home, &stop));
            std::thread::sleep(time);
            stop.store(true, Ordering::Relaxed);
            client.join().expect("the client").expect("no request failed")
        });
        self.versions.clone()
    }

    /// Holds the volume to what the client was told.
    fn settle(&mut self, home: &Home) {
        let mut client = Client::connect(&home.socket(), "v").expect("a connection");
        let pending = self.pending.take();
        for block in 0..BLOCKS {
            let read = client.call(READ, 0, block * BLOCK, BLOCK as u32, &[]).expect("a read");
            let known = &mut self.versions[block as usize];
            if let Some((first, version)) = pending
                && (first..first + RUN).contains(&block)
                && read == content(block, version)
            {
                *known = version;
            }
            assert!(read == content(block, *known), "block {block} is not what it was written as");
        }
    }
}

/// Holds an export to what the volume was.
fn hold(home: &Home, export: &str, versions: &[u64]) {
    let mut client = Client::connect(&home.socket(), export).expect("a connection");
    for (version, block) in versions.iter().zip(0..) {
        let read = client.call(READ, 0, block * BLOCK, BLOCK as u32, &[]).expect("a read");
        assert!(read == content(block, *version), "{export}: block {block} is not what it was");
    }
}

/// Moves the volume, and waits for the end of that; an error when the server dies.
fn move_to(home: &Home, controller: u64) -> std::io::Result<()> {
    let (_, job) = rest(home, "POST", "volumes/v/move", &format!("{{\"controller\": {controller}}}"))?;
    let job: Value = serde_json::from_str(&job)?;
    let (_, events) = rest(home, "GET", &format!("jobs/{}/events", job["id"]), "")?;
    let gone = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
    if events.contains("ended_at") { Ok(()) } else { Err(gone()) }
}

/// A server of two controllers with these disks, and a volume that has the layout that goes with them.
fn served(disks: &[&str], layout: &str) -> (Home, Server) {
    let home = Home::new();
    let data = home.data();
    let disks: Vec<String> = disks.iter().map(|name| format!("{}=2G", home.path(name).display())).collect();
    let slow = disks.iter().flat_map(|disk| ["--slow", disk]);
    let create = ["pool", "create", "--data", data.to_str().expect("UTF-8"), "--controllers", "2"];
    home.ok(&create.into_iter().chain(slow).collect::<Vec<_>>());
    let server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "8M"]);
    assert_eq!(volume(&home, "v")["layout"], layout);
    (home, server)
}

#[test]
fn a_volume_moves_while_a_client_uses_it() {
    let (home, _server) = served(&["a", "b"], "mirror");
    let stop = AtomicBool::new(false);
    let mut writer = Writer::new(7);
    let done = std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        let client = scope.spawn(|| writer.work(&home, &stop));
        home.ok(&["snapshot", "create", "v@one"]);
        for turn in 0..20 {
            let owner = volume(&home, "v")["controller"].as_u64().expect("a number");
            let to = (1 - owner).to_string();
            let moved = json(&home, &["volume", "move-to", "v", &to]);
            assert_eq!(moved["from"], owner, "turn {turn}");
            assert_eq!(volume(&home, "v")["controller"], 1 - owner);
        }
        stop.store(true, Ordering::Relaxed);
        client.join().expect("the client").expect("no request failed")
    });
    println!("{done} writes, the slowest took {:?}", writer.slowest);
    assert!(done > 20, "{done} writes in 20 moves");
    writer.settle(&home);
    home.ok(&["snapshot", "delete", "v@one"]);
    home.ok(&["check"]);
    home.ok(&["controller", "drain", "1"]);
    home.ok(&["volume", "create", "w", "--size", "8M"]);
    let listed = json(&home, &["controller", "list"]);
    assert_eq!((listed[1]["volumes"].as_u64(), listed[1]["drained"].as_bool()), (Some(0), Some(true)), "{listed}");
    assert!(fails(&mut home.kura(&["controller", "drain", "0"])).contains("no other one"));
    home.ok(&["controller", "resume", "1"]);
    home.ok(&["volume", "create", "x", "--size", "8M"]);
    assert_eq!(volume(&home, "x")["controller"], 1);
    let nowhere = fails(&mut home.kura(&["volume", "move-to", "v", "7"]));
    assert!(nowhere.contains("controller 7"), "{nowhere}");
    let missing = fails(&mut home.kura(&["volume", "move-to", "none", "1"]));
    assert!(missing.contains("none: no such volume"), "{missing}");
}

#[test]
fn drains_keep_clients_and_snapshots() {
    let (home, mut server) = served(&["a", "b", "c"], "hot-mirror");
    let mut writer = Writer::new(11);
    let one = writer.work_for(&home, Duration::from_millis(500));
    home.ok(&["snapshot", "create", "v@one"]);
    let two = writer.work_for(&home, Duration::from_millis(500));
    home.ok(&["snapshot", "create", "v@two"]);
    home.ok(&["snapshot", "clone", "v@one", "c"]);
    let members = ["v", "v@one", "v@two", "c"];
    let stop = AtomicBool::new(false);
    let done = std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        let client = scope.spawn(|| writer.work(&home, &stop));
        for turn in 0..6 {
            let drained = volume(&home, "v")["controller"].as_u64().expect("a number");
            home.ok(&["controller", "drain", &drained.to_string()]);
            for member in members {
                assert_eq!(volume(&home, member)["controller"], 1 - drained, "turn {turn}: {member}");
            }
            let listed = json(&home, &["controller", "list"]);
            assert_eq!(listed[drained as usize]["volumes"], 0, "turn {turn}: {listed}");
            hold(&home, ["v@one", "v@two", "c"][turn % 3], [&one, &two, &one][turn % 3]);
            home.ok(&["controller", "resume", &drained.to_string()]);
        }
        stop.store(true, Ordering::Relaxed);
        client.join().expect("the client").expect("no request failed")
    });
    assert!(done > 6, "{done} writes in 6 drains");
    for crash in [false, true] {
        if crash {
            server.kill();
            server = home.serve();
        }
        writer.settle(&home);
        for (name, versions) in [("v@one", &one), ("v@two", &two), ("c", &one)] {
            hold(&home, name, versions);
        }
        home.ok(&["check"]);
    }
    drop(server);
}

#[test]
fn a_drain_is_remembered() {
    let (home, mut server) = served(&["a", "b"], "mirror");
    home.ok(&["volume", "move-to", "v", "1"]);
    home.ok(&["controller", "drain", "1"]);
    let is_drained = |home: &Home| json(home, &["controller", "list"])[1]["drained"].as_bool();
    // After a crash, and after a stop, which leaves no record of it in the journal.
    for crash in [true, false] {
        if crash {
            server.kill();
        } else {
            assert!(server.stop().success());
        }
        server = home.serve();
        assert_eq!(is_drained(&home), Some(true), "after a crash: {crash}");
        home.ok(&["volume", "create", "w", "--size", "64M"]);
        assert_eq!(volume(&home, "w")["controller"], 0, "the smaller one is drained");
        home.ok(&["volume", "delete", "w"]);
        assert!(fails(&mut home.kura(&["controller", "drain", "0"])).contains("no other one"));
    }
    home.ok(&["controller", "resume", "1"]);
    server.kill();
    server = home.serve();
    assert_eq!(is_drained(&home), Some(false));
    home.ok(&["volume", "create", "w", "--size", "64M"]);
    assert_eq!(volume(&home, "w")["controller"], 1);
    drop(server);
}

#[test]
fn ten_crashes_leave_one_owner_and_all_data() {
    let (home, mut server) = served(&["a", "b", "c"], "hot-mirror");
    let seed = std::process::id().into();
    println!("seed {seed}");
    let (mut random, mut writer) = (Random(seed), Writer::new(seed));
    home.ok(&["snapshot", "create", "v@one"]);
    let moves = AtomicU64::new(0);
    for round in 1..=10 {
        let time = Duration::from_millis(100 + random.below(500));
        std::thread::scope(|scope| {
            let (server, home, moves, stop) = (&mut server, &home, &moves, AtomicBool::new(false));
            let client = scope.spawn({
                let writer = &mut writer;
                move || writer.work(home, &stop)
            });
            scope.spawn(move || {
                std::thread::sleep(time);
                let is_moved = || moves.load(Ordering::Relaxed) >= 2 * round || !server.is_alive();
                eventually(Duration::from_mins(1), "the volume moves", is_moved);
                assert!(server.is_alive(), "the server ended by itself");
                server.kill();
            });
            for turn in 0.. {
                match move_to(home, turn % 2) {
                    Ok(()) => moves.fetch_add(1, Ordering::Relaxed),
                    Err(_) => break,
                };
            }
            assert!(client.join().expect("the client").is_err(), "the server was killed");
        });
        server = home.serve();
        let volumes = json(&home, &["volume", "list"]);
        let owners = volumes.as_array().expect("a list").iter().filter(|volume| volume["name"] == "v").count();
        assert_eq!(owners, 1, "{volumes}");
        writer.settle(&home);
        home.ok(&["check"]);
    }
    println!("{} moves, {} writes", moves.into_inner(), writer.version);
}
