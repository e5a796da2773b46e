//! What the `Block` trait promises of a crash, held against a model of every sector.

use crate::{Cache, CrashPoint, Discard, DiskSpec, FaultPlan, Outcome, Sim, SimBlock, SimDisk};
use futures::future::join_all;
use kura_block::{Block, Buf, Bufs};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

const SECTOR: usize = 512;
const SECTORS: usize = 64;
const SIZE: u64 = (SECTOR * SECTORS) as u64;

/// What one sector may read as after a crash.
#[derive(Clone, Default)]
struct Sector {
    at_rest: u32,
    unflushed: Vec<u32>,
}

impl Sector {
    fn newest(&self) -> u32 {
        self.unflushed.last().copied().unwrap_or(self.at_rest)
    }

    fn may_survive(&self, version: u32) -> bool {
        self.at_rest == version || self.unflushed.contains(&version)
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write { at: usize, sectors: usize, fua: bool },
    Zeroes { at: usize, sectors: usize },
    Discard { at: usize, sectors: usize },
    Flush,
    Crash,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let range = (0..SECTORS, 1..=20_usize).prop_map(|(at, sectors)| (at, sectors.min(SECTORS - at)));
    let step = prop_oneof![
        6 => (range.clone(), prop::bool::weighted(0.2))
            .prop_map(|((at, sectors), fua)| Step::Write { at, sectors, fua }),
        1 => range.clone().prop_map(|(at, sectors)| Step::Zeroes { at, sectors }),
        1 => range.prop_map(|(at, sectors)| Step::Discard { at, sectors }),
        2 => Just(Step::Flush),
        1 => Just(Step::Crash),
    ];
    prop::collection::vec(step, 1..60)
}

/// Sectors filled with the number of the write they come from, in parts of odd sizes.
fn bytes_of(version: u32, sectors: usize) -> Bufs {
    let plain = version.to_le_bytes().repeat(sectors * SECTOR / 4);
    let mut bufs = Bufs::new();
    for part in plain.chunks(1 + (version as usize * 700) % 5000) {
        bufs.push(Buf::copy_of(part));
    }
    bufs
}

async fn versions(block: &SimBlock) -> Vec<u32> {
    let bytes = block.read(0, SIZE as usize).await.unwrap().contiguous();
    let version = |sector: &[u8]| {
        let word = u32::from_le_bytes(sector[..4].try_into().unwrap());
        assert_eq!(sector, word.to_le_bytes().repeat(SECTOR / 4), "a sector is one version");
        word
    };
    bytes.chunks(SECTOR).map(version).collect()
}

fn spec(cache: Cache, discard: Discard) -> DiskSpec {
    DiskSpec { cache, discard, jitter: 0.2, ..DiskSpec::nvme(SIZE) }
}

/// Runs the steps one after the other, against the model; returns digests of the run.
fn run(seed: u64, steps: &[Step], cache: Cache, discard: Discard) -> (u64, u64, Duration) {
    let sim = Sim::new(seed);
    let disk = sim.disk("d", spec(cache, discard));
    let mut model = vec![Sector::default(); SECTORS];
    let mut block = disk.open();
    for (number, step) in steps.iter().enumerate() {
        let version = number as u32 + 1;
        match *step {
            Step::Write { at, sectors, fua } => {
                sim.block_on(block.write((at * SECTOR) as u64, bytes_of(version, sectors), fua)).unwrap();
                for sector in &mut model[at..at + sectors] {
                    sector.unflushed.push(version);
                    if fua || cache == Cache::Off {
                        *sector = Sector { at_rest: version, unflushed: vec![] };
                    }
                }
            }
            Step::Zeroes { at, sectors } => {
                let (offset, len) = ((at * SECTOR) as u64, (sectors * SECTOR) as u64);
                sim.block_on(block.write_zeroes(offset, len, true)).unwrap();
                for sector in &mut model[at..at + sectors] {
                    sector.unflushed.push(0);
                }
            }
            Step::Discard { at, sectors } => {
                let before: Vec<u32> = model.iter().map(Sector::newest).collect();
                let (offset, len) = ((at * SECTOR) as u64, (sectors * SECTOR) as u64);
                sim.block_on(block.discard(offset, len)).unwrap();
                let after = sim.block_on(versions(&block));
                for sector in at..at + sectors {
                    assert!(after[sector] == 0 || (discard != Discard::Zeroes && after[sector] == before[sector]));
                    model[sector].unflushed.push(after[sector]);
                }
            }
            Step::Flush => {
                sim.block_on(block.flush()).unwrap();
                assert_eq!(disk.unflushed_bytes(), 0);
                for sector in &mut model {
                    *sector = Sector { at_rest: sector.newest(), unflushed: vec![] };
                }
            }
            Step::Crash => {
                sim.crash();
                block = disk.open();
                for (sector, version) in model.iter_mut().zip(sim.block_on(versions(&block))) {
                    assert!(
                        sector.may_survive(version),
                        "{version} after a crash: {:?}, {:?}",
                        sector.at_rest,
                        sector.unflushed
                    );
                    *sector = Sector { at_rest: version, unflushed: vec![] };
                }
            }
        }
        let newest: Vec<u32> = model.iter().map(Sector::newest).collect();
        assert_eq!(sim.block_on(versions(&block)), newest, "after {step:?}");
    }
    (sim.digest(), disk.digest(), sim.now())
}

fn caches() -> impl Strategy<Value = Cache> {
    prop_oneof![
        1 => Just(Cache::Off),
        2 => Just(Cache::Volatile { limit_bytes: 6 * 1024 }),
        3 => Just(Cache::Volatile { limit_bytes: 1 << 20 }),
    ]
}

fn discards() -> impl Strategy<Value = Discard> {
    prop_oneof![Just(Discard::Unsupported), Just(Discard::Zeroes), Just(Discard::Unspecified)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn reads_see_the_newest_and_a_crash_leaves_only_what_was_promised_or_written(
        seed in any::<u64>(), steps in steps(), cache in caches(), discard in discards(),
    ) {
        let once = run(seed, &steps, cache, discard);
        prop_assert_eq!(once, run(seed, &steps, cache, discard), "one seed twice");
    }

    #[test]
    fn operations_in_flight_at_a_crash_are_old_or_new_in_each_sector(
        seed in any::<u64>(), crash_at in 1..12_u64, off in any::<bool>(),
        writes in prop::collection::vec((0..SECTORS - 8, 1..=8_usize, any::<bool>()), 12),
    ) {
        let sim = Sim::new(seed);
        let cache = if off { Cache::Off } else { Cache::Volatile { limit_bytes: 1 << 20 } };
        let disk = sim.disk("d", spec(cache, Discard::Zeroes));
        sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(crash_at)], ..FaultPlan::default() });
        let block = disk.open();
        let acknowledged = std::cell::RefCell::new(BTreeSet::new());
        let outcome = sim.run_until_crash_or(join_all(writes.chunks(4).enumerate().map(|(chain, writes)| {
            let (block, acknowledged) = (&block, &acknowledged);
            async move {
                for (index, (at, sectors, fua)) in writes.iter().enumerate() {
                    let version = (chain * 4 + index + 1) as u32;
                    block.write((at * SECTOR) as u64, bytes_of(version, *sectors), *fua).await.unwrap();
                    acknowledged.borrow_mut().insert(version);
                }
            }
        })));
        prop_assert!(matches!(outcome, Outcome::Crashed));
        prop_assert_eq!(sim.operations(), crash_at);
        let found = sim.block_on(versions(&disk.open()));
        for (sector, version) in found.into_iter().enumerate() {
            let covers = |version: u32| {
                let (at, sectors, _) = writes[version as usize - 1];
                (at..at + sectors).contains(&sector)
            };
            prop_assert!(version == 0 || covers(version), "sector {} has {}", sector, version);
            // What was promised on this sector is there, unless something that was not before it came over it.
            let durable = |version: u32| off || writes[version as usize - 1].2;
            let acknowledged = acknowledged.borrow();
            let promised = acknowledged.iter().copied().filter(|version| covers(*version) && durable(*version)).max();
            if let Some(promised) = promised {
                prop_assert!(version != 0, "sector {} lost {}", sector, promised);
                let same_chain = (version - 1) / 4 == (promised - 1) / 4;
                prop_assert!(!same_chain || version >= promised, "sector {}: {} after {}", sector, version, promised);
            }
        }
    }
}

