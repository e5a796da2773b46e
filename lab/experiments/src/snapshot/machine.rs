//! The controllers at work.

use super::costs::{Costs, time};
use super::memory::{Line, SimMemory};
use anyhow::Result;
use kura_block::{ControllerId, Runtime};
use kura_shared::ControlTables;
use kura_sim::{ChaCha8Rng, Sim, SimRuntime};
use kura_snapshot::method::{Counters, IndexEntry, Kind, Method, Region};
use rand::RngExt;
use rand::seq::SliceRandom;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// What the hosts ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[expect(clippy::struct_field_names, reason = "units stand last")]
pub struct Mix {
    /// Of all requests, those that go to SVOLs; they are reads.
    pub svol_percent: u32,
    /// Of the requests to PVOLs, those that are reads.
    pub read_percent: u32,
    /// Of the writes, those that make a save copy: the first to their region since the snapshot.
    pub save_percent: u32,
}

/// A request of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Card {
    SvolRead,
    Read,
    Write,
    /// The first to its region since the snapshot.
    FirstWrite,
}

impl Mix {
    /// Requests in exactly these proportions, [`DECK`] of them: so chance has no part in how much there is to do.
    fn deck(self) -> Vec<Card> {
        let part = |of: usize, percent: u32| of * percent as usize / 100;
        let svol_reads = part(DECK, self.svol_percent);
        let reads = part(DECK - svol_reads, self.read_percent);
        let writes = DECK - svol_reads - reads;
        let saves = part(writes, self.save_percent);
        let cards = [
            (Card::SvolRead, svol_reads),
            (Card::Read, reads),
            (Card::Write, writes - saves),
            (Card::FirstWrite, saves),
        ];
        cards.into_iter().flat_map(|(card, count)| std::iter::repeat_n(card, count)).collect()
    }
}

/// How old data are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Saving {
    /// They are copied to the pool.
    Copy,
    /// New data go to the pool: nothing is copied, but a read of the PVOL looks where they are.
    Redirect,
}

/// Controllers under a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    pub controllers: u16,
    pub mix: Mix,
    pub saving: Saving,
    pub pool_entries: u32,
    /// A thousand requests each: so many are measured on each controller, after one that is not.
    pub decks: u64,
    pub costs: Costs,
}

/// What the controllers did, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// Requests a second of the model's time.
    pub per_s: f64,
    pub requests: u64,
    pub saves: u64,
    pub shared_reads: u64,
    pub shared_updates: u64,
    pub messages: u64,
    pub drops: u64,
    pub hits: u64,
}

impl Ran {
    pub fn shared_accesses(&self) -> u64 {
        self.shared_reads + self.shared_updates
    }

    /// So many for each save copy.
    pub fn a_save(&self, count: u64) -> f64 {
        count as f64 / self.saves as f64
    }

    /// So many for a thousand requests.
    pub fn a_thousand(&self, count: u64) -> f64 {
        count as f64 * 1000.0 / self.requests as f64
    }

    fn add(&mut self, other: &Self) {
        self.per_s += other.per_s;
        self.requests += other.requests;
        self.saves += other.saves;
        self.shared_reads += other.shared_reads;
        self.shared_updates += other.shared_updates;
        self.messages += other.messages;
        self.drops += other.drops;
        self.hits += other.hits;
    }
}

/// PVOLs of each controller, each with an SVOL.
const VOLUMES: u64 = 2;
/// Regions of each PVOL that are saved before anything is measured.
const SAVED_BEFORE: u64 = 64;
/// Requests that are in a mix's proportions.
const DECK: usize = 1000;

/// How a controller reaches shared memory, and what its method is.
pub type Joined = (Rc<SimMemory>, Rc<dyn Method>);

/// The controllers of a pool, and the pool's tables.
pub fn join(
    sim: &Sim,
    kind: Kind,
    controllers: u16,
    pool_entries: u32,
    costs: Costs,
) -> (Arc<ControlTables>, Vec<Joined>) {
    let tables = ControlTables::new(pool_entries);
    let line = Line::default();
    let controls: Vec<_> = (0..controllers).map(|id| tables.join(ControllerId(id))).collect();
    let mut joined = Vec::new();
    for control in controls {
        let memory = Rc::new(SimMemory { control, runtime: sim.runtime(), line: Rc::clone(&line), costs });
        joined.push((Rc::clone(&memory), kind.method(memory, controllers)));
    }
    (tables, joined)
}

