use super::systems::{FLOATING, HOT, HOT_PAPER, MIRROR_DISKS, MIRROR_TRACKS, RAID5};
use super::*;
use crate::experiment::Experiment;
use crate::findings::Criterion;
use kura_sim::{Io, IoKind, Model, Rotating, RotatingSpec, ServiceModel};

const MIB: u64 = 1 << 20;

fn disk(system: &System, data_bytes: u64) -> RotatingSpec {
    match system.slow_disk(data_bytes, "slow0").model {
        Model::Rotating(spec) => spec,
        other => panic!("{other} does not turn"),
    }
}

#[test]
fn the_papers_data_fills_the_papers_disks() {
    for system in [RAID5, FLOATING, MIRROR_DISKS, MIRROR_TRACKS, HOT_PAPER, HOT] {
        let spec = disk(&system, 11_420 * MIB);
        assert_eq!(spec.tracks_per_cylinder, system.tracks);
        // A hundredth is kura's own, and where rows float a five-hundredth is their maps.
        let most = if system.floating_percent > 0 { 4430 } else { 4420 };
        assert!((4350..=most).contains(&spec.cylinders), "{}: {} cylinders", system.name, spec.cylinders);
    }
}

/// Whatever the scale, from edge to edge a seek takes as long.
#[test]
fn smaller_disks_seek_as_long() {
    let paper = RotatingSpec::paper();
    for data_bytes in [48 * MIB, 1000 * MIB, 40_000 * MIB] {
        for system in SYSTEMS {
            let spec = disk(system, data_bytes);
            let (ours, papers) = (spec.seek_ns(spec.cylinders) as f64, paper.seek_ns(paper.cylinders) as f64);
            assert!((ours / papers - 1.0).abs() < 1e-6, "{}: {ours} ns, the paper's {papers} ns", system.name);
        }
    }
}

/// Whatever the scale, who reads on finds the next cylinder's first sector when the heads arrive: it takes no longer than where
/// seeks take no time.
#[test]
fn smaller_disks_read_on_without_a_lost_turn() {
    let whole_ns = |spec: RotatingSpec| {
        let len_bytes = 20 * spec.tracks_per_cylinder * spec.track_bytes();
        Rotating::new(spec).service_ns(&Io { kind: IoKind::Read, offset_bytes: 0, len_bytes }, 0)
    };
    // The last but one is what `--quick` has, the last what `--full` has.
    for data_bytes in [48 * MIB, 1000 * MIB, 1632 * MIB, 11_420 * MIB] {
        for system in SYSTEMS {
            let spec = disk(system, data_bytes);
            let at_once = RotatingSpec { seek_fixed_ms: 0.0, seek_linear_ms: 0.0, seek_root_ms: 0.0, ..spec };
            assert_eq!(whole_ns(spec), whole_ns(at_once), "{}: {} cylinders", system.name, spec.cylinders);
        }
    }
}

#[test]
fn every_array_holds_the_data() {
    for data_bytes in [48 * MIB, 11_420 * MIB] {
        for system in SYSTEMS {
            let node = system.node(data_bytes);
            let room_bytes = node.room_bytes(system.layout).unwrap();
            assert!(room_bytes >= data_bytes, "{}: {room_bytes} bytes for {data_bytes}", system.name);
            let raw_bytes: u64 = node.disks.iter().skip(2).map(|disk| disk.size_bytes).sum();
            assert!(raw_bytes >= data_bytes * 4 / 3, "{}: as much as the paper's arrays", system.name);
        }
    }
}

fn setting(traces: &[&str]) -> Setting {
    Setting { traces: traces.iter().map(Into::into).collect(), seed: 1, ..Setting::default() }
}

#[test]
fn one_trace_or_none() {
    let error = |traces: &[&str]| {
        Experiment::points(&ArrayResponse, &setting(traces), &Progress::UNTOLD).unwrap_err().to_string()
    };
    let load = "load:zipf,size=48M,requests=100";
    assert!(error(&[load, load]).contains("one trace"));
    assert!(error(&["nowhere.csv"]).contains("nowhere.csv"));
    assert_eq!(
        Experiment::points(&ArrayRebuild, &setting(&[load]), &Progress::UNTOLD).unwrap().len(),
        SYSTEMS.len() * RATES.len()
    );
}

