//! A node of two controllers on eight simulated disks, random work on it, and the comparison with the model.

use super::reference::{BLOCK, Reference};
use super::restless::Restless;
use super::steps::{parent_of, rest, step};
use super::volumes::{changes, delete, forget_dropped};
use crate::rig;
use kura_block::{DeviceId, Kind, Result};
use kura_controller::{
    Check, Config, Controller, DiskState, HotSettings, JournalLimits, Layout, Node, PoolSpec, Saving, Settings,
    SharedPool, Sharing, TierSetup, VolumeSpec, WhenFull,
};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, FaultKind, Outcome, Sim, SimDisk};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const CONTROLLERS: u16 = 2;
const EXTENT: u64 = 64 << 10;

pub struct World {
    pub sim: Sim,
    pub rng: ChaCha8Rng,
    pub reference: Reference,
    /// A disk has had faults: a check may find something to repair.
    pub faulty: bool,
    disks: Vec<SimDisk>,
    names: u32,
}

/// A size of each slow disk at which random work soon finds the pool full.
const TIGHT_KIB: u64 = 2624;

/// A node that runs.
pub struct Opened {
    pub node: Node,
    controllers: Vec<Rc<Controller>>,
}

impl std::ops::Deref for Opened {
    type Target = [Rc<Controller>];

