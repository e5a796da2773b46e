//! A store on a thin device whose pool runs full: users are told so, removals and checkpoints go on, and the store lives
//! on when there is room again.

use super::{SEGMENT_BYTES, assert_sound, bucket, bytes, put, rig};
use crate::object::name_of;
use crate::*;
use futures::future::join;
use kura_block::{Block, Bufs, Error, Geometry, Kind, Local, Result, Run, RunKind, Runtime};
use kura_sim::{Sim, SimDisk};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// Segments that the pool has, of the 256 that the device promises.
const POOL: usize = 40;

/// How long a segment is free before it is discarded.
const DISCARD_AFTER: Duration = Duration::from_millis(4);

/// A device that takes space by units as it is written, as long as there is any.
struct Thin {
    below: RefCell<Rc<dyn Block>>,
    unit_bytes: u64,
    taken: RefCell<BTreeSet<u64>>,
    room: Cell<usize>,
    /// It writes what the log has, and says that it has no room for it.
    lies: Cell<bool>,
    /// Bytes of zeroes it was to write.
    zeroes_bytes: Cell<u64>,
    /// Writes that it had no room for.
    refused: Cell<u64>,
}

/// More than any store has reason to ask for.
const REFUSED_MOST: u64 = 10_000;

impl Thin {
    fn take(&self, offset: u64, len: u64) -> Result<()> {
        let mut taken = self.taken.borrow_mut();
        for unit in offset / self.unit_bytes..(offset + len).div_ceil(self.unit_bytes) {
            if !taken.contains(&unit) && taken.len() >= self.room.get() {
                self.refused.set(self.refused.get() + 1);
                assert!(self.refused.get() < REFUSED_MOST, "a full pool is asked again and again, without a pause");
                return Err(Error::full("the pool is full"));
            }
            taken.insert(unit);
        }
        Ok(())
    }
}

impl Block for Thin {
    fn geometry(&self) -> Geometry {
        self.below.borrow().geometry()
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        let below = self.below.borrow().clone();
        Box::pin(async move { below.read(offset, len).await })
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        let (taken, below) = (self.take(offset, data.len() as u64), self.below.borrow().clone());
        let lies = self.lies.get() && offset >= u64::from(SEGMENT_BYTES);
        Box::pin(async move {
            taken?;
            below.write(offset, data, fua).await?;
            if lies { Err(Error::full("the pool is full, it says")) } else { Ok(()) }
        })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        let below = self.below.borrow().clone();
        Box::pin(async move { below.flush().await })
    }

    fn runs(&self, offset: u64, len_bytes: u64) -> Local<'_, Result<Vec<Run>>> {
        let taken = self.taken.borrow();
        let units = offset / self.unit_bytes..(offset + len_bytes).div_ceil(self.unit_bytes);
        let run = |unit| {
            let kind = if taken.contains(&unit) { RunKind::Data } else { RunKind::Hole };
            Run { len_bytes: len_bytes.min(self.unit_bytes), kind }
        };
        Box::pin(std::future::ready(Ok(units.map(run).collect())))
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        let units = offset.div_ceil(self.unit_bytes)..(offset + len) / self.unit_bytes;
        self.taken.borrow_mut().retain(|unit| !units.contains(unit));
        let below = self.below.borrow().clone();
        Box::pin(async move { below.discard(offset, len).await })
    }

    fn write_zeroes(&self, offset: u64, len: u64, keep: bool) -> Local<'_, Result<()>> {
        self.zeroes_bytes.set(self.zeroes_bytes.get() + len);
        let (taken, below) = (self.take(offset, len), self.below.borrow().clone());
        Box::pin(async move {
            taken?;
            below.write_zeroes(offset, len, keep).await
        })
    }
}

fn thin(disk: &SimDisk, room: usize) -> Rc<Thin> {
    thin_by(disk, SEGMENT_BYTES, room)
}

