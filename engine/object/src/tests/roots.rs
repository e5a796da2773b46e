//! One of the two roots rots: the other one says all that was acknowledged.

use super::model::world_of;
use super::{SEGMENT_BYTES, assert_sound, bucket, bytes, open, options, put, rig};
use crate::root::Root;
use crate::space::segment::Use;
use crate::*;
use futures::future::join;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Bufs, Geometry, Kind, Local, Result, Run, Runtime};
use kura_sim::{CrashPoint, Fault, FaultKind, FaultPlan, Place, Sim, SimDisk, When};
use rand::RngExt;
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Damages a root: its magic, or what is behind it.
fn rot(disk: &SimDisk, slot: u64, magic: bool) {
    let page = slot * BLOCK_BYTES_U64;
    let range = if magic { page..page + 8 } else { page + 16..page + 100 };
    disk.inject(FaultKind::BitRot(Place::Range(range), 3));
}

fn is_whole(disk: &SimDisk, slot: u64) -> bool {
    kura_block::is_sealed(&disk.at_rest(slot * BLOCK_BYTES_U64, BLOCK_BYTES), 8)
}

async fn read(store: &Store, bucket: PartitionId, key: &[u8]) -> Vec<u8> {
    let mut reader = store.read(bucket, key, Which::Latest).await.unwrap();
    reader.rest().await.unwrap().contiguous().to_vec()
}

/// A bucket with an object behind a checkpoint, and one that was put again and again since.
async fn begin(store: &Store) -> PartitionId {
    let bucket = bucket(store).await;
    store.put(bucket, b"first", put(&bytes(1, 5000))).await.unwrap();
    store.inner.checkpoint().await.unwrap();
    for at in 0..60 {
        store.put(bucket, b"log", put(&bytes(at, 5000))).await.unwrap();
    }
    bucket
}

async fn assert_begun(store: &Store, bucket: PartitionId, why: &str) {
    assert!(read(store, bucket, b"first").await == bytes(1, 5000), "{why}");
    assert!(read(store, bucket, b"log").await == bytes(59, 5000), "{why}");
}

/// Puts objects 0, 1, ... until `is_enough`: how many.
async fn fill(store: &Store, bucket: PartitionId, is_enough: impl Fn(u64) -> bool) -> u64 {
    let mut count = 0;
    while !is_enough(count) {
        let content = bytes(count, SEGMENT_BYTES as usize - BLOCK_BYTES);
        store.put(bucket, format!("{count}").as_bytes(), put(&content)).await.unwrap();
        count += 1;
        assert!(count < 150, "what is waited for does not come");
    }
    count
}

async fn assert_filled(store: &Store, bucket: PartitionId, count: u64, why: &str) {
    for at in 0..count {
        let content = read(store, bucket, format!("{at}").as_bytes()).await;
        assert!(content == bytes(at, SEGMENT_BYTES as usize - BLOCK_BYTES), "object {at}, {why}");
    }
}

/// What came between two checkpoints is dead but for its last entry, and other things lie there, while what the log before went
/// on behind is alive: by the older root it would end there.
#[test]
fn the_newest_root_rots_and_nothing_is_lost() {
    for slot in 0..2 {
        for magic in [false, true] {
            let (sim, disk) = rig(slot, 16 << 20);
            let store = open(&sim, &disk);
            let (bucket, count) = sim.block_on(async {
                let bucket = begin(&store).await;
                let next_segment = store.inner.state.borrow().root.start.next_segment;
                store.inner.checkpoint().await.unwrap();
                let usage = || store.inner.state.borrow().space.segments[next_segment as usize].usage;
                (bucket, fill(&store, bucket, |_| usage() == Use::Data).await)
            });
            sim.crash();
            rot(&disk, slot, magic);
            let store = open(&sim, &disk);
            sim.block_on(async {
                let why = format!("root {slot} is rotten");
                assert_begun(&store, bucket, &why).await;
                assert_filled(&store, bucket, count, &why).await;
            });
            assert!(is_whole(&disk, slot), "a start writes both");
        }
    }
}

