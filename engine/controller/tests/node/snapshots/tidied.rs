//! What is tidied up behind a deleted clone with many slots.
//!
//! What must hold: however much there is, and wherever the power goes, the next start comes up and takes writes; all of it is
//! given back in the end, also where a client helped that left in the middle, or the volume moved away; nothing that is made
//! later has any of it.

use super::discard::fill;
use super::{BLOCK, Rig, check, device, freed, read, settings, snapshot, volume, write};
use kura_block::{Block, Buf, Kind, Runtime};
use kura_controller::{Controller, Node, SnapshotSpec};
use kura_sim::DiskSpec;
use std::rc::Rc;
use std::time::Duration;

/// Blocks of a group of the rig's volumes.
const GROUP: usize = 16;
/// Groups of a clone whose slots take more pages than the journal takes without a checkpoint.
const MANY: usize = 3000;
/// Disks so large that such a clone fits, and so slow that a checkpoint takes a while.
fn slow() -> DiskSpec {
    DiskSpec::constant(176 << 20, Duration::from_millis(40))
}

/// Gives a clone slots of its own, all but one of each group of so many blocks: they hold zeroes, and take no room of the test's.
async fn take_slots(clone: &dyn Block, groups: usize, group_blocks: usize) {
    for group in 0..groups {
        let first = (group * group_blocks + 1) * BLOCK;
        clone.discard(first as u64, ((group_blocks - 1) * BLOCK) as u64).await.unwrap();
    }
}

fn clone(of: &str, name: &str) -> SnapshotSpec {
    SnapshotSpec { of: of.into(), name: name.into(), read_only: false }
}

/// What a future comes to, unless it takes longer.
async fn within<T>(runtime: &dyn Runtime, time: Duration, work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        runtime.sleep(time).await;
        None
    };
    let (work, late) = (std::pin::pin!(async { Some(work.await) }), std::pin::pin!(late));
    futures::future::select(work, late).await.factor_first().0
}

/// A roll-back of `r` that waits for room in a full pool: who tidies up looks for it again once a second, and sleeps meanwhile.
async fn hold_up(node: &Node, controllers: &[Rc<Controller>], runtime: &dyn Runtime) {
    node.snapshot(vec![snapshot("r", "a")], 1).await.unwrap();
    write(&*device(controllers, "r@a"), 0, &vec![2; GROUP * BLOCK]).await;
    fill(node).await;
    controllers[0].store().roll_back("r@a").await.unwrap();
    runtime.sleep(Duration::from_secs(4)).await;
}

/// Writes to a volume that has a snapshot until nothing more fits; the block that did not.
async fn use_up(device: &dyn Block, blocks: usize) -> usize {
    for block in 0..blocks {
        let written = device.write((block * BLOCK) as u64, Buf::copy_of(&[9; BLOCK]).into(), false).await;
        if let Err(error) = written {
            assert_eq!(error.kind(), Kind::Full, "{error}");
            return block;
        }
    }
    panic!("the pool is not full");
}

/// The pages that speak of its slots take more of the journal than there is.
#[test]
fn a_power_cut_behind_a_large_clone_leaves_a_node_that_writes() {
    const GROUP: usize = 256;
    const GROUPS: usize = 1400;
    let rig = Rig::with_extents((GROUP * BLOCK) as u64, || DiskSpec::nvme(1 << 30));
    let free = rig.run(settings(), async |node, controllers, _| {
        node.create_volume(volume("v", GROUPS * GROUP)).await.unwrap();
        write(&*device(controllers, "v"), 0, &vec![7; 2 * BLOCK]).await;
        let free = node.pool().await.unwrap().free_bytes;
        node.snapshot(vec![clone("v", "c")], 1).await.unwrap();
        take_slots(&*device(controllers, "c"), GROUPS, GROUP).await;
        node.delete_volume("c", false).await.unwrap();
        free
    });
    rig.run(settings(), async |node, controllers, runtime| {
        let device = device(controllers, "v");
        let writes = async {
            write(&*device, 1, &vec![8; BLOCK]).await;
            device.flush().await.unwrap();
        };
        within(runtime, Duration::from_mins(1), writes).await.expect("a write comes to its end");
        freed(node, runtime, free).await;
        check(node).await;
    });
    rig.run(settings(), async |node, controllers, _| {
        let found = read(&*device(controllers, "v"), 3).await;
        assert!(found.chunks(BLOCK).zip([7, 8, 0]).all(|(block, number)| block.iter().all(|byte| *byte == number)));
        check(node).await;
    });
}

