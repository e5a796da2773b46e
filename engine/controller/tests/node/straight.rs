//! Large writes to where nothing is, which pass the journal by: the power goes anywhere, and disks refuse.

use kura_block::{Block, Buf, DeviceId, Result, Runtime};
use kura_controller::{Check, Config, Controller, JournalLimits, Layout, PoolSpec, Settings, SnapshotSpec, VolumeSpec};
use kura_sim::{CrashPoint, Discard, DiskSpec, Fault, FaultKind, FaultPlan, Outcome, Sim, SimDisk, When};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

mod over;
mod stripes;

const BLOCK: usize = 4096;
/// Blocks of an extent, and of a region.
const REGION: usize = 16;
const REGIONS: usize = 10;

/// The first block of a region.
const fn at(region: usize) -> usize {
    region * REGION
}

/// A pool of one controller, on disks of one class.
struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    layout: Layout,
    often_bytes: Cell<u64>,
    /// What each block was, from what it is durably on.
    versions: RefCell<Vec<Vec<u8>>>,
}

impl Rig {
    /// Of so many disks, some of them fast.
    fn new(disks: usize, fast: usize, layout: Layout) -> Self {
        let sim = Sim::new(11);
        let spec = || DiskSpec { discard: Discard::Unsupported, ..DiskSpec::nvme(32 << 20) };
        let disks: Vec<_> = (0..disks).map(|at| sim.disk(&format!("disk{at}"), spec())).collect();
        let pool = PoolSpec {
            uuid: [9; 16],
            extent_bytes: (REGION * BLOCK) as u64,
            controllers: 1,
            journal_bytes: 8 << 20,
            floating_percent: 0,
        };
        crate::rig::format(&sim, &disks, fast, &pool);
        Self { sim, disks, layout, often_bytes: Cell::new(0), versions: RefCell::new(vec![vec![0]; REGION * REGIONS]) }
    }

    fn config(&self, degraded: bool) -> Config {
        Config {
            // A stripe has four blocks, too.
            settings: Settings { straight_blocks: 4, chunk_blocks: 2, raid_width: Some(3), ..Settings::default() },
            journal: JournalLimits {
                linger: Duration::from_millis(1),
                batch_bytes: 64 << 10,
                often_bytes: self.often_bytes.get(),
            },
            degraded,
            ..Config::default()
        }
    }

    async fn open(&self, runtime: &Rc<dyn Runtime>) -> Rc<Controller> {
        crate::alone::open(&self.disks, runtime, self.config(false)).await
    }

