//! `cargo xtask test`: from a clean clone on a new Debian machine to every test run, fast ones first.

use crate::shell::tests;
use crate::{figures, needs, shell, suites, tpcc};
use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// What to test.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Run only what needs no root: the tests of the rooms.
    #[arg(long)]
    quick: bool,
}

/// Runs the tests, each group after what is faster than it. What was left out, before this too, is in the last line.
pub fn run(args: &Args, mut left_out: Vec<&'static str>) -> Result<()> {
    if !args.quick && !shell::is_root() {
        bail!(
            "the full test mounts file systems on loop devices: run it as root, or give --quick for what needs no root"
        );
    }
    let start = Instant::now();
    if args.quick {
        group("the clients of the rooms' tests", needs::ensure_clients)?;
    } else {
        group("clients and peers", setup)?;
        group("everything is built", || shell::run(&mut tests(["--no-run"])))?;
    }
    group("the rooms and the binary", || {
        // With fewer seeds where it is not run later.
        let rooms = folders()?.into_iter().filter(|name| name != ACCEPTANCE && (args.quick || name != MODEL));
        shell::run(at_once(tests(["--lib", "--bins"]).args(rooms.flat_map(|name| ["--test".to_owned(), name]))))
    })?;
    if !args.quick {
        group("what wants root", || {
            let ignored = ["--lib", "--test", "needs_root", "--", "--ignored", "--test-threads=1"];
            ensure_some(&ignored)?;
            shell::run(&mut tests(ignored))
        })?;
        group("many seeds of crashes and faults", || shell::run(tests(["--test", MODEL]).env("KURA_SEEDS", SEEDS)))?;
        group("the binary under real clients", || shell::run(at_once(&mut tests(["--test", ACCEPTANCE]))))?;
        group("real traces, replayed", || {
            left_out.extend(traces(std::env::var_os(TRACES).map(PathBuf::from))?);
            Ok(())
        })?;
        let out = tempfile::tempdir()?;
        group("a database on a volume, traced", || tpcc::run(&tpcc::Args::quick(out.path().to_path_buf())))?;
        group("its figures as pictures", || figures::test(&out.path().join(tpcc::REPORT)))?;
    }
    print!("all tests passed in {}", shell::elapsed(start.elapsed()));
    for what in left_out {
        print!("; NOT DONE: {what}");
    }
    println!();
    Ok(())
}

/// A filter that no test matches would pass.
fn ensure_some(what: &[&str]) -> Result<()> {
    let list = shell::output(&mut tests(what.iter().copied().chain(["--list"])))?;
    ensure!(list.lines().any(|line| line.ends_with(": test")), "no test matches {}", what.join(" "));
    Ok(())
}

/// Brings in the clients and peers, and builds other projects' test programs.
pub fn setup() -> Result<()> {
    needs::ensure()?;
    needs::ensure_database()?;
    suites::ensure()
}

/// The folder with traces, where it is not where it is looked for.
const TRACES: &str = "KURA_TRACES";

/// A folder of traces beside the checkout, if there is one.
pub fn traces_beside() -> Option<PathBuf> {
    Some(shell::root().join("../shared/traces")).filter(|beside| beside.is_dir())
}

/// Replays the traces of a folder, if there is one: the project has none of its own. Returns what was left out.
fn traces(given: Option<PathBuf>) -> Result<Option<&'static str>> {
    let Some(folder) = given.or_else(traces_beside) else {
        println!(
            "left out: there are no traces. {TRACES}=DIR names a folder of them, with a README.md that states what each is like"
        );
        return Ok(Some("real traces, replayed"));
    };
    let folder = folder.canonicalize().with_context(|| format!("{TRACES}: {}", folder.display()))?;
    let test = ["--test", ACCEPTANCE, "--", "--ignored", "--nocapture", "lab_traces::"];
    ensure_some(&test)?;
    shell::run(tests(test).env(TRACES, folder))?;
    Ok(None)
}

/// Whole nodes against a plain model, with random work, crashes and faults; and how many seeds of it are run.
const MODEL: &str = "model";
const SEEDS: &str = "1000";

/// The tests of the binary under real clients.
const ACCEPTANCE: &str = "acceptance";

/// Lets twice as many run at once as there are cores, unless somebody says how many: they wait for servers, clients and disks for
/// much of their time.
fn at_once(tests: &mut Command) -> &mut Command {
    const THREADS: &str = "RUST_TEST_THREADS";
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        tests.env(THREADS, (2 * cores).to_string());
    }
    tests
}

/// The `tests/` folders' tests.
fn folders() -> Result<BTreeSet<String>> {
    let metadata = shell::output(&mut shell::cargo(["metadata", "--format-version=1", "--no-deps", "--locked"]))?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let targets = all(&metadata["packages"]).into_iter().flat_map(|package| all(&package["targets"]));
    let tests = targets.filter(|target| all(&target["kind"]).contains(&"test".into()));
    Ok(tests.filter_map(|test| Some(test["name"].as_str()?.to_owned())).collect())
}

fn group(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    println!("== {name}");
    work()?;
    println!("== {name}: {}", shell::elapsed(start.elapsed()));
    Ok(())
}
