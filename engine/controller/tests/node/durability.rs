//! What may cost nothing: a client that leaves in the middle of a request, a crash or a stop in the middle of work that takes
//! several records, and disks that refuse for a moment.

mod checks;
mod loan;
mod lost;
mod pages;
mod waits;

use futures::future::{Either, select, try_join_all};
use kura_block::{Block, Buf, DeviceId, Kind, Result, Runtime};
use kura_controller::{
    Check, Config, Controller, HotSettings, JournalLimits, Layout, Node, PoolSpec, Settings, SnapshotSpec, VolumeSpec,
    WhenFull,
};
use kura_sim::{CrashPoint, Discard, DiskSpec, FaultKind, FaultPlan, Outcome, Sim, SimDisk};
use rand::RngExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 4096;

/// A pool of one controller: its journal on two fast disks, its volumes on slow ones.
struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    extent_bytes: u64,
    settings: Settings,
}

impl Rig {
    fn new(slow: usize, slow_mib: u64, extent_bytes: u64, settings: Settings) -> Self {
        Self::seeded(7, slow, slow_mib, extent_bytes, settings)
    }

    fn seeded(seed: u64, slow: usize, slow_mib: u64, extent_bytes: u64, settings: Settings) -> Self {
        let sim = Sim::new(seed);
        let disk = |name: &str, mib: u64| {
            let (rotational, discard) = (settings.disk_queue > 0, Discard::Unsupported);
            sim.disk(name, DiskSpec { rotational, discard, ..DiskSpec::nvme(mib << 20) })
        };
        let slow = (0..slow).map(|at| disk(&format!("slow{at}"), slow_mib));
        let disks: Vec<_> = [disk("fast0", 48), disk("fast1", 48)].into_iter().chain(slow).collect();
        let rig = Self { sim, disks, extent_bytes, settings };
        rig.format([9; 16], 1);
        rig
    }

    /// Makes a pool of the disks, whatever they have.
    fn format(&self, uuid: [u8; 16], controllers: u16) {
        let Self { extent_bytes, .. } = *self;
        let pool = PoolSpec { uuid, extent_bytes, controllers, journal_bytes: 8 << 20, floating_percent: 12 };
        crate::rig::format(&self.sim, &self.disks, 2, &pool);
    }

    fn config(&self) -> Config {
        let journal =
            JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10, ..JournalLimits::default() };
        Config { settings: self.settings, journal, ..Config::default() }
    }

    async fn open(&self, runtime: &Rc<dyn Runtime>) -> Rc<Controller> {
        crate::alone::open(&self.disks, runtime, self.config()).await
    }

    /// All controllers of the pool.
    async fn start(&self, runtime: &Rc<dyn Runtime>) -> (Node, Vec<Rc<Controller>>) {
        crate::alone::all(&self.disks, runtime, self.config()).await
    }

    /// Opens the controller and does `work`; then the power goes, unless it went before.
    fn run<T>(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime) -> T) -> Outcome<T> {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let outcome = self.sim.run_until_crash_or(async {
            let controller = self.open(&runtime).await;
            work(&controller, &*runtime).await
        });
        if !matches!(outcome, Outcome::Crashed) {
            self.sim.crash();
        }
        outcome
    }

    /// Cuts the power at the n-th operation from now on.
    fn cut_power_at(&self, operation: u64) {
        self.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(operation)], ..FaultPlan::default() });
    }
}

async fn create(controller: &Controller, name: &str, blocks: usize, layout: Layout) -> Rc<dyn Block> {
    let size_bytes = (blocks * BLOCK) as u64;
    let spec = VolumeSpec { name: name.into(), size_bytes, layout, thick: false, read_only: false };
    controller.store().create(spec).await.unwrap();
    controller.open_volume(name).unwrap()
}

async fn write(device: &dyn Block, block: usize, byte: u8) -> Result<()> {
    device.write((block * BLOCK) as u64, Buf::copy_of(&[byte; BLOCK]).into(), false).await
}

async fn block(device: &dyn Block, block: usize) -> Vec<u8> {
    let read = device.read((block * BLOCK) as u64, BLOCK).await;
    read.unwrap_or_else(|error| panic!("block {block}: {error}")).contiguous().to_vec()
}

