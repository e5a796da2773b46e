//! Each fault does what it says, once, and nothing else.

use crate::{
    Cache, CrashPoint, Discard, DiskSpec, Fault, FaultKind, FaultPlan, Outcome, Place, PlanShape, Sim, SimDisk, When,
};
use kura_block::{Block, Buf, Bufs, Kind, Result, Runtime};
use std::collections::BTreeSet;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const PAGE: usize = 4096;
const PAGES: usize = 64;

/// A disk of 64 pages without a cache, on which everything takes a millisecond; page n holds n + 1.
fn filled(seed: u64) -> (Sim, SimDisk) {
    let sim = Sim::new(seed);
    let size_bytes = (PAGES * PAGE) as u64;
    let disk =
        sim.disk("d", DiskSpec { cache: Cache::Off, discard: Discard::Zeroes, ..DiskSpec::constant(size_bytes, MS) });
    let block = disk.open();
    sim.block_on(async {
        for page in 0..PAGES {
            block.write((page * PAGE) as u64, of(page as u8 + 1), false).await.unwrap();
        }
    });
    (sim, disk)
}

fn of(byte: u8) -> Bufs {
    Buf::copy_of(&[byte; PAGE]).into()
}

fn plan(sim: &Sim, when: When, what: FaultKind) {
    let fault = Fault { disk: "d".to_owned(), when, what };
    sim.set_plan(&FaultPlan { faults: vec![fault], crashes: vec![] });
}

fn write(sim: &Sim, disk: &SimDisk, page: usize, byte: u8) -> Result<()> {
    sim.block_on(disk.open().write((page * PAGE) as u64, of(byte), false))
}

fn read(sim: &Sim, disk: &SimDisk, page: usize) -> Result<Vec<u8>> {
    Ok(sim.block_on(disk.open().read((page * PAGE) as u64, PAGE))?.contiguous().to_vec())
}

/// Pages that do not hold what `filled` put there.
fn changed(disk: &SimDisk) -> Vec<usize> {
    (0..PAGES).filter(|page| disk.at_rest((page * PAGE) as u64, PAGE) != vec![*page as u8 + 1; PAGE]).collect()
}

#[test]
fn a_lost_write_is_the_one_planned_and_only_it() {
    let (sim, disk) = filled(1);
    plan(&sim, When::Op(2), FaultKind::LostWrite);
    for page in 3..6 {
        read(&sim, &disk, page).unwrap(); // a read is no operation of this fault's
        write(&sim, &disk, page, 99).unwrap();
    }
    assert_eq!(changed(&disk), [3, 5]);
    let strikes = sim.strikes();
    assert_eq!(
        (strikes.len(), &strikes[0].what, strikes[0].range.clone()),
        (1, &FaultKind::LostWrite, 4 * 4096..5 * 4096)
    );
}

#[test]
fn a_torn_write_is_acknowledged_and_partly_there() {
    for seed in 0..50 {
        let (sim, disk) = filled(seed);
        plan(&sim, When::Op(1), FaultKind::TornWrite);
        write(&sim, &disk, 3, 99).unwrap();
        let bytes = disk.at_rest(3 * 4096, PAGE);
        let new = bytes.chunks(512).filter(|sector| **sector == [99; 512]).count();
        let old = bytes.chunks(512).filter(|sector| **sector == [4; 512]).count();
        assert!(new > 0 && old > 0 && new + old == 8, "seed {seed}: {new} new, {old} old");
        assert_eq!(changed(&disk), [3]);
    }
}

#[test]
fn a_torn_write_of_two_sectors_is_always_torn() {
    for seed in 0..50 {
        let (sim, disk) = filled(seed);
        plan(&sim, When::Op(1), FaultKind::TornWrite);
        sim.block_on(disk.open().write(0, Buf::copy_of(&[99; 1024]).into(), false)).unwrap();
        let bytes = disk.at_rest(0, 1024);
        assert_ne!(bytes[0], bytes[512], "seed {seed}");
    }
}

