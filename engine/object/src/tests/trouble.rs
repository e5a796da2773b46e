//! Devices that do not answer, openings that meet, and keys that everybody wants.

use super::{SEGMENT_BYTES, assert_sound, bucket, bytes, open, options, put, rig};
use crate::known::{Known, Piece};
use crate::object::name_of;
use crate::space::segment::Use;
use crate::*;
use futures::future::{join, join_all, join3};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, Kind, Runtime};
use kura_sim::{FaultKind, Place, Sim, SimDisk};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

fn known(store: &Store, bucket: PartitionId, key: &[u8]) -> Known {
    store.inner.state.borrow().newest(&name_of(bucket, key)).unwrap().unwrap().1
}

/// Reads of these blocks fail until they are written again.
fn spoil(disk: &SimDisk, block: u64, blocks: u64) {
    let place = block * BLOCK_BYTES_U64;
    disk.inject(FaultKind::ReadError(Place::Range(place..place + blocks * BLOCK_BYTES_U64)));
}

/// Writes again what is there: it can be read from now on.
async fn mend(disk: &SimDisk, block: u64, blocks: u64) {
    let (place, len) = (block * BLOCK_BYTES_U64, blocks as usize * BLOCK_BYTES);
    let bytes = disk.at_rest(place, len);
    disk.open().write(place, Buf::copy_of(&bytes).into(), true).await.unwrap();
}

fn refused(sim: &Sim, disk: &SimDisk) -> Kind {
    let opened = sim.block_on(Store::open(disk.open(), sim.runtime(), options()));
    opened.err().expect("the store stays closed").kind()
}

async fn read(store: &Store, bucket: PartitionId, key: &[u8]) -> kura_block::Result<Vec<u8>> {
    let mut reader = store.read(bucket, key, Which::Latest).await?;
    Ok(reader.rest().await?.contiguous().to_vec())
}

#[test]
fn a_root_that_cannot_be_read_keeps_the_store_closed() {
    for slot in 0..2 {
        let (sim, disk) = rig(20 + slot, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async { store.put(bucket(&store).await, b"a", put(b"one")).await.unwrap() });
        sim.crash();
        spoil(&disk, slot, 1);
        assert_eq!(refused(&sim, &disk), Kind::Device, "root {slot}");
        sim.block_on(mend(&disk, slot, 1));
        let store = open(&sim, &disk);
        sim.block_on(async { assert_eq!(read(&store, bucket(&store).await, b"a").await.unwrap(), b"one") });
    }
}

#[test]
fn a_store_whose_roots_are_damaged_is_no_new_one() {
    let (sim, disk) = rig(22, 16 << 20);
    drop(open(&sim, &disk));
    sim.crash();
    for slot in 0..2 {
        let page = slot * BLOCK_BYTES_U64;
        // Not of the magic.
        disk.inject(FaultKind::BitRot(Place::Range(page + 100..page + BLOCK_BYTES_U64), 3));
    }
    assert_eq!(refused(&sim, &disk), Kind::Corrupt);
    let (sim, disk) = rig(23, 16 << 20);
    sim.block_on(disk.open().write(0, kura_block::Bufs::zeroes(2 * BLOCK_BYTES), true)).unwrap();
    assert_eq!(refused(&sim, &disk), Kind::Missing);
}

#[test]
fn a_passing_read_error_at_the_start_drops_nothing() {
    let (sim, disk) = rig(24, 16 << 20);
    let store = open(&sim, &disk);
    let (bucket, last) = sim.block_on(async {
        let bucket = bucket(&store).await;
        // The last entry: no later one says that it was durable, and its extents are what shows that it is whole.
        store.put(bucket, b"large", put(&bytes(1, 50_000))).await.unwrap();
        (bucket, known(&store, bucket, b"large"))
    });
    sim.crash();
    let extent = last.extents()[0];
    spoil(&disk, u64::from(extent.block) + 1, 1);
    assert_eq!(refused(&sim, &disk), Kind::Device, "the extent");
    sim.block_on(mend(&disk, u64::from(extent.block) + 1, 1));
    spoil(&disk, last.place / BLOCK_BYTES_U64, 1);
    assert_eq!(refused(&sim, &disk), Kind::Device, "the entry");
    sim.block_on(mend(&disk, last.place / BLOCK_BYTES_U64, 1));
    disk.inject(FaultKind::Refuses { lasts: Duration::from_millis(1) });
    assert_eq!(refused(&sim, &disk), Kind::Retry);
    sim.block_on(sim.runtime().sleep(Duration::from_millis(2)));
    let store = open(&sim, &disk);
    sim.block_on(async { assert_eq!(read(&store, bucket, b"large").await.unwrap(), bytes(1, 50_000)) });
}

