//! Sizes: a thick volume whose making is cut off, and a volume that shrinks while somebody writes to it.

use futures::future::join;
use futures::poll;
use kura_block::{Buf, Kind, Runtime};
use kura_controller::{
    Check, Config, Controller, JournalLimits, Layout, PoolSpec, Settings, SnapshotSpec, VolumeSpec, WhenFull,
};
use kura_sim::{CrashPoint, DiskSpec, FaultPlan, Outcome, Sim, SimDisk};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 4096;
/// Blocks of an extent.
const EXTENT: usize = 16;

struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
}

impl Rig {
    fn new() -> Self {
        let sim = Sim::new(3);
        let disks: Vec<_> = (0..4).map(|at| sim.disk(&format!("disk{at}"), DiskSpec::nvme(32 << 20))).collect();
        let extent_bytes = (EXTENT * BLOCK) as u64;
        let pool =
            PoolSpec { uuid: [9; 16], extent_bytes, controllers: 1, journal_bytes: 8 << 20, floating_percent: 0 };
        crate::rig::format(&sim, &disks, 0, &pool);
        Self { sim, disks }
    }

    /// Opens the controller and does `work`; then the power goes, unless it went before. True when it did not.
    fn run(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime)) -> bool {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let journal = JournalLimits { linger: Duration::from_micros(100), ..JournalLimits::default() };
        let settings = Settings { pages: 4, ..Settings::default() };
        let outcome = self.sim.run_until_crash_or(async {
            let controller =
                crate::alone::open(&self.disks, &runtime, Config { settings, journal, ..Config::default() }).await;
            work(&controller, &*runtime).await;
        });
        let ended = outcome == Outcome::Done(());
        if ended {
            self.sim.crash();
        }
        ended
    }
}

fn volume(extents: usize, layout: Layout, thick: bool) -> VolumeSpec {
    VolumeSpec { name: "v".into(), size_bytes: (extents * EXTENT * BLOCK) as u64, layout, thick, read_only: false }
}

async fn check(controller: &Controller, what: &str) {
    let report = controller.store().check(Check::Repair).await.unwrap();
    assert!(report.violations.is_empty(), "{what}: {:#?}", report.violations);
}

#[test]
fn a_thick_volume_whose_making_was_cut_off_has_all_its_room_soon() {
    const EXTENTS: usize = 40;
    let mut partial = 0;
    for crash in 1.. {
        let rig = Rig::new();
        rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash * 3)], ..FaultPlan::default() });
        let ended = rig.run(async |controller, runtime| {
            controller.store().create(volume(EXTENTS / 2, Layout::Mirror, true)).await.unwrap();
            let grown = volume(EXTENTS, Layout::Mirror, true).size_bytes;
            controller.store().resize("v", grown).await.unwrap();
            runtime.sleep(Duration::from_millis(1)).await;
        });
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(async |controller, runtime| {
            let status = || controller.store().status_by_name("v");
            let Ok(before) = status() else { return };
            partial += u32::from(before.allocated_bytes < before.spec.size_bytes);
            runtime.sleep(Duration::from_secs(1)).await;
            let after = status().unwrap();
            assert_eq!(after.allocated_bytes, after.spec.size_bytes, "cut off at {crash}");
            check(controller, &format!("cut off at {crash}")).await;
        });
        if ended {
            break;
        }
    }
    assert!(partial > 0, "it lacked something");
}

