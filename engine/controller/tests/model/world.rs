//! A node of two controllers on eight simulated disks, random work on it, and the comparison with the model.

use super::reference::{BLOCK, Reference};
use super::restless::Restless;
use super::volumes::{create, delete, forget_dropped, resize, roll_back, snapshot};
use crate::rig;
use kura_block::{Block, Buf, Bufs, DeviceId, Kind, Result};
use kura_controller::{
    Check, Config, Controller, DiskState, HotSettings, JournalLimits, Layout, Node, PoolSpec, Saving, Settings,
    SharedPool, TierSetup, VolumeSpec, WhenFull,
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

/// A size of each slow disk at which random work soon finds the pool full.
const TIGHT_KIB: u64 = 2560;

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
        let pool = PoolSpec { uuid: [9; 16], extent_bytes: EXTENT, controllers: CONTROLLERS, journal_bytes: 5 << 20 };
        rig::format(&world.sim, &world.disks, 2, &pool);
        world
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
        let mut started = Self::start(seed, disks, disks, Rc::clone(&runtime), (false, when_full)).await;
        // One disk at most is faulty here: the others have everything.
        if started.as_ref().is_err_and(|error| error.to_string().contains("journal copy")) {
            started = Self::start(seed, disks, disks, runtime, (true, when_full)).await;
        }
        started.unwrap_or_else(|error| panic!("seed {seed}: the node does not start: {error}"))
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
                when_full: when_full.unwrap_or_default(),
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
                    let leaves = |one: &Rc<Controller>| {
                        let leaves = one.volumes().into_iter().filter(|volume| volume.snapshots == 0);
                        leaves.map(|volume| (Rc::clone(one), volume.spec.name)).collect::<Vec<_>>()
                    };
                    let leaves: Vec<_> = controllers.iter().flat_map(leaves).collect();
                    if leaves.is_empty() {
                        break;
                    }
                    let (owner, name) = &leaves[rng.random_range(0..leaves.len())];
                    delete(owner, &reference, name, seed).await;
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
    let mut found = std::collections::BTreeSet::new();
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
    let reference = &mut *reference.borrow_mut();
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

/// Now and then nobody asks for anything, for as long as it takes to put places in order.
async fn rest(runtime: &dyn kura_block::Runtime, rng: &mut ChaCha8Rng) {
    if rng.random_bool(0.06) {
        runtime.sleep(Duration::from_millis(rng.random_range(200..600))).await;
    }
}

async fn step(controllers: &Opened, reference: &RefCell<Reference>, rng: &mut ChaCha8Rng, names: &mut u32, seed: u64) {
    forget_dropped(controllers, &mut reference.borrow_mut(), seed);
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
        // Sometimes of all volumes there at one instant: they share a PoolVOL from then on.
        let theirs: Vec<String> = owner.volumes().into_iter().map(|volume| volume.spec.name).collect();
        let roots = theirs.iter().map(String::as_str).filter(|other| !other.contains('@'));
        let of: Vec<&str> = if rng.random_bool(0.3) { roots.collect() } else { vec![name] };
        snapshot(owner, reference, &of, *names, read_only).await;
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
        let refuses = |error: &kura_block::Error| reference.borrow_mut().refuses(error);
        // What a full pool refuses may be done in part.
        let done = done.filter(|done| !done.as_ref().is_err_and(refuses));
        match done {
            Some(Ok(())) => reference.borrow_mut().acknowledge(name, first, end, durable),
            Some(Err(_)) => reference.borrow_mut().undo(name, first, end),
            // Each block of a request that nobody waits for any more, or that was refused half-way, is what it was, or what it
            // was to become.
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
