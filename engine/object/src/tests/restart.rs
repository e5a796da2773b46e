//! What a start costs: segments are read beside each other, and checkpoints leave no more to replay than they say.

use super::{SEGMENT_BYTES, assert_sound, bucket, bytes, open, options, put, rig};
use crate::ahead::READS;
use crate::*;
use kura_sim::{Sim, SimDisk};

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
fn checkpoints_leave_a_bounded_part_to_replay() {
    let (sim, disk) = rig(2, 256 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for first in (0..COUNT).step_by(500) {
            let mut batch = Batch::new();
            for at in first..first + 500 {
                batch.put(bucket, format!("{:08x}", at.wrapping_mul(0x9e37_79b9) as u32).as_bytes(), put(b"content"));
            }
            batch.durability(Durability::Memory);
            store.commit(batch).await.unwrap();
        }
        store.flush().await.unwrap();
    });
    assert!(store.counters().checkpoints > 0);
    let (store, ..) = reopen(&sim, &disk);
    let replayed = store.counters().replayed_records;
    assert!((1..150_000).contains(&replayed), "{replayed} records were replayed");
    assert_eq!(store.usage().versions, COUNT as u64 + 1);
}