#[test]
fn a_misdirected_write_lands_elsewhere() {
    for seed in 0..50 {
        let (sim, disk) = filled(seed);
        plan(&sim, When::Op(1), FaultKind::MisdirectedWrite);
        write(&sim, &disk, 3, 99).unwrap();
        let landed = sim.strikes()[0].range.clone();
        assert_ne!(landed.start, 3 * 4096);
        assert_eq!(disk.at_rest(landed.start, PAGE), [99; PAGE]);
        let touched: Vec<usize> = (landed.start as usize / PAGE..(landed.end as usize).div_ceil(PAGE)).collect();
        assert_eq!(changed(&disk), touched);
    }
}

/// Which of the sectors hold the write of 99, among `sectors` of them from the beginning.
fn new_sectors(disk: &SimDisk, sectors: usize) -> Vec<bool> {
    let bytes = disk.at_rest(0, sectors * 512);
    let is_new = |sector: &[u8]| match sector[0] {
        99 => true,
        byte => byte != 1 && panic!("{byte}"),
    };
    assert!(bytes.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])), "a sector is old or new");
    bytes.chunks(512).map(is_new).collect()
}

#[test]
fn a_write_error_fails_once_and_all_or_nothing_or_a_part_of_it_is_there() {
    for (sectors, ways) in [(1, 2), (2, 4), (3, 8)] {
        let left = |seed| {
            let (sim, disk) = filled(seed);
            plan(&sim, When::Op(1), FaultKind::WriteError);
            let failed = sim.block_on(disk.open().write(0, Buf::copy_of(&[99; 512].repeat(sectors)).into(), false));
            assert_eq!(failed.unwrap_err().kind(), Kind::Device);
            let left = new_sectors(&disk, sectors);
            write(&sim, &disk, 0, 98).unwrap();
            assert_eq!(disk.at_rest(0, PAGE), [98; PAGE]);
            left
        };
        assert_eq!((0..300).map(left).collect::<BTreeSet<_>>().len(), ways, "{sectors} sectors");
    }
}

#[test]
fn an_unreadable_place_stays_so_until_each_sector_is_rewritten() {
    let (sim, disk) = filled(1);
    disk.inject(FaultKind::ReadError(Place::Range(3 * 4096..3 * 4096 + 1024)));
    for _ in 0..2 {
        assert_eq!(read(&sim, &disk, 3).unwrap_err().kind(), Kind::Device);
    }
    read(&sim, &disk, 2).unwrap();
    read(&sim, &disk, 4).unwrap();
    let block = disk.open();
    let first = Bufs::from(Buf::copy_of(&[99; 512]));
    sim.block_on(block.write(3 * 4096, first, false)).unwrap();
    sim.block_on(block.read(3 * 4096, 512)).unwrap();
    assert!(sim.block_on(block.read(3 * 4096 + 512, 512)).is_err());
    sim.crash();
    assert!(read(&sim, &disk, 3).is_err(), "a fault outlasts a crash");
    write(&sim, &disk, 3, 98).unwrap();
    assert_eq!(read(&sim, &disk, 3).unwrap(), [98; PAGE]);
}

#[test]
fn a_read_error_of_a_request_is_that_requests_range() {
    let (sim, disk) = filled(1);
    plan(&sim, When::Op(2), FaultKind::ReadError(Place::Request));
    read(&sim, &disk, 1).unwrap();
    assert!(read(&sim, &disk, 2).is_err());
    assert!(read(&sim, &disk, 2).is_err());
    read(&sim, &disk, 3).unwrap();
    assert_eq!(sim.strikes().len(), 1);
}

#[test]
fn bit_rot_inverts_so_many_bits_of_its_place() {
    for (seed, place) in [(1, Place::Request), (2, Place::AnyPage), (3, Place::Range(8192..8193))] {
        let (sim, disk) = filled(seed);
        plan(&sim, When::Op(1), FaultKind::BitRot(place.clone(), 5));
        read(&sim, &disk, 7).unwrap();
        let pages = changed(&disk);
        assert_eq!(pages.len(), 1, "{place:?}");
        let page = pages[0];
        match place {
            Place::Request => assert_eq!(page, 7),
            Place::AnyPage => {}
            Place::Range(_) => assert_eq!(page, 2),
        }
        let flipped: u32 =
            disk.at_rest((page * PAGE) as u64, PAGE).iter().map(|byte| (byte ^ (page as u8 + 1)).count_ones()).sum();
        assert_eq!(flipped, 5);
    }
}

