//! What must hold of the methods, with several controllers at once over shared memory that takes its time.

mod slow;
mod world;

use kura_block::{ControllerId, Kind as Remedy, Runtime};
use kura_snapshot::method::{ControlMemory, EntryId, Kind, Region};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;
use world::World;

/// Small pools, so that they run full, and a pool so large that there are reserves.
#[test]
fn nothing_is_handed_out_twice_and_no_stale_copy_is_used() {
    for kind in Kind::ALL {
        let (mut looked, mut conflicts, mut full) = (0, 0, 0);
        for seed in 0..120 {
            let entries = [60, 90, 20_000][seed as usize % 3];
            let world = World::new(seed, kind, 2 + seed as u16 % 3, entries);
            world.work(150);
            world.check_pool();
            looked += world.truth.looked_at_own.get();
            conflicts += world.truth.conflicts.get();
            full += world.truth.full.get();
        }
        assert!(looked > 1000, "{kind}: own copies were looked at {looked} times");
        assert!(full > 100, "{kind}: the pool was full {full} times");
        assert_eq!(conflicts > 10, kind == Kind::Message, "{kind}: {conflicts} regions were saved by two at once");
    }
}

/// Every method counts what the table in the module's documentation says.
#[test]
fn each_method_costs_what_it_promises() {
    for kind in Kind::ALL {
        let world = World::new(1, kind, 4, 400_000);
        let saver = Rc::clone(&world.actors[0]);
        let before = saver.method.counters();
        let region = |number| Region { volume: 0, number };
        world.sim.block_on(async {
            for number in 0..1000 {
                let entry = saver.method.take().done().await.unwrap();
                saver.method.saved(region(number), entry).done().await.unwrap();
            }
        });
        let cost = saver.method.counters() - before;
        let accesses = (cost.shared_reads, cost.shared_updates);
        let batches = 1000_u64.div_ceil(50);
        let (expected, messages) = match kind {
            // Its part of the pool, once.
            Kind::Aggregate => ((1, 1), 0),
            Kind::Message => ((0, 2000), 3000),
            Kind::AccessChange => ((1000, 1000), 0),
            Kind::Lease => ((batches, batches), 0),
        };
        assert_eq!((accesses, cost.messages), (expected, messages), "{kind}");
        for other in &world.actors[1..] {
            other.method.attend();
            let heard = other.method.counters();
            assert_eq!(heard.received, messages / 3, "{kind}");
            // The controller of the SVOL drops index info too.
            let copies = if other.id == ControllerId(3) { 2 } else { 1 };
            assert_eq!(heard.drops, heard.received * copies, "{kind}");
        }
    }
}

/// Controllers of unequal appetite fill a pool, each in four tasks; only one that cannot share leaves anything.
#[test]
fn the_pool_is_used_to_the_last_entry() {
    let runs = Kind::ALL.into_iter().flat_map(|kind| [(kind, 100, 1), (kind, 20_000, 2)]);
    for (kind, entries, seed) in runs.chain((3..9).map(|seed| (Kind::Lease, 40_000, seed))) {
        let world = World::new(seed, kind, 4, entries);
        let taken = RefCell::new(BTreeSet::new());
        let stranded = Cell::new(0);
        let reserved = || world.actors.iter().map(|actor| actor.method.reserved()).sum::<u32>();
        let runtime = world.sim.runtime();
        let fill = async |appetite: usize| {
            loop {
                match world.actors[appetite].method.take().done().await {
                    Ok(entry) => assert!(taken.borrow_mut().insert(entry), "{entry:?} is handed out twice"),
                    Err(error) => {
                        assert_eq!(error.kind(), Remedy::Full, "{error}");
                        // Entries on their way to somebody who needs them count.
                        return entries - world.tables.free() - reserved();
                    }
                }
                stranded.set(reserved().max(stranded.get()));
                runtime.sleep(Duration::from_micros(10 * (1 + 5 * appetite as u64))).await;
            }
        };
        let tasks = (0..16).map(|task| fill(task % 4));
        let at_first_full = world.sim.block_on(futures::future::join_all(tasks)).into_iter().min();
        assert_eq!(taken.borrow().len() as u32, entries, "{kind}: not all was handed out in the end");
        if kind == Kind::Aggregate {
            assert!(at_first_full < Some(entries * 2 / 3), "{kind}: {at_first_full:?} of {entries}");
        } else {
            // Entries that are being claimed are not free for others of the same controller.
            let being_claimed = if kind == Kind::Message { 15 } else { 0 };
            assert!(at_first_full >= Some(entries - being_claimed), "{kind}: {at_first_full:?} of {entries}");
            assert!(stranded.get() <= entries / 1000, "{kind}: {} stranded", stranded.get());
        }
    }
}

/// What one controller frees in a full pool, another one takes.
#[test]
fn an_entry_freed_in_a_full_pool_is_found() {
    for kind in [Kind::Message, Kind::AccessChange, Kind::Lease] {
        for entries in [50, 20_000] {
            let world = World::new(8, kind, 2, entries);
            let [frees, takes] = [0, 1].map(|id: usize| Rc::clone(&world.actors[id].method));
            world.sim.block_on(async {
                let first = frees.take().done().await.unwrap();
                let region = Region { volume: 0, number: 0 };
                frees.saved(region, first).done().await.unwrap();
                while takes.take().done().await.is_ok() {}
                frees.free(&[(region, first)]).done().await.unwrap();
                assert_eq!(takes.take().done().await.unwrap(), first, "{kind}");
                assert_eq!(takes.take().done().await.unwrap_err().kind(), Remedy::Full, "{kind}");
            });
        }
    }
}