/// Writes eight sectors over flushed ones, without a flush; cuts the power; tells what is there.
fn after_a_crash(seed: u64, sim: impl Fn(&Sim) -> SimDisk) -> Vec<u32> {
    let world = Sim::new(seed);
    let disk = sim(&world);
    let block = disk.open();
    world.block_on(async {
        block.write(0, bytes_of(1, 8), false).await.unwrap();
        block.flush().await.unwrap();
        block.write(0, bytes_of(2, 8), false).await.unwrap();
        block.write(0, bytes_of(3, 4), false).await.unwrap();
    });
    world.crash();
    world.block_on(versions(&disk.open()))[..8].to_vec()
}

#[test]
fn every_way_a_crash_can_go_is_met() {
    let outcomes: BTreeSet<Vec<u32>> = (0..400)
        .map(|seed| {
            after_a_crash(seed, |sim| sim.disk("d", spec(Cache::Volatile { limit_bytes: 1 << 20 }, Discard::Zeroes)))
        })
        .collect();
    for expected in [
        vec![1, 1, 1, 1, 1, 1, 1, 1], // both lost
        vec![2, 2, 2, 2, 2, 2, 2, 2], // the later one lost
        vec![3, 3, 3, 3, 1, 1, 1, 1], // the earlier one lost
        vec![3, 3, 3, 3, 2, 2, 2, 2], // both kept
        vec![2, 2, 2, 2, 2, 1, 1, 1], // torn after a prefix
        vec![3, 3, 1, 1, 1, 1, 1, 1], // the later one torn, the earlier one lost
    ] {
        assert!(outcomes.contains(&expected), "{expected:?} in none of {}", outcomes.len());
    }
    let holes = |outcome: &Vec<u32>| outcome.windows(2).any(|pair| pair[0] == 1 && pair[1] == 2);
    assert!(outcomes.iter().any(holes), "an arbitrary part is torn off");
    assert!(outcomes.len() > 40, "{} ways", outcomes.len());
}