async fn reads(device: &dyn Block, number: usize, byte: u8) -> bool {
    block(device, number).await.iter().all(|found| *found == byte)
}

/// Checks everything; how many blocks had to be written again.
async fn check(controller: &Controller) -> u64 {
    let report = controller.store().check(Check::Repair).await.unwrap();
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    report.repaired
}

/// True when `work` is done before it is dropped, after so long.
async fn done_within(work: impl Future, runtime: &dyn Runtime, long: Duration) -> bool {
    matches!(select(pin!(work), runtime.sleep(long)).await, Either::Left(_))
}

/// Writes the first block of each extent of 16 blocks until the pool is full; how many there are.
async fn fill(device: &dyn Block) -> usize {
    for extent in 0.. {
        if let Err(error) = write(device, extent * 16, 1).await {
            assert_eq!(error.kind(), Kind::Full, "{error}");
            return extent;
        }
    }
    unreachable!("the pool has an end");
}

/// On a full pool a write makes a checkpoint, which finds room. The client leaves at any moment of it.
#[test]
fn a_client_that_leaves_while_room_is_made_takes_nothing_with_it() {
    let mut long = Duration::ZERO;
    loop {
        let rig = Rig::new(2, 8, 64 << 10, Settings::default());
        let (mut extents, mut answered) = (0, false);
        rig.run(async |controller, runtime| {
            let device = create(controller, "v", 4096, Layout::Mirror).await;
            extents = fill(&*device).await;
            controller.store().checkpoint().await.unwrap();
            for extent in 1..extents {
                write(&*device, extent * 16, 2).await.unwrap();
                write(&*device, extent * 16 + 1, 2).await.unwrap();
            }
            // The next checkpoint writes the pages of these, and the tables, which it is the first to have.
            create(controller, "w", 16, Layout::Mirror).await;
            device.discard(0, 64 << 10).await.unwrap();
            device.flush().await.unwrap();
            answered = done_within(write(&*device, extents * 16, 3), runtime, long).await;
            controller.store().checkpoint().await.unwrap();
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for extent in 1..extents {
                assert!(reads(&*device, extent * 16, 2).await, "{long:?}: extent {extent}");
                assert!(reads(&*device, extent * 16 + 1, 2).await, "{long:?}: extent {extent}, first written");
            }
            assert!(reads(&*device, 0, 0).await, "{long:?}");
            controller.open_volume("w").unwrap();
            check(controller).await;
        });
        if answered {
            assert!(long > Duration::from_micros(300), "it left in the middle of something");
            return;
        }
        long += Duration::from_micros(40);
    }
}

/// On a full pool that drops snapshots, a write drops the oldest. The client leaves at any moment of it.
#[test]
fn a_client_that_leaves_while_a_snapshot_is_dropped_leaves_nothing_behind() {
    let mut long = Duration::ZERO;
    let mut dropped = 0;
    loop {
        let rig = Rig::new(2, 4, 64 << 10, Settings { when_full: WhenFull::DropOldest, ..Settings::default() });
        let mut answered = false;
        rig.run(async |controller, runtime| {
            let device = create(controller, "v", 480, Layout::Mirror).await;
            let snapshot = |name: &str| [SnapshotSpec { of: "v".into(), name: name.into(), read_only: false }];
            let names = || controller.volumes().into_iter().map(|volume| volume.spec.name).collect::<Vec<_>>();
            let free = async || controller.pool().await.unwrap().free_bytes;
            write(&*device, 0, 1).await.unwrap();
            // What is left is for other volumes to fill.
            controller.store().snapshot(&snapshot("v@old"), 1).await.unwrap();
            for block in 0..96 {
                write(&*device, block, 2).await.unwrap();
            }
            controller.store().snapshot(&snapshot("v@new"), 2).await.unwrap();
            for block in 0..96 {
                write(&*device, block, 3).await.unwrap();
            }
            let mut last = 0;
            let filler = create(controller, "filler", 4096, Layout::Mirror).await;
            while free().await > 0 {
                write(&*filler, last * 16, 1).await.unwrap();
                last += 1;
            }
            assert!(names().contains(&"v@old".to_owned()), "{:?}", names());
            controller.store().checkpoint().await.unwrap();
            while names().contains(&"v@old".to_owned()) {
                answered = done_within(write(&*filler, last * 16, 1), runtime, long).await;
                if !answered {
                    break;
                }
                last += 1;
            }
            runtime.sleep(Duration::from_secs(5)).await;
            if !names().contains(&"v@old".to_owned()) {
                dropped += 1;
                // Nothing of it is left: its name is free, and its space.
                controller.store().delete("filler").await.unwrap();
                controller.store().snapshot(&snapshot("v@old"), 3).await.unwrap();
            }
            check(controller).await;
        });
        if answered {
            break;
        }
        long += Duration::from_micros(50);
    }
    assert!(dropped > 3, "it left in the middle of {dropped}");
}

