//! What is acknowledged in memory: whole, in order, and durable after a while.

use super::{bucket, bytes, options, put, rig};
use crate::*;
use futures::future::join_all;
use kura_block::Kind;
use kura_sim::{CrashPoint, FaultPlan, Outcome, Sim, SimDisk};
use std::cell::RefCell;
use std::time::Duration;

/// Clients at work.
const CLIENTS: usize = 6;
/// How long the disk takes at most to write what waits, and to flush.
const DISK: Duration = Duration::from_millis(4);

fn open_in_memory(sim: &Sim, disk: &SimDisk) -> Store {
    let options = Options { durability: Durability::Memory, ..options() };
    sim.block_on(Store::open(disk.open(), sim.runtime(), options)).unwrap()
}

fn content(client: usize, at: u64) -> Vec<u8> {
    bytes(client as u64 * 1000 + at, [100, 3000, 7000, 30_000][(client + at as usize) % 4])
}

async fn read(store: &Store, bucket: PartitionId, key: &[u8]) -> Option<Vec<u8>> {
    match store.read(bucket, key, Which::Latest).await {
        Ok(mut reader) => Some(reader.rest().await.unwrap().contiguous().to_vec()),
        Err(error) => {
            assert_eq!(error.kind(), Kind::Missing);
            None
        }
    }
}

/// Puts an object and replaces another one, in a batch, again and again; who was told what, when.
async fn work(
    sim: &Sim,
    store: &Store,
    bucket: PartitionId,
    client: usize,
    told: &RefCell<Vec<(usize, u64, Duration)>>,
) {
    for at in 0.. {
        let content = content(client, at);
        let mut batch = Batch::new();
        batch.put(bucket, format!("{client}/{at}").as_bytes(), put(&content));
        batch.put(bucket, format!("{client}/hot").as_bytes(), put(&content));
        store.commit(batch).await.unwrap();
        told.borrow_mut().push((client, at, sim.now()));
    }
}

/// The power goes while clients keep the log busy without a pause, and nobody asks for anything durable.
#[test]
fn what_a_crash_costs_is_the_newest_and_no_more_than_a_moment() {
    let mut lost = 0;
    for seed in 0..40 {
        let (sim, disk) = rig(seed, 64 << 20);
        let store = open_in_memory(&sim, &disk);
        let bucket = sim.block_on(bucket(&store));
        let told = RefCell::new(Vec::new());
        let after = Duration::from_micros(20_000 + seed * 377);
        sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::After(after)], ..FaultPlan::default() });
        let clients = join_all((0..CLIENTS).map(|client| work(&sim, &store, bucket, client, &told)));
        assert!(matches!(sim.run_until_crash_or(clients), Outcome::Crashed));
        sim.set_plan(&FaultPlan::default());
        let crashed = sim.now();
        sim.crash();
        let store = open_in_memory(&sim, &disk);
        let told = told.into_inner();
        sim.block_on(async {
            let mut newest = [None; CLIENTS];
            let mut first_lost = None;
            for (client, at, when) in &told {
                match read(&store, bucket, format!("{client}/{at}").as_bytes()).await {
                    Some(found) => {
                        assert_eq!(first_lost, None, "{client}/{at} is there, and one before it is not");
                        assert!(found == content(*client, *at), "{client}/{at} is whole");
                        newest[*client] = Some(*at);
                    }
                    None => first_lost = first_lost.or(Some(*when)),
                }
            }
            if let Some(when) = first_lost {
                lost += 1;
                let exposed = crashed.saturating_sub(when);
                assert!(exposed < options().volatile_for + DISK, "lost after {exposed:?}, seed {seed}");
            }
            for (client, newest) in newest.iter().enumerate() {
                // Nobody was told of the next one yet, but it may be there.
                let next = newest.map_or(0, |at| at + 1);
                let is_next = read(&store, bucket, format!("{client}/{next}").as_bytes()).await.is_some();
                let newest = if is_next { Some(next) } else { *newest };
                let hot = read(&store, bucket, format!("{client}/hot").as_bytes()).await;
                assert!(hot == newest.map(|at| content(client, at)), "the batch of {client} is whole, seed {seed}");
            }
        });
        assert!(told.len() > 100, "{} batches", told.len());
    }
    assert!(lost > 20, "{lost} crashes cost something");
}

#[test]
fn partitions_are_durable_and_so_is_what_was_told_before() {
    let (sim, disk) = rig(1, 16 << 20);
    let store = open_in_memory(&sim, &disk);
    sim.block_on(async {
        let first = store.create_partition(b"bucket", Attributes::new(), 0).await.unwrap().id;
        store.create_partition(b"gone", Attributes::new(), 0).await.unwrap();
        store.put(first, b"a", put(&content(1, 1))).await.unwrap();
        store.remove_partition(b"gone").await.unwrap();
    });
    sim.crash();
    let store = open_in_memory(&sim, &disk);
    sim.block_on(async {
        let first = bucket(&store).await;
        assert_eq!(read(&store, first, b"a").await, Some(content(1, 1)));
        assert_eq!(store.partition(b"gone").await.unwrap_err().kind(), Kind::Missing);
        let change = vec![("policy".to_owned(), Some(vec![1]))];
        store.set_partition_attributes(b"bucket", None, change).await.unwrap();
    });
    sim.crash();
    let store = open_in_memory(&sim, &disk);
    sim.block_on(async {
        assert_eq!(store.partition(b"bucket").await.unwrap().attributes.len(), 1);
        store.create_partition(b"other", Attributes::new(), 0).await.unwrap();
    });
    sim.crash();
    let store = open_in_memory(&sim, &disk);
    sim.block_on(store.partition(b"other")).unwrap();
}
