//! A pool without a free extent: what goes on in it all the same.
//!
//! What must hold: a roll-back gives up what nobody sees any more before it wants room; where it has to wait for some, its
//! snapshot can be deleted, and then its volume, wherever the power goes, and until then it reads as the snapshot; a deleted
//! snapshot makes room within seconds while clients are at work all the time; slots that are free are used wherever they lie.

use super::discard::fill;
use super::{BLOCK, Rig, check, device, read, settings, snapshot, volume, write};
use kura_block::{Block, Buf, Kind, Runtime};
use kura_controller::{Controller, JournalLimits, Node, Saving, Settings, VolumeSpec};
use kura_sim::{CrashPoint, FaultKind, FaultPlan, Outcome, Place};
use std::rc::Rc;
use std::time::Duration;

const BLOCKS: usize = 128;
/// Long enough for whatever needs no room.
const SOON: Duration = Duration::from_secs(5);

pub fn owner<'a>(controllers: &'a [Rc<Controller>], name: &str) -> &'a Rc<Controller> {
    controllers.iter().find(|one| one.volumes().iter().any(|volume| volume.spec.name == name)).unwrap()
}

/// Nothing of a volume but this number.
async fn is_all(controllers: &[Rc<Controller>], name: &str, number: u8) -> bool {
    read(&*device(controllers, name), BLOCKS).await.iter().all(|byte| *byte == number)
}

async fn set(controllers: &[Rc<Controller>], name: &str, number: u8) {
    write(&*device(controllers, name), 0, &vec![number; BLOCKS * BLOCK]).await;
}

/// True while a roll-back of `v` goes on, or waits.
async fn is_rolling(node: &Node) -> bool {
    match node.snapshot(vec![snapshot("v", "probe")], 1).await {
        Ok(_) => node.delete_volume("v@probe", false).await.is_err(),
        Err(error) => error.to_string().contains("being rolled back"),
    }
}

/// What a write of one block to a volume comes to.
pub async fn tries(device: &dyn Block, block: usize) -> Result<(), Kind> {
    let written = device.write((block * BLOCK) as u64, Buf::copy_of(&vec![9; BLOCK]).into(), false).await;
    written.map_err(|error| error.kind())
}

#[test]
fn a_roll_back_to_the_newest_snapshot_takes_no_room() {
    let rig = Rig::new(24);
    let work = async |node: &Node, controllers: &[Rc<Controller>], runtime: &dyn Runtime| {
        node.create_volume(volume("v", 2 * BLOCKS)).await.unwrap();
        set(controllers, "v", 1).await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        set(controllers, "v", 2).await;
        node.snapshot(vec![snapshot("v", "b")], 1).await.unwrap();
        set(controllers, "v", 3).await;
        // The second half was never written before.
        write(&*device(controllers, "v"), BLOCKS, &vec![3; BLOCKS * BLOCK]).await;
        fill(node).await;
        let free = node.pool().await.unwrap().free_bytes;
        owner(controllers, "v").store().roll_back("v@b").await.unwrap();
        runtime.sleep(SOON).await;
        assert!(!is_rolling(node).await, "it is done");
        // Two copies of what was written since, at home and in slots, but for groups of slots that the snapshots use, too.
        let freed = node.pool().await.unwrap().free_bytes - free;
        assert!(freed >= 3 * (BLOCKS * BLOCK) as u64, "{freed} bytes are free");
        is_what_it_was(controllers).await;
        check(node).await;
    };
    rig.run(settings(), work);
    rig.run(settings(), async |node, controllers, _| {
        is_what_it_was(controllers).await;
        check(node).await;
        for name in ["v@b", "v@a", "v"] {
            node.delete_volume(name, false).await.unwrap();
        }
    });
}

async fn is_what_it_was(controllers: &[Rc<Controller>]) {
    for (name, number) in [("v", 2), ("v@a", 1), ("v@b", 2)] {
        assert!(is_all(controllers, name, number).await, "{name}");
    }
    let rest = device(controllers, "v").read((BLOCKS * BLOCK) as u64, BLOCKS * BLOCK).await.unwrap();
    assert!(rest.contiguous().iter().all(|byte| *byte == 0), "what was not there is not there");
}

