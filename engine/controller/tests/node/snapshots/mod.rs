//! Snapshots of a node's volumes on simulated disks: many of them, of one instant, and on a pool that is full.
//!
//! What must hold: a snapshot is what its volume was, however many there are and in whatever order they go; when all are
//! gone the pool has everything back and the volume is a plain one again; volumes of several controllers have snapshots
//! of one instant; a full pool refuses writes, or drops the oldest snapshot, and loses nothing else.

mod care;
mod discard;
mod dropped;
mod full;
mod limits;
mod order;
mod tidied;

use kura_block::{Block, Buf, Kind, Runtime};
use kura_controller::{
    Check, Config, Controller, JournalLimits, Layout, Node, PoolSpec, Saving, Settings, SharedPool, SnapshotSpec,
    VolumeSpec, WhenFull,
};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Outcome, Sim, SimDisk};
use rand::seq::SliceRandom;
use rand::{Rng, RngExt};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const CONTROLLERS: u16 = 2;
const BLOCK: usize = 4096;

struct Rig {
    sim: Sim,
    disks: Vec<SimDisk>,
    journal: JournalLimits,
}

impl Rig {
    fn new(slow_mib: u64) -> Self {
        Self::on(|| DiskSpec::nvme(slow_mib << 20))
    }

    /// A node whose slow disks are so.
    fn on(slow: impl Fn() -> DiskSpec) -> Self {
        Self::with_extents(64 << 10, slow)
    }

    fn with_extents(extent_bytes: u64, slow: impl Fn() -> DiskSpec) -> Self {
        let sim = Sim::new(5);
        let fast_bytes = (17 << 20) + 16 * extent_bytes;
        let fast = ["fast0", "fast1"].map(|name| sim.disk(name, DiskSpec::nvme(fast_bytes)));
        let disks: Vec<_> =
            fast.into_iter().chain(["slow0", "slow1", "slow2"].map(|name| sim.disk(name, slow()))).collect();
        let pool = PoolSpec {
            uuid: [9; 16],
            extent_bytes,
            controllers: CONTROLLERS,
            journal_bytes: 5 << 20,
            floating_percent: 0,
        };
        crate::rig::format(&sim, &disks, 2, &pool);
        Self {
            sim,
            disks,
            journal: JournalLimits {
                linger: Duration::from_millis(1),
                batch_bytes: 64 << 10,
                ..JournalLimits::default()
            },
        }
    }

    async fn open(&self, runtime: &Rc<dyn Runtime>, settings: Settings) -> (Node, Vec<Rc<Controller>>) {
        let paths: Vec<String> = self.disks.iter().map(|disk| disk.name().to_owned()).collect();
        let config = Config { settings, journal: self.journal, ..Config::default() };
        let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
        Node::start(&paths, SimDisk::opener(&self.disks), runtime, &shared, config).await.unwrap()
    }

    /// Opens the node and does `work`, then cuts the power.
    fn run<T>(&self, settings: Settings, work: impl AsyncFnOnce(&Node, &[Rc<Controller>], &dyn Runtime) -> T) -> T {
        match self.run_until_crash_or(settings, work) {
            Outcome::Done(done) => done,
            Outcome::Crashed => panic!("no power cut was planned"),
        }
    }

    /// As [`Rig::run`], where the plan may cut the power sooner.
    fn run_until_crash_or<T>(
        &self,
        settings: Settings,
        work: impl AsyncFnOnce(&Node, &[Rc<Controller>], &dyn Runtime) -> T,
    ) -> Outcome<T> {
        let runtime: Rc<dyn Runtime> = self.sim.runtime();
        let outcome = self.sim.run_until_crash_or(async {
            let (node, controllers) = self.open(&runtime, settings).await;
            work(&node, &controllers, &*runtime).await
        });
        if matches!(outcome, Outcome::Done(_)) {
            self.sim.crash();
        }
        outcome
    }
}

fn settings() -> Settings {
    Settings { write_buffer_bytes: 256 << 10, pages: 64, ..Settings::default() }
}

fn volume(name: &str, blocks: usize) -> VolumeSpec {
    let size_bytes = (blocks * BLOCK) as u64;
    VolumeSpec { name: name.into(), size_bytes, layout: Layout::Mirror, thick: false, read_only: false }
}