/// A load that ends begins again, at the rate asked for.
#[test]
fn the_trace_is_repeated() {
    let source = Source::load("load:zipf,size=48M,requests=100", 1).unwrap();
    let own_rate = source.extent(&|_| {}).unwrap().arrivals_per_s;
    let times: Vec<u64> = source.endless(50.0 / own_rate).unwrap().take(1000).map(|it| it.unwrap().at_ns).collect();
    assert!(times.is_sorted());
    let rate = 999.0 / (times[999] - times[0]) as f64 * 1e9;
    assert!((rate / 50.0 - 1.0).abs() < 0.05, "{rate} a second");
}

/// A point, with its load so many times as fast.
fn point<E: Experiment<Config = Config>>(experiment: &E, name: &str, faster: f64) -> E::Data {
    let setting = setting(&[LOAD]);
    let points = Experiment::points(experiment, &setting, &Progress::UNTOLD).unwrap();
    let mut point = points.into_iter().find(|point| point.name == name).unwrap();
    point.config.acceleration *= faster;
    experiment.run(&point, &setting, &Progress::new(&|_| {})).unwrap()
}

const LOAD: &str = "load:zipf,size=48M,reads=0.6,requests=1000000000";

#[test]
fn an_array_is_overloaded_or_it_keeps_up() {
    let busy = point(&ArrayResponse, "raid5-200", 1.0).unwrap();
    assert!(busy.read_p50_ms < busy.read_p90_ms && busy.read_p90_ms < 200.0, "{busy:?}");
    assert!((0.2..1.0).contains(&busy.busy_mean), "{busy:?}");
    assert_eq!(point(&ArrayResponse, "raid5-200", 10.0), None);
}

#[test]
fn a_disk_is_rebuilt_while_it_serves() {
    let data = point(&ArrayRebuild, "mirror-x1.5-disks-200", 1.0).unwrap();
    let rebuild = data.rebuild.as_ref().unwrap();
    assert!(rebuild.elapsed_s > 1.0 && rebuild.reads > 100, "{data:?}");
    assert!(rebuild.read_p90_ms >= data.normal.read_p90_ms, "{data:?}");
}

fn answering(p90_ms: f64) -> Measured {
    Measured {
        reads: 1,
        writes: 1,
        read_p50_ms: p90_ms / 2.0,
        read_p90_ms: p90_ms,
        read_mean_ms: p90_ms / 2.0,
        busy_mean: 0.5,
        busy_most: 0.5,
        elapsed_s: 1.0,
    }
}

/// The highest rate of an array is that of its normal operation, where its rebuild fell behind before.
#[test]
fn an_array_that_fell_behind_as_it_rebuilt_kept_up_before() {
    let setting = setting(&[LOAD]);
    let points = Experiment::points(&ArrayRebuild, &setting, &Progress::UNTOLD).unwrap();
    let results = points.into_iter().filter(|point| point.config.system == HOT.name).map(|point| {
        let rate = point.config.arrivals_per_s;
        let rebuild = (rate < 300.0).then(|| answering(22.0));
        (point, (rate < 500.0).then(|| rebuild::Data { normal: answering(20.0), rebuild }))
    });
    let findings = ArrayRebuild.judge(&setting, &results.collect::<Vec<_>>()).unwrap();
    assert_eq!(findings.tables[0].rows.len(), 1, "a line of the figure ends where the rebuild falls behind");
    let suffers = findings.criteria.iter().find(|it| it.name.contains("half its highest rate")).unwrap();
    // Of 400 arrivals a second.
    assert_eq!((&suffers.ours, suffers.holds), (&1.1.into(), true));
}

