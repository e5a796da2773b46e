//! Two things that go wrong at once, or of which one comes between the steps of the other.
//!
//! What must hold: a part of a block is written onto what the block is, whatever it was meanwhile; a name that may be somebody's is
//! nobody else's; of two copies of the tables one does, though the other has rotted unseen; nothing is dropped for what is gone.

use futures::future::{join, join3};
use kura_block::{Block, Buf, Runtime};
use kura_controller::{
    Check, Config, Controller, JournalLimits, Layout, Node, PoolSpec, Settings, SharedPool, SnapshotSpec, VolumeSpec,
    WhenFull,
};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Fault, FaultKind, FaultPlan, Place, Sim, SimDisk, When};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;

/// Two disks with room for the journals, and four of 16 MiB.
fn disks(sim: &Sim, controllers: u16) -> Vec<SimDisk> {
    let carrier = (8 + 8 * u64::from(controllers)).max(24);
    let bytes = [carrier, carrier, 16, 16, 16, 16].map(|mib: u64| mib << 20).into_iter().enumerate();
    let disks: Vec<_> = bytes.map(|(at, bytes)| sim.disk(&format!("disk{at}"), DiskSpec::nvme(bytes))).collect();
    let pool =
        PoolSpec { uuid: [9; 16], extent_bytes: 64 << 10, controllers, journal_bytes: 5 << 20, floating_percent: 0 };
    crate::rig::format(sim, &disks, 2, &pool);
    disks
}

fn spec(name: &str, blocks: usize, thick: bool) -> VolumeSpec {
    let size_bytes = (blocks * BLOCK) as u64;
    VolumeSpec { name: name.into(), size_bytes, layout: Layout::Mirror, thick, read_only: false }
}

fn snapshot(of: &str, name: &str) -> SnapshotSpec {
    SnapshotSpec { of: of.into(), name: name.into(), read_only: true }
}

/// Starts a node and does `work` with it and its controllers.
fn run(sim: &Sim, disks: &[SimDisk], settings: Settings, work: impl AsyncFnOnce(&Node, &[Rc<Controller>])) {
    let paths: Vec<String> = disks.iter().map(|disk| disk.name().to_owned()).collect();
    let journal = JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10, ..JournalLimits::default() };
    let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
    let config = Config { settings, journal, ..Config::default() };
    let runtime: Rc<dyn Runtime> = sim.runtime();
    sim.block_on(async {
        let (node, all) = Node::start(&paths, SimDisk::opener(disks), &runtime, &shared, config).await.unwrap();
        work(&node, &all).await;
    });
}

async fn write(device: &dyn Block, block: usize, blocks: usize, byte: u8) {
    let data = Buf::copy_of(&vec![byte; blocks * BLOCK]);
    device.write((block * BLOCK) as u64, data.into(), true).await.unwrap();
}

/// The tables rot on one journal disk, and then the other one is gone. `is_checked`: a check came between, else a checkpoint without
/// that disk.
fn starts_from_the_only_tables(is_checked: bool) {
    let sim = Sim::new(1);
    let disks = disks(&sim, 1);
    run(&sim, &disks, Settings::default(), async |_, all| {
        let store = all[0].store();
        store.create(spec("v", 64, false)).await.unwrap();
        let device = all[0].open_volume("v").unwrap();
        write(&*device, 0, 64, 7).await;
        store.checkpoint().await.unwrap();
        for area in 0..2 {
            let at = (1 << 20) + 8192 + area * (1 << 20);
            disks[0].inject(FaultKind::BitRot(Place::Range(at..at + 32), 1));
        }
        sim.runtime().sleep(Duration::from_mins(1)).await;
        if is_checked {
            store.check(Check::Repair).await.unwrap();
        }
        disks[1].inject(FaultKind::Dead);
        write(&*device, 0, 64, 8).await;
        if !is_checked {
            store.checkpoint().await.unwrap();
        }
    });
    sim.crash();
    run(&sim, &disks, Settings::default(), async |_, all| {
        let read = all[0].open_volume("v").unwrap().read(0, 64 * BLOCK).await.unwrap();
        assert!(read.contiguous().iter().all(|byte| *byte == 8));
    });
}

#[test]
fn tables_that_rot_on_one_disk_are_written_anew() {
    starts_from_the_only_tables(true);
    starts_from_the_only_tables(false);
}

/// The first controller's journal fails as it takes the record of a volume `x`.
async fn lose_the_first_journal(sim: &Sim, all: &[Rc<Controller>]) {
    for one in all {
        one.store().checkpoint().await.unwrap();
    }
    sim.runtime().sleep(Duration::from_secs(3)).await;
    let fault = |disk: &str, op| Fault { disk: disk.into(), when: When::Op(op), what: FaultKind::WriteError };
    sim.set_plan(&FaultPlan { faults: vec![fault("disk1", 1), fault("disk0", 2)], ..FaultPlan::default() });
    all[0].store().create(spec("x", 64, false)).await.unwrap_err();
    sim.set_plan(&FaultPlan::default());
    assert!(all[0].store().failure().is_some());
}

/// A journal takes the record of a volume and fails before that is certain: nobody else's volume has the name until a start has told.
#[test]
fn a_name_that_a_failed_journal_may_have_is_nobodys() {
    let sim = Sim::new(1);
    let disks = disks(&sim, 2);
    run(&sim, &disks, Settings::default(), async |node, all| {
        lose_the_first_journal(&sim, all).await;
        node.create_volume(spec("x", 64, false)).await.unwrap_err();
        node.create_volume(spec("y", 64, false)).await.unwrap();
    });
    sim.crash();
    run(&sim, &disks, Settings::default(), async |node, _| {
        let names: Vec<_> = node.volumes().await.unwrap().into_iter().map(|volume| volume.spec.name).collect();
        assert!(names.iter().filter(|name| *name == "x").count() <= 1 && names.contains(&"y".to_owned()), "{names:?}");
    });
}

