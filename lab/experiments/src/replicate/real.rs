//! `replicate-real`: the paper's trees, smaller, carried by real rsync processes that are as fast as the paper's each.
//!
//! What the splits differ in is how even the processes' work is, and a machine that is the bottleneck of all processes
//! together hides that. So each process gets the paper's rate by rsync's own `--bwlimit`, and only the trees are scaled.

mod judge;
#[cfg(test)]
mod tests;

use super::trees::{Shares, Tree};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::Findings;
use anyhow::{Context, Result, ensure};
use kura_replicate::{Options, Place, Split, Target, With};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The experiment.
pub struct Real;

/// Bytes a second of one process: Table 2's three times all follow from so much.
const RATE: u64 = 17_000_000;
/// T of section 4.2, before it is scaled as the files are.
const THRESHOLD_BYTES: u64 = 10 << 20;

/// The folder, in the report's, of what is carried: of one name, so that what a run that was cut off has left goes with the next.
const WORK: &str = "replicate-real.work";

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Table 2's tree.
    Table2,
    /// The tree that gains most, with ten files of 1 GB or without.
    Most {
        /// Whether they are there.
        big_files: bool,
    },
}

/// A tree, and who carries it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Config {
    what: What,
    /// Sizes are the paper's over this.
    divisor: u64,
    workers: usize,
    rounds: usize,
}

/// A split, and how long it took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Side {
    split: Split,
    rounds: Vec<Ran>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    seconds: f64,
    /// How long each worker worked.
    workers_s: Vec<f64>,
}

/// A tree's sides, and the least time that so many processes of that rate can take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    bound_s: f64,
    sides: Vec<Side>,
}

const SPLITS: [Split; 3] = [Split::ByCount, Split::SizeAware, Split::Balanced];

impl Experiment for Real {
    type Config = Config;
    type Data = Compared;

    fn about(&self) -> About {
        About {
            name: "replicate-real",
            paper: "001 Table 2, Figs. 5 and 7",
            shows: "The paper's trees, scaled, carried by real rsync processes of the paper's rate each: the paper's splits \
                    and ours, measured on this machine.",
        }
    }

    fn is_measured(&self) -> bool {
        true
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let (divisor, rounds) = setting.scaled((100, 1), (20, 3));
        let point = |name: &str, what, workers| {
            let config = Config { what, divisor, workers, rounds };
            Point { name: name.to_owned(), config }
        };
        Ok(vec![
            point("table-2", What::Table2, 3),
            point("most", What::Most { big_files: true }, 5),
            point("most-without-big-files", What::Most { big_files: false }, 5),
        ])
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Compared> {
        let Config { what, divisor, workers, rounds } = point.config;
        let tree = match what {
            What::Table2 => Tree::of_table_2(),
            What::Most { big_files } => {
                let tree = Tree::drawn(Shares([75, 10, 10, 5, 0]), setting.seed);
                if big_files { tree.with_big_files() } else { tree }
            }
        };
        fs::create_dir_all(&setting.out).with_context(|| format!("making {}", setting.out.display()))?;
        let work = setting.out.join(WORK);
        if work.exists() {
            fs::remove_dir_all(&work).with_context(|| format!("removing {}", work.display()))?;
        }
        let folder = tempfile::Builder::new().prefix(WORK).rand_bytes(0).tempdir_in(&setting.out)?;
        let bytes = grow(&tree, divisor, &folder.path().join("source"))?;
        let options = Options {
            with: Some(With::Rsync),
            workers,
            threshold_bytes: THRESHOLD_BYTES / divisor,
            bandwidth: Some(RATE * workers as u64),
            durable: false,
            ..Options::default()
        };
        let mut sides = SPLITS.map(|split| Side { split, rounds: Vec::new() });
        for round in 0..rounds {
            for turn in 0..SPLITS.len() {
                // Each round begins with another side, so that none always follows the same neighbour.
                let side = &mut sides[(turn + round) % SPLITS.len()];
                side.rounds.push(carry(folder.path(), &Options { split: side.split, ..options.clone() })?);
                progress.at((round * SPLITS.len() + turn + 1) as f64 / (rounds * SPLITS.len()) as f64);
            }
        }
        Ok(Compared { bound_s: bytes as f64 / (RATE * workers as u64) as f64, sides: sides.into() })
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Compared)]) -> Result<Findings> {
        judge::judge(results)
    }
}

/// Writes a tree; returns its bytes.
fn grow(tree: &Tree, divisor: u64, root: &Path) -> Result<u64> {
    let mut bytes = 0;
    for (path, size_bytes) in tree.files() {
        let (path, size_bytes) = (root.join(path), (size_bytes / divisor).max(1));
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        fs::write(&path, vec![0x5a; size_bytes as usize]).with_context(|| path.display().to_string())?;
        bytes += size_bytes;
    }
    Ok(bytes)
}

/// Makes a copy anew.
fn carry(folder: &Path, options: &Options) -> Result<Ran> {
    let (target, state) = (folder.join("copy"), folder.join("state"));
    for path in [&target, &state] {
        if path.exists() {
            fs::remove_dir_all(path)?;
        }
    }
    // What one side leaves to be written is not another one's.
    Command::new("sync").status().context("sync, of coreutils")?;
    let place = Place::take(&state)?;
    let progress = kura_replicate::Progress::default();
    let summary = kura_replicate::run(&folder.join("source"), &Target::Local(target), options, &place, &progress)?;
    ensure!(summary.is_complete, "the copy is not complete: {:?}", summary.causes);
    Ok(Ran { seconds: summary.seconds, workers_s: summary.workers.iter().map(|worker| worker.seconds).collect() })
}
