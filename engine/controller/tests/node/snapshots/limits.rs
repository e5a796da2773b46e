//! What snapshots cost and how many there may be, in counts: no clock says how fast this machine is.
//!
//! What must hold: a volume has 4,096 snapshots, each what it was; making one and deleting one takes as many disk operations for a
//! large volume as for a small one, with one snapshot as with hundreds; many volumes share one PoolVOL, and each part of it is
//! given back when its volume goes.

use super::{BLOCK, Rig, check, device, freed, read, settings, snapshot, volume, write};
use kura_block::Kind;
use rand::RngExt;
use rand::seq::SliceRandom;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(5);

fn stamped(stamp: u32) -> Vec<u8> {
    stamp.to_le_bytes().repeat(BLOCK / 4)
}

#[test]
fn a_volume_has_4096_snapshots() {
    const BLOCKS: usize = 16;
    const SNAPSHOTS: u32 = 4096;
    let rig = Rig::new(40);
    let mut rng = rig.sim.rng("4096");
    let mut now = [0; BLOCKS];
    let mut kept = Vec::new();
    let free = rig.run(settings(), async |node, controllers, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        write(&*device, 0, &vec![0; BLOCKS * BLOCK]).await;
        let free = node.pool().await.unwrap().free_bytes;
        for stamp in 1..=SNAPSHOTS {
            let block = rng.random_range(0..BLOCKS);
            now[block] = stamp;
            write(&*device, block, &stamped(stamp)).await;
            node.snapshot(vec![snapshot("v", &stamp.to_string())], 1).await.unwrap();
            kept.push((stamp, now));
        }
        free
    });
    kept.shuffle(&mut rng);
    rig.run(settings(), async |node, controllers, runtime| {
        for (number, stamps) in &kept {
            let found = read(&*device(controllers, &format!("v@{number}")), BLOCKS).await;
            for (block, stamp) in found.chunks(BLOCK).zip(stamps) {
                assert!(*block == stamped(*stamp), "snapshot {number}");
            }
        }
        check(node).await;
        for (number, _) in &kept {
            node.delete_volume(&format!("v@{number}"), false).await.unwrap();
        }
        freed(node, runtime, free).await;
        let found = read(&*device(controllers, "v"), BLOCKS).await;
        assert!(found.chunks(BLOCK).zip(now).all(|(block, stamp)| *block == stamped(stamp)), "the volume");
        check(node).await;
    });
}

/// A controller's tables have an area of their own, into which a checkpoint must get them.
#[test]
fn what_would_overfill_the_tables_is_refused_and_all_else_goes_on() {
    const BLOCKS: usize = 64;
    let rig = Rig::new(40);
    let name = |number: u32| format!("{number:0>240}");
    rig.run(settings(), async |node, controllers, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        let mut made = 0;
        let refused = loop {
            match node.snapshot(vec![snapshot("v", &name(made))], 1).await {
                Ok(_) => made += 1,
                Err(refused) => break refused,
            }
        };
        assert!(refused.kind() == Kind::Full && refused.to_string().contains("tables are nearly full"), "{refused}");
        assert!(made > 2_000, "{made} snapshots");
        for block in 0..BLOCKS {
            write(&*device, block, &stamped(1)).await;
        }
        device.discard(0, (BLOCKS * BLOCK) as u64).await.unwrap();
        for controller in controllers {
            controller.store().checkpoint().await.unwrap();
        }
        write(&*device, 7, &stamped(2)).await;
        device.flush().await.unwrap();
        for number in 0..200 {
            node.delete_volume(&format!("v@{}", name(number)), false).await.unwrap();
        }
        node.snapshot(vec![snapshot("v", "again")], 1).await.unwrap();
    });
    rig.run(settings(), async |node, controllers, _| {
        let found = read(&*device(controllers, "v"), BLOCKS).await;
        let is = |block| if block == 7 { stamped(2) } else { vec![0; BLOCK] };
        assert!(found.chunks(BLOCK).enumerate().all(|(block, found)| found == is(block)));
        check(node).await;
    });
}

/// Disk operations.
#[derive(Debug)]
struct Cost {
    create: u64,
    /// Records of the journal.
    records: u64,
    delete: u64,
}

