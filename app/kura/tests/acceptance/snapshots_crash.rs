//! `kill -9` in the middle of writing to a volume, making snapshots of it, deleting them and rolling back to them.
//!
//! One thread asks for one thing at a time and keeps what must hold: of what was under way when the server was killed,
//! either all is there or nothing; of a burst of writes, each block is old or new.

use crate::crash::{Random, stamped};
use crate::harness::{Home, Server};
use crate::nbd::{Client, FLUSH, READ, WRITE};
use crate::serving::json;
use crate::snapshots::rest;
use std::collections::BTreeMap;
use std::time::Duration;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 1024;
const ROUNDS: u32 = 20;
/// So many on a machine on which some kind of work was not done in [`ROUNDS`].
const MOST_ROUNDS: u32 = 80;
/// Snapshots there are at most.
const SNAPSHOTS: usize = 8;
/// Writes of a burst at most.
const BURST: u64 = 32;

/// The version of each block.
type Image = Vec<u64>;

/// What was under way when the server was killed.
enum Pending {
    Nothing,
    /// Blocks, and the version they were to get.
    Write(Vec<u64>, u64),
    Create(String),
    Delete(String),
    RollBack(String),
}

struct World {
    volume: Image,
    snapshots: BTreeMap<String, Image>,
    pending: Pending,
    version: u64,
    random: Random,
    done: [u64; 4],
}

#[test]
fn twenty_crashes_leave_every_snapshot_whole() {
    let home = Home::new();
    let mut random = Random(std::process::id().into());
    println!("seed {}", random.0);
    let first = random.below(1 << 40);
    let mut world = World {
        volume: vec![0; BLOCKS as usize],
        snapshots: BTreeMap::new(),
        pending: Pending::Nothing,
        version: first,
        random,
        done: [0; 4],
    };
    let mut server = home.serve();
    home.ok(&["volume", "create", "v", "--size", "16M"]);
    for round in 0..MOST_ROUNDS {
        if round >= ROUNDS && world.done.iter().all(|done| *done > 0) {
            break;
        }
        let time = Duration::from_millis(100 + world.random.below(900));
        std::thread::scope(|scope| {
            let server: &mut Server = &mut server;
            scope.spawn(move || {
                std::thread::sleep(time);
                assert!(server.is_alive(), "the server ended by itself");
                server.kill();
            });
            while world.step(&home).is_ok() {}
        });
        server = home.serve();
        world.settle(&home, round);
        home.ok(&["check"]);
    }
    println!("bursts, creates, deletes, rollbacks: {:?}", world.done);
    assert!(world.done.iter().all(|done| *done > 0), "the crashes left too little time: {:?}", world.done);
}

impl World {
    /// Does one thing; an error when the server died.
    fn step(&mut self, home: &Home) -> std::io::Result<()> {
        let chosen = self.random.below(self.snapshots.len().max(1) as u64) as usize;
        let chosen = self.snapshots.keys().nth(chosen).cloned();
        match (self.random.below(10), chosen) {
            (0, _) | (1, None) if self.snapshots.len() < SNAPSHOTS => {
                self.version += 1;
                let name = format!("v@{}", self.version);
                self.pending = Pending::Create(name.clone());
                let body = format!("{{\"names\": [\"{name}\"]}}");
                if asked(home, "POST", "snapshots", &body)? {
                    self.snapshots.insert(name, self.volume.clone());
                    self.done[1] += 1;
                }
            }
            (0 | 1, Some(name)) => {
                self.pending = Pending::Delete(name.clone());
                if asked(home, "DELETE", &format!("snapshots/{name}?force=true"), "")? {
                    self.snapshots.remove(&name);
                    self.done[2] += 1;
                }
            }
            (2, Some(name)) => {
                self.pending = Pending::RollBack(name.clone());
                if asked(home, "POST", &format!("snapshots/{name}/rollback"), "{\"force\": true}")? {
                    self.volume.clone_from(&self.snapshots[&name]);
                    self.done[3] += 1;
                }
            }
            _ => self.burst(home)?,
        }
        self.pending = Pending::Nothing;
        Ok(())
    }

