use super::machine::Ran;
use super::methods::{Config, Done};
use super::{Costs, SnapshotMessage, SnapshotMethods};
use crate::experiment::{Experiment, Point, Progress, Setting};
use crate::findings::Criterion;
use crate::plan::Listed;
use std::sync::OnceLock;

const MESSAGE: SnapshotMessage = SnapshotMessage { costs: Costs::PAPER };
const METHODS: SnapshotMethods = SnapshotMethods { costs: Costs::PAPER };

type Results<E> = Vec<(Point<<E as Experiment>::Config>, <E as Experiment>::Data)>;

/// All points at the quick scale.
fn done<E: Experiment>(experiment: &E, seed: u64) -> Results<E> {
    let setting = Setting { seed, ..Setting::default() };
    let points = experiment.points(&setting, &Progress::UNTOLD).unwrap();
    points
        .into_iter()
        .map(|point| {
            let data = experiment.run(&point, &setting, &Progress::new(&|_| {})).unwrap();
            (point, data)
        })
        .collect()
}

fn judged<E: Experiment>(experiment: &E, results: &Results<E>) -> Vec<Criterion> {
    experiment.judge(&Setting::default(), results).unwrap().criteria
}

fn failing(criteria: Vec<Criterion>) -> Vec<String> {
    criteria.into_iter().filter(|criterion| !criterion.holds).map(|criterion| criterion.name).collect()
}

/// The points of `snapshot-methods`, done once for all tests.
fn methods() -> &'static Results<SnapshotMethods> {
    static DONE: OnceLock<Results<SnapshotMethods>> = OnceLock::new();
    DONE.get_or_init(|| done(&METHODS, 1))
}

#[test]
fn one_model_gives_the_papers_numbers() {
    for (criteria, count) in [(judged(&MESSAGE, &done(&MESSAGE, 1)), 7), (judged(&METHODS, methods()), 24)] {
        assert_eq!(criteria.len(), count);
        let failing = failing(criteria);
        assert!(failing.is_empty(), "{failing:#?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_data() {
    let [one, again, other] = [3, 3, 4].map(|seed| {
        let setting = Setting { seed, ..Setting::default() };
        let points = MESSAGE.points(&setting, &Progress::UNTOLD).unwrap();
        let point = points.iter().find(|point| point.name == "message-20").unwrap();
        MESSAGE.run(point, &setting, &Progress::new(&|_| {})).unwrap()
    });
    assert_eq!(one, again);
    assert_ne!(one, other);
}

/// Each break must be seen by a criterion that names it.
#[test]
fn broken_costs_fail() {
    let cases = [
        (Costs { receive_us: 20.0, ..Costs::PAPER }, "at 20 %"),
        (Costs { copy_us: 5000.0, ..Costs::PAPER }, "at 100 %"),
        (Costs { write_us: 400.0, ..Costs::PAPER }, "at 10 %"),
    ];
    for (costs, name) in cases {
        let broken = SnapshotMessage { costs };
        let failing = failing(judged(&broken, &done(&broken, 1)));
        assert!(failing.iter().any(|criterion| criterion.contains(name)), "{name}: {failing:?}");
    }
}

/// What `snapshot-methods` finds to fail where these data are others.
fn failing_with(change: impl Fn(&Config, &mut Done)) -> Vec<String> {
    let mut results = methods().clone();
    for (point, data) in &mut results {
        change(&point.config, data);
    }
    failing(judged(&METHODS, &results))
}

/// Data of a method that are another's.
fn exchanged(one: &'static str, other: &'static str) -> Vec<String> {
    let mut results = methods().clone();
    for (point, _) in &mut results {
        let name = &mut point.config.method;
        *name = if *name == one {
            other
        } else if *name == other {
            one
        } else {
            *name
        };
    }
    failing(judged(&METHODS, &results))
}

#[test]
fn a_method_that_is_another_one_fails() {
    for (one, other, names) in [
        (
            "lease",
            "access-change",
            &["speed of lease at 100 %", "a save copy, lease", "a save copy, access-change"][..],
        ),
        ("lease", "message", &["lease, normal", "with two controllers", "8 controllers", "backup"]),
        ("lease", "aggregate", &["of aggregate", "when aggregate", "when lease"]),
        ("access-change", "message", &["over that of message", "messages a save copy", "drops of access-change"]),
    ] {
        let failing = exchanged(one, other);
        for name in names {
            assert!(failing.iter().any(|criterion| criterion.contains(name)), "{one}, {other}: {name}: {failing:?}");
        }
    }
}

#[test]
fn data_that_are_a_little_off_fail() {
    let of = |method: &'static str, change: fn(&mut Ran)| {
        failing_with(move |config, data| match data {
            Done::Ran(ran) if config.method == method => change(ran),
            _ => {}
        })
    };
    for (method, change, name) in [
        ("lease", (|ran| ran.per_s *= 0.998) as fn(&mut Ran), "lease, normal operation"),
        ("access-change", |ran| ran.per_s *= 0.9, "access-change, backup"),
        ("message", |ran| ran.per_s *= 1.1, "message, normal operation"),
        ("message", |ran| ran.messages += ran.saves, "messages a save copy"),
        ("message", |ran| ran.shared_reads += 2 * ran.saves, "shared accesses a save copy, message"),
        ("aggregate", |ran| ran.drops += 1, "of aggregate"),
        ("access-change", |ran| ran.messages += 1, "messages and drops of access-change"),
    ] {
        let failing = of(method, change);
        assert!(failing.iter().any(|criterion| criterion.contains(name)), "{method}, {name}: {failing:?}");
    }
    let failing = failing_with(|config, data| match data {
        Done::Filled(filled) if config.method == "lease" => filled.stranded = 0.0011,
        _ => {}
    });
    assert!(failing.iter().any(|criterion| criterion.contains("stranded")), "{failing:?}");
}

#[test]
fn traces_are_refused() {
    let setting = Setting { traces: vec!["x.csv".into()], ..Setting::default() };
    for listed in [&MESSAGE as &dyn Listed, &METHODS] {
        assert_eq!(
            listed.plan(&setting, &Progress::UNTOLD).err().unwrap().to_string(),
            "it takes no trace: run it without --trace"
        );
    }
}
