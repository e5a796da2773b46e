//! The lab's report, as a browser shows it without a network.

use crate::harness::{Home, ok, tool};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A page as Chromium ends up with it.
struct Shown {
    /// What the page's scripts have made of it.
    dom: String,
    /// What the page told the console.
    console: Vec<String>,
}

fn show(home: &Home, page: &Path) -> Shown {
    let mut chromium = tool("chromium");
    // Virtual time runs on while scripts are at work, and no further. Root may not use the sandbox.
    chromium.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
    chromium.args(["--enable-logging=stderr", "--virtual-time-budget=60000", "--dump-dom"]);
    chromium.arg(format!("--user-data-dir={}", home.path("browser").display()));
    chromium.arg(format!("file://{}", page.display()));
    let output = chromium.output().expect("timeout, of coreutils");
    assert!(output.status.success(), "chromium: {}", output.status);
    let log = String::from_utf8_lossy(&output.stderr);
    let console = log.lines().filter(|line| line.contains(":CONSOLE:")).map(str::to_owned).collect();
    Shown { dom: String::from_utf8_lossy(&output.stdout).into_owned(), console }
}

/// What the tests below rely on to see an error.
#[test]
fn an_error_on_a_page_is_seen() {
    let home = Home::new();
    let page = home.path("page.html");
    std::fs::write(&page, "<script>document.title = 'ran'; nowhere();</script>").expect("a page");
    let Shown { dom, console } = show(&home, &page);
    assert!(dom.contains("<title>ran</title>"), "{dom}");
    assert!(console.len() == 1 && console[0].contains("nowhere is not defined"), "{console:?}");
}

/// Experiments of the report that a browser is shown, and what they are given: all that `--quick` finishes in a minute on a test
/// build, and that take no more than kura. Those of arrays, of snapshots and of replication are shown where they are tested.
const SHOWN: &[(&str, &[&str])] = &[
    ("device-model", &[]),
    // Two traces that are unlike in all that a figure could stumble over: loads that are generated.
    ("trace-anatomy", &["--trace", "load:sequential,requests=3000", "--trace", "load:zipf,requests=3000"]),
    ("array-load", &["--trace", "load:sequential,requests=3000", "--trace", "load:zipf,requests=3000"]),
    ("tier-traces", &["--trace", "load:zipf,requests=20000,size=1G,rate=100"]),
];

#[test]
fn the_report_draws_every_figure_without_an_error() {
    let home = Home::new();
    let outcome = |(name, args): &(&str, &[&str])| {
        let outcome = home.ok(&[&["lab", "run", name, "--quick", "--json"], *args].concat());
        let outcome: Value = serde_json::from_str(&outcome).expect("one JSON object");
        assert_eq!((&outcome["experiment"], &outcome["scale"]), (&(*name).into(), &"quick".into()));
        let criteria = outcome["criteria"].as_array().expect("criteria");
        if *name == "device-model" {
            assert!(criteria.len() > 5 && criteria.iter().all(|it| it["holds"] == true), "{criteria:#?}");
        }
        outcome
    };
    let outcomes: Vec<Value> = SHOWN.iter().map(outcome).collect();
    every_figure_is_drawn(&home, "lab-report", &outcomes);
}

/// Makes the page of these results, all that there are in the home's folder of that name, and looks at it from another folder.
pub fn every_figure_is_drawn(home: &Home, report: &str, outcomes: &[Value]) {
    let (mut figures, mut tables) = (0, Vec::new());
    for outcome in outcomes {
        let files = outcome["files"].as_array().expect("files").iter();
        let files = files.map(|file| file.as_str().expect("a name").to_owned());
        let (drawn, others): (Vec<_>, Vec<_>) = files.partition(|file| file.ends_with(".vl.json"));
        assert!(!drawn.is_empty() && !others.is_empty(), "{}", outcome["experiment"]);
        figures += drawn.len();
        tables.extend(others);
    }
    // Where nobody names another folder it is this one.
    let named = ["--output", report];
    home.ok(&[&["lab", "report"], &named[..if report == "lab-report" { 0 } else { 2 }]].concat());
    let folder = home.path("moved");
    std::fs::rename(home.path(report), &folder).expect("the folder, moved");
    let Shown { dom, console } = show(home, &folder.join("index.html"));
    assert!(console.is_empty(), "{console:#?}");
    let drawings: Vec<&str> = dom.split("<div class=\"drawing").skip(1).collect();
    assert_eq!(drawings.len(), figures);
    for drawing in drawings {
        let drawing = drawing.split("</figure>").next().unwrap_or_default();
        let marks = drawing.matches("<path").count();
        assert!(drawing.contains("data-drawn=\"yes\"") && drawing.contains("<svg") && marks > 3, "{drawing}");
    }
    for table in tables {
        assert!(dom.contains(&format!("href=\"{table}\"")) && folder.join(&table).is_file(), "{table}");
    }
}

