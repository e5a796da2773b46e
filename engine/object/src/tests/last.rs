//! The log's last entry, which no later one says to have been durable: what a start makes of it.

use super::{SEGMENT_BYTES, assert_sound, bucket, bytes, open, put, rig};
use crate::known::{Extent, Known};
use crate::log::entry::Head;
use crate::object::name_of;
use crate::*;
use futures::future::join;
use kura_block::{BLOCK_BYTES_U64, Block, Buf, BufMut, Bufs, Kind, Result};
use kura_sim::{CrashPoint, FaultKind, FaultPlan, Outcome, Place, SimDisk};
use std::cell::Cell;

fn known(store: &Store, bucket: PartitionId, key: &[u8]) -> Known {
    store.inner.state.borrow().newest(&name_of(bucket, key)).unwrap().unwrap().1
}

/// The extents, in the content's order.
fn extents(store: &Store, bucket: PartitionId, key: &[u8]) -> Vec<Extent> {
    known(store, bucket, key).pieces.iter().filter_map(|piece| piece.extent).collect()
}

/// What lies at the beginning of an extent is not what was put there, or cannot be read at all.
fn damage(disk: &SimDisk, extent: Extent, rots: bool) {
    let place = u64::from(extent.block) * BLOCK_BYTES_U64;
    let range = Place::Range(place..place + BLOCK_BYTES_U64);
    disk.inject(if rots { FaultKind::BitRot(range, 3) } else { FaultKind::ReadError(range) });
}

async fn read(store: &Store, bucket: PartitionId, key: &[u8], from: usize) -> Result<Vec<u8>> {
    let size = store.stat(bucket, key, Which::Latest).await?.size_bytes;
    let mut reader = store.read_range(bucket, key, Which::Latest, from as u64..size).await?;
    Ok(reader.rest().await?.contiguous().to_vec())
}

async fn put_part(store: &Store, bucket: PartitionId, key: &[u8], content: &[u8]) {
    let mut upload = store.upload_part();
    upload.write(Buf::copy_of(content).into()).await.unwrap();
    let content = upload.finish().await.unwrap();
    store.put(bucket, key, Put { content, ..Put::default() }).await.unwrap();
}

fn joined(bucket: PartitionId, parts: &[&[u8]]) -> Batch {
    let mut batch = Batch::new();
    batch.join(bucket, b"a", parts.iter().map(|part| (bucket, part.to_vec())).collect(), Put::default());
    batch
}

/// Puts a part and joins it to the object, in one entry.
async fn put_and_join(store: &Store, bucket: PartitionId, content: &[u8]) {
    let mut upload = store.upload_part();
    upload.write(Buf::copy_of(content).into()).await.unwrap();
    let content = upload.finish().await.unwrap();
    let entries = store.counters().entries;
    let part = store.put(bucket, b"part 1", Put { content, ..Put::default() });
    let (part, joined) = join(part, store.commit(joined(bucket, &[b"part 1"]))).await;
    part.unwrap();
    joined.unwrap();
    assert_eq!(store.counters().entries, entries + 1, "one entry does both");
}

/// Four extents of old content, and an entry that names them and brings little or nothing.
const OLD_BYTES: usize = 200_000;

async fn last_entry(store: &Store, bucket: PartitionId, what: &str) {
    match what {
        "append" => drop(store.append(bucket, b"a", bytes_of(2, 30_000), 0).await.unwrap()),
        "attributes" => {
            let mut batch = Batch::new();
            batch.set_attributes(bucket, b"a", Which::Latest, vec![("new".to_owned(), Some(vec![1]))]);
            store.commit(batch).await.unwrap();
        }
        "move" => {
            let last = *extents(store, bucket, b"a").last().unwrap();
            let segment = store.inner.state.borrow().space.segment_of_block(last.block);
            store.inner.evacuate(&[segment].into()).await.unwrap();
            assert_ne!(extents(store, bucket, b"a").last(), Some(&last), "it went elsewhere");
            store.flush().await.unwrap();
        }
        _ => drop(store.commit(joined(bucket, &[b"part 1", b"part 2"])).await.unwrap()),
    }
}