    /// Opens the controller and does `work`; then the power goes, unless it went before. True when it did not.
    fn run(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime)) -> bool {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let outcome = self.sim.run_until_crash_or(async {
            let controller = self.open(&runtime).await;
            work(&controller, &*runtime).await;
        });
        let ended = outcome == Outcome::Done(());
        if ended {
            self.sim.crash();
        }
        ended
    }

    async fn create(&self, controller: &Controller) -> Rc<dyn Block> {
        let size_bytes = (REGION * REGIONS * BLOCK) as u64;
        let spec = VolumeSpec { name: "v".into(), size_bytes, layout: self.layout, thick: false, read_only: false };
        controller.store().create(spec).await.unwrap();
        controller.store().flush().await.unwrap();
        controller.open_volume("v").unwrap()
    }

    /// Makes blocks this byte; zero gives their space back.
    async fn put(&self, device: &dyn Block, first: usize, count: usize, byte: u8) -> Result<()> {
        for versions in &mut self.versions.borrow_mut()[first..first + count] {
            versions.push(byte);
        }
        let (offset, bytes) = ((first * BLOCK) as u64, count * BLOCK);
        match byte {
            0 => device.discard(offset, bytes as u64).await,
            byte => device.write(offset, Buf::copy_of(&vec![byte; bytes]).into(), false).await,
        }
    }

    /// Makes durable what was put.
    async fn flush(&self, device: &dyn Block) -> Result<()> {
        device.flush().await?;
        for versions in &mut *self.versions.borrow_mut() {
            versions.drain(..versions.len() - 1);
        }
        Ok(())
    }

    /// Everything is what it may be.
    async fn compare(&self, controller: &Controller, what: &str) {
        // A power cut may have come before there was one.
        let Ok(device) = controller.open_volume("v") else { return };
        let all = self.versions.borrow().clone();
        for (block, versions) in all.iter().enumerate() {
            let read = device.read((block * BLOCK) as u64, BLOCK).await;
            let read = read.unwrap_or_else(|error| panic!("{what}: block {block}: {error}")).contiguous();
            let found = versions.iter().any(|byte| read.iter().all(|one| one == byte));
            assert!(found, "{what}: block {block} is {} and was {versions:?}", read[0]);
        }
    }

    /// The blocks of the volume that cannot be read; all others are what they were last.
    async fn lost(&self, controller: &Controller) -> Vec<usize> {
        let device = controller.open_volume("v").unwrap();
        let mut lost = Vec::new();
        for block in 0..at(REGIONS) {
            let Ok(read) = device.read((block * BLOCK) as u64, BLOCK).await.map(|bytes| bytes.contiguous()) else {
                lost.push(block);
                continue;
            };
            let last = *self.versions.borrow()[block].last().unwrap();
            assert!(read.iter().all(|byte| *byte == last), "block {block} is {} and was {last}", read[0]);
        }
        lost
    }

    /// Everything is what it may be, and nothing is wrong with it.
    async fn check(&self, controller: &Controller, what: &str) {
        self.compare(controller, what).await;
        let report = controller.store().check(Check::Repair).await.unwrap();
        assert!(report.violations.is_empty(), "{what}: {:#?}", report.violations);
    }

    /// All that a write to where nothing is may meet.
    async fn work(&self, controller: &Controller, device: &dyn Block) -> Result<()> {
        for region in 0..4 {
            self.put(device, at(region), REGION, 1).await?;
        }
        // Five blocks, and what is beside them.
        self.put(device, at(4) + 3, 5, 1).await?;
        self.put(device, at(4), 3, 2).await?;
        // While it is on its way.
        self.put(device, at(5), REGION, 1).await?;
        self.put(device, at(5) + 2, 6, 2).await?;
        self.put(device, at(6), REGION, 1).await?;
        self.put(device, at(6) + 4, 4, 0).await?;
        self.put(device, at(6) + 4, 4, 2).await?;
        self.flush(device).await?;
        self.put(device, at(0), REGION, 3).await?;
        self.put(device, at(1), REGION, 0).await?;
        self.put(device, at(1), REGION, 3).await?;
        // Given up, not durably yet, and durably.
        self.put(device, at(2), 8, 0).await?;
        self.put(device, at(2), 8, 3).await?;
        self.flush(device).await?;
        self.put(device, at(2) + 4, 8, 0).await?;
        self.flush(device).await?;
        self.put(device, at(2) + 4, 8, 4).await?;
        self.put(device, at(7), REGION, 4).await?;
        let snapshot = [SnapshotSpec { of: "v".into(), name: "v@s".into(), read_only: true }];
        controller.store().snapshot(&snapshot, 1).await?;
        self.put(device, at(3), REGION, 5).await?;
        self.put(device, at(7), REGION, 5).await?;
        self.put(device, at(8), REGION, 5).await?;
        self.flush(device).await?;
        controller.store().delete("v@s").await?;
        controller.store().checkpoint().await?;
        self.put(device, at(8), REGION, 6).await?;
        self.put(device, at(9), REGION, 6).await
    }
}