#[test]
fn the_cache_hides_bit_rot_until_it_is_written_to_rest() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", DiskSpec::nvme(1 << 20));
    write(&sim, &disk, 0, 7).unwrap();
    disk.inject(FaultKind::BitRot(Place::Range(0..4096), 3));
    assert_eq!(read(&sim, &disk, 0).unwrap(), [7; PAGE], "read from the cache");
    let block = disk.open();
    sim.block_on(block.write(0, of(8), true)).unwrap();
    assert_eq!(read(&sim, &disk, 0).unwrap(), [8; PAGE], "written over");
    disk.inject(FaultKind::BitRot(Place::Range(0..4096), 3));
    assert_ne!(read(&sim, &disk, 0).unwrap(), [8; PAGE], "nothing is in the cache");
}

#[test]
fn a_slow_disk_is_slow_for_its_while() {
    let (sim, disk) = filled(1);
    disk.inject(FaultKind::Slow { times: 10, lasts: 15 * MS });
    let mut times = vec![];
    for _ in 0..3 {
        let begin = sim.now();
        read(&sim, &disk, 0).unwrap();
        times.push(sim.now().saturating_sub(begin));
    }
    assert_eq!(times, [10 * MS, 10 * MS, MS]);
}

#[test]
fn a_stalled_disk_ends_nothing_until_its_while_is_over() {
    let (sim, disk) = filled(1);
    let begin = sim.now();
    plan(&sim, When::After(MS / 2), FaultKind::Stall { lasts: 30 * MS });
    read(&sim, &disk, 0).unwrap();
    assert_eq!(sim.now().saturating_sub(begin), MS / 2 + 30 * MS, "what was being served waits too");
    read(&sim, &disk, 0).unwrap();
    assert_eq!(sim.now().saturating_sub(begin), MS / 2 + 31 * MS);
}

#[test]
fn a_stalled_disk_goes_on_when_revived() {
    for lasts in [Duration::MAX, 5000 * MS] {
        let (sim, disk) = filled(1);
        disk.inject(FaultKind::Stall { lasts });
        let (runtime, keeper) = (sim.runtime(), disk.clone());
        let sleep = runtime.sleep(50 * MS);
        runtime.spawn(Box::pin(async move {
            sleep.await;
            keeper.revive();
        }));
        let begin = sim.now();
        read(&sim, &disk, 0).unwrap();
        assert_eq!(sim.now().saturating_sub(begin), 50 * MS);
    }
}

#[test]
fn a_stall_outlasts_a_crash_and_ends_in_its_time() {
    let (sim, disk) = filled(1);
    let begin = sim.now();
    disk.inject(FaultKind::Stall { lasts: 30 * MS });
    sim.crash();
    sim.set_plan(&FaultPlan::default());
    read(&sim, &disk, 0).unwrap();
    assert_eq!(sim.now().saturating_sub(begin), 30 * MS);
}

#[test]
fn a_dead_disk_fails_everything_and_comes_back_with_what_it_held() {
    let (sim, disk) = filled(1);
    plan(&sim, When::Op(2), FaultKind::Dead);
    write(&sim, &disk, 3, 99).unwrap();
    assert!(read(&sim, &disk, 3).is_err());
    assert_eq!(write(&sim, &disk, 4, 99).unwrap_err().kind(), Kind::Device);
    assert_eq!(read(&sim, &disk, 3).unwrap_err().kind(), Kind::Device);
    assert_eq!(sim.block_on(disk.open().flush()).unwrap_err().kind(), Kind::Device);
    sim.crash();
    assert!(read(&sim, &disk, 3).is_err());
    assert_eq!(changed(&disk), [3]);
    disk.revive();
    assert_eq!(read(&sim, &disk, 4).unwrap(), [5; PAGE]);
}

