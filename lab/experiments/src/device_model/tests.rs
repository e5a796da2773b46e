use super::*;
use crate::plan::Listed;

/// Criteria of models at a small scale.
fn judged(model: &DeviceModel) -> Vec<Criterion> {
    let setting = Setting { seed: 1, ..Setting::default() };
    let disk = (model.disk)();
    let load = |arrivals_per_s| Load { arrivals_per_s, arrivals: 40_000 };
    let points = [
        Config::Seek { disk, step: 600 },
        Config::Rotation { disk, reads: 4000 },
        Config::Transfer { disk, tracks: 40 },
        Config::Queue { server: Server::Constant { channels: model.channels }, load: load(700) },
        Config::Queue { server: Server::Disk(disk), load: load(35) },
    ];
    let results = points.map(|config| {
        let point = Point { name: "point".to_owned(), config };
        let data = model.run(&point, &setting, &Progress::new(&|_| {})).unwrap();
        (point, data)
    });
    model.judge(&setting, &results).unwrap().criteria
}

/// Names of the criteria that do not hold.
fn failing(model: &DeviceModel) -> Vec<String> {
    judged(model).into_iter().filter(|criterion| !criterion.holds).map(|criterion| criterion.name).collect()
}

#[test]
fn the_models_follow_their_formulas() {
    let criteria = judged(&DeviceModel::TRUE);
    let failing: Vec<_> = criteria.iter().filter(|criterion| !criterion.holds).collect();
    assert!(failing.is_empty(), "{failing:#?}");
    assert_eq!(criteria.len(), 10);
}

#[test]
fn what_follows_from_a_formula_says_so() {
    let criteria = judged(&DeviceModel::TRUE);
    let paper = |name: &str| {
        let criterion = criteria.iter().find(|criterion| criterion.name.starts_with(name)).unwrap();
        criterion.paper.as_ref().unwrap().to_string()
    };
    assert_eq!(paper("mean wait, ms"), "6.665 (formula)");
    assert!(paper("seek over").ends_with(" (formula)"));
    assert_eq!(paper("transfer of a whole track, ms"), "13.33");
}

#[test]
fn a_trace_is_refused() {
    let setting = Setting { traces: vec!["x.csv".into()], ..Setting::default() };
    let error = DeviceModel::TRUE.plan(&setting, &Progress::UNTOLD).err().unwrap().to_string();
    assert_eq!(error, "it takes no trace: run it without --trace");
}

/// Each break must be seen by a criterion that names it.
#[test]
fn a_broken_model_fails() {
    let slow_seek = || RotatingSpec { seek_linear_ms: 0.003, ..RotatingSpec::paper() };
    let slow_turn = || RotatingSpec { revolution_ns: 13_600_000, ..RotatingSpec::paper() };
    let no_skew = || RotatingSpec { track_skew: 0, ..RotatingSpec::paper() };
    let cases = [
        (DeviceModel { disk: slow_seek, channels: 1 }, "seek over"),
        (DeviceModel { disk: slow_turn, channels: 1 }, "mean wait, ms"),
        (DeviceModel { disk: slow_turn, channels: 1 }, "whole track"),
        (DeviceModel { disk: no_skew, channels: 1 }, "sequential"),
        (DeviceModel { channels: 2, ..DeviceModel::TRUE }, "M/D/1"),
    ];
    for (model, name) in cases {
        let failing = failing(&model);
        assert!(failing.iter().any(|criterion| criterion.contains(name)), "{name}: {failing:?}");
    }
}

#[test]
fn every_point_of_either_scale_is_planned() {
    for scale in [crate::Scale::Quick, crate::Scale::Full] {
        let setting = Setting { scale, ..Setting::default() };
        assert_eq!(DeviceModel::TRUE.plan(&setting, &Progress::UNTOLD).unwrap().points(), 18);
    }
}
