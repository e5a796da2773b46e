//! Places in order while snapshots hold them.
//!
//! What must hold: when the clients are quiet a volume that was overwritten at random reads as it did before, and its
//! snapshots are what they were; wherever the power goes on the way, nothing is lost and what is left is put in order
//! later; while a client is at work nothing is moved for a snapshot's sake; a roll-back that begins meanwhile leaves nothing
//! out, and a block that changes all the time holds nothing up.

use super::{BLOCK, Rig, check, device, freed, read, settings, snapshot, volume, write};
use kura_controller::{Check, Controller, JournalLimits, Node, Saving, Settings};
use kura_sim::{CrashPoint, DiskSpec, FaultPlan, Outcome, RotatingSpec};
use rand::Rng;
use rand::seq::SliceRandom;
use std::rc::Rc;
use std::time::Duration;

pub(super) const BLOCKS: usize = 96;
/// Long enough for all that is to be put in order, and for the disks to have it.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// What the volume and its two snapshots hold.
pub(super) struct Wanted {
    pub free: u64,
    pub contents: [(&'static str, Vec<u8>); 3],
}

/// A volume that is overwritten at random after each of two snapshots, the first time all of it; durable.
pub(super) fn scattered(rig: &Rig, settings: Settings) -> Wanted {
    let mut rng = rig.sim.rng("order");
    rig.run(settings, async |node, controllers, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        let mut now = vec![0; BLOCKS * BLOCK];
        rng.fill_bytes(&mut now[BLOCK..]);
        // One block is never written before the first snapshot: what is kept of it reads as zeroes.
        write(&*device, 1, &now[BLOCK..]).await;
        let free = node.pool().await.unwrap().free_bytes;
        let mut contents = Vec::new();
        for (name, count) in [("a", BLOCKS), ("b", BLOCKS / 2)] {
            node.snapshot(vec![snapshot("v", name)], 1).await.unwrap();
            contents.push(now.clone());
            let mut order: Vec<usize> = (0..BLOCKS).collect();
            order.shuffle(&mut rng);
            for block in order.into_iter().take(count) {
                let bytes = block * BLOCK..(block + 1) * BLOCK;
                rng.fill_bytes(&mut now[bytes.clone()]);
                write(&*device, block, &now[bytes]).await;
            }
        }
        device.flush().await.unwrap();
        let [a, b] = contents.try_into().unwrap();
        Wanted { free, contents: [("v", now), ("v@a", a), ("v@b", b)] }
    })
}

async fn compare(controllers: &[Rc<Controller>], wanted: &Wanted) {
    for (name, bytes) in &wanted.contents {
        assert!(read(&*device(controllers, name), BLOCKS).await == *bytes, "{name} is what it was");
    }
}

/// Disk operations that reading the volume from its start to its end takes, 128 KiB at a time.
async fn reading(rig: &Rig, controllers: &[Rc<Controller>]) -> u64 {
    let device = device(controllers, "v");
    let before = rig.sim.operations();
    for at in 0..BLOCKS / 32 {
        device.read((at * 32 * BLOCK) as u64, 32 * BLOCK).await.unwrap();
    }
    rig.sim.operations() - before
}

/// Deletes both snapshots: the pool has everything back.
pub(super) async fn part(node: &Node, runtime: &dyn kura_block::Runtime, free: u64) {
    for name in ["v@b", "v@a"] {
        node.delete_volume(name, false).await.unwrap();
    }
    freed(node, runtime, free).await;
}

#[test]
fn an_overwritten_volume_is_put_in_order_while_its_snapshots_stay() {
    let rig = Rig::new(24);
    let wanted = scattered(&rig, settings());
    rig.run(settings(), async |node, controllers, runtime| {
        compare(controllers, &wanted).await;
        let scattered = reading(&rig, controllers).await;
        runtime.sleep(IDLE).await;
        let in_order = reading(&rig, controllers).await;
        assert!(scattered > 60, "{scattered} operations: it was scattered");
        // Six extents of sixteen blocks.
        assert!(in_order <= 6, "{in_order} operations, {scattered} before");
        compare(controllers, &wanted).await;
        check(node).await;
    });
    // It is so after a restart, and when it is written again.
    rig.run(settings(), async |node, controllers, runtime| {
        compare(controllers, &wanted).await;
        assert!(reading(&rig, controllers).await <= 6, "after a restart");
        check(node).await;
        part(node, runtime, wanted.free).await;
        assert!(read(&*device(controllers, "v"), BLOCKS).await == wanted.contents[0].1);
        check(node).await;
    });
}

#[test]
fn nothing_is_moved_while_a_client_is_at_work() {
    let rig = Rig::new(24);
    let wanted = scattered(&rig, settings());
    rig.run(settings(), async |_, controllers, runtime| {
        // What is in the write buffer yet is read from there.
        reading(&rig, controllers).await;
        let mut operations = Vec::new();
        for _ in 0..50 {
            runtime.sleep(Duration::from_millis(100)).await;
            operations.push(reading(&rig, controllers).await);
        }
        assert!(operations.iter().all(|count| *count > 60), "{operations:?}");
        compare(controllers, &wanted).await;
    });
}

/// What it takes, in virtual time, to overwrite a volume in random order right after a snapshot, and to read it from its start to its
/// end before that and when it was left alone after it.
#[derive(Debug)]
struct Times {
    write: Duration,
    fresh: Duration,
    after: Duration,
}

fn times(saving: Saving, slow: impl Fn() -> DiskSpec) -> Times {
    const BLOCKS: usize = 1024;
    let rig = Rig::on(slow);
    let mut rng = rig.sim.rng("times");
    // All pages of checksums fit the cache: reading them is no part of this.
    rig.run(Settings { saving, pages: 1024, ..settings() }, async |node, controllers, runtime| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        for at in (0..BLOCKS).step_by(32) {
            write(&*device, at, &vec![1; 32 * BLOCK]).await;
        }
        let reading = async || {
            runtime.sleep(20 * IDLE).await;
            let begun = rig.sim.now();
            for at in (0..BLOCKS).step_by(32) {
                device.read((at * BLOCK) as u64, 32 * BLOCK).await.unwrap();
            }
            rig.sim.now().saturating_sub(begun)
        };
        let fresh = reading().await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        let mut order: Vec<usize> = (0..BLOCKS).collect();
        order.shuffle(&mut rng);
        let begun = rig.sim.now();
        for block in order {
            write(&*device, block, &vec![2; BLOCK]).await;
        }
        let write = rig.sim.now().saturating_sub(begun);
        let after = reading().await;
        check(node).await;
        Times { write, fresh, after }
    })
}

