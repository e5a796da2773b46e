//! A node of two controllers on eight simulated disks, random work on it, and the comparison with the model.

use super::reference::{BLOCK, Reference, Versions, Volume};
use super::restless::Restless;
use kura_block::{Block, Buf, Bufs, DeviceId, Kind, Result};
use kura_controller::{
    Check, Config, Controller, DiskClass, DiskState, HotSettings, JournalLimits, Layout, NewDisk, Node, PoolSpec,
    Saving, Settings, SharedPool, SnapshotSpec, TierSetup, VolumeSpec, format,
};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, FaultKind, Outcome, Sim, SimDisk};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
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

/// A node that runs.
struct Opened {
    node: Node,
    controllers: Vec<Rc<Controller>>,
}

impl std::ops::Deref for Opened {
    type Target = [Rc<Controller>];

    fn deref(&self) -> &Self::Target {
        &self.controllers
    }
}

/// What one step does to a volume.
#[derive(Clone, Debug)]
enum Action {
    Write { offset: usize, data: Vec<u8>, fua: bool },
    Zero { offset: usize, len: usize, keep: bool },
    Discard { offset: usize, len: usize },
    Read { offset: usize, len: usize },
    Flush,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let sim = Sim::new(seed);
        // Half of the worlds have queues before their disks.
        let spec =
            |mib: u64| DiskSpec { jitter: 0.5, rotational: (seed / 2).is_multiple_of(2), ..DiskSpec::nvme(mib << 20) };
        let disk = |name: &str, mib| sim.disk(name, spec(mib));
        let slow = (0..6).map(|at| disk(&format!("slow{at}"), 16));
        let disks = [disk("fast0", 20), disk("fast1", 20)].into_iter().chain(slow).collect();
        let world =
            Self { rng: sim.rng("model"), reference: Reference::default(), faulty: false, names: 0, sim, disks };
        let new: Vec<_> = world
            .disks
            .iter()
            .enumerate()
            .map(|(id, disk)| NewDisk {
                path: disk.name().into(),
                device: disk.open(),
                class: if id < 2 { DiskClass::Fast } else { DiskClass::Slow },
                uuid: [id as u8 + 1; 16],
            })
            .collect();
        let pool = PoolSpec { uuid: [9; 16], extent_bytes: EXTENT, controllers: CONTROLLERS, journal_bytes: 5 << 20 };
        world.sim.block_on(format(&new, &pool)).unwrap();
        world
    }

    pub fn disk_names(&self) -> Vec<String> {
        self.disks.iter().map(|disk| disk.name().to_owned()).collect()
    }

    async fn open(seed: u64, disks: &[SimDisk], runtime: Rc<dyn kura_block::Runtime>) -> Opened {
        let mut started = Self::start(seed, disks, disks, Rc::clone(&runtime), false).await;
        // One disk at most is faulty here: the others have everything.
        if started.as_ref().is_err_and(|error| error.to_string().contains("journal copy")) {
            started = Self::start(seed, disks, disks, runtime, true).await;
        }
        started.unwrap_or_else(|error| panic!("seed {seed}: the node does not start: {error}"))
    }

    /// Starts the node on its disks, of which those in `here` are found.
    async fn start(
        seed: u64,
        disks: &[SimDisk],
        here: &[SimDisk],
        runtime: Rc<dyn kura_block::Runtime>,
        degraded: bool,
    ) -> Result<Opened> {
        let paths: Vec<String> = disks.iter().map(|disk| disk.name().to_owned()).collect();
        let config = Config {
            settings: Settings {
                write_buffer_bytes: 256 << 10,
                pages: 8,
                disk_queue: 1 + seed as usize % 3,
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
                    eager: seed.is_multiple_of(2),
                    by_stripe: seed.is_multiple_of(3),
                    ..HotSettings::TODAY
                },
                saving: if seed % 4 == 1 { Saving::Copy } else { Saving::Redirect },
                ..Settings::default()
            },
            journal: JournalLimits { linger: Duration::from_millis(1), batch_bytes: 64 << 10 },
            degraded,
            ..Config::default()
        };
        let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
        let (node, controllers) = Node::start(&paths, SimDisk::opener(here), &runtime, &shared, config).await?;
        for controller in &controllers {
            let policy = Box::new(Restless { rng: ChaCha8Rng::seed_from_u64(seed) });
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
            match Self::start(seed, &self.disks, &here, runtime, false).await {
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
                let controllers = Self::start(seed, &self.disks, &self.disks, runtime, false).await.unwrap();
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
        let runtime = self.sim.runtime();
        let (disks, seed, faulty) = (self.disks.clone(), self.sim.seed(), self.faulty);
        let (rng, reference, names) =
            (&mut self.rng, RefCell::new(std::mem::take(&mut self.reference)), &mut self.names);
        let outcome = self.sim.run_until_crash_or(async {
            let controllers = Self::open(seed, &disks, runtime).await;
            compare(&controllers, &reference, seed).await;
            for _ in 0..steps {
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
        let reference = RefCell::new(std::mem::take(&mut self.reference));
        self.sim.block_on(async {
            let controllers = Self::open(seed, &disks, runtime).await;
            compare(&controllers, &reference, seed).await;
            check(&controllers, seed, faulty).await;
            for controller in &*controllers {
                controller.store().stop().await.unwrap();
            }
        });
    }

    /// Lets one disk leave, or fail, in the middle of random work: the same one whenever it is called.
    pub fn part_with_a_disk(&mut self, steps: u32) -> Outcome<()> {
        let (runtime, disks, seed) = (self.sim.runtime(), self.disks.clone(), self.sim.seed());
        let (device, leaves) = (DeviceId((seed / 2 % 8) as u16), seed % 2 == 0);
        let (rng, reference, names) =
            (&mut self.rng, RefCell::new(std::mem::take(&mut self.reference)), &mut self.names);
        let outcome = self.sim.run_until_crash_or(async {
            let controllers = Self::open(seed, &disks, runtime).await;
            compare(&controllers, &reference, seed).await;
            for controller in &*controllers {
                let store = controller.store();
                if leaves { store.leave_disk(device).await } else { store.fail_disk(device).await }.unwrap();
            }
            for _ in 0..steps {
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
        let reference = RefCell::new(std::mem::take(&mut self.reference));
        let unwanted: Vec<DeviceId> = self.sim.block_on(async {
            let runtime: Rc<dyn kura_block::Runtime> = runtime;
            let controllers = Self::open(seed, &disks, Rc::clone(&runtime)).await;
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
            let controllers = Self::open(seed, &disks, runtime).await;
            compare(&controllers, &reference, seed).await;
            check(&controllers, seed, true).await;
        });
    }
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
    let mut found = std::collections::BTreeSet::new();
    for controller in controllers {
        for volume in controller.volumes() {
            let (name, size) = (volume.spec.name, volume.spec.size_bytes as usize);
            let device = controller.open_volume(&name).unwrap();
            let read = device.read(0, size).await.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}"));
            let adopted = reference.borrow_mut().adopt(&name, &read.contiguous());
            adopted.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            found.insert(name);
        }
    }
    let reference = &mut *reference.borrow_mut();
    for (name, volume) in &reference.volumes {
        let may_lack = volume.deleting || !volume.durable;
        assert!(found.contains(name) || may_lack, "seed {seed}: volume {name} is gone");
    }
    reference.volumes.retain(|name, _| found.contains(name));
    for volume in reference.volumes.values_mut() {
        volume.durable = true;
        volume.deleting = false;
    }
}

async fn step(controllers: &Opened, reference: &RefCell<Reference>, rng: &mut ChaCha8Rng, names: &mut u32, seed: u64) {
    let volumes: Vec<String> = reference.borrow().volumes.keys().cloned().collect();
    if volumes.len() < 2 || (volumes.len() < 4 && rng.random_bool(0.05)) {
        *names += 1;
        create(&controllers[*names as usize % controllers.len()], reference, rng, format!("v{names}")).await;
        return;
    }
    let name = &volumes[rng.random_range(0..volumes.len())];
    let owner =
        |name: &str| controllers.iter().find(|one| one.volumes().iter().any(|volume| volume.spec.name == *name));
    let owner = owner(name).unwrap_or_else(|| panic!("seed {seed}: nobody owns {name}"));
    if rng.random_bool(if name.contains('@') { 0.1 } else { 0.03 }) {
        delete(owner, reference, name, seed).await;
        return;
    }
    if volumes.len() < 9 && rng.random_bool(0.1) {
        *names += 1;
        let read_only = rng.random_bool(0.2);
        let name = name.clone();
        snapshot(owner, reference, &name, format!("{}@s{names}", name.replace('@', "-")), read_only).await;
        return;
    }
    let device = owner.open_volume(name).unwrap();
    let size = device.geometry().size_bytes as usize;
    // Work of one step is under way at once and does not overlap: each piece keeps to its own part of the volume.
    let parts = rng.random_range(1..=4);
    let part = size / parts / BLOCK * BLOCK;
    if name.contains('@') && rng.random_bool(0.1) {
        roll_back(owner, reference, name, seed).await;
        return;
    }
    let read_only = reference.borrow().volumes[name].read_only;
    let mut actions: Vec<Action> = (0..parts).map(|at| action(rng, at * part, part)).collect();
    if read_only {
        actions.retain(|action| matches!(action, Action::Read { .. } | Action::Flush));
    }
    let to = (owner.id().0 + 1) % CONTROLLERS;
    let moves = rng.random_bool(0.15);
    // A client may leave while its request is under way. One whose volume moves has left it to the new owner.
    let work = actions.into_iter().map(|action| {
        let polls = (!moves && rng.random_bool(0.15)).then(|| rng.random_range(1..12));
        act(&*device, name, reference, action, (polls, seed))
    });
    let work: Vec<_> = work.collect();
    let moving = async {
        if !moves {
            return;
        }
        match controllers.node.move_volume(name, to).await {
            Ok(moved) => println!("{name} moved to {to}: {moved:?}"),
            Err(error) => {
                assert!(error.kind() == Kind::Busy, "seed {seed}: {name} does not move: {error}");
            }
        }
    };
    futures::future::join(futures::future::join_all(work), moving).await;
    if moves {
        return;
    }
    if rng.random_bool(0.1) {
        resize(owner, reference, rng, name).await;
    }
}

/// Rolls a volume back to a snapshot that is not larger; beyond its end the volume reads as zeroes.
async fn roll_back(owner: &Rc<Controller>, reference: &RefCell<Reference>, snapshot: &str, seed: u64) {
    let volumes = owner.store().volumes();
    let svol = volumes.iter().find(|volume| volume.spec.name == snapshot).unwrap();
    let name = svol.svol.clone().unwrap().pvol;
    let pvol = volumes.iter().find(|volume| volume.spec.name == name).unwrap();
    if pvol.spec.read_only || pvol.spec.size_bytes < svol.spec.size_bytes {
        assert!(owner.store().roll_back(snapshot).await.is_err(), "seed {seed}");
        return;
    }
    let size = pvol.spec.size_bytes as usize;
    let mut bytes = reference.borrow().bytes(snapshot, 0, svol.spec.size_bytes as usize);
    bytes.resize(size, 0);
    reference.borrow_mut().write(&name, 0, &bytes);
    match owner.store().roll_back(snapshot).await {
        Ok(_) => reference.borrow_mut().acknowledge(&name, 0, size / BLOCK, true),
        // One at a time.
        Err(error) => {
            assert!(error.to_string().contains("being rolled back"), "seed {seed}: {error}");
            reference.borrow_mut().undo(&name, 0, size / BLOCK);
        }
    }
}

/// Deletes a volume, or is told that others are made of it.
async fn delete(owner: &Rc<Controller>, reference: &RefCell<Reference>, name: &str, seed: u64) {
    let children =
        owner.store().volumes().iter().any(|volume| volume.svol.as_ref().is_some_and(|svol| svol.pvol == name));
    reference.borrow_mut().volumes.get_mut(name).unwrap().deleting = !children;
    match owner.store().delete(name).await {
        Ok(()) => {
            assert!(!children, "seed {seed}: {name}");
            reference.borrow_mut().volumes.remove(name);
        }
        Err(error) => {
            let rolling = error.to_string().contains("being rolled back");
            assert!(children || rolling, "seed {seed}: {name}: {error}");
            reference.borrow_mut().volumes.get_mut(name).unwrap().deleting = false;
        }
    }
}

/// Makes a snapshot. If a power cut leaves it there, it is what the volume was at that instant, to the last block: what was
/// written before it is durable with it.
async fn snapshot(owner: &Rc<Controller>, reference: &RefCell<Reference>, of: &str, name: String, read_only: bool) {
    let svol = {
        let reference = &mut *reference.borrow_mut();
        let pvol = reference.volumes.get_mut(of).unwrap();
        pvol.versions = true;
        let blocks = pvol.blocks.iter().map(Versions::frozen).collect();
        Volume { blocks, versions: true, read_only, ..Volume::default() }
    };
    reference.borrow_mut().volumes.insert(name.clone(), svol);
    let acknowledged = reference.borrow().acknowledged(of);
    let wanted = SnapshotSpec { of: of.to_owned(), name: name.clone(), read_only };
    let made = owner.store().snapshot(&[wanted], 7).await;
    if made.is_ok() {
        owner.store().flush().await.unwrap();
    }
    let reference = &mut *reference.borrow_mut();
    if let Err(error) = made {
        assert!(error.to_string().contains("being rolled back"), "{name}: {error}");
        reference.volumes.remove(&name);
        return;
    }
    reference.flushed(of, &acknowledged);
    reference.volumes.get_mut(&name).unwrap().durable = true;
}

async fn create(controller: &Rc<Controller>, reference: &RefCell<Reference>, rng: &mut ChaCha8Rng, name: String) {
    let blocks = rng.random_range(8..200);
    let spec = VolumeSpec {
        name: name.clone(),
        size_bytes: (blocks * BLOCK) as u64,
        layout: [Layout::Mirror, Layout::Raid5, Layout::HotMirror][rng.random_range(0..3)],
        thick: rng.random_bool(0.2),
        read_only: false,
    };
    let volume = Volume { blocks: vec![Versions::default(); blocks], ..Volume::default() };
    reference.borrow_mut().volumes.insert(name.clone(), volume);
    controller.store().create(spec).await.unwrap();
    reference.borrow_mut().volumes.get_mut(&name).unwrap().durable = true;
}

/// Grows a volume, or cuts it; a power cut in the middle may leave either size.
async fn resize(controller: &Rc<Controller>, reference: &RefCell<Reference>, rng: &mut ChaCha8Rng, name: &str) {
    controller.store().flush().await.unwrap();
    let acknowledged = reference.borrow().acknowledged(name);
    reference.borrow_mut().flushed(name, &acknowledged);
    let mut blocks = rng.random_range(8..200);
    let before = acknowledged.len();
    if reference.borrow().volumes[name].versions {
        blocks = blocks.max(before);
    }
    if blocks < before {
        // What is cut off may be gone although the old size is still there.
        let cut = vec![0; (before - blocks) * BLOCK];
        reference.borrow_mut().write(name, blocks * BLOCK, &cut);
    }
    reference.borrow_mut().volumes.get_mut(name).unwrap().resizing = Some(blocks);
    controller.store().resize(name, (blocks * BLOCK) as u64).await.unwrap();
    let reference = &mut *reference.borrow_mut();
    let volume = reference.volumes.get_mut(name).unwrap();
    volume.blocks.resize(blocks, Versions::default());
    volume.resizing = None;
}

fn action(rng: &mut ChaCha8Rng, from: usize, len: usize) -> Action {
    let blocks = len / BLOCK;
    let first = rng.random_range(0..blocks);
    let count = rng.random_range(1..=(blocks - first).min(40));
    let (mut offset, mut len) = (from + first * BLOCK, count * BLOCK);
    if rng.random_bool(0.3) {
        let (head, tail) = (rng.random_range(0..BLOCK), rng.random_range(0..BLOCK));
        if head + tail < len {
            (offset, len) = (offset + head, len - head - tail);
        }
    }
    match rng.random_range(0..12) {
        0..=5 => {
            let mut data = vec![0; len];
            rng.fill_bytes(&mut data);
            Action::Write { offset, data, fua: rng.random_bool(0.2) }
        }
        6..=7 => Action::Read { offset, len },
        8 => Action::Zero { offset, len, keep: rng.random_bool(0.5) },
        9 => Action::Discard { offset: offset / BLOCK * BLOCK, len: len / BLOCK * BLOCK },
        _ => Action::Flush,
    }
}

/// What a request comes to, unless it is dropped before: when it has been polled so many times.
async fn until_polled<T>(request: impl Future<Output = T>, polls: Option<u32>) -> Option<T> {
    let (mut request, mut polled) = (std::pin::pin!(request), 0);
    std::future::poll_fn(|context| {
        polled += 1;
        match request.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if Some(polled) == polls => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn act(
    device: &dyn Block,
    name: &str,
    reference: &RefCell<Reference>,
    action: Action,
    (polls, seed): (Option<u32>, u64),
) {
    let settle = async |offset: usize, len: usize, durable: bool, done: Option<kura_block::Result<()>>| {
        let (first, end) = (offset / BLOCK, (offset + len).div_ceil(BLOCK));
        match done {
            Some(Ok(())) => reference.borrow_mut().acknowledge(name, first, end, durable),
            Some(Err(_)) => reference.borrow_mut().undo(name, first, end),
            // Each block of a request that nobody waits for any more is what it was, or what it was to become.
            None => {
                let read = device.read((first * BLOCK) as u64, (end - first) * BLOCK).await;
                let read = read.unwrap_or_else(|error| panic!("seed {seed}: {name}: {error}")).contiguous();
                for (block, found) in (first..end).zip(read.chunks(BLOCK)) {
                    let is_now = || *reference.borrow().bytes(name, block * BLOCK, BLOCK) == *found;
                    if !is_now() {
                        reference.borrow_mut().undo(name, block, block + 1);
                        assert!(is_now(), "seed {seed}: {name} block {block} is half of what was dropped");
                    }
                }
            }
        }
        done.unwrap_or(Ok(()))
    };
    let done = match action {
        Action::Write { offset, data, fua } => {
            reference.borrow_mut().write(name, offset, &data);
            let write = device.write(offset as u64, Bufs::from(Buf::copy_of(&data)), fua);
            settle(offset, data.len(), fua, until_polled(write, polls).await).await
        }
        Action::Zero { offset, len, keep } => {
            reference.borrow_mut().write(name, offset, &vec![0; len]);
            let zero = device.write_zeroes(offset as u64, len as u64, keep);
            settle(offset, len, false, until_polled(zero, polls).await).await
        }
        Action::Discard { offset, len } => {
            reference.borrow_mut().write(name, offset, &vec![0; len]);
            let discard = device.discard(offset as u64, len as u64);
            settle(offset, len, false, until_polled(discard, polls).await).await
        }
        Action::Read { offset, len } => match device.read(offset as u64, len).await {
            Ok(bytes) => {
                let expected = reference.borrow().bytes(name, offset, len);
                assert!(*bytes.contiguous() == expected[..], "seed {seed}: {name} reads wrong at {offset}+{len}");
                Ok(())
            }
            Err(error) => Err(error),
        },
        Action::Flush => {
            let acknowledged = reference.borrow().acknowledged(name);
            let done = device.flush().await;
            reference.borrow_mut().flushed(name, &acknowledged);
            done
        }
    };
    if let Err(error) = done {
        // Its volume is being rolled back to it: it stays as it is.
        assert!(error.to_string().contains("being rolled back"), "seed {seed}: {name}: {error}");
    }
}
