//! `cargo xtask test`: from a clean clone on a new Debian machine to every test run, fast ones first.

use crate::{needs, shell, suites};
use anyhow::Result;
use std::time::Instant;

/// What to test.
#[derive(clap::Args, Default)]
pub struct Args {
    /// Run only the tests of the rooms, without real clients.
    #[arg(long)]
    quick: bool,
}

/// Runs the tests, each group after what is faster than it.
pub fn run(args: &Args) -> Result<()> {
    let start = Instant::now();
    group("the rooms", || shell::run(&mut shell::cargo(["test", "--workspace", "--exclude", "kura"])))?;
    group("the binary", || shell::run(&mut shell::cargo(["test", "--package", "kura", "--bins"])))?;
    if !args.quick {
        group("what the acceptance tests use", needs::ensure)?;
        let suites = suites::ensure()?;
        group("the binary under real clients", || {
            let mut acceptance = shell::cargo(["test", "--package", "kura", "--test", "acceptance"]);
            shell::run(acceptance.env(suites::FOLDER_VARIABLE, suites))
        })?;
    }
    println!("all tests passed in {}", shell::elapsed(start.elapsed()));
    Ok(())
}

fn group(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    println!("== {name}");
    work()?;
    println!("== {name}: {}", shell::elapsed(start.elapsed()));
    Ok(())
}