#[test]
fn a_client_that_leaves_takes_nothing_of_the_tidying_with_it() {
    let rig = Rig::on(slow);
    rig.run(settings(), async |node, controllers, runtime| {
        for (name, blocks) in [("r", 2 * GROUP), ("v", MANY * GROUP)] {
            controllers[0].store().create(volume(name, blocks)).await.unwrap();
            write(&*device(controllers, name), 0, &vec![1; 2 * GROUP * BLOCK]).await;
        }
        node.snapshot(vec![clone("v", "c")], 1).await.unwrap();
        take_slots(&*device(controllers, "c"), MANY, GROUP).await;
        node.snapshot(vec![snapshot("v", "d")], 1).await.unwrap();
        hold_up(node, controllers, runtime).await;
        let device = device(controllers, "v");
        let next = use_up(&*device, 2 * GROUP).await;
        let full = node.pool().await.unwrap().free_bytes;
        node.delete_volume("c", false).await.unwrap();
        let leaves = within(runtime, Duration::from_millis(30), write(&*device, next, &[9; BLOCK])).await;
        assert!(leaves.is_none(), "it waits for what it tidies up");
        runtime.sleep(Duration::from_mins(2)).await;
        let free = node.pool().await.unwrap().free_bytes - full;
        // Two copies of each.
        assert!(free > (2 * (MANY - 20) * (GROUP - 1) * BLOCK) as u64, "{free} bytes are free");
        check(node).await;
    });
}

/// The new owner has made fewer volumes than the old one: its next one must not have the number of the clone.
#[test]
fn a_snapshot_made_after_a_move_has_nothing_of_a_clone_that_was_deleted_before() {
    for later_ms in [0, 250, 500, 750] {
        let rig = Rig::on(slow);
        rig.run(settings(), async |node, controllers, runtime| {
            // More than what fills the pool comes to.
            for _ in 0..64 {
                controllers[0].store().create(volume("gone", GROUP)).await.unwrap();
                node.delete_volume("gone", false).await.unwrap();
            }
            for (name, blocks) in [("r", 2 * GROUP), ("v", MANY * GROUP)] {
                controllers[0].store().create(volume(name, blocks)).await.unwrap();
                write(&*device(controllers, name), 0, &vec![7; 2 * GROUP * BLOCK]).await;
            }
            node.snapshot(vec![clone("v", "c")], 1).await.unwrap();
            take_slots(&*device(controllers, "c"), MANY, GROUP).await;
            hold_up(node, controllers, runtime).await;
            runtime.sleep(Duration::from_millis(later_ms)).await;
            node.delete_volume("c", false).await.unwrap();
            node.move_volume("v", 1).await.unwrap();
            node.snapshot(vec![snapshot("v", "x")], 1).await.unwrap();
        });
        rig.run(settings(), async |node, controllers, runtime| {
            for name in ["v@x", "v"] {
                let found = read(&*device(controllers, name), 2 * GROUP).await;
                assert!(found.iter().all(|byte| *byte == 7), "{name} is what it was, {later_ms} ms later");
            }
            node.delete_volume("v@x", false).await.unwrap();
            runtime.sleep(Duration::from_mins(1)).await;
            assert!(read(&*device(controllers, "v"), 2 * GROUP).await.iter().all(|byte| *byte == 7));
            check(node).await;
        });
    }
}

/// Who tidies up sleeps: the write frees whole groups of slots, which go back to the pool unless it takes them before.
#[test]
fn a_write_takes_the_room_that_its_own_tidying_made() {
    let rig = Rig::new(24);
    rig.run(settings(), async |node, controllers, runtime| {
        for (name, blocks) in [("r", 2 * GROUP), ("v", 8 * GROUP)] {
            controllers[0].store().create(volume(name, blocks)).await.unwrap();
            write(&*device(controllers, name), 0, &vec![1; blocks * BLOCK]).await;
        }
        let device = device(controllers, "v");
        for (name, number) in [("a", 2), ("b", 3)] {
            node.snapshot(vec![snapshot("v", name)], 1).await.unwrap();
            write(&*device, 0, &vec![number; 8 * GROUP * BLOCK]).await;
        }
        node.snapshot(vec![snapshot("v", "c")], 1).await.unwrap();
        hold_up(node, controllers, runtime).await;
        let next = use_up(&*device, 8 * GROUP).await;
        node.delete_volume("v@b", false).await.unwrap();
        // More than the groups have free that are in use in part.
        write(&*device, next, &vec![9; 4 * GROUP * BLOCK]).await;
        check(node).await;
    });
}
