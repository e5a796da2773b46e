//! Controllers that save, look up and free regions at random, and the truth to hold them against.

use crate::slow::Slow;
use kura_block::{ControllerId, Kind as Remedy, Runtime};
use kura_shared::ControlTables;
use kura_sim::{Sim, SimRuntime};
use kura_snapshot::method::{ControlMemory, EntryId, IndexEntry, Kind, Method, PoolEntry, Region, Step};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Regions of a volume; each controller owns one PVOL, and with `message` the SVOL of the next one.
const REGIONS: u64 = 40;

pub struct World {
    pub sim: Sim,
    pub tables: Arc<ControlTables>,
    pub entries: u32,
    pub truth: Rc<Truth>,
    pub actors: Vec<Rc<Actor>>,
}

/// What is, whatever the controllers think.
#[derive(Default)]
pub struct Truth {
    /// Entries that hold something, and those that were handed out and are about to.
    pub used: RefCell<BTreeSet<EntryId>>,
    pub index: RefCell<BTreeMap<Region, EntryId>>,
    /// Regions that are being saved, and by how many.
    saving: RefCell<BTreeMap<Region, u32>>,
    freeing: RefCell<BTreeSet<Region>>,
    pub looked_at_own: Cell<u64>,
    pub conflicts: Cell<u64>,
    pub full: Cell<u64>,
}

pub struct Actor {
    pub id: ControllerId,
    pub method: Rc<dyn Method>,
    pub memory: Rc<Slow>,
    /// This controller's own table.
    pub index: RefCell<BTreeMap<Region, EntryId>>,
    volumes: Vec<u64>,
    /// Regions that it is at work on: one thing at a time with each.
    busy: RefCell<BTreeSet<Region>>,
    runtime: Rc<SimRuntime>,
    chance: RefCell<SmallRng>,
}

impl World {
    pub fn new(seed: u64, kind: Kind, controllers: u16, entries: u32) -> Self {
        let sim = Sim::new(seed);
        let tables = ControlTables::new(entries);
        let mut chance = SmallRng::seed_from_u64(seed);
        let memories: Vec<Rc<Slow>> = (0..controllers)
            .map(|id| {
                let chance = RefCell::new(SmallRng::seed_from_u64(chance.random()));
                Rc::new(Slow { control: tables.join(ControllerId(id)), runtime: sim.runtime(), chance })
            })
            .collect();
        let mut actors = Vec::new();
        for (id, memory) in (0..controllers).zip(memories) {
            let method = kind.method(memory.clone(), controllers);
            let svol = u64::from((id + 1) % controllers);
            let mut volumes = vec![u64::from(id)];
            volumes.extend((method.svol_owner(ControllerId(svol as u16), ControllerId(id)).0 == id).then_some(svol));
            for volume in &volumes {
                method.serve(*volume);
            }
            actors.push(Rc::new(Actor {
                id: ControllerId(id),
                method,
                memory,
                index: RefCell::default(),
                volumes,
                busy: RefCell::default(),
                runtime: sim.runtime(),
                chance: RefCell::new(SmallRng::seed_from_u64(chance.random())),
            }));
        }
        let world = Self { sim, tables, entries, truth: Rc::default(), actors };
        for actor in &world.actors {
            let attends = Rc::clone(actor);
            world.sim.runtime().spawn(Box::pin(async move {
                while attends.memory.arrived().await.is_ok() && attends.method.attend().done().await.is_ok() {}
            }));
        }
        world
    }

    /// All controllers work at once, each in two tasks.
    pub fn work(&self, steps: u32) {
        let tasks = self.actors.iter().flat_map(|actor| [actor, actor]);
        let all = tasks.map(|actor| {
            let (actor, truth) = (Rc::clone(actor), Rc::clone(&self.truth));
            async move {
                for _ in 0..steps {
                    actor.step(&truth).await;
                }
            }
        });
        self.sim.block_on(futures::future::join_all(all));
    }

    /// Each entry of the pool is used by one, in one reserve, or free.
    pub fn check_pool(&self) {
        let used = self.truth.used.borrow();
        let indexed: BTreeSet<EntryId> = self.truth.index.borrow().values().copied().collect();
        assert_eq!(*used, indexed, "an entry is pointed at twice or not at all");
        let reserved: u32 = self.actors.iter().map(|actor| actor.method.reserved()).sum();
        assert_eq!(used.len() as u32 + reserved + self.tables.free(), self.entries);
    }
}

