//! Disks that join and leave a node on simulated disks, with power cuts on the way.
//!
//! What must hold: wherever the power goes, the node opens again, has every byte, and what was under way goes on to its
//! end; a disk that has left is not missed, and the journals are on two disks again.

mod joining;
mod leaving;

use kura_block::{Block, Buf, DeviceId, Result, Runtime};
use kura_controller::{
    Check, Config, DiskClass, DiskState, JournalLimits, Layout, Node, PoolSpec, Settings, SharedPool, VolumeSpec,
};
use kura_shared::InProcess;
use kura_sim::{CrashPoint, DiskSpec, FaultKind, FaultPlan, Outcome, Sim, SimDisk};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const CONTROLLERS: u16 = 2;
const VOLUME_BYTES: usize = 1 << 20;

struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
}

impl Rig {
    /// A pool of two fast disks and three slow ones, and two disks beside it: one fast, one slow.
    fn new() -> Self {
        let sizes =
            [("fast0", 18), ("fast1", 18), ("slow0", 8), ("slow1", 8), ("slow2", 8), ("fast9", 18), ("slow9", 8)];
        Self::of(11, &sizes, 2..5)
    }

    /// Disks of so many MiB: the first ones are fast, those of `slow` are slow, and the others are beside the pool.
    fn of(seed: u64, sizes: &[(&str, u64)], slow: Range<usize>) -> Self {
        let sim = Sim::new(seed);
        let disks: Vec<_> = sizes.iter().map(|(name, mib)| sim.disk(name, DiskSpec::nvme(mib << 20))).collect();
        let pool = PoolSpec {
            uuid: [9; 16],
            extent_bytes: 64 << 10,
            controllers: CONTROLLERS,
            journal_bytes: 5 << 20,
            floating_percent: 0,
        };
        crate::rig::format(&sim, &disks[..slow.end], slow.start, &pool);
        Self { sim, disks }
    }

    /// A node of the disks with these names; its doors are served by tasks of the simulation.
    async fn node(disks: &[SimDisk], names: &[&str], runtime: &Rc<dyn Runtime>) -> Node {
        Self::node_with(SimDisk::opener(disks), names, runtime).await
    }

    async fn node_with(
        opener: impl Fn(&str) -> Result<Rc<dyn Block>> + Clone + 'static,
        names: &[&str],
        runtime: &Rc<dyn Runtime>,
    ) -> Node {
        let paths: Vec<String> = names.iter().map(ToString::to_string).collect();
        let config = Config {
            settings: Settings { write_buffer_bytes: 256 << 10, pages: 8, ..Settings::default() },
            journal: JournalLimits {
                linger: Duration::from_millis(1),
                batch_bytes: 64 << 10,
                ..JournalLimits::default()
            },
            ..Config::default()
        };
        let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
        Node::start(&paths, opener, runtime, &shared, config).await.unwrap().0
    }

    /// Everything the test writes: the volume's number and the block's in every 16 bytes.
    fn content(volume: usize) -> Vec<u8> {
        let block = |number: usize| [volume + 1, number].map(usize::to_le_bytes).concat().repeat(4096 / 16);
        (0..VOLUME_BYTES / 4096).map(block).collect::<Vec<_>>().concat()
    }

    fn fill(&self) {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let disks = self.disks.clone();
        self.sim.block_on(async {
            let node = Self::node(&disks, &POOL, &runtime).await;
            for volume in 0..4 {
                fill(&node, &format!("v{volume}"), Self::content(volume)).await;
            }
            node.stop().await.unwrap();
        });
        self.sim.crash();
    }

    /// Opens the node on these disks and does `work`, which a power cut may end.
    fn run<T>(&self, names: &[&str], work: impl AsyncFnOnce(&Node, &dyn Runtime) -> T) -> Outcome<T> {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let disks = self.disks.clone();
        let outcome = self.sim.run_until_crash_or(async {
            let node = Self::node(&disks, names, &runtime).await;
            work(&node, &*runtime).await
        });
        if !matches!(outcome, Outcome::Crashed) {
            self.sim.crash();
        }
        outcome
    }

    /// Opens the node on these disks, reads everything, and checks everything.
    fn verify(&self, names: &[&str]) {
        self.run(names, async |node, _| {
            for volume in 0..4 {
                assert!(holds(node, &format!("v{volume}"), Self::content(volume)).await, "volume {volume}");
            }
            let report = node.check(Check::Repair).await.unwrap();
            assert!(report.violations.is_empty(), "{:#?}", report.violations);
        });
    }
}

const POOL: [&str; 5] = ["fast0", "fast1", "slow0", "slow1", "slow2"];
const ALL: [&str; 7] = ["fast0", "fast1", "slow0", "slow1", "slow2", "fast9", "slow9"];