/// Writes sectors to a disk that dies before (`is_first`) or while it does, and whose power goes then or after the answer.
fn left_by_a_death(seed: u64, is_first: bool, crash: Duration) -> Vec<bool> {
    let (sim, disk) = filled(seed);
    sim.set_plan(&FaultPlan { faults: vec![], crashes: vec![CrashPoint::After(crash)] });
    let (block, dying, runtime) = (disk.open(), disk.clone(), sim.runtime());
    let outcome = sim.run_until_crash_or(async move {
        let mut write = block.write(0, Buf::copy_of(&[99; 1536]).into(), false);
        if is_first {
            dying.inject(FaultKind::Dead);
        }
        assert!(futures::poll!(&mut write).is_pending());
        dying.inject(FaultKind::Dead);
        assert_eq!(write.await.unwrap_err().kind(), Kind::Device);
        runtime.sleep(9 * MS).await;
    });
    assert_eq!(outcome, Outcome::Crashed);
    new_sectors(&disk, 3)
}

#[test]
fn what_was_in_flight_as_a_disk_died_is_there_or_not_or_torn() {
    for crash in [MS / 2, 5 * MS] {
        let ways: BTreeSet<_> = (0..300).map(|seed| left_by_a_death(seed, false, crash)).collect();
        assert_eq!(ways.len(), 8, "{crash:?}");
        assert!((0..50).all(|seed| left_by_a_death(seed, true, crash) == [false; 3]), "a dead disk takes nothing");
    }
}

#[test]
fn a_full_disk_takes_rewrites_only() {
    let (sim, disk) = filled(1);
    let block = disk.open();
    sim.block_on(block.discard(5 * 4096, 4096)).unwrap();
    disk.inject(FaultKind::Full { lasts: 10 * MS });
    write(&sim, &disk, 4, 99).unwrap();
    assert_eq!(write(&sim, &disk, 5, 99).unwrap_err().kind(), Kind::Full);
    sim.block_on(sim.runtime().sleep(10 * MS));
    write(&sim, &disk, 5, 99).unwrap();
}

#[test]
fn chance_strikes_about_as_often_as_it_says() {
    let (sim, disk) = filled(1);
    plan(&sim, When::Chance(0.1), FaultKind::WriteError);
    let failed = (0..2000).filter(|page| write(&sim, &disk, page % PAGES, 1).is_err()).count();
    assert!((150..250).contains(&failed), "{failed} of 2000");
}

#[test]
fn a_fault_by_time_takes_the_next_operation_it_can_concern() {
    let (sim, disk) = filled(1);
    plan(&sim, When::After(10 * MS), FaultKind::LostWrite);
    write(&sim, &disk, 1, 99).unwrap();
    sim.block_on(sim.runtime().sleep(20 * MS));
    read(&sim, &disk, 2).unwrap();
    write(&sim, &disk, 2, 99).unwrap();
    write(&sim, &disk, 3, 99).unwrap();
    assert_eq!(changed(&disk), [1, 3]);
}

#[test]
fn every_crash_point_is_reached_once() {
    let work = |sim: &Sim, disk: &SimDisk| {
        let block = disk.open();
        sim.run_until_crash_or(async move {
            for page in 0..5_u8 {
                block.write(u64::from(page) * 4096, of(99), false).await.unwrap();
                block.flush().await.unwrap();
            }
        })
    };
    let (sim, disk) = filled(1);
    let before = sim.operations();
    assert_eq!(work(&sim, &disk), Outcome::Done(()));
    let operations = sim.operations() - before;
    assert_eq!(operations, 10);
    for point in 1..=operations {
        let (sim, disk) = filled(point);
        sim.set_plan(&FaultPlan { faults: vec![], crashes: vec![CrashPoint::Op(point)] });
        assert_eq!(work(&sim, &disk), Outcome::Crashed);
        assert_eq!(sim.operations() - before, point);
        let done = changed(&disk).len() as u64;
        assert!(done == point / 2 || done == point.div_ceil(2), "{done} writes at operation {point}");
        assert_eq!(work(&sim, &disk), Outcome::Done(()), "a crash point comes once");
    }
    let (sim, disk) = filled(1);
    sim.set_plan(&FaultPlan { faults: vec![], crashes: vec![CrashPoint::After(3 * MS + MS / 2)] });
    let begin = sim.now();
    assert_eq!(work(&sim, &disk), Outcome::Crashed);
    assert_eq!(sim.now().saturating_sub(begin), 3 * MS + MS / 2);
}

