//! A pool that is filled to the last extent by snapshots, over NBD, under each policy.
//!
//! What must hold: what finds no room gets "no space left on device", the status says so, and nothing hangs; each block is what it
//! was or what was written, and the snapshots that are there are what they were, over a kill too; what is deleted makes room
//! while clients are at work, also where a roll-back waits for some; in the end the pool has everything back.

use crate::harness::{Ends, Home, eventually, fails};
use crate::nbd::{Client, FLUSH, READ, WRITE};
use crate::serving::json;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;
/// What a request writes.
const PIECE: usize = 64 << 10;
const PIECES: usize = 512;
const BLOCKS: usize = PIECES * PIECE / BLOCK;
const IN_FLIGHT: usize = 8;
/// How soon what was given up is free.
const SOON: Duration = Duration::from_mins(1);
const NAMES: [&str; 2] = ["v", "w"];
/// "No space left on device", as NBD says it.
const ENOSPC: u32 = 28;

/// A node whose pool has room for each of its two volumes almost three times, each on a controller of its own.
struct World {
    home: Home,
    /// What each block of a volume is full of.
    volumes: BTreeMap<String, Vec<u8>>,
    snapshots: BTreeMap<String, Vec<u8>>,
    free_bytes: u64,
}

impl World {
    fn new(when_full: &str) -> (Self, crate::harness::Server) {
        let home = Home::new();
        let config = format!(
            "demo = '0'\n[pool]\ncontrollers = 2\nextent = '1M'\njournal = '32M'\nwhen_full = '{when_full}'\ndisks = [\n\
             {{ path = 'fast0', class = 'fast', size = '100M' }},\n{{ path = 'fast1', class = 'fast', size = '100M' }},\n\
             {{ path = 'slow', class = 'slow', size = '200M' }},\n]\n"
        );
        std::fs::write(home.path("kura.toml"), config).expect("a configuration");
        let server = home.serve_with(&["--config", "kura.toml"]);
        let volumes = NAMES.map(|name| (name.to_owned(), vec![0; BLOCKS])).into();
        let mut world = Self { home, volumes, snapshots: BTreeMap::new(), free_bytes: 0 };
        world.free_bytes = world.free_bytes();
        for name in NAMES {
            let size = format!("{}K", (PIECES * PIECE) >> 10);
            world.home.ok(&["volume", "create", name, "--size", &size, "--layout", "none"]);
        }
        // The other controller has the object store's, and would have got neither.
        world.home.ok(&["volume", "move-to", "w", "0"]);
        let list = json(&world.home, &["volume", "list"]);
        let owners: Vec<_> = list.as_array().expect("a list").iter().map(|volume| &volume["controller"]).collect();
        assert_eq!(owners, [0, 1, 0], "objects, v and w: {list}");
        (world, server)
    }

    fn client(&self, name: &str) -> Client {
        Client::connect(&self.home.socket(), name).expect("a connection")
    }

    /// Makes a snapshot of both volumes, at one instant.
    fn snapshot(&mut self, number: u8) {
        let names = NAMES.map(|name| format!("{name}@{number}"));
        self.home.ok(&["snapshot", "create", &names[0], &names[1]]);
        for (name, of) in names.into_iter().zip(NAMES) {
            self.snapshots.insert(name, self.volumes[of].clone());
        }
    }

    /// Writes a number to all of a volume or snapshot, some requests at once; how many were refused. What was refused is looked
    /// at: each of its blocks is what it was or what was written.
    fn overwrite(&mut self, name: &str, number: u8) -> usize {
        let mut client = self.client(name);
        let contents = if name.contains('@') { &mut self.snapshots } else { &mut self.volumes };
        let contents = contents.get_mut(name).expect("a volume");
        let (mut sent, mut refused) = (BTreeMap::new(), Vec::new());
        for piece in 0..PIECES + IN_FLIGHT {
            if piece < PIECES {
                let at = (piece * PIECE) as u64;
                let cookie = client.send(WRITE, 0, at, PIECE as u32, &vec![number; PIECE]).expect("a request");
                sent.insert(cookie, piece);
            }
            if piece < IN_FLIGHT {
                continue;
            }
            // A server that is silent for a minute is an error.
            let reply = client.reply().expect("an answer");
            let piece = sent.remove(&reply.cookie).expect("an answer to a request");
            match reply.error {
                0 => contents[piece * PIECE / BLOCK..(piece + 1) * PIECE / BLOCK].fill(number),
                ENOSPC => refused.push(piece),
                error => panic!("{name} at {piece}: error {error}"),
            }
        }
        client.call(FLUSH, 0, 0, 0, &[]).expect("a flush of what was written");
        for piece in &refused {
            let read = client.call(READ, 0, (piece * PIECE) as u64, PIECE as u32, &[]).expect("a read");
            for (at, block) in read.chunks(BLOCK).enumerate() {
                let was = &mut contents[piece * PIECE / BLOCK + at];
                assert!(block[0] == *was || block[0] == number, "{name} at {piece}: {}, was {was}", block[0]);
                *was = block[0];
            }
        }
        refused.len()
    }