/// A block of a snapshot that is gone is brought home, and a client gives its home up meanwhile, just when the pool is full: who
/// drops a snapshot for room waits for whoever tidies up, which must not wait for room in turn.
#[test]
fn what_is_brought_home_waits_for_no_room_that_waits_for_it() {
    let rig = Rig::new(2, 4, 64 << 10, Settings { when_full: WhenFull::DropOldest, ..Settings::default() });
    let done = rig.run(async |controller, runtime| {
        let snapshot = |of: &str| [SnapshotSpec { of: of.into(), name: format!("{of}@old"), read_only: false }];
        let device = create(controller, "v", 16, Layout::Mirror).await;
        let other = create(controller, "w", 64, Layout::Mirror).await;
        for (of, device, blocks) in [("v", &device, 16), ("w", &other, 64)] {
            for turn in 1..3 {
                for block in 0..blocks {
                    write(&**device, block, turn).await.unwrap();
                }
                if turn == 1 {
                    controller.store().snapshot(&snapshot(of), 1).await.unwrap();
                }
            }
        }
        let filler = create(controller, "filler", 4096, Layout::Mirror).await;
        let mut last = 0;
        while controller.pool().await.unwrap().free_bytes > 0 {
            write(&*filler, last * 16, 1).await.unwrap();
            last += 1;
        }
        controller.store().checkpoint().await.unwrap();
        for disk in &rig.disks[2..] {
            disk.inject(FaultKind::Stall { lasts: Duration::from_secs(3) });
        }
        controller.store().delete("v@old").await.unwrap();
        runtime.sleep(Duration::from_millis(300)).await;
        // The tidier reads the first slot; its home goes, to one of four who want more than that and what is tidied up.
        device.discard(0, 64 << 10).await.unwrap();
        let writes = Box::pin(try_join_all((last..last + 4).map(|group| write(&*filler, group * 16, 1))));
        assert!(done_within(writes, runtime, Duration::from_mins(1)).await, "they all wait");
        let names: Vec<_> = controller.volumes().into_iter().map(|volume| volume.spec.name).collect();
        assert!(!names.contains(&"w@old".to_owned()), "{names:?}");
        assert!(reads(&*device, 0, 0).await && reads(&*other, 0, 2).await);
        check(controller).await;
    });
    assert_eq!(done, Outcome::Done(()));
}

/// Blocks of a group of extents of 4 MiB on five disks: their slots take more than one entry of the journal to name.
const GROUP: usize = 4096;

fn hot_rig() -> Rig {
    let hot = HotSettings { share_permille: 400, eager: false, ..HotSettings::TODAY };
    Rig::new(6, 80, 4 << 20, Settings { raid_width: Some(5), hot, ..Settings::default() })
}

/// A volume of one group all of whose blocks are in the hot area, and the log's tail behind that.
async fn all_hot(controller: &Controller, runtime: &dyn Runtime) -> Rc<dyn Block> {
    let device = create(controller, "v", GROUP, Layout::HotMirror).await;
    write(&*device, 0, 7).await.unwrap();
    // The hot area grows to its full size.
    runtime.sleep(Duration::from_secs(1)).await;
    for at in 0..GROUP {
        write(&*device, at * 7 % GROUP, 7).await.unwrap();
    }
    controller.store().checkpoint().await.unwrap();
    controller.store().checkpoint().await.unwrap();
    assert_eq!(controller.store().status().hot_bytes, (GROUP * BLOCK) as u64);
    device
}

