//! The frame, with an experiment that counts how often its points are done.

use crate::plan::Listed;
use crate::{About, Criterion, Experiment, Figure, Findings, Options, Outcome, Point, Progress, Scale, Setting, Table};
use crate::{Report, Watch, report, run};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tempfile::TempDir;

/// Roots of numbers, each a point.
#[derive(Default)]
struct Roots {
    /// Added to every point's configuration.
    offset: u64,
    /// The point of this number fails.
    fails: Option<u64>,
    done: AtomicUsize,
}

impl Experiment for Roots {
    type Config = u64;
    type Data = f64;

    fn about(&self) -> About {
        About { name: "roots", paper: "999 Fig. 1", shows: "Roots grow ever slower." }
    }

    fn points(&self, _: &Setting, _: &Progress<'_>) -> Result<Vec<Point<u64>>> {
        Ok((0..7).map(|n| Point { name: format!("of-{n}"), config: n + self.offset }).collect())
    }

    fn run(&self, point: &Point<u64>, setting: &Setting, progress: &Progress<'_>) -> Result<f64> {
        ensure!(Some(point.config) != self.fails, "it cannot be drawn");
        progress.at(0.5);
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok((point.config as f64).sqrt() + setting.seed as f64 / 3.0)
    }

    fn judge(&self, _: &Setting, results: &[(Point<u64>, f64)]) -> Result<Findings> {
        let mut table = Table::new("roots", "Roots, <all> of them", &["number", "root", "word"]);
        for (point, root) in results {
            table.row([point.config.into(), (*root).into(), "a, \"b\"\n</script>".into()]);
        }
        let drawing = json!({ "mark": "line" });
        let figure = Figure::of(&table, "Roots", "They grow.", drawing)?;
        let criteria = vec![
            Criterion::within("root of 4", 2.0, results[4].1, 0.01),
            Criterion::at_most("root of 5", results[5].1, 1.0),
        ];
        Ok(Findings { tables: vec![table], figures: vec![figure], criteria })
    }
}

/// Keeps the farthest that was told, in thousandths of a point, and all that was told before anything began.
#[derive(Default)]
struct Watched(AtomicU64, Mutex<Vec<f64>>);

impl Watch for Watched {
    fn reads(&self, _: &str, fraction: f64) {
        self.1.lock().unwrap().push(fraction);
    }

    fn begins(&self, _: &str, _: usize) {}

    fn is_at(&self, points: f64) {
        self.0.fetch_max((points * 1000.0) as u64, Ordering::Relaxed);
    }

    fn ends(&self) {}
}

fn options(out: &Path) -> Options {
    Options { setting: Setting { out: out.to_owned(), ..Setting::default() }, jobs: 2, again: false }
}

fn all(experiments: &[&dyn Listed], options: &Options, watch: &dyn Watch) -> Result<Vec<Outcome>> {
    run(experiments, options, watch)?.collect()
}

fn done(roots: &Roots, options: &Options) -> Result<Outcome> {
    Ok(all(&[roots], options, &Watched::default())?.remove(0))
}

