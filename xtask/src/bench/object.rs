//! What the index of a million objects takes: memory, and a restart. (How fast the store is beside others:
//! `kura lab run object-stores`.)

use super::machine;
use super::report::{Verdict, verdicts};
use crate::shell;
use anyhow::Result;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Where the store lies: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What a million objects are to take at most: seconds of a restart, and megabytes of memory.
const RESTART_S: f64 = 1.0;
const MEMORY_MB: f64 = 200.0;

/// Measures, prints and judges. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    shell::run(&mut shell::cargo(["build", "--release", "--package", "kura-stores"]))?;
    let binary = shell::target("release")?.join("kura-stores");
    let folder = super::folder("object", args.dir.as_deref())?;
    let judged = of_the_index(&binary, folder.path())?;
    println!("{}\n\n{}", machine::line(&facts), verdicts(&judged));
    Ok(())
}

/// What a million objects take in memory, and how long a restart with them takes, after a kill and after a clean end.
fn of_the_index(binary: &Path, folder: &Path) -> Result<Vec<Verdict>> {
    const COUNT: usize = 1_000_000;
    let mut judged = Vec::new();
    let step = |flags: &[&str]| -> Result<Value> {
        let mut command = Command::new(binary);
        command.arg("--folder").arg(folder).args(["--count", &COUNT.to_string()]).args(flags);
        Ok(serde_json::from_str(&shell::output(&mut command)?)?)
    };
    let filled = step(&["--fill"])?;
    let killed = step(&["--close"])?;
    let clean = step(&["--close"])?;
    let number = |value: &Value, name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let million = number(&filled, "objects") / 1e6;
    for (how, after) in [("a kill", &killed), ("a clean end", &clean)] {
        let seconds = number(after, "open_s") / million;
        let (aim, ours) = (format!("restart after {how}: {RESTART_S} s a million objects"), format!("{seconds:.2} s"));
        judged.push(Verdict { aim, ours, holds: seconds <= RESTART_S });
    }
    for (when, after) in [("when filled", &filled), ("after a restart", &clean)] {
        let mb = number(after, "resident_bytes") / 1e6 / million;
        let leaves = number(after, "index_bytes") / 1e6 / million;
        let aim = format!("memory {when}: {MEMORY_MB} MB a million objects");
        judged.push(Verdict { aim, ours: format!("{mb:.0} MB ({leaves:.0} MB of index)"), holds: mb <= MEMORY_MB });
    }
    Ok(judged)
}