#[test]
fn a_roll_back_of_a_discarded_volume_to_the_newest_snapshot_takes_no_room() {
    let rig = Rig::new(24);
    let work = async |node: &Node, controllers: &[Rc<Controller>], runtime: &dyn Runtime| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        set(controllers, "v", 1).await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        // Some of it lies in slots, and some at home again, when it is discarded.
        set(controllers, "v", 2).await;
        runtime.sleep(SOON).await;
        write(&*device(controllers, "v"), 0, &vec![3; BLOCKS / 2 * BLOCK]).await;
        device(controllers, "v").discard(0, (BLOCKS * BLOCK) as u64).await.unwrap();
        fill(node).await;
        owner(controllers, "v").store().roll_back("v@a").await.unwrap();
        runtime.sleep(SOON).await;
        assert!(!is_rolling(node).await, "it is done");
        assert!(is_all(controllers, "v", 1).await && is_all(controllers, "v@a", 1).await);
        check(node).await;
    };
    rig.run(settings(), work);
    rig.run(settings(), async |node, controllers, runtime| {
        assert!(is_all(controllers, "v", 1).await && is_all(controllers, "v@a", 1).await, "after a restart");
        set(controllers, "v", 4).await;
        node.delete_volume("v@a", false).await.unwrap();
        runtime.sleep(SOON).await;
        assert!(is_all(controllers, "v", 4).await);
        check(node).await;
    });
}

/// A block of the snapshot is lost: the roll-back waits for it and says so, and goes on when it is written.
#[test]
fn a_roll_back_that_cannot_go_on_says_why() {
    let rig = Rig::new(24);
    rig.run(Settings { saving: Saving::Copy, ..settings() }, async |node, controllers, runtime| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        set(controllers, "v", 1).await;
        let v = device(controllers, "v");
        write(&*v, 5, &[0x77; BLOCK]).await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        write(&*v, 5, &[0x78; BLOCK]).await;
        node.snapshot(vec![snapshot("v", "b")], 2).await.unwrap();
        owner(controllers, "v").store().checkpoint().await.unwrap();
        let mut rotten = 0;
        for disk in &rig.disks[2..] {
            for at in (0..24 << 20_u64).step_by(BLOCK) {
                if disk.at_rest(at, BLOCK) == [0x77; BLOCK] {
                    disk.inject(FaultKind::BitRot(Place::Range(at..at + BLOCK as u64), 3));
                    rotten += 1;
                }
            }
        }
        assert!(rotten >= 2, "{rotten}");
        owner(controllers, "v").store().roll_back("v@a").await.unwrap();
        runtime.sleep(SOON).await;
        let said = node.snapshot(vec![snapshot("v", "c")], 3).await.unwrap_err().to_string();
        assert!(said.contains("and waits") && said.contains("blocks 5 to 5"), "{said}");
        write(&*v, 5, &[0x79; BLOCK]).await;
        runtime.sleep(SOON).await;
        node.snapshot(vec![snapshot("v", "c")], 3).await.unwrap();
    });
}

/// What the roll-back supersedes is a newer snapshot's alone afterwards, and counted once.
#[test]
fn a_roll_back_leaves_a_newer_snapshot_what_it_has_once() {
    for discarded in [false, true] {
        let rig = Rig::new(24);
        rig.run(settings(), async |node, controllers, runtime| {
            node.create_volume(volume("v", BLOCKS)).await.unwrap();
            for (name, number) in [("a", 1), ("b", 2)] {
                set(controllers, "v", number).await;
                node.snapshot(vec![snapshot("v", name)], 1).await.unwrap();
            }
            if discarded {
                device(controllers, "v").discard(0, (BLOCKS * BLOCK) as u64).await.unwrap();
            }
            owner(controllers, "v").store().roll_back("v@a").await.unwrap();
            runtime.sleep(SOON).await;
            assert!(!is_rolling(node).await, "it is done");
            let b = node.volumes().await.unwrap().into_iter().find(|volume| volume.spec.name == "v@b");
            assert_eq!(b.unwrap().svol.unwrap().unique_bytes, (BLOCKS * BLOCK) as u64, "discarded: {discarded}");
            check(node).await;
        });
    }
}