/// Does `work` on a new pool, with a power cut at each of its operations; how many there are.
fn power_cut_anywhere(layout: Layout, work: impl AsyncFn(&Rig, &Controller, &dyn Runtime)) -> u64 {
    let ended = (1..5_000).find(|crash| {
        let rig = Rig::new(3, 0, layout);
        rig.sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(*crash)], ..FaultPlan::default() });
        let ended = rig.run(async |controller, runtime| work(&rig, controller, runtime).await);
        rig.sim.set_plan(&FaultPlan::default());
        for life in 0..2 {
            rig.run(async |controller, _| rig.check(controller, &format!("{layout:?}: {crash}, {life}")).await);
        }
        if layout != Layout::None {
            // What the others have agrees with what it had.
            rig.run(async |controller, _| {
                rig.disks[(crash % 3) as usize].inject(FaultKind::Dead);
                rig.compare(controller, &format!("{layout:?}: {crash}, a disk died")).await;
            });
        }
        ended
    });
    ended.unwrap_or_else(|| panic!("{layout:?}: it does not end"))
}

/// Does `work` on a volume that `begin` has made, with each fault of a disk at some of the disk's first `ops` operations.
fn whatever_a_disk_does(
    layout: Layout,
    (ops, step): (u64, u64),
    begin: impl AsyncFn(&Rig, &Controller) -> Rc<dyn Block>,
    work: impl AsyncFn(&Rig, &Controller, &dyn Block, &dyn Runtime) -> Result<()>,
) {
    let lasts = Duration::from_millis(20);
    for what in [
        FaultKind::WriteError,
        FaultKind::FlushError,
        FaultKind::Dead,
        FaultKind::LostWrite,
        FaultKind::TornWrite,
        FaultKind::MisdirectedWrite,
        FaultKind::Refuses { lasts },
        FaultKind::Stall { lasts },
    ] {
        for at in (1..ops).step_by(step as usize) {
            let rig = Rig::new(4, 0, layout);
            let disk = format!("disk{}", at / step % 4);
            let fault = Fault { disk, when: When::Op(at), what: what.clone() };
            let case = format!("{layout:?} {fault:?}");
            let acknowledged = Cell::new(false);
            rig.run(async |controller, runtime| {
                let device = begin(&rig, controller).await;
                rig.sim.set_plan(&FaultPlan { faults: vec![fault], ..FaultPlan::default() });
                work(&rig, controller, &*device, runtime).await.unwrap_or_else(|error| panic!("{case}: {error}"));
                rig.flush(&*device).await.unwrap_or_else(|error| panic!("{case}: {error}"));
                acknowledged.set(true);
            });
            assert!(acknowledged.get(), "{case}");
            rig.sim.set_plan(&FaultPlan::default());
            for disk in &rig.disks {
                disk.revive();
            }
            rig.run(async |controller, _| rig.check(controller, &case).await);
        }
    }
}

#[test]
fn a_power_cut_anywhere_loses_nothing_that_was_flushed() {
    for layout in [Layout::None, Layout::Mirror, Layout::Raid5, Layout::HotMirror] {
        let straight = Cell::new(0);
        let ends = power_cut_anywhere(layout, async |rig, controller, _| {
            let device = rig.create(controller).await;
            rig.work(controller, &*device).await.unwrap();
            straight.set(controller.info().straight_bytes as usize / BLOCK);
        });
        assert!(ends > 100, "{layout:?}: it ends after {ends} operations");
        assert!(straight.get() >= 8 * REGION, "{layout:?}: {} blocks went straight", straight.get());
    }
}

#[test]
fn whatever_a_disk_does_nothing_is_lost() {
    let begin = async |rig: &Rig, controller: &Controller| rig.create(controller).await;
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror] {
        whatever_a_disk_does(layout, (90, 2), begin, async |rig, controller, device, _| {
            rig.work(controller, device).await
        });
    }
}

/// What was written without a disk that refused is there when another one dies, or a restart knows that the first is out.
#[test]
fn a_disk_that_refused_is_known_or_has_everything() {
    // The journal's disks are the first two: it hears of a flush that its own disk refuses.
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror] {
        for (what, disks) in [(FaultKind::WriteError, 2), (FaultKind::FlushError, 2), (FaultKind::FlushError, 0)] {
            refused_is_known_or_has_everything(layout, &what, disks);
        }
    }
}

