//! The fast tier under volumes with snapshots, holes and rules, on simulated disks: what is asked of the slow disks in the end.

use crate::told::Told;
use kura_block::{Block, Buf, ControllerId, Runtime};
use kura_controller::{Check, Config, Controller, JournalLimits, Layout, PoolSpec, Settings, SnapshotSpec, VolumeSpec};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Sim, SimDisk};
use kura_tier::{Pace, Settings as Policies, Tier, WorthSettings};
use kura_volume::{Pin, TierRules, TierSetup};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const EXTENT: u64 = 64 << 10;

/// A pool of one controller, with two fast disks and four slow ones.
struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    /// Requests that a slow disk is given at once; 0 is all.
    disk_queue: usize,
}

impl Rig {
    /// `fast_mib`: of each of the fast disks, beside the journal.
    fn new(fast_mib: u64) -> Self {
        Self::queued(fast_mib, 0)
    }

    fn queued(fast_mib: u64, disk_queue: usize) -> Self {
        let sim = Sim::new(3);
        let fast = ["fast0", "fast1"].map(|name| sim.disk(name, DiskSpec::nvme((14 + fast_mib) << 20)));
        let spec = || DiskSpec { rotational: disk_queue > 0, ..DiskSpec::constant(64 << 20, Duration::from_millis(4)) };
        let slow = ["slow0", "slow1", "slow2", "slow3"].map(|name| sim.disk(name, spec()));
        let disks: Vec<_> = fast.into_iter().chain(slow).collect();
        let pool = PoolSpec { uuid: [9; 16], extent_bytes: EXTENT, controllers: 1, journal_bytes: 5 << 20 };
        crate::rig::format(&sim, &disks, 2, &pool);
        Self { sim, disks, disk_queue }
    }

    fn run(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime)) {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        self.sim.block_on(async {
            let paths: Vec<String> = self.disks.iter().map(|disk| disk.name().to_owned()).collect();
            let config = Config {
                settings: Settings {
                    write_buffer_bytes: 1 << 20,
                    pages: 4096,
                    disk_queue: self.disk_queue,
                    ..Settings::default()
                },
                journal: JournalLimits {
                    linger: Duration::from_millis(1),
                    batch_bytes: 64 << 10,
                    ..JournalLimits::default()
                },
                ..Config::default()
            };
            let shared = Arc::new(InProcess::new());
            let opener = Box::new(SimDisk::opener(&self.disks));
            let found = Controller::recover(ControllerId(0), &paths, opener, Rc::clone(&runtime), shared, config).await;
            let controller = found.unwrap().begin().await.unwrap();
            controller.store().begin_upkeep();
            work(&controller, &*runtime).await;
            let report = controller.store().check(Check::Verify).await.unwrap();
            assert!(report.violations.is_empty(), "{:#?}", report.violations);
        });
    }

    /// Reads that the slow disks have served.
    fn slow_reads(&self) -> u64 {
        self.disks[2..].iter().map(|disk| disk.counters().reads).sum()
    }
}

/// The default policy decides from here on.
fn tier_by_worth(controller: &Controller) {
    let policy = Policies::Worth(WorthSettings { region_bytes: EXTENT, ..WorthSettings::default() });
    let interval = Duration::from_nanos(policy.interval_ns());
    let (policy, region_bytes) = (policy.policy().unwrap(), policy.region_bytes());
    controller.store().set_tier(Some(TierSetup { policy, region_bytes, interval, single_disk: None })).unwrap();
}

async fn create(controller: &Controller, name: &str, mib: u64) -> Rc<dyn Block> {
    let spec =
        VolumeSpec { name: name.into(), size_bytes: mib << 20, layout: Layout::Mirror, thick: false, read_only: false };
    controller.store().create(spec).await.unwrap();
    controller.open_volume(name).unwrap()
}

async fn write(device: &dyn Block, blocks: std::ops::Range<usize>, byte: u8) {
    for block in blocks {
        device.write((block * BLOCK) as u64, Buf::copy_of(&[byte; BLOCK]).into(), false).await.unwrap();
    }
}

async fn read(device: &dyn Block, blocks: std::ops::Range<usize>, byte: u8) {
    for block in blocks {
        let found = device.read((block * BLOCK) as u64, BLOCK).await.unwrap().contiguous();
        assert!(found.iter().all(|one| *one == byte), "block {block}: {} instead of {byte}", found[0]);
    }
}

/// What was overwritten beside a snapshot lies elsewhere than the volume's other blocks: there it is counted, and comes up from.
#[test]
fn what_is_used_of_a_volume_with_a_snapshot_comes_up() {
    let rig = Rig::new(24);
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 4).await;
        write(&*device, 0..1024, 1).await;
        let snapshot = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
        controller.store().snapshot(&[snapshot], 1).await.unwrap();
        write(&*device, 0..256, 2).await;
        controller.store().checkpoint().await.unwrap();
        tier_by_worth(controller);
        for _ in 0..30 {
            read(&*device, 0..256, 2).await;
            runtime.sleep(Duration::from_secs(1)).await;
        }
        let before = rig.slow_reads();
        read(&*device, 0..256, 2).await;
        assert_eq!(rig.slow_reads(), before, "they are up");
        // So do the versions that only the snapshot sees, once they are asked for.
        let snapshot = controller.open_volume("v@a").unwrap();
        for _ in 0..30 {
            read(&*snapshot, 0..256, 1).await;
            runtime.sleep(Duration::from_secs(1)).await;
        }
        let before = rig.slow_reads();
        read(&*snapshot, 0..256, 1).await;
        assert_eq!(rig.slow_reads(), before, "until they were");
    });
}

