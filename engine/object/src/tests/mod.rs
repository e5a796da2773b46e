//! The store alone, on simulated disks.

mod basics;
mod crash;
mod faults;
mod full;
mod last;
mod lists;
mod memory;
mod model;
mod recent;
mod restart;
mod roots;
mod space;
mod thin;
mod trouble;

use crate::{Format, Options, PartitionId, Put, Store};
use kura_sim::{DiskSpec, Sim, SimDisk};
use std::time::Duration;

/// Segments are small, so that little data makes the cleaner work.
const SEGMENT_BYTES: u32 = 64 << 10;

fn rig(seed: u64, size_bytes: u64) -> (Sim, SimDisk) {
    let sim = Sim::new(seed);
    let disk = sim.disk("disk", DiskSpec { jitter: 0.3, ..DiskSpec::nvme(size_bytes) });
    let format = Format { id: [7; 16], segment_bytes: Some(SEGMENT_BYTES) };
    sim.block_on(Store::format(&*disk.open(), format)).unwrap();
    (sim, disk)
}

fn options() -> Options {
    Options {
        volatile_for: Duration::from_millis(3),
        discard_after: Some(Duration::from_millis(4)),
        ..Options::default()
    }
}

fn open(sim: &Sim, disk: &SimDisk) -> Store {
    let store = sim.block_on(Store::open(disk.open(), sim.runtime(), options())).unwrap();
    assert_sound(&store);
    store
}

fn assert_sound(store: &Store) {
    let violations = store.check_at_once();
    assert!(violations.is_empty(), "{violations:#?}");
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(len).collect()
}

fn put(content: &[u8]) -> Put {
    Put { content: content.into(), ..Put::default() }
}

async fn bucket(store: &Store) -> PartitionId {
    match store.partition(b"bucket").await {
        Ok(partition) => partition.id,
        Err(_) => store.create_partition(b"bucket", crate::Attributes::new(), 0).await.unwrap().id,
    }
}
