//! The fast tier under volumes with snapshots, holes and rules, on simulated disks: what is asked of the slow disks in the end.

use crate::told::Told;
use kura_block::{Block, Buf, DeviceId, Runtime};
use kura_controller::{
    Check, Config, Controller, JournalLimits, Layout, PoolSpec, Settings, SnapshotSpec, TierMove, VolumeSpec,
};
use kura_sim::{DiskSpec, FaultKind, Place, Sim, SimDisk};
use kura_tier::{Pace, Reason, Settings as Policies, Tier, WorthSettings};
use kura_volume::{Pin, TierChange, TierSetup};
use std::rc::Rc;
use std::time::Duration;

const BLOCK: usize = 4096;
pub(crate) const EXTENT: u64 = 64 << 10;

/// A pool of one controller, with two fast disks and four slow ones.
pub(crate) struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    settings: Settings,
}

impl Rig {
    /// `fast_mib`: of each of the fast disks, beside the journal.
    pub(crate) fn new(fast_mib: u64) -> Self {
        Self::queued(fast_mib, 0)
    }

    /// `disk_queue`: requests that a slow disk is given at once; 0 is all.
    fn queued(fast_mib: u64, disk_queue: usize) -> Self {
        Self::of(EXTENT, fast_mib, disk_queue)
    }

    fn of(extent_bytes: u64, fast_mib: u64, disk_queue: usize) -> Self {
        let sim = Sim::new(3);
        let fast = ["fast0", "fast1"].map(|name| sim.disk(name, DiskSpec::nvme((14 + fast_mib) << 20)));
        let spec = || DiskSpec { rotational: disk_queue > 0, ..DiskSpec::constant(64 << 20, Duration::from_millis(4)) };
        let slow = ["slow0", "slow1", "slow2", "slow3"].map(|name| sim.disk(name, spec()));
        let disks: Vec<_> = fast.into_iter().chain(slow).collect();
        let pool =
            PoolSpec { uuid: [9; 16], extent_bytes, controllers: 1, journal_bytes: 5 << 20, floating_percent: 0 };
        crate::rig::format(&sim, &disks, 2, &pool);
        let settings = Settings { write_buffer_bytes: 1 << 20, pages: 4096, disk_queue, ..Settings::default() };
        Self { sim, disks, settings }
    }

