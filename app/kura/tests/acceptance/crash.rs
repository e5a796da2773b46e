//! `kill -9` again and again in the middle of a writer that knows what it was promised.
//!
//! The writer keeps, for each block of a region, the version that must have survived (acknowledged with FUA, or
//! acknowledged before a flush that was acknowledged) and the versions it issued since. After each crash a block must
//! hold one of these, whole; what is found is what must be found again.

use crate::array::pool;
use crate::harness::{Home, Server, eventually};
use crate::nbd::{Client, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES};
use serde_json::Value;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BLOCK: usize = 4096;

/// Blocks of the region: few enough that most are written again and again between crashes.
const BLOCKS: u64 = 4096;

/// Blocks of the longest write.
const LONGEST: u64 = 32;

const CRASHES: u32 = 100;

/// Streams that are cut off.
const STREAMS: u32 = 24;

/// Requests in flight on each connection.
const DEPTH: usize = 16;

/// Volumes, each of which is written to until every third crash, and their layouts; `demo` is there, with mirrored hot areas.
const VOLUMES: [(&str, &str); 3] = [("demo", ""), ("plain", "none"), ("mirrored", "mirror")];

#[test]
fn a_hundred_crashes_lose_nothing_that_was_promised() {
    let home = Home::new();
    let mut random = Random::seeded();
    let mut promises = VOLUMES.map(|(volume, _)| Promises::of(volume));
    let verify = |promises: &mut [Promises], crash| promises.iter_mut().for_each(|one| one.verify(&home, crash));
    let mut server = home.serve();
    for (volume, layout) in &VOLUMES[1..] {
        let bytes = (BLOCKS * BLOCK as u64).to_string();
        home.ok(&["volume", "create", volume, "--size", &bytes, "--layout", layout]);
    }
    server.kill();
    let mut acknowledged = 0;
    for crash in 0..CRASHES {
        let mut server = home.serve();
        verify(&mut promises, crash);
        home.ok(&["check", "--dry-run"]);
        let promises = &mut promises[crash as usize % VOLUMES.len()];
        acknowledged += write_until_killed(&home, &mut server, promises, &mut random, 2);
        if crash % 4 == 3 {
            // Another crash while the server is still recovering from this one.
            let mut server = home.spawn(&[]);
            std::thread::sleep(Duration::from_millis(random.below(200)));
            server.kill();
        }
    }
    let _server = home.serve();
    verify(&mut promises, CRASHES);
    home.ok(&["check", "--dry-run"]);
    println!("{acknowledged} requests were acknowledged between {CRASHES} crashes");
}

/// What comes in order into a volume where nothing is, and is flushed after a good deal of it, goes straight to its place where
/// there is no faster disk.
#[test]
fn a_stream_into_a_new_volume_is_there_as_far_as_it_was_flushed() {
    let (home, mut random) = without_faster_disks();
    let serve = || home.serve_with(&["--config", "kura.toml"]);
    for life in 0..STREAMS {
        let (volume, layout) = VOLUMES[1 + life as usize % 2];
        let mut server = serve();
        create_thin(&home, volume, layout);
        let mut promises = Promises::of_stream(volume, life);
        write_until_killed(&home, &mut server, &mut promises, &mut random, 2);
        let _server = serve();
        promises.verify(&home, life);
        home.ok(&["check", "--dry-run"]);
        home.ok(&["volume", "delete", volume]);
    }
    // None of this was about something else. Where a disk takes its time, what comes meanwhile goes by the journal.
    let _server = serve();
    for stream in 0..STREAMS {
        create_thin(&home, "plain", "none");
        stream_on(&home, &mut Promises::of_stream("plain", STREAMS + stream), 64, &mut random);
        if straight_bytes(&home) >= 32 * LONGEST * BLOCK as u64 {
            return;
        }
        home.ok(&["volume", "delete", "plain", "--force"]);
    }
    panic!("{} bytes went straight to their places", straight_bytes(&home));
}

