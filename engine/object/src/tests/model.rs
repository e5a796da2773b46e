//! Random operations against a plain map, with several clients at once, restarts and power cuts.

use super::{assert_sound, bucket, bytes, open, rig};
use crate::*;
use kura_block::{Buf, Bufs, Kind, Runtime};
use kura_sim::{ChaCha8Rng, CrashPoint, FaultPlan, Outcome, Sim, SimDisk};
use rand::RngExt;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::rc::Rc;
use std::time::Duration;

/// A version as the reference has it.
#[derive(Clone, Debug, PartialEq)]
struct Held {
    unversioned: bool,
    marker: bool,
    content: Rc<Vec<u8>>,
    note: Vec<u8>,
}

/// A client's keys, each with its versions, the newest first.
type Keys = BTreeMap<Vec<u8>, Vec<Held>>;

/// What one client did: the states that a crash may leave, the oldest of which is durable.
struct Client {
    number: usize,
    rng: ChaCha8Rng,
    states: Vec<Keys>,
    /// It asks for no change to be acknowledged in memory: those may be taken back where the device has no room.
    cautious: bool,
}

const KEYS: usize = 6;

impl Client {
    fn new(sim: &Sim, number: usize) -> Self {
        Self { number, rng: sim.rng(&format!("client {number}")), states: vec![Keys::new()], cautious: false }
    }

    fn now(&self) -> &Keys {
        self.states.last().unwrap()
    }

    fn key(&mut self) -> Vec<u8> {
        let at = self.rng.random_range(0..KEYS);
        // Of very different lengths, with prefixes in common, and bytes of all kinds.
        let mut key = format!("{}/", self.number).into_bytes();
        key.extend(std::iter::repeat_n(at as u8, [1, 2, 200, 3, 1000, 5][at]));
        key
    }

    fn content(&mut self) -> Rc<Vec<u8>> {
        let limit = [100, 5_000, 9_000, 60_000, 250_000][self.rng.random_range(0..5)];
        let len = self.rng.random_range(0..limit);
        Rc::new(bytes(self.rng.random(), len))
    }

    fn live(keys: &Keys, key: &[u8]) -> Option<Held> {
        keys.get(key).and_then(|held| held.first()).filter(|held| !held.marker).cloned()
    }

    /// Goes on until the world ends or `steps` are done.
    async fn work(&mut self, store: &Store, steps: usize) {
        let bucket = bucket(store).await;
        for _ in 0..steps {
            match self.rng.random_range(0..10) {
                0..5 => self.batch(store, bucket).await,
                5..8 => self.edit(store, bucket).await,
                8 => self.read(store, bucket).await,
                _ => self.waste(store).await,
            }
        }
    }

    /// Notes the state behind a change that is about to be made.
    fn intend(&mut self, keys: Keys) {
        self.states.push(keys);
    }

    /// The change was acknowledged so, or failed and left the state before.
    fn done(&mut self, durability: Durability, failed: bool) {
        if failed {
            self.states.pop();
        } else if durability == Durability::Durable {
            self.states.drain(..self.states.len() - 1);
        }
    }