#[test]
fn a_write_in_flight_at_a_crash_is_there_or_not_or_torn() {
    for cache in [Cache::Off, Cache::Volatile { limit_bytes: 1 << 20 }] {
        let outcomes: BTreeSet<Vec<u32>> = (0..2000)
            .map(|seed| {
                let sim = Sim::new(seed);
                let disk = sim.disk("d", spec(cache, Discard::Zeroes));
                sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(1)], ..FaultPlan::default() });
                let block = disk.open();
                let outcome = sim.run_until_crash_or(block.write(0, bytes_of(1, 4), true));
                assert!(matches!(outcome, Outcome::Crashed));
                sim.block_on(versions(&disk.open()))[..4].to_vec()
            })
            .collect();
        assert_eq!(outcomes.len(), 16, "every part of four sectors: {outcomes:?}");
    }
}

#[test]
fn a_discard_in_flight_at_a_crash_happens_or_not_or_in_part() {
    for (discard, ways) in [(Discard::Unsupported, 1), (Discard::Zeroes, 16), (Discard::Unspecified, 16)] {
        let outcomes: BTreeSet<Vec<u32>> = (0..2000)
            .map(|seed| {
                let sim = Sim::new(seed);
                let disk = sim.disk("d", spec(Cache::Off, discard));
                let block = disk.open();
                sim.block_on(block.write(0, bytes_of(1, 4), false)).unwrap();
                sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(1)], ..FaultPlan::default() });
                assert!(matches!(sim.run_until_crash_or(block.discard(0, 2048)), Outcome::Crashed));
                sim.block_on(versions(&disk.open()))[..4].to_vec()
            })
            .collect();
        assert_eq!(outcomes.len(), ways, "{discard:?}: {outcomes:?}");
    }
}

#[test]
fn overlapping_writes_in_flight_at_a_crash_have_no_order() {
    let last = |seed| {
        let sim = Sim::new(seed);
        let disk = sim.disk("d", spec(Cache::Off, Discard::Zeroes));
        sim.set_plan(&FaultPlan { crashes: vec![CrashPoint::Op(2)], ..FaultPlan::default() });
        let block = disk.open();
        let writes = [1, 2].map(|version| block.write(0, bytes_of(version, 1), false));
        assert!(matches!(sim.run_until_crash_or(join_all(writes)), Outcome::Crashed));
        sim.block_on(versions(&disk.open()))[0]
    };
    let count = |version| (0..600).filter(|seed| last(*seed) == version).count();
    let (first, second) = (count(1), count(2));
    assert!(first > 150 && second > 150, "{first} {second}");
}

#[test]
fn many_unflushed_writes_are_now_and_then_all_kept_and_all_lost() {
    let kept = |seed| {
        let sim = Sim::new(seed);
        let disk = sim.disk("d", spec(Cache::Volatile { limit_bytes: 1 << 20 }, Discard::Zeroes));
        let block = disk.open();
        sim.block_on(async {
            for sector in 0..30 {
                block.write(sector * 512, bytes_of(1, 1), false).await.unwrap();
            }
        });
        sim.crash();
        sim.block_on(versions(&disk.open())).iter().sum::<u32>()
    };
    let kept: Vec<u32> = (0..100).map(kept).collect();
    for count in [0, 30] {
        assert!(kept.contains(&count), "{kept:?}");
    }
    assert!(kept.iter().filter(|kept| (1..30).contains(*kept)).count() > 50);
}

