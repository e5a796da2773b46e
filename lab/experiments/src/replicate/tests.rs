use super::cluster::Model;
use super::{Balance, Contention};
use crate::experiment::{Experiment, Progress, Setting};
use crate::findings::Criterion;
use crate::plan::Listed;

/// Criteria of an experiment at the quick scale.
fn judged<E: Experiment>(experiment: &E) -> Vec<Criterion> {
    let setting = Setting { seed: 1, ..Setting::default() };
    let points = experiment.points(&setting, &Progress::UNTOLD).unwrap();
    let results: Vec<_> = points
        .into_iter()
        .map(|point| {
            let data = experiment.run(&point, &setting, &Progress::new(&|_| {})).unwrap();
            (point, data)
        })
        .collect();
    experiment.judge(&setting, &results).unwrap().criteria
}

fn failing<E: Experiment>(experiment: &E) -> Vec<String> {
    judged(experiment).into_iter().filter(|criterion| !criterion.holds).map(|criterion| criterion.name).collect()
}

#[test]
fn one_model_gives_the_papers_numbers_but_one() {
    // The median of the draws is a sixth above the paper's one draw.
    let gain = "gain of the split by size, P(75,10,10,5,0), median of draws, % (Fig. 5)";
    for (criteria, count, not_there) in
        [(judged(&Contention { model: Model::PAPER }), 5, vec![]), (judged(&Balance::of(Model::PAPER)), 14, vec![gain])]
    {
        let failing = criteria.iter().filter(|criterion| !criterion.holds).map(|criterion| criterion.name.as_str());
        assert_eq!(failing.collect::<Vec<_>>(), not_there);
        assert_eq!(criteria.len(), count);
    }
}

/// Each break must be seen by a criterion that names it.
#[test]
fn a_broken_model_fails() {
    let cases = [
        (Model { pass_s: 0.003, ..Model::PAPER }, "contended, s (Table 1)"),
        (Model { pass_s: 0.003, ..Model::PAPER }, "overhead at 10 MB"),
        (Model { file_s: 0.02, ..Model::PAPER }, "not contended, s (Table 1)"),
        (Model { overlap: 0.2, ..Model::PAPER }, "overhead at 10 MB"),
    ];
    for (model, name) in cases {
        let failing = failing(&Contention { model });
        assert!(failing.iter().any(|criterion| criterion.contains(name)), "{name}: {failing:?}");
    }
    let failing = failing(&Balance::of(Model { bytes_per_s: 14e6, ..Model::PAPER }));
    assert!(failing.iter().any(|criterion| criterion.contains("process 1, s (Table 2)")), "{failing:?}");
}

#[test]
fn a_split_that_cuts_nothing_is_too_slow() {
    let paper = Balance::of(Model::PAPER);
    let whole = Balance { ours: kura_replicate::balance::Balanced { may_cut: false, ..paper.ours }, ..paper };
    let failing = failing(&whole);
    assert!(failing.iter().any(|criterion| criterion.contains("over the bound")), "{failing:?}");
}

#[test]
fn traces_are_refused() {
    let setting = Setting { traces: vec!["x.csv".into()], ..Setting::default() };
    for listed in [&Contention { model: Model::PAPER } as &dyn Listed, &Balance::of(Model::PAPER)] {
        assert_eq!(
            listed.plan(&setting, &Progress::UNTOLD).err().unwrap().to_string(),
            "it takes no trace: run it without --trace"
        );
    }
}