#[test]
fn a_run_again_gives_the_same_bytes_and_does_nothing_twice() {
    let home = Home::new();
    let run = |out: &str, jobs: &str| {
        let load = "load:concentrations,requests=20000";
        home.ok(&["lab", "run", "trace-anatomy", "--trace", load, "--seed", "7", "--out", out, "--jobs", jobs]);
        std::fs::read(home.path(out).join("trace-anatomy/trace-1-places.csv")).expect("a table")
    };
    let first = run("one", "1");
    assert!(first.len() > 1000 && first == run("two", "4"));
    // A point that is saved is not done again: what it holds counts.
    let point = home.path("one/trace-anatomy/points/trace-1.json");
    let saved = std::fs::read_to_string(&point).expect("a saved point");
    std::fs::write(&point, saved.replace("\"span, s\"", "\"spun, s\"")).expect("a saved point, changed");
    run("one", "1");
    let summary = || std::fs::read_to_string(home.path("one/trace-anatomy/summary.csv")).expect("a table");
    assert!(summary().contains("spun, s"));
    home.ok(&[
        "lab",
        "run",
        "trace-anatomy",
        "--trace",
        "load:concentrations,requests=20000",
        "--seed",
        "7",
        "--out",
        "one",
        "--again",
    ]);
    assert!(!summary().contains("spun, s"));
}

#[test]
fn what_cannot_be_run_is_told_in_one_line() {
    let home = Home::new();
    std::fs::write(home.path("not-a-trace"), "hello\n").expect("a file");
    for (args, told) in [
        (&["run", "device-modle"][..], "did you mean device-model?"),
        (&["run", "array-load", "--trace", "load:tpcc-like"], "two traces"),
        (&["run", "object-stores", "--trace", "load:zipf"], "takes no trace"),
        (&["run", "trace-anatomy", "--trace", "nowhere.csv"], "nowhere.csv"),
        (&["run", "trace-anatomy", "--trace", "not-a-trace"], "not-a-trace"),
        (&["report"], "no results here"),
        (&["run", "nope"], "no experiment nope: `kura lab list`"),
        (&["run", "replicate-contention", "-o", "not-a-trace"], "not-a-trace: no file can be made there"),
    ] {
        let complaint = crate::harness::fails(home.kura(&["lab"]).args(args));
        assert!(complaint.contains(told) && complaint.trim_end().lines().count() == 1, "{args:?}: {complaint}");
        assert!(!complaint.contains("unfinished"), "{args:?}: {complaint}");
    }
    assert!(!home.path("lab-report").join("device-model").exists());
    let list = ok(&mut home.kura(&["lab", "list"]));
    assert!(list.contains("device-model") && list.contains("object-stores"), "{list}");
}

/// What made a result stands in it: where, of which program, from which seed, with which parameters.
#[test]
fn a_result_says_what_it_is_of() {
    let home = Home::new();
    let told = home.ok(&["lab", "run", "device-model", "--seed", "7", "--json"]);
    let saved = std::fs::read_to_string(home.path("lab-report/device-model/result.json")).expect("a result");
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("one JSON object");
    let (told, saved) = (json(&told), json(&saved));
    assert_eq!(told, saved);
    assert_eq!(
        (&told["experiment"], &told["seed"], &told["scale"]),
        (&"device-model".into(), &7.into(), &"quick".into())
    );
    assert!(told["command"].as_str().is_some_and(|line| line.contains("--seed 7")), "{}", told["command"]);
    let of = |pointer: &str| told["configuration"].pointer(pointer).unwrap_or_else(|| panic!("no {pointer}"));
    assert_eq!((of("/rotation/rotation/reads"), of("/transfer/transfer/tracks")), (&40_000.into(), &400.into()));

    let read = |path: &str| std::fs::read_to_string(path).expect("what the kernel says");
    let machine = &told["machine"];
    assert_eq!(machine["kernel"], read("/proc/sys/kernel/osrelease").trim());
    assert_eq!(machine["cores"], std::thread::available_parallelism().expect("cores").get());
    let memory_kib = read("/proc/meminfo").split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok());
    assert_eq!(machine["memory_bytes"].as_u64(), memory_kib.map(|kib| kib << 10));
    assert!(read("/proc/cpuinfo").contains(machine["cpu"].as_str().expect("a name")), "{machine}");
    // One of the history, which may have grown since the program was built, or none where it was built without.
    let commit = told["commit"].as_str().and_then(|commit| commit.split('-').next()).expect("a commit");
    let git = || tool("git").args(["-C", env!("CARGO_MANIFEST_DIR"), "cat-file", "-e", commit]).status();
    assert!(commit == "unknown" || git().is_ok_and(|status| status.success()), "{commit}");
}