/// Makes a volume that has this.
async fn fill(node: &Node, name: &str, content: Vec<u8>) {
    let spec = VolumeSpec {
        name: name.into(),
        size_bytes: VOLUME_BYTES as u64,
        layout: Layout::Mirror,
        thick: false,
        read_only: false,
    };
    node.create_volume(spec).await.unwrap();
    let (door, info) = node.find(name).await.unwrap();
    let write = door.call(move |controller| {
        Box::pin(async move {
            let device = controller.open_volume(&info.spec.name).unwrap();
            device.write(0, Buf::copy_of(&content).into(), true).await.unwrap();
        })
    });
    write.await.unwrap();
}

/// True when a volume has this.
async fn holds(node: &Node, name: &str, content: Vec<u8>) -> bool {
    let (door, info) = node.find(name).await.unwrap();
    let read = door.call(move |controller| {
        Box::pin(async move {
            let device = controller.open_volume(&info.spec.name).unwrap();
            device.read(0, VOLUME_BYTES).await.map(|data| *data.contiguous() == content[..])
        })
    });
    read.await.unwrap().unwrap()
}

/// Tends the node until the pool is as large as it should be and nothing is under way.
async fn settle(node: &Node, runtime: &dyn Runtime) {
    for _ in 0..10_000 {
        for disk in node.tend().await.unwrap() {
            node.retire_disk(DeviceId(disk.id)).await.unwrap();
        }
        let pool = node.pool().await.unwrap();
        if pool.disks.iter().all(|disk| disk.state == DiskState::Healthy) {
            assert_eq!(pool.disks.iter().filter(|disk| disk.journals > 0).count(), 2, "{pool:#?}");
            return;
        }
        runtime.sleep(Duration::from_millis(10)).await;
    }
    panic!("it never ends: {:#?}", node.pool().await.unwrap());
}

/// Replaces a disk of each class.
async fn replace(node: &Node) {
    let known = async |uuid: [u8; 16]| node.pool().await.unwrap().disks.iter().any(|disk| disk.uuid == uuid);
    for (name, class, uuid, old) in [("fast9", DiskClass::Fast, [98; 16], 0), ("slow9", DiskClass::Slow, [99; 16], 3)] {
        if !known(uuid).await {
            node.add_disk(name.into(), class, uuid).await.unwrap();
        }
        if known([old as u8 + 1; 16]).await {
            node.remove_disk(DeviceId(old)).await.unwrap();
        }
    }
}

#[test]
fn a_disk_of_each_class_is_replaced() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        replace(node).await;
        settle(node, runtime).await;
        let disks = node.pool().await.unwrap().disks;
        let left: Vec<_> = disks.iter().map(|disk| disk.id).collect();
        assert_eq!(left, [1, 2, 4, 5, 6]);
        let refused = node.remove_disk(DeviceId(1)).await.unwrap_err().to_string();
        assert!(refused.contains("no other disk has room"), "{refused}");
    });
    assert_eq!(done, Outcome::Done(()));
    for gone in ["fast0", "slow1"] {
        let disk = rig.disks.iter().find(|disk| disk.name() == gone).unwrap();
        assert_eq!(disk.at_rest(0, 8192), [0; 8192], "{gone} can be used for something else");
    }
    rig.verify(&["fast1", "slow0", "slow2", "fast9", "slow9"]);
    // The new disks carry their part: with the old partners gone, nothing is missing.
    let done = rig.run(&["slow0", "slow2", "fast9", "slow9", "fast1"], async |node, _| {
        node.fail_disk(DeviceId(1), true).await.unwrap();
        node.fail_disk(DeviceId(2), true).await.unwrap();
    });
    assert_eq!(done, Outcome::Done(()));
    rig.verify(&["slow2", "fast9", "slow9"]);
}

#[test]
fn every_crash_point_of_a_replacement_is_survived() {
    let whole = |crash: Option<u64>| {
        let rig = Rig::new();
        rig.fill();
        let crashes = crash.map(CrashPoint::Op).into_iter().collect();
        rig.sim.set_plan(&FaultPlan { crashes, ..FaultPlan::default() });
        let before = rig.sim.operations();
        let outcome = rig.run(&POOL, async |node, runtime| {
            replace(node).await;
            settle(node, runtime).await;
        });
        let operations = rig.sim.operations() - before;
        rig.sim.set_plan(&FaultPlan::default());
        if outcome == Outcome::Crashed {
            // The host remembers every disk it was told of, or not yet: one that has no label is not taken.
            let again = rig.run(&labelled(&rig), async |node, runtime| {
                replace(node).await;
                settle(node, runtime).await;
            });
            assert_eq!(again, Outcome::Done(()), "crash at {crash:?}");
        }
        rig.verify(&["fast1", "slow0", "slow2", "fast9", "slow9"]);
        operations
    };
    let operations = whole(None);
    let step = (operations / 300).max(1) as usize;
    for crash in (1..=operations).step_by(step) {
        whole(Some(crash));
    }
}

