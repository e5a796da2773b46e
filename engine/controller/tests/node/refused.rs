//! Disks that refuse to read and answer later, beside one that fails or leaves.
//!
//! What must hold, for every seed and layout, wherever the refusals fall: when the disks answer again nothing acknowledged is
//! lost, redundancy included; and what a disk refuses for good is lost exactly, reads as an error, and keeps no disk.

use kura_array::Shelf;
use kura_block::{Block, Buf, Bufs, ControllerId, DeviceId, ExtentId, Kind, Result, Runtime};
use kura_controller::{Check, Config, Controller, HotSettings, JournalLimits, Layout, PoolSpec, Settings, VolumeSpec};
use kura_shared::InProcess;
use kura_sim::{CrashPoint, DiskSpec, Fault, FaultKind, FaultPlan, Outcome, Place, Sim, SimDisk, When};
use rand::{Rng, RngExt};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const BLOCKS: usize = 192;
const EXTENT: u64 = 64 << 10;
const LAYOUTS: [Layout; 4] = [Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating];
/// Disks that hold data: their numbers in the pool.
const SLOW: std::ops::Range<u16> = 2..8;

/// The seeds to try: `KURA_SEEDS` says how many.
#[allow(clippy::disallowed_methods, reason = "how many seeds is for who runs the test to say")]
fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let first: u64 = number("KURA_SEED").unwrap_or(0);
    first..first + (number("KURA_SEEDS").unwrap_or(300_u64) / 10).max(1)
}

/// What a block was last acknowledged as, durably, and what may have come after.
type Content = (Vec<u8>, Vec<Vec<u8>>);