/// Small stores with the cleaner at work; whenever none is open, one of the roots rots, if both are whole.
#[test]
fn the_power_goes_and_a_root_rots() {
    let (mut rotten, mut different) = (0, 0);
    for seed in 0..60 {
        let plan = |sim: &Sim, round: usize| {
            let nth = sim.rng(&format!("crash {round}")).random_range(1..600);
            let crash = (!round.is_multiple_of(4)).then_some(CrashPoint::Op(nth));
            FaultPlan { crashes: crash.into_iter().collect(), ..FaultPlan::default() }
        };
        let times = Cell::new(0);
        let rest = |sim: &Sim, disk: &SimDisk| {
            if (0..2).all(|slot| is_whole(disk, slot)) {
                times.set(times.get() + 1);
                let says = |slot: u64| disk.at_rest(slot * BLOCK_BYTES_U64 + 40, 80);
                different += u32::from(says(0) != says(1));
                rot(disk, sim.rng(&format!("rot {}", times.get())).random_range(0..2), false);
            }
        };
        world_of(7000 + seed, (3 << 20) + ((seed % 40) << 16), 12, false, plan, rest);
        rotten += times.get();
    }
    assert!(rotten > 1000 && different > 0, "{rotten} roots rotted, {different} of them beside another one");
}

/// A device on which roots are slow to be written.
struct SlowRoots(Rc<dyn Block>, Rc<dyn Runtime>);

impl Block for SlowRoots {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        self.0.read(offset, len)
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        Box::pin(async move {
            if offset < 2 * BLOCK_BYTES_U64 {
                self.1.sleep(Duration::from_millis(3)).await;
            }
            self.0.write(offset, data, fua).await
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        self.0.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        self.0.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        self.0.write_zeroes(offset, len, keep)
    }

    fn runs(&self, offset: u64, len: u64) -> Local<'_, Result<Vec<Run>>> {
        self.0.runs(offset, len)
    }
}

/// The power goes before, between and behind the two copies of a checkpoint's root, beside clients that use all that is free; and
/// either root rots.
#[test]
fn the_power_goes_in_a_checkpoint_and_a_root_rots() {
    let mut different = 0;
    for at_us in (0..12_000).step_by(250) {
        for slot in 0..2 {
            let (sim, disk) = rig(at_us, 16 << 20);
            let device = Rc::new(SlowRoots(disk.open(), sim.runtime()));
            let store = sim.block_on(Store::open(device, sim.runtime(), options())).unwrap();
            let bucket = sim.block_on(begin(&store));
            sim.set_plan(&FaultPlan {
                crashes: vec![CrashPoint::After(Duration::from_micros(at_us + 1))],
                ..FaultPlan::default()
            });
            let acknowledged = Cell::new(0);
            let puts = async {
                for at in 0_u64.. {
                    store.put(bucket, format!("{at}").as_bytes(), put(&bytes(at, 8000))).await.unwrap();
                    acknowledged.set(at + 1);
                }
            };
            sim.run_until_crash_or(join(store.inner.checkpoint(), puts));
            sim.set_plan(&FaultPlan::default());
            sim.crash();
            different += u32::from(disk.at_rest(40, 80) != disk.at_rest(BLOCK_BYTES_U64 + 40, 80));
            rot(&disk, slot, false);
            let store = open(&sim, &disk);
            sim.block_on(async {
                let why = format!("cut after {at_us} us, root {slot} is rotten");
                assert_begun(&store, bucket, &why).await;
                for at in 0..acknowledged.get() {
                    let content = read(&store, bucket, format!("{at}").as_bytes()).await;
                    assert!(content == bytes(at, 8000), "object {at}, {why}");
                }
            });
            assert_sound(&store);
        }
    }
    assert!(different > 10, "{different} cuts came between the two");
}

/// The device refuses what a checkpoint writes, from some operation on; also the second copy of the root that counts by then.
#[test]
fn a_root_whose_copy_is_refused_counts_and_keeps_what_the_other_one_needs() {
    let mut alone = 0;
    for nth in 1..12 {
        for slot in [None, Some(0), Some(1)] {
            let (sim, disk) = rig(nth, 16 << 20);
            let store = open(&sim, &disk);
            let (bucket, count) = sim.block_on(async {
                let bucket = begin(&store).await;
                let refuses = FaultKind::Refuses { lasts: Duration::MAX };
                let fault = Fault { disk: disk.name().to_owned(), when: When::Op(nth), what: refuses };
                sim.set_plan(&FaultPlan { faults: vec![fault], ..FaultPlan::default() });
                let written = store.inner.checkpoint().await;
                sim.set_plan(&FaultPlan::default());
                disk.revive();
                assert!(written.err().is_none_or(|error| error.kind() == Kind::Retry));
                assert_sound(&store);
                alone += u32::from(store.inner.state.borrow().root_is_alone());
                // What is free by now is used, by the log first.
                for at in 0..300 {
                    store.put(bucket, format!("behind {at}").as_bytes(), put(&bytes(at, 8000))).await.unwrap();
                }
                let count = fill(&store, bucket, |count| count == 60).await;
                (bucket, count)
            });
            sim.crash();
            if let Some(slot) = slot {
                rot(&disk, slot, false);
            }
            let store = open(&sim, &disk);
            sim.block_on(async {
                let why = format!("refused from {nth} on, root {slot:?} is rotten");
                assert_begun(&store, bucket, &why).await;
                assert_filled(&store, bucket, count, &why).await;
                store.inner.checkpoint().await.unwrap();
            });
            assert!(!store.inner.state.borrow().root_is_alone());
            assert_sound(&store);
        }
    }
    assert_eq!(alone, 3, "the copy is one operation");
}

