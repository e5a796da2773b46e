//! `cargo xtask test`: from a clean clone on a new Debian machine to every test run, fast ones first.

use crate::{needs, shell, suites, tpcc};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::time::Instant;

/// What to test.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Run only what needs neither root nor other programs: the tests of the rooms.
    #[arg(long)]
    quick: bool,
}

/// Runs the tests, each group after what is faster than it.
pub fn run(args: &Args) -> Result<()> {
    if !args.quick && !shell::is_root() {
        bail!(
            "the full test mounts file systems on loop devices: run it as root, or give --quick for what needs no root"
        );
    }
    let start = Instant::now();
    group("the rooms", || shell::run(&mut shell::cargo(["test", "--workspace", "--exclude", "kura"])))?;
    group("the binary", || shell::run(&mut shell::cargo(["test", "--package", "kura", "--bins"])))?;
    if !args.quick {
        group("what wants root", || {
            shell::run(&mut shell::cargo(["test", "--package", "kura-disk", "--", "--ignored", "--test-threads=1"]))
        })?;
        group("three thousand seeds of crashes and faults", || {
            let model = ["test", "--package", "kura-controller", "--test", "model"];
            shell::run(shell::cargo(model).env("KURA_SEEDS", "3000"))
        })?;
        group("what the acceptance tests use", setup)?;
        group("object stores beside each other", || {
            shell::run(&mut shell::cargo(["test", "--package", "kura-stores", "--", "--ignored", "--test-threads=1"]))
        })?;
        group("the binary under real clients", || {
            shell::run(&mut shell::cargo(["test", "--package", "kura", "--test", "acceptance"]))
        })?;
        group("real traces, replayed", || traces(std::env::var_os(TRACES).map(PathBuf::from)))?;
        group("a database on a volume, traced", || {
            let out = tempfile::tempdir()?;
            tpcc::run(&tpcc::Args::quick(out.path().to_path_buf()))
        })?;
    }
    println!("all tests passed in {}", shell::elapsed(start.elapsed()));
    Ok(())
}

/// Brings in the clients and peers, and builds other projects' test programs.
pub fn setup() -> Result<()> {
    needs::ensure()?;
    suites::ensure()
}

/// The folder with traces, where it is not where it is looked for.
const TRACES: &str = "KURA_TRACES";

/// A folder of traces beside the checkout, if there is one.
pub fn traces_beside() -> Option<PathBuf> {
    Some(shell::root().join("../shared/traces")).filter(|beside| beside.is_dir())
}

/// Replays the traces of a folder, if there is one: the project has none of its own.
fn traces(given: Option<PathBuf>) -> Result<()> {
    let Some(folder) = given.or_else(traces_beside) else {
        println!(
            "left out: there are no traces. {TRACES}=DIR names a folder of them, with a README.md that states what each is like"
        );
        return Ok(());
    };
    let folder = folder.canonicalize().with_context(|| format!("{TRACES}: {}", folder.display()))?;
    let test = ["test", "--package", "kura", "--test", "acceptance", "--", "--ignored", "--nocapture", "lab_traces::"];
    shell::run(shell::cargo(test).env(TRACES, folder))
}

fn group(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    println!("== {name}");
    work()?;
    println!("== {name}: {}", shell::elapsed(start.elapsed()));
    Ok(())
}