/// It has the fewest volumes, for good: all others would be refused.
#[test]
fn a_controller_whose_journal_has_failed_is_given_no_volumes() {
    let sim = Sim::new(1);
    let disks = disks(&sim, 3);
    run(&sim, &disks, Settings::default(), async |node, all| {
        for (controller, name) in [(0, "a"), (1, "b"), (1, "c"), (2, "d"), (2, "e")] {
            all[controller].store().create(spec(name, 64, false)).await.unwrap();
        }
        lose_the_first_journal(&sim, all).await;
        assert_eq!(node.create_volume(spec("f", 64, false)).await.unwrap().controller, 1);
        let drained = node.drain(1).await.unwrap();
        assert!(drained.stays.is_empty(), "{drained:?}");
        let moved = drained.moved.iter().map(|moved| (moved.volume.spec.name.as_str(), moved.volume.controller));
        assert_eq!(moved.collect::<Vec<_>>(), [("b", 2), ("c", 2), ("f", 2)]);
        let refused = node.drain(2).await.unwrap_err().to_string();
        assert!(refused.contains("no other one takes its volumes"), "{refused}");
    });
}

/// A thick volume that grows waits for the oldest snapshot to go, and is deleted meanwhile.
#[test]
fn no_snapshot_goes_for_a_volume_that_is_deleted() {
    let sim = Sim::new(1);
    let disks = disks(&sim, 1);
    let settings = Settings { when_full: WhenFull::DropOldest, ..Settings::default() };
    run(&sim, &disks, settings, async |_, all| {
        let store = all[0].store();
        store.create(spec("w", 256, false)).await.unwrap();
        store.create(spec("v", 16, true)).await.unwrap();
        let device = all[0].open_volume("w").unwrap();
        write(&*device, 0, 256, 1).await;
        for at in 0..5_u8 {
            store.snapshot(&[snapshot("w", &format!("w@{at}"))], at.into()).await.unwrap();
            write(&*device, 0, 256, 2 + at).await;
            store.checkpoint().await.unwrap();
        }
        let count = || store.volumes().iter().filter(|volume| volume.spec.name.contains('@')).count();
        let at_delete = Cell::new(0);
        let delete = async {
            sim.runtime().sleep(Duration::from_micros(1)).await;
            store.delete("v").await.unwrap();
            at_delete.set(count());
        };
        let (grown, ()) = join(store.resize("v", 28 << 20), delete).await;
        assert!(grown.is_err() && count() == at_delete.get() && count() > 1, "{} then {}", at_delete.get(), count());
    });
}

/// Block 14 is 1, and a snapshot has that. A write of a part of it reads it, somebody writes all of it, and the roll-back brings it back.
/// Whether the one who wrote was done before the roll-back began, and the whole blocks of the part then.
async fn rolled_back_between(disks: &[SimDisk], runtime: &Rc<dyn Runtime>, whole_at: u64, roll_at: u64) -> Option<Buf> {
    let config = Config {
        settings: Settings { pages: 4, write_buffer_bytes: 1 << 20, ..Settings::default() },
        journal: JournalLimits { linger: Duration::from_millis(1), ..JournalLimits::default() },
        ..Config::default()
    };
    let one = crate::alone::open(disks, runtime, config).await;
    let store = one.store();
    store.create(spec("v", 256, false)).await.unwrap();
    let device = one.open_volume("v").unwrap();
    write(&*device, 0, 256, 1).await;
    store.checkpoint().await.unwrap();
    store.snapshot(&[snapshot("v", "v@a")], 1).await.unwrap();
    store.flush().await.unwrap();
    // Of the pages there is room for four: the part's have to be read.
    for at in [100, 140, 180, 220] {
        device.read((at * BLOCK) as u64, BLOCK).await.unwrap();
    }
    let (whole_done, rolled_at) = (Cell::new(Duration::MAX), Cell::new(Duration::ZERO));
    let part = device.write((14 * BLOCK + 2048) as u64, Buf::copy_of(&vec![9; 60 * BLOCK]).into(), false);
    let whole = async {
        runtime.sleep(Duration::from_micros(whole_at)).await;
        device.write((14 * BLOCK) as u64, Buf::copy_of(&[5; BLOCK]).into(), false).await.unwrap();
        whole_done.set(runtime.now());
    };
    let roll = async {
        runtime.sleep(Duration::from_micros(roll_at)).await;
        rolled_at.set(runtime.now());
        store.roll_back("v@a").await.unwrap();
    };
    let (written, (), ()) = join3(part, whole, roll).await;
    written.unwrap();
    let read = device.read((14 * BLOCK) as u64, BLOCK).await.unwrap().contiguous();
    (whole_done.get() < rolled_at.get()).then_some(read)
}

#[test]
fn a_part_is_not_written_onto_what_a_roll_back_undid() {
    let mut undone = 0;
    for (whole_at, roll_at) in (0..12).flat_map(|whole| (0..40).map(move |roll| (whole * 10, roll * 20))) {
        let sim = Sim::new(1);
        let disks = disks(&sim, 1);
        let runtime: Rc<dyn Runtime> = sim.runtime();
        let Some(read) = sim.block_on(rolled_back_between(&disks, &runtime, whole_at, roll_at)) else { continue };
        assert!(read[..2048].iter().all(|byte| *byte == 1), "{} at {whole_at} and {roll_at} us", read[0]);
        undone += 1;
    }
    assert!(undone > 100, "{undone}");
}