#[test]
fn a_run_that_ends_in_the_moment_of_the_crash_has_crashed() {
    let (sim, disk) = filled(1);
    sim.set_plan(&FaultPlan { faults: vec![], crashes: vec![CrashPoint::Op(1)] });
    let block = disk.open();
    let outcome = sim.run_until_crash_or(async {
        let _ = futures::poll!(block.flush());
    });
    assert_eq!(outcome, Outcome::Crashed);
}

#[test]
fn a_new_plan_takes_the_place_of_the_old_one() {
    let (sim, disk) = filled(1);
    let mut old = FaultPlan { faults: vec![], crashes: vec![CrashPoint::Op(5), CrashPoint::After(9 * MS)] };
    for when in [When::Op(2), When::After(2 * MS)] {
        old.faults.push(Fault { disk: "d".into(), when, what: FaultKind::Dead });
    }
    sim.set_plan(&old);
    read(&sim, &disk, 0).unwrap();
    sim.set_plan(&FaultPlan::default());
    for page in 0..20 {
        read(&sim, &disk, page).unwrap();
    }
    assert!(sim.strikes().is_empty());
}

fn shape() -> PlanShape {
    PlanShape {
        disks: ["d", "e", "f"].map(str::to_owned).to_vec(),
        faulty_disks: 0..=1,
        faults_per_disk: 0..=3,
        kinds: FaultKind::all(),
        within_ops: 50,
        crash_within_ops: 40,
    }
}

#[test]
fn all_kinds_are_in_the_list_of_all() {
    // A new kind gets the next number here, and its place in the list.
    let number = |kind: FaultKind| match kind {
        FaultKind::LostWrite => 0,
        FaultKind::TornWrite => 1,
        FaultKind::MisdirectedWrite => 2,
        FaultKind::WriteError => 3,
        FaultKind::FlushError => 4,
        FaultKind::ReadError(_) => 5,
        FaultKind::ReadsFail { .. } => 6,
        FaultKind::BitRot(..) => 7,
        FaultKind::Slow { .. } => 8,
        FaultKind::Stall { .. } => 9,
        FaultKind::Dead => 10,
        FaultKind::Full { .. } => 11,
        FaultKind::Refuses { .. } => 12,
    };
    let listed: BTreeSet<u32> = FaultKind::all().into_iter().map(number).collect();
    assert!(listed.into_iter().eq(0..13));
}

#[test]
fn a_random_plan_keeps_its_shape_and_uses_all_of_it() {
    let shape = shape();
    let plans: Vec<FaultPlan> =
        (0..3000).map(|seed| FaultPlan::random(&mut Sim::new(seed).rng("plan"), &shape)).collect();
    for plan in &plans {
        assert!(plan.faults.iter().all(|fault| fault.disk == plan.faults[0].disk), "{plan}");
        assert!(plan.faults.len() <= 3 && plan.crashes.len() == 1);
    }
    for disk in &shape.disks {
        assert!(plans.iter().any(|plan| plan.faults.iter().any(|fault| fault.disk == *disk)));
    }
    for kind in &shape.kinds {
        assert!(plans.iter().any(|plan| plan.faults.iter().any(|fault| fault.what == *kind)), "{kind}");
    }
    assert!(plans.iter().any(|plan| plan.faults.is_empty()));
    assert!(plans.iter().any(|plan| plan.faults.len() == 3));
    let always = PlanShape { faulty_disks: 1..=1, faults_per_disk: 2..=2, ..shape };
    let faults = |seed| FaultPlan::random(&mut Sim::new(seed).rng("plan"), &always).faults.len();
    assert!((0..100).all(|seed| faults(seed) == 2));
}