/// A snapshot between keeps extents that the other one does not have.
#[test]
fn a_roll_back_takes_no_room_for_what_was_never_written() {
    let rig = Rig::new(24);
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("v", 2 * BLOCKS)).await.unwrap();
        set(controllers, "v", 1).await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        let device = device(controllers, "v");
        // One block of each group: what these take of slots there is room for.
        for block in (BLOCKS..2 * BLOCKS).step_by(BLOCKS / 8) {
            write(&*device, block, &[2; BLOCK]).await;
        }
        node.snapshot(vec![snapshot("v", "b")], 1).await.unwrap();
        write(&*device, 0, &[3; BLOCK]).await;
        fill(node).await;
        owner(controllers, "v").store().roll_back("v@a").await.unwrap();
        runtime.sleep(SOON).await;
        assert!(!is_rolling(node).await, "it is done");
        assert!(is_all(controllers, "v", 1).await);
        let rest = device.read((BLOCKS * BLOCK) as u64, BLOCKS * BLOCK).await.unwrap();
        assert!(rest.contiguous().iter().all(|byte| *byte == 0), "what was not there is not there");
        let b = read(&*super::device(controllers, "v@b"), 2 * BLOCKS).await;
        let expected = |block: usize| if block < BLOCKS { 1 } else { 2 * u8::from(block.is_multiple_of(16)) };
        for (block, bytes) in b.chunks(BLOCK).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == expected(block)), "v@b block {block}");
        }
        check(node).await;
    });
}

/// A full pool in which a roll-back waits: its snapshot has been written to.
fn waits(rig: &Rig) {
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        set(controllers, "v", 1).await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        set(controllers, "v@a", 2).await;
        fill(node).await;
        owner(controllers, "v").store().roll_back("v@a").await.unwrap();
        runtime.sleep(SOON).await;
        assert!(is_rolling(node).await, "it waits for room");
    });
}

/// Cuts the power at every operation of the way out, each record a write of its own.
#[test]
fn a_roll_back_that_waits_keeps_nobody_from_deleting() {
    let whole = |crash: Option<u64>| {
        let journal = JournalLimits { linger: Duration::ZERO, batch_bytes: 4 << 10, ..JournalLimits::default() };
        let rig = Rig { journal, ..Rig::new(20) };
        waits(&rig);
        let crashes = crash.map(CrashPoint::Op).into_iter().collect();
        rig.sim.set_plan(&FaultPlan { crashes, ..FaultPlan::default() });
        let before = rig.sim.operations();
        let outcome = rig.run_until_crash_or(settings(), async |node, controllers, runtime| {
            node.delete_volume("v@a", false).await.unwrap();
            assert!(is_all(controllers, "v", 2).await, "it is the snapshot still");
            runtime.sleep(Duration::from_secs(1)).await;
            node.delete_volume("v", false).await.unwrap();
            runtime.sleep(SOON).await;
        });
        let operations = rig.sim.operations() - before;
        assert_eq!(matches!(outcome, Outcome::Crashed), crash.is_some(), "crash at {crash:?}");
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(settings(), async |node, controllers, runtime| {
            let there = |name: &str| controllers.iter().any(|one| one.open_volume(name).is_ok());
            if there("v") {
                assert!(is_all(controllers, "v", 2).await, "crash at {crash:?}");
                assert!(!there("v@a") || is_all(controllers, "v@a", 2).await, "crash at {crash:?}");
            }
            check(node).await;
            for name in ["v@a", "v"].into_iter().filter(|name| there(name)) {
                node.delete_volume(name, false).await.unwrap();
            }
            runtime.sleep(SOON).await;
            // Of the volume and of the snapshot.
            let thick = VolumeSpec { thick: true, ..volume("new", 2 * BLOCKS) };
            node.create_volume(thick).await.unwrap_or_else(|error| panic!("crash at {crash:?}: {error}"));
            check(node).await;
        });
        operations
    };
    let operations = whole(None);
    for crash in 1..=operations {
        whole(Some(crash));
    }
}