fn snapshot(of: &str, name: &str) -> SnapshotSpec {
    SnapshotSpec { of: of.into(), name: format!("{of}@{name}"), read_only: false }
}

fn device(controllers: &[Rc<Controller>], name: &str) -> Rc<dyn Block> {
    controllers.iter().find_map(|controller| controller.open_volume(name).ok()).unwrap()
}

async fn write(device: &dyn Block, block: usize, data: &[u8]) {
    device.write((block * BLOCK) as u64, Buf::copy_of(data).into(), false).await.unwrap();
}

async fn read(device: &dyn Block, blocks: usize) -> Vec<u8> {
    device.read(0, blocks * BLOCK).await.unwrap().contiguous().to_vec()
}

async fn check(node: &Node) {
    let report = node.check(Check::Repair).await.unwrap();
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
}

/// Waits until the pool has this much free again.
async fn freed(node: &Node, runtime: &dyn Runtime, bytes: u64) {
    for _ in 0..3000 {
        if node.pool().await.unwrap().free_bytes == bytes {
            return;
        }
        runtime.sleep(Duration::from_millis(10)).await;
    }
    panic!("{} bytes are free and {bytes} should be", node.pool().await.unwrap().free_bytes);
}

/// Bursts of writes with a snapshot after each; every one is read again, over a restart too, and they go in random order.
fn many(saving: Saving) {
    const BLOCKS: usize = 96;
    const SNAPSHOTS: usize = 200;
    let rig = Rig::new(24);
    let settings = Settings { saving, ..settings() };
    let mut rng = rig.sim.rng("many");
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut now = vec![0; BLOCKS * BLOCK];
    let free = rig.run(settings, async |node, controllers, _| {
        node.create_volume(volume("v", BLOCKS)).await.unwrap();
        let device = device(controllers, "v");
        rng.fill_bytes(&mut now);
        write(&*device, 0, &now).await;
        let free = node.pool().await.unwrap().free_bytes;
        for number in 0..SNAPSHOTS {
            for _ in 0..4 {
                let block = rng.random_range(0..BLOCKS);
                let bytes = block * BLOCK..(block + 1) * BLOCK;
                rng.fill_bytes(&mut now[bytes.clone()]);
                write(&*device, block, &now[bytes]).await;
            }
            node.snapshot(vec![snapshot("v", &number.to_string())], 1).await.unwrap();
            kept.push(now.clone());
        }
        free
    });
    let mut order: Vec<usize> = (0..SNAPSHOTS).collect();
    order.shuffle(&mut rng);
    rig.run(settings, async |node, controllers, runtime| {
        for number in &order {
            let device = device(controllers, &format!("v@{number}"));
            assert!(read(&*device, BLOCKS).await == kept[*number], "snapshot {number}");
        }
        check(node).await;
        order.shuffle(&mut rng);
        for (gone, number) in order.iter().enumerate() {
            node.delete_volume(&format!("v@{number}"), false).await.unwrap();
            if let Some(other) = order[gone + 1..].first() {
                let device = device(controllers, &format!("v@{other}"));
                assert!(read(&*device, BLOCKS).await == kept[*other], "snapshot {other} after {number} has gone");
            }
        }
        freed(node, runtime, free).await;
        assert!(read(&*device(controllers, "v"), BLOCKS).await == now, "the volume is what it was");
        check(node).await;
    });
    rig.run(settings, async |node, controllers, _| {
        assert!(read(&*device(controllers, "v"), BLOCKS).await == now, "the volume is what it was after a restart");
        check(node).await;
    });
}

#[test]
fn many_snapshots_come_and_go_by_redirection() {
    many(Saving::Redirect);
}

#[test]
fn many_snapshots_come_and_go_by_copies() {
    many(Saving::Copy);
}