/// What comes in order over what is there goes to another place, which becomes its own.
#[test]
fn a_stream_over_what_is_there_is_there_as_far_as_it_was_flushed() {
    let (home, mut random) = without_faster_disks();
    let serve = || home.serve_with(&["--config", "kura.toml"]);
    let mut volumes = [&VOLUMES[1], &VOLUMES[2]].map(|(volume, _)| Promises::of_stream(volume, 0));
    let mut server = serve();
    for ((volume, layout), promises) in VOLUMES[1..].iter().zip(&mut volumes) {
        create_thin(&home, volume, layout);
        stream_on(&home, promises, BLOCKS / LONGEST, &mut random);
    }
    let written = straight_bytes(&home);
    for promises in &mut volumes {
        stream_on(&home, promises, BLOCKS / LONGEST, &mut random);
    }
    let over = straight_bytes(&home) - written;
    assert!(over >= BLOCKS * BLOCK as u64 / 2, "{over} bytes went to another place");
    server.kill();
    for life in 0..STREAMS {
        let promises = &mut volumes[life as usize % 2];
        let mut server = serve();
        promises.verify(&home, life);
        // From where one of its extents begins.
        promises.stream = Some(random.below(BLOCKS / 1024) * 1024);
        write_until_killed(&home, &mut server, promises, &mut random, 1);
        let mut server = serve();
        promises.verify(&home, life);
        home.ok(&["check", "--dry-run"]);
        server.kill();
    }
}

/// What a server is to have whose journals lie on the disks of the data.
fn without_faster_disks() -> (Home, Random) {
    let home = Home::new();
    pool(&home, &[("disk0", "512M"), ("disk1", "512M"), ("disk2", "512M")]);
    (home, Random::seeded())
}

fn create_thin(home: &Home, volume: &str, layout: &str) {
    let bytes = (BLOCKS * BLOCK as u64).to_string();
    home.ok(&["volume", "create", volume, "--size", &bytes, "--layout", layout, "--thin"]);
}

/// Goes on with a stream for so many writes.
fn stream_on(home: &Home, promises: &mut Promises, writes: u64, random: &mut Random) {
    let mut connection = Connection::new(home, promises.volume);
    for _ in 0..writes {
        connection.issue(promises, random).expect("a request");
        connection.settle(promises).expect("a reply");
    }
}

/// What went past the journal since the server's start.
fn straight_bytes(home: &Home) -> u64 {
    let controllers = home.ok(&["controller", "stats", "--json"]);
    let controllers: Vec<Value> = serde_json::from_str(&controllers).expect("what controllers say");
    controllers.iter().filter_map(|one| one["straight_bytes"].as_u64()).sum()
}

/// Writes over so many connections until the server is killed under it, which comes after some time and some requests; returns
/// the number of requests acknowledged.
fn write_until_killed(
    home: &Home,
    server: &mut Server,
    promises: &mut Promises,
    random: &mut Random,
    connections: u64,
) -> u64 {
    let mut connections: Vec<_> = (0..connections).map(|_| Connection::new(home, promises.volume)).collect();
    let (time, enough) = (Duration::from_millis(20 + random.below(200)), random.below(200));
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(time);
            let is_enough = || acknowledged.load(Ordering::Relaxed) >= enough || !server.is_alive();
            eventually(Duration::from_mins(1), "the server answers", is_enough);
            assert!(server.is_alive(), "the server ended by itself");
            server.kill();
        });
        loop {
            let at = random.below(connections.len() as u64) as usize;
            let connection = &mut connections[at];
            while connection.in_flight.len() < DEPTH {
                if connection.issue(promises, random).is_err() {
                    return;
                }
            }
            if connection.settle(promises).is_err() {
                return;
            }
            acknowledged.fetch_add(1, Ordering::Relaxed);
        }
    });
    acknowledged.into_inner()
}

/// What was asked for and not answered yet.
enum Pending {
    /// Blocks `first..first + count` became `version`.
    Change { first: u64, count: u64, version: u64, fua: bool },
    /// These blocks had these versions, acknowledged, when the flush was sent.
    Flush(Vec<(u64, u64)>),
}

struct Connection {
    client: Client,
    in_flight: BTreeMap<u64, Pending>,
}

impl Connection {
    fn new(home: &Home, volume: &str) -> Self {
        Self { client: Client::connect(&home.socket(), volume).expect("a connection"), in_flight: BTreeMap::new() }
    }