/// With room for so many units, of so many bytes each.
fn thin_by(disk: &SimDisk, unit_bytes: u32, room: usize) -> Rc<Thin> {
    Rc::new(Thin {
        below: RefCell::new(disk.open()),
        unit_bytes: unit_bytes.into(),
        taken: RefCell::default(),
        room: Cell::new(room),
        lies: Cell::new(false),
        zeroes_bytes: Cell::new(0),
        refused: Cell::new(0),
    })
}

/// Puts objects of `len` bytes until there is no room: how many there are.
async fn fill(store: &Store, bucket: PartitionId, len: usize) -> u64 {
    for at in 0.. {
        match store.put(bucket, format!("{len}/{at}").as_bytes(), put(&bytes(at, len))).await {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Full, "{error}");
                return at;
            }
        }
    }
    unreachable!("the pool has an end")
}

async fn read_all(store: &Store, bucket: PartitionId, len: usize, count: u64) {
    for at in 0..count {
        let mut reader = store.read(bucket, format!("{len}/{at}").as_bytes(), Which::Latest).await.unwrap();
        assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at, len), "object {at} of {len} bytes");
    }
}

fn open(sim: &Sim, thin: &Rc<Thin>) -> Store {
    let options = Options { discard_after: Some(DISCARD_AFTER), ..Options::default() };
    let device = Rc::clone(thin) as Rc<dyn Block>;
    let store = sim.block_on(Store::open(device, sim.runtime(), options)).unwrap();
    assert_sound(&store);
    store
}

#[test]
fn a_full_pool_stops_puts_and_nothing_else() {
    for (seed, len) in [(1, 1000), (2, 7000), (3, 30_000), (4, 200_000)] {
        let (sim, disk) = rig(seed, 256 * u64::from(SEGMENT_BYTES));
        let thin = thin(&disk, POOL);
        thin.take(0, 1).unwrap();
        let store = open(&sim, &thin);
        let (count, bucket) = sim.block_on(async {
            let bucket = bucket(&store).await;
            let count = fill(&store, bucket, len).await;
            assert!(
                count as usize * len.max(4096) > POOL / 4 * SEGMENT_BYTES as usize,
                "{count} objects of {len} bytes fit"
            );
            read_all(&store, bucket, len, count).await;
            (count, bucket)
        });
        assert_sound(&store);
        // The power goes; the pool is still full.
        drop(store);
        sim.crash();
        thin.below.replace(disk.open());
        let store = open(&sim, &thin);
        sim.block_on(async {
            read_all(&store, bucket, len, count).await;
            // Room from elsewhere is taken at once.
            thin.room.set(POOL + 4);
            store.put(bucket, b"more", put(&bytes(7, len))).await.unwrap();
            thin.room.set(0);
            // All of it is removed, one by one, without any room from the device; then there is room again.
            for at in 0..count {
                store.remove(bucket, format!("{len}/{at}").as_bytes(), Which::Latest).await.unwrap();
            }
            thin.room.set(POOL);
            let again = fill(&store, bucket, len).await;
            assert!(again * 2 > count, "{again} of {count} objects fit again");
            read_all(&store, bucket, len, again).await;
        });
        assert_sound(&store);
        sim.block_on(store.close()).unwrap();
    }
}

/// Others have what is left of the pool. What the store gives up itself is room for it all the same, at once and whichever way
/// its segments are cut into the device's units.
#[test]
fn a_full_pool_leaves_the_store_the_room_that_it_has() {
    for (seed, len) in [(1, 7000), (2, 30_000), (3, 200_000), (4, 700_000)] {
        for unit_bytes in [SEGMENT_BYTES, SEGMENT_BYTES / 4] {
            let (sim, disk) = rig(seed, 256 * u64::from(SEGMENT_BYTES));
            let thin = thin_by(&disk, unit_bytes, 3 * POOL * (SEGMENT_BYTES / unit_bytes) as usize);
            let store = open(&sim, &thin);
            sim.block_on(async {
                let bucket = bucket(&store).await;
                let count = fill(&store, bucket, len).await;
                for at in (0..count).filter(|at| at % 2 == 0) {
                    store.remove(bucket, format!("{len}/{at}").as_bytes(), Which::Latest).await.unwrap();
                }
                let gone = count / 2;
                for at in 0..gone * 3 / 4 {
                    let put = store.put(bucket, format!("again/{at}").as_bytes(), put(&bytes(at, len))).await;
                    put.unwrap_or_else(|error| panic!("{at} of {gone} of {len} bytes, units of {unit_bytes}: {error}"));
                }
            });
            assert_sound(&store);
        }
    }
}