/// A run that is killed at any moment has lost what it was at, and nothing else: the next one goes on from there.
#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let home = Home::new();
    let args =
        |out: &'static str| ["lab", "run", "snapshot-message", "--quick", "--seed", "3", "--jobs", "1", "--out", out];
    let points = home.path("cut/snapshot-message/points");
    let saved = || {
        let files = std::fs::read_dir(&points).into_iter().flatten().map(|entry| entry.expect("a point").path());
        let whole = files.filter(|path| path.extension().is_some_and(|kind| kind == "json"));
        whole.map(|path| (path.clone(), std::fs::metadata(&path).expect("a point").ino())).collect::<BTreeMap<_, _>>()
    };
    let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_kura"))
        .args(args("cut"))
        .current_dir(home.path(""))
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("kura");
    while saved().len() < 3 {
        assert!(run.try_wait().expect("the run").is_none(), "it ended before it was killed");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    run.kill().expect("kill -9");
    run.wait().expect("the killed run");
    let before = saved();
    assert!(!home.path("cut/snapshot-message/result.json").exists(), "a run that was killed left a result");

    home.ok(&args("cut"));
    let after = saved();
    assert!(before.iter().all(|point| after.get(point.0) == Some(point.1)), "{before:?} {after:?}");
    assert!(after.len() > before.len() + 10, "{} points were saved of {}", before.len(), after.len());
    home.ok(&args("whole"));
    for table in ["message.csv", "residuals.csv"] {
        let of = |out: &str| std::fs::read(home.path(out).join("snapshot-message").join(table)).expect("a table");
        assert_eq!(of("cut"), of("whole"), "{table}");
    }
}

/// What would take hours, or all of the memory, or give wrong numbers in silence, is refused with the request in one line.
#[test]
fn traces_that_no_experiment_can_play_are_told_in_one_line() {
    let home = Home::new();
    let line = |ticks: u64, offset: u64| format!("{ticks},host,0,Read,{offset},4096,0\n");
    let begin = 128_166_372_000_000_000;
    let trace = |name: &str, lines: [String; 3]| std::fs::write(home.path(name), lines.concat()).expect("a trace");
    let later = begin + 600_000_000;
    trace("far.csv", [line(begin, 0), line(later, 1 << 50), line(later + 10_000_000, 0)]);
    trace("times.csv", [line(0, 0), line(begin, 0), line(begin + 600_000_000, 0)]);
    let far = "far.csv: request 2 reaches to byte 1125899906846720";
    for (experiment, file, told) in [
        ("tier-traces", "far.csv", [far, "smaller volume"]),
        ("array-response", "far.csv", [far, "smaller volume"]),
        ("array-rebuild", "far.csv", [far, "smaller volume"]),
        ("tier-traces", "times.csv", ["times.csv: it lasts 148340 days, 148340 of them before request 2", "366"]),
    ] {
        let complaint = crate::harness::fails(&mut home.kura(&["lab", "run", experiment, "--trace", file]));
        let is_told = told.iter().all(|words| complaint.contains(words));
        assert!(is_told && complaint.trim_end().lines().count() == 1, "{experiment} {file}: {complaint}");
    }
    assert!(!home.path("lab-report").exists());
    let complaint = crate::harness::fails(&mut home.kura(&["lab", "run", "device-model", "--out", "far.csv"]));
    assert!(complaint.contains("far.csv: no file can be made there"), "{complaint}");
}
