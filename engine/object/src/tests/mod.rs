//! The store alone, on simulated disks.

use crate::*;
use kura_sim::{DiskSpec, Sim, SimDisk};

fn rig(seed: u64) -> (Sim, SimDisk) {
    let sim = Sim::new(seed);
    let disk = sim.disk("disk", DiskSpec::nvme(32 << 20));
    sim.block_on(Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: None })).unwrap();
    (sim, disk)
}

fn open(sim: &Sim, disk: &SimDisk) -> Store {
    sim.block_on(Store::open(disk.open(), sim.runtime(), Options::default())).unwrap()
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| ((at * 31 + at / 251 + seed * 7919) % 256) as u8).collect()
}

fn put(content: &[u8]) -> Put {
    Put { content: content.into(), ..Put::default() }
}

#[test]
fn what_was_put_is_read_again_after_a_restart() {
    let (sim, disk) = rig(1);
    let store = open(&sim, &disk);
    let sizes = [0, 1, 4096, 70_000, 300_000, 3 << 20];
    sim.block_on(async {
        let bucket = store.create_partition(b"bucket", Attributes::new(), 5).await.unwrap().id;
        for (at, size) in sizes.into_iter().enumerate() {
            let key = format!("key{at}");
            let attributes = Attributes::from([("type".to_string(), vec![at as u8])]);
            let put = Put { attributes, tag: vec![at as u8; 16], modified_ms: 9, ..put(&bytes(at as u64, size)) };
            store.put(bucket, key.as_bytes(), put).await.unwrap();
        }
    });
    for clean in [false, true] {
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = store.partition(b"bucket").await.unwrap().id;
            for (at, size) in sizes.into_iter().enumerate() {
                let key = format!("key{at}");
                let mut reader = store.read(bucket, key.as_bytes(), Which::Latest).await.unwrap();
                assert_eq!(reader.attributes["type"], [at as u8]);
                assert_eq!((reader.stat.size_bytes, reader.stat.modified_ms), (size as u64, 9));
                assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at as u64, size));
            }
            if !clean {
                store.close().await.unwrap();
            }
        });
        if clean {
            sim.crash();
        }
    }
}
