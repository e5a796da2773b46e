//! Room: full stores, aged stores, cleaning, and space that comes back.

use super::{assert_sound, bucket, bytes, open, put, rig};
use crate::*;
use kura_block::{Block, Buf, Bufs, Geometry, Kind, Local, Result, Runtime};
use kura_sim::{DiskSpec, Sim};
use rand::RngExt;
use std::cell::Cell;
use std::rc::Rc;

/// Puts objects of `len` bytes until there is no room: how many.
async fn fill(store: &Store, bucket: PartitionId, prefix: &str, len: usize) -> usize {
    for at in 0.. {
        let key = format!("{prefix}{at:06}");
        match store.put(bucket, key.as_bytes(), put(&bytes(at, len))).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Full, "{error}");
                return at as usize;
            }
        }
    }
    0
}

async fn verify(store: &Store, bucket: PartitionId, prefix: &str, len: usize, which: impl Iterator<Item = usize>) {
    for at in which {
        let key = format!("{prefix}{at:06}");
        let mut reader = store.read(bucket, key.as_bytes(), Which::Latest).await.unwrap();
        assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at as u64, len), "{key}");
    }
}

#[test]
fn a_full_store_says_so_keeps_what_it_has_and_lets_remove() {
    for (seed, len, share) in [(1, 300, 0.5), (2, 4096, 0.4), (3, 7000, 0.6), (4, 30_000, 0.6), (5, 200_000, 0.7)] {
        let (sim, disk) = rig(seed, 8 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            let count = fill(&store, bucket, "a", len).await;
            let used = (count * len) as f64 / f64::from(8 << 20);
            assert!(used > share, "{len} bytes: full at {used:.2}");
            assert_sound(&store);
            verify(&store, bucket, "a", len, 0..count).await;
            // A full store is opened again, and everything in it can be removed, in the worst order.
            store.close().await.unwrap();
        });
        assert_sound(&store);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = store.partition(b"bucket").await.unwrap().id;
            let count = store.usage().versions as usize - 1;
            for odd in [1, 0] {
                for at in (0..count).filter(|at| at % 2 == odd) {
                    let key = format!("a{at:06}");
                    assert!(store.remove(bucket, key.as_bytes(), Which::Latest).await.unwrap().is_some());
                }
                if odd == 1 {
                    verify(&store, bucket, "a", len, (0..count).step_by(2)).await;
                }
            }
            assert_sound(&store);
            // All that was there fits again, give or take the log's open ends.
            let again = fill(&store, bucket, "b", len).await;
            assert!(again as f64 > count as f64 * 0.9, "{len} bytes: {count} before, {again} after");
        });
        assert_sound(&store);
    }
}

#[test]
fn room_between_large_objects_becomes_room_for_small_ones_and_back() {
    let (sim, disk) = rig(7, 8 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let large = fill(&store, bucket, "large", 20_000).await;
        // One of four stays, so that every segment is in use.
        for at in (0..large).filter(|at| at % 4 != 0) {
            store.remove(bucket, format!("large{at:06}").as_bytes(), Which::Latest).await.unwrap();
        }
        let small = fill(&store, bucket, "small", 1000).await;
        assert!(small * 1000 > 2 << 20, "{small} small objects fit where large ones were");
        assert!(store.counters().evacuated_segments > 0);
        assert_sound(&store);
        verify(&store, bucket, "large", 20_000, (0..large).step_by(4)).await;
        verify(&store, bucket, "small", 1000, 0..small).await;
        for at in (0..small).filter(|at| at % 3 != 0) {
            store.remove(bucket, format!("small{at:06}").as_bytes(), Which::Latest).await.unwrap();
        }
        let again = fill(&store, bucket, "again", 50_000).await;
        assert!(again * 50_000 > 1 << 20, "{again} large objects fit where small ones were");
        verify(&store, bucket, "small", 1000, (0..small).step_by(3)).await;
        verify(&store, bucket, "again", 50_000, 0..again).await;
    });
    assert_sound(&store);
}

#[test]
fn an_aged_store_is_cleaned_beside_its_users() {
    let (sim, disk) = rig(8, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let content = |at: u64, round: u64| bytes(at * 1000 + round, 2000 + (at % 5 * 900) as usize);
        // A third of the device, written over many times, in an order of its own.
        let mut rng = sim.rng("order");
        let mut rounds = vec![0; 1400];
        for step in 0..14_000 {
            let at = if step < 1400 { step } else { rng.random_range(0..1400) };
            rounds[at] += 1;
            store.put(bucket, format!("{at}").as_bytes(), put(&content(at as u64, rounds[at]))).await.unwrap();
        }
        let counters = store.counters();
        assert!(counters.cleaned_segments > 20 && counters.checkpoints > 5, "{counters:?}");
        for (at, round) in rounds.into_iter().enumerate() {
            let mut reader = store.read(bucket, format!("{at}").as_bytes(), Which::Latest).await.unwrap();
            assert_eq!(*reader.rest().await.unwrap().contiguous(), content(at as u64, round));
        }
    });
    assert_sound(&store);
}