/// `what` strikes one of two disks, from this one on.
fn refused_is_known_or_has_everything(layout: Layout, what: &FaultKind, disks: u64) {
    let mut redundant = 0;
    for at in [2, 5, 9, 14, 20, 27] {
        for crash in (1..600).step_by(7) {
            let rig = Rig::new(4, 0, layout);
            let disk = format!("disk{}", disks + crash % 2);
            let fault = Fault { disk, when: When::Op(at), what: what.clone() };
            rig.sim.set_plan(&FaultPlan { faults: vec![fault], crashes: vec![CrashPoint::Op(crash)] });
            let ended = rig.run(async |controller, _| {
                let device = rig.create(controller).await;
                rig.work(controller, &*device).await.unwrap();
            });
            rig.sim.set_plan(&FaultPlan::default());
            rig.run(async |controller, _| {
                if controller.store().failed_disks().is_empty() {
                    redundant += 1;
                    rig.disks[(crash / 7 % 4) as usize].inject(FaultKind::Dead);
                }
                rig.compare(controller, &format!("{layout:?}, {what} on {disks}: {at}, {crash}")).await;
            });
            if ended {
                break;
            }
        }
    }
    assert!(redundant > 20, "{redundant} cases in which another disk could die");
}

/// A version of a block that was given up is still on its way to the place that it no longer has.
#[test]
fn nothing_goes_straight_where_something_is_on_its_way() {
    let (mut went, mut did_not) = (0, 0);
    for delay in 0..60 {
        let rig = Rig::new(3, 0, Layout::Mirror);
        rig.run(async |controller, runtime| {
            let device = rig.create(controller).await;
            for byte in [1, 2] {
                // No stream.
                rig.put(&*device, REGION / 2, REGION / 2, byte).await.unwrap();
                rig.put(&*device, 0, REGION / 2, byte).await.unwrap();
                rig.flush(&*device).await.unwrap();
            }
            let before = controller.info().straight_bytes;
            let changes = async {
                runtime.sleep(Duration::from_micros(delay * 4)).await;
                // The journal's disks are the other two.
                rig.disks[2].inject(FaultKind::Stall { lasts: Duration::from_millis(2) });
                rig.put(&*device, 4, 8, 0).await.unwrap();
                rig.flush(&*device).await.unwrap();
                rig.put(&*device, 4, 8, 3).await.unwrap();
                rig.flush(&*device).await.unwrap();
            };
            futures::future::join(controller.store().checkpoint(), changes).await.0.unwrap();
            let straight = controller.info().straight_bytes > before;
            (went, did_not) = (went + u32::from(straight), did_not + u32::from(!straight));
            runtime.sleep(Duration::from_secs(1)).await;
            rig.check(controller, &format!("{delay}")).await;
        });
        rig.run(async |controller, _| rig.check(controller, &format!("{delay}: again")).await);
    }
    assert!(went > 0 && did_not > 0, "{went} went straight, {did_not} did not");
}

#[test]
fn what_goes_straight_while_its_extent_moves_is_where_that_moved_to() {
    for (delay, layout) in (0..60).flat_map(|delay| [(delay, Layout::None), (delay, Layout::Raid5)]) {
        let rig = Rig::new(4, 0, layout);
        rig.run(async |controller, runtime| {
            let device = rig.create(controller).await;
            for region in 0..REGIONS {
                rig.put(&*device, region * REGION, 4, 1).await.unwrap();
            }
            controller.store().checkpoint().await.unwrap();
            rig.flush(&*device).await.unwrap();
            let leaving = controller.store().leave_disk(DeviceId(3));
            let writes = async {
                runtime.sleep(Duration::from_micros(delay * 60)).await;
                for region in 0..REGIONS {
                    rig.put(&*device, region * REGION + 4, 12, 2).await.unwrap();
                }
                rig.flush(&*device).await.unwrap();
            };
            futures::future::join(leaving, writes).await.0.unwrap();
            runtime.sleep(Duration::from_secs(2)).await;
            assert_eq!(controller.store().unwanted()[&DeviceId(3)].copies, 0, "{layout:?}, {delay}: it is empty");
            rig.disks[3].inject(FaultKind::Dead);
            rig.check(controller, &format!("{layout:?}, {delay}: moved")).await;
        });
    }
}