    fn overwrite_all(&mut self, number: u8) -> usize {
        NAMES.map(|name| self.overwrite(name, number)).iter().sum()
    }

    /// Overwrites the volumes, with a snapshot before each time, until the pool is full; the last number.
    fn fill(&mut self, first: u8) -> u8 {
        for number in first..first + 8 {
            self.snapshot(number);
            if self.overwrite_all(number + 1) > 0 {
                let passed = || json(&self.home, &["status"])["pool"]["passed_percent"].as_u64();
                eventually(SOON, "the status says so", || passed() == Some(95));
                return number + 1;
            }
        }
        panic!("the pool is small");
    }

    /// Compares the volumes and the snapshots that are there, to the last byte.
    fn compare(&self) {
        for (name, contents) in self.volumes.iter().chain(&self.snapshots) {
            let mut client = self.client(name);
            for piece in 0..PIECES {
                let read = client.call(READ, 0, (piece * PIECE) as u64, PIECE as u32, &[]).expect("a read");
                for (at, block) in read.chunks(BLOCK).enumerate() {
                    let number = contents[piece * PIECE / BLOCK + at];
                    let is_so = *block == [number; BLOCK];
                    assert!(is_so, "{name} at {piece}, block {at}: not all {number}");
                }
            }
        }
    }

    /// Runs a command until it succeeds: a client that has just left may still be counted.
    fn soon(&self, args: &[&str]) {
        eventually(SOON, &args.join(" "), || self.home.kura(args).output().is_ok_and(|output| output.status.success()));
    }

    /// Forgets the snapshots that the pool has dropped.
    fn forget_dropped(&mut self) {
        let mut there = Vec::new();
        for of in NAMES {
            let list = json(&self.home, &["snapshot", "list", of]);
            let name = |snapshot: &serde_json::Value| snapshot["name"].as_str().expect("a name").to_owned();
            there.extend(list.as_array().expect("a list").iter().map(name));
        }
        self.snapshots.retain(|name, _| there.contains(name));
    }

    fn delete(&mut self, snapshot: &str) {
        self.soon(&["snapshot", "delete", snapshot]);
        self.snapshots.remove(snapshot);
    }

    /// Deletes everything: the pool has back what it had.
    fn part(mut self) {
        while let Some((name, _)) = self.snapshots.first_key_value() {
            let name = name.clone();
            self.delete(&name);
        }
        for name in self.volumes.keys() {
            self.soon(&["volume", "delete", name]);
        }
        // Buckets have a volume of their own, whose log grows with every start.
        let buckets_bytes = 8 << 20;
        eventually(SOON, "everything is back", || {
            let pool = json(&self.home, &["pool", "status"]);
            pool["snapshot_bytes"] == 0 && self.free_bytes() + buckets_bytes >= self.free_bytes
        });
        self.home.ok(&["check"]);
    }

    fn free_bytes(&self) -> u64 {
        json(&self.home, &["pool", "status"])["free_bytes"].as_u64().expect("bytes")
    }
}

#[test]
fn a_full_pool_that_refuses_keeps_everything_and_goes_on_when_a_snapshot_is_deleted() {
    let (mut world, mut server) = World::new("refuse");
    assert_eq!(world.overwrite_all(1), 0, "there is room at first");
    let number = world.fill(1);
    assert!(number > 2, "it was full after {number}");
    world.compare();
    server.kill();
    let _server = world.home.serve_with(&["--config", "kura.toml"]);
    world.compare();
    assert!(world.overwrite_all(number + 1) > 0, "it is as full as it was");

    // Each client writes its last piece again and again, and reads, until there is room.
    let ends = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let _ends = Ends(&ends);
        let clients = NAMES.map(|name| {
            let (mut client, ends) = (world.client(name), &ends);
            threads.spawn(move || {
                for tries in 0.. {
                    client.call(READ, 0, 0, BLOCK as u32, &[]).expect("a read");
                    let at = ((PIECES - 1) * PIECE) as u64;
                    match client.call(WRITE, 0, at, PIECE as u32, &vec![99; PIECE]) {
                        Ok(_) => return tries,
                        Err(error) => assert_eq!(error.raw_os_error(), Some(ENOSPC.cast_signed()), "{error}"),
                    }
                    assert!(!ends.load(Ordering::Relaxed), "{name}: no room after {tries} tries");
                    std::thread::sleep(Duration::from_millis(20));
                }
                0
            })
        });
        std::thread::sleep(Duration::from_secs(2));
        for name in NAMES {
            world.delete(&format!("{name}@1"));
        }
        std::thread::sleep(Duration::from_secs(10));
        ends.store(true, Ordering::Relaxed);
        // Where the last piece is the present already, and nothing else sees it, it needs no room.
        let tries = clients.map(|client| client.join().expect("a client"));
        assert!(tries.iter().any(|tries| *tries > 0), "it was full");
    });
    for contents in world.volumes.values_mut() {
        contents[(PIECES - 1) * PIECE / BLOCK..].fill(99);
    }
    world.compare();
    eventually(SOON, "writes go on", || world.overwrite_all(number + 2) == 0);
    world.compare();
    world.part();
}