fn bytes_of(seed: u64, len: usize) -> Bufs {
    Buf::copy_of(&bytes(seed, len)).into()
}

#[test]
fn what_rotted_of_old_content_costs_no_entry_that_names_it() {
    for (seed, what) in ["append", "attributes", "move", "join"].into_iter().enumerate() {
        for rots in [true, false] {
            let (sim, disk) = rig(seed as u64, 16 << 20);
            let store = open(&sim, &disk);
            let (bucket, before) = sim.block_on(async {
                let bucket = bucket(&store).await;
                if what == "join" {
                    put_part(&store, bucket, b"part 1", &bytes(1, OLD_BYTES)).await;
                    put_part(&store, bucket, b"part 2", &bytes(2, 30_000)).await;
                } else {
                    store.put(bucket, b"a", put(&bytes(1, OLD_BYTES))).await.unwrap();
                }
                last_entry(&store, bucket, what).await;
                (bucket, known(&store, bucket, b"a"))
            });
            let first = extents(&store, bucket, b"a")[0];
            sim.crash();
            damage(&disk, first, rots);
            let store = open(&sim, &disk);
            sim.block_on(async {
                assert_eq!(known(&store, bucket, b"a"), before, "the {what} is there, {rots}");
                let kind = if rots { Kind::Corrupt } else { Kind::Device };
                assert_eq!(read(&store, bucket, b"a", 0).await.unwrap_err().kind(), kind, "{what}");
                let expected = [bytes(1, OLD_BYTES), bytes(2, 30_000)].concat();
                let from = first.blocks as usize * 4096;
                let is_longer = matches!(what, "append" | "join");
                let end = if is_longer { expected.len() } else { OLD_BYTES };
                assert_eq!(read(&store, bucket, b"a", from).await.unwrap(), expected[from..end], "{what}");
            });
        }
    }
}

#[test]
fn an_entry_whose_new_content_is_torn_does_not_count() {
    for (seed, what) in ["append", "move"].into_iter().enumerate() {
        let (sim, disk) = rig(10 + seed as u64, 16 << 20);
        let store = open(&sim, &disk);
        let (bucket, before, brought) = sim.block_on(async {
            let bucket = bucket(&store).await;
            store.put(bucket, b"a", put(&bytes(1, OLD_BYTES))).await.unwrap();
            let before = known(&store, bucket, b"a");
            last_entry(&store, bucket, what).await;
            (bucket, before, *extents(&store, bucket, b"a").last().unwrap())
        });
        assert!(!before.extents().contains(&brought));
        sim.crash();
        damage(&disk, brought, true);
        let store = open(&sim, &disk);
        sim.block_on(async {
            assert_eq!(known(&store, bucket, b"a"), before, "the {what} is not there");
            assert_eq!(read(&store, bucket, b"a", 0).await.unwrap(), bytes(1, OLD_BYTES));
        });
    }
}

/// What an entry brings and joins, or goes on with, is not old for that.
#[test]
fn what_an_entry_brings_and_changes_is_new() {
    let (sim, disk) = rig(20, 16 << 20);
    let store = open(&sim, &disk);
    let (bucket, brought) = sim.block_on(async {
        let bucket = bucket(&store).await;
        put_and_join(&store, bucket, &bytes(1, OLD_BYTES)).await;
        (bucket, extents(&store, bucket, b"a")[0])
    });
    sim.crash();
    damage(&disk, brought, true);
    let store = open(&sim, &disk);
    sim.block_on(async {
        for key in [b"part 1".as_slice(), b"a"] {
            assert_eq!(store.stat(bucket, key, Which::Latest).await.unwrap_err().kind(), Kind::Missing);
        }
    });
}