/// As on a full pool where a snapshot sees all that is there: even what was written before wants room to be written again.
#[test]
fn a_store_that_cannot_write_at_all_opens_and_is_read() {
    for (seed, closes) in [(1, false), (2, true)] {
        let (sim, disk) = rig(seed, 256 * u64::from(SEGMENT_BYTES));
        let thin = thin(&disk, POOL);
        let store = open(&sim, &thin);
        let bucket = sim.block_on(async {
            let bucket = bucket(&store).await;
            for at in 0..50 {
                store.put(bucket, format!("7000/{at}").as_bytes(), put(&bytes(at, 7000))).await.unwrap();
            }
            store.flush().await.unwrap();
            if closes {
                store.close().await.unwrap();
            }
            bucket
        });
        for turn in 0..2 {
            sim.crash();
            thin.below.replace(disk.open());
            thin.taken.borrow_mut().clear();
            thin.room.set(0);
            let store = open(&sim, &thin);
            sim.block_on(async {
                read_all(&store, bucket, 7000, 50).await;
                let refused = store.put(bucket, b"more", put(&bytes(7, 7000))).await.unwrap_err();
                assert_eq!(refused.kind(), Kind::Full, "{refused}");
                read_all(&store, bucket, 7000, 50).await;
                if turn == 0 {
                    // The next start finds it as this one did.
                    return;
                }
                thin.room.set(POOL);
                store.put(bucket, b"more", put(&bytes(7, 7000))).await.unwrap();
                store.remove(bucket, b"more", Which::Latest).await.unwrap();
                read_all(&store, bucket, 7000, 50).await;
            });
            assert_sound(&store);
            sim.block_on(store.close()).unwrap();
        }
        let store = open(&sim, &thin);
        sim.block_on(read_all(&store, bucket, 7000, 50));
    }
}

/// As where a snapshot sees what the log has, and the root has been written since.
#[test]
fn a_full_pool_leaves_the_housekeeper_at_rest() {
    let (sim, disk) = rig(8, 256 * u64::from(SEGMENT_BYTES));
    let thin = thin(&disk, POOL);
    let store = open(&sim, &thin);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for at in 0..600 {
            store.put(bucket, format!("1000/{at}").as_bytes(), put(&bytes(at, 1000))).await.unwrap();
        }
        for at in (0..600).filter(|at| at % 3 > 0) {
            store.remove(bucket, format!("1000/{at}").as_bytes(), Which::Latest).await.unwrap();
        }
        thin.taken.borrow_mut().retain(|unit| *unit == 0);
        thin.room.set(0);
        let refused = store.put(bucket, b"more", put(&bytes(7, 1000))).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Full, "{refused}");
        let rounds = || store.inner.agenda.borrow().rounds;
        let before = rounds();
        sim.runtime().sleep(10 * DISCARD_AFTER).await;
        let more = rounds() - before;
        assert!((5..=12).contains(&more), "{more} rounds where it was asked ten times to tidy up");
        // It goes on as soon as there is room.
        thin.room.set(POOL);
        sim.runtime().sleep(2 * DISCARD_AFTER).await;
        store.put(bucket, b"more", put(&bytes(7, 1000))).await.unwrap();
    });
    assert_sound(&store);
}