/// A writer writes one number to a volume of each controller in turn, the first one first: a snapshot of one instant never
/// has a higher number in the second.
#[test]
fn volumes_of_several_controllers_have_snapshots_of_one_instant() {
    let rig = Rig::new(16);
    rig.run(settings(), async |node, controllers, runtime| {
        node.create_volume(volume("a", 16)).await.unwrap();
        node.create_volume(volume("b", 16)).await.unwrap();
        let owner = |name: &str| controllers.iter().position(|one| one.open_volume(name).is_ok());
        assert_ne!(owner("a"), owner("b"), "each has one");
        let (a, b) = (device(controllers, "a"), device(controllers, "b"));
        let writes = async {
            for number in 1..400_u32 {
                for device in [&a, &b] {
                    let bytes: Vec<u8> = number.to_le_bytes().repeat(BLOCK / 4);
                    write(&**device, 3, &bytes).await;
                    runtime.sleep(Duration::from_micros(50)).await;
                }
            }
        };
        let snapshots = async {
            for number in 0..20 {
                runtime.sleep(Duration::from_micros(1700)).await;
                let name = number.to_string();
                node.snapshot(vec![snapshot("a", &name), snapshot("b", &name)], 1).await.unwrap();
            }
        };
        futures::future::join(writes, snapshots).await;
        let mut seen = Vec::new();
        for number in 0..20 {
            let mut found = Vec::new();
            for volume in ["a", "b"] {
                let bytes = read(&*device(controllers, &format!("{volume}@{number}")), 4).await;
                found.push(u32::from_le_bytes(bytes[3 * BLOCK..3 * BLOCK + 4].try_into().unwrap()));
            }
            assert!(found[0] == found[1] || found[0] == found[1] + 1, "snapshot {number}: {found:?}");
            seen.push(found[0]);
        }
        assert!(seen.is_sorted() && seen[0] < seen[19], "made while it was written: {seen:?}");
        check(node).await;
    });
}

/// Fills a pool with what snapshots hold; returns how many writes went in and what refused the next.
async fn fill(node: &Node, controllers: &[Rc<Controller>], rounds: u32) -> Option<kura_block::Error> {
    const BLOCKS: usize = 320;
    node.create_volume(volume("v", BLOCKS)).await.unwrap();
    let device = device(controllers, "v");
    for round in 0..rounds {
        for block in 0..BLOCKS {
            let bytes = vec![round as u8 + 1; BLOCK];
            let written = device.write((block * BLOCK) as u64, Buf::copy_of(&bytes).into(), false).await;
            if let Err(error) = written {
                // What was there is there still.
                let now = read(&*device, BLOCKS).await;
                for (at, found) in now.chunks(BLOCK).enumerate() {
                    let expected = if at < block { round as u8 + 1 } else { round as u8 };
                    assert!(found.iter().all(|byte| *byte == expected), "block {at} in round {round}");
                }
                return Some(error);
            }
        }
        node.snapshot(vec![snapshot("v", &round.to_string())], u64::from(round)).await.unwrap();
    }
    None
}

#[test]
fn a_full_pool_refuses_writes_and_keeps_snapshots() {
    let rig = Rig::new(6);
    rig.run(settings(), async |node, controllers, runtime| {
        let error = fill(node, controllers, 40).await.expect("the pool is small");
        assert_eq!(error.kind(), Kind::Full, "{error}");
        let first = read(&*device(controllers, "v@0"), 320).await;
        assert!(first.iter().all(|byte| *byte == 1));
        // Room is made by hand, and writes go on.
        node.delete_volume("v@0", false).await.unwrap();
        runtime.sleep(Duration::from_secs(3)).await;
        write(&*device(controllers, "v"), 0, &vec![99; BLOCK]).await;
        check(node).await;
    });
}

#[test]
fn a_full_pool_drops_the_oldest_snapshots_when_told_to() {
    let rig = Rig::new(6);
    let settings = Settings { when_full: WhenFull::DropOldest, ..settings() };
    rig.run(settings, async |node, controllers, _| {
        assert!(fill(node, controllers, 40).await.is_none(), "there is always room");
        let left: Vec<String> = node.volumes().await.unwrap().into_iter().map(|volume| volume.spec.name).collect();
        assert!(left.len() < 40 && left.contains(&"v@39".to_owned()) && !left.contains(&"v@0".to_owned()), "{left:?}");
        let newest = read(&*device(controllers, "v@39"), 320).await;
        assert!(newest.iter().all(|byte| *byte == 40));
        check(node).await;
    });
}
