use super::{Config, ObjectStores, Rounds, SIZES_KIB};
use crate::experiment::{Experiment, Point, Progress, Scale, Setting};
use crate::findings::Criterion;
use crate::plan::Listed;
use kura_stores::{Aged, Measured, Phase, Side};

type Results = Vec<(Point<Config>, Vec<Rounds>)>;

fn phase(mb_s: f64) -> Phase {
    Phase { mb_s, p50_us: 1.0, p99_us: 2.0 }
}

/// What keeps every bound: others at 100 MB/s at most, in the paper's order, and the device at 1000, ours 200 and more with
/// every size.
fn fine() -> Results {
    let points = ObjectStores.points(&Setting::default(), &Progress::UNTOLD).unwrap();
    let with_data = points.into_iter().map(|point| {
        let rate = |side| match side {
            Side::Kura => 200.0 + (point.config.work.size_bytes >> 10) as f64 / 10.0,
            Side::Device => 1000.0,
            Side::BerkeleyDb if point.config.work.size_bytes <= 256 << 10 => 100.0,
            Side::BerkeleyDb => 10.0,
            Side::Btrfs => 45.0,
            Side::Ext3 => 60.0,
        };
        let of_side = |side| {
            let now = phase(rate(side));
            let aged = (side == Side::Kura).then_some(Aged { create: now, read: now });
            Rounds { side, rounds: vec![Measured { create: now, read: now, write_amplification: 1.05, aged }; 3] }
        };
        let sides = Side::ALL.map(of_side).to_vec();
        (point, sides)
    });
    with_data.collect()
}

fn judged(results: &Results) -> Vec<Criterion> {
    ObjectStores.judge(&Setting::default(), results).unwrap().criteria
}

fn failing(results: &Results) -> Vec<String> {
    judged(results).into_iter().filter(|criterion| !criterion.holds).map(|criterion| criterion.name).collect()
}

/// Changes what a side came to at a size with one client, in every round.
fn changed(kib: usize, side: Side, change: impl Fn(&mut Measured)) -> Results {
    let mut results = fine();
    let is_meant = |point: &Point<Config>| point.config.work.clients == 1 && point.config.work.size_bytes == kib << 10;
    for (_, sides) in results.iter_mut().filter(|(point, _)| is_meant(point)) {
        let of_side = sides.iter_mut().filter(|rounds| rounds.side == side);
        of_side.flat_map(|rounds| &mut rounds.rounds).for_each(&change);
    }
    results
}

#[test]
fn every_clause_is_judged() {
    let criteria = judged(&fine());
    assert!(criteria.iter().all(|criterion| criterion.holds), "{criteria:#?}");
    // For each number of clients: both phases of each size, whether ours is first, their cliffs and age, and what is written;
    // and four numbers of the paper.
    assert_eq!(criteria.len(), 2 * (2 * SIZES_KIB.len() + 2 * 3 + 1) + 4);
}

#[test]
fn each_miss_is_named_and_nothing_else() {
    let too_slow = |it: &mut Measured| it.read = phase(149.0);
    let behind = failing(&changed(4, Side::Kura, too_slow));
    assert!(behind.len() == 1 && behind[0].starts_with("read 4 KiB, 1 client:"), "{behind:?}");
    let rival = failing(&changed(16, Side::BerkeleyDb, |it| it.create = phase(150.0)));
    assert!(rival.len() == 1 && rival[0].starts_with("create 16 KiB, 1 client:"), "{rival:?}");
    // Less than one and a half times the best, and of the device it has 0.95: but it is second.
    let mut second = changed(64, Side::Btrfs, |it| it.read = phase(220.0));
    for (_, sides) in &mut second {
        let device = sides.iter_mut().filter(|rounds| rounds.side == Side::Device);
        device.flat_map(|rounds| &mut rounds.rounds).for_each(|it| it.read = phase(210.0));
    }
    let second: Vec<String> = failing(&second).into_iter().filter(|name| name.contains("first")).collect();
    assert_eq!(second, ["first: MB/s over the best of the others, read, 1 client: the least at any size"]);
    let papers = failing(&changed(512, Side::BerkeleyDb, |it| it.read = phase(101.0)));
    assert!(papers.len() == 1 && papers[0].contains("Berkeley DB at 512 KiB over that at 256"), "{papers:?}");
    let cliff = failing(&changed(512, Side::Kura, |it| it.read = phase(200.0)));
    assert!(cliff.len() == 1 && cliff[0].starts_with("MB/s over those at half the size, read, 1 client"), "{cliff:?}");
    let written = failing(&changed(128, Side::Kura, |it| it.write_amplification = 1.11));
    assert!(written.len() == 1 && written[0].starts_with("bytes written"), "{written:?}");
    assert!(failing(&changed(64, Side::Kura, |it| it.write_amplification = 2.0)).is_empty(), "64 KiB may");
    let aged = failing(&changed(32, Side::Kura, |it| it.aged.iter_mut().for_each(|aged| aged.create = phase(100.0))));
    assert!(aged.len() == 1 && aged[0].starts_with("MB/s aged over fresh, create, 1 client"), "{aged:?}");
}

#[test]
fn the_device_is_a_limit_that_counts() {
    let at_limit = |it: &mut Measured| it.create = phase(210.0);
    assert!(failing(&changed(1024, Side::Device, at_limit)).is_empty());
    let mut results = changed(1024, Side::Btrfs, |it| it.create = phase(205.0));
    assert_eq!(failing(&results).len(), 1, "as fast as a rival is not enough");
    for (point, sides) in &mut results {
        if point.config.work.size_bytes == 1 << 20 {
            let device = sides.iter_mut().filter(|rounds| rounds.side == Side::Device);
            device.flat_map(|rounds| &mut rounds.rounds).for_each(at_limit);
        }
    }
    assert!(failing(&results).is_empty(), "unless the device gives no more");
    // A bare device that was disturbed is no excuse: the rival has shown what there is.
    let mut results = changed(1024, Side::Btrfs, |it| it.read = phase(600.0));
    for rounds in results.iter_mut().flat_map(|(_, sides)| sides).filter(|rounds| rounds.side == Side::Device) {
        rounds.rounds.iter_mut().for_each(|it| it.read = phase(20.0));
    }
    let behind = failing(&results);
    assert!(behind.len() == 2 && behind[0].starts_with("read 1024 KiB, 1 client:"), "{behind:?}");
    assert!(behind[1].starts_with("first: "), "{behind:?}");
}

#[test]
fn a_round_that_was_disturbed_does_not_decide() {
    let mut results = fine();
    for (_, sides) in &mut results {
        sides[0].rounds[1].create = phase(1.0);
        sides[1].rounds[2].read = phase(900.0);
    }
    let failing = failing(&results);
    assert!(failing.is_empty(), "{failing:?}");
}

#[test]
fn at_full_scale_it_is_the_papers_number_of_objects_where_they_fit() {
    let setting = Setting { scale: Scale::Full, ..Setting::default() };
    for point in ObjectStores.points(&setting, &Progress::UNTOLD).unwrap() {
        let work = point.config.work;
        assert_eq!(work.count, 10_000.min(2560 << 20 >> work.size_bytes.ilog2()), "{}", point.name);
    }
}

#[test]
fn it_takes_no_trace_and_its_points_run_alone() {
    let setting = Setting { traces: vec!["x.csv".into()], ..Setting::default() };
    assert_eq!(
        ObjectStores.plan(&setting, &Progress::UNTOLD).err().unwrap().to_string(),
        "it takes no trace: run it without --trace"
    );
    assert!(Listed::is_measured(&ObjectStores));
}