/// A writer over two incarnations with random faults and jitter; everything that can be compared.
fn busy_run(seed: u64) -> (u64, Vec<u64>, Duration, String) {
    let sim = Sim::new(seed);
    let disks: Vec<SimDisk> =
        shape().disks.iter().map(|name| sim.disk(name, DiskSpec { jitter: 0.3, ..DiskSpec::nvme(1 << 20) })).collect();
    let plan = FaultPlan::random(&mut sim.rng("plan"), &shape());
    sim.set_plan(&plan);
    for _ in 0..2 {
        let writers = disks.iter().enumerate().map(|(index, disk)| {
            let (block, mut rng) = (disk.open(), sim.rng(&format!("writer {index}")));
            async move {
                use rand::RngExt;
                for _ in 0..30 {
                    let page = rng.random_range(0..256_u64);
                    match rng.random_range(0..4) {
                        0 => drop(block.flush().await),
                        1 => drop(block.read(page * 4096, PAGE).await),
                        fua => drop(block.write(page * 4096, of(rng.random()), fua == 3).await),
                    }
                }
            }
        });
        let _ = sim.run_until_crash_or(futures::future::join_all(writers));
    }
    let strikes: Vec<String> = sim.strikes().iter().map(ToString::to_string).collect();
    (sim.digest(), disks.iter().map(SimDisk::digest).collect(), sim.now(), strikes.join("\n"))
}

#[test]
fn one_seed_twice_is_the_same_run_and_two_seeds_are_not() {
    let mut digests = BTreeSet::new();
    for seed in 0..200 {
        let once = busy_run(seed);
        assert_eq!(once, busy_run(seed));
        digests.insert(once.0);
    }
    assert_eq!(digests.len(), 200);
}

#[test]
fn a_plan_prints_one_fault_a_line() {
    let plan = FaultPlan {
        faults: vec![
            Fault { disk: "a".into(), when: When::Op(3), what: FaultKind::BitRot(Place::AnyPage, 2) },
            Fault { disk: "b".into(), when: When::After(MS), what: FaultKind::Stall { lasts: Duration::MAX } },
        ],
        crashes: vec![CrashPoint::Op(9)],
    };
    let lines = [
        "disk a: 2 rotten bits in any page at its operation 3",
        "disk b: stalled for ever after 1ms",
        "power cut at operation 9 of the world",
    ];
    assert_eq!(plan.to_string().lines().collect::<Vec<_>>(), lines);
}

#[test]
#[should_panic(expected = "the plan names disk x, which is not in the world")]
fn a_plan_for_a_disk_that_is_not_there_is_refused() {
    let fault = Fault { disk: "x".into(), when: When::Op(1), what: FaultKind::Dead };
    Sim::new(1).set_plan(&FaultPlan { faults: vec![fault], crashes: vec![] });
}

#[test]
fn a_flush_that_fails_takes_with_it_what_it_was_for() {
    let sim = Sim::new(1);
    let disk = sim.disk("d", DiskSpec::constant((PAGES * PAGE) as u64, MS));
    plan(&sim, When::Op(1), FaultKind::FlushError);
    let (block, other) = (disk.open(), disk.open());
    write(&sim, &disk, 1, 99).unwrap();
    assert_eq!(sim.block_on(block.flush()).unwrap_err().kind(), Kind::Full);
    write(&sim, &disk, 2, 99).unwrap();
    assert_eq!(sim.block_on(other.flush()).unwrap_err().kind(), Kind::Full, "each hears of it");
    sim.block_on(block.flush()).unwrap();
    sim.block_on(other.flush()).unwrap();
    let holds = |page: usize| disk.at_rest((page * PAGE) as u64, 1) == [99];
    assert!(!holds(1) && holds(2), "what was lost is not there although the next flush says so");
}

#[test]
fn a_disk_that_refuses_for_a_while_does_nothing_of_what_it_refuses() {
    let (sim, disk) = filled(1);
    disk.inject(FaultKind::Refuses { lasts: 10 * MS });
    assert_eq!(write(&sim, &disk, 1, 99).unwrap_err().kind(), Kind::Retry);
    assert_eq!(read(&sim, &disk, 1).unwrap_err().kind(), Kind::Retry);
    sim.block_on(sim.runtime().sleep(10 * MS));
    assert!(changed(&disk).is_empty());
    write(&sim, &disk, 1, 99).unwrap();
    assert_eq!(changed(&disk), [1]);
}
