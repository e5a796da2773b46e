//! Discards of volumes whose blocks have been put in order.
//!
//! What must hold: the discard of a whole volume takes no room, however full the pool is, and costs no snapshot; it leaves the
//! snapshots what they were, also over a restart, and wherever the power goes each block is what it was, or zeroes; when the
//! snapshots are gone the pool has everything back.

use super::order::{BLOCKS, IDLE, Wanted, part, scattered};
use super::{BLOCK, Rig, check, device, freed, read, settings, snapshot, volume, write};
use kura_block::Kind;
use kura_controller::{Controller, JournalLimits, Node, Saving, Settings, SnapshotSpec, VolumeSpec, WhenFull};
use kura_sim::{CrashPoint, DiskSpec, FaultPlan, Outcome};
use std::rc::Rc;
use std::time::Duration;

/// A scattered volume that was left alone until its blocks were home.
fn in_order(rig: &Rig, settings: Settings) -> Wanted {
    let wanted = scattered(rig, settings);
    rig.run(settings, async |_, _, runtime| runtime.sleep(IDLE).await);
    wanted
}

async fn discard(controllers: &[Rc<Controller>]) {
    let device = device(controllers, "v");
    device.discard(0, (BLOCKS * BLOCK) as u64).await.unwrap();
    device.flush().await.unwrap();
}

/// Takes all that is free.
pub(super) async fn fill(node: &Node) {
    let (mut blocks, mut number) = (4096, 0);
    while blocks >= 16 {
        number += 1;
        let filler = VolumeSpec { thick: true, ..volume(&format!("filler{number}"), blocks) };
        match node.create_volume(filler).await {
            Ok(_) => {}
            Err(error) if error.kind() == Kind::Full => blocks /= 2,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn compare_snapshots(controllers: &[Rc<Controller>], wanted: &Wanted) {
    for (name, bytes) in &wanted.contents[1..] {
        assert!(read(&*device(controllers, name), BLOCKS).await == *bytes, "{name} is what it was");
    }
}

#[test]
fn a_discard_takes_no_room_of_a_full_pool() {
    let rig = Rig::new(24);
    let wanted = in_order(&rig, settings());
    rig.run(settings(), async |node, _, _| fill(node).await);
    rig.run(Settings { when_full: WhenFull::DropOldest, ..settings() }, async |node, controllers, runtime| {
        let free = node.pool().await.unwrap().free_bytes;
        let slots = async || {
            let volumes = node.volumes().await.unwrap();
            volumes.iter().map(|volume| volume.svol.as_ref().map_or(0, |svol| svol.unique_bytes)).sum::<u64>()
        };
        println!("{free} bytes are free, snapshots hold {} of their own", slots().await);
        discard(controllers).await;
        runtime.sleep(IDLE).await;
        assert!(node.pool().await.unwrap().free_bytes >= free, "a discard takes nothing");
        compare_snapshots(controllers, &wanted).await;
        assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0));
        check(node).await;
    });
    rig.run(settings(), async |node, controllers, runtime| {
        compare_snapshots(controllers, &wanted).await;
        assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0), "after a restart");
        check(node).await;
        for volume in node.volumes().await.unwrap() {
            if volume.spec.name.starts_with("filler") {
                node.delete_volume(&volume.spec.name, false).await.unwrap();
            }
        }
        // The volume has nothing any more: two copies of all its blocks are back, too.
        part(node, runtime, wanted.free + 2 * (BLOCKS * BLOCK) as u64).await;
        assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0));
        check(node).await;
    });
}

/// Each block is what it was or zeroes, and the snapshots that are there are what they were.
async fn compare_cut(controllers: &[Rc<Controller>], wanted: &Wanted, crash: Option<u64>) {
    for (name, bytes) in &wanted.contents {
        let Some(device) = controllers.iter().find_map(|one| one.open_volume(name).ok()) else {
            assert_eq!(*name, "v@b", "crash at {crash:?}");
            continue;
        };
        for (block, (found, then)) in read(&*device, BLOCKS).await.chunks(BLOCK).zip(bytes.chunks(BLOCK)).enumerate() {
            let cleared = *name == "v" && found.iter().all(|byte| *byte == 0);
            assert!(found == then || cleared, "{name} block {block}, crash at {crash:?}");
        }
    }
}