    fn deref(&self) -> &Self::Target {
        &self.controllers
    }
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::of(seed, 16 << 10, None)
    }

    /// A world whose pool gets full.
    pub fn tight(seed: u64) -> Self {
        let when_full = if seed.is_multiple_of(2) { WhenFull::Refuse } else { WhenFull::DropOldest };
        Self::of(seed, TIGHT_KIB, Some(when_full))
    }

    fn of(seed: u64, slow_kib: u64, when_full: Option<WhenFull>) -> Self {
        let sim = Sim::new(seed);
        // Half of the worlds have queues before their disks.
        let spec =
            |kib: u64| DiskSpec { jitter: 0.5, rotational: (seed / 2).is_multiple_of(2), ..DiskSpec::nvme(kib << 10) };
        let disk = |name: &str, kib| sim.disk(name, spec(kib));
        let slow = (0..6).map(|at| disk(&format!("slow{at}"), slow_kib));
        let disks = [disk("fast0", 20 << 10), disk("fast1", 20 << 10)].into_iter().chain(slow).collect();
        let reference = Reference { when_full, ..Reference::default() };
        let world = Self { rng: sim.rng("model"), reference, faulty: false, names: 0, sim, disks };
        // One to four blocks beside the sixteen of an extent: what is floating there soon lacks free ones.
        let floating_percent = 6 * (1 + (seed / 3 % 4) as u8);
        let pool = PoolSpec {
            uuid: [9; 16],
            extent_bytes: EXTENT,
            controllers: CONTROLLERS,
            journal_bytes: 5 << 20,
            floating_percent,
        };
        // A third has nothing faster for its journals, and so writes straight to places; only there is room for both.
        let fast = if when_full.is_none() && seed % 3 == 1 { 0 } else { 2 };
        rig::format(&world.sim, &world.disks, fast, &pool);
        world
    }

    /// What each disk holds.
    pub fn contents(&self) -> Vec<u64> {
        self.disks.iter().map(SimDisk::digest).collect()
    }

    pub fn disk_names(&self) -> Vec<String> {
        self.disks.iter().map(|disk| disk.name().to_owned()).collect()
    }

    async fn open(
        seed: u64,
        disks: &[SimDisk],
        runtime: Rc<dyn kura_block::Runtime>,
        when_full: Option<WhenFull>,
    ) -> Opened {
        let mut degraded = false;
        for _ in 0..3 {
            let started = Self::start(seed, disks, disks, Rc::clone(&runtime), (degraded, when_full)).await;
            let error = match started {
                Ok(opened) => return opened,
                Err(error) => error.to_string(),
            };
            // One disk at most is faulty here: the others have everything. It may have died in the midst of the start.
            degraded |= error.contains("journal copy");
            let may_start = degraded || error.contains("Start again");
            assert!(may_start, "seed {seed}: the node does not start: {error}");
        }
        panic!("seed {seed}: the node does not start, asked again and again");
    }

    /// Starts the node on its disks, of which those in `here` are found.
    async fn start(
        seed: u64,
        disks: &[SimDisk],
        here: &[SimDisk],
        runtime: Rc<dyn kura_block::Runtime>,
        (degraded, when_full): (bool, Option<WhenFull>),
    ) -> Result<Opened> {
        let paths: Vec<String> = disks.iter().map(|disk| disk.name().to_owned()).collect();
        // They may be others at each start.
        let mut draw = ChaCha8Rng::seed_from_u64(seed ^ runtime.now().as_micros() as u64);
        let sharing = Sharing::ALL[draw.random_range(0..Sharing::ALL.len())];
        let saving = if draw.random_bool(0.25) { Saving::Copy } else { Saving::Redirect };
        println!("free extents are shared by {sharing}, saved is by {saving:?}");
        let config = Config {
            settings: Settings {
                write_buffer_bytes: 256 << 10,
                straight_blocks: 1 << (seed % 5),
                pages: 8,
                disk_queue: 1 + seed as usize % 3,
                scatter: seed.is_multiple_of(2),
                // 1 to 16 blocks.
                chunk_blocks: 1 << (seed % 5),
                // One disk may go and all stripes still have a place.
                raid_width: Some(3 + (seed / 5 % 3) as u8),
                // A hot area that is soon full: four extents of sixteen blocks.
                hot: HotSettings {
                    share_permille: 0,
                    track_slots: 4,
                    batch: 1 + seed as u16 % 4,
                    cold_age: 1,
                    eager: draw.random_bool(0.5),
                    by_stripe: seed.is_multiple_of(3),
                    borrows: draw.random_bool(0.3),
                    ..HotSettings::TODAY
                },
                when_full: when_full.unwrap_or_default(),
                sharing,
                saving,
                ..Settings::default()
            },
            journal: JournalLimits {
                linger: Duration::from_millis(1),
                batch_bytes: 64 << 10,
                often_bytes: (seed % 2) << 15,
            },
            degraded,
            ..Config::default()
        };
        let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
        let (node, controllers) = Node::start(&paths, SimDisk::opener(here), &runtime, &shared, config).await?;
        for controller in &controllers {
            let policy = Box::new(Restless { rng: ChaCha8Rng::seed_from_u64(seed), content: false });
            let tier = TierSetup {
                policy,
                // One extent or two.
                region_bytes: EXTENT << (seed / 2 % 2),
                interval: Duration::from_micros(500),
                single_disk: None,
            };
            controller.store().set_tier(Some(tier)).unwrap();
        }
        Ok(Opened { node, controllers })
    }

    /// Starts the node without some of its disks: it has everything, or refuses to start and changes nothing. True when it
    /// started.
    pub fn start_without(&mut self, away: usize) -> bool {
        let (runtime, seed, faulty) = (self.sim.runtime(), self.sim.seed(), self.faulty);
        let mut here = self.disks.clone();
        for _ in 0..away {
            let gone = here.remove(self.rng.random_range(0..here.len()));
            println!("seed {seed}: {} is away", gone.name());
        }
        let reference = RefCell::new(std::mem::take(&mut self.reference));
        let started = self.sim.block_on(async {
            match Self::start(seed, &self.disks, &here, runtime, (false, None)).await {
                Ok(controllers) => {
                    compare(&controllers, &reference, seed).await;
                    check(&controllers, seed, faulty).await;
                    true
                }
                Err(error) => {
                    assert!(error.to_string().contains("bring"), "seed {seed}: {error}");
                    false
                }
            }
        });
        self.sim.crash();
        if !started {
            let runtime = self.sim.runtime();
            self.sim.block_on(async {
                let controllers = Self::start(seed, &self.disks, &self.disks, runtime, (false, None)).await.unwrap();
                let disks = controllers.node.pool().await.unwrap().disks;
                assert!(disks.iter().all(|disk| disk.state == DiskState::Healthy), "seed {seed}: {disks:?}");
                compare(&controllers, &reference, seed).await;
                check(&controllers, seed, faulty).await;
            });
        }
        started
    }

    /// Starts the node, compares it with the model, and does so many steps of random work.
    pub fn incarnation(&mut self, steps: u32) -> Outcome<()> {
        let runtime: Rc<dyn kura_block::Runtime> = self.sim.runtime();
        let (disks, seed, faulty) = (self.disks.clone(), self.sim.seed(), self.faulty);
        let when_full = self.reference.when_full;
        let (rng, reference, names) =
            (&mut self.rng, RefCell::new(std::mem::take(&mut self.reference)), &mut self.names);
        let outcome = self.sim.run_until_crash_or(async {
            let controllers = Self::open(seed, &disks, Rc::clone(&runtime), when_full).await;
            compare(&controllers, &reference, seed).await;
            for _ in 0..steps {
                rest(&*runtime, rng).await;
                step(&controllers, &reference, rng, names, seed).await;
            }
            if steps > 0 && rng.random_bool(0.3) {
                check(&controllers, seed, faulty).await;
            }
            if rng.random_bool(0.3) {
                for controller in &*controllers {
                    controller.store().stop().await.unwrap();
                }
            }
        });
        self.reference = reference.into_inner();
        if outcome == Outcome::Done(()) {
            // Stopped or not, what ran is gone before the next incarnation opens the disks.
            self.sim.crash();
        }
        outcome
    }

    /// Starts the node once more, reads everything, and checks everything.
    pub fn last_check(&mut self) {
        let (disks, seed, runtime) = (self.disks.clone(), self.sim.seed(), self.sim.runtime());
        let faulty = self.faulty;
        let when_full = self.reference.when_full;
        let reference = RefCell::new(std::mem::take(&mut self.reference));
        self.sim.block_on(async {
            let controllers = Self::open(seed, &disks, runtime, when_full).await;
            compare(&controllers, &reference, seed).await;
            check(&controllers, seed, faulty).await;
            for controller in &*controllers {
                controller.store().stop().await.unwrap();
            }
        });
        self.reference = reference.into_inner();
    }

    /// Deletes every volume, those first that nothing is made of and else in random order, while a client reads: that always works,
    /// whatever is under way, and the pool has everything back. `new` volumes are made then, as large as when it was new.
    pub fn empty(&mut self, new: bool) -> Outcome<()> {
        let (disks, seed) = (self.disks.clone(), self.sim.seed());
        let runtime: Rc<dyn kura_block::Runtime> = self.sim.runtime();
        let when_full = self.reference.when_full;
        let (rng, reference) = (&mut self.rng, RefCell::new(std::mem::take(&mut self.reference)));
        let outcome = self.sim.run_until_crash_or(async {
            let controllers = Self::open(seed, &disks, Rc::clone(&runtime), when_full).await;
            compare(&controllers, &reference, seed).await;
            let emptied = std::cell::Cell::new(false);
            let reads = async {
                while !emptied.get() {
                    for device in
                        controllers.iter().filter_map(|one| one.open_volume(&one.volumes().first()?.spec.name).ok())
                    {
                        let _ = device.read(0, BLOCK).await;
                    }
                    runtime.sleep(Duration::from_millis(20)).await;
                }
            };
            let deletes = async {
                loop {
                    forget_dropped(&controllers, &mut reference.borrow_mut(), seed);
                    let leaves = controllers.iter().flat_map(|one| one.volumes());
                    let leaves = leaves.filter(|volume| volume.snapshots == 0).map(|volume| volume.spec.name);
                    let leaves: Vec<_> = leaves.collect();
                    if leaves.is_empty() {
                        break;
                    }
                    delete(&controllers, &reference, &leaves[rng.random_range(0..leaves.len())], seed).await;
                    rest(&*runtime, rng).await;
                }
                assert!(reference.borrow().volumes.is_empty(), "seed {seed}: some cannot be deleted");
                all_is_back(&controllers, &*runtime, seed).await;
                emptied.set(true);
            };
            futures::future::join(reads, deletes).await;
            // A checkpoint gives it to the others.
            runtime.sleep(Duration::from_secs(2)).await;
            for (at, controller) in controllers.iter().enumerate().filter(|_| new) {
                let (name, size_bytes, layout) = (format!("new{at}"), 64 * BLOCK as u64, Layout::Mirror);
                let spec = VolumeSpec { name, size_bytes, layout, thick: true, read_only: false };
                let made = controller.store().create(spec).await;
                made.unwrap_or_else(|error| panic!("seed {seed}: {at}: the pool is full of nothing: {error}"));
            }
            check(&controllers, seed, true).await;
        });
        self.reference = reference.into_inner();
        if outcome == Outcome::Done(()) {
            self.sim.crash();
        }
        outcome
    }

    /// Lets one disk leave, or fail, in the middle of random work: the same one whenever it is called.
    pub fn part_with_a_disk(&mut self, steps: u32) -> Outcome<()> {
        let (disks, seed) = (self.disks.clone(), self.sim.seed());
        let runtime: Rc<dyn kura_block::Runtime> = self.sim.runtime();
        let when_full = self.reference.when_full;
        let (device, leaves) = (DeviceId((seed / 2 % 8) as u16), seed % 2 == 0);
        let (rng, reference, names) =
            (&mut self.rng, RefCell::new(std::mem::take(&mut self.reference)), &mut self.names);
        let outcome = self.sim.run_until_crash_or(async {
            let controllers = Self::open(seed, &disks, Rc::clone(&runtime), when_full).await;
            compare(&controllers, &reference, seed).await;
            for controller in &*controllers {
                let store = controller.store();
                if leaves { store.leave_disk(device).await } else { store.fail_disk(device).await }.unwrap();
            }
            for _ in 0..steps {
                rest(&*runtime, rng).await;
                step(&controllers, &reference, rng, names, seed).await;
            }
        });
        self.reference = reference.into_inner();
        if outcome == Outcome::Done(()) {
            self.sim.crash();
        }
        outcome
    }

    /// Waits for the rebuild; then the power goes, one more disk dies, and everything must still be there.
    pub fn lose_another(&mut self) {
        let (disks, seed, runtime) = (self.disks.clone(), self.sim.seed(), self.sim.runtime());
        let when_full = self.reference.when_full;
        let reference = RefCell::new(std::mem::take(&mut self.reference));
        let unwanted: Vec<DeviceId> = self.sim.block_on(async {
            let runtime: Rc<dyn kura_block::Runtime> = runtime;
            let controllers = Self::open(seed, &disks, Rc::clone(&runtime), when_full).await;
            let mut unwanted = Vec::new();
            for controller in &*controllers {
                rebuilt(controller, &*runtime, seed).await;
                unwanted.extend(controller.store().unwanted().into_keys());
            }
            // The checkpoint that ends a rebuild.
            runtime.sleep(Duration::from_millis(100)).await;
            unwanted
        });
        self.sim.crash();
        let good: Vec<_> = (2..disks.len()).filter(|id| !unwanted.contains(&DeviceId(*id as u16))).collect();
        disks[good[self.rng.random_range(0..good.len())]].inject(FaultKind::Dead);
        let runtime = self.sim.runtime();
        self.sim.block_on(async {
            let controllers = Self::open(seed, &disks, runtime, when_full).await;
            compare(&controllers, &reference, seed).await;
            check(&controllers, seed, true).await;
        });
    }
}