    fn burst(&mut self, home: &Home) -> std::io::Result<()> {
        self.version += 1;
        let version = self.version;
        let blocks: Vec<u64> = (0..=self.random.below(BURST)).map(|_| self.random.below(BLOCKS)).collect();
        self.pending = Pending::Write(blocks.clone(), version);
        let mut client = Client::connect(&home.socket(), "v")?;
        for block in &blocks {
            client.send(WRITE, 0, block * BLOCK, BLOCK as u32, &content(*block, version))?;
        }
        for _ in &blocks {
            assert_eq!(client.reply()?.error, 0, "a write failed while the server was alive");
        }
        client.call(FLUSH, 0, 0, 0, &[])?;
        for block in blocks {
            self.volume[block as usize] = version;
        }
        self.done[0] += 1;
        Ok(())
    }

    /// Holds the server that was started again to what must be there.
    fn settle(&mut self, home: &Home, round: u32) {
        let list = json(home, &["snapshot", "list", "v"]);
        let names = list.as_array().expect("a list").iter().map(|one| one["name"].as_str().expect("a name").to_owned());
        let names: Vec<String> = names.collect();
        let found = read(home, "v");
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Create(name) if names.contains(&name) => {
                self.snapshots.insert(name, self.volume.clone());
            }
            Pending::Delete(name) if !names.contains(&name) => {
                self.snapshots.remove(&name);
            }
            Pending::RollBack(name) if is(&found, &self.snapshots[&name]) => {
                self.volume.clone_from(&self.snapshots[&name]);
            }
            Pending::Write(blocks, version) => {
                for block in blocks {
                    if found[block as usize] == content(block, version) {
                        self.volume[block as usize] = version;
                    }
                }
            }
            _ => {}
        }
        let mut expected: Vec<&String> = self.snapshots.keys().collect();
        expected.sort_by_key(|name| name[2..].parse::<u64>().expect("a number"));
        assert_eq!(names.iter().collect::<Vec<_>>(), expected, "the snapshots after crash {round}");
        hold(&found, &self.volume, &format!("the volume after crash {round}"));
        for (name, image) in &self.snapshots {
            hold(&read(home, name), image, &format!("{name} after crash {round}"));
        }
    }
}

/// True when it was done, false when it was refused because a roll-back goes on.
fn asked(home: &Home, method: &str, path: &str, body: &str) -> std::io::Result<bool> {
    let (status, answer) = rest(home, method, path, body)?;
    let is_refused = answer.contains("rolled back") || answer.contains("shutting down");
    assert!((200..300).contains(&status) || is_refused, "{method} {path}: {answer}");
    Ok((200..300).contains(&status))
}

fn is(found: &[Vec<u8>], image: &Image) -> bool {
    image.iter().zip(0..).all(|(version, block)| found[block as usize] == content(block, *version))
}

fn hold(found: &[Vec<u8>], image: &Image, what: &str) {
    for (version, block) in image.iter().zip(0..) {
        let data = &found[block as usize];
        let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().expect("eight bytes"));
        assert!(*data == content(block, *version), "{what}: block {block} is not {version} but {}", word(8));
    }
}

/// The blocks of an export.
fn read(home: &Home, export: &str) -> Vec<Vec<u8>> {
    let mut client = Client::connect(&home.socket(), export).expect("a connection");
    let data = client.call(READ, 0, 0, (BLOCKS * BLOCK) as u32, &[]).expect("a read after a crash");
    data.chunks(BLOCK as usize).map(<[u8]>::to_vec).collect()
}

/// The bytes of a block of this version. A volume begins as zeroes.
fn content(block: u64, version: u64) -> Vec<u8> {
    if version == 0 { vec![0; BLOCK as usize] } else { stamped(block, version) }
}
