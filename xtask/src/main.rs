//! One entry for every habit: `cargo xtask test|setup|bench|tpcc-trace|figures|lint|ci`.
#![allow(clippy::print_stdout, clippy::print_stderr)] // A developer's tool talks to the terminal.

mod bench;
mod figures;
mod janitor;
mod lint;
mod needs;
mod shell;
mod suites;
mod test;
mod tpcc;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// kura's habits, one entry for each.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    habit: Habit,
}

#[derive(Subcommand)]
enum Habit {
    /// Run every test, fast ones first; on Debian as root, install the clients they use.
    Test(test::Args),
    /// Install and build what the tests and benches use; `test` does it by itself.
    Setup,
    /// Measure kura beside its peers.
    Bench(bench::Args),
    /// Trace what a Postgres under TPC-C's transactions asks of a volume, with checkpoints and without.
    TpccTrace(tpcc::Args),
    /// Draw a report's figures as SVG, or make the docs' pictures anew.
    Figures(figures::Args),
    /// Check formatting, clippy, licences, the dependency table and the tidiness of files.
    Lint,
    /// Do what a change must pass: lint, then test.
    Ci,
}

fn main() -> ExitCode {
    match run(&Cli::parse().habit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(habit: &Habit) -> anyhow::Result<()> {
    match habit {
        Habit::Test(args) => test::run(args, Vec::new()),
        Habit::Setup => test::setup(),
        Habit::Bench(args) => bench::run(args),
        Habit::TpccTrace(args) => tpcc::run(args),
        Habit::Figures(args) => figures::run(args),
        Habit::Lint => lint::run().map(drop),
        Habit::Ci => test::run(&test::Args::default(), lint::run()?),
    }
}