    async fn batch(&mut self, store: &Store, bucket: PartitionId) {
        let mut keys = self.now().clone();
        let mut batch = Batch::new();
        let durability =
            if self.rng.random_bool(0.3) && !self.cautious { Durability::Memory } else { Durability::Durable };
        batch.durability(durability);
        let mut expected = None;
        if self.rng.random_bool(0.3) {
            let key = self.key();
            let is_there = Self::live(&keys, &key).is_some();
            let (condition, holds, kind) = if self.rng.random() {
                (Condition::Absent, !is_there, Kind::Exists)
            } else {
                (Condition::Present, is_there, Kind::Missing)
            };
            batch.require(bucket, &key, condition);
            expected = (!holds).then_some(kind);
        }
        let mut met = Vec::new();
        for _ in 0..self.rng.random_range(1..4) {
            let key = self.key();
            if met.contains(&key) {
                continue;
            }
            met.push(key.clone());
            let versioned = self.rng.random_bool(0.3);
            let held = keys.entry(key.clone()).or_default();
            match self.rng.random_range(0..10) {
                0..5 => {
                    let note = bytes(self.rng.random(), 20);
                    let content = self.content();
                    let attributes = Attributes::from([("note".to_string(), note.clone())]);
                    let content_in = content.as_slice().into();
                    let put = Put { content: content_in, attributes, tag: note.clone(), modified_ms: 1, versioned };
                    batch.put(bucket, &key, put);
                    held.retain(|held| versioned || !held.unversioned);
                    held.insert(0, Held { unversioned: !versioned, marker: false, content, note });
                }
                5..8 => {
                    batch.remove(bucket, &key, Which::Latest);
                    if !held.is_empty() {
                        held.remove(0);
                    }
                }
                8 => {
                    batch.mark(bucket, &key, 1, versioned);
                    held.retain(|held| versioned || !held.unversioned);
                    let content = Rc::default();
                    held.insert(0, Held { unversioned: !versioned, marker: true, content, note: Vec::new() });
                }
                _ => {
                    let note = bytes(self.rng.random(), 20);
                    batch.set_attributes(bucket, &key, Which::Latest, vec![("note".into(), Some(note.clone()))]);
                    match held.first_mut().filter(|held| !held.marker) {
                        Some(held) => held.note = note,
                        None => expected = Some(Kind::Missing),
                    }
                }
            }
        }
        keys.retain(|_, held| !held.is_empty());
        self.intend(keys);
        let result = store.commit(batch).await.map_err(|error| error.kind()).err();
        let fits = result == expected || (expected.is_some() && result.is_some()) || result == Some(Kind::Full);
        assert!(fits, "{result:?} instead of {expected:?}");
        self.done(durability, result.is_some());
    }

    async fn edit(&mut self, store: &Store, bucket: PartitionId) {
        let key = self.key();
        let mut keys = self.now().clone();
        let Some(held) = Self::live(&keys, &key) else { return };
        let mut content = held.content.to_vec();
        let len = content.len();
        let data = self.content();
        let buf: Bufs = Buf::copy_of(&data).into();
        let offset = self.rng.random_range(0..=len + len / 4);
        let choice = self.rng.random_range(0..4);
        match choice {
            0 => content.extend_from_slice(&data),
            1 => {
                content.resize(len.max(offset + data.len()), 0);
                content[offset..offset + data.len()].copy_from_slice(&data);
            }
            2 => content.resize(offset, 0),
            _ => {
                let end = (offset + data.len()).min(len);
                content[offset.min(end)..end].fill(0);
            }
        }
        if content.len() > 400_000 {
            return;
        }
        keys.get_mut(&key).unwrap()[0].content = Rc::new(content);
        self.intend(keys);
        let stat = match choice {
            0 => store.append(bucket, &key, buf, 2).await,
            1 => store.write(bucket, &key, offset as u64, buf, 2).await,
            2 => store.truncate(bucket, &key, offset as u64, 2).await,
            _ => store.clear(bucket, &key, offset as u64, data.len() as u64, 2).await,
        };
        match &stat {
            Ok(stat) => assert_eq!(stat.modified_ms, 2),
            Err(error) => assert_eq!(error.kind(), Kind::Full, "{error}"),
        }
        self.done(Durability::Durable, stat.is_err());
    }

    async fn read(&mut self, store: &Store, bucket: PartitionId) {
        let key = self.key();
        let held = Self::live(self.now(), &key);
        match store.read(bucket, &key, Which::Latest).await {
            Ok(mut reader) => {
                let held = held.unwrap();
                let (a, b) =
                    (self.rng.random_range(0..=held.content.len()), self.rng.random_range(0..=held.content.len()));
                let range = a.min(b)..a.max(b);
                reader.range(range.start as u64..range.end as u64).unwrap();
                assert_eq!(*reader.rest().await.unwrap().contiguous(), held.content[range]);
                assert_eq!(reader.attributes["note"], held.note);
            }
            Err(error) => assert!(held.is_none() && error.kind() == Kind::Missing, "{error}"),
        }
    }

