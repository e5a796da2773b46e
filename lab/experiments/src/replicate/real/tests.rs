use super::{Compared, Config, Ran, Real, Side, What, carry, grow};
use crate::experiment::{Experiment, Point, Progress, Setting};
use crate::replicate::trees::Tree;
use kura_replicate::{Options, Split, With};

fn compared(seconds: [f64; 3]) -> Vec<(Point<Config>, Compared)> {
    let side = |(split, seconds)| Side { split, rounds: vec![Ran { seconds, workers_s: vec![7.48, 0.91, 0.86] }] };
    let splits = [Split::ByCount, Split::SizeAware, Split::Balanced];
    let compared = Compared { bound_s: 1.0, sides: splits.into_iter().zip(seconds).map(side).collect() };
    let points = Real.points(&Setting::default(), &Progress::UNTOLD).unwrap();
    points.into_iter().map(|point| (point, compared.clone())).collect()
}

#[test]
fn ours_is_first_or_it_is_told() {
    let judged = |seconds| Real.judge(&Setting::default(), &compared(seconds)).unwrap();
    assert!(judged([4.0, 2.0, 1.0]).criteria.iter().all(|criterion| criterion.holds));
    assert_eq!(judged([4.0, 2.0, 1.0]).tables[0].rows.len(), 9);
    let failing = |seconds| judged(seconds).criteria.iter().filter(|criterion| !criterion.holds).count();
    assert_eq!(failing([4.0, 2.0, 2.1]), 3);
    assert_eq!(failing([4.0, 2.0, 2.0]), 3, "level is not first");
    assert_eq!(failing([2.0, 2.05, 1.0]), 1, "the paper's own split gains nothing where there are big files");
}

#[test]
fn a_tree_is_carried_by_processes_of_the_papers_rate() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = grow(&Tree::flat(3, 4, 4 << 20), 2, &folder.path().join("source")).unwrap();
    assert_eq!(bytes, 24 << 20);
    let bandwidth = Some(3 * super::RATE);
    // Lists that are nobody else's: each worker has something to do.
    let options = Options {
        with: Some(With::Rsync),
        workers: 3,
        durable: false,
        bandwidth,
        split: Split::ByCount,
        ..Options::default()
    };
    let ran = carry(folder.path(), &options).unwrap();
    assert!(ran.seconds > 0.0 && ran.workers_s.len() == 3 && ran.workers_s.iter().all(|s| *s > 0.0), "{ran:?}");
    assert!(matches!(Real.points(&Setting::default(), &Progress::UNTOLD).unwrap()[0].config.what, What::Table2));
}
