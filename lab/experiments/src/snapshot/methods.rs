//! `snapshot-methods`: the methods beside each other (000 Fig. 9, Tables 1 and 2).

use super::costs::Costs;
use super::fill::{Fill, Filled};
use super::machine::{Load, Mix, Ran, Saving};
use super::{CONTROLLERS, POOL_ENTRIES, judge, kind};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::Findings;
use anyhow::{Result, ensure};
use kura_snapshot::method::Kind;
use serde::{Deserialize, Serialize};

/// The experiment, with the times it is run with.
pub struct SnapshotMethods {
    /// To be the paper's.
    pub costs: Costs,
}

/// A method, and what is done under it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Config {
    pub method: &'static str,
    pub work: Work,
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Requests are served.
    Load(Load),
    /// A pool is filled.
    Fill(Fill),
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Done {
    Ran(Ran),
    Filled(Filled),
}

/// Of the writes, those that make a save copy, in per cent.
pub const RATIOS: [u32; 7] = [0, 10, 20, 40, 60, 80, 100];
/// Numbers of controllers.
pub const SCALES: [u16; 4] = [1, 2, 4, 8];
/// Section 5.2: all requests to PVOLs, 60 % reads, a tenth of the writes make a save copy.
pub const NORMAL: Mix = Mix { svol_percent: 0, read_percent: 60, save_percent: 10 };
/// Section 5.2: beside these, 40 % of the requests read SVOLs.
pub const BACKUP: Mix = Mix { svol_percent: 40, ..NORMAL };

/// PVOL writes only.
pub fn writes(save_percent: u32) -> Mix {
    Mix { svol_percent: 0, read_percent: 0, save_percent }
}

impl Experiment for SnapshotMethods {
    type Config = Config;
    type Data = Done;

    fn about(&self) -> About {
        About {
            name: "snapshot-methods",
            paper: "000 Fig. 9, Tables 1-2",
            shows: "Four ways to share the control information of snapshots: speed, messages, and use of the pool.",
        }
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let decks = setting.scaled(10, 50);
        let load = |controllers: u16, mix: Mix, saving: Saving| {
            Work::Load(Load { controllers, mix, saving, pool_entries: POOL_ENTRIES, decks, costs: self.costs })
        };
        let fill = Fill { controllers: CONTROLLERS, pool_entries: POOL_ENTRIES, costs: self.costs };
        let mut works = vec![("fill".to_owned(), Work::Fill(fill))];
        for (name, saving) in [("copy", Saving::Copy), ("redirect", Saving::Redirect)] {
            works.push((format!("{name}-normal"), load(CONTROLLERS, NORMAL, saving)));
            works.push((format!("{name}-backup"), load(CONTROLLERS, BACKUP, saving)));
            for percent in RATIOS {
                works.push((format!("{name}-writes-{percent}"), load(CONTROLLERS, writes(percent), saving)));
            }
        }
        for controllers in SCALES.into_iter().filter(|controllers| *controllers != CONTROLLERS) {
            works.push((format!("{controllers}-controllers"), load(controllers, NORMAL, Saving::Copy)));
        }
        let point = |method: Kind, (name, work): &(String, Work)| Point {
            name: format!("{method}-{name}"),
            config: Config { method: method.name(), work: *work },
        };
        Ok(works.iter().flat_map(|work| Kind::ALL.map(|method| point(method, work))).collect())
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Done> {
        let kind = kind(point.config.method)?;
        Ok(match &point.config.work {
            Work::Load(load) => Done::Ran(load.run(kind, setting.seed, &|part| progress.at(part))?),
            Work::Fill(fill) => Done::Filled(fill.run(kind, setting.seed)?),
        })
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Done)]) -> Result<Findings> {
        judge::judge(&judge::Results(results))
    }
}
