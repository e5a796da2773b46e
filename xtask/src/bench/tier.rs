//! What tiers cost: one analysis step of each policy over a volume of a million regions, and its memory; a hit; and reads
//! while regions move.

use super::report::{self, Verdict};
use super::{machine, tiered};
use crate::shell;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each volume, in MiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 512)]
    size: u64,
    /// Seconds of each measurement; reads while regions move take ten times as long.
    #[arg(long, default_value_t = 2)]
    seconds: u32,
    /// How often a hit is measured.
    #[arg(long, default_value_t = 31)]
    rounds: usize,
    #[command(flatten)]
    ground: super::Ground,
}

/// Milliseconds that a step may take.
const STEP_MS: f64 = 10.0;

/// Measures, prints, judges and keeps the result. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let (steps, mut judged, lines) = steps()?;
    let folder = args.ground.folder("tier")?;
    let binary = args.ground.binary()?;
    let size_bytes = args.size << 20;
    let (samples, hit) = tiered::hit(&binary, folder.path(), size_bytes, args.seconds, args.rounds)?;
    judged.push(hit);
    let moving = tiered::moving(&binary, folder.path(), size_bytes, 10 * args.seconds)?;
    println!("{}\n\n{steps}", machine::line(&facts));
    println!("{}", report::table(&samples, &[tiered::HIT], &["without", "with"], "with"));
    println!("{}", tiered::table(&moving));
    let settings = json!({ "size_mib": args.size, "seconds": args.seconds, "rounds": args.rounds, "steps": lines,
        "reads_us_by_percent": moving });
    report::finish("tier", facts, settings, &samples, &judged)
}

/// Each policy's step: a table, what is judged of it, and its figures.
fn steps() -> Result<(String, Vec<Verdict>, Vec<Value>)> {
    shell::run(&mut shell::cargo(["build", "--release", "--package", "kura-tier", "--example", "step"]))?;
    let program = shell::target("release")?.join("examples").join("step");
    let text = shell::output(&mut std::process::Command::new(program))?;
    let lines: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("its figures")?;
    let number = |line: &Value, name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    let words = |line: &Value, name: &str| line[name].as_str().unwrap_or("?").to_owned();
    let mut table = String::from(
        "| policy | interval | a step, median (most), ms | memory, bytes a region | a TiB of 1 MiB regions, MiB |\n\
         | --- | --- | --- | --- | --- |\n",
    );
    let mut judged = Vec::new();
    for line in &lines {
        let (policy, interval) = (words(line, "policy"), words(line, "interval"));
        let (median_ms, most_ms) = (number(line, "median_ms"), number(line, "most_ms"));
        let a_region = number(line, "memory_bytes") / number(line, "regions");
        // Writing to a string does not fail.
        let _ = writeln!(
            table,
            "| {policy} | {interval} | {median_ms:.2} ({most_ms:.2}) | {a_region:.1} | {a_region:.1} |"
        );
        let aim = format!("{policy}, {interval}: a step over a million regions under {STEP_MS} ms");
        judged.push(Verdict { aim, ours: format!("{median_ms:.2} ms"), holds: median_ms < STEP_MS });
    }
    Ok((table, judged, lines))
}