#[test]
fn a_bad_sector_costs_the_cleaner_what_lies_in_it() {
    for (seed, len) in [(25, 6000), (26, 20_000)] {
        let (sim, disk) = rig(seed, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            let names: Vec<Vec<u8>> = (0..40).map(|at| format!("{at:02}").into_bytes()).collect();
            for (at, name) in names.iter().enumerate() {
                store.put(bucket, name, put(&bytes(at as u64, len))).await.unwrap();
            }
            store.flush().await.unwrap();
            // In the middle of the store, where neither the log nor data goes on.
            let bad = known(&store, bucket, b"12");
            let is_large = !bad.extents().is_empty();
            let block = bad.extents().first().map_or(bad.place.div_ceil(BLOCK_BYTES_U64), |one| one.block.into());
            spoil(&disk, block, 1);
            let segment = block as u32 / store.inner.state.borrow().space.segment_blocks;
            let lies_there = |name: &Vec<u8>| {
                let (known, state) = (known(&store, bucket, name), store.inner.state.borrow());
                let of_extents = known.extents().into_iter().map(|extent| state.space.segment_of_block(extent.block));
                let record = state.space.segment_of_place(known.place);
                if is_large { of_extents.into_iter().any(|one| one == segment) } else { record == segment }
            };
            let before = names.iter().filter(|name| lies_there(name)).count();
            assert!(before > 2, "{before} objects share the segment");
            if is_large {
                store.inner.evacuate(&[segment].into()).await.unwrap();
            } else {
                store.inner.clean_log_segment(segment).await.unwrap();
            }
            let left: Vec<_> = names.iter().filter(|name| lies_there(name)).collect();
            assert!(left.len() <= 2 && left.contains(&&names[12]), "{left:?} of {before} stay");
            let usage = if is_large { Use::Data } else { Use::Log };
            let victims = store.inner.victims(usage, usize::MAX, true);
            assert!(victims.iter().all(|(victim, _)| *victim != segment), "others come first");
            for (at, name) in names.iter().enumerate() {
                match read(&store, bucket, name).await {
                    Ok(content) => assert_eq!(content, bytes(at as u64, len)),
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Device);
                        assert!(left.contains(&name), "{at}: {error}");
                    }
                }
            }
            // After a checkpoint it is tried again, and where the sector can be read by then, all goes.
            mend(&disk, block, 1).await;
            store.inner.checkpoint().await.unwrap();
            store.inner.sweep(&[segment].into()).await.unwrap();
            assert!(!names.iter().any(lies_there));
            store.put(bucket, b"last", put(b"one")).await.unwrap();
        });
        assert_sound(&store);
    }
}

#[test]
fn what_does_not_fit_into_its_record_any_more_is_left_where_it_is() {
    let (sim, disk) = rig(35, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(&bytes(1, 20_000))).await.unwrap();
        let segment = {
            let state = &mut *store.inner.state.borrow_mut();
            let (row, mut known) = state.newest(&name_of(bucket, b"a")).unwrap().unwrap();
            let whole = known.pieces[0];
            // A segment has no room for so many.
            known.pieces = (0..10_000).map(|at| Piece { from: at * 2, len: 2, ..whole }).collect();
            state.index.edit(&row, Some(&known)).unwrap();
            state.space.segment_of_block(known.extents()[0].block)
        };
        let before = store.counters().extent_bytes;
        store.inner.evacuate(&[segment].into()).await.unwrap();
        assert!(store.inner.state.borrow().space.stuck.contains(&segment));
        assert_eq!(store.counters().extent_bytes, before, "nothing is copied in vain");
        assert_eq!(read(&store, bucket, b"a").await.unwrap(), bytes(1, 20_000));
        store.put(bucket, b"b", put(b"one")).await.unwrap();
    });
}

