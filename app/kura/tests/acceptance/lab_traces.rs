//! Real traces, replayed as a user does it: each gives the summary that is stated of it, and the same one twice.
//!
//! The project has no trace of its own. `cargo xtask test` looks for a folder of them (`KURA_TRACES`) and runs the ignored
//! test on each; the other one makes a small folder of that kind, so that the same path is always gone.

use crate::harness::{Home, fails, ok, tool};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// What a folder's README states of a trace, by the row of its table: file, requests, span, reads, address span.
struct Stated {
    file: String,
    requests: u64,
    /// Hours, give or take what the last digit hides.
    span_h: (f64, f64),
    read_percent: (f64, f64),
    span_gib: (f64, f64),
}

/// A number as it is written, and how much it may be off.
fn number(text: &str) -> (f64, f64) {
    let digits = text.split_whitespace().next().unwrap_or_default();
    let fraction = digits.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let off = (0..fraction).fold(0.51, |off, _| off / 10.0);
    (digits.parse().unwrap_or_else(|_| panic!("no number: {text}")), off)
}

fn stated(readme: &str) -> Vec<Stated> {
    let rows = readme.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let (span, off) = number(cells[2]);
        let hours = if cells[2].ends_with("days") { 24.0 } else { 1.0 };
        Stated {
            file: cells[0].trim_matches('`').to_owned(),
            requests: cells[1].replace(',', "").parse().expect("requests"),
            span_h: (span * hours, off * hours),
            read_percent: number(cells[3]),
            span_gib: number(cells[4]),
        }
    };
    rows.map(row).collect()
}

/// Replays a trace twice, by two commands that are the same; what they say, which is the same too.
fn twice(home: &Home, trace: &Path) -> Value {
    let trace = trace.display().to_string();
    let text = home.ok(&["lab", "replay", &trace]);
    assert_eq!(home.ok(&["lab", "replay", &trace]), text, "{trace}");
    let file = |name: &str| {
        let said = home.ok(&["lab", "replay", &trace, "--json", "-o", name]);
        let saved = fs::read_to_string(home.path(name)).expect("the summary");
        assert_eq!(said, saved, "{trace}");
        saved
    };
    let first = file("one.json");
    assert_eq!(first, file("other.json"), "{trace}");
    serde_json::from_str(&first).expect("JSON")
}

/// Replays every trace of a folder; how many there are.
fn replay_all(folder: &Path) -> usize {
    let readme = folder.join("README.md");
    let stated = stated(&fs::read_to_string(&readme).unwrap_or_else(|error| panic!("{}: {error}", readme.display())));
    for trace in &stated {
        let home = Home::new();
        let said = twice(&home, &folder.join(&trace.file));
        let (load, file) = (&said["replay"]["load"], &trace.file);
        let near = |what: &str, found: f64, (value, off): (f64, f64)| {
            assert!((found - value).abs() <= off, "{file}: {what} {found}, and {value} is stated");
        };
        let float = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{file}: no number: {value}"));
        assert_eq!(load["requests"], trace.requests, "{file}");
        assert_eq!(said["trace"]["requests"], trace.requests, "{file}");
        near("hours", float(&load["span_ns"]) / 3.6e12, trace.span_h);
        near("% of reads", float(&load["reads"]) / float(&load["requests"]) * 100.0, trace.read_percent);
        near("GiB", float(&said["replay"]["volume"]["size_bytes"]) / 2_f64.powi(30), trace.span_gib);
        let answered: f64 = ["read", "write"].iter().map(|kind| float(&said["replay"][kind]["count"])).sum();
        assert_eq!(answered as u64, trace.requests, "{file}: all are answered");
        assert_eq!(said["replay"]["errors"], serde_json::json!({}), "{file}");
        println!("{file}: {load}");
    }
    stated.len()
}

/// Two days of writes, and a read in four, over 6 GiB; bursts of ten.
fn small() -> String {
    (0..4000_u64).fold(String::new(), |mut text, at| {
        let kind = if at % 4 == 3 { "Read" } else { "Write" };
        let ticks = 128_166_372_000_000_000 + (at / 10 * 4_330_827 + at % 10) * 1000;
        let _ = writeln!(text, "{ticks},host,0,{kind},{},{},0", at * 7919 % 1_572_869 * 4096, 4096 * (1 + at % 4));
        text
    })
}

#[test]
fn a_folder_of_traces_gives_what_is_stated_of_it() {
    let home = Home::new();
    let folder = home.path("traces");
    fs::create_dir(&folder).expect("a folder");
    fs::write(folder.join("small.csv"), small()).expect("a trace");
    ok(tool("gzip").arg(folder.join("small.csv")));
    let readme = |requests: &str| {
        let row = format!("| `small.csv.gz` | {requests} | 2.0 days | 25 % | 6.0 GiB | made here |");
        fs::write(folder.join("README.md"), format!("| file |\n| --- |\n{row}\n")).expect("a table");
    };
    readme("4,000");
    assert_eq!(replay_all(&folder), 1);
    // What is stated and not so is seen.
    readme("4,001");
    assert!(std::panic::catch_unwind(|| replay_all(&folder)).is_err());
    // A trace that was cut on its way is told in a line.
    let bytes = fs::read(folder.join("small.csv.gz")).expect("the trace");
    fs::write(folder.join("small.csv.gz"), &bytes[..bytes.len() / 2]).expect("half of it");
    let complaint = fails(&mut home.kura(&["lab", "replay", "traces/small.csv.gz", "-o", "out.json"]));
    assert!(complaint.contains("small.csv.gz:") && complaint.contains("cut"), "{complaint}");
    assert!(complaint.lines().count() == 1 && !home.path("out.json").exists(), "{complaint}");
}

#[test]
#[ignore = "wants KURA_TRACES, a folder of traces with a README that states them: cargo xtask test gives it"]
fn the_traces_of_a_folder_give_what_is_stated_of_them() {
    let folder = std::env::var_os("KURA_TRACES").map(PathBuf::from).expect("KURA_TRACES");
    assert!(replay_all(&folder) > 0, "{}: its README states no trace", folder.display());
}