/// A pool of one controller: its journal on two fast disks, its volumes on six slow ones.
struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    rng: RefCell<ChaCha8Rng>,
    settings: Settings,
    blocks: RefCell<Vec<Content>>,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let sim = Sim::new(seed);
        let spec = |mib: u64| DiskSpec { jitter: 0.5, rotational: seed.is_multiple_of(2), ..DiskSpec::nvme(mib << 20) };
        let slow = SLOW.map(|id| sim.disk(&format!("slow{id}"), spec(16)));
        let disks: Vec<_> = ["fast0", "fast1"].map(|name| sim.disk(name, spec(20))).into_iter().chain(slow).collect();
        let pool = PoolSpec {
            uuid: [9; 16],
            extent_bytes: EXTENT,
            controllers: 1,
            journal_bytes: 5 << 20,
            floating_percent: 12,
        };
        crate::rig::format(&sim, &disks, 2, &pool);
        let settings = Settings {
            write_buffer_bytes: 256 << 10,
            // Pages come and go.
            pages: 8,
            disk_queue: seed as usize % 3,
            chunk_blocks: 1 << (seed % 4),
            // Two disks may go, and all stripes still have a place.
            raid_width: Some(3 + (seed / 3 % 2) as u8),
            hot: HotSettings { share_permille: 0, track_slots: 4, batch: 2, cold_age: 1, ..HotSettings::TODAY },
            ..Settings::default()
        };
        let rng = RefCell::new(sim.rng("work"));
        Self { sim, disks, rng, settings, blocks: RefCell::new(vec![(vec![0; BLOCK], Vec::new()); BLOCKS]) }
    }

    async fn open(&self, runtime: &Rc<dyn Runtime>) -> Result<Rc<Controller>> {
        let paths: Vec<String> = self.disks.iter().map(|disk| disk.name().to_owned()).collect();
        let config = Config {
            settings: self.settings,
            journal: JournalLimits {
                linger: Duration::from_millis(1),
                batch_bytes: 64 << 10,
                ..JournalLimits::default()
            },
            ..Config::default()
        };
        let opener = Box::new(SimDisk::opener(&self.disks));
        let shared = Arc::new(InProcess::new());
        let found = Controller::recover(ControllerId(0), &paths, opener, Rc::clone(runtime), shared, config).await?;
        let controller = found.begin().await?;
        controller.store().begin_upkeep();
        Ok(controller)
    }

    /// Opens the controller and does `work`; then the power goes, unless it went before.
    fn run<T>(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime) -> T) -> Outcome<Result<T>> {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let outcome = self.sim.run_until_crash_or(async {
            let controller = self.open(&runtime).await?;
            Ok(work(&controller, &*runtime).await)
        });
        if !matches!(outcome, Outcome::Crashed) {
            self.sim.crash();
        }
        outcome
    }

    /// As [`Rig::run`], where nothing may keep the controller from opening, nor end the work.
    fn work<T>(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime) -> T) -> T {
        match self.run(work) {
            Outcome::Done(done) => done.unwrap_or_else(|error| panic!("seed {}: {error}", self.sim.seed())),
            Outcome::Crashed => panic!("nobody cut the power"),
        }
    }

    async fn create(&self, controller: &Controller, layout: Layout) -> Rc<dyn Block> {
        let size_bytes = (BLOCKS * BLOCK) as u64;
        let spec = VolumeSpec { name: "v".into(), size_bytes, layout, thick: false, read_only: false };
        controller.store().create(spec).await.unwrap();
        controller.open_volume("v").unwrap()
    }

    /// Writes runs of blocks all over the volume, durably; what a refusal keeps from being written is what it was, or is it.
    async fn write(&self, device: &dyn Block, runs: usize) {
        for _ in 0..runs {
            let first = self.rng.borrow_mut().random_range(0..BLOCKS);
            let count = self.rng.borrow_mut().random_range(1..=(BLOCKS - first).min(24));
            let mut data = vec![0; count * BLOCK];
            self.rng.borrow_mut().fill_bytes(&mut data);
            let each = || data.chunks(BLOCK).zip(first..);
            each().for_each(|(bytes, block)| self.blocks.borrow_mut()[block].1.push(bytes.to_vec()));
            let written = device.write((first * BLOCK) as u64, Bufs::from(Buf::copy_of(&data)), true).await;
            if written.is_ok() {
                each().for_each(|(bytes, block)| self.blocks.borrow_mut()[block] = (bytes.to_vec(), Vec::new()));
            }
        }
    }

    /// Holds every block against what it must be, but those listed, which must be errors.
    async fn compare(&self, device: &dyn Block, lost: &[usize]) {
        let mut blocks = self.blocks.take();
        for (block, (durable, later)) in blocks.iter_mut().enumerate() {
            let read = device.read((block * BLOCK) as u64, BLOCK).await;
            let at = format!("seed {} block {block}", self.sim.seed());
            if lost.contains(&block) {
                assert!(read.is_err(), "{at}: it is lost, and reads");
                continue;
            }
            let read = read.unwrap_or_else(|error| panic!("{at}: {error}")).contiguous().to_vec();
            assert!(read == *durable || later.contains(&read), "{at}: it is not what it was");
            (*durable, *later) = (read, Vec::new());
        }
        self.blocks.replace(blocks);
    }

    /// Some of the disks that hold data refuse reads, each for a while, when they have read a few times.
    fn plan_refusals(&self, within_ops: u64, but: Option<DeviceId>) -> FaultPlan {
        let mut rng = self.rng.borrow_mut();
        let mut faults = Vec::new();
        for _ in 0..rng.random_range(1..8) {
            let disk = rng.random_range(SLOW);
            if Some(DeviceId(disk)) == but {
                continue;
            }
            let lasts = [Duration::ZERO, Duration::from_millis(5), Duration::from_secs(rng.random_range(1..40))];
            let what = FaultKind::ReadsFail { lasts: lasts[rng.random_range(0..3)] };
            // Not the labels: a disk without one is away.
            let when = When::Op(rng.random_range(4..=within_ops));
            faults.push(Fault { disk: self.disks[usize::from(disk)].name().into(), when, what });
        }
        FaultPlan { faults, ..FaultPlan::default() }
    }

    fn all_answer(&self) {
        self.sim.set_plan(&FaultPlan::default());
        self.disks.iter().for_each(SimDisk::revive);
    }
}