/// What it left of the refused write is whole, and the power goes as soon as the client has heard of it.
#[test]
fn what_a_client_heard_to_be_refused_never_counts() {
    let (sim, disk) = rig(7, 256 * u64::from(SEGMENT_BYTES));
    let thin = thin(&disk, 256);
    let store = open(&sim, &thin);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"first", put(b"one")).await.unwrap();
        thin.lies.set(true);
        let refused = store.put(bucket, b"second", put(b"two")).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Full, "{refused}");
    });
    drop(store);
    sim.crash();
    thin.lies.set(false);
    thin.below.replace(disk.open());
    let store = open(&sim, &thin);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        assert_eq!(
            *store.read(bucket, b"first", Which::Latest).await.unwrap().rest().await.unwrap().contiguous(),
            *b"one"
        );
        assert_eq!(store.stat(bucket, b"second", Which::Latest).await.unwrap_err().kind(), Kind::Missing);
    });
}

#[test]
fn only_a_thin_device_is_asked_for_room() {
    for is_thin in [true, false] {
        let (sim, disk) = rig(5, 256 * u64::from(SEGMENT_BYTES));
        let thin = thin(&disk, 256);
        thin.take(0, if is_thin { 1 } else { 256 * u64::from(SEGMENT_BYTES) }).unwrap();
        let store = open(&sim, &thin);
        sim.block_on(async {
            let bucket = bucket(&store).await;
            for at in 0..1000 {
                store.put(bucket, format!("{at}").as_bytes(), put(&bytes(at, 4000))).await.unwrap();
            }
            store.close().await.unwrap();
        });
        assert_eq!(thin.zeroes_bytes.get() > 0, is_thin, "{} bytes of zeroes", thin.zeroes_bytes.get());
    }
}

/// Of two puts of one key the second is on its way before the first is durable: after a crash only the first one's extent tells
/// that both are whole. It lies where the device needs no room, and all else of the device is full.
#[test]
fn what_a_replay_looks_at_is_not_written_over_before_the_opening() {
    let mut unproven = 0;
    for delay_us in 0..60 {
        let (sim, disk) = rig(6, 256 * u64::from(SEGMENT_BYTES));
        let thin = thin(&disk, POOL);
        // Only there the device can be written.
        let again = |segments: std::ops::Range<u32>| {
            sim.crash();
            thin.below.replace(disk.open());
            thin.taken.replace(segments.map(u64::from).collect());
            thin.room.set(0);
            open(&sim, &thin)
        };
        let store = open(&sim, &thin);
        let (bucket, segment, before) = sim.block_on(async {
            let bucket = bucket(&store).await;
            let later = async {
                sim.runtime().sleep(Duration::from_micros(delay_us)).await;
                store.put(bucket, b"a", put(&bytes(2, 20_000))).await.unwrap();
            };
            let (first, ()) = join(store.put(bucket, b"a", put(&bytes(1, 20_000))), later).await;
            first.unwrap();
            let segment = {
                let state = store.inner.state.borrow();
                unproven += u32::from(state.log.proven < state.log.last_sequence());
                let known = state.newest(&name_of(bucket, b"a")).unwrap().unwrap().1;
                state.space.segment_of_block(known.extents()[0].block)
            };
            let mut reader = store.read(bucket, b"a", Which::Latest).await.unwrap();
            (bucket, segment, reader.rest().await.unwrap().contiguous().to_vec())
        });
        drop(store);
        let store = again(segment..segment + 1);
        sim.block_on(async {
            let refused = store.put(bucket, b"b", put(&bytes(3, 20_000))).await.unwrap_err();
            assert_eq!(refused.kind(), Kind::Full, "{refused}");
            thin.flush().await.unwrap();
        });
        drop(store);
        let store = again(0..256);
        sim.block_on(async {
            let mut reader = store.read(bucket, b"a", Which::Latest).await.unwrap();
            assert!(*reader.rest().await.unwrap().contiguous() == before, "the first {delay_us} us before the second");
        });
    }
    assert!(unproven > 5, "{unproven} crashes before it was known that the first is durable");
}