impl Actor {
    async fn step(&self, truth: &Truth) {
        let (region, dice) = {
            let chance = &mut *self.chance.borrow_mut();
            let volume = self.volumes[chance.random_range(0..self.volumes.len())];
            (Region { volume, number: chance.random_range(0..REGIONS) }, chance.random_range(0..10))
        };
        if self.busy.borrow_mut().insert(region) {
            match dice {
                0..5 => self.write(region, truth).await,
                5..7 => self.free(region, truth).await,
                _ => self.look(region, truth).await,
            }
            self.busy.borrow_mut().remove(&region);
        }
        let rest = self.chance.borrow_mut().random_range(0..30_000);
        self.runtime.sleep(Duration::from_nanos(rest)).await;
    }

    /// Where the region's snapshot lies, as this controller knows it.
    async fn lookup(&self, region: Region) -> IndexEntry {
        let told = self.method.lookup_index(region).done().await.expect("shared memory answers");
        let own = self.index.borrow().get(&region).map_or(IndexEntry::Pvol, |entry| IndexEntry::Pool(*entry));
        let now = told.unwrap_or(own);
        self.note(region, now);
        now
    }

    fn note(&self, region: Region, now: IndexEntry) {
        match now {
            IndexEntry::Pvol => self.index.borrow_mut().remove(&region),
            IndexEntry::Pool(entry) => self.index.borrow_mut().insert(region, entry),
        };
    }

    /// A write: a save copy first where the region has none.
    async fn write(&self, region: Region, truth: &Truth) {
        if !truth.begin_save(region, self.method.kind() == Kind::Message) {
            return;
        }
        if self.lookup(region).await == IndexEntry::Pvol {
            match self.method.take().done().await {
                Ok(entry) => {
                    assert!(truth.used.borrow_mut().insert(entry), "{entry:?} is handed out twice");
                    self.runtime.sleep(Duration::from_micros(3)).await;
                    self.saved(region, entry, truth).await;
                }
                Err(error) => {
                    assert_eq!(error.kind(), Remedy::Full, "{error}");
                    truth.full.set(truth.full.get() + 1);
                }
            }
        }
        truth.end_save(region);
    }

    async fn saved(&self, region: Region, entry: EntryId, truth: &Truth) {
        // The loser's entry is free before `saved` resolves, and the winner's is known before the loser is told.
        let mine = IndexEntry::Pool(entry);
        truth.used.borrow_mut().remove(&entry);
        let now = self.method.saved(region, entry).done().await.expect("shared memory answers");
        self.note(region, now);
        if now == mine {
            assert!(truth.used.borrow_mut().insert(entry), "{entry:?} is handed out twice");
            assert_eq!(truth.index.borrow_mut().insert(region, entry), None, "{region:?} is saved twice");
        } else {
            truth.conflicts.set(truth.conflicts.get() + 1);
        }
    }

    async fn free(&self, region: Region, truth: &Truth) {
        if truth.is_changing(region) {
            return;
        }
        truth.freeing.borrow_mut().insert(region);
        if let IndexEntry::Pool(entry) = self.lookup(region).await {
            assert!(truth.used.borrow_mut().remove(&entry), "{entry:?} is freed twice");
            assert_eq!(truth.index.borrow_mut().remove(&region), Some(entry));
            self.note(region, IndexEntry::Pvol);
            self.method.free(&[(region, entry)]).done().await.expect("shared memory answers");
        }
        truth.freeing.borrow_mut().remove(&region);
    }

    /// Where the method says that the own table is right, it is.
    async fn look(&self, region: Region, truth: &Truth) {
        if truth.is_changing(region) {
            // What it is told may be old or new.
            self.lookup(region).await;
            return;
        }
        let is = truth.index.borrow().get(&region).copied();
        if matches!(self.method.lookup_index(region), Step::Done(None)) {
            let own = self.index.borrow().get(&region).copied();
            assert_eq!(own, is, "controller {} uses a stale copy of {region:?}", self.id.0);
            truth.looked_at_own.set(truth.looked_at_own.get() + 1);
        }
        let Some(entry) = is else { return };
        if matches!(self.method.lookup_entry(entry), Step::Done(None)) {
            let holder = futures::executor::block_on(self.memory.control.read_entry(entry)).expect("it is an entry");
            assert_ne!(holder, PoolEntry::Free, "{entry:?} is used and free");
        }
    }
}

impl Truth {
    fn is_changing(&self, region: Region) -> bool {
        self.saving.borrow().contains_key(&region) || self.freeing.borrow().contains(&region)
    }

    /// Begins to save a region; with `beside`, beside others who save it too.
    fn begin_save(&self, region: Region, beside: bool) -> bool {
        let may = !self.is_changing(region) || (beside && !self.freeing.borrow().contains(&region));
        if may {
            *self.saving.borrow_mut().entry(region).or_default() += 1;
        }
        may
    }

    fn end_save(&self, region: Region) {
        let saving = &mut *self.saving.borrow_mut();
        let others = saving.remove(&region).map_or(0, |count| count - 1);
        if others > 0 {
            saving.insert(region, others);
        }
    }
}