/// Waits until nothing lies on disks that are failed or leaving.
async fn rebuilt(controller: &Controller, runtime: &dyn Runtime, seed: u64) {
    let store = controller.store();
    for _ in 0..10_000 {
        if store.unwanted().values().all(|held| held.copies == 0) {
            return;
        }
        runtime.sleep(Duration::from_millis(100)).await;
    }
    panic!("seed {seed}: no rebuild: {:?} {:?}", store.unwanted(), store.rebuild_stalled());
}

async fn violations(controller: &Controller, check: Check) -> Vec<String> {
    controller.store().check(check).await.unwrap().violations
}

/// A disk fails or leaves, and its content moves while others refuse reads; then another one fails, and is told.
#[test]
fn a_rebuild_loses_nothing_to_disks_that_refuse_for_a_while() {
    for (seed, layout) in seeds().flat_map(|seed| LAYOUTS.map(|layout| (seed, layout))) {
        println!("seed {seed}, {layout:?}");
        let rig = Rig::new(seed);
        rig.work(async |controller, runtime| {
            let device = rig.create(controller, layout).await;
            rig.write(&*device, 40).await;
            controller.store().checkpoint().await.unwrap();
            let gone = DeviceId(rig.rng.borrow_mut().random_range(SLOW));
            let fails = seed.is_multiple_of(2);
            let plan = rig.plan_refusals(60, fails.then_some(gone));
            rig.sim.set_plan(&plan);
            if fails {
                controller.store().fail_disk(gone).await.unwrap();
            } else {
                controller.store().leave_disk(gone).await.unwrap();
            }
            if seed % 3 == 0 {
                rig.write(&*device, 10).await;
            }
            rebuilt(controller, runtime, seed).await;
            rig.all_answer();
            rig.compare(&*device, &[]).await;
            // What its rows come to, too.
            let next =
                SLOW.into_iter().find(|disk| DeviceId(*disk) != gone && (u64::from(*disk) + seed) % 3 == 0).unwrap();
            controller.store().checkpoint().await.unwrap();
            controller.store().fail_disk(DeviceId(next)).await.unwrap();
            rig.compare(&*device, &[]).await;
            rebuilt(controller, runtime, seed).await;
            assert_eq!(violations(controller, Check::Repair).await, [""; 0], "seed {seed}");
        });
    }
}

/// With a disk out of service, the others refuse reads: while blocks are written and migrate, while the power goes, and while
/// the log is replayed.
#[test]
fn a_crash_loses_nothing_to_disks_that_refuse_for_a_while() {
    for (seed, layout) in seeds().flat_map(|seed| LAYOUTS.map(|layout| (seed, layout))) {
        println!("seed {seed}, {layout:?}");
        let rig = Rig::new(seed);
        rig.work(async |controller, _| {
            let device = rig.create(controller, layout).await;
            rig.write(&*device, 30).await;
            let gone = DeviceId(rig.rng.borrow_mut().random_range(SLOW));
            controller.store().fail_disk(gone).await.unwrap();
        });
        for _ in 0..3 {
            // Who cannot read its label at a start is away.
            rig.all_answer();
            let mut plan = rig.plan_refusals(120, None);
            plan.crashes.push(CrashPoint::Op(rig.rng.borrow_mut().random_range(1..600)));
            rig.sim.set_plan(&plan);
            rig.run(async |controller, _| {
                let device = controller.open_volume("v").unwrap();
                rig.write(&*device, 40).await;
            });
        }
        rig.all_answer();
        rig.work(async |controller, runtime| {
            let device = controller.open_volume("v").unwrap();
            rig.compare(&*device, &[]).await;
            rebuilt(controller, runtime, seed).await;
            let failed = controller.store().failed_disks();
            assert_eq!(failed.len(), 1, "seed {seed}: a disk that refuses stays in service");
            let next = SLOW.into_iter().find(|disk| !failed.contains(&DeviceId(*disk))).unwrap();
            controller.store().checkpoint().await.unwrap();
            controller.store().fail_disk(DeviceId(next)).await.unwrap();
            rig.compare(&*device, &[]).await;
            rebuilt(controller, runtime, seed).await;
            assert_eq!(violations(controller, Check::Repair).await, [""; 0], "seed {seed}");
        });
    }
}