    fn issue(&mut self, promises: &mut Promises, random: &mut Random) -> std::io::Result<()> {
        if random.below(48) == 0 {
            // Covers what either connection has acknowledged: the server says that it is one cache.
            let covered = std::mem::take(&mut promises.unflushed);
            let cookie = self.client.send(FLUSH, 0, 0, 0, &[])?;
            self.in_flight.insert(cookie, Pending::Flush(covered));
            return Ok(());
        }
        let (first, count) = promises.idle_range(random);
        let version = promises.issue(first, count);
        let fua = promises.stream.is_none() && random.below(8) == 0;
        let flags = if fua { FUA } else { 0 };
        let (offset, len) = (first * BLOCK as u64, count as u32 * BLOCK as u32);
        let pending = Pending::Change { first, count, version, fua };
        let cookie = if is_zeroes(version) {
            let command = if random.below(2) == 0 { WRITE_ZEROES } else { TRIM };
            self.client.send(command, flags, offset, len, &[])?
        } else {
            let data = (first..first + count).map(|block| content(block, version)).collect::<Vec<_>>().concat();
            self.client.send(WRITE, flags, offset, len, &data)?
        };
        self.in_flight.insert(cookie, pending);
        Ok(())
    }

    /// Takes one reply.
    fn settle(&mut self, promises: &mut Promises) -> std::io::Result<()> {
        let reply = self.client.reply()?;
        let pending = self.in_flight.remove(&reply.cookie).expect("a reply to a request that was made");
        assert_eq!(reply.error, 0, "a request failed while the server was alive");
        match pending {
            Pending::Change { first, count, version, fua } => {
                for block in first..first + count {
                    promises.acknowledge(block, version, fua);
                }
            }
            Pending::Flush(covered) => covered.into_iter().for_each(|(block, version)| promises.keep(block, version)),
        }
        Ok(())
    }
}

/// What a block may hold after a crash.
#[derive(Clone, Default)]
struct Block {
    /// The version that survived for certain; 0 was never written.
    durable: u64,
    /// Versions issued since, oldest first.
    later: Vec<u64>,
    /// True while a request on it is in flight: two at once would have no order.
    busy: bool,
}

struct Promises {
    volume: &'static str,
    /// Where the next write goes, if they go one behind the other.
    stream: Option<u64>,
    blocks: Vec<Block>,
    version: u64,
    /// Acknowledged without FUA, and not covered by a flush that was sent.
    unflushed: Vec<(u64, u64)>,
}

impl Promises {
    /// Of a volume that was never written to. Its versions are not another volume's.
    fn of(volume: &'static str) -> Self {
        let version = (volume.len() as u64) << 32;
        Self { volume, stream: None, blocks: vec![Block::default(); BLOCKS as usize], version, unflushed: Vec::new() }
    }

    /// Of a new volume that is written from its start on, the `life`-th of its name.
    fn of_stream(volume: &'static str, life: u32) -> Self {
        let promises = Self::of(volume);
        Self { stream: Some(0), version: promises.version + (u64::from(life) << 20), ..promises }
    }

    /// A range none of whose blocks is in flight.
    fn idle_range(&mut self, random: &mut Random) -> (u64, u64) {
        if let Some(next) = &mut self.stream {
            let first = *next;
            *next = (first + LONGEST) % BLOCKS;
            return (first, LONGEST);
        }
        loop {
            let count = 1 + random.below(LONGEST) * random.below(2);
            let first = random.below(BLOCKS - count);
            if self.blocks[first as usize..(first + count) as usize].iter().all(|block| !block.busy) {
                return (first, count);
            }
        }
    }

    fn issue(&mut self, first: u64, count: u64) -> u64 {
        self.version += 1;
        if self.stream.is_some() && is_zeroes(self.version) {
            self.version += 1;
        }
        for block in &mut self.blocks[first as usize..(first + count) as usize] {
            block.busy = true;
            block.later.push(self.version);
        }
        self.version
    }

    fn acknowledge(&mut self, block: u64, version: u64, fua: bool) {
        self.blocks[block as usize].busy = false;
        if fua {
            self.keep(block, version);
        } else {
            self.unflushed.push((block, version));
        }
    }

