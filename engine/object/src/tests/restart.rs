//! What a start costs: segments are read beside each other, and checkpoints leave no more to replay than they say.

use super::{SEGMENT_BYTES, assert_sound, bucket, bytes, open, options, put, rig};
use crate::log::ahead::READS;
use crate::*;
use kura_block::{Local, Runtime};
use kura_sim::{DiskSpec, Sim, SimDisk, Ssd, SsdSpec};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const COUNT: usize = 250_000;

/// Opens the store: it, and how many requests the device had at a time, and for how many segments it took how long.
fn reopen(sim: &Sim, disk: &SimDisk) -> (Store, usize, f64) {
    sim.crash();
    disk.reset_counters();
    let start = sim.now();
    let store = sim.block_on(Store::open(disk.open(), sim.runtime(), options())).unwrap();
    let counters = disk.counters();
    let segments = counters.read_bytes as f64 / f64::from(SEGMENT_BYTES);
    let us_a_segment = sim.now().saturating_sub(start).as_secs_f64() * 1e6 / segments;
    assert_sound(&store);
    (store, counters.queue_max, us_a_segment)
}

#[test]
fn segments_are_read_beside_each_other() {
    let (sim, disk) = rig(1, 64 << 20);
    let store = open(&sim, &disk);
    // Long names fill the index, and content the log.
    let key = |at: u64| bytes(at + 1, 1000);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for at in 0..2000 {
            store.put(bucket, &key(at), put(&bytes(at, 3000))).await.unwrap();
        }
    });
    // One after another, each takes 180 us and more: 80 us to find the segment, 100 us to read it.
    for what in ["log", "index"] {
        let (store, queue_max, us_a_segment) = reopen(&sim, &disk);
        assert!((2..=READS + 1).contains(&queue_max), "{queue_max} reads at a time of the {what}");
        assert!(us_a_segment < 130.0, "{us_a_segment} us a segment of the {what}");
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for at in (0..2000).step_by(97) {
                let mut reader = store.read(bucket, &key(at), Which::Latest).await.unwrap();
                assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at, 3000));
            }
            store.close().await.unwrap();
        });
    }
}

#[test]
fn however_fast_users_are_a_checkpoint_leaves_a_bounded_part_to_replay() {
    // A flush takes as long as users need for as many records as make a checkpoint due.
    let sim = Sim::new(2);
    let slow = Ssd::new(SsdSpec { flush_latency_ns: 200_000_000, ..SsdSpec::nvme() });
    let disk = sim.disk("disk", DiskSpec::new(256 << 20, slow));
    sim.block_on(Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: None })).unwrap();
    let store = open(&sim, &disk);
    // What a crash would leave to replay.
    let tail = || {
        let state = store.inner.state.borrow();
        state.log.next_revision - state.root.start.revision
    };
    let (mut longest, mut waited) = (0, false);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for first in (0..COUNT).step_by(500) {
            let mut batch = Batch::new();
            for at in first..first + 500 {
                batch.put(bucket, format!("{:08x}", at.wrapping_mul(0x9e37_79b9) as u32).as_bytes(), put(b"content"));
            }
            batch.durability(Durability::Memory);
            store.commit(batch).await.unwrap();
            longest = longest.max(tail());
            waited |= store.inner.state.borrow().outruns_checkpoint();
        }
        store.flush().await.unwrap();
    });
    assert!(waited, "users outran the checkpoint");
    assert!((100_000..160_000).contains(&longest), "a crash would have left {longest} records to replay");
    let (store, ..) = reopen(&sim, &disk);
    let replayed = store.counters().replayed_records;
    assert!((1..=longest).contains(&replayed), "{replayed} records were replayed");
    assert_eq!(store.usage().versions, COUNT as u64 + 1);
}

#[test]
fn a_start_that_replays_much_is_followed_by_a_checkpoint() {
    let (sim, disk) = rig(3, 256 << 20);
    // Where discards are near, what is dead becomes free by checkpoints, too.
    let alone = Options { discard_after: None, ..options() };
    let open = || sim.block_on(Store::open(disk.open(), sim.runtime(), alone)).unwrap();
    let mut store = open();
    // Too little each time for a checkpoint, and too much together.
    for round in 0..3_u64 {
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for at in 0..4000_u64 {
                store.put(bucket, format!("{at}").as_bytes(), put(&bytes(round, 7000))).await.unwrap();
            }
        });
        let checkpoints = store.counters().checkpoints;
        assert_eq!(checkpoints > 0, round == 2, "{checkpoints} checkpoints in round {round}");
        sim.crash();
        store = open();
    }
    assert!(store.counters().replayed_bytes < 64 << 20);
}

/// Time as it is, and how often others were let go first.
struct Counting {
    runtime: Rc<dyn Runtime>,
    pauses: Cell<usize>,
}

impl Runtime for Counting {
    fn now(&self) -> Duration {
        self.runtime.now()
    }