/// What a snapshot costs of a volume of so many blocks with so many snapshots, while eight blocks are overwritten.
fn cost(blocks: usize, others: usize) -> Cost {
    let rig = Rig::new(64);
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("v", blocks)).await.unwrap();
        let device = device(controllers, "v");
        for at in (0..blocks).step_by(16) {
            write(&*device, at, &vec![7; 16 * BLOCK]).await;
        }
        let change = async |stamp: usize| {
            for block in 0..8 {
                write(&*device, block * 7, &stamped(stamp as u32)).await;
            }
        };
        for number in 0..others {
            node.snapshot(vec![snapshot("v", &number.to_string())], 1).await.unwrap();
            change(number).await;
        }
        device.flush().await.unwrap();
        runtime.sleep(IDLE).await;
        let records = || -> u64 { controllers.iter().map(|one| one.store().snapshot_stops().records).sum() };
        let (before, told) = (rig.sim.operations(), records());
        node.snapshot(vec![snapshot("v", "last")], 1).await.unwrap();
        let (create, records) = (rig.sim.operations() - before, records() - told);
        change(9999).await;
        device.flush().await.unwrap();
        runtime.sleep(IDLE).await;
        let before = rig.sim.operations();
        node.delete_volume("v@last", false).await.unwrap();
        runtime.sleep(IDLE).await;
        Cost { create, records, delete: rig.sim.operations() - before }
    })
}

#[test]
fn neither_the_volume_s_size_nor_the_number_of_snapshots_makes_one_dearer() {
    // More extents than there are pages of them in memory.
    let small = cost(2048, 1);
    for (blocks, others) in [(8192, 1), (2048, 300)] {
        let other = cost(blocks, others);
        println!("2048 blocks, 1 snapshot: {small:?}; {blocks} blocks, {others} snapshots: {other:?}");
        assert!(other.create <= small.create + 2, "{other:?}, {small:?} before");
        assert_eq!(other.records, small.records);
        // The checkpoint that gives space back writes the tables, which name each extent and snapshot; nothing is asked of blocks.
        assert!(other.delete <= 2 * small.delete, "{other:?}, {small:?} before");
    }
}

#[test]
fn volumes_of_one_instant_share_a_pool_volume_and_move_together() {
    const BLOCKS: usize = 64;
    let rig = Rig::new(24);
    let names = ["a", "b", "c"];
    let bytes = |at: usize, round: u8| vec![16 * at as u8 + round; BLOCKS * BLOCK];
    let free = rig.run(settings(), async |node, controllers, _| {
        for (at, name) in names.iter().enumerate() {
            controllers[0].store().create(volume(name, BLOCKS)).await.unwrap();
            write(&*device(controllers, name), 0, &bytes(at, 1)).await;
        }
        let free = node.pool().await.unwrap().free_bytes;
        node.snapshot(names.iter().map(|name| snapshot(name, "one")).collect(), 1).await.unwrap();
        for (at, name) in names.iter().enumerate() {
            write(&*device(controllers, name), 0, &bytes(at, 2)).await;
        }
        device(controllers, "a").flush().await.unwrap();
        free
    });
    rig.run(settings(), async |node, controllers, runtime| {
        let families: Vec<u64> = node.volumes().await.unwrap().iter().map(|volume| volume.family).collect();
        assert_eq!(families.len(), 6);
        assert!(families.iter().all(|family| *family == families[0]), "one PoolVOL: {families:?}");
        let store = controllers[0].store();
        assert!(store.changed("a@one", "b", 0..u64::MAX).await.is_err(), "they have nothing else in common");
        assert!(!store.changed("a@one", "a", 0..u64::MAX).await.unwrap().ranges.is_empty());
        // A full extent's worth of each: were there three PoolVOLs, three extents would be in use in part.
        node.move_volume("a", 1).await.unwrap();
        assert!(names.iter().all(|name| controllers[1].open_volume(name).is_ok()), "they move together");
        for (at, name) in names.iter().enumerate() {
            assert!(read(&*device(controllers, &format!("{name}@one")), BLOCKS).await == bytes(at, 1), "{name}@one");
            assert!(read(&*device(controllers, name), BLOCKS).await == bytes(at, 2), "{name}");
        }
        // One goes with all it had; the others stay what they are.
        node.delete_volume("b@one", false).await.unwrap();
        node.delete_volume("b", false).await.unwrap();
        runtime.sleep(IDLE).await;
        check(node).await;
    });
    rig.run(settings(), async |node, controllers, runtime| {
        for (at, name) in [(0, "a"), (2, "c")] {
            assert!(read(&*device(controllers, &format!("{name}@one")), BLOCKS).await == bytes(at, 1), "{name}@one");
            assert!(read(&*device(controllers, name), BLOCKS).await == bytes(at, 2), "{name}");
        }
        node.delete_volume("a@one", false).await.unwrap();
        node.delete_volume("c@one", false).await.unwrap();
        // What was b's is back, too: two copies of its extents.
        freed(node, runtime, free + 2 * (BLOCKS * BLOCK) as u64).await;
        check(node).await;
    });
}
