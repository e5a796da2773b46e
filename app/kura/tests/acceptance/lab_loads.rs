//! Generated loads on the command line: each is what it says it is.

use crate::harness::{Home, fails};
use serde_json::Value;

/// What a replay of the load tells, on a node that takes any of them.
fn replayed(home: &Home, load: &str, more: &[&str]) -> Value {
    let node = ["--fit", "scale", "--size", "1G", "--model", "slow=nvme", "--prefill", "none", "--json"];
    let told = home.ok(&[&["lab", "replay", load], &node[..], more].concat());
    serde_json::from_str(&told).unwrap_or_else(|error| panic!("{load}: {error}:\n{told}"))
}

#[test]
fn every_load_there_is_has_the_reads_it_says() {
    let home = Home::new();
    let loads: Value = serde_json::from_str(&home.ok(&["lab", "loads", "--json"])).expect("a list");
    let loads = loads.as_array().expect("a list");
    assert!(loads.len() >= 7, "{loads:?}");
    for load in loads {
        let name = load["name"].as_str().expect("a name");
        let parameters = load["parameters"].as_array().expect("parameters");
        let reads = parameters.iter().find(|parameter| parameter["key"] == "reads");
        let said = replayed(&home, &format!("load:{name},requests=2000"), &[]);
        let (trace, replay) = (&said["trace"], &said["replay"]);
        assert_eq!((&trace["requests"], &replay["load"]["requests"]), (&2000.into(), &2000.into()), "{name}");
        assert_eq!((&trace["reads"], &trace["reads"]), (&replay["load"]["reads"], &replay["read"]["count"]), "{name}");
        assert_eq!(replay["errors"], serde_json::json!({}), "{name}");
        let share = trace["read_share"].as_f64().expect("a share");
        let Some(reads) = reads else {
            // What TPC-C reads follows from its transactions.
            assert!(name == "tpcc-like" && (0.5..0.8).contains(&share), "{name}: {share}");
            continue;
        };
        let stated: f64 = reads["default"].as_str().and_then(|text| text.parse().ok()).expect("a number");
        // Five deviations of as many throws of a coin.
        let bound = 5.0 * (stated * (1.0 - stated) / 2000.0).sqrt();
        assert!((share - stated).abs() < bound, "{name}: {share}, and {stated} is stated");
        // And where another share is asked for.
        let other = replayed(&home, &format!("load:{name},requests=2000,reads=0"), &[]);
        assert_eq!(other["trace"]["reads"], 0, "{name}");
    }
}

#[test]
fn bursts_come_when_they_are_told_to() {
    let home = Home::new();
    let load = "load:uniform,size=64M,rate=1000,arrivals=fixed,requests=2000,on=0.5,off=2";
    let said = replayed(&home, load, &[]);
    // Four bursts of 500, and no rest behind the last.
    assert_eq!(said["trace"]["requests"], 2000);
    assert_eq!(said["replay"]["load"]["span_ns"], 7_999_000_000_u64);
    assert_eq!(said["trace"]["rates"]["peak_second_per_s"], 500.0);
    for begin_ms in [0, 2500, 5000, 7500] {
        let from = format!("{begin_ms}ms");
        let burst = replayed(&home, load, &["--from", &from, "--for", "500ms"]);
        assert_eq!(burst["replay"]["load"]["requests"], 500, "{from}");
        let from = format!("{}ms", begin_ms + 500);
        let rest = fails(&mut home.kura(&["lab", "replay", load, "--from", &from, "--for", "2s"]));
        assert!(rest.contains("no request is left to replay"), "{from}: {rest}");
    }
    let steady = replayed(&home, &load.replace(",on=0.5,off=2", ""), &[]);
    assert_eq!(steady["replay"]["load"]["span_ns"], 1_999_000_000);
    assert_eq!(
        steady["trace"]["footprint_bytes"], said["trace"]["footprint_bytes"],
        "bursts change times and nothing else"
    );
    let refused = fails(&mut home.kura(&["lab", "replay", "load:zipf,on=1"]));
    assert!(refused.contains("on= without off= makes no bursts"), "{refused}");
}