/// The disks that carry a label.
fn labelled(rig: &Rig) -> Vec<&'static str> {
    let carries = |name: &&str| {
        let disk = rig.disks.iter().find(|disk| disk.name() == *name).unwrap();
        [0, 4096].iter().any(|at| disk.at_rest(*at, 8) == b"kura-dsk")
    };
    ALL.iter().copied().filter(carries).collect()
}

/// More moves than the journal has room for records, and nobody writes: the journal is made shorter all the same.
#[test]
fn a_long_rebuild_does_not_fill_the_journal() {
    let rig = Rig::of(5, &[("fast0", 18), ("slow0", 256), ("slow1", 256), ("slow2", 256)], 1..4);
    let done = rig.run(&["fast0", "slow0", "slow1", "slow2"], async |node, runtime| {
        let spec = VolumeSpec {
            name: "thick".into(),
            size_bytes: 160 << 20,
            layout: Layout::Mirror,
            thick: true,
            read_only: false,
        };
        node.create_volume(spec).await.unwrap();
        node.fail_disk(DeviceId(2), true).await.unwrap();
        let to_move = async || node.pool().await.unwrap().disks[2].unwanted_bytes;
        assert!(to_move().await / (64 << 10) > (5 << 20) / 4096, "more than the ring has room for");
        for _ in 0..10_000 {
            if to_move().await == 0 {
                return;
            }
            runtime.sleep(Duration::from_millis(10)).await;
        }
        panic!("{} bytes are left", to_move().await);
    });
    assert_eq!(done, Outcome::Done(()));
}

/// A disk fails under one controller's hands; the others, and the journals, are told.
#[test]
fn what_one_controller_found_all_are_told() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
        let volumes = node.volumes().await.unwrap();
        let second = volumes.iter().find(|volume| volume.controller == 1).unwrap();
        let (door, _) = node.find(&second.spec.name).await.unwrap();
        for disk in [0, 3] {
            let fail = door
                .call(move |controller| Box::pin(async move { controller.store().fail_disk(DeviceId(disk)).await }));
            fail.await.unwrap().unwrap();
        }
        tend(node, runtime, 20).await;
        let disks = node.pool().await.unwrap().disks;
        let carriers: Vec<_> = disks.iter().filter(|disk| disk.journals > 0).map(|disk| disk.id).collect();
        assert_eq!(carriers, [1, 5], "the new disk carries what the failed one did");
        for volume in &volumes {
            let (door, _) = node.find(&volume.spec.name).await.unwrap();
            let failed = door.call(|controller| Box::pin(async move { controller.store().failed_disks() }));
            assert_eq!(failed.await.unwrap(), [DeviceId(0), DeviceId(3)]);
        }
    });
    assert_eq!(done, Outcome::Done(()));
}

/// Writes the beginning of a volume once more; which controller did it.
async fn write(node: &Node, volume: usize) -> u16 {
    let (door, info) = node.find(&format!("v{volume}")).await.unwrap();
    let write = door.call(move |controller| {
        Box::pin(async move {
            let device = controller.open_volume(&info.spec.name).unwrap();
            device.write(0, Buf::copy_of(&Rig::content(volume)[..4096]).into(), true).await.unwrap();
            controller.id().0
        })
    });
    write.await.unwrap()
}

async fn tend(node: &Node, runtime: &dyn Runtime, times: usize) {
    for _ in 0..times {
        node.tend().await.unwrap();
        runtime.sleep(Duration::from_millis(10)).await;
    }
}

async fn failed(node: &Node) -> Vec<u16> {
    let disks = node.pool().await.unwrap().disks.into_iter();
    disks.filter(|disk| disk.state == DiskState::Failed).map(|disk| disk.id).collect()
}

/// The power goes when a copy of a journal was lost and nobody had noted it: it joins again, and a disk that does not take it fails.
#[test]
fn a_copy_that_was_lost_before_a_crash_joins_again_or_its_disk_fails() {
    for fails in [false, true] {
        let rig = Rig::new();
        rig.fill();
        rig.run(&POOL, async |node, _| {
            rig.disks[0].inject(FaultKind::WriteError);
            write(node, 0).await;
        });
        let done = rig.run(&POOL, async |node, runtime| {
            if fails {
                rig.disks[0].inject(FaultKind::WriteError);
            }
            tend(node, runtime, 100).await;
            assert_eq!(failed(node).await, if fails { vec![0] } else { vec![] });
            if !fails {
                // It is whole: the other one may go.
                rig.disks[1].inject(FaultKind::Dead);
                write(node, 0).await;
                tend(node, runtime, 10).await;
                assert_eq!(failed(node).await, [1]);
            }
        });
        assert_eq!(done, Outcome::Done(()));
        rig.verify(if fails { &POOL } else { &["fast0", "slow0", "slow1", "slow2"] });
    }
}