/// Left to a roll-back, a snapshot goes with it when there is room.
#[test]
fn a_snapshot_deleted_while_it_is_rolled_back_to_goes_when_that_is_done() {
    let rig = Rig::new(20);
    waits(&rig);
    rig.run(settings(), async |node, controllers, runtime| {
        node.delete_volume("v@a", false).await.unwrap();
        assert!(is_rolling(node).await);
        node.delete_volume("filler1", false).await.unwrap();
        runtime.sleep(SOON).await;
        assert!(!is_rolling(node).await, "there is room now");
        let held: u64 = controllers.iter().map(|one| one.store().space().snapshot_bytes).sum();
        assert_eq!(held, 0, "nothing is left of the snapshot");
        assert!(is_all(controllers, "v", 2).await);
        check(node).await;
    });
}

/// A client of one volume reads all the time, so that its controller is never quiet; one of another controller's waits for room.
#[test]
fn a_deleted_snapshot_makes_room_while_clients_are_at_work() {
    let rig = Rig::new(24);
    rig.run(settings(), async |node, controllers, runtime| {
        for name in ["v", "w"] {
            node.create_volume(volume(name, BLOCKS)).await.unwrap();
        }
        let other = owner(controllers, "w").id();
        assert_ne!(owner(controllers, "v").id(), other, "each has one");
        set(controllers, "v", 1).await;
        for (name, number) in [("a", 2), ("b", 3)] {
            node.snapshot(vec![snapshot("v", name)], 1).await.unwrap();
            set(controllers, "v", number).await;
        }
        fill(node).await;
        let ends = std::cell::Cell::new(false);
        let reads = async {
            while !ends.get() {
                read(&*device(controllers, "v"), 1).await;
                runtime.sleep(Duration::from_millis(50)).await;
            }
        };
        let work = async {
            assert_eq!(tries(&*device(controllers, "w"), 0).await, Err(Kind::Full));
            runtime.sleep(SOON).await;
            assert_eq!(tries(&*device(controllers, "w"), 0).await, Err(Kind::Full), "nothing was given up");
            // Home has what only the oldest one sees.
            node.delete_volume("v@a", false).await.unwrap();
            for at in 0..40 {
                if tries(&*device(controllers, "w"), 0).await.is_ok() {
                    break;
                }
                assert!(at < 39, "no room after {at} tries");
                runtime.sleep(SOON / 40).await;
            }
            ends.set(true);
        };
        futures::future::join(reads, work).await;
        assert!(is_all(controllers, "v", 3).await && is_all(controllers, "v@b", 2).await);
        check(node).await;
    });
}

/// The next write after a deletion finds the room that it made, at once.
#[test]
fn a_write_takes_the_place_of_what_a_deleted_snapshot_kept_from_home() {
    let rig = Rig::new(24);
    rig.run(settings(), async |node, controllers, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        set(controllers, "v", 1).await;
        for (name, number) in [("a", 2), ("b", 2)] {
            node.snapshot(vec![snapshot("v", name)], 1).await.unwrap();
            // All but the last blocks, so that some of the slots' groups have room for nothing.
            write(&*device(controllers, "v"), 0, &vec![number; (BLOCKS - 16) * BLOCK]).await;
        }
        node.snapshot(vec![snapshot("v", "c")], 1).await.unwrap();
        fill(node).await;
        let device = device(controllers, "v");
        let mut written = 0;
        while tries(&*device, written).await.is_ok() {
            written += 1;
        }
        assert!(written < BLOCKS, "it is full");
        node.delete_volume("v@a", false).await.unwrap();
        assert_eq!(tries(&*device, written).await, Ok(()));
        check(node).await;
    });
}