#[test]
fn two_openings_do_not_meet() {
    for delay_us in 0..120 {
        let (sim, disk) = rig(27, 16 << 20);
        let store = open(&sim, &disk);
        let bucket = sim.block_on(async {
            let bucket = bucket(&store).await;
            // As after entries that were given up.
            store.inner.state.borrow_mut().log.must_reopen = true;
            let puts = async {
                for at in 0..5 {
                    store.put(bucket, &[at], put(&[at])).await.unwrap();
                }
            };
            let checkpoint = async {
                sim.runtime().sleep(Duration::from_micros(delay_us)).await;
                if store.inner.state.borrow().log.must_reopen {
                    store.inner.begin_opening().await.unwrap();
                }
            };
            join(puts, checkpoint).await;
            bucket
        });
        sim.crash();
        let store = open(&sim, &disk);
        sim.block_on(async {
            for at in 0..5 {
                assert_eq!(read(&store, bucket, &[at]).await.unwrap(), [at], "put {at}, {delay_us} us later");
            }
        });
    }
}

#[test]
fn what_is_always_being_changed_can_be_read() {
    let (sim, disk) = rig(28, 32 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"hot", put(b"first")).await.unwrap();
        let (written, read_count) = (Cell::new(0), Cell::new(0));
        let writer = async |number: u64| {
            for at in 0..100 {
                store.put(bucket, b"hot", put(&bytes(number * 1000 + at, 3000))).await.unwrap();
                written.set(written.get() + 1);
            }
        };
        let reader = async || {
            while written.get() < 700 {
                let content = read(&store, bucket, b"hot").await.unwrap();
                assert!(content == b"first" || content.len() == 3000);
                read_count.set(read_count.get() + 1);
            }
        };
        join(join_all((0..8).map(writer)), join_all((0..20).map(|_| reader()))).await;
        assert!(read_count.get() > 400, "{} reads beside 700 writes", read_count.get());
    });
    assert_sound(&store);
}

#[test]
fn a_list_shows_nothing_that_is_not_durable_yet() {
    for delay_us in 0..60 {
        let (sim, disk) = rig(29, 16 << 20);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            let list = async {
                let page = store.list(bucket, &Query::default()).await.unwrap();
                for item in page.items {
                    let Item::Object { key, .. } = item else { continue };
                    let pending = store.inner.state.borrow().log.pending(&name_of(bucket, &key)).is_some();
                    assert!(!pending, "key {key:?}, {delay_us} us later");
                }
            };
            let later = async {
                sim.runtime().sleep(Duration::from_micros(delay_us)).await;
                store.put(bucket, b"b", put(b"two")).await.unwrap();
            };
            let (put, (), ()) = join3(store.put(bucket, b"a", put(b"one")), list, later).await;
            put.unwrap();
        });
    }
}

#[test]
fn who_reads_an_object_keeps_no_room_but_its_own() {
    let (sim, disk) = rig(30, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"hot", put(&bytes(1, 20_000))).await.unwrap();
        store.put(bucket, b"other", put(&bytes(2, 20_000))).await.unwrap();
        let segment_of = |key: &[u8]| {
            let extent = known(&store, bucket, key).extents()[0];
            store.inner.state.borrow().space.segment_of_block(extent.block)
        };
        assert_eq!(segment_of(b"hot"), segment_of(b"other"));
        let mut hot = store.read(bucket, b"hot", Which::Latest).await.unwrap();
        store.remove(bucket, b"hot", Which::Latest).await.unwrap();
        store.remove(bucket, b"other", Which::Latest).await.unwrap();
        store.inner.checkpoint().await.unwrap();
        assert_eq!(store.inner.state.borrow().space.in_limbo().count(), 1, "only what is being read waits");
        assert_eq!(*hot.rest().await.unwrap().contiguous(), bytes(1, 20_000));
        drop(hot);
        assert_eq!(store.inner.state.borrow().space.in_limbo().count(), 0);
    });
    assert_sound(&store);
}