/// Each of two controllers loses another copy of its journal, to one write that failed. Both disks are out of service for both then,
/// and yet each controller goes on with the copy that it has, until there is another disk.
#[test]
fn controllers_that_lose_other_copies_of_their_journals_go_on() {
    let rig = Rig::new();
    rig.fill();
    let done = rig.run(&POOL, async |node, runtime| {
        let mut of = [None; 2];
        for volume in 0..4 {
            of[usize::from(write(node, volume).await)] = Some(volume);
        }
        for (disk, volume) in of.into_iter().enumerate() {
            rig.disks[disk].inject(FaultKind::WriteError);
            write(node, volume.expect("a volume of each controller")).await;
        }
        tend(node, runtime, 100).await;
        all_serve(node).await;
        assert_eq!(failed(node).await, [0, 1]);
    });
    assert_eq!(done, Outcome::Done(()));
    // Each one's last copy is on a disk that is out of service, and it opens with that.
    let done = rig.run(&POOL, async |node, runtime| {
        tend(node, runtime, 10).await;
        all_serve(node).await;
        let disks = node.pool().await.unwrap().disks;
        let only: Vec<_> = disks.iter().map(|disk| disk.only_journals).collect();
        assert_eq!(only, [1, 1, 0, 0, 0], "pulling one of them loses a journal");
        node.add_disk("fast9".into(), DiskClass::Fast, [98; 16]).await.unwrap();
        tend(node, runtime, 1000).await;
        let pool = node.pool().await.unwrap();
        assert_eq!(pool.disks.iter().find(|disk| disk.uuid == [98; 16]).unwrap().journals, CONTROLLERS, "{pool:#?}");
        assert!(pool.disks.iter().all(|disk| disk.only_journals == 0 || disk.uuid == [98; 16]), "{pool:#?}");
        all_serve(node).await;
    });
    assert_eq!(done, Outcome::Done(()));
    rig.verify(&["fast0", "fast1", "slow0", "slow1", "slow2", "fast9"]);
}

async fn all_serve(node: &Node) {
    for volume in 0..4 {
        write(node, volume).await;
    }
}

/// A pool's only disk refuses a write: nothing is served any more, and a restart tries it again.
#[test]
fn the_last_disk_that_works_is_tried_again() {
    let sim = Sim::new(7);
    let disks = vec![sim.disk("only", DiskSpec::nvme(64 << 20))];
    let pool =
        PoolSpec { uuid: [9; 16], extent_bytes: 64 << 10, controllers: 1, journal_bytes: 5 << 20, floating_percent: 0 };
    crate::rig::format(&sim, &disks, 0, &pool);
    let rig = Rig { sim, disks };
    let done = rig.run(&["only"], async |node, _| {
        let spec = VolumeSpec {
            name: "v0".into(),
            size_bytes: VOLUME_BYTES as u64,
            layout: Layout::None,
            thick: false,
            read_only: false,
        };
        node.create_volume(spec).await.unwrap();
        write(node, 0).await;
        rig.disks[0].inject(FaultKind::WriteError);
        let (door, _) = node.find("v0").await.unwrap();
        let store = door.call(|controller| Box::pin(async move { controller.store().checkpoint().await }));
        store.await.unwrap().unwrap_err();
    });
    assert_eq!(done, Outcome::Done(()));
    let done = rig.run(&["only"], async |node, runtime| {
        tend(node, runtime, 10).await;
        assert_eq!(failed(node).await, []);
        write(node, 0).await;
    });
    assert_eq!(done, Outcome::Done(()));
}

#[test]
fn a_check_counts_what_only_a_failed_disk_has() {
    let rig = Rig::new();
    let done = rig.run(&POOL, async |node, _| {
        let spec = VolumeSpec {
            name: "single".into(),
            size_bytes: VOLUME_BYTES as u64,
            layout: Layout::None,
            thick: false,
            read_only: false,
        };
        node.create_volume(spec).await.unwrap();
        let (door, _) = node.find("single").await.unwrap();
        let write = door.call(|controller| {
            Box::pin(async move {
                let device = controller.open_volume("single").unwrap();
                device.write(0, Buf::copy_of(&Rig::content(0)).into(), true).await.unwrap();
            })
        });
        write.await.unwrap();
        assert_eq!(node.check(Check::Verify).await.unwrap().violations, [""; 0]);
        node.fail_disk(DeviceId(3), true).await.unwrap();
        let found = node.check(Check::Verify).await.unwrap().violations;
        let counts = |line: &String| line.contains("volume single: ") && line.contains("out of service");
        assert!(found.iter().any(counts), "{found:#?}");
    });
    assert_eq!(done, Outcome::Done(()));
}
