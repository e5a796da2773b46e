//! Disks that lie: bits rot, writes get lost, torn, or land elsewhere. A read gives what was put, or an error.

use super::{bucket, bytes, open, put, rig};
use crate::*;
use kura_block::{Kind, Runtime};
use kura_sim::{Fault, FaultKind, FaultPlan, Place, Sim, SimDisk, When};
use std::time::Duration;

const SIZES: &[usize] = &[10, 3000, 8000, 50_000, 200_000, 400_000];
/// Only these lie in the log.
const SMALL: &[usize] = &[10, 3000, 8000];

async fn fill(store: &Store, count: u64, sizes: &[usize]) {
    let bucket = bucket(store).await;
    for at in 0..count {
        let content = bytes(at, sizes[at as usize % sizes.len()]);
        store.put(bucket, format!("{at}").as_bytes(), put(&content)).await.unwrap();
    }
}

/// Reads everything: how many objects are damaged. What is read is what was put.
async fn read_all(store: &Store, count: u64, sizes: &[usize]) -> u64 {
    let bucket = store.partition(b"bucket").await.unwrap().id;
    let mut damaged = 0;
    for at in 0..count {
        let read = async {
            let mut reader = store.read(bucket, format!("{at}").as_bytes(), Which::Latest).await?;
            reader.rest().await
        };
        match read.await {
            Ok(content) => {
                assert_eq!(*content.contiguous(), bytes(at, sizes[at as usize % sizes.len()]), "object {at}");
            }
            Err(error) => {
                assert!(matches!(error.kind(), Kind::Corrupt | Kind::Device), "{error}");
                damaged += 1;
            }
        }
    }
    damaged
}

async fn scrub(store: &Store) -> u64 {
    let (mut place, mut damaged) = (None, 0);
    loop {
        let step = store.scrub(place, 100_000).await.unwrap();
        damaged += step.damaged.len() as u64;
        place = step.next;
        if place.is_none() {
            return damaged;
        }
    }
}

fn strike(sim: &Sim, disk: &SimDisk, what: FaultKind) {
    let fault = Fault { disk: disk.name().to_string(), when: When::Op(1), what };
    sim.set_plan(&FaultPlan { faults: vec![fault], ..FaultPlan::default() });
}

#[test]
fn rot_is_an_error_and_the_scrub_finds_it() {
    let mut found = 0;
    for seed in 0..30 {
        let (sim, disk) = rig(seed, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            fill(&store, 60, SIZES).await;
            store.flush().await.unwrap();
            assert_eq!(scrub(&store).await, 0);
            for _ in 0..10 {
                disk.inject(FaultKind::BitRot(Place::AnyPage, 3));
            }
            let damaged = read_all(&store, 60, SIZES).await;
            assert!(scrub(&store).await >= damaged, "the scrub reads all that users do");
            found += damaged;
        });
    }
    assert!(found > 30, "rot in most places is met: {found}");
}

#[test]
fn a_lost_torn_or_misplaced_write_never_passes_for_another() {
    let mut damaged = 0;
    for seed in 0..60 {
        for what in [FaultKind::LostWrite, FaultKind::TornWrite, FaultKind::MisdirectedWrite] {
            let (sim, disk) = rig(seed, 16 << 20);
            let store = open(&sim, &disk);
            sim.block_on(async {
                // Old records and extents of the same kind lie where new ones go.
                fill(&store, 60, SIZES).await;
                let bucket = bucket(&store).await;
                for at in 0..60_u64 {
                    store.remove(bucket, format!("{at}").as_bytes(), Which::Latest).await.unwrap();
                }
                store.inner.checkpoint().await.unwrap();
            });
            let fault = Fault { disk: disk.name().to_string(), when: When::Op(seed + 1), what: what.clone() };
            sim.set_plan(&FaultPlan { faults: vec![fault], ..FaultPlan::default() });
            sim.block_on(async {
                fill(&store, 60, SIZES).await;
                damaged += read_all(&store, 60, SIZES).await;
            });
        }
    }
    assert!(damaged > 30, "lies are met: {damaged}");
}

#[test]
fn a_damaged_store_opens_or_says_what_is_wrong() {
    let (mut opened, mut refused) = (0, 0);
    for seed in 0..60 {
        let (sim, disk) = rig(seed, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            fill(&store, 60, SMALL).await;
            if seed % 2 == 0 {
                store.close().await.unwrap();
            }
        });
        sim.crash();
        for _ in 0..=seed % 5 {
            disk.inject(FaultKind::BitRot(Place::AnyPage, 1));
        }
        sim.block_on(async {
            match Store::open(disk.open(), sim.runtime(), Options::default()).await {
                Ok(store) => {
                    opened += 1;
                    if store.partition(b"bucket").await.is_ok() {
                        // Puts that the log's end lost with its last entry are missing: the entry was never proven.
                        let bucket = store.partition(b"bucket").await.unwrap().id;
                        let listed = store.list(bucket, &Query::default()).await.unwrap().items.len() as u64;
                        assert!(listed >= 59, "{listed} objects are left");
                        read_all(&store, listed, SMALL).await;
                    }
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                }
            }
        });
    }
    assert!(opened > 20 && refused > 0, "{opened} opened, {refused} refused");
}