#[test]
fn parts_lie_in_few_pieces() {
    let sim = Sim::new(31);
    let disk = sim.disk("disk", kura_sim::DiskSpec::nvme(1 << 30));
    sim.block_on(Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: Some(4 << 20) })).unwrap();
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let before = store.counters();
        let size = 8 << 20;
        let mut upload = store.upload_part();
        for at in 0..8 {
            upload.write(Buf::copy_of(&bytes(at, 1 << 20)).into()).await.unwrap();
        }
        let content = upload.finish().await.unwrap();
        store.put(bucket, b"part", Put { content, ..Put::default() }).await.unwrap();
        let pieces = known(&store, bucket, b"part").pieces.len();
        assert!(pieces <= 3, "{pieces} pieces");
        let after = store.counters();
        let written = after.extent_bytes + after.log_bytes - before.extent_bytes - before.log_bytes;
        assert!(written as f64 <= f64::from(size) * 1.01, "{written} bytes written for {size}");
        let all: Vec<u8> = (0..8).flat_map(|at| bytes(at, 1 << 20)).collect();
        assert_eq!(read(&store, bucket, b"part").await.unwrap(), all);
    });
    assert_sound(&store);
}

#[test]
fn a_device_that_refuses_for_a_while_is_not_asked_for_ever() {
    let (sim, disk) = rig(32, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(b"one")).await.unwrap();
        disk.inject(FaultKind::Refuses { lasts: Duration::MAX });
        assert_eq!(read(&store, bucket, b"a").await.unwrap_err().kind(), Kind::Retry);
        let edited = store.append(bucket, b"a", Buf::copy_of(b"two").into(), 0).await;
        assert_eq!(edited.unwrap_err().kind(), Kind::Retry);
        disk.revive();
        assert_eq!(read(&store, bucket, b"a").await.unwrap(), b"one");
    });
}

#[test]
fn writes_that_are_refused_for_a_moment_come_late() {
    let (sim, disk) = rig(33, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        disk.inject(FaultKind::Refuses { lasts: Duration::from_millis(500) });
        store.put(bucket, b"a", put(b"one")).await.unwrap();
    });
    sim.crash();
    let store = open(&sim, &disk);
    sim.block_on(async { assert_eq!(read(&store, bucket(&store).await, b"a").await.unwrap(), b"one") });
}

/// Four clients put while the device refuses now and then, for longer than a write waits.
#[test]
fn a_device_that_refuses_for_long_costs_what_was_not_written_and_no_restart() {
    let (mut stored, mut refused) = (0, 0);
    for seed in 0..20 {
        let (sim, disk) = rig(200 + seed, 16 << 20);
        let store = open(&sim, &disk);
        let (kept, gone) = (RefCell::new(BTreeMap::new()), RefCell::new(BTreeSet::new()));
        let bucket = sim.block_on(async {
            let (bucket, runtime) = (bucket(&store).await, sim.runtime());
            let client = async |number: u64| {
                for at in 0..40 {
                    let key = format!("{number}/{at}").into_bytes();
                    let content = bytes(number * 1000 + at, [50, 5000, 30_000][at as usize % 3]);
                    match store.put(bucket, &key, put(&content)).await {
                        Ok(_) => drop(kept.borrow_mut().insert(key, content)),
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::Retry, "{error}");
                            gone.borrow_mut().insert(key);
                        }
                    }
                    runtime.sleep(Duration::from_millis(20 + number * 7)).await;
                }
            };
            let trouble = async {
                for _ in 0..4 {
                    runtime.sleep(Duration::from_millis(60 + seed * 3)).await;
                    disk.inject(FaultKind::Refuses { lasts: Duration::from_millis(1500) });
                    runtime.sleep(Duration::from_millis(1500)).await;
                }
            };
            join(join_all((0..4).map(client)), trouble).await;
            disk.inject(FaultKind::Refuses { lasts: Duration::MAX });
            assert_eq!(store.inner.checkpoint().await.unwrap_err().kind(), Kind::Retry);
            disk.revive();
            store.put(bucket, b"last", put(b"one")).await.unwrap();
            store.inner.checkpoint().await.unwrap();
            bucket
        });
        assert_sound(&store);
        if seed % 2 == 0 {
            sim.block_on(store.close()).unwrap();
        }
        drop(store);
        sim.crash();
        let (kept, gone) = (kept.into_inner(), gone.into_inner());
        let store = open(&sim, &disk);
        sim.block_on(async {
            for (key, content) in &kept {
                assert_eq!(read(&store, bucket, key).await.unwrap(), *content, "{}", key.escape_ascii());
            }
            for key in &gone {
                assert_eq!(read(&store, bucket, key).await.unwrap_err().kind(), Kind::Missing);
            }
        });
        stored += kept.len();
        refused += gone.len();
    }
    assert!(stored > 300 && refused > 300, "{stored} stored, {refused} refused");
}