/// How many points were done, not found, by the one run of `roots`.
fn points_done(roots: &Roots, options: &Options) -> usize {
    done(roots, options).unwrap();
    roots.done.load(Ordering::Relaxed)
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn csv(out: &Path) -> String {
    std::fs::read_to_string(out.join("roots/roots.csv")).unwrap()
}

#[test]
fn a_run_that_was_cut_off_goes_on_where_it_was() {
    let out = folder();
    let options = Options { jobs: 1, ..options(out.path()) };
    let cut = Roots { fails: Some(4), ..Roots::default() };
    let error = format!("{:#}", done(&cut, &options).unwrap_err());
    assert_eq!(error, "roots, point of-4: it cannot be drawn");
    assert!(!out.path().join("roots/result.json").exists(), "a run that failed left a result");

    assert_eq!(points_done(&Roots::default(), &options), 3);
    let whole = folder();
    assert_eq!(points_done(&Roots::default(), &Options { jobs: 1, ..self::options(whole.path()) }), 7);
    assert_eq!(csv(out.path()), csv(whole.path()));
}

#[test]
fn a_point_that_was_cut_off_while_it_was_saved_is_done_again() {
    let out = folder();
    let options = options(out.path());
    points_done(&Roots::default(), &options);
    let point = out.path().join("roots/points/of-3.json");
    let saved = std::fs::read(&point).unwrap();
    for torn in [&saved[..saved.len() / 2], b"", b"[]"] {
        std::fs::write(&point, torn).unwrap();
        assert_eq!(points_done(&Roots::default(), &options), 1);
        assert_eq!(std::fs::read(&point).unwrap(), saved);
    }
    let left: Vec<PathBuf> = std::fs::read_dir(point.parent().unwrap()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left.len(), 7, "{left:?}");
}

#[test]
fn a_saved_point_counts_only_where_all_agrees() {
    let out = folder();
    let usual = options(out.path());
    points_done(&Roots::default(), &usual);
    assert_eq!(points_done(&Roots::default(), &usual), 0);
    assert_eq!(points_done(&Roots::default(), &Options { again: true, ..usual.clone() }), 7);
    let with = |setting| Options { setting, ..usual.clone() };
    assert_eq!(points_done(&Roots::default(), &with(Setting { seed: 1, ..usual.setting.clone() })), 7);
    assert_eq!(points_done(&Roots::default(), &with(Setting { scale: Scale::Full, ..usual.setting.clone() })), 7);
    assert_eq!(points_done(&Roots { offset: 1, ..Roots::default() }, &usual), 7);
    let point = out.path().join("roots/points/of-3.json");
    let saved = std::fs::read_to_string(&point).unwrap();
    std::fs::write(&point, saved.replace(crate::COMMIT, "0123456789ab")).unwrap();
    assert_eq!(points_done(&Roots { offset: 1, ..Roots::default() }, &usual), 1);
}

#[test]
fn one_job_and_many_give_the_same_bytes() {
    let outs = [1, 2, 5].map(|jobs| {
        let out = folder();
        points_done(&Roots::default(), &Options { jobs, ..options(out.path()) });
        (csv(out.path()), std::fs::read(out.path().join("roots/result.json")).unwrap())
    });
    assert!(outs.iter().all(|out| *out == outs[0]));
}

#[test]
fn progress_ends_with_all_points() {
    let (out, watched) = (folder(), Watched::default());
    all(&[&Roots::default()], &options(out.path()), &watched).unwrap();
    assert_eq!(watched.0.load(Ordering::Relaxed), 7000);
}

/// Traces are read whole before the first point begins: how far that is is told, through all of them.
#[test]
fn progress_begins_with_the_traces() {
    let out = folder();
    let line = |n: u64| format!("{},web,3,Read,{},4096,100\n", 128_166_372_003_061_629 + n * 1000, n % 512 * 4096);
    std::fs::write(out.path().join("t.csv"), (0..50_000).map(line).collect::<String>()).unwrap();
    let trace = || out.path().join("t.csv");
    let setting = Setting { traces: vec![trace(), trace()], out: out.path().join("out"), ..Setting::default() };
    let watched = Watched::default();
    let experiments = crate::named(&["tier-traces".to_owned(), "trace-anatomy".to_owned()]).unwrap();
    // What they come to is no matter here.
    for experiment in experiments {
        drop(experiment.plan(&setting, &Progress::new(&|part| watched.reads("", part))).unwrap());
        let told = std::mem::take(&mut *watched.1.lock().unwrap());
        assert!(told.len() > 3 && told.is_sorted() && told[0] < 0.5 && told[told.len() - 1] > 0.9, "{told:?}");
    }
    let failed = Roots { fails: Some(0), ..Roots::default() };
    all(&[&failed], &options(out.path()), &watched).unwrap_err();
    assert!(watched.1.lock().unwrap().is_empty(), "there is no trace");
}

#[test]
fn results_have_their_form() {
    let out = folder();
    let outcome = done(&Roots::default(), &options(out.path())).unwrap();
    assert_eq!(csv(out.path()).lines().take(2).collect::<Vec<_>>(), ["number,root,word", "0,0,\"a, \"\"b\"\""]);
    assert!(csv(out.path()).contains("\n2,1.41421,"));
    let json = serde_json::to_value(&outcome).unwrap();
    let keys = ["experiment", "seed", "scale", "commit", "machine", "criteria", "files"];
    assert!(keys.iter().all(|key| json.get(key).is_some()), "{json}");
    let criteria = json!([
        { "name": "root of 4", "paper": 2.0, "ours": 2.0, "bound": "within 0.01", "holds": true },
        { "name": "root of 5", "paper": null, "ours": 2.23607, "bound": "at most 1", "holds": false },
    ]);
    assert_eq!(json["criteria"], criteria);
    assert_eq!(json["files"], json!(["roots/roots.csv", "roots/roots.vl.json", "roots/run.csv"]));
    assert_eq!(json["command"], "kura lab run roots --quick --seed 0");
    assert_eq!(json["configuration"]["of-6"], 6);
    assert_eq!(Outcome::all(out.path()).unwrap().remove(0).unwrap(), outcome);
}

/// A table or a figure that is carried off says with the file beside it, or in itself, what made it.
#[test]
fn tables_and_figures_say_what_made_them() {
    let out = folder();
    let Outcome { command, commit, machine, .. } = done(&Roots::default(), &options(out.path())).unwrap();
    let run = std::fs::read(out.path().join("roots/run.csv")).unwrap();
    let rows = csv::Reader::from_reader(run.as_slice()).into_deserialize::<(String, String)>();
    let rows: std::collections::BTreeMap<String, String> = rows.map(Result::unwrap).collect();
    let (cores, memory) = (machine.cores.to_string(), machine.memory_bytes.to_string());
    for (key, value) in [
        ("experiment", "roots"),
        ("command", &command),
        ("seed", "0"),
        ("scale", "quick"),
        ("commit", &commit),
        ("machine.cpu", &machine.cpu),
        ("machine.cores", &cores),
        ("machine.memory_bytes", &memory),
        ("machine.kernel", &machine.kernel),
        ("configuration.of-6", "6"),
    ] {
        assert_eq!(rows.get(key).map(String::as_str), Some(value), "{key} in {rows:#?}");
    }
    let figure: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.path().join("roots/roots.vl.json")).unwrap()).unwrap();
    let made_by = &figure["usermeta"];
    assert_eq!((&made_by["commit"], &made_by["machine"]["cores"]), (&json!(commit), &json!(machine.cores)), "{figure}");
}