#[test]
fn a_write_that_fails_is_an_error_and_harms_nothing_else() {
    let (sim, disk) = rig(3, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        fill(&store, 12, SIZES).await;
        let bucket = bucket(&store).await;
        // Of an extent: the store goes on.
        strike(&sim, &disk, FaultKind::WriteError);
        let error = store.put(bucket, b"large", put(&bytes(1, 300_000))).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Device);
        store.put(bucket, b"large", put(&bytes(1, 300_000))).await.unwrap();
        // Of the log: it stops, and reads go on.
        strike(&sim, &disk, FaultKind::WriteError);
        assert_eq!(store.put(bucket, b"small", put(b"x")).await.unwrap_err().kind(), Kind::Device);
        assert_eq!(store.put(bucket, b"other", put(b"x")).await.unwrap_err().kind(), Kind::Device);
        assert_eq!(read_all(&store, 12, SIZES).await, 0);
    });
    sim.crash();
    let store = open(&sim, &disk);
    sim.block_on(async { assert_eq!(read_all(&store, 12, SIZES).await, 0) });
}

#[test]
fn a_flush_that_fails_stops_the_store_whoever_asked() {
    let (sim, disk) = rig(4, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        fill(&store, 3, SIZES).await;
        let bucket = bucket(&store).await;
        let mut batch = Batch::new();
        batch.put(bucket, b"in memory", put(b"x")).durability(Durability::Memory);
        store.commit(batch).await.unwrap();
        sim.runtime().sleep(Duration::from_millis(1)).await;
        assert!(store.inner.state.borrow().log.is_unflushed(), "it is written, and nobody has flushed it");
        strike(&sim, &disk, FaultKind::FlushError);
        assert_eq!(store.flush().await.unwrap_err().kind(), Kind::Device);
        assert_eq!(store.put(bucket, b"behind", put(b"x")).await.unwrap_err().kind(), Kind::Device);
        assert_eq!(read_all(&store, 3, SIZES).await, 0);
    });
    sim.crash();
    let store = open(&sim, &disk);
    sim.block_on(async { assert_eq!(read_all(&store, 3, SIZES).await, 0) });
}

#[test]
fn a_partition_that_cannot_be_read_keeps_no_other_from_being_read() {
    for (seed, rots) in [(5, false), (6, true)] {
        let (sim, disk) = rig(seed, 16 << 20);
        let store = open(&sim, &disk);
        let block_bytes = kura_block::BLOCK_BYTES_U64;
        let record = sim.block_on(async {
            let attributes: Attributes = [("policy".to_owned(), vec![7; 500])].into();
            store.create_partition(b"damaged", attributes.clone(), 0).await.unwrap();
            let name = crate::object::name_of(PartitionId::ROOT, b"damaged");
            let record = store.inner.state.borrow().newest(&name).unwrap().unwrap().1.place;
            store.create_partition(b"other", attributes, 0).await.unwrap();
            // The log goes on: where it stands, nothing is damaged.
            fill(&store, 60, SMALL).await;
            store.close().await.unwrap();
            record
        });
        sim.crash();
        let page = record / block_bytes * block_bytes..(record / block_bytes + 1) * block_bytes;
        let place = if rots { record + 100..record + 400 } else { page };
        disk.inject(if rots {
            FaultKind::BitRot(Place::Range(place), 3)
        } else {
            FaultKind::ReadError(Place::Range(place))
        });
        let store = open(&sim, &disk);
        sim.block_on(async {
            let damaged = store.partition(b"damaged").await.unwrap();
            let kind = damaged.unreadable.expect("it says so").kind();
            assert_eq!(kind, if rots { Kind::Corrupt } else { Kind::Device });
            assert!(damaged.attributes.is_empty());
            let other = store.partition(b"other").await.unwrap();
            assert!(other.unreadable.is_none() && other.attributes.len() == 1);
            assert_eq!(read_all(&store, 60, SMALL).await, 0);
            // What it has is its own still, and nothing is set in place of what cannot be read.
            store.put(damaged.id, b"a", put(b"one")).await.unwrap();
            let change = vec![("cors".to_owned(), None)];
            assert!(store.set_partition_attributes(b"damaged", None, change).await.is_err());
        });
    }
}

/// What only a start reads: the index, and entries of the log whose records nothing names any more.
#[test]
fn a_scrub_finds_what_would_keep_the_next_start_from_being_one() {
    for (rots_index, scrubs) in [(false, true), (true, true), (false, false), (true, false)] {
        let (sim, disk) = rig(31, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            store.put(bucket(&store).await, b"a", put(b"one")).await.unwrap();
            store.close().await.unwrap();
        });
        drop(store);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            let removal = store.inner.state.borrow_mut().log.start();
            store.remove(bucket, b"a", Which::Latest).await.unwrap();
            for key in [b"b", b"c"] {
                store.put(bucket, key, put(b"two")).await.unwrap();
            }
            let place = {
                let state = store.inner.state.borrow();
                let segment = if rots_index { state.index_segments[0] } else { removal.segment };
                state.space.place(segment) + if rots_index { 0 } else { u64::from(removal.offset) }
            };
            disk.inject(FaultKind::BitRot(Place::Range(place..place + 64), 3));
            if scrubs {
                let mut from = None;
                loop {
                    let done = store.scrub(from, 1 << 20).await.unwrap();
                    assert!(done.damaged.is_empty(), "no object is damaged");
                    from = done.next;
                    if from.is_none() {
                        assert!(done.restart.is_some_and(|error| error.to_string().contains("written anew")));
                        break;
                    }
                }
                assert!(store.scrub(None, 1 << 20).await.unwrap().restart.is_none(), "it is mended");
            }
        });
        drop(store);
        sim.crash();
        let opened = sim.block_on(Store::open(disk.open(), sim.runtime(), super::options()));
        assert_eq!(opened.is_ok(), scrubs, "index {rots_index}: it is opened where it was scrubbed before");
    }
}
