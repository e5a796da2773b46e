//! What is kept in memory is never anything but what was put last.

use super::{assert_sound, bucket, bytes, options, rig};
use crate::*;
use kura_block::{Buf, Kind, Runtime};
use kura_sim::{ChaCha8Rng, FaultKind, Sim, SimDisk};
use rand::RngExt;
use std::collections::BTreeMap;
use std::time::Duration;

fn open(sim: &Sim, disk: &SimDisk, recent_bytes: u64) -> Store {
    let options = Options { recent_bytes, ..options() };
    sim.block_on(Store::open(disk.open(), sim.runtime(), options)).unwrap()
}

fn noted(note: u64, content: &[u8]) -> Put {
    let attributes = Attributes::from([("note".to_owned(), note.to_le_bytes().to_vec())]);
    Put { content: content.into(), attributes, ..Put::default() }
}

/// An object's content, the note in its attributes, and where all of it came from.
async fn read(store: &Store, bucket: PartitionId, key: &[u8]) -> kura_block::Result<(Vec<u8>, u64, Fetched)> {
    let mut reader = store.read(bucket, key, Which::Latest).await?;
    let content = reader.rest().await?.contiguous().to_vec();
    let note = reader.attributes["note"].as_slice().try_into().unwrap();
    Ok((content, u64::from_le_bytes(note), reader.fetched()))
}

/// One client's changes, with what they should have made of its keys.
struct World {
    rng: ChaCha8Rng,
    keys: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
}

impl World {
    async fn change(&mut self, store: &Store, bucket: PartitionId) {
        let key = vec![b'k', self.rng.random_range(0..6)];
        let limit = [3000, 30_000, 100_000][self.rng.random_range(0..3)];
        let len = self.rng.random_range(1..limit);
        let data = bytes(self.rng.random(), len);
        let there = self.keys.get(&key).cloned();
        match (self.rng.random_range(0..10), there) {
            (0..5, _) | (_, None) => {
                let note = self.rng.random();
                store.put(bucket, &key, noted(note, &data)).await.unwrap();
                self.keys.insert(key, (data, note));
            }
            (5, Some(_)) => {
                store.remove(bucket, &key, Which::Latest).await.unwrap();
                self.keys.remove(&key);
            }
            (6, Some((content, note))) => {
                store.append(bucket, &key, Buf::copy_of(&data).into(), 0).await.unwrap();
                self.keys.insert(key, ([content, data].concat(), note));
            }
            (7, Some((mut content, note))) => {
                content.truncate(content.len() / 2);
                store.truncate(bucket, &key, content.len() as u64, 0).await.unwrap();
                self.keys.insert(key, (content, note));
            }
            (8, Some((content, _))) => {
                let note: u64 = self.rng.random();
                let mut batch = Batch::new();
                let changes = vec![("note".to_owned(), Some(note.to_le_bytes().to_vec()))];
                batch.set_attributes(bucket, &key, Which::Latest, changes);
                store.commit(batch).await.unwrap();
                self.keys.insert(key, (content, note));
            }
            (_, Some(_)) => {
                store.inner.checkpoint().await.unwrap();
                let victims: Vec<u32> = (1..store.inner.state.borrow().space.segments.len() as u32).collect();
                let victim = victims[self.rng.random_range(0..victims.len())];
                store.inner.sweep(&[victim].into()).await.unwrap();
            }
        }
    }
}

#[test]
fn what_is_read_is_what_was_put_last_wherever_it_comes_from() {
    for seed in 0..8 {
        let (sim, disk) = rig(400 + seed, 4 << 20);
        // All of it fits, or a part.
        let store = open(&sim, &disk, if seed % 2 == 0 { 4 << 20 } else { 200 << 10 });
        let mut world = World { rng: sim.rng("client"), keys: BTreeMap::new() };
        let mut fetched = Fetched::default();
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for _ in 0..1200 {
                world.change(&store, bucket).await;
                for _ in 0..2 {
                    let key = vec![b'k', world.rng.random_range(0..6)];
                    match (read(&store, bucket, &key).await, world.keys.get(&key)) {
                        (Ok((content, note, from)), Some(put)) => {
                            assert!(content == put.0 && note == put.1, "{} bytes", content.len());
                            fetched.from_memory += from.from_memory;
                            fetched.from_device += from.from_device;
                        }
                        (Err(error), None) => assert_eq!(error.kind(), Kind::Missing),
                        (found, put) => panic!("{found:?} instead of {:?}", put.map(|put| put.0.len())),
                    }
                }
            }
        });
        assert_sound(&store);
        assert!(store.counters().extent_bytes > 8 << 20, "blocks are used again and again");
        assert!(fetched.from_memory > 600 && fetched.from_device > 10, "{fetched:?}");
        let (kept, limit) = store.recent_bytes().unwrap();
        // What is alive, in whole blocks, with its records.
        let alive = world.keys.values().map(|(content, _)| content.len() as u64).sum::<u64>();
        let bounds = alive.min(limit) / 2..=limit.min(alive + (128 << 10));
        assert!(bounds.contains(&kept), "{kept} of {limit} bytes, {alive} of content alive");
    }
}

#[test]
fn what_was_taken_back_is_not_remembered() {
    let (sim, disk) = rig(410, 16 << 20);
    let store = open(&sim, &disk, 1 << 20);
    sim.block_on(async {
        let (bucket, runtime) = (bucket(&store).await, sim.runtime());
        let volatile = async |key: &[u8], note: u64| {
            let mut batch = Batch::new();
            batch.put(bucket, key, noted(note, b"content")).durability(Durability::Memory);
            store.commit(batch).await.unwrap()[0].now.clone().unwrap().revision
        };
        disk.inject(FaultKind::Refuses { lasts: Duration::MAX });
        let gone = volatile(b"a", 1).await;
        runtime.sleep(Duration::from_secs(5)).await;
        disk.revive();
        assert_eq!(store.flush().await.unwrap_err().kind(), Kind::Retry, "it is told that something was lost");
        let next = volatile(b"b", 2).await;
        assert_eq!(gone, next, "its revision is given again");
        assert_eq!(read(&store, bucket, b"b").await.unwrap().1, 2);
        assert_eq!(read(&store, bucket, b"a").await.unwrap_err().kind(), Kind::Missing);
        store.flush().await.unwrap();
    });
    assert_sound(&store);
}

#[test]
fn what_is_replaced_takes_no_memory_any_more() {
    let (sim, disk) = rig(420, 32 << 20);
    let store = open(&sim, &disk, 8 << 20);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for round in 0..20 {
            for (key, len) in [(b"large", 1 << 20), (b"small", 900)] {
                store.put(bucket, key, noted(round, &bytes(round, len))).await.unwrap();
            }
            let mut batch = Batch::new();
            let changes = vec![("note".to_owned(), Some(round.to_le_bytes().to_vec()))];
            batch.set_attributes(bucket, b"large", Which::Latest, changes);
            store.commit(batch).await.unwrap();
            read(&store, bucket, b"large").await.unwrap();
        }
        let (kept, _) = store.recent_bytes().unwrap();
        assert!((1 << 20..5 << 18).contains(&kept), "{kept} bytes");
        store.remove(bucket, b"large", Which::Latest).await.unwrap();
        let (kept, _) = store.recent_bytes().unwrap();
        assert!(kept < 64 << 10, "{kept} bytes");
    });
    assert_sound(&store);
}