/// Waits until no volume, and no PoolVOL, has anything any more.
async fn all_is_back(controllers: &[Rc<Controller>], runtime: &dyn kura_block::Runtime, seed: u64) {
    let held =
        || controllers.iter().map(|one| one.store().space()).map(|space| space.volume_bytes + space.snapshot_bytes);
    for _ in 0..500 {
        if held().sum::<u64>() == 0 {
            return;
        }
        runtime.sleep(Duration::from_millis(10)).await;
    }
    panic!("seed {seed}: all volumes are gone, and something is held still: {:?}", held().collect::<Vec<_>>());
}

/// Waits until a controller has nothing left on disks that are failed or leaving.
async fn rebuilt(controller: &Controller, runtime: &dyn kura_block::Runtime, seed: u64) {
    let store = controller.store();
    for _ in 0..10_000 {
        if store.unwanted().values().all(|held| held.copies == 0) {
            return;
        }
        runtime.sleep(Duration::from_millis(10)).await;
    }
    panic!("seed {seed}: no rebuild: {:?} {:?}", store.unwanted(), store.rebuild_stalled());
}

/// Checks everything. Without faults nothing is to be repaired: no write path, and no recovery, leaves copies that differ.
async fn check(controllers: &[Rc<Controller>], seed: u64, faulty: bool) {
    for controller in controllers {
        let report = controller.store().check(Check::Repair).await.unwrap();
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
        assert!(faulty || report.repaired == 0, "seed {seed}: {} blocks to repair, without a fault", report.repaired);
    }
}