#[test]
fn a_folder_that_takes_no_file_is_told_before_anything_is_done() {
    let out = folder();
    std::fs::write(out.path().join("file"), "").unwrap();
    for name in ["file", "file/below"] {
        let roots = Roots::default();
        let error = format!("{:#}", done(&roots, &options(&out.path().join(name))).unwrap_err());
        assert!(error.contains(&format!("{name}: no file can be made there")) && error.lines().count() == 1, "{error}");
        assert_eq!(roots.done.load(Ordering::Relaxed), 0);
    }
    // To ask leaves nothing.
    crate::files::probe(&out.path().join("a/b")).unwrap();
    assert_eq!(std::fs::read_dir(out.path()).unwrap().count(), 1);
}

#[test]
fn a_result_takes_the_place_of_the_one_before_it() {
    let out = folder();
    let outcome = done(&Roots::default(), &options(out.path())).unwrap();
    // As an older program may have left it, with a file of its own and one that is not its own.
    let older = Outcome { files: vec!["roots/old.csv".to_owned(), "../escape.csv".to_owned()], ..outcome };
    let object = serde_json::to_vec(&older).unwrap();
    std::fs::write(out.path().join("roots/result.json"), object).unwrap();
    std::fs::write(out.path().join("roots/old.csv"), "").unwrap();
    let escape = out.path().join("escape.csv");
    std::fs::write(&escape, "").unwrap();
    done(&Roots::default(), &options(out.path())).unwrap();
    assert!(!out.path().join("roots/old.csv").exists() && escape.exists());
}

#[test]
fn the_report_shows_every_criterion_figure_and_table() {
    let out = folder();
    done(&Roots::default(), &options(out.path())).unwrap();
    let page = std::fs::read_to_string(report(out.path()).unwrap().page).unwrap();
    for text in ["1 of 2", "root of 4", "root of 5", "does not hold", "Ours falls short", "They grow.", "--seed 0"] {
        assert!(page.contains(text), "{text}");
    }
    assert!(page.contains("Roots, &lt;all&gt; of them"));
    assert!(!page.contains("\"b\"\n</script>") && page.contains("\\n\\u003c/script>"), "data end the script");
    assert!(!page.contains("sourceMappingURL"));
}

#[test]
fn a_folder_without_results_is_told_in_one_line() {
    let out = folder();
    for path in [out.path().to_owned(), out.path().join("nowhere")] {
        let error = format!("{:#}", report(&path).unwrap_err());
        assert!(error.contains("no results here") && error.lines().count() == 1, "{error}");
    }
    std::fs::create_dir(out.path().join("roots")).unwrap();
    std::fs::write(out.path().join("roots/result.json"), "{}").unwrap();
    let error = format!("{:#}", report(out.path()).unwrap_err());
    assert!(error.contains("roots/result.json is not a result"), "{error}");
}