#[test]
fn a_full_disk_keeps_nobody_from_making_durable_what_it_does_not_take() {
    // The journal's disks are the first two.
    for layout in [Layout::None, Layout::Raid5] {
        let rig = Rig::new(3, 0, layout);
        rig.run(async |controller, runtime| {
            let device = rig.create(controller).await;
            rig.put(&*device, 0, REGION, 1).await.unwrap();
            rig.flush(&*device).await.unwrap();
            rig.disks[2].inject(FaultKind::Full { lasts: Duration::from_secs(30) });
            for region in 1..REGIONS {
                rig.put(&*device, region * REGION, REGION, 2).await.unwrap();
                let begun = runtime.now();
                rig.flush(&*device).await.unwrap();
                assert!(runtime.now().saturating_sub(begun) < Duration::from_millis(100), "it waited for the disk");
            }
            let straight = controller.info().straight_bytes as usize / BLOCK / REGION;
            assert!((1..REGIONS).contains(&straight), "{straight} regions of {REGIONS} went straight");
            runtime.sleep(Duration::from_mins(1)).await;
            assert_eq!(controller.info().dirty_bytes, 0, "nobody has asked for it");
        });
        rig.run(async |controller, runtime| {
            rig.compare(controller, "full").await;
            runtime.sleep(Duration::from_mins(1)).await;
            controller.store().checkpoint().await.unwrap();
            rig.check(controller, "no longer full").await;
        });
    }
}

#[test]
fn a_disk_that_hangs_keeps_nobody_waiting_who_needs_the_journal_only() {
    // The journal's disks are the first two.
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror] {
        let rig = Rig::new(3, 0, layout);
        rig.run(async |controller, runtime| {
            let device = rig.create(controller).await;
            rig.disks[2].inject(FaultKind::Stall { lasts: Duration::from_secs(20) });
            for region in 0..REGIONS {
                rig.put(&*device, region * REGION, REGION, 1).await.unwrap();
            }
            let begun = runtime.now();
            rig.flush(&*device).await.unwrap();
            assert!(runtime.now().saturating_sub(begun) < Duration::from_secs(2), "it waited for the disk");
            // What comes late changes nothing.
            runtime.sleep(Duration::from_mins(1)).await;
            rig.check(controller, "late").await;
        });
        rig.run(async |controller, _| rig.check(controller, "again").await);
    }
}

#[test]
fn a_disk_that_hangs_is_waited_for_once() {
    let rig = Rig::new(4, 0, Layout::None);
    rig.run(async |controller, runtime| {
        let device = rig.create(controller).await;
        rig.disks[3].inject(FaultKind::Stall { lasts: Duration::from_secs(20) });
        let begun = runtime.now();
        for region in 0..REGIONS {
            rig.put(&*device, region * REGION, REGION, 1).await.unwrap();
            rig.flush(&*device).await.unwrap();
        }
        assert!(runtime.now().saturating_sub(begun) < Duration::from_secs(1), "it waited for the disk again");
        runtime.sleep(Duration::from_secs(30)).await;
        let before = controller.info().straight_bytes;
        rig.put(&*device, 0, REGION * REGIONS, 0).await.unwrap();
        rig.flush(&*device).await.unwrap();
        rig.put(&*device, 0, REGION, 2).await.unwrap();
        rig.flush(&*device).await.unwrap();
        assert!(controller.info().straight_bytes > before, "it answers again");
        rig.check(controller, "late").await;
    });
    rig.run(async |controller, _| rig.check(controller, "again").await);
}