/// Some blocks of a disk are never read again, and another disk fails: what both had is lost, exactly that is told, and the
/// failed disk is rid of all the rest.
#[test]
fn what_is_refused_for_good_is_lost_exactly() {
    for (seed, layout) in seeds().flat_map(|seed| [(seed, Layout::Mirror), (seed, Layout::Raid5)]) {
        println!("seed {seed}, {layout:?}");
        let rig = Rig::new(seed);
        rig.work(async |controller, runtime| {
            let device = rig.create(controller, layout).await;
            rig.write(&*device, 40).await;
            controller.store().checkpoint().await.unwrap();
            let (bad, gone) = (SLOW.start + (seed % 6) as u16, DeviceId(SLOW.start + ((seed + 1) % 6) as u16));
            let plan = controller.store().array().members()[usize::from(bad)].plan;
            for extent in 0..16 {
                let block = rig.rng.borrow_mut().random_range(0..EXTENT / BLOCK as u64 - 1);
                let at = plan.extent_at(ExtentId(extent)) + block * BLOCK as u64;
                let what = FaultKind::ReadError(Place::Range(at..at + 2 * BLOCK as u64));
                rig.disks[usize::from(bad)].inject(what);
            }
            controller.store().fail_disk(gone).await.unwrap();
            // Nothing is lost yet, but this cannot be read.
            let mut lost = Vec::new();
            for block in 0..BLOCKS {
                if let Err(error) = device.read((block * BLOCK) as u64, BLOCK).await {
                    assert_eq!(error.kind(), Kind::Device, "seed {seed} block {block}: {error}");
                    lost.push(block);
                }
            }
            runtime.sleep(Duration::from_secs(20)).await;
            if !lost.is_empty() {
                assert!(controller.store().unwanted()[&gone].copies > 0, "seed {seed}: it waits");
                let why = controller.store().rebuild_stalled().unwrap().to_string();
                assert!(why.contains("refuses to read"), "seed {seed}: {why}");
            }
            rebuilt(controller, runtime, seed).await;
            assert!(controller.store().rebuild_stalled().is_none());
            rig.compare(&*device, &lost).await;
            let listed: BTreeSet<usize> =
                violations(controller, Check::Verify).await.iter().flat_map(blocks_of).collect();
            assert_eq!(listed, lost.iter().copied().collect(), "seed {seed}");
            // The next disk to fail takes nothing along, not of the rows that have lost something either.
            violations(controller, Check::Repair).await;
            controller.store().checkpoint().await.unwrap();
            let next = DeviceId(SLOW.start + ((seed + 2) % 6) as u16);
            controller.store().fail_disk(next).await.unwrap();
            rig.compare(&*device, &lost).await;
            rebuilt(controller, runtime, seed).await;
            rig.compare(&*device, &lost).await;
            // What is written again is there again.
            for block in &lost {
                device.write((block * BLOCK) as u64, Buf::copy_of(&[7; BLOCK]).into(), true).await.unwrap();
                rig.blocks.borrow_mut()[*block] = (vec![7; BLOCK], Vec::new());
            }
            controller.store().checkpoint().await.unwrap();
            rig.compare(&*device, &[]).await;
            violations(controller, Check::Repair).await;
            assert_eq!(violations(controller, Check::Verify).await, [""; 0], "seed {seed}");
        });
    }
}

/// The blocks that a violation names: one, or from one to another.
fn blocks_of(violation: &String) -> RangeInclusive<usize> {
    let named = violation.split_once("block").and_then(|(_, rest)| rest.split_once(':')).map(|(named, _)| named);
    let numbers = named.into_iter().flat_map(|named| named.split(' ')).filter_map(|word| word.parse().ok());
    let numbers: Vec<_> = numbers.collect();
    numbers.first().zip(numbers.last()).map_or_else(|| panic!("{violation}"), |(first, last)| *first..=*last)
}