/// Nobody waits for a flush: only for room and the device.
#[test]
fn what_is_acknowledged_in_memory_does_not_outrun_the_device() {
    for (seed, len) in [(11, 1000), (12, 7000), (13, 30_000)] {
        let (sim, disk) = rig(seed, 8 << 20);
        let store = open(&sim, &disk);
        let overwrite = async |bucket: PartitionId, client: u64| {
            for step in 0..64_000_000 / len as u64 / 4 {
                let mut batch = Batch::new();
                batch.put(bucket, &[(step * 7 + client) as u8 % 20], put(&bytes(step, len)));
                batch.durability(Durability::Memory);
                store.commit(batch).await.unwrap();
                let waiting = store.inner.state.borrow().log.backlog();
                assert!(waiting <= crate::policy::BACKLOG_ENTRIES + 4, "{waiting} entries wait");
            }
        };
        sim.block_on(async {
            let bucket = bucket(&store).await;
            futures::future::join_all((0..4).map(|client| overwrite(bucket, client))).await;
            store.flush().await.unwrap();
        });
        assert_sound(&store);
    }
}

#[test]
fn the_device_gets_back_what_is_removed() {
    let (sim, disk) = rig(10, 32 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let count = fill(&store, bucket, "a", 500_000).await;
        for at in 0..count {
            store.remove(bucket, format!("a{at:06}").as_bytes(), Which::Latest).await.unwrap();
        }
        store.put(bucket, b"last", put(b"one")).await.unwrap();
        sim.runtime().sleep(std::time::Duration::from_millis(100)).await;
    });
    assert_sound(&store);
    let given_back = store.counters().discarded_segments * u64::from(super::SEGMENT_BYTES);
    assert!(given_back > 20 << 20, "{given_back} bytes are given back");
}

#[test]
fn many_small_appends_and_writes_stay_few_pieces() {
    let (sim, disk) = rig(9, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"log", put(&bytes(1, 500_000))).await.unwrap();
        let mut all = bytes(1, 500_000);
        for at in 0..300_usize {
            let line = bytes(at as u64, 700);
            store.append(bucket, b"log", Buf::copy_of(&line).into(), 0).await.unwrap();
            all.extend_from_slice(&line);
            let offset = at * 7919 % 400_000;
            store.write(bucket, b"log", offset as u64, Buf::copy_of(&line).into(), 0).await.unwrap();
            all[offset..offset + 700].copy_from_slice(&line);
        }
        let mut reader = store.read(bucket, b"log", Which::Latest).await.unwrap();
        assert_eq!(*reader.rest().await.unwrap().contiguous(), all);
        let pieces =
            store.inner.state.borrow().newest(&crate::object::name_of(bucket, b"log")).unwrap().unwrap().1.pieces;
        assert!(pieces.len() < 50, "{} pieces", pieces.len());
    });
    assert_sound(&store);
}

/// Writers beside each other put objects of 128 KiB anew, under 256 keys, on a device that keeps 8 of its segments free.
fn overwrite_side_by_side(seed: u64, size_bytes: u64) {
    let sim = Sim::new(seed);
    let disk = sim.disk("disk", DiskSpec { jitter: 0.3, ..DiskSpec::nvme(size_bytes) });
    let format = Format { id: [7; 16], segment_bytes: Some(4 << 20) };
    sim.block_on(Store::format(&*disk.open(), format)).unwrap();
    let store = sim.block_on(Store::open(disk.open(), sim.runtime(), Options::default())).unwrap();
    let content = Bufs::from(Buf::copy_of(&bytes(seed, 128 << 10)));
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let writer = |nth: u64| {
            let (store, content, mut order) = (store.clone(), content.clone(), sim.rng(&format!("writer {nth}")));
            async move {
                for _ in 0..200 {
                    let key = format!("{}", order.random_range(0..256));
                    let mut batch = Batch::new();
                    batch.put(bucket, key.as_bytes(), Put { content: content.clone().into(), ..Put::default() });
                    batch.durability(Durability::Memory);
                    store
                        .commit(batch)
                        .await
                        .unwrap_or_else(|error| panic!("seed {seed}, {size_bytes} bytes: {error}"));
                }
            }
        };
        futures::future::join_all((0..16).map(writer)).await;
    });
    assert_sound(&store);
}

#[test]
fn many_who_overwrite_at_once_find_nothing_full_that_is_not() {
    // Of what may be used 82, 75 and 30 % are alive.
    for mib in [84, 88, 152] {
        (0..4).for_each(|seed| overwrite_side_by_side(600 + seed, mib << 20));
    }
}