#[test]
fn what_is_written_over_while_a_disk_hangs_comes_to_its_place_unasked() {
    // The journal's disks are the first two.
    for layout in [Layout::Mirror, Layout::Raid5, Layout::HotMirror] {
        let rig = Rig::new(3, 0, layout);
        rig.run(async |controller, runtime| {
            let device = rig.create(controller).await;
            controller.store().checkpoint().await.unwrap();
            runtime.sleep(Duration::from_secs(3)).await;
            rig.disks[2].inject(FaultKind::Stall { lasts: Duration::from_secs(2) });
            for region in 0..REGIONS {
                rig.put(&*device, region * REGION, REGION, 1).await.unwrap();
            }
            rig.flush(&*device).await.unwrap();
            for region in 0..REGIONS {
                rig.put(&*device, region * REGION, 1, 2).await.unwrap();
            }
            rig.flush(&*device).await.unwrap();
            let late = std::pin::pin!(runtime.sleep(Duration::from_mins(1)));
            let checkpoint = std::pin::pin!(controller.store().checkpoint());
            let ended = futures::future::select(checkpoint, late).await;
            assert!(matches!(ended, futures::future::Either::Left((Ok(()), _))), "the checkpoint does not end");
            rig.check(controller, "late").await;
        });
        rig.run(async |controller, _| rig.check(controller, "again").await);
    }
}

#[test]
fn a_faster_journal_takes_all_writes() {
    for (fast, goes) in [(0, true), (2, false)] {
        let rig = Rig::new(4, fast, Layout::Mirror);
        rig.run(async |controller, _| {
            let device = rig.create(controller).await;
            for region in 0..4 {
                rig.put(&*device, region * REGION, REGION, 1).await.unwrap();
            }
            rig.flush(&*device).await.unwrap();
            assert_eq!(controller.info().straight_bytes > 0, goes, "{fast} fast disks");
        });
        rig.run(async |controller, _| rig.check(controller, "again").await);
    }
}

#[test]
fn each_byte_of_a_new_volume_is_written_once() {
    for (layout, disks, least) in
        [(Layout::None, 1, 1.0), (Layout::Mirror, 2, 2.0), (Layout::Raid5, 3, 1.5), (Layout::HotMirror, 4, 1.5)]
    {
        let rig = Rig::new(disks, 0, layout);
        let written = || rig.disks.iter().map(|disk| disk.counters().written_bytes).sum::<u64>();
        rig.run(async |controller, _| {
            let device = rig.create(controller).await;
            // The extents have places, and the hot area its share.
            for region in 0..REGIONS {
                rig.put(&*device, at(region) + REGION - 4, 4, 1).await.unwrap();
            }
            controller.store().checkpoint().await.unwrap();
            let before = written();
            for region in 0..REGIONS {
                rig.put(&*device, at(region), REGION - 4, 2).await.unwrap();
            }
            rig.flush(&*device).await.unwrap();
            let each = (written() - before) as f64 / (REGIONS * (REGION - 4) * BLOCK) as f64;
            assert!((least..least + 0.3).contains(&each), "{layout:?}: {each} bytes for each");
        });
        rig.run(async |controller, _| rig.check(controller, "again").await);
    }
}

#[test]
fn who_flushes_after_little_is_answered_by_the_journal() {
    let rig = Rig::new(2, 0, Layout::Mirror);
    rig.often_bytes.set(1 << 20);
    rig.run(async |controller, _| {
        let device = rig.create(controller).await;
        let straight = || controller.info().straight_bytes as usize / BLOCK;
        rig.put(&*device, 0, REGION, 1).await.unwrap();
        rig.flush(&*device).await.unwrap();
        assert_eq!(straight(), REGION, "nobody could know");
        for region in 1..4 {
            rig.put(&*device, region * REGION, REGION, 1).await.unwrap();
            rig.flush(&*device).await.unwrap();
        }
        assert_eq!(straight(), REGION);
    });
    rig.run(async |controller, _| rig.check(controller, "again").await);
}