/// What another program left, or somebody has emptied, keeps no other result from being shown.
#[test]
fn what_cannot_be_read_is_left_out_of_the_report_and_told() {
    let out = folder();
    done(&Roots::default(), &options(out.path())).unwrap();
    std::fs::create_dir(out.path().join("old")).unwrap();
    std::fs::write(out.path().join("old/result.json"), "{}").unwrap();
    let Report { page, left_out } = report(out.path()).unwrap();
    assert!(std::fs::read_to_string(page).unwrap().contains("root of 4"));
    assert!(left_out.len() == 1 && left_out[0].contains("old/result.json is not a result"), "{left_out:?}");
    std::fs::remove_file(out.path().join("roots/roots.csv")).unwrap();
    let error = format!("{:#}", report(out.path()).unwrap_err());
    assert!(error.contains("old/result.json"), "the first of what was left out: {error}");
}

/// Who asks for one after the other has the first before the second fails.
#[test]
fn what_is_done_before_one_that_fails_is_there() {
    let out = folder();
    let (roots, failed) = (Roots::default(), Roots { fails: Some(5), ..Roots::default() });
    let (options, watched) = (Options { again: true, ..options(out.path()) }, Watched::default());
    let mut ran = run(&[&roots, &failed], &options, &watched).unwrap();
    ran.next().unwrap().unwrap();
    assert!(out.path().join("roots/result.json").exists() && failed.done.load(Ordering::Relaxed) == 0);
    assert!(ran.next().unwrap().is_err());
}

/// Points that are measured.
#[derive(Default)]
struct Clock {
    running: AtomicUsize,
    done: AtomicUsize,
}

impl Experiment for Clock {
    type Config = ();
    type Data = ();

    fn about(&self) -> About {
        About { name: "clock", paper: "beyond", shows: "Nothing." }
    }

    fn points(&self, _: &Setting, _: &Progress<'_>) -> Result<Vec<Point<()>>> {
        Ok((0..6).map(|nth| Point { name: format!("point-{nth}"), config: () }).collect())
    }

    fn is_measured(&self) -> bool {
        true
    }

    fn run(&self, _: &Point<()>, _: &Setting, _: &Progress<'_>) -> Result<()> {
        ensure!(self.running.fetch_add(1, Ordering::SeqCst) == 0, "another point disturbs it");
        std::thread::sleep(std::time::Duration::from_millis(5));
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn judge(&self, _: &Setting, _: &[(Point<()>, ())]) -> Result<Findings> {
        Ok(Findings::default())
    }
}

#[test]
fn what_is_measured_is_measured_point_by_point() {
    let out = folder();
    all(&[&Clock::default()], &Options { jobs: 6, ..options(out.path()) }, &Watched::default()).unwrap();
}

/// What was measured elsewhere is not what this machine does.
#[test]
fn a_point_measured_on_another_machine_is_measured_again() {
    let out = folder();
    let measured = || {
        let clock = Clock::default();
        all(&[&clock], &options(out.path()), &Watched::default()).unwrap();
        clock.done.load(Ordering::SeqCst)
    };
    assert_eq!([measured(), measured()], [6, 0]);
    let point = out.path().join("clock/points/point-2.json");
    let saved = std::fs::read_to_string(&point).unwrap();
    let elsewhere = saved.replace(&crate::Machine::this().kernel, "0.1-elsewhere");
    assert_ne!(saved, elsewhere);
    std::fs::write(&point, elsewhere).unwrap();
    assert_eq!([measured(), measured()], [1, 0]);
}

#[test]
fn data_that_json_cannot_hold_are_refused() {
    struct Nothing;
    impl Experiment for Nothing {
        type Config = ();
        type Data = f64;
        fn about(&self) -> About {
            About { name: "nothing", paper: "beyond", shows: "Nothing." }
        }
        fn points(&self, _: &Setting, _: &Progress<'_>) -> Result<Vec<Point<()>>> {
            Ok(vec![Point { name: "one".to_owned(), config: () }])
        }
        fn run(&self, _: &Point<()>, _: &Setting, _: &Progress<'_>) -> Result<f64> {
            Ok(f64::NAN)
        }
        fn judge(&self, _: &Setting, _: &[(Point<()>, f64)]) -> Result<Findings> {
            Ok(Findings::default())
        }
    }
    let out = folder();
    let error = format!("{:#}", all(&[&Nothing], &options(out.path()), &Watched::default()).unwrap_err());
    assert!(error.starts_with("nothing, point one: its data cannot be read back"), "{error}");
}