#[test]
fn a_full_pool_that_drops_snapshots_takes_every_write() {
    let (mut world, mut server) = World::new("drop-oldest");
    assert_eq!(world.overwrite_all(1), 0);
    world.snapshot(1);
    let open = world.client("v@1");
    for number in 2..9 {
        assert_eq!(world.overwrite_all(number), 0, "there is always room: {number}");
        world.snapshot(number);
    }
    world.forget_dropped();
    for (name, stays) in [("v@1", true), ("w@1", false), ("v@2", false), ("v@8", true), ("w@8", true)] {
        assert_eq!(world.snapshots.contains_key(name), stays, "{name}: {:?}", world.snapshots.keys());
    }
    world.compare();
    drop(open);
    server.kill();
    let _server = world.home.serve_with(&["--config", "kura.toml"]);
    world.compare();
    world.part();
}

/// The controller of one volume has no snapshot of its own, while clients of both want room.
#[test]
fn a_full_pool_drops_the_snapshots_of_another_controller() {
    let (mut world, mut server) = World::new("drop-oldest");
    let mut number = 0;
    while number == 0 || world.free_bytes() >= (PIECES * PIECE) as u64 {
        number += 1;
        assert_eq!(world.overwrite("v", number), 0, "there is room for {number}");
        let name = format!("v@{number}");
        world.home.ok(&["snapshot", "create", &name]);
        world.snapshots.insert(name, world.volumes["v"].clone());
    }
    assert!(number > 3, "the pool is small: {number}");
    let mut client = world.client("v");
    std::thread::scope(|threads| {
        let other = threads.spawn(move || {
            for piece in 0..PIECES {
                client.call(WRITE, 0, (piece * PIECE) as u64, PIECE as u32, &vec![99; PIECE]).expect("room");
            }
        });
        assert_eq!(world.overwrite("w", 1), 0, "the other controller has snapshots that may go");
        other.join().expect("a client");
    });
    world.volumes.insert("v".into(), vec![99; BLOCKS]);
    world.forget_dropped();
    let first = (1..=number).find(|number| world.snapshots.contains_key(&format!("v@{number}")));
    let first = first.expect("not all had to go");
    assert!(first > 1, "the oldest is gone");
    assert_eq!(
        world.snapshots.len(),
        usize::from(number - first + 1),
        "the newest are there: {:?}",
        world.snapshots.keys()
    );
    world.compare();
    server.kill();
    let _server = world.home.serve_with(&["--config", "kura.toml"]);
    world.compare();
    world.part();
}

/// A roll-back to a snapshot that was written to wants as much room as that.
#[test]
fn a_roll_back_that_waits_for_room_keeps_nobody_from_deleting_its_volume() {
    let (mut world, mut server) = World::new("refuse");
    assert_eq!(world.overwrite_all(1), 0);
    world.snapshot(1);
    assert_eq!(world.overwrite("v@1", 2), 0);
    let mut number = 2;
    while world.overwrite("w", number) == 0 {
        number += 1;
        let name = format!("w@{number}");
        world.home.ok(&["snapshot", "create", &name]);
        world.snapshots.insert(name, world.volumes["w"].clone());
    }
    world.soon(&["snapshot", "rollback", "v@1"]);
    world.volumes.insert("v".into(), vec![2; BLOCKS]);
    std::thread::sleep(Duration::from_secs(3));
    let said = fails(&mut world.home.kura(&["snapshot", "create", "v@new"]));
    assert!(said.contains("is being rolled back"), "it waits for room: {said}");
    world.compare();

    world.delete("v@1");
    world.compare();
    server.kill();
    let _server = world.home.serve_with(&["--config", "kura.toml"]);
    world.compare();
    world.soon(&["volume", "delete", "v"]);
    world.volumes.remove("v");
    eventually(SOON, "another volume has its room", || world.overwrite("w", 77) == 0);
    world.compare();
    world.part();
}