async fn is_all(device: &dyn Block, blocks: usize, byte: u8) -> bool {
    let read = device.read(0, blocks * BLOCK).await.unwrap();
    read.parts().iter().all(|part| part.iter().all(|found| *found == byte))
}

#[test]
fn a_delete_takes_no_more_of_the_journal_for_what_is_hot() {
    let rig = hot_rig();
    rig.run(async |controller, runtime| {
        drop(all_hot(controller, runtime).await);
        let before = controller.store().status().journal_used_bytes;
        controller.store().delete("v").await.unwrap();
        let took = controller.store().status().journal_used_bytes - before;
        assert!(took <= 16 << 10, "{took} bytes");
    });
}

#[test]
fn a_crash_in_a_delete_leaves_all_or_nothing_of_what_is_hot() {
    let mut crash = 1;
    loop {
        let rig = hot_rig();
        let outcome = rig.run(async |controller, runtime| {
            drop(all_hot(controller, runtime).await);
            rig.cut_power_at(crash);
            controller.store().delete("v").await.unwrap();
        });
        rig.sim.set_plan(&FaultPlan::default());
        rig.run(async |controller, _| {
            let hot = controller.store().status().hot_bytes;
            match controller.open_volume("v") {
                Ok(device) => assert!(is_all(&*device, GROUP, 7).await, "crash at {crash}"),
                Err(_) => assert_eq!(hot, 0, "crash at {crash}"),
            }
            check(controller).await;
        });
        if outcome == Outcome::Done(()) {
            return;
        }
        crash += 1;
    }
}

/// Whatever of a discard, or of a clearing that keeps the space, a crash leaves: no slot is a block's that is gone, and a
/// disk can leave.
#[test]
fn a_crash_in_a_discard_leaves_no_slot_behind() {
    for keeps in [false, true] {
        let mut crash = 1;
        loop {
            let rig = hot_rig();
            let outcome = rig.run(async |controller, runtime| {
                let device = all_hot(controller, runtime).await;
                rig.cut_power_at(crash);
                if keeps {
                    device.write_zeroes(0, (GROUP * BLOCK) as u64, true).await.unwrap();
                } else {
                    device.discard(0, (GROUP * BLOCK) as u64).await.unwrap();
                }
                device.flush().await.unwrap();
            });
            rig.sim.set_plan(&FaultPlan::default());
            rig.run(async |controller, runtime| {
                let hot = controller.store().status().hot_bytes / BLOCK as u64;
                let device = controller.open_volume("v").unwrap();
                let read = device.read(0, GROUP * BLOCK).await.unwrap();
                let written = read.contiguous().chunks(BLOCK).filter(|block| block[0] == 7).count();
                assert_eq!(hot, written as u64, "crash at {crash}");
                let leaves = DeviceId(3);
                controller.store().leave_disk(leaves).await.unwrap();
                for _ in 0..100 {
                    runtime.sleep(Duration::from_secs(1)).await;
                    if controller.store().unwanted()[&leaves].copies == 0 {
                        break;
                    }
                }
                let left = controller.store().unwanted()[&leaves];
                assert_eq!(left.copies, 0, "crash at {crash}: {:?}", controller.store().rebuild_stalled());
                check(controller).await;
            });
            if outcome == Outcome::Done(()) {
                break;
            }
            crash += 1;
        }
    }
}

