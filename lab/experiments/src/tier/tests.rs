use super::measure::Measured;
use super::systems::{CACHE, OTF, OTF_UP, STATIC, Scene, TITLES, WORTH};
use super::*;
use crate::experiment::{Experiment, Point, Progress, Setting};
use crate::findings::Criterion;

const GIB: u64 = 1 << 30;

/// A small scene: 30 GiB of which 2.5 are fast, ten minutes of a concentration behind ten others.
fn config(system: &'static str) -> Config {
    let scene = Scene { fast_bytes: 5 * GIB / 2, sublun_bytes: GIB / 8, floor_iops: 50.0 };
    let load = "load:src1_0-like,size=30G,span=640M,rate=100,seconds=1200,seed=3";
    Config {
        system,
        driver: scene.system(system),
        source: Source::load(load, 1).unwrap(),
        volume_bytes: 30 * GIB,
        from_s: 600,
        warmed: false,
        to_s: 1200,
    }
}

fn data(system: &'static str) -> Data {
    run(&config(system), 1, &Progress::new(&|_| {})).unwrap()
}

#[test]
fn every_system_answers_every_request_and_twice_alike() {
    let (_, own) = requests(&config(OTF)).unwrap();
    for (system, _) in TITLES {
        let first = data(system);
        for measured in [&first.measured, &first.again] {
            assert_eq!(measured.requests, own.len() as u64, "{system}");
            let minutes: u64 = measured.minutes.iter().map(|minute| minute.requests).sum();
            assert_eq!(minutes, measured.requests, "{system}");
            assert!(measured.fast + measured.buffer <= 1.0 + 1e-9, "{system}: {measured:?}");
            assert!(measured.p50_ms <= measured.p95_ms && measured.p95_ms <= measured.p99_ms, "{system}");
            let placed = measured.minutes.iter().map(|minute| minute.placed_bytes).max().unwrap();
            assert!(placed <= 5 * GIB / 2, "{system}: {placed} bytes on the fast tier");
        }
        let (mut twice, mut once) = (Vec::new(), Vec::new());
        serde_json::to_writer(&mut once, &first).unwrap();
        serde_json::to_writer(&mut twice, &data(system)).unwrap();
        assert_eq!(once, twice, "{system}");
    }
}

#[test]
fn what_moves_is_served_fast_and_static_tiering_moves_nothing() {
    let [otf, fixed, worth] = [OTF, STATIC, WORTH].map(data);
    assert!(otf.measured.up_bytes > 0 && otf.measured.fast > 0.2, "{}", otf.measured.fast);
    assert_eq!((fixed.measured.up_bytes, fixed.oracle), (0, None));
    assert!(worth.measured.fast > otf.measured.fast, "{} {}", worth.measured.fast, otf.measured.fast);
    for data in [&otf, &worth] {
        let bound = data.oracle.unwrap();
        assert!(data.measured.fast <= bound.share + 1e-9, "{} of at most {bound:?}", data.measured.fast);
    }
}

/// Writes to a region that moves are answered by the buffer, at once.
#[test]
fn the_buffer_takes_writes_to_what_moves() {
    let [otf, up] = [OTF, OTF_UP].map(data);
    for measured in [&otf.measured, &up.measured] {
        assert!(measured.buffer > 0.0, "{measured:?}");
    }
}

#[test]
fn a_cache_hits_what_it_has_seen() {
    let cache = data(CACHE);
    assert!(
        cache.measured.fast < 0.1 && cache.again.fast > 3.0 * cache.measured.fast,
        "{} {}",
        cache.measured.fast,
        cache.again.fast
    );
    // Nine of ten are writes, which the cache takes.
    assert!(cache.measured.not_slow > 0.8, "{}", cache.measured.not_slow);
}

#[test]
fn a_loads_experiment_refuses_traces_and_a_traces_one_takes_them() {
    let setting = Setting { traces: vec!["load:zipf,seconds=60".into()], seed: 1, ..Setting::default() };
    assert!(
        Experiment::points(&TierPolicies, &setting, &Progress::UNTOLD).unwrap_err().to_string().contains("tier-traces")
    );
    let points = Experiment::points(&TierTraces, &setting, &Progress::UNTOLD).unwrap();
    assert_eq!(points.len(), TITLES.len());
    assert_eq!(
        Experiment::points(&TierPolicies, &Setting::default(), &Progress::UNTOLD).unwrap().len(),
        2 * TITLES.len()
    );
}

/// Measures in which another system is the better one make the criteria fail that say so.
#[test]
fn a_policy_that_is_behind_fails() {
    let failing = |worth: f64, cache: f64| -> Vec<Criterion> {
        let points = Experiment::points(
            &TierTraces,
            &Setting { traces: vec!["load:zipf,seconds=60".into()], ..Setting::default() },
            &Progress::UNTOLD,
        );
        let of = |point: Point<Config>| {
            let fast = match point.config.system {
                WORTH => worth,
                CACHE => cache,
                _ => 0.1,
            };
            let minute = measure::Minute {
                requests: 10_000,
                fast: (fast * 1e4) as u64,
                response_ms: 1e4 * (1.0 - fast),
                ..measure::Minute::default()
            };
            let measured = Measured {
                requests: 10_000,
                fast,
                mean_ms: 1.0 - fast,
                p95_ms: 1.0 - fast,
                minutes: vec![minute],
                ..Measured::default()
            };
            (point, Data { measured: measured.clone(), again: measured, oracle: Some(Bound { share: 0.9, moves: 1 }) })
        };
        let results: Vec<_> = points.unwrap().into_iter().map(of).collect();
        let findings = Experiment::judge(&TierTraces, &Setting::default(), &results).unwrap();
        findings.criteria.into_iter().filter(|it| !it.holds).collect()
    };
    assert!(failing(0.8, 0.6).is_empty(), "{:#?}", failing(0.8, 0.6));
    assert_eq!(failing(0.6, 0.8).len(), 11, "{:#?}", failing(0.6, 0.8));
}
