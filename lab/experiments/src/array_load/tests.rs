use super::shape::{self, Rise};
use super::*;
use crate::plan::Listed;

#[test]
fn classes_double_and_shares_are_of_accesses() {
    // One block read once and written once, one read thrice, one written a thousand times.
    let frequencies = [[1, 1, 1], [3, 0, 1], [0, 1000, 1]];
    let shares = shape::by_class(&frequencies);
    let classes: Vec<_> = shares.iter().map(|(reads, writes, _)| (*reads, *writes)).collect();
    assert_eq!(classes, [("3-4", "0"), ("1", "1"), ("0", "513+")]);
    assert!((shares.iter().map(|(.., share)| share).sum::<f64>() - 1.0).abs() < 1e-12);
    assert!((shape::read_and_written(&frequencies) - 2.0 / 1005.0).abs() < 1e-12);
    assert_eq!(shape::busiest(&frequencies), (0, 1000));
    assert!((shape::often_written(&frequencies) - 1000.0 / 1005.0).abs() < 1e-12);
}

#[test]
fn the_steepest_doubling_is_found() {
    let step = [(10, 0.1), (900, 0.2), (1000, 0.8), (1500, 0.9), (9000, 1.0)];
    let Rise { from, share } = shape::steepest_doubling(&step);
    assert!((450..=899).contains(&from), "{from}");
    assert!((share - 0.8).abs() < 1e-12, "{share}");
    // As much in every doubling from 1 to 1024.
    let even: Vec<(u64, f64)> = (0..=10).map(|n| (1 << n, f64::from(n) / 10.0)).collect();
    assert!(shape::steepest_doubling(&even).share < 0.21);
    assert_eq!([0.0, 0.2, 0.85, 1.0].map(|share| shape::value_at(&step, share)), [10, 900, 1500, 9000]);
    assert_eq!((shape::value_at(&step[..2], 0.5), shape::value_at(&[], 0.5)), (900, 0));
    assert_eq!(shape::steepest_doubling(&[]), Rise { from: 0, share: 0.0 });
}

#[test]
fn waves_are_periodic_and_noise_is_not() {
    let waves: Vec<f64> = (0..128).map(|n| if n % 32 < 8 { 100.0 } else { 10.0 }).collect();
    let noise: Vec<f64> = (0..128_u64).map(|n| (((n * n * 2_654_435_761) >> 16) & 0xff) as f64).collect();
    let [waves, noise, rising] =
        [waves, noise, (0..128).map(f64::from).collect()].map(|series| shape::periodicity(&series));
    assert!(waves > 0.6 && noise < 0.3 && rising < 0.1, "{waves} {noise} {rising}");
    assert!(shape::periodicity(&[5.0; 9]) <= 0.0 && shape::periodicity(&[]) <= 0.0);
}

#[test]
fn two_traces_or_none() {
    let with = |traces: &[&str]| {
        let setting = Setting { traces: traces.iter().map(Into::into).collect(), ..Setting::default() };
        ArrayLoad.plan(&setting, &Progress::UNTOLD).map(|plan| plan.points()).map_err(|error| error.to_string())
    };
    let load = "load:tpcc-like,requests=10";
    assert_eq!(with(&[]), Ok(2));
    assert_eq!(with(&[load, load]), Ok(2));
    assert!(with(&[load]).unwrap_err().contains("two traces"));
    assert!(with(&[load, "nowhere.csv"]).unwrap_err().contains("nowhere.csv"));
}

#[test]
fn the_page_is_the_size_of_most_requests() {
    let page = |load: &str| page_bytes(&Source::load(load, 1).unwrap()).unwrap();
    assert_eq!(LOADS.map(page), [2048, 2048]);
    assert_eq!(page("load:uniform,block=8K,requests=10"), 8192);
    // No power of two.
    assert_eq!(page("load:uniform,block=12K,requests=10"), 4096);
}

#[test]
fn captions_tell_what_was_looked_at() {
    let load = "load:uniform,block=8K,requests=1234,reads=1";
    let figures = findings([load, load]).figures;
    let caption = |name: &str| &figures.iter().find(|figure| figure.name == name).unwrap().caption;
    assert!(caption("places-with-checkpoints").contains("the first 1,234 requests"));
    assert!(caption("frequencies-with-checkpoints").contains("the first 1,234 accesses to blocks of 8,192 bytes"));
    assert!(caption("distances").contains("(1,234 and 1,234)"));
    assert_eq!(grouped(1_000_007), "1,000,007");
}

/// A load that is nothing like a database's must not pass for one.
#[test]
fn a_load_of_another_shape_fails() {
    let uniform = "load:uniform,requests=60000";
    let criteria = findings([uniform, uniform]).criteria;
    let holding: Vec<_> = criteria.iter().filter(|it| it.holds).map(|it| it.name.as_str()).collect();
    assert_eq!(holding, ["periodicity of writes (autocorrelation), without checkpoints"]);
}

fn findings(loads: [&str; 2]) -> Findings {
    let setting = Setting { traces: loads.map(Into::into).into(), seed: 1, ..Setting::default() };
    let points = Experiment::points(&ArrayLoad, &setting, &Progress::UNTOLD).unwrap().into_iter();
    let done = points.map(|point| {
        let data = ArrayLoad.run(&point, &setting, &Progress::new(&|_| {})).unwrap();
        (point, data)
    });
    ArrayLoad.judge(&setting, &done.collect::<Vec<_>>()).unwrap()
}