/// The log's segment holds nothing that is alive, and the entry that does not fit there any more is refused: the log goes back.
#[test]
fn a_segment_that_the_log_goes_back_into_is_not_given_away() {
    let (sim, disk) = rig(34, 16 << 20);
    let store = open(&sim, &disk);
    let stands = |store: &Store| store.inner.state.borrow_mut().log.start();
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"kept", put(b"one")).await.unwrap();
        let mut removals = Batch::new();
        for at in 0..28_u8 {
            store.put(bucket, &[at], put(&bytes(1, 3000))).await.unwrap();
            removals.remove(bucket, &[at], Which::Latest);
        }
        store.commit(removals).await.unwrap();
        store.close().await.unwrap();
    });
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let start = stands(&store);
        let live_bytes = store.inner.state.borrow().space.segments[start.segment as usize].live_bytes;
        assert!(start.segment > 1 && start.offset == SEGMENT_BYTES - 4096 && live_bytes == 0, "{start:?}");
        let reader = store.read(bucket, b"kept", Which::Latest).await.unwrap();
        disk.inject(FaultKind::Refuses { lasts: Duration::MAX });
        let content = bytes(2, 7000);
        let ends_meanwhile = async {
            sim.runtime().sleep(Duration::from_millis(100)).await;
            drop(reader);
        };
        let (refused, ()) = join(store.put(bucket, b"large", put(&content)), ends_meanwhile).await;
        assert_eq!(refused.unwrap_err().kind(), Kind::Retry);
        disk.revive();
        assert_sound(&store);
        store.put(bucket, b"back", put(b"two")).await.unwrap();
        assert_eq!(known(&store, bucket, b"back").place / u64::from(SEGMENT_BYTES), u64::from(start.segment));
        for at in 0..60 {
            store.put(bucket, format!("more {at}").as_bytes(), put(&bytes(at, 7000))).await.unwrap();
        }
        assert_eq!(read(&store, bucket, b"back").await.unwrap(), b"two");
    });
    assert_sound(&store);
    sim.crash();
    let store = open(&sim, &disk);
    sim.block_on(async { assert_eq!(read(&store, bucket(&store).await, b"back").await.unwrap(), b"two") });
}

#[test]
fn a_scrub_does_not_pass_over_what_the_device_does_not_give_for_now() {
    let (sim, disk) = rig(36, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(&bytes(1, 20_000))).await.unwrap();
        disk.inject(FaultKind::Refuses { lasts: Duration::MAX });
        assert_eq!(store.scrub(None, u64::MAX).await.unwrap_err().kind(), Kind::Retry);
        disk.revive();
        let scrubbed = store.scrub(None, u64::MAX).await.unwrap();
        assert_eq!((scrubbed.versions, scrubbed.damaged.len()), (2, 0), "the partition and the object");
    });
}

/// Two clients put a key that is not to exist.
#[test]
fn a_batch_is_not_refused_for_what_did_not_happen() {
    let (sim, disk) = rig(37, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let put_new = async |key: &[u8]| {
            let mut batch = Batch::new();
            batch.require(bucket, key, Condition::Absent);
            batch.put(bucket, key, put(b"one"));
            let done = store.commit(batch).await;
            let pending = store.inner.state.borrow().log.pending(&name_of(bucket, key)).is_some();
            assert!(!pending, "who hears of the key hears of what is durable");
            done.map_err(|error| error.kind()).err()
        };
        assert_eq!(join(put_new(b"a"), put_new(b"a")).await, (None, Some(Kind::Exists)));
        disk.inject(FaultKind::Refuses { lasts: Duration::MAX });
        let refused = join(put_new(b"b"), put_new(b"b")).await;
        assert_eq!(refused, (Some(Kind::Retry), Some(Kind::Retry)));
        disk.revive();
        assert_eq!(put_new(b"b").await, None);
        assert_eq!(put_new(b"b").await, Some(Kind::Exists));
    });
}