    fn sleep(&self, delay: Duration) -> Local<'static, ()> {
        self.pauses.set(self.pauses.get() + usize::from(delay.is_zero()));
        self.runtime.sleep(delay)
    }

    fn spawn(&self, task: Local<'static, ()>) {
        self.runtime.spawn(task);
    }
}

/// The thread that a store is opened and checked on has volumes to serve.
#[test]
fn a_start_and_a_check_let_others_go_first() {
    let (sim, disk) = rig(4, 64 << 20);
    let store = open(&sim, &disk);
    let bucket = sim.block_on(async {
        let bucket = bucket(&store).await;
        for some in 0..100_u64 {
            let mut batch = Batch::new();
            for at in 0..400 {
                batch.put(bucket, format!("{:06}", some * 400 + at).as_bytes(), put(b"content"));
            }
            store.commit(batch).await.unwrap();
        }
        store.close().await.unwrap();
        bucket
    });
    let counting = Rc::new(Counting { runtime: sim.runtime(), pauses: Cell::new(0) });
    let runtime = Rc::clone(&counting) as Rc<dyn Runtime>;
    let store = sim.block_on(Store::open(disk.open(), runtime, options())).unwrap();
    let pauses = counting.pauses.take();
    assert!(pauses > 2, "{pauses} pauses: what is alive is counted in steps");
    sim.block_on(async {
        // Rows that were looked at, and others, change meanwhile: in every way that there is.
        let changes = async {
            for at in 0..300_u64 {
                let key = format!("{:06}", at * 7919 % 40_000);
                store.put(bucket, key.as_bytes(), put(&bytes(at, 20_000 * (at as usize % 3)))).await.unwrap();
                let gone = format!("{:06}", at * 104_729 % 40_000);
                store.remove(bucket, gone.as_bytes(), Which::Latest).await.unwrap();
            }
        };
        let checks = async {
            for _ in 0..20 {
                assert_eq!(store.check().await, []);
                sim.runtime().sleep(Duration::from_millis(1)).await;
            }
        };
        futures::future::join(changes, checks).await;
        assert!(counting.pauses.take() > 20 * 10, "a check goes in steps");
        {
            // Somebody has lost an extent.
            let state = &mut *store.inner.state.borrow_mut();
            let (block, _) = state.space.allocate(3, 0).unwrap();
            state.space.keep(block);
        }
        let found = store.check().await;
        assert!(found.iter().any(|one| one.to_string().contains("is taken and nothing names it")), "{found:?}");
    });
}

/// A checkpoint's leaves may have what the log says after the place where it is read from: a key that was put again and again meanwhile
/// has one version after a start, and none when it is deleted.
#[test]
fn what_is_put_again_beside_a_checkpoint_has_one_version() {
    const BEFORE: u64 = 60_000;
    const KEYS: u64 = 6000;
    let sim = Sim::new(4);
    let slow = Ssd::new(SsdSpec { write_latency_ns: 50_000_000, ..SsdSpec::nvme() });
    let disk = sim.disk("disk", DiskSpec::new(256 << 20, slow));
    let format = Format { id: [7; 16], segment_bytes: Some(SEGMENT_BYTES) };
    sim.block_on(Store::format(&*disk.open(), format)).unwrap();
    let store = open(&sim, &disk);
    let key = |at: u64| format!("k{:08x}", (at as u32).wrapping_mul(0x9e37_79b9));
    let put_all = async |count: u64, key: &dyn Fn(u64) -> String, round: u64| {
        let bucket = bucket(&store).await;
        for first in (0..count).step_by(500) {
            let mut batch = Batch::new();
            for at in first..first + 500 {
                batch.put(bucket, key(at).as_bytes(), put(&bytes(at + round, 40)));
            }
            batch.durability(Durability::Memory);
            store.commit(batch).await.unwrap();
        }
    };
    sim.block_on(async {
        // The walk through these takes longer than all that comes beside it.
        put_all(BEFORE, &|at| format!("a{at:08x}"), 0).await;
        put_all(KEYS, &key, 0).await;
        store.flush().await.unwrap();
        let rounds = async {
            for round in 1..4 {
                put_all(KEYS, &key, round).await;
            }
            assert!(store.inner.state.borrow().in_checkpoint, "it is made already");
        };
        let (made, ()) = futures::join!(store.inner.checkpoint(), rounds);
        made.unwrap();
        store.flush().await.unwrap();
    });
    let (store, ..) = reopen(&sim, &disk);
    assert_eq!(store.usage().versions, BEFORE + KEYS + 1);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for at in 0..KEYS {
            let mut reader = store.read(bucket, key(at).as_bytes(), Which::Latest).await.unwrap();
            assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at + 3, 40), "{at}");
            let mut batch = Batch::new();
            batch.remove(bucket, key(at).as_bytes(), Which::Unversioned);
            batch.durability(Durability::Memory);
            store.commit(batch).await.unwrap();
        }
    });
    assert_eq!(store.usage().versions, BEFORE + 1);
    assert_sound(&store);
}
