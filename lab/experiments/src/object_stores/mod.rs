//! `object-stores`: objects created and read cold, by ours, by the paper's three stores, and on the bare device. For
//! real: on this machine, on the device that the report's folder lies on.
//!
//! The paper is Fujita, Morita and Moriai's on stores for the objects of an object-based storage device (004).

mod judge;
#[cfg(test)]
mod tests;

use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::Findings;
use anyhow::{Context, Result, ensure};
use kura_stores::{Measured, Side, Stage, Work};
use serde::{Deserialize, Serialize};

/// The experiment.
pub struct ObjectStores;

/// What is done to every side.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Objects, and who puts and reads them.
    work: Work,
    /// How often each side is measured.
    rounds: usize,
}

/// What a side came to, in every round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    side: Side,
    rounds: Vec<Measured>,
}

/// KiB of an object, each twice the one before.
const SIZES_KIB: [usize; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
const CLIENTS: [usize; 2] = [1, 16];
/// The paper's number of objects, and how many bytes of them are written at most, so that all sides fit side by side
/// in an image.
const FULL: (usize, usize) = (10_000, 2560 << 20);
const QUICK: (usize, usize) = (400, 32 << 20);

impl Experiment for ObjectStores {
    type Config = Config;
    type Data = Vec<Rounds>;

    fn about(&self) -> About {
        About {
            name: "object-stores",
            paper: "004 Figs. 2-3",
            shows: "Objects created durably and read cold, over their size: kura's object store beside Berkeley DB, files on \
                    Btrfs and on Ext3, and the bare device, measured on this machine.",
        }
    }

    fn is_measured(&self) -> bool {
        true
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let (count, bytes) = setting.scaled(QUICK, FULL);
        let point = |clients: usize, kib: usize| {
            let size_bytes = kib << 10;
            let work = Work { size_bytes, count: count.min(bytes / size_bytes), clients };
            let config = Config { work, rounds: 3 };
            Point { name: format!("{kib}k-by-{clients}"), config }
        };
        Ok(CLIENTS.iter().flat_map(|&clients| SIZES_KIB.iter().map(move |&kib| point(clients, kib))).collect())
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Rounds>> {
        let Config { work, rounds } = point.config;
        std::fs::create_dir_all(&setting.out).with_context(|| format!("making {}", setting.out.display()))?;
        let stage = Stage::new(&setting.out, work)?;
        let mut all = Side::ALL.map(|side| Rounds { side, rounds: Vec::new() });
        let sides = all.len();
        for round in 0..rounds {
            for turn in 0..sides {
                // Each round begins with another side, so that none always follows the same neighbour.
                let of_side = &mut all[(turn + round) % sides];
                of_side.rounds.push(stage.measure(of_side.side)?);
                progress.at((round * sides + turn + 1) as f64 / (rounds * sides) as f64);
            }
        }
        Ok(all.into())
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Vec<Rounds>)]) -> Result<Findings> {
        judge::judge(results)
    }
}