#[test]
fn a_disk_whose_atom_is_a_block_never_tears_one() {
    let whole = |seed| {
        after_a_crash(seed, |sim| {
            let cache = Cache::Volatile { limit_bytes: 1 << 20 };
            sim.disk("d", DiskSpec { sector_bytes: 2048, atom_bytes: 2048, ..spec(cache, Discard::Zeroes) })
        })
    };
    for seed in 0..200 {
        let found = whole(seed);
        assert!(found.chunks(4).all(|atom| atom.iter().all(|version| *version == atom[0])), "{found:?}");
    }
}

#[test]
fn a_full_cache_writes_the_oldest_to_rest_by_itself() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", spec(Cache::Volatile { limit_bytes: 8192 }, Discard::Zeroes));
    let block = disk.open();
    sim.block_on(async {
        for at in 0..SECTORS {
            block.write((at * SECTOR) as u64, bytes_of(at as u32 + 1, 1), false).await.unwrap();
            assert!(disk.unflushed_bytes() <= 8192);
        }
    });
    assert_eq!(disk.at_rest(0, 4), 1_u32.to_le_bytes());
    assert_eq!(disk.at_rest(SIZE - 512, 4), [0; 4]);
}

#[test]
fn a_disk_that_keeps_no_content_answers_zeroes_in_the_same_time() {
    let end = |keep_content| {
        let sim = Sim::new(1);
        let disk = sim.disk("d", DiskSpec { keep_content, ..DiskSpec::nvme(SIZE) });
        let block = disk.open();
        let first = sim.block_on(async {
            block.write(0, bytes_of(7, 8), true).await.unwrap();
            versions(&block).await[0]
        });
        (first, sim.now(), sim.digest())
    };
    let ((kept, now, digest), (none, now_without, digest_without)) = (end(true), end(false));
    assert_eq!((kept, none), (7, 0));
    assert_eq!((now, digest), (now_without, digest_without));
}

#[test]
fn a_flush_promises_nothing_of_what_is_acknowledged_while_it_runs() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", DiskSpec::nvme(SIZE));
    let block = disk.open();
    sim.block_on(async {
        block.write(0, bytes_of(1, 8), false).await.unwrap();
        let (flush, write) = futures::join!(block.flush(), block.write(2048, bytes_of(2, 8), false));
        flush.and(write).unwrap();
        assert_eq!(versions(&block).await[..13], [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
    });
    assert_eq!(disk.unflushed_bytes(), 4096);
    assert_eq!((disk.at_rest(0, 1)[0], disk.at_rest(2048, 1)[0], disk.at_rest(4096, 1)[0]), (1, 1, 0));
}

#[test]
fn a_dropped_write_still_takes_effect() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", spec(Cache::Off, Discard::Zeroes));
    let block = disk.open();
    sim.block_on(async {
        let mut write = block.write(0, bytes_of(5, 8), false);
        assert!(futures::poll!(&mut write).is_pending());
        drop(write);
        block.flush().await.unwrap();
        assert_eq!(versions(&block).await[..9], [5, 5, 5, 5, 5, 5, 5, 5, 0]);
    });
}

#[test]
fn wrong_ranges_are_refused() {
    let sim = Sim::new(1);
    let block = sim.disk("d", spec(Cache::Off, Discard::Zeroes)).open();
    sim.block_on(async {
        for (offset, len) in [(1, 512), (0, 100), (SIZE, 512), (u64::MAX - 511, 512)] {
            assert_eq!(block.read(offset, len).await.unwrap_err().kind(), kura_block::Kind::Invalid);
            let data = Bufs::zeroes(len);
            assert_eq!(block.write(offset, data, false).await.unwrap_err().kind(), kura_block::Kind::Invalid);
        }
    });
    assert_eq!(sim.operations(), 0);
}

#[test]
#[should_panic(expected = "disk d: this device was opened before a crash: open the disk again")]
fn a_device_of_a_dead_incarnation_never_touches_the_medium() {
    let sim = Sim::new(1);
    let block = sim.disk("d", spec(Cache::Off, Discard::Zeroes)).open();
    sim.crash();
    let _ = sim.block_on(block.flush());
}