#[test]
fn what_is_written_beyond_the_new_end_while_a_volume_shrinks_is_gone() {
    const EXTENTS: usize = 8;
    for layout in [Layout::Mirror, Layout::Raid5] {
        for delay in 0..60 {
            let rig = Rig::new();
            rig.run(async |controller, runtime| {
                let spec = volume(EXTENTS, layout, false);
                let (before, after) = (spec.size_bytes, (3 * BLOCK) as u64);
                controller.store().create(spec).await.unwrap();
                let device = controller.open_volume("v").unwrap();
                let write = async |block: usize| {
                    device.write((block * BLOCK) as u64, Buf::copy_of(&[7; BLOCK]).into(), false).await
                };
                for block in (0..EXTENTS * EXTENT).step_by(5) {
                    write(block).await.unwrap();
                }
                // The pages are read again.
                controller.store().checkpoint().await.unwrap();
                let writes = async {
                    runtime.sleep(Duration::from_micros(delay * 3)).await;
                    for block in [3, EXTENT - 1, EXTENT, 2 * EXTENT + 1, 3 * EXTENT - 1, 5 * EXTENT] {
                        if let Err(error) = write(block).await {
                            assert_eq!(error.kind(), Kind::Invalid, "{error}");
                        }
                    }
                };
                join(controller.store().resize("v", after), writes).await.0.unwrap();
                controller.store().resize("v", before).await.unwrap();
                let device = controller.open_volume("v").unwrap();
                let read = device.read(after, (before - after) as usize).await.unwrap().contiguous();
                let found = read.iter().position(|byte| *byte != 0).map(|at| 3 + at / BLOCK);
                assert_eq!(found, None, "{layout:?}, {delay}: a block that is back");
                check(controller, &format!("{layout:?}, {delay}")).await;
            });
        }
    }
}

#[test]
fn nobody_has_anything_of_a_volume_that_is_being_made() {
    let rig = Rig::new();
    rig.run(async |controller, runtime| {
        let (store, made) = (controller.store(), Cell::new(false));
        let create = async {
            store.create(volume(200, Layout::Mirror, true)).await.unwrap();
            made.set(true);
        };
        let others = async {
            let (mut busy, mut asked) = (0, 0);
            while !made.get() {
                let snapshot = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
                let refused = [
                    store.snapshot(&[snapshot], 0).await.map(drop).unwrap_err(),
                    store.delete("v").await.unwrap_err(),
                    controller.open_volume("v").map(drop).unwrap_err(),
                ];
                asked += refused.len();
                let is_made = refused.iter().filter(|error| error.kind() == Kind::Busy).count();
                assert!(is_made == 0 || store.status_by_name("v").is_ok(), "it is there, and busy");
                busy += is_made;
                runtime.sleep(Duration::from_nanos(200)).await;
            }
            assert!(busy > 0, "asked {asked} times, and never while it was made");
        };
        join(create, others).await;
        store.delete("v").await.unwrap();
    });
}

#[test]
fn of_two_that_make_a_volume_smaller_one_is_refused_and_takes_nothing() {
    let rig = Rig::new();
    rig.run(async |controller, _| {
        let (store, spec) = (controller.store(), volume(9, Layout::Mirror, false));
        store.create(spec).await.unwrap();
        let device = controller.open_volume("v").unwrap();
        let write = async |block: usize| {
            device.write((block * BLOCK) as u64, Buf::copy_of(&[7; BLOCK]).into(), false).await.unwrap();
        };
        for block in 0..8 * EXTENT {
            write(block).await;
        }
        // One more extent, and the first one's page has to be read again, which takes a while.
        store.checkpoint().await.unwrap();
        write(8 * EXTENT).await;
        let half = (4 * EXTENT * BLOCK) as u64;
        let (refused, smaller) = join(store.resize("v", 3 * BLOCK as u64), store.resize("v", half)).await;
        assert_eq!((refused.unwrap_err().kind(), smaller.unwrap().spec.size_bytes), (Kind::Busy, half));
        let device = controller.open_volume("v").unwrap();
        let read = device.read(0, half as usize).await.unwrap().contiguous();
        assert!(read.iter().all(|byte| *byte == 7), "what its size says is there is there");
        check(controller, "made smaller").await;
    });
}