#[test]
fn a_root_that_was_not_written_whole_is_not_missed() {
    let (sim, disk) = rig(38, 16 << 20);
    let store = open(&sim, &disk);
    let (bucket, root) = sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(b"one")).await.unwrap();
        store.inner.checkpoint().await.unwrap();
        store.put(bucket, b"b", put(b"two")).await.unwrap();
        (bucket, store.inner.state.borrow().root)
    });
    sim.crash();
    // As a crash leaves the one that was to come.
    rot(&disk, (root.generation + 1) % 2, false);
    let store = open(&sim, &disk);
    sim.block_on(async {
        assert_eq!(read(&store, bucket, b"a").await, b"one");
        assert_eq!(read(&store, bucket, b"b").await, b"two");
    });
}

/// Its log goes on in the next segment, and what came before is given away: the newest root counts all the same.
#[test]
fn the_newest_root_counts_without_the_other_one_at_any_time() {
    let mut moved = 0;
    for seed in 0..6_u64 {
        let (sim, disk) = rig(60 + seed, 16 << 20);
        let mut store = open(&sim, &disk);
        let bucket = sim.block_on(bucket(&store));
        for round in 0..8_u64 {
            sim.block_on(async {
                for at in 0..10 + 3 * seed + round {
                    let content = bytes(at, 1000 * (1 + at as usize % 9));
                    store.put(bucket, &[at as u8 % 5], put(&content)).await.unwrap();
                }
                store.inner.checkpoint().await.unwrap();
                for at in 0..30_u64 {
                    let len = if at % 3 == 0 { 5000 } else { SEGMENT_BYTES as usize - BLOCK_BYTES };
                    store.put(bucket, &[at as u8 % 20], put(&bytes(at, len))).await.unwrap();
                    let (newest, is_gone) = {
                        let state = store.inner.state.borrow();
                        (state.root, state.space.segments[state.root.start.segment as usize].usage == Use::Data)
                    };
                    let found = newest.alone(&*disk.open()).await;
                    assert!(found.is_ok(), "{seed}, {round}, {at}: {found:?}");
                    moved += u32::from(is_gone);
                }
            });
            if round % 3 == 2 {
                sim.crash();
                store = open(&sim, &disk);
            }
        }
    }
    assert!(moved > 0, "no log left the segment of its start");
}

/// The root of the checkpoint before, which earlier programs left beside the newest, names a log that is not there any more.
#[test]
fn without_its_newest_root_a_store_is_not_taken_for_an_older_one() {
    let (sim, disk) = rig(39, 16 << 20);
    let store = open(&sim, &disk);
    let (older, newest) = sim.block_on(async {
        let bucket = bucket(&store).await;
        let fill = async |seed: u64| {
            for at in 0..60 {
                store.put(bucket, b"log", put(&bytes(seed + at, 5000))).await.unwrap();
            }
        };
        fill(0).await;
        store.inner.checkpoint().await.unwrap();
        let older = store.inner.state.borrow().root;
        assert!(older.start.offset > 0);
        fill(100).await;
        store.inner.checkpoint().await.unwrap();
        let newest = store.inner.state.borrow().root;
        // What died is given away, and something else comes there: a segment of it each time.
        let is_over = || {
            let (state, start) = (store.inner.state.borrow(), older.start);
            let is_data = |segment: u32| state.space.segments[segment as usize].usage == Use::Data;
            is_data(start.segment) && is_data(start.next_segment)
        };
        for at in 0..400_u64 {
            if is_over() {
                break;
            }
            store
                .put(bucket, format!("{at}").as_bytes(), put(&bytes(at, SEGMENT_BYTES as usize - BLOCK_BYTES)))
                .await
                .unwrap();
        }
        assert!(is_over());
        assert_eq!(store.inner.state.borrow().root, newest, "no other checkpoint came");
        (older, newest)
    });
    sim.crash();
    let older = Root { generation: newest.generation - 1, ..older };
    sim.block_on(older.write(&*disk.open())).unwrap();
    rot(&disk, newest.generation % 2, false);
    let error = sim.block_on(Store::open(disk.open(), sim.runtime(), options())).err().expect("it stays closed");
    assert!(error.to_string().contains("newest root is lost"), "{error}");
}