/// A controller that came to more than its part of the pool gives that back as it frees it, and another one finds it.
#[test]
fn aggregate_gives_each_controller_its_part_again() {
    let world = World::new(8, Kind::Aggregate, 2, 100);
    let [has, lacks] = [0, 1].map(|id: usize| Rc::clone(&world.actors[id]));
    let fill = async || {
        let mut count = 0;
        while lacks.method.take().done().await.is_ok() {
            count += 1;
        }
        count
    };
    world.sim.block_on(async {
        let held: Vec<EntryId> = (0..80).map(EntryId).collect();
        has.memory.adopt(None, held.clone()).await.unwrap();
        has.method.adopt(&held);
        assert_eq!(fill().await, 20, "there are no more");
        let region = |entry: &EntryId| (Region { volume: 0, number: entry.0.into() }, *entry);
        let freed: Vec<_> = held.iter().map(region).collect();
        has.method.free(&freed[..10]).done().await.unwrap();
        assert_eq!(fill().await, 10);
        has.method.free(&freed[10..]).done().await.unwrap();
        assert_eq!((fill().await, has.method.reserved(), world.tables.free()), (20, 50, 0));
    });
}

/// Each method finds what a pool has grown by.
#[test]
fn a_full_pool_that_grows_is_used_on() {
    for kind in Kind::ALL {
        let world = World::new(5, kind, 2, 3000);
        let saver = &world.actors[0];
        let fill = || {
            world.sim.block_on(async {
                let mut count = 0;
                while saver.method.take().done().await.is_ok() {
                    count += 1;
                }
                count
            })
        };
        let mine = if kind == Kind::Aggregate { 2 } else { 1 };
        assert_eq!(fill(), 3000 / mine, "{kind}");
        world.tables.grow(40_000);
        assert_eq!(fill(), 37_000 / mine, "{kind}");
    }
}

/// A controller dies with a reserve and with entries that it took and never pointed at; another takes its volume over.
#[test]
fn what_a_dead_controller_left_is_reclaimed() {
    let region = |number| Region { volume: 0, number };
    let entries = 20_000;
    let world = World::new(9, Kind::Lease, 2, entries);
    let [dead, heir] = [0, 1].map(|id: usize| Rc::clone(&world.actors[id]));
    world.sim.block_on(async {
        let mut journaled: Vec<EntryId> = Vec::new();
        for number in 0..37 {
            let entry = dead.method.take().done().await.unwrap();
            dead.method.saved(region(number), entry).done().await.unwrap();
            journaled.push(entry);
        }
        let lost = dead.method.take().done().await.unwrap();
        assert!(dead.method.reserved() > 0 && !journaled.contains(&lost));

        let early = heir.memory.reclaim(dead.id).await.unwrap_err();
        assert_eq!(early.kind(), Remedy::Busy, "{early}");
        let claimed = heir.memory.adopt(None, journaled.clone()).await.unwrap_err();
        assert_eq!(claimed.kind(), Remedy::Corrupt, "{claimed}");
        heir.memory.expel(dead.id).await.unwrap();
        heir.memory.adopt(Some(dead.id), journaled.clone()).await.unwrap();
        assert_eq!(heir.memory.reclaim(dead.id).await.unwrap(), 1 + dead.method.reserved());

        // What it still does from memory it may do; shared memory refuses it.
        while dead.method.reserved() > 0 {
            dead.method.take().done().await.unwrap();
        }
        assert_eq!(dead.method.take().done().await.unwrap_err().kind(), Remedy::Fenced);

        let mut used: BTreeSet<EntryId> = journaled.into_iter().collect();
        while let Ok(entry) = heir.method.take().done().await {
            assert!(used.insert(entry), "{entry:?} is handed out twice");
        }
        assert_eq!(used.len() as u32, entries);
    });
}

/// Who is asked to give back and does not answer is waited for until he is expelled.
#[test]
fn a_dead_controller_holds_nobody_up_once_it_is_expelled() {
    let world = World::new(4, Kind::Lease, 2, 20_000);
    let [waits, silent] = [0, 1].map(|id: usize| Rc::clone(&world.actors[id]));
    let tables = &world.tables;
    // As if it had died: what it has leased is its own, and nobody reads its messages.
    let memory = Rc::new(tables.join(ControllerId(7)));
    world.sim.block_on(async {
        let batch = memory.take(5).await.unwrap();
        drop(silent);
        let all = async {
            let mut count = 0;
            while waits.method.take().done().await.is_ok() {
                count += 1;
            }
            count
        };
        let expels = async {
            world.sim.runtime().sleep(Duration::from_secs(10)).await;
            assert_eq!(tables.free(), 0);
            waits.memory.expel(ControllerId(7)).await.unwrap();
            assert_eq!(waits.memory.reclaim(ControllerId(7)).await.unwrap(), batch.len() as u32);
        };
        let (count, ()) = futures::future::join(all, expels).await;
        assert_eq!(count, 20_000);
    });
}