    pub(crate) fn run(&self, work: impl AsyncFnOnce(&Controller, &dyn Runtime)) {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        self.sim.block_on(async {
            let config = Config {
                settings: self.settings,
                journal: JournalLimits {
                    linger: Duration::from_millis(1),
                    batch_bytes: 64 << 10,
                    ..JournalLimits::default()
                },
                ..Config::default()
            };
            let controller = crate::alone::open(&self.disks, &runtime, config).await;
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
pub(crate) fn tier_by_worth(controller: &Controller) {
    let policy = Policies::Worth(WorthSettings { region_bytes: EXTENT, ..WorthSettings::default() });
    let interval = Duration::from_nanos(policy.interval_ns());
    let (policy, region_bytes) = (policy.policy().unwrap(), policy.region_bytes());
    controller.store().set_tier(Some(TierSetup { policy, region_bytes, interval, single_disk: None })).unwrap();
}

pub(crate) async fn create(controller: &Controller, name: &str, mib: u64) -> Rc<dyn Block> {
    create_of(controller, name, mib, Layout::Mirror).await
}

pub(crate) async fn create_of(controller: &Controller, name: &str, mib: u64, layout: Layout) -> Rc<dyn Block> {
    let spec = VolumeSpec { name: name.into(), size_bytes: mib << 20, layout, thick: false, read_only: false };
    controller.store().create(spec).await.unwrap();
    controller.open_volume(name).unwrap()
}

pub(crate) async fn write(device: &dyn Block, blocks: std::ops::Range<usize>, byte: u8) {
    for block in blocks {
        device.write((block * BLOCK) as u64, Buf::copy_of(&[byte; BLOCK]).into(), false).await.unwrap();
    }
}

pub(crate) async fn read(device: &dyn Block, blocks: std::ops::Range<usize>, byte: u8) {
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

/// A block that only the fast tier has is not read there any more: it is lost in the end, which a read says, and what else is there comes
/// home although a disk of it failed.
#[test]
fn a_block_that_is_lost_in_the_fast_tier_keeps_no_disk_from_being_emptied() {
    for layout in [Layout::Mirror, Layout::Raid5] {
        let rig = Rig::new(24);
        rig.run(async |controller, runtime| {
            tier_by_worth(controller);
            let device = create_of(controller, "v", 1, layout).await;
            write(&*device, 0..256, 1).await;
            controller.store().checkpoint().await.unwrap();
            let rules = TierChange { pin: Some(Pin::Fast), ..TierChange::default() };
            controller.store().change_tier_rules("v", rules).await.unwrap();
            runtime.sleep(Duration::from_secs(20)).await;
            write(&*device, 0..256, 2).await;
            write(&*device, 5..6, 7).await;
            controller.store().checkpoint().await.unwrap();
            assert!(controller.store().tier().stale_bytes > 0, "{layout:?}: {:?}", controller.store().tier());
            let fast = &rig.disks[1];
            let lies = (0..38 << 20_u64).step_by(BLOCK).filter(|at| fast.at_rest(*at, BLOCK) == [7; BLOCK]);
            // Another one is the journal's.
            let at = lies.last().unwrap();
            fast.inject(FaultKind::ReadError(Place::Range(at..at + BLOCK as u64)));
            controller.store().fail_disk(DeviceId(0)).await.unwrap();
            runtime.sleep(Duration::from_mins(10)).await;
            let unwanted = controller.store().unwanted();
            assert!(unwanted.values().all(|held| held.copies == 0), "{layout:?}: {unwanted:?}");
            assert!(device.read((5 * BLOCK) as u64, BLOCK).await.is_err(), "{layout:?}");
            read(&*device, 0..5, 2).await;
            read(&*device, 6..256, 2).await;
            write(&*device, 5..6, 3).await;
            read(&*device, 5..6, 3).await;
        });
    }
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
            if controller.store().tier().stale_bytes > 0 {
                assert!(down(controller).iter().all(|one| one.done.is_none()), "done before it is down");
            }
        }
        let one = &down(controller)[0];
        assert!(one.done.is_some() && one.bytes == 4 << 20, "{one:?}");
        let took = runtime.now().saturating_sub(begun);
        assert!((3..8).contains(&took.as_secs()), "{took:?} for 4 MiB");
        read(&*device, 0..1024, 2).await;
        read(&*device, 1024..2048, 1).await;
    });
}

/// Moves down that are remembered.
fn down(controller: &Controller) -> Vec<TierMove> {
    let moves = controller.store().tier_moves().into_iter().map(|(.., one)| one);
    moves.filter(|one| one.decided.to == Tier::Slow).collect()
}

/// What waits for a rule that holds no longer is not moved, and what goes down waits once.
#[test]
fn a_rule_holds_at_once() {
    let rig = Rig::new(64);
    rig.run(async |controller, runtime| {
        let device = create(controller, "v", 40).await;
        write(&*device, 0..10_240, 1).await;
        let snapshot = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: true };
        controller.store().snapshot(&[snapshot], 1).await.unwrap();
        write(&*device, 0..1024, 2).await;
        controller.store().checkpoint().await.unwrap();
        tier_by_worth(controller);
        let pin = async |pin| {
            controller.store().change_tier_rules("v", TierChange { pin: Some(pin), ..TierChange::default() }).await
        };
        pin(Pin::Fast).await.unwrap();
        runtime.sleep(Duration::from_millis(1500)).await;
        let up = || controller.store().tier().valid_bytes;
        assert!(up() > 0 && controller.store().tier().waiting > 100, "{:?}", controller.store().tier());
        pin(Pin::None).await.unwrap();
        assert_eq!(controller.store().tier().waiting, 0);
        runtime.sleep(Duration::from_millis(100)).await;
        let before = up();
        runtime.sleep(Duration::from_secs(3)).await;
        assert_eq!(up(), before, "nothing more comes up");
        let moves = controller.store().tier_moves();
        assert!(moves.iter().all(|(.., one)| one.done.is_some()), "{moves:?}");
        assert!(moves.iter().any(|(.., one)| one.failed.is_some()), "{moves:?}");
        pin(Pin::Fast).await.unwrap();
        runtime.sleep(Duration::from_millis(1500)).await;
        pin(Pin::Slow).await.unwrap();
        runtime.sleep(Duration::from_secs(5)).await;
        assert_eq!(up(), 0);
        let decided = controller.store().tier().moves;
        runtime.sleep(Duration::from_secs(5)).await;
        assert_eq!(controller.store().tier().moves, decided, "what is down is not sent there again");
        read(&*device, 0..1024, 2).await;
        read(&*device, 1024..10_240, 1).await;
    });
}

/// What has nothing of its own but blocks beside a volume's has no rules of its own, and is looked for where it lies.
#[test]
fn a_snapshot_follows_its_volume() {
    let rig = Rig::new(24);
    rig.run(async |controller, _| {
        tier_by_worth(controller);
        let device = create(controller, "v", 4).await;
        write(&*device, 0..1024, 1).await;
        let snapshot = SnapshotSpec { of: "v".into(), name: "v@a".into(), read_only: false };
        controller.store().snapshot(&[snapshot], 1).await.unwrap();
        write(&*device, 0..16, 2).await;
        let rules = TierChange { pin: Some(Pin::Fast), ..TierChange::default() };
        let refused = controller.store().change_tier_rules("v@a", rules).await.unwrap_err().to_string();
        assert!(refused.contains("follows what is said of volume v"), "{refused}");
        controller.store().change_tier_rules("v", rules).await.unwrap();
        let why = |name: &str, block: u64| controller.store().tier_why(name, block * BLOCK as u64).unwrap().0;
        for (name, block, lies_in) in [
            ("v", 100, None),
            ("v@a", 100, Some("v")),
            ("v@a", 0, Some("v")),
            ("v", 0, Some("v (blocks beside its snapshots)")),
        ] {
            let why = why(name, block);
            assert_eq!((why.lies_in.as_deref(), why.rules.pin), (lies_in, Pin::Fast), "{name} {block}");
        }
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
        let rules = TierChange { pin: Some(Pin::Slow), ..TierChange::default() };
        controller.store().change_tier_rules("v", rules).await.unwrap();
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
        controller
            .store()
            .change_tier_rules("v", TierChange { pin: Some(Pin::Fast), ..TierChange::default() })
            .await
            .unwrap();
        for _ in 0..30 {
            read(&*other, 0..512, 7).await;
            runtime.sleep(Duration::from_secs(1)).await;
        }
        let before = rig.slow_reads();
        read(&*device, end - 256..end - 128, 1).await;
        read(&*device, end - 128..end, 2).await;
        assert_eq!(rig.slow_reads(), before, "it is up");
        let whys: Vec<_> =
            controller.store().tier_moves().iter().map(|(.., done)| done.decided.reason.to_string()).collect();
        assert!(whys.iter().any(|why| why.contains("takes its place")), "{whys:?}");
        // Others have what is left.
        let before = rig.slow_reads();
        read(&*other, 0..128, 7).await;
        assert_eq!(rig.slow_reads(), before, "the best of the others");
    });
}

/// Given up, and some of it written anew, while its fast copy goes down: what that still has of it goes nowhere.
#[test]
fn what_is_given_up_while_it_goes_down_does_not_come_back() {
    // A group of two extents, whose stripes of two blocks each take a while.
    let (extent_bytes, count, anew) = (1 << 20, 512, 224..256);
    for layout in [Layout::Raid5, Layout::HotMirror, Layout::Mirror] {
        let mut rig = Rig::of(extent_bytes, 24, 0);
        rig.settings.chunk_blocks = 1;
        let told = Told::new(Tier::Fast, Pace { bytes_per_s: u64::MAX, depth: 4 });
        rig.run(async |controller, runtime| {
            told.decide_for(controller, extent_bytes);
            let device = create_of(controller, "v", 2, layout).await;
            write(&*device, 0..count, 1).await;
            controller.store().checkpoint().await.unwrap();
            runtime.sleep(Duration::from_secs(20)).await;
            write(&*device, 0..count, 2).await;
            controller.store().checkpoint().await.unwrap();
            assert_eq!(controller.store().tier().stale_bytes, 2 << 20, "{layout:?}");
            let written = || rig.disks[2..].iter().map(|disk| disk.counters().writes).sum::<u64>();
            let before = written();
            told.0.set((Tier::Slow, Pace { bytes_per_s: u64::MAX, depth: 4 }));
            while written() < before + 2 {
                runtime.sleep(Duration::from_millis(1)).await;
            }
            device.discard(0, 2 << 20).await.unwrap();
            write(&*device, anew.clone(), 3).await;
            device.flush().await.unwrap();
            while controller.info().dirty_bytes > 0 {
                runtime.sleep(Duration::from_millis(1)).await;
            }
            runtime.sleep(Duration::from_secs(10)).await;
            read(&*device, anew.clone(), 3).await;
            read(&*device, anew.end..count, 0).await;
            controller.store().checkpoint().await.unwrap();
        });
        rig.sim.crash();
        rig.run(async |controller, _| read(&*controller.open_volume("v").unwrap(), anew.clone(), 3).await);
    }
}

/// What was overwritten on its way to the hot area is known by what its fast copy has, as long as that is the newest.
#[test]
fn what_is_overwritten_on_its_way_leaves_no_wrong_word() {
    let rig = Rig::new(24);
    // The first one that goes down is charged for ever: the others wait.
    let told = Told::new(Tier::Fast, Pace { bytes_per_s: u64::MAX, depth: 1 });
    rig.run(async |controller, runtime| {
        told.decide_for(controller, EXTENT);
        let device = create_of(controller, "v", 2, Layout::HotMirror).await;
        for byte in [1, 2] {
            write(&*device, 0..512, byte).await;
            controller.store().checkpoint().await.unwrap();
            runtime.sleep(Duration::from_secs(20)).await;
        }
        assert_eq!(controller.store().tier().stale_bytes, 2 << 20);
        told.0.set((Tier::Slow, Pace { bytes_per_s: 1, depth: 1 }));
        runtime.sleep(Duration::from_secs(20)).await;
        assert!(controller.store().tier().stale_bytes > 1 << 20, "{:?}", controller.store().tier());
        for block in 300..310 {
            write(&*device, block..block + 1, 3).await;
            device.flush().await.unwrap();
            while rig.disks[2..].iter().all(|disk| disk.counters().queue == 0) {
                runtime.sleep(Duration::from_millis(1)).await;
            }
            write(&*device, block..block + 1, 4).await;
            while controller.info().dirty_bytes > 0 {
                runtime.sleep(Duration::from_millis(1)).await;
            }
        }
        let report = controller.store().check(Check::Verify).await.unwrap();
        assert_eq!((report.repaired, report.violations), (0, vec![]));
        read(&*device, 300..310, 4).await;
        read(&*device, 310..512, 2).await;
    });
}

/// What was up before a start is looked through as it is used: where nothing is missing, nothing is written, and nothing told.
#[test]
fn what_was_all_up_before_a_start_is_left_alone() {
    let rig = Rig::new(24);
    let told = Told::new(Tier::Fast, Pace { bytes_per_s: u64::MAX, depth: 4 });
    rig.run(async |controller, runtime| {
        told.decide_for(controller, EXTENT);
        let device = create(controller, "v", 4).await;
        write(&*device, 0..1024, 1).await;
        controller.store().checkpoint().await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        assert_eq!(controller.store().tier().valid_bytes, 4 << 20);
        controller.store().checkpoint().await.unwrap();
    });
    rig.run(async |controller, runtime| {
        tier_by_worth(controller);
        let device = controller.open_volume("v").unwrap();
        let flushes = || rig.disks[..2].iter().map(|disk| disk.counters().flushes).sum::<u64>();
        let before = (flushes(), rig.slow_reads());
        for _ in 0..5 {
            read(&*device, 0..1024, 1).await;
            runtime.sleep(Duration::from_secs(1)).await;
        }
        // Of 64 extents, each on two disks.
        assert!(flushes() - before.0 < 16, "{} flushes", flushes() - before.0);
        let tier = controller.store().tier();
        assert!(tier.moves >= 64 && tier.waiting == 0, "each is looked through: {tier:?}");
        assert!(controller.store().tier_moves().is_empty(), "{:?}", controller.store().tier_moves());
    });
}

/// What moves cost is forgotten while nobody asks for anything, too.
#[test]
fn what_was_measured_fades_while_the_policy_rests() {
    let rig = Rig::new(24);
    rig.run(async |controller, runtime| {
        let names = ["a", "b", "c"];
        for name in names {
            write(&*create(controller, name, 4).await, 0..1024, 1).await;
        }
        controller.store().checkpoint().await.unwrap();
        tier_by_worth(controller);
        let mut costs_ms = Vec::new();
        for name in names {
            for _ in 0..5 {
                read(&*controller.open_volume(name).unwrap(), 0..1024, 1).await;
                runtime.sleep(Duration::from_secs(1)).await;
            }
            let moves = controller.store().tier_moves();
            let (.., first) = moves.into_iter().find(|(of, ..)| of.as_deref() == Some(name)).unwrap();
            let Reason::Worth { costs_ms: costs, .. } = first.decided.reason else { panic!("{first:?}") };
            costs_ms.push(costs);
            runtime.sleep(Duration::from_mins(if name == "a" { 0 } else { 20 })).await;
        }
        let (measured, forgotten) = (costs_ms[1], costs_ms[2]);
        assert!(forgotten > 2.0 * measured, "{forgotten} ms, measured were {measured} ms");
    });
}

/// What is up serves without a policy, too, and is counted.
#[test]
fn what_is_up_without_a_policy_is_counted() {
    let rig = Rig::new(24);
    let told = Told::new(Tier::Fast, Pace { bytes_per_s: u64::MAX, depth: 4 });
    rig.run(async |controller, runtime| {
        told.decide_for(controller, EXTENT);
        let device = create(controller, "v", 1).await;
        write(&*device, 0..256, 1).await;
        controller.store().checkpoint().await.unwrap();
        runtime.sleep(Duration::from_secs(20)).await;
        controller.store().set_tier(None).unwrap();
        let before = controller.store().tier().hits;
        read(&*device, 0..64, 1).await;
        write(&*device, 0..16, 2).await;
        let hits = controller.store().tier().hits;
        assert_eq!((hits.fast_reads - before.fast_reads, hits.fast_writes - before.fast_writes), (64, 16));
    });
}