impl Load {
    /// Runs `kind` under it; `tell` hears which part of the requests is done.
    pub fn run(&self, kind: Kind, seed: u64, tell: &dyn Fn(f64)) -> Result<Ran> {
        let sim = Sim::new(seed);
        let (_, joined) = join(&sim, kind, self.controllers, self.pool_entries, self.costs);
        let busy = Rc::new(Cell::new(self.controllers));
        let work = (0..self.controllers).zip(joined).map(|(id, (_, method))| {
            let worker = Worker::new(&sim, id, *self, method);
            let (busy, told) = (Rc::clone(&busy), id == 0);
            async move {
                worker
                    .work(&busy, &|done| {
                        if told {
                            tell(done);
                        }
                    })
                    .await
            }
        });
        let ran = sim.block_on(futures::future::try_join_all(work))?;
        let mut all = Ran::default();
        for one in &ran {
            all.add(one);
        }
        Ok(all)
    }
}

/// A request.
enum Request {
    PvolRead(Region),
    PvolWrite(Region),
    SvolRead(Region),
}

/// A controller.
struct Worker {
    load: Load,
    method: Rc<dyn Method>,
    runtime: Rc<SimRuntime>,
    chance: RefCell<ChaCha8Rng>,
    deck: RefCell<Vec<Card>>,
    /// Numbers of the PVOLs that it owns, and of those whose SVOLs it owns.
    pvols: Vec<u64>,
    svols: Vec<u64>,
    /// Its own index tables; what is not in them lies in the PVOL.
    index: RefCell<BTreeMap<Region, IndexEntry>>,
    /// The next region of each PVOL that was not written since the snapshot.
    fresh: RefCell<BTreeMap<u64, u64>>,
    /// Where the backup of each SVOL is.
    backup: RefCell<BTreeMap<u64, u64>>,
    saves: Cell<u64>,
}

impl Worker {
    fn new(sim: &Sim, id: u16, load: Load, method: Rc<dyn Method>) -> Self {
        let of = |owner: u16| (0..VOLUMES).map(move |number| u64::from(owner) * VOLUMES + number);
        // An SVOL is made on the next controller, unless the method has it where its PVOL is.
        let owns = |pvol: u16| {
            method.svol_owner(ControllerId(pvol), ControllerId((pvol + 1) % load.controllers)) == ControllerId(id)
        };
        let svols: Vec<u64> = (0..load.controllers).filter(|pvol| owns(*pvol)).flat_map(of).collect();
        let pvols: Vec<u64> = of(id).collect();
        for volume in pvols.iter().chain(&svols) {
            method.serve(*volume);
        }
        Self {
            load,
            method,
            runtime: sim.runtime(),
            chance: RefCell::new(sim.rng(&format!("controller {id}"))),
            deck: RefCell::default(),
            fresh: RefCell::new(pvols.iter().map(|volume| (*volume, 0)).collect()),
            backup: RefCell::new(svols.iter().map(|volume| (*volume, 0)).collect()),
            pvols,
            svols,
            index: RefCell::default(),
            saves: Cell::new(0),
        }
    }

    /// Does its requests, and goes on until the others have done theirs.
    async fn work(&self, busy: &Cell<u16>, tell: &dyn Fn(f64)) -> Result<Ran> {
        for volume in &self.pvols {
            for _ in 0..SAVED_BEFORE {
                self.write(self.fresh_region(*volume)).await?;
            }
        }
        for _ in 0..DECK {
            self.serve().await?;
        }
        let requests = self.requests();
        let (begun, before, saves) = (self.runtime.now(), self.method.counters(), self.saves.get());
        for done in 0..requests {
            self.serve().await?;
            if done % 256 == 0 {
                tell(done as f64 / requests as f64);
            }
        }
        let took = self.runtime.now().saturating_sub(begun);
        let ran = self.ran(took, self.method.counters() - before, self.saves.get() - saves);
        busy.set(busy.get() - 1);
        while busy.get() > 0 {
            self.serve().await?;
        }
        Ok(ran)
    }