/// Disks refuse what a stripe needs until the journal is full. When they answer again it is emptied: why the last checkpoint failed
/// is no reason for the next one to fail before it has begun.
#[test]
fn a_journal_that_filled_up_is_emptied_when_the_disks_answer_again() {
    let mut rig = Rig::new(1);
    (rig.settings.write_buffer_bytes, rig.settings.pages) = (24 << 20, 64);
    rig.work(async |controller, runtime| {
        let device = rig.create(controller, Layout::Raid5).await;
        rig.write(&*device, 40).await;
        controller.store().checkpoint().await.unwrap();
        for disk in SLOW {
            rig.disks[usize::from(disk)].inject(FaultKind::ReadsFail { lasts: Duration::MAX });
        }
        controller.store().fail_disk(DeviceId(SLOW.start)).await.unwrap();
        let one =
            |block: usize, byte: u8| device.write((block * BLOCK) as u64, Buf::copy_of(&[byte; BLOCK]).into(), true);
        let full = async || {
            for turn in 0..200_u8 {
                // One column of each stripe: its row needs what the others have.
                for block in (0..BLOCKS).step_by(4) {
                    rig.blocks.borrow_mut()[block].1.push(vec![turn; BLOCK]);
                    if one(block, turn).await.is_err() {
                        return true;
                    }
                    rig.blocks.borrow_mut()[block] = (vec![turn; BLOCK], Vec::new());
                }
            }
            false
        };
        assert!(full().await, "the journal has room for everything");
        runtime.sleep(Duration::from_secs(5)).await;
        rig.all_answer();
        runtime.sleep(Duration::from_secs(5)).await;
        one(1, 1).await.unwrap();
        rig.blocks.borrow_mut()[1] = (vec![1; BLOCK], Vec::new());
        controller.store().checkpoint().await.unwrap();
        rebuilt(controller, runtime, 1).await;
        rig.compare(&*device, &[]).await;
    });
}

/// The newest of an extent's pages is refused, and the one before it is not taken for it: nothing reads as it was once.
#[test]
fn an_older_page_is_not_taken_for_one_that_is_refused() {
    for turn in 0..2 {
        let rig = Rig::new(turn);
        rig.work(async |controller, _| {
            let device = rig.create(controller, Layout::None).await;
            for byte in 1..3 {
                device.write(u64::from(byte) * BLOCK as u64, Buf::copy_of(&[byte; BLOCK]).into(), true).await.unwrap();
                controller.store().checkpoint().await.unwrap();
            }
        });
        rig.work(async |controller, runtime| {
            for disk in SLOW {
                let plan = controller.store().array().members()[usize::from(disk)].plan;
                for extent in 0..plan.extents {
                    let at = plan.page_at(ExtentId(extent), Shelf::Own, turn);
                    rig.disks[usize::from(disk)].inject(FaultKind::ReadError(Place::Range(at..at + plan.page_bytes())));
                }
            }
            let device = controller.open_volume("v").unwrap();
            for _ in 0..30 {
                for block in 1..3 {
                    let read = device.read(block * BLOCK as u64, BLOCK).await;
                    assert!(read.is_err(), "block {block} reads as {}", read.unwrap().contiguous()[0]);
                }
                runtime.sleep(Duration::from_secs(5)).await;
            }
            // The page is given up: what was there is lost, and what is written is there.
            device.write(BLOCK as u64, Buf::copy_of(&[3; BLOCK]).into(), true).await.unwrap();
            controller.store().checkpoint().await.unwrap();
        });
        rig.work(async |controller, _| {
            let device = controller.open_volume("v").unwrap();
            assert_eq!(*device.read(BLOCK as u64, BLOCK).await.unwrap().contiguous(), [3; BLOCK]);
            assert!(device.read(2 * BLOCK as u64, BLOCK).await.is_err());
        });
    }
}