/// The default is what measurement favours, on both kinds of disks.
#[test]
fn redirection_writes_faster_than_copies_and_reads_as_before_when_left_alone() {
    const DISK: u64 = 64 << 20;
    let class = |name: &str, slow: &dyn Fn() -> DiskSpec| {
        let (redirect, copy) = (times(Saving::Redirect, slow), times(Saving::Copy, slow));
        println!("{name}: redirect {redirect:?}, copy {copy:?}");
        assert!(redirect.write < copy.write, "{name}: {redirect:?}, {copy:?}");
        assert!(redirect.after.as_secs_f64() * 0.8 <= redirect.fresh.as_secs_f64(), "{name}: {redirect:?}");
    };
    class("flash", &|| DiskSpec::nvme(DISK));
    class("disks that turn", &|| DiskSpec::rotating(RotatingSpec::hdd_7200(DISK)));
}

/// Cuts the power at every operation while places are put in order, each record a write of its own.
#[test]
fn no_power_cut_on_the_way_loses_anything() {
    let whole = |crash: Option<u64>| {
        let journal = JournalLimits { linger: Duration::ZERO, batch_bytes: 4 << 10, ..JournalLimits::default() };
        let rig = Rig { journal, ..Rig::new(24) };
        let wanted = scattered(&rig, settings());
        let crashes = crash.map(CrashPoint::Op).into_iter().collect();
        rig.sim.set_plan(&FaultPlan { crashes, ..FaultPlan::default() });
        let before = rig.sim.operations();
        let outcome = rig.run_until_crash_or(settings(), async |_, _, runtime| runtime.sleep(IDLE).await);
        let operations = rig.sim.operations() - before;
        assert_eq!(matches!(outcome, Outcome::Crashed), crash.is_some(), "crash at {crash:?}");
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(settings(), async |node, controllers, runtime| {
            compare(controllers, &wanted).await;
            check(node).await;
            runtime.sleep(IDLE).await;
            compare(controllers, &wanted).await;
            assert!(reading(&rig, controllers).await <= 6, "crash at {crash:?}");
            part(node, runtime, wanted.free).await;
            assert!(read(&*device(controllers, "v"), BLOCKS).await == wanted.contents[0].1, "crash at {crash:?}");
            check(node).await;
        });
        operations
    };
    let operations = whole(None);
    assert!(operations > 200, "{operations}: there is something to cut");
    for crash in 1..=operations {
        whole(Some(crash));
    }
}

/// Slow disks, so that what waits for them waits for long.
fn slow() -> DiskSpec {
    DiskSpec::constant(64 << 20, Duration::from_millis(40))
}

