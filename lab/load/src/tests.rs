//! What holds of every load.

use crate::{Spec, list};
use kura_trace::{Op, Request};

/// The requests of the load this text tells.
pub(crate) fn take(text: &str) -> Vec<Request> {
    text.parse::<Spec>().unwrap().requests().collect()
}

pub(crate) fn read_share(requests: &[Request]) -> f64 {
    requests.iter().filter(|request| request.op == Op::Read).count() as f64 / requests.len() as f64
}

#[test]
fn one_text_gives_the_same_requests_and_another_seed_gives_others() {
    for entry in list() {
        let requests = |seed: u64| take(&format!("{},requests=5000,seed={seed}", entry.name));
        let first = requests(1);
        assert_eq!(first.len(), 5000, "{}", entry.name);
        assert_eq!(first, requests(1), "{}", entry.name);
        assert_ne!(first, requests(2), "{}", entry.name);
    }
}

#[test]
fn a_seed_from_outside_is_for_a_text_that_names_none() {
    let with = |text: &str, seed| Spec::with_seed(text, seed).unwrap().to_string();
    assert!(with("zipf", 7).contains("seed=7"));
    assert_eq!(with("zipf,seed=3", 7), with("zipf,seed=3", 8));
}

#[test]
fn requests_are_in_order_of_time_and_within_the_size() {
    for entry in list() {
        let spec: Spec = format!("{},requests=50000", entry.name).parse().unwrap();
        let requests: Vec<Request> = spec.requests().collect();
        assert_eq!(requests[0].at_ns, 0, "{}", entry.name);
        assert!(requests.is_sorted_by_key(|request| request.at_ns), "{}", entry.name);
        assert!(requests.iter().all(|request| request.len_bytes > 0 && request.end_bytes() <= spec.size_bytes()));
    }
}

#[test]
fn the_rate_is_as_told_and_the_end_too() {
    for entry in list() {
        let requests = take(&format!("{},rate=500,seconds=100", entry.name));
        assert!((49_000..51_000).contains(&requests.len()), "{}: {}", entry.name, requests.len());
        assert!(requests.iter().all(|request| request.at_ns < 100_000_000_000));
    }
}

#[test]
fn a_text_with_everything_spelt_out_tells_the_same_load() {
    for entry in list() {
        let spec: Spec = format!("{},requests=1000,seed=3", entry.name).parse().unwrap();
        let again: Spec = spec.to_string().parse().unwrap();
        assert_eq!(spec.to_string(), again.to_string());
        assert!(spec.requests().eq(again.requests()), "{spec}");
    }
}

#[test]
fn what_is_wrong_is_told_in_a_line_that_helps() {
    let cases = [
        ("load:zip", "no such load: there are uniform, zipf,"),
        ("", "no such load"),
        ("zipf,thta=1", "it takes no thta: it takes block, size,"),
        ("zipf,seconds=0", "load:zipf: it never ends: give seconds or requests"),
        ("tpcc-like,requests=0,seconds=0", "it never ends"),
        ("zipf,theta=much", "theta=much is not a number from 0 to 4"),
        ("zipf,theta=NaN", "theta=NaN is not a number"),
        ("zipf,theta=1,theta=2", "theta is given twice"),
        ("zipf,theta", "\"theta\" is no parameter: write KEY=VALUE"),
        ("uniform,size=0", "size=0 is not a size from 16M to 1024T"),
        ("uniform,size=99999999999T", "is not a size"),
        ("uniform,arrivals=late", "arrivals=late is none of poisson, fixed"),
        ("src1_0-like,reads=2", "reads=2 is not a number from 0 to 1"),
        ("tpcc-like,warehouses=0", "warehouses=0 is not a whole number from 1"),
        // A cache that never is full never asks the disk for anything.
        ("tpcc-like,warehouses=1,cache=1G,requests=10", "give at most 206M, or more warehouses"),
        ("uniform,on=3", "load:uniform: on= without off= makes no bursts: give off="),
        ("uniform,rate=0.001,requests=20000000", "20000000 requests at 0.001 a second take 634 years"),
        ("uniform,rate=1,requests=10000000,on=1,off=1000000", "take 317098 years"),
    ];
    for (text, expected) in cases {
        let error = text.parse::<Spec>().unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
    }
}
