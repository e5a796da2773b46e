//! The lab's report, as a browser shows it without a network.

use crate::harness::{Home, ok, tool};
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
/// build, and that take no more than kura.
const SHOWN: &[(&str, &[&str])] = &[
    ("device-model", &[]),
    // Two traces that are unlike in all that a figure could stumble over: loads that are generated.
    ("trace-anatomy", &["--trace", "load:sequential,requests=3000", "--trace", "load:zipf,requests=3000"]),
    ("array-load", &["--trace", "load:sequential,requests=3000", "--trace", "load:zipf,requests=3000"]),
    ("snapshot-message", &[]),
    ("snapshot-methods", &[]),
    ("replicate-contention", &[]),
    ("replicate-balance", &[]),
    ("tier-traces", &["--trace", "load:zipf,requests=20000,size=1G,rate=100"]),
];

#[test]
fn the_report_draws_every_figure_without_an_error() {
    let home = Home::new();
    let (mut figures, mut tables) = (0, Vec::new());
    for (name, args) in SHOWN {
        let outcome = home.ok(&[&["lab", "run", name, "--quick", "--json"], *args].concat());
        let outcome: serde_json::Value = serde_json::from_str(&outcome).expect("one JSON object");
        assert_eq!((&outcome["experiment"], &outcome["scale"]), (&(*name).into(), &"quick".into()));
        let criteria = outcome["criteria"].as_array().expect("criteria");
        if *name == "device-model" {
            assert!(criteria.len() > 5 && criteria.iter().all(|it| it["holds"] == true), "{criteria:#?}");
        }
        let files = outcome["files"].as_array().expect("files").iter();
        let files = files.map(|file| file.as_str().expect("a name").to_owned());
        let (drawn, others): (Vec<_>, Vec<_>) = files.partition(|file| file.ends_with(".vl.json"));
        assert!(!drawn.is_empty() && !others.is_empty(), "{name}");
        figures += drawn.len();
        tables.extend(others);
    }

    home.ok(&["lab", "report"]);
    let folder = home.path("moved");
    std::fs::rename(home.path("lab-report"), &folder).expect("the folder, moved");
    let Shown { dom, console } = show(&home, &folder.join("index.html"));
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
    ] {
        let complaint = crate::harness::fails(home.kura(&["lab"]).args(args));
        assert!(complaint.contains(told) && complaint.trim_end().lines().count() == 1, "{args:?}: {complaint}");
    }
    assert!(!home.path("lab-report").join("device-model").exists());
    let list = ok(&mut home.kura(&["lab", "list"]));
    assert!(list.contains("device-model") && list.contains("object-stores"), "{list}");
}