/// A check holds what tidies up, extent by extent, so that it waits just when the roll-back begins.
#[test]
fn a_roll_back_that_begins_while_places_are_put_in_order_leaves_nothing_out() {
    // More windows than one look takes.
    const WINDOWS: usize = 80;
    const BLOCKS: usize = 32 * WINDOWS;
    for wait_ms in [300, 350, 400, 450] {
        let rig = Rig::on(slow);
        let mut rng = rig.sim.rng("roll-back");
        let mut then = vec![0; BLOCKS * BLOCK];
        rng.fill_bytes(&mut then);
        rig.run(settings(), async |node, controllers, runtime| {
            node.create_volume(volume("v", BLOCKS)).await.unwrap();
            let device = device(controllers, "v");
            for at in (0..BLOCKS).step_by(32) {
                write(&*device, at, &then[at * BLOCK..(at + 32) * BLOCK]).await;
            }
            node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
            let mut order: Vec<usize> = (0..BLOCKS).step_by(8).collect();
            order.shuffle(&mut rng);
            for block in order {
                write(&*device, block, &vec![1; BLOCK]).await;
            }
            device.flush().await.unwrap();
            let rolls = async {
                runtime.sleep(Duration::from_millis(wait_ms)).await;
                controllers.iter().find(|one| one.open_volume("v").is_ok()).unwrap().store().roll_back("v@a").await
            };
            let (report, rolled) = futures::future::join(node.check(Check::Verify), rolls).await;
            assert!(report.unwrap().violations.is_empty());
            rolled.unwrap();
            runtime.sleep(20 * IDLE).await;
            assert!(read(&*device, BLOCKS).await == then, "after {wait_ms} ms");
            node.delete_volume("v@a", false).await.unwrap();
            runtime.sleep(IDLE).await;
            assert!(read(&*device, BLOCKS).await == then, "after {wait_ms} ms, without its snapshot");
            check(node).await;
        });
    }
}

#[test]
fn a_block_that_changes_all_the_time_holds_nothing_up() {
    let rig = Rig::on(slow);
    let wanted = scattered(&rig, settings());
    rig.run(settings(), async |node, controllers, runtime| {
        let device = device(controllers, "v");
        let ends = std::cell::Cell::new(false);
        let writes = async {
            let mut stamp = 0_u32;
            while !ends.get() {
                stamp += 1;
                write(&*device, 5, &stamp.to_le_bytes().repeat(BLOCK / 4)).await;
                runtime.sleep(Duration::from_millis(1)).await;
            }
            stamp
        };
        let parts = async {
            part(node, runtime, wanted.free).await;
            ends.set(true);
        };
        let (stamp, ()) = futures::future::join(writes, parts).await;
        let mut now = wanted.contents[0].1.clone();
        now[5 * BLOCK..6 * BLOCK].copy_from_slice(&stamp.to_le_bytes().repeat(BLOCK / 4));
        assert!(read(&*device, BLOCKS).await == now);
        check(node).await;
    });
}

/// Nothing but the first block that a snapshot keeps from its home says that there is something to put in order.
#[test]
fn a_node_that_slept_puts_in_order_what_is_overwritten_then() {
    let rig = Rig::new(24);
    let mut rng = rig.sim.rng("slept");
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        write(&*device, 0, &vec![1; BLOCKS * BLOCK]).await;
        runtime.sleep(IDLE).await;
        node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
        runtime.sleep(IDLE).await;
        let mut order: Vec<usize> = (0..BLOCKS).collect();
        order.shuffle(&mut rng);
        for block in order {
            write(&*device, block, &[2; BLOCK]).await;
        }
        runtime.sleep(IDLE).await;
        let operations = reading(&rig, controllers).await;
        assert!(operations <= 6, "{operations} operations: it lies as it was written");
        assert!(read(&*device, BLOCKS).await == [2; BLOCK].repeat(BLOCKS));
        check(node).await;
    });
}

/// A look for what is to be put in order ends with the family of snapshots, wherever it is: the volume may be smaller when it has
/// snapshots again.
#[test]
fn a_volume_that_became_smaller_is_looked_at_from_its_start() {
    const LONG: usize = 2048;
    const SHORT: usize = 16;
    for millis in [0, 2, 4, 8, 16, 32] {
        let rig = Rig::new(48);
        rig.run(settings(), async |node, controllers, runtime| {
            node.create_volume(volume("v", LONG)).await.unwrap();
            let free = node.pool().await.unwrap().free_bytes;
            let device = device(controllers, "v");
            write(&*device, 0, &vec![1; LONG * BLOCK]).await;
            node.snapshot(vec![snapshot("v", "a")], 1).await.unwrap();
            for block in (0..LONG).step_by(2) {
                write(&*device, block, &[2; BLOCK]).await;
            }
            device.flush().await.unwrap();
            node.delete_volume("v@a", false).await.unwrap();
            runtime.sleep(Duration::from_millis(millis)).await;
            device.discard(0, (LONG * BLOCK) as u64).await.unwrap();
            freed(node, runtime, free).await;
            node.resize_volume("v", (SHORT * BLOCK) as u64, true).await.unwrap();
            write(&*device, 0, &vec![3; SHORT * BLOCK]).await;
            node.snapshot(vec![snapshot("v", "b")], 2).await.unwrap();
            write(&*device, 1, &[4; BLOCK]).await;
            runtime.sleep(IDLE).await;
            let now = read(&*device, SHORT).await;
            assert!(now[..BLOCK].iter().all(|byte| *byte == 3) && now[BLOCK..2 * BLOCK].iter().all(|byte| *byte == 4));
            check(node).await;
        });
    }
}