/// What was written in the fast tier is written home as fast as the policy says, and what was not is dropped at once.
#[test]
fn moves_down_keep_to_the_pace() {
    let rig = Rig::new(24);
    let told = Told::new(Tier::Fast, Pace { bytes_per_s: u64::MAX, depth: 4 });
    rig.run(async |controller, runtime| {
        told.decide_for(controller, EXTENT);
        let device = create(controller, "v", 8).await;
        write(&*device, 0..2048, 1).await;
        controller.store().checkpoint().await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        write(&*device, 0..1024, 2).await;
        controller.store().checkpoint().await.unwrap();
        let up = || (controller.store().tier().valid_bytes >> 20, controller.store().tier().stale_bytes >> 20);
        assert_eq!(up(), (8, 4));
        // None begins; a moment for what was on its way.
        told.0.set((Tier::Slow, Pace { bytes_per_s: 0, depth: 4 }));
        runtime.sleep(Duration::from_secs(10)).await;
        assert_eq!(up().1, 4, "at no pace nothing is written home");
        let (begun, written) =
            (runtime.now(), || rig.disks[2..].iter().map(|disk| disk.counters().written_bytes).sum::<u64>());
        let before = written();
        told.0.set((Tier::Slow, Pace { bytes_per_s: 1 << 20, depth: 4 }));
        while controller.store().tier().valid_bytes > 0 {
            runtime.sleep(Duration::from_millis(100)).await;
            let (took, moved) = (runtime.now().saturating_sub(begun), (written() - before) / 2);
            // Copies at once are as many as the depth; and pages are written besides.
            let most = (took.as_secs_f64() * f64::from(1 << 20)) as u64 + 6 * EXTENT + (1 << 20);
            assert!(moved <= most, "{moved} bytes in {took:?}");
        }
        let took = runtime.now().saturating_sub(begun);
        assert!((3..8).contains(&took.as_secs()), "{took:?} for 4 MiB");
        read(&*device, 0..1024, 2).await;
        read(&*device, 1024..2048, 1).await;
    });
}

/// On disks that are asked for one thing after the other, what comes up waits for what clients ask for.
#[test]
fn clients_go_before_moves() {
    let rig = Rig::queued(64, 1);
    let told = Told::new(Tier::Slow, Pace { bytes_per_s: u64::MAX, depth: 32 });
    rig.run(async |controller, runtime| {
        told.decide_for(controller, EXTENT);
        let (device, other) = (create(controller, "v", 4).await, create(controller, "other", 40).await);
        write(&*device, 0..1024, 1).await;
        write(&*other, 0..10_240, 2).await;
        controller.store().checkpoint().await.unwrap();
        let rules = TierRules { pin: Pin::Slow, ..TierRules::default() };
        controller.store().set_tier_rules("v", rules).await.unwrap();
        told.0.set((Tier::Fast, Pace { bytes_per_s: u64::MAX, depth: 32 }));
        runtime.sleep(Duration::from_millis(150)).await;
        let begun = runtime.now();
        for at in 0..30 {
            read(&*device, at * 31..at * 31 + 1, 1).await;
        }
        let each = runtime.now().saturating_sub(begun) / 30;
        let tier = controller.store().tier();
        assert!(tier.valid_bytes > 0 && tier.waiting > 0, "it comes up meanwhile: {tier:?}");
        // One that is under way is waited for, and none besides.
        assert!(each <= Duration::from_millis(9), "{each:?} for a read of 4 ms");
    });
}

/// A pinned volume is up with all it holds: where its snapshots made it lie, and on a tier that others filled.
#[test]
fn a_pinned_volume_is_up_with_all_it_holds() {
    let rig = Rig::new(8);
    rig.run(async |controller, runtime| {
        tier_by_worth(controller);
        let (other, device) = (create(controller, "other", 16).await, create(controller, "v", 1024).await);
        write(&*other, 0..4096, 7).await;
        let mut passes = 0;
        while controller.store().tier().space.free > 0 {
            passes += 1;
            assert!(passes < 10, "{:?}: others fill it", controller.store().tier().space);
            read(&*other, 0..4096, 7).await;
            runtime.sleep(Duration::from_secs(1)).await;
        }
        // Thin: all that it holds is at its end.
        let end = (1024 << 20) / BLOCK;
        write(&*device, end - 256..end, 1).await;
        let snapshot = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
        controller.store().snapshot(&[snapshot], 1).await.unwrap();
        write(&*device, end - 128..end, 2).await;
        controller.store().checkpoint().await.unwrap();
        controller.store().set_tier_rules("v", TierRules { pin: Pin::Fast, ..TierRules::default() }).await.unwrap();
        for _ in 0..30 {
            read(&*other, 0..512, 7).await;
            runtime.sleep(Duration::from_secs(1)).await;
        }
        let before = rig.slow_reads();
        read(&*device, end - 256..end - 128, 1).await;
        read(&*device, end - 128..end, 2).await;
        assert_eq!(rig.slow_reads(), before, "it is up");
        let whys: Vec<_> =
            controller.store().tier_moves(0).iter().map(|(.., done)| done.decided.reason.to_string()).collect();
        assert!(whys.iter().any(|why| why.contains("takes its place")), "{whys:?}");
        // Others have what is left.
        let before = rig.slow_reads();
        read(&*other, 0..128, 7).await;
        assert_eq!(rig.slow_reads(), before, "the best of the others");
    });
}