/// Cuts the power at every operation of a discard, each record a write of its own; the newest snapshot stays, or was deleted
/// right before.
fn cuts(deletes: bool) {
    let whole = |crash: Option<u64>| {
        let journal = JournalLimits { linger: Duration::ZERO, batch_bytes: 4 << 10, ..JournalLimits::default() };
        let rig = Rig { journal, ..Rig::new(24) };
        let wanted = in_order(&rig, settings());
        let crashes = crash.map(CrashPoint::Op).into_iter().collect();
        rig.sim.set_plan(&FaultPlan { crashes, ..FaultPlan::default() });
        let before = rig.sim.operations();
        let outcome = rig.run_until_crash_or(settings(), async |node, controllers, runtime| {
            if deletes {
                node.delete_volume("v@b", false).await.unwrap();
            }
            discard(controllers).await;
            runtime.sleep(IDLE).await;
        });
        let operations = rig.sim.operations() - before;
        assert_eq!(matches!(outcome, Outcome::Crashed), crash.is_some(), "crash at {crash:?}");
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(settings(), async |node, controllers, runtime| {
            compare_cut(controllers, &wanted, crash).await;
            check(node).await;
            runtime.sleep(IDLE).await;
            compare_cut(controllers, &wanted, crash).await;
            discard(controllers).await;
            assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0), "crash at {crash:?}");
            for name in ["v@b", "v@a"] {
                if controllers.iter().any(|one| one.open_volume(name).is_ok()) {
                    node.delete_volume(name, false).await.unwrap();
                }
            }
            freed(node, runtime, wanted.free + 2 * (BLOCKS * BLOCK) as u64).await;
            assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0), "crash at {crash:?}");
            check(node).await;
        });
        operations
    };
    let operations = whole(None);
    for crash in 1..=operations {
        whole(Some(crash));
    }
}

#[test]
fn no_power_cut_in_a_discard_shows_what_is_older() {
    cuts(false);
}

#[test]
fn no_power_cut_in_a_discard_shows_what_a_deleted_snapshot_saw() {
    cuts(true);
}

#[test]
fn a_thick_volume_keeps_its_room_through_discards_and_snapshots() {
    let rig = Rig::new(24);
    let is_zero = async |controllers: &[Rc<Controller>]| {
        assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0));
    };
    let free = rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(VolumeSpec { thick: true, ..volume("v", BLOCKS) }).await.unwrap();
        let free = node.pool().await.unwrap().free_bytes;
        let device = device(controllers, "v");
        for number in 1..4 {
            write(&*device, 0, &vec![number; BLOCKS * BLOCK]).await;
            node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
            if number == 2 {
                write(&*device, 0, &vec![9; BLOCKS * BLOCK]).await;
            }
            if number == 3 {
                // Nothing that it had is seen any more, and it is not tidied up yet.
                node.delete_volume("v@a", false).await.unwrap();
            }
            discard(controllers).await;
            is_zero(controllers).await;
            if number < 3 {
                node.delete_volume("v@a", false).await.unwrap();
            }
            runtime.sleep(IDLE).await;
            is_zero(controllers).await;
            freed(node, runtime, free).await;
            check(node).await;
        }
        free
    });
    rig.run(settings(), async |node, controllers, _| {
        assert_eq!(node.pool().await.unwrap().free_bytes, free);
        is_zero(controllers).await;
        check(node).await;
    });
}

/// Saving by copies: home has had several versions, one after the other, and only the last slot says which it has.
#[test]
fn what_home_had_before_is_not_taken_for_what_it_has() {
    let rig = Rig::new(24);
    let settings = Settings { saving: Saving::Copy, ..settings() };
    rig.run(settings, async |node, controllers, runtime| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        write(&*device, 0, &vec![1; BLOCKS * BLOCK]).await;
        for name in ["a", "b"] {
            node.snapshot(vec![snapshot("v", name)], 1).await.unwrap();
            write(&*device, 0, &vec![2; BLOCKS * BLOCK]).await;
        }
        let owner = controllers.iter().find(|one| one.open_volume("v").is_ok()).unwrap();
        owner.store().roll_back("v@a").await.unwrap();
        // While somebody reads, nothing is put in order.
        for _ in 0..20 {
            runtime.sleep(Duration::from_millis(50)).await;
            assert!(read(&*device, BLOCKS).await.iter().all(|byte| *byte == 1));
        }
        node.delete_volume("v@b", false).await.unwrap();
        for _ in 0..20 {
            runtime.sleep(Duration::from_millis(50)).await;
            read(&*device, 1).await;
        }
        discard(controllers).await;
        check(node).await;
    });
    rig.run(settings, async |node, controllers, _| {
        assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0), "the volume");
        assert!(read(&*device(controllers, "v@a"), BLOCKS).await.iter().all(|byte| *byte == 1), "its snapshot");
        check(node).await;
    });
}

/// As `fstrim` of a clone does between the snapshots of a schedule: none of it is ever given up.
#[test]
fn what_is_discarded_already_costs_nothing() {
    let rig = Rig::new(24);
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("w", BLOCKS)).await.unwrap();
        write(&*device(controllers, "w"), 0, &vec![1; BLOCKS * BLOCK]).await;
        node.snapshot(vec![SnapshotSpec { of: "w".into(), name: "v".into(), read_only: false }], 1).await.unwrap();
        let cost = async || {
            let before = rig.sim.operations();
            discard(controllers).await;
            rig.sim.operations() - before
        };
        assert!(cost().await > 0);
        for round in 0..3 {
            let name = format!("v@{round}");
            node.snapshot(vec![snapshot("v", &round.to_string())], 1).await.unwrap();
            runtime.sleep(IDLE).await;
            assert_eq!(cost().await, 0, "round {round}");
            assert!(read(&*device(controllers, &name), BLOCKS).await.iter().all(|byte| *byte == 0));
            node.delete_volume(&name, false).await.unwrap();
        }
        // What was written since is discarded.
        write(&*device(controllers, "v"), 3, &[2; BLOCK]).await;
        assert!(cost().await > 0);
        assert!(read(&*device(controllers, "v"), BLOCKS).await.iter().all(|byte| *byte == 0));
        assert!(read(&*device(controllers, "w"), BLOCKS).await.iter().all(|byte| *byte == 1));
        check(node).await;
    });
}