#[test]
fn a_start_reads_what_the_last_entry_brings_once_and_nothing_else() {
    let (sim, disk) = rig(21, 16 << 20);
    let store = open(&sim, &disk);
    // The log, the roots, and what looks ahead in vain.
    let spare = 6 * u64::from(SEGMENT_BYTES);
    let read_bytes = || {
        sim.crash();
        disk.reset_counters();
        let store = open(&sim, &disk);
        (store, disk.counters().read_bytes)
    };
    let bucket = sim.block_on(async {
        let bucket = bucket(&store).await;
        put_part(&store, bucket, b"part 1", &bytes(1, 4 << 20)).await;
        put_part(&store, bucket, b"part 2", &bytes(2, 2 << 20)).await;
        store.commit(joined(bucket, &[b"part 1", b"part 2"])).await.unwrap();
        bucket
    });
    let (store, read) = read_bytes();
    assert!(read < spare, "{read} bytes are read behind a join of 6 MiB");
    sim.block_on(async {
        store.remove(bucket, b"a", Which::Latest).await.unwrap();
        put_and_join(&store, bucket, &bytes(3, 1 << 20)).await;
    });
    let (_, read) = read_bytes();
    assert!(read < spare + (1 << 20) + (1 << 18), "{read} bytes are read behind 1 MiB that two records name");
}

/// An object whose first extent is rotten is appended to; the power goes at every operation in turn.
#[test]
fn the_power_goes_while_a_rotten_object_grows() {
    let mut cut = 0;
    for nth in 1..80 {
        let (sim, disk) = rig(100 + nth, 16 << 20);
        let store = open(&sim, &disk);
        let bucket = sim.block_on(async {
            let bucket = bucket(&store).await;
            store.put(bucket, b"a", put(&bytes(1, OLD_BYTES))).await.unwrap();
            // It says that the one before was durable.
            store.put(bucket, b"b", put(b"one")).await.unwrap();
            bucket
        });
        damage(&disk, extents(&store, bucket, b"a")[0], true);
        sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(nth)], ..FaultPlan::default() });
        let acknowledged = Cell::new(0);
        let part = |at: u64| bytes(at, [30_000, 100, 70_000][at as usize % 3]);
        let outcome = sim.run_until_crash_or(async {
            for at in 0..10 {
                store.append(bucket, b"a", Buf::copy_of(&part(at)).into(), 0).await.unwrap();
                acknowledged.set(at + 1);
            }
        });
        cut += u64::from(outcome == Outcome::Crashed);
        sim.set_plan(&FaultPlan::default());
        sim.crash();
        let store = open(&sim, &disk);
        sim.block_on(async {
            let grown = read(&store, bucket, b"a", OLD_BYTES).await.unwrap();
            let may_be = |count: u64| (0..count).flat_map(part).collect::<Vec<u8>>();
            let acknowledged = acknowledged.get();
            let is_one = grown == may_be(acknowledged) || grown == may_be((acknowledged + 1).min(10));
            assert!(is_one, "{} bytes after {acknowledged} appends, cut at {nth}", grown.len());
        });
        assert_sound(&store);
    }
    assert!(cut > 30, "{cut} cuts");
}

#[test]
fn an_entry_that_would_leave_its_segment_is_none() {
    let (sim, disk) = rig(22, 16 << 20);
    let store = open(&sim, &disk);
    let (bucket, head, place) = sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(b"one")).await.unwrap();
        let state = &mut *store.inner.state.borrow_mut();
        let start = state.log.start();
        let head = Head {
            store: state.log.store,
            opening: state.log.opening,
            sequence: start.sequence,
            first_revision: start.revision,
            durable_sequence: start.sequence,
            // With where it begins, more than 32 bits hold.
            entry_bytes: u32::MAX - 4095,
            records: 1,
            next_segment: start.next_segment,
            used_bytes: 4096,
        };
        (bucket, head, state.space.place(start.segment) + u64::from(start.offset))
    });
    sim.crash();
    sim.block_on(async {
        let mut block = BufMut::zeroed(4096);
        head.write(&mut block);
        disk.open().write(place, block.freeze().into(), true).await.unwrap();
    });
    let store = open(&sim, &disk);
    sim.block_on(async { assert_eq!(read(&store, bucket, b"a", 0).await.unwrap(), b"one") });
}