/// Blocks go to their stripes when the store stops, at any moment of that.
#[test]
fn a_stop_leaves_no_stripe_half_written() {
    for turn in 0..60 {
        let hot = HotSettings { share_permille: 0, track_slots: 4, batch: 2, cold_age: 1, ..HotSettings::TODAY };
        let settings = Settings { raid_width: Some(5), disk_queue: 1, chunk_blocks: 4, hot, ..Settings::default() };
        let rig = Rig::new(5, 8, 64 << 10, Settings { write_buffer_bytes: 64 << 10, ..settings });
        let mut rng = rig.sim.rng("writes");
        let mut expected = vec![0; 320];
        rig.run(async |controller, runtime| {
            // What lies in the extents before is no zeroes.
            let old = create(controller, "old", 1024, Layout::Raid5).await;
            for block in 0..1024 {
                write(&*old, block, 0xee).await.unwrap();
            }
            drop(old);
            controller.store().checkpoint().await.unwrap();
            controller.store().delete("old").await.unwrap();
            controller.store().checkpoint().await.unwrap();
            runtime.sleep(Duration::from_secs(2)).await;
            let device = create(controller, "v", expected.len(), Layout::HotMirror).await;
            let writes = async {
                for number in 0_u32.. {
                    let (block, byte) = (rng.random_range(0..expected.len()), number as u8 | 1);
                    if write(&*device, block, byte).await.is_err() {
                        // The store stops.
                        return;
                    }
                    expected[block] = byte;
                }
            };
            let stop = async {
                runtime.sleep(Duration::from_millis(20) + Duration::from_micros(turn * 137)).await;
                controller.store().stop().await.unwrap();
            };
            futures::future::join(writes, stop).await;
        });
        if turn % 2 == 1 {
            rig.disks[2 + turn as usize / 2 % 5].inject(FaultKind::Dead);
        }
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for (block, byte) in expected.iter().enumerate() {
                assert!(reads(&*device, block, *byte).await, "turn {turn}: block {block}");
            }
            let repaired = check(controller).await;
            assert!(turn % 2 == 1 || repaired == 0, "turn {turn}: {repaired} rows did not agree with their parity");
        });
    }
}

#[test]
fn disks_that_refuse_for_a_moment_stay_in_service() {
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        let rig = Rig::new(4, 8, 64 << 10, Settings { write_buffer_bytes: 256 << 10, ..Settings::default() });
        rig.run(async |controller, _| {
            let device = create(controller, "v", 256, layout).await;
            for turn in 1..6 {
                for disk in &rig.disks {
                    disk.inject(FaultKind::Refuses { lasts: Duration::from_millis(25) });
                }
                for block in 0..256 {
                    write(&*device, block, turn).await.unwrap();
                }
                controller.store().checkpoint().await.unwrap();
                for disk in &rig.disks {
                    disk.inject(FaultKind::Refuses { lasts: Duration::from_millis(25) });
                }
                assert!(reads(&*device, 17, turn).await, "{layout:?}");
            }
            assert_eq!(controller.store().failed_disks(), [], "{layout:?}");
            assert_eq!(check(controller).await, 0, "{layout:?}");
        });
    }
}

/// Zeroes take no room in the write buffer, nor in the journal: a trim of more than they have goes ahead.
#[test]
fn a_trim_that_is_larger_than_the_journal_waits_for_nothing() {
    let rig = Rig::new(2, 80, 16 << 20, Settings::default());
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 4096, Layout::Mirror).await;
        write(&*device, 9, 1).await.unwrap();
        write(&*device, 4095, 1).await.unwrap();
        assert!(done_within(device.discard(0, 4095 << 12), runtime, Duration::from_mins(1)).await);
        assert!(reads(&*device, 9, 0).await && reads(&*device, 4095, 1).await);
    });
}

/// The last blocks of the largest volume that there can be, in its tables of snapshots.
#[test]
fn the_end_of_the_largest_volume_can_be_asked_for() {
    const LAST: usize = (1 << 38) - 1;
    let rig = Rig::new(2, 80, 1 << 20, Settings::default());
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", LAST + 1, Layout::Mirror).await;
        write(&*device, LAST, 1).await.unwrap();
        write(&*device, 5, 1).await.unwrap();
        let wanted = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
        controller.store().snapshot(&[wanted], 0).await.unwrap();
        write(&*device, 5, 2).await.unwrap();
        write(&*device, LAST, 2).await.unwrap();
        runtime.sleep(Duration::from_secs(10)).await;
        let snapshot = controller.open_volume("v@a").unwrap();
        for (device, byte) in [(&device, 2), (&snapshot, 1)] {
            let end = device.read(((LAST - 1) * BLOCK) as u64, 2 * BLOCK).await.unwrap().contiguous().to_vec();
            assert!(end == [[0; BLOCK], [byte; BLOCK]].concat(), "{byte}");
        }
    });
}