#[test]
fn a_store_grows_with_its_device() {
    let (sim, disk) = rig(14, 24 << 20);
    // Made on the first third of the disk.
    let small: Rc<Part> = Rc::new(Part { below: disk.open(), size_bytes: (8 << 20).into() });
    sim.block_on(Store::format(&*small, Format { id: [7; 16], segment_bytes: Some(super::SEGMENT_BYTES) })).unwrap();
    let opened = |part: &Rc<Part>| {
        let device = Rc::clone(part) as Rc<dyn Block>;
        sim.block_on(Store::open(device, sim.runtime(), super::options())).unwrap()
    };
    let store = opened(&small);
    let (first, bucket) = sim.block_on(async {
        let bucket = bucket(&store).await;
        (fill(&store, bucket, "a", 30_000).await, bucket)
    });
    // It grows while it is served: whoever waits for room gets it.
    small.size_bytes.set(16 << 20);
    let second = sim.block_on(fill(&store, bucket, "b", 30_000));
    assert!(second as f64 > first as f64 * 0.9, "{first} in the beginning, {second} more");
    assert_eq!(store.usage().size_bytes, 16 << 20);
    assert_sound(&store);
    drop(store);
    sim.crash();
    // And where it is opened on a larger device, in any case.
    let larger = Rc::new(Part { below: disk.open(), size_bytes: (24 << 20).into() });
    let store = opened(&larger);
    assert_eq!(store.usage().size_bytes, 24 << 20);
    let third = sim.block_on(fill(&store, bucket, "c", 30_000));
    assert!(third as f64 > first as f64 * 0.9, "{first} in the beginning, {third} more");
    sim.block_on(store.close()).unwrap();
    drop(store);
    let store = opened(&larger);
    assert_sound(&store);
    sim.block_on(async {
        for (prefix, count) in [("a", first), ("b", second), ("c", third)] {
            verify(&store, bucket, prefix, 30_000, 0..count).await;
        }
    });
}

/// The beginning of a device, that may become more of it.
struct Part {
    below: Rc<dyn Block>,
    size_bytes: Cell<u64>,
}

impl Block for Part {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.get(), ..self.below.geometry() }
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        self.below.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        self.below.write(offset, data, fua)
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        self.below.write_zeroes(offset, len, keep)
    }
}

/// A reader of a part keeps that part, and nothing else of what is removed meanwhile.
#[test]
fn a_reader_keeps_what_it_reads_and_no_more() {
    let (sim, disk) = rig(15, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let free = || store.usage().free_bytes;
        let before = free();
        let all = bytes(1, 2 << 20);
        store.put(bucket, b"large", put(&all)).await.unwrap();
        let used = before - free();
        let mut reader = store.read_range(bucket, b"large", Which::Latest, 5000..9000).await.unwrap();
        assert!(reader.range(4999..9000).is_err(), "nothing else stays in its place");
        store.remove(bucket, b"large", Which::Latest).await.unwrap();
        // Another entry says that the removal is durable.
        store.put(bucket, b"small", put(b"one")).await.unwrap();
        let left = before - free();
        assert!(left < used / 4, "{left} of {used} bytes are used still");
        assert!(!store.inner.state.borrow().space.has_limbo(), "what is read waits for its reader alone");
        assert_eq!(*reader.rest().await.unwrap().contiguous(), all[5000..9000]);
        drop(reader);
        assert_eq!(store.inner.state.borrow().space.in_limbo().count(), 0);
        assert!(before - free() < left, "the reader's part is free when it is done");
    });
    assert_sound(&store);
}

/// The last thing that is done is a removal: nothing behind it says that it is durable, or makes a checkpoint due.
#[test]
fn what_is_removed_last_is_given_back() {
    for (len, count, keeps) in [(200_000, 40_u64, 0), (5000, 1000, 10)] {
        let (sim, disk) = rig(16, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            let free = store.usage().free_bytes;
            let mut batch = Batch::new();
            for at in 0..count {
                store.put(bucket, format!("{at}").as_bytes(), put(&bytes(at, len))).await.unwrap();
                if keeps == 0 || at % keeps != 0 {
                    batch.remove(bucket, format!("{at}").as_bytes(), Which::Latest);
                }
            }
            let used = free - store.usage().free_bytes;
            store.commit(batch).await.unwrap();
            sim.runtime().sleep(std::time::Duration::from_secs(1)).await;
            let (left, counters) = (free - store.usage().free_bytes, store.counters());
            assert!(left < used / 4, "{len} bytes: {left} of {used} are used still: {counters:?}");
            let given_back = counters.discarded_segments * u64::from(super::SEGMENT_BYTES);
            assert!(given_back > used / 2, "{len} bytes: {given_back} of {used} are given back");
            // And then nothing more is done.
            sim.runtime().sleep(std::time::Duration::from_secs(10)).await;
            let later = store.counters();
            assert_eq!((later.entries, later.checkpoints), (counters.entries, counters.checkpoints), "it is at rest");
        });
        assert_sound(&store);
    }
}
