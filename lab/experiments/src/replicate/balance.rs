//! `replicate-balance`: how long the splits take, tree by tree, and how far each is from the least time there is.

use super::cluster::{Model, Ran, run};
use super::trees::{GB, Shares, Tree};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::Findings;
use anyhow::{Result, ensure};
use kura_replicate::balance::{Balanced, Cost, Lists, SizeAware, balanced, by_count, size_aware};
use serde::{Deserialize, Serialize};

mod judge;

/// The experiment, with the model it is run on and the splits it compares.
pub struct Balance {
    /// The cluster; to be the paper's.
    pub model: Model,
    /// Our split; to be the default.
    pub ours: Balanced,
}

impl Balance {
    /// As they are.
    pub const fn of(model: Model) -> Self {
        Self { model, ours: Balanced { may_cut: true, least_part_bytes: 8 << 20, units: 64 } }
    }
}

/// T of section 4.2.
const THRESHOLD: SizeAware = SizeAware { threshold_bytes: 10 << 20, cap_bytes: 100 * GB };

/// The only tree of Figs. 5 and 7 that the paper names, and heavier ones: it says that this one gains most.
const DRAWN: [Shares; 6] = [
    Shares([75, 10, 10, 5, 0]),
    Shares([70, 10, 10, 10, 0]),
    Shares([70, 10, 10, 5, 5]),
    Shares([60, 20, 10, 10, 0]),
    Shares([60, 10, 10, 10, 10]),
    Shares([50, 20, 15, 10, 5]),
];

/// What is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Table 2's tree, on three nodes.
    Table2,
    /// So many draws of the paper's program, each with the ten files of 1 GB and without, on five nodes.
    Drawn {
        /// Per cent of the files in each class of sizes.
        shares: Shares,
        /// How many.
        draws: u64,
    },
}

/// A tree, or draws of one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Config {
    what: What,
    model: Model,
    threshold: SizeAware,
    parts: Parts,
}

/// What our split is told.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Parts {
    may_cut: bool,
    least_part_bytes: u64,
    units: u32,
}

/// What the splits made of one tree.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    bytes: u64,
    /// All work over all nodes, in seconds.
    bound_s: f64,
    /// The same where one node has a fifth of the speed.
    slow_bound_s: f64,
    by_count: Ran,
    size_aware: Ran,
    /// Before anything is known of costs, and after the run before.
    ours: [Ran; 2],
    /// The same where one node has a fifth of the speed; it is not known which.
    ours_slow: Ran,
}

/// A draw with the ten big files and without; Table 2's tree has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draw {
    with_big_files: Compared,
    without: Option<Compared>,
}

impl Experiment for Balance {
    type Config = Config;
    type Data = Vec<Draw>;

    fn about(&self) -> About {
        About {
            name: "replicate-balance",
            paper: "001 Table 2, Figs. 5-7",
            shows: "How long three ways to split the work take, and how near each comes to the least time there is.",
        }
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let Balanced { may_cut, least_part_bytes, units } = self.ours;
        let parts = Parts { may_cut, least_part_bytes, units };
        let point = |name: String, what| Point {
            name,
            config: Config { what, model: self.model, threshold: THRESHOLD, parts },
        };
        let draws = setting.scaled(200, 2000);
        let drawn = DRAWN.map(|shares| {
            let name: Vec<String> = shares.0.iter().map(u64::to_string).collect();
            point(format!("p-{}", name.join("-")), What::Drawn { shares, draws })
        });
        Ok(std::iter::once(point("table-2".to_owned(), What::Table2)).chain(drawn).collect())
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Draw>> {
        match point.config.what {
            What::Table2 => Ok(vec![Draw { with_big_files: self.compare(&Tree::of_table_2(), 3), without: None }]),
            What::Drawn { shares, draws } => {
                let mut compared = Vec::new();
                for draw in 0..draws {
                    let tree = || Tree::drawn(shares, setting.seed.wrapping_mul(1_000_003).wrapping_add(draw));
                    let without = Some(self.compare(&tree(), 5));
                    compared.push(Draw { with_big_files: self.compare(&tree().with_big_files(), 5), without });
                    progress.at((draw + 1) as f64 / draws as f64);
                }
                Ok(compared)
            }
        }
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Vec<Draw>)]) -> Result<Findings> {
        judge::judge(results)
    }
}

impl Balance {
    /// All splits of one tree.
    fn compare(&self, tree: &Tree, nodes: usize) -> Compared {
        let items = tree.items();
        let (model, nothing_known) = (&self.model, Cost::default());
        let alike = vec![1.0; nodes];
        let mut one_slow = alike.clone();
        one_slow[nodes - 1] = 0.2;
        let ours = |cost: &Cost| balanced(&items, nodes, self.ours, cost);
        let run_on = |lists: Lists, speeds: &[f64]| run(model, &items, lists, speeds);
        let first = run_on(ours(&nothing_known), &alike);
        let learned = first.learned.cost().unwrap_or(nothing_known);
        let second = run_on(ours(&learned), &alike);
        Compared {
            bytes: tree.bytes(),
            bound_s: model.bound_s(&items, &alike),
            slow_bound_s: model.bound_s(&items, &one_slow),
            by_count: run_on(by_count(&items, nodes, &nothing_known), &alike),
            size_aware: run_on(size_aware(&items, nodes, THRESHOLD, &nothing_known), &alike),
            ours: [first, second],
            ours_slow: run_on(ours(&learned), &one_slow),
        }
    }
}

impl Compared {
    /// Part by which the throughput of the split of size is above that of the split by count.
    fn gain(&self) -> f64 {
        self.by_count.makespan_s() / self.size_aware.makespan_s() - 1.0
    }

    /// The same for ours.
    fn gain_of_ours(&self) -> f64 {
        self.by_count.makespan_s() / self.ours_s() - 1.0
    }

    /// The slower one of our two runs, in seconds.
    fn ours_s(&self) -> f64 {
        self.ours[0].makespan_s().max(self.ours[1].makespan_s())
    }
}