/// Holds every volume against the model; what a power cut left open is settled by what is found.
async fn compare(controllers: &[Rc<Controller>], reference: &RefCell<Reference>, seed: u64) {
    let mut found = BTreeSet::new();
    for controller in controllers {
        for volume in controller.volumes() {
            let (name, size) = (volume.spec.name, volume.spec.size_bytes as usize);
            let device = match controller.open_volume(&name) {
                // A roll-back that goes on in the background wanted room.
                Err(error) if error.kind() == Kind::Missing && reference.borrow().may_drop(&name) => continue,
                device => device.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}")),
            };
            let read = device.read(0, size).await.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}"));
            let adopted = reference.borrow_mut().adopt(&name, &read.contiguous());
            adopted.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            found.insert(name);
        }
    }
    settle(&mut reference.borrow_mut(), &found, seed);
    for owner in controllers {
        let here: Vec<String> = owner.volumes().into_iter().map(|volume| volume.spec.name).collect();
        let families = here.iter().filter_map(|name| Some([name.clone(), parent_of(owner, name)?]));
        for [name, parent] in families.filter(|pair| pair.iter().all(|name| found.contains(name))) {
            changes(owner, reference, [&name, &parent], seed).await;
            changes(owner, reference, [&parent, &name], seed).await;
        }
    }
}

/// Only what was found is there from now on.
fn settle(reference: &mut Reference, found: &BTreeSet<String>, seed: u64) {
    reference.at_once = false;
    for (name, volume) in &reference.volumes {
        let may_lack = volume.deleting || !volume.durable || reference.may_drop(name);
        assert!(found.contains(name) || may_lack, "seed {seed}: volume {name} is gone");
    }
    reference.volumes.retain(|name, _| found.contains(name));
    for volume in reference.volumes.values_mut() {
        volume.durable = true;
        volume.deleting = false;
    }
}