    fn requests(&self) -> u64 {
        self.load.decks * DECK as u64
    }

    fn ran(&self, took: Duration, counted: Counters, saves: u64) -> Ran {
        let requests = self.requests();
        let Counters { shared_reads, shared_updates, messages, drops, hits, .. } = counted;
        let per_s = requests as f64 / took.as_secs_f64();
        Ran { per_s, requests, saves, shared_reads, shared_updates, messages, drops, hits }
    }

    /// One request, and what the others have sent.
    async fn serve(&self) -> Result<()> {
        let before = self.method.counters();
        let costs = self.load.costs;
        match self.draw() {
            Request::PvolRead(region) => {
                self.spend(costs.read_us).await;
                if self.load.saving == Saving::Redirect {
                    self.find(region).await?;
                }
            }
            Request::SvolRead(region) => {
                self.spend(costs.read_us).await;
                self.find(region).await?;
            }
            Request::PvolWrite(region) => {
                self.spend(costs.write_us).await;
                self.write(region).await?;
            }
        }
        self.method.attend().done().await?;
        let done = self.method.counters() - before;
        let local = done.hits as f64 * costs.local_us + done.drops as f64 * costs.drop_us;
        self.spend(local + done.received as f64 * costs.receive_us).await;
        Ok(())
    }

    async fn spend(&self, us: f64) {
        self.runtime.sleep(time(us)).await;
    }

    /// The next request. The draws are the same whatever the method.
    fn draw(&self) -> Request {
        let chance = &mut *self.chance.borrow_mut();
        let deck = &mut *self.deck.borrow_mut();
        if deck.is_empty() {
            *deck = self.load.mix.deck();
            deck.shuffle(chance);
        }
        let which = chance.random_range(0..VOLUMES) as usize;
        let mut written = |volume| Region { volume, number: chance.random_range(0..self.fresh.borrow()[&volume]) };
        match deck.pop() {
            Some(Card::SvolRead) => Request::SvolRead(self.backup_region(self.svols[which])),
            Some(Card::FirstWrite) => Request::PvolWrite(self.fresh_region(self.pvols[which])),
            Some(Card::Write) => Request::PvolWrite(written(self.pvols[which])),
            Some(Card::Read) | None => Request::PvolRead(written(self.pvols[which])),
        }
    }

    /// A region that was not written since the snapshot.
    fn fresh_region(&self, volume: u64) -> Region {
        let fresh = &mut *self.fresh.borrow_mut();
        let next = fresh.entry(volume).or_default();
        *next += 1;
        Region { volume, number: *next - 1 }
    }

    /// The next region that the backup reads, over and over: those that are saved by the end, and as many that are not.
    fn backup_region(&self, volume: u64) -> Region {
        let saves = self.load.mix.deck().iter().filter(|card| **card == Card::FirstWrite).count() as u64;
        let regions = 2 * (SAVED_BEFORE + saves * self.load.decks / VOLUMES);
        let backup = &mut *self.backup.borrow_mut();
        let next = backup.entry(volume).or_default();
        *next += 1;
        Region { volume, number: (*next - 1) % regions }
    }

    /// Where the region's snapshot lies.
    async fn lookup(&self, region: Region) -> Result<IndexEntry> {
        if let Some(told) = self.method.lookup_index(region).done().await? {
            self.index.borrow_mut().insert(region, told);
        }
        Ok(self.index.borrow().get(&region).copied().unwrap_or(IndexEntry::Pvol))
    }

    /// Where to read the region from.
    async fn find(&self, region: Region) -> Result<()> {
        if let IndexEntry::Pool(entry) = self.lookup(region).await? {
            self.method.lookup_entry(entry).done().await?;
        }
        Ok(())
    }

    async fn write(&self, region: Region) -> Result<()> {
        if self.lookup(region).await? != IndexEntry::Pvol {
            return Ok(());
        }
        let entry = self.method.take().done().await?;
        if self.load.saving == Saving::Copy {
            self.spend(self.load.costs.copy_us).await;
        }
        let now = self.method.saved(region, entry).done().await?;
        self.index.borrow_mut().insert(region, now);
        self.saves.set(self.saves.get() + 1);
        Ok(())
    }
}