/// Blocks of a group of a volume with large extents, and those of them that lie in slots, each on a page of its own.
const WIDE: usize = 1024;
const APART: usize = 300;
/// As many slots of somebody else's lie between two: more than a page has.
const BETWEEN: usize = 256;

/// A volume whose first group has a snapshot, and since then has slots of more pages than are given up at once.
fn wide() -> (Rig, u64) {
    let rig = Rig::with_extents((WIDE * BLOCK) as u64, || DiskSpec::nvme(320 << 20));
    let free = rig.run(settings(), async |node, controllers, _| {
        node.create_volume(volume("v", WIDE * (1 + APART * BETWEEN / WIDE + 1))).await.unwrap();
        let v = device(controllers, "v");
        write(&*v, 0, &vec![1; WIDE * BLOCK]).await;
        let free = node.pool().await.unwrap().free_bytes;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        let a = device(controllers, "v@a");
        for number in 0..APART {
            write(&*v, number, &[2; BLOCK]).await;
            let first = (WIDE + number * BETWEEN) * BLOCK;
            a.discard(first as u64, (BETWEEN * BLOCK) as u64).await.unwrap();
        }
        v.flush().await.unwrap();
        free
    });
    (rig, free)
}

async fn discard_wide(controllers: &[Rc<Controller>]) {
    let device = device(controllers, "v");
    device.discard(0, (WIDE * BLOCK) as u64).await.unwrap();
    device.flush().await.unwrap();
}

/// The snapshot is what it was, and each block of the volume too, or zeroes.
async fn compare_wide(controllers: &[Rc<Controller>], may_be: impl Fn(usize, u8) -> bool) {
    assert!(read(&*device(controllers, "v@a"), WIDE).await.iter().all(|byte| *byte == 1), "the snapshot");
    for (block, bytes) in read(&*device(controllers, "v"), WIDE).await.chunks(BLOCK).enumerate() {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]) && may_be(block, bytes[0]), "block {block}: {}", bytes[0]);
    }
}

#[test]
fn a_discard_of_slots_far_apart_hides_them_at_once() {
    let was = |block: usize| if block < APART { 2 } else { 1 };
    let whole = |crash: Option<u64>| {
        let (rig, free) = wide();
        let crashes = crash.map(CrashPoint::Op).into_iter().collect();
        rig.sim.set_plan(&FaultPlan { crashes, ..FaultPlan::default() });
        let before = rig.sim.operations();
        let outcome = rig.run_until_crash_or(settings(), async |node, controllers, runtime| {
            discard_wide(controllers).await;
            compare_wide(controllers, |_, byte| byte == 0).await;
            write(&*device(controllers, "v"), 5, &[3; BLOCK]).await;
            device(controllers, "v").flush().await.unwrap();
            runtime.sleep(IDLE).await;
            compare_wide(controllers, |block, byte| byte == if block == 5 { 3 } else { 0 }).await;
            check(node).await;
        });
        let operations = rig.sim.operations() - before;
        assert_eq!(matches!(outcome, Outcome::Crashed), crash.is_some(), "crash at {crash:?}");
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(settings(), async |node, controllers, runtime| {
            compare_wide(controllers, |block, byte| byte == 0 || byte == was(block) || (block, byte) == (5, 3)).await;
            write(&*device(controllers, "v"), 7, &[4; BLOCK]).await;
            node.snapshot(vec![snapshot("v", "b")], 1).await.unwrap();
            let then = read(&*device(controllers, "v"), WIDE).await;
            discard_wide(controllers).await;
            compare_wide(controllers, |_, byte| byte == 0).await;
            assert!(read(&*device(controllers, "v@b"), WIDE).await == then, "crash at {crash:?}");
            check(node).await;
            for name in ["v@a", "v@b"] {
                node.delete_volume(name, false).await.unwrap();
            }
            // Nobody sees the group any more, which was there when the snapshot was made.
            freed(node, runtime, free + 2 * (WIDE * BLOCK) as u64).await;
            assert!(read(&*device(controllers, "v"), WIDE).await.iter().all(|byte| *byte == 0), "crash at {crash:?}");
            check(node).await;
        });
        operations
    };
    let operations = whole(None);
    // Right behind the hole's record, and here and there in what follows.
    let later = (8..=operations).step_by(operations as usize / 6 + 1);
    for crash in (1..4).chain(later) {
        whole(Some(crash));
    }
}