/// The discard finds the buffer full, and then writes held; meanwhile the volume grows, and what is behind its old end is written.
#[test]
fn what_is_behind_the_end_that_a_volume_had_is_not_cleared_when_it_grows_meanwhile() {
    let mut waited = 0;
    for delay in 0..40 {
        let rig = Rig::new();
        rig.run(async |controller, runtime| {
            let (store, (short, long)) = (controller.store(), (EXTENT / 2 * 3, 2 * EXTENT));
            let spec = |name: &str, blocks: usize| {
                let size_bytes = (blocks * BLOCK) as u64;
                VolumeSpec { name: name.into(), size_bytes, ..volume(1, Layout::Mirror, false) }
            };
            store.create(spec("v", short)).await.unwrap();
            store.create(spec("other", 4096)).await.unwrap();
            let snapshot = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
            store.snapshot(&[snapshot], 0).await.unwrap();
            let (device, other) = (controller.open_volume("v").unwrap(), controller.open_volume("other").unwrap());
            device.write((EXTENT * BLOCK) as u64, Buf::copy_of(&[7; BLOCK]).into(), false).await.unwrap();
            let much = async { other.write(0, Buf::copy_of(&vec![5; 4096 * BLOCK]).into(), false).await.unwrap() };
            let mut discard = device.discard((EXTENT * BLOCK) as u64, (EXTENT / 2 * BLOCK) as u64);
            let begun = async {
                runtime.sleep(Duration::from_micros(delay * 100)).await;
                let waits = poll!(&mut discard).is_pending();
                let held = store.hold(&["v".to_owned()]).unwrap();
                for _ in 0..if waits { 1000 } else { 0 } {
                    runtime.sleep(Duration::from_micros(100)).await;
                    assert!(poll!(&mut discard).is_pending(), "writes are held");
                }
                (waits, held)
            };
            let ((), (waits, held)) = join(much, begun).await;
            store.resize("v", (long * BLOCK) as u64).await.unwrap();
            drop(held);
            let last = ((long - 1) * BLOCK) as u64;
            let longer = controller.open_volume("v").unwrap();
            longer.write(last, Buf::copy_of(&[9; BLOCK]).into(), true).await.unwrap();
            if waits {
                waited += 1;
                discard.await.unwrap();
            }
            assert_eq!(longer.read(last, BLOCK).await.unwrap().contiguous()[..8], [9; 8], "after {delay}");
            let cleared = longer.read((EXTENT * BLOCK) as u64, BLOCK).await.unwrap();
            assert_eq!(cleared.contiguous()[..8], [0; 8], "after {delay}");
            check(controller, "grown").await;
        });
    }
    assert!(waited > 0, "no discard had to wait");
}

/// What a thick volume lacks after a crash is allocated where there is room: nobody waits for it, and no snapshot goes for it.
#[test]
fn what_a_thick_volume_lacks_costs_no_snapshot() {
    const BEFORE: usize = 20;
    const AFTER: usize = 400;
    let grown = volume(AFTER, Layout::Mirror, true).size_bytes;
    let settings = Settings { pages: 64, when_full: WhenFull::DropOldest, ..Settings::default() };
    for crash in (50..).step_by(50) {
        let rig = Rig::new();
        rig.run(async |controller, _| {
            controller.store().create(volume(BEFORE, Layout::Mirror, true)).await.unwrap();
            rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash)], ..FaultPlan::default() });
            let _ = controller.store().resize("v", grown).await;
        });
        rig.sim.set_plan(&FaultPlan::default());
        let runtime: Rc<dyn Runtime> = rig.sim.runtime();
        let lacked = rig.sim.block_on(async {
            let config = Config { settings, ..Config::default() };
            let controller = crate::alone::idle((&rig.disks, &rig.disks), &runtime, config).await.unwrap();
            let status = controller.store().status_by_name("v").unwrap();
            if status.spec.size_bytes < grown || status.allocated_bytes > grown / 2 {
                return false;
            }
            // The pool fills up before it is looked for.
            let other = VolumeSpec { name: "w".into(), ..volume(2000, Layout::Mirror, false) };
            controller.store().create(other).await.unwrap();
            let other = controller.open_volume("w").unwrap();
            let write = async |extent: usize| {
                let data = Buf::copy_of(&[extent as u8; BLOCK]).into();
                other.write((extent * EXTENT * BLOCK) as u64, data, false).await
            };
            for number in 0..3 {
                write(number).await.unwrap();
                let snapshot = SnapshotSpec { of: "w".into(), name: format!("w@{number}"), read_only: true };
                controller.store().snapshot(&[snapshot], number as u64).await.unwrap();
            }
            let mut extent = 3;
            while controller.pool().await.unwrap().free_bytes > grown / 8 {
                write(extent).await.unwrap();
                extent += 1;
            }
            controller.store().begin_upkeep();
            runtime.sleep(Duration::from_mins(3)).await;
            for number in 0..3 {
                assert!(controller.store().status_by_name(&format!("w@{number}")).is_ok(), "snapshot {number} is gone");
            }
            check(&controller, "full").await;
            true
        });
        if lacked {
            return;
        }
    }
}