    /// An upload that comes to nothing, at some stage.
    async fn waste(&mut self, store: &Store) {
        let mut upload = store.upload();
        for _ in 0..self.rng.random_range(0..5) {
            let content = self.content();
            if let Err(error) = upload.write(Buf::copy_of(&content).into()).await {
                assert_eq!(error.kind(), Kind::Full, "{error}");
                return;
            }
        }
        if self.rng.random() {
            drop(upload.finish().await);
        }
    }

    /// What the store holds is one of the states that it may hold; from now on it is the only one.
    async fn verify(&mut self, store: &Store, bucket: PartitionId) {
        let prefix = format!("{}/", self.number).into_bytes();
        let query = Query { prefix, versions: true, limit: Some(10_000), ..Query::default() };
        let mut found = Keys::new();
        for item in store.list(bucket, &query).await.unwrap().items {
            let Item::Object { key, stat } = item else { panic!("no delimiter was given") };
            let mut reader = store.read(bucket, &key, stat.which()).await.unwrap();
            let content = Rc::new(reader.rest().await.unwrap().contiguous().to_vec());
            let note = reader.attributes.get("note").cloned().unwrap_or_default();
            let held = Held { unversioned: stat.unversioned, marker: stat.marker, content, note };
            found.entry(key).or_default().push(held);
        }
        let is_one = self.states.contains(&found);
        assert!(is_one, "client {}: the store holds none of its states:\n{}", self.number, self.differences(&found));
        self.states = vec![found];
    }
}

impl Client {
    /// Where the store differs from each state it may hold, for people.
    fn differences(&self, found: &Keys) -> String {
        let short = |held: &Vec<Held>| {
            let each = held.iter().map(|h| (h.unversioned, h.marker, h.content.len(), h.note.first().copied()));
            each.collect::<Vec<_>>()
        };
        let mut out = String::new();
        for (at, state) in self.states.iter().enumerate() {
            writeln!(out, "state {at} of {}", self.states.len()).unwrap();
            let keys: BTreeSet<_> = state.keys().chain(found.keys()).collect();
            for key in keys.into_iter().filter(|key| state.get(*key) != found.get(*key)) {
                let shown = key[..key.len().min(4)].escape_ascii();
                let (is, was) = (found.get(key).map(short), state.get(key).map(short));
                writeln!(out, "  {shown}: {is:?}, not {was:?}").unwrap();
            }
        }
        out
    }
}

/// One world: clients work, the power goes or the store is closed, everything is looked at, and again.
pub(super) fn world(
    seed: u64,
    size_bytes: u64,
    rounds: usize,
    crash: impl Fn(&Sim, usize) -> Option<CrashPoint>,
) -> (u64, Counters) {
    let plan =
        |sim: &Sim, round| FaultPlan { crashes: crash(sim, round).into_iter().collect(), ..FaultPlan::default() };
    world_of(seed, size_bytes, rounds, false, plan, |_, _| {})
}