/// Measures that are those of the wrong array make the criteria fail that name it.
#[test]
fn an_array_that_is_another_one_fails() {
    let setting = setting(&[LOAD]);
    let result = |name: &str, p90_ms: f64| {
        let points = Experiment::points(&ArrayResponse, &setting, &Progress::UNTOLD).unwrap();
        let point = points.into_iter().find(|point| point.name == name).unwrap();
        (point, Some(answering(p90_ms)))
    };
    let queued = [
        ("hot-mirror-1996", [35.0, 75.0]),
        ("hot-mirror", [21.0, 31.0]),
        ("raid5-queued", [30.0, 50.0]),
        ("floating", [38.0, 80.0]),
        ("floating-queued", [28.0, 45.0]),
        ("mirror-x1.5-disks-queued", [20.0, 28.0]),
    ];
    let judged = |times: [(&str, [f64; 2]); 3], others: [(&str, [f64; 2]); 6]| -> Vec<Criterion> {
        let results = times.into_iter().chain(others).flat_map(|(name, times)| {
            let measured = [200, 300].into_iter().zip(times);
            let measured: Vec<_> = measured.map(|(rate, p90_ms)| result(&format!("{name}-{rate}"), p90_ms)).collect();
            let (overloaded, _) = result(&format!("{name}-400"), 0.0);
            measured.into_iter().chain([(overloaded, None)])
        });
        ArrayResponse.judge(&setting, &results.collect::<Vec<_>>()).unwrap().criteria
    };
    let right = [("raid5", [40.0, 90.0]), ("mirror-x1.5-disks", [30.0, 62.0]), ("mirror-x1.5-tracks", [50.0, 80.0])];
    // The rates of both kinds of hot mirroring are too near here to tell them apart.
    let apart = |criterion: &Criterion| !criterion.name.contains("over the paper's");
    let failing = |times, others| {
        judged(times, others).into_iter().filter(|it| apart(it) && !it.holds).map(|it| it.name).collect::<Vec<_>>()
    };
    assert_eq!(failing(right, queued), Vec::<String>::new());
    let swapped = [("raid5", [30.0, 62.0]), ("mirror-x1.5-disks", [40.0, 90.0]), ("mirror-x1.5-tracks", [50.0, 80.0])];
    let names = failing(swapped, queued);
    let concerned = |name: &String| name.contains("1.5 x the disks") || name.contains("RAID5");
    assert!(names.len() == 5 && names.iter().all(concerned), "{names:#?}");
    // Ours is held against what has the same queues, whatever the others are like.
    let beside = |name: &str, times: [f64; 2]| queued.map(|own| if own.0 == name { (own.0, times) } else { own });
    let names = failing(right, beside("mirror-x1.5-disks-queued", [14.0, 24.0]));
    assert!(names.len() == 1 && names[0].contains("kura over mirror, 1.5 x the disks, queued: 90th"), "{names:#?}");
    let names = failing(right, beside("raid5-queued", [20.0, 50.0]));
    assert!(names.len() == 1 && names[0].contains("RAID5, queued over hot mirroring, kura: 90th"), "{names:#?}");
    let names = failing(right, beside("floating", [38.0, 70.0]));
    assert!(names.len() == 1 && names[0].contains("floating over hot mirroring, as in the paper: 90th"), "{names:#?}");
    let names = failing(right, beside("floating-queued", [20.0, 45.0]));
    assert!(names.len() == 1 && names[0].contains("floating, queued over hot mirroring, kura: 90th"), "{names:#?}");
    let falling = [("raid5", [90.0, 40.0]), ("mirror-x1.5-disks", [30.0, 62.0]), ("mirror-x1.5-tracks", [50.0, 80.0])];
    let names = failing(falling, queued);
    assert!(names.iter().any(|name| name.contains("deepest fall") && name.contains("RAID5")), "{names:#?}");
}

/// A mirror of which no highest rate was found is not said to be near.
#[test]
fn a_rate_that_was_not_found_is_not_near() {
    let ours = Curve(vec![(200.0, Some(30.0)), (300.0, None)]);
    let other = |last| highest_rate(String::new(), &ours, &Curve(vec![(200.0, Some(30.0)), (300.0, last)]));
    assert!(other(None).holds && !other(Some(40.0)).holds, "{:?}", other(Some(40.0)));
}
