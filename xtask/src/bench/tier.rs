//! What deciding costs: one analysis step of each tiering policy over a volume of a million regions, and its memory.

use super::machine;
use super::report::{Verdict, verdicts};
use crate::shell;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fmt::Write;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {}

/// Milliseconds that a step may take.
const STEP_MS: f64 = 10.0;

/// Measures, prints, judges and keeps the result. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(_: &Args) -> Result<()> {
    let facts = machine::facts();
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
    print!("{}\n\n{table}\n{}", machine::line(&facts), verdicts(&judged));
    let file = shell::target("bench")?.join("tier.json");
    std::fs::write(&file, serde_json::to_string_pretty(&json!({ "machine": facts, "figures": lines }))?)?;
    println!("\nkept in {}", file.display());
    Ok(())
}