/// A flush that a disk refuses may have dropped what it was for, whatever the disk says next.
#[test]
fn a_flush_that_is_refused_is_not_believed_the_next_time() {
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
        let rig = Rig::new(4, 8, 64 << 10, Settings::default());
        rig.run(async |controller, _| {
            let device = create(controller, "v", 64, layout).await;
            for block in 0..64 {
                write(&*device, block, 5).await.unwrap();
            }
            rig.sim.set_plan(&FaultPlan {
                faults: vec![kura_sim::Fault {
                    disk: "slow1".into(),
                    when: kura_sim::When::Op(1),
                    what: FaultKind::FlushError,
                }],
                ..FaultPlan::default()
            });
            controller.store().checkpoint().await.unwrap();
            assert_eq!(controller.store().failed_disks(), [DeviceId(3)], "{layout:?}");
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for block in 0..64 {
                assert!(reads(&*device, block, 5).await, "{layout:?}: block {block}");
            }
            check(controller).await;
        });
    }
}

/// Writes blocks of a volume whose rows float: each is at home before the next one comes, for a single row goes where the head is.
async fn write_afloat(controller: &Controller, runtime: &dyn Runtime, device: &dyn Block, byte: u8) {
    for block in 0..3 {
        write(device, block, byte).await.unwrap();
        while controller.info().dirty_bytes > 0 {
            runtime.sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Rows float, and a disk refuses the flush before their maps are written: the others' are written all the same.
#[test]
fn a_flush_that_is_refused_costs_no_other_disk_its_maps() {
    for refuses in 2..6 {
        let rig = Rig::new(4, 8, 256 << 10, Settings::default());
        rig.run(async |controller, runtime| {
            let device = create(controller, "v", 64, Layout::Floating).await;
            for byte in 1..4 {
                write_afloat(controller, runtime, &*device, byte).await;
                controller.store().checkpoint().await.unwrap();
            }
        });
        rig.run(async |controller, runtime| {
            let device = controller.open_volume("v").unwrap();
            write_afloat(controller, runtime, &*device, 4).await;
            rig.disks[refuses].inject(FaultKind::FlushError);
            controller.store().checkpoint().await.unwrap();
            assert_eq!(controller.store().failed_disks(), [DeviceId(refuses as u16)]);
        });
        rig.run(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            for block in 0..3 {
                assert!(reads(&*device, block, 4).await, "disk {refuses}: block {block}");
            }
            check(controller).await;
        });
    }
}

/// The power goes again and again before the first checkpoint after a start is done, which says of each row that it will be written:
/// the journal does not fill with that, and a start that lasts brings everything home.
#[test]
fn starts_that_come_to_nothing_do_not_fill_the_journal() {
    const BLOCKS: usize = 3072;
    let rig = Rig::new(4, 48, 64 << 10, Settings { raid_width: Some(4), ..Settings::default() });
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", BLOCKS, Layout::Raid5).await;
        device.write(0, Buf::copy_of(&vec![1; BLOCKS * BLOCK]).into(), false).await.unwrap();
        controller.store().checkpoint().await.unwrap();
        for disk in &rig.disks[2..] {
            disk.inject(FaultKind::Slow { times: 4000, lasts: Duration::MAX });
        }
        let writes = try_join_all((0..BLOCKS).step_by(8).map(|at| write(&*device, at, 2)));
        assert!(done_within(writes, runtime, Duration::from_secs(1)).await);
        device.flush().await.unwrap();
    });
    let mut used = Vec::new();
    for _ in 0..16 {
        rig.run(async |controller, runtime| {
            let checkpoint = controller.store().checkpoint();
            assert!(!done_within(checkpoint, runtime, Duration::from_millis(600)).await, "{used:?}");
            used.push(controller.store().status().journal_used_bytes);
        });
    }
    assert!(used[8..].iter().all(|bytes| *bytes == used[8]), "{used:?}");
    rig.run(async |controller, _| {
        controller.store().checkpoint().await.unwrap();
        assert!(controller.store().status().journal_used_bytes < used[8] / 4);
        let device = controller.open_volume("v").unwrap();
        for at in 0..BLOCKS {
            assert!(reads(&*device, at, if at % 8 == 0 { 2 } else { 1 }).await, "block {at}");
        }
        check(controller).await;
    });
}