/// The same with other faults; `cautious` clients ask for nothing to be acknowledged in memory. `rest` does something to the disk
/// whenever no store is open.
pub(super) fn world_of(
    seed: u64,
    size_bytes: u64,
    rounds: usize,
    cautious: bool,
    plan: impl Fn(&Sim, usize) -> FaultPlan,
    mut rest: impl FnMut(&Sim, &SimDisk),
) -> (u64, Counters) {
    let mut all = Counters::default();
    let (sim, disk) = rig(seed, size_bytes);
    let mut clients: Vec<Client> = (0..3).map(|number| Client { cautious, ..Client::new(&sim, number) }).collect();
    for round in 0..rounds {
        sim.set_plan(&plan(&sim, round));
        let shared = Rc::new(RefCell::new(Vec::new()));
        let seen = Rc::new(Cell::new(Counters::default()));
        let outcome = sim.run_until_crash_or(run(
            &sim,
            &disk,
            std::mem::take(&mut clients),
            Rc::clone(&shared),
            Rc::clone(&seen),
        ));
        sim.set_plan(&FaultPlan::default());
        if outcome == Outcome::Done(()) {
            // One store at a time: what is flushed survives this.
            sim.crash();
        }
        all.checkpoints += seen.get().checkpoints;
        all.cleaned_segments += seen.get().cleaned_segments;
        all.evacuated_segments += seen.get().evacuated_segments;
        all.given_up_entries += seen.get().given_up_entries;
        clients = shared.borrow_mut().drain(..).collect();
        assert_eq!(clients.len(), 3, "every client is handed back");
        clients.sort_by_key(|client: &Client| client.number);
        rest(&sim, &disk);
        look_only(&sim, &disk, &mut clients);
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for client in &mut clients {
                client.verify(&store, bucket).await;
            }
            if round % 2 == 0 {
                store.close().await.unwrap();
            }
        });
        assert_sound(&store);
        // Even without a word, nothing that was durable may be lost.
        sim.crash();
        rest(&sim, &disk);
    }
    (sim.digest(), all)
}

/// Verifies what a store shows that is opened to be read only; the next one that is opened shows the same.
fn look_only(sim: &Sim, disk: &SimDisk, clients: &mut [Client]) {
    let before = (disk.counters(), disk.digest());
    let options = Options { read_only: true, ..super::options() };
    let store = sim.block_on(Store::open(disk.open(), sim.runtime(), options)).unwrap();
    assert_sound(&store);
    sim.block_on(async {
        if let Ok(bucket) = store.partition(b"bucket").await {
            for client in clients {
                client.verify(&store, bucket.id).await;
            }
        }
        store.close().await.unwrap();
    });
    let (after, digest) = (disk.counters(), disk.digest());
    assert_eq!((after.writes, after.flushes, after.discards), (before.0.writes, before.0.flushes, before.0.discards));
    assert_eq!(digest, before.1);
}

/// A client that is handed back even when the world ends before it is done.
struct Lent {
    client: Option<Client>,
    back: Rc<RefCell<Vec<Client>>>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.back.borrow_mut().extend(self.client.take());
    }
}

async fn run(
    sim: &Sim,
    disk: &SimDisk,
    clients: Vec<Client>,
    back: Rc<RefCell<Vec<Client>>>,
    seen: Rc<Cell<Counters>>,
) {
    let mut lent: Vec<Lent> =
        clients.into_iter().map(|client| Lent { client: Some(client), back: Rc::clone(&back) }).collect();
    // Less than what is there: some of it is remembered.
    let options = Options { recent_bytes: 400 << 10, ..super::options() };
    let store = Store::open(disk.open(), sim.runtime(), options).await.unwrap();
    bucket(&store).await;
    let left = Rc::new(Cell::new(lent.len()));
    for mut lent in lent.drain(..) {
        let (store, left) = (store.clone(), Rc::clone(&left));
        sim.runtime().spawn(Box::pin(async move {
            if let Some(client) = &mut lent.client {
                client.work(&store, 25).await;
            }
            drop(lent);
            left.set(left.get() - 1);
        }));
    }
    while left.get() > 0 {
        sim.runtime().sleep(Duration::from_micros(300)).await;
        assert_sound(&store);
        seen.set(store.counters());
    }
    store.flush().await.unwrap();
}

#[test]
fn without_a_crash_the_store_is_the_map() {
    for seed in 0..10 {
        world(seed, 16 << 20, 4, |_, _| None);
    }
}

#[test]
fn one_seed_is_one_run() {
    let crash = |_: &Sim, round: usize| (round == 1).then_some(CrashPoint::Op(200));
    assert_eq!(world(77, 8 << 20, 3, crash), world(77, 8 << 20, 3, crash));
}