/// A checkpoint may hold what the last entry says: then its root says that the entry was durable.
#[test]
fn what_was_durable_when_a_root_was_written_is_not_dropped() {
    let (sim, disk) = rig(23, 16 << 20);
    let store = open(&sim, &disk);
    let (bucket, brought) = sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(&bytes(1, OLD_BYTES))).await.unwrap();
        store.inner.write_root(|root| root).await.unwrap();
        (bucket, extents(&store, bucket, b"a")[0])
    });
    sim.crash();
    damage(&disk, brought, true);
    let store = open(&sim, &disk);
    sim.block_on(async {
        assert_eq!(store.stat(bucket, b"a", Which::Latest).await.unwrap().size_bytes, OLD_BYTES as u64);
        assert_eq!(read(&store, bucket, b"a", 0).await.unwrap_err().kind(), Kind::Corrupt);
    });
}

/// The log does not end before what its root says was durable.
#[test]
fn an_entry_that_a_root_knows_is_missed() {
    let (sim, disk) = rig(24, 16 << 20);
    let store = open(&sim, &disk);
    let head = sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(b"one")).await.unwrap();
        store.inner.write_root(|root| root).await.unwrap();
        known(&store, bucket, b"a").place / BLOCK_BYTES_U64 * BLOCK_BYTES_U64
    });
    sim.crash();
    disk.inject(FaultKind::BitRot(Place::Range(head..head + 64), 3));
    let opened = sim.block_on(Store::open(disk.open(), sim.runtime(), super::options()));
    assert_eq!(opened.err().expect("it stays closed").kind(), Kind::Corrupt);
}

/// A clean stop says of every entry that it was durable: whatever rots of the last one is an error, and the key is there.
#[test]
fn what_was_put_last_before_a_clean_stop_is_not_dropped() {
    for content_bytes in [10, 8000, 50_000] {
        for of_record in [true, false] {
            let (sim, disk) = rig(25, 16 << 20);
            let store = open(&sim, &disk);
            let (bucket, last) = sim.block_on(async {
                let bucket = bucket(&store).await;
                store.put(bucket, b"a", put(b"one")).await.unwrap();
                store.put(bucket, b"last", put(&bytes(1, content_bytes))).await.unwrap();
                let last = known(&store, bucket, b"last");
                store.close().await.unwrap();
                (bucket, last)
            });
            sim.crash();
            if of_record || last.extents().is_empty() {
                let entry = last.place / BLOCK_BYTES_U64 * BLOCK_BYTES_U64;
                // All of the head, the record, and what lies behind it.
                disk.inject(FaultKind::BitRot(Place::Range(entry..entry + BLOCK_BYTES_U64), 2000));
            } else {
                damage(&disk, last.extents()[0], true);
            }
            let store = open(&sim, &disk);
            sim.block_on(async {
                assert_eq!(read(&store, bucket, b"a", 0).await.unwrap(), b"one");
                let listed = store.list(bucket, &Query::default()).await.unwrap().items.len();
                assert_eq!(listed, 2, "the key is listed, of {content_bytes} bytes");
                assert_eq!(read(&store, bucket, b"last", 0).await.unwrap_err().kind(), Kind::Corrupt);
                let damaged = store.scrub(None, u64::MAX).await.unwrap().damaged;
                assert!(damaged.iter().any(|one| one.key == b"last"), "a scrub names it: {damaged:?}");
            });
        }
    }
}