    /// From now on `version` or a later one must be found.
    fn keep(&mut self, block: u64, version: u64) {
        let block = &mut self.blocks[block as usize];
        if block.durable < version {
            block.durable = version;
            block.later.retain(|later| *later > version);
        }
    }

    /// Reads the region and holds the server to what it promised.
    fn verify(&mut self, home: &Home, crash: u32) {
        let mut client = Client::connect(&home.socket(), self.volume).expect("a connection");
        let at_once = 64;
        for first in (0..BLOCKS).step_by(at_once) {
            let len = (at_once * BLOCK) as u32;
            let data = client.call(READ, 0, first * BLOCK as u64, len, &[]).expect("a read after a crash");
            for (number, found) in (first..).zip(data.chunks(BLOCK)) {
                let block = &mut self.blocks[number as usize];
                let allowed = std::iter::once(block.durable).chain(block.later.iter().copied());
                let version = allowed.filter(|version| content(number, *version) == found).max();
                let version =
                    version.unwrap_or_else(|| panic!("{}: {}", self.volume, broken(crash, number, block, found)));
                *block = Block { durable: version, ..Block::default() };
            }
        }
        self.unflushed.clear();
    }
}

/// What went wrong with a block, in words.
fn broken(crash: u32, number: u64, block: &Block, found: &[u8]) -> String {
    let stamp = |sector: &[u8]| sector[..16].iter().rev().fold(0u128, |word, byte| word << 8 | u128::from(*byte));
    let stamps: Vec<u128> = found.chunks(512).map(stamp).collect();
    format!(
        "after crash {crash}, block {number} should be of version {} or one of {:?}; its sectors say {stamps:x?}",
        block.durable, block.later
    )
}

fn is_zeroes(version: u64) -> bool {
    version.is_multiple_of(8)
}

fn content(block: u64, version: u64) -> Vec<u8> {
    if is_zeroes(version) { vec![0; BLOCK] } else { stamped(block, version) }
}

/// The bytes of a block of this version: both in every 16 of them, so that no mixture passes for a whole.
pub fn stamped(block: u64, version: u64) -> Vec<u8> {
    [version, block].map(u64::to_le_bytes).concat().repeat(BLOCK / 16)
}

/// The `SplitMix64` generator.
pub struct Random(pub u64);

impl Random {
    /// Another one each time; says which.
    fn seeded() -> Self {
        let seed = RandomState::new().build_hasher().finish();
        println!("seed {seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ word >> 31
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

#[test]
fn a_flush_on_one_connection_covers_the_other() {
    let home = Home::new();
    for round in 0..10 {
        let mut server = home.serve();
        let [mut writer, mut other] = [(); 2].map(|()| Client::connect(&home.socket(), "demo").expect("a connection"));
        for block in 0..64 {
            let (offset, data) = (block * BLOCK as u64, content(block, 8 * round + 1));
            writer.call(WRITE, 0, offset, BLOCK as u32, &data).expect("a write");
        }
        other.call(FLUSH, 0, 0, 0, &[]).expect("a flush");
        server.kill();
        let _server = home.serve();
        let mut client = Client::connect(&home.socket(), "demo").expect("a connection");
        for block in 0..64 {
            let found = client.call(READ, 0, block * BLOCK as u64, BLOCK as u32, &[]).expect("a read");
            assert!(found == content(block, 8 * round + 1), "block {block} of round {round} was flushed and is gone");
        }
    }
}

#[test]
fn the_verifier_notices_what_is_lost_and_what_is_torn() {
    let mut promises = Promises::of("demo");
    let [one, two] = [true, false].map(|fua| {
        let version = promises.issue(0, 1);
        promises.acknowledge(0, version, fua);
        version
    });
    let block = &promises.blocks[0];
    assert_eq!((block.durable, block.later.as_slice()), (one, [two].as_slice()));
    let torn = [&content(0, one)[..2048], &content(0, two)[2048..]].concat();
    assert!([one, two].iter().all(|version| content(0, *version) != torn));
    promises.keep(0, two);
    assert_eq!((promises.blocks[0].durable, promises.blocks[0].later.len()), (two, 0));
}
