//! `snapshot-message`: what messages cost as more writes make a save copy (000 Fig. 5).

use super::costs::Costs;
use super::machine::{Load, Mix, Ran, Saving};
use super::{CONTROLLERS, POOL_ENTRIES, kind, residuals};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table};
use anyhow::{Result, ensure};
use kura_snapshot::method::Kind;
use serde::Serialize;

/// The experiment, with the times it is run with.
pub struct SnapshotMessage {
    /// To be the paper's.
    pub costs: Costs,
}

/// A method under PVOL writes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Config {
    method: &'static str,
    load: Load,
}

/// Of the writes, those that make a save copy, in per cent.
const RATIOS: [u32; 10] = [0, 5, 10, 15, 20, 30, 40, 60, 80, 100];

/// What the paper says, in its text (3.2); the figure itself is not printed in numbers.
pub(super) mod paper {
    /// "About 40 % slower at a save copy ratio of 10 %, about 60 % at 20 % and more", and as fast without.
    pub const SPEEDS: [(u32, f64); 7] = [(0, 1.0), (10, 0.6), (20, 0.4), (40, 0.4), (60, 0.4), (80, 0.4), (100, 0.4)];
}

/// What a point read off Fig. 5 may be away.
pub(super) const NEAR: f64 = 0.1;

impl Experiment for SnapshotMessage {
    type Config = Config;
    type Data = Ran;

    fn about(&self) -> About {
        About {
            name: "snapshot-message",
            paper: "000 Fig. 5",
            shows: "What messages between controllers cost as more writes make a save copy.",
        }
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let point = |method: Kind, percent: u32| Point {
            name: format!("{method}-{percent}"),
            config: Config {
                method: method.name(),
                load: Load {
                    controllers: CONTROLLERS,
                    mix: Mix { svol_percent: 0, read_percent: 0, save_percent: percent },
                    saving: Saving::Copy,
                    pool_entries: POOL_ENTRIES,
                    decks: setting.scaled(10, 50),
                    costs: self.costs,
                },
            },
        };
        let methods = [Kind::Aggregate, Kind::Message];
        Ok(RATIOS.into_iter().flat_map(|percent| methods.map(|method| point(method, percent))).collect())
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Ran> {
        let Config { method, load } = &point.config;
        load.run(kind(method)?, setting.seed, &|part| progress.at(part))
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Ran)]) -> Result<Findings> {
        let of = |kind: Kind, percent: u32| {
            let is = |config: &Config| config.method == kind.name() && config.load.mix.save_percent == percent;
            results.iter().find(|(point, _)| is(&point.config)).map(|(_, ran)| *ran).unwrap_or_default()
        };
        let title = "Fig. 5: PVOL write speed of message, relative to aggregate";
        let columns = [
            "save_ratio_percent",
            "paper_speed",
            "message_speed",
            "messages_a_thousand",
            "drops_a_thousand",
            "shared_accesses_a_thousand",
        ];
        let mut table = Table::new("message", title, &columns);
        let (mut criteria, mut numbers) = (Vec::new(), Vec::new());
        for percent in RATIOS {
            let message = of(Kind::Message, percent);
            let speed = message.per_s / of(Kind::Aggregate, percent).per_s;
            let paper = paper::SPEEDS.into_iter().find(|(at, _)| *at == percent).map(|(_, speed)| speed);
            table.row([
                u64::from(percent).into(),
                paper.into(),
                speed.into(),
                message.a_thousand(message.messages).into(),
                message.a_thousand(message.drops).into(),
                message.a_thousand(message.shared_accesses()).into(),
            ]);
            if let Some(paper) = paper {
                let name = format!("speed of message at {percent} % save copies (Fig. 5)");
                criteria.push(Criterion::within(name, paper, speed, NEAR));
                numbers.push((format!("Fig. 5, {percent} %"), paper, speed));
            }
        }
        let x = Figure::axis("save_ratio_percent", "writes that make a save copy, %");
        let y = serde_json::json!({
            "type": "quantitative", "title": "speed relative to aggregate", "scale": { "domain": [0, 1] },
        });
        let layers =
            vec![Figure::curve("message_speed", "message, ours"), Figure::dots_of_paper("paper_speed", "the paper")];
        let caption = "All requests write to PVOLs. With every save copy a controller writes to shared memory and tells \
                       every other, each of which drops its copies and reads them again later. The paper gives its \
                       curve in words: as fast without save copies, 40 % slower at 10 %, 60 % slower from 20 % on.";
        let figure = Figure::of(&table, title, caption, Figure::layers(x, y, layers))?;
        Ok(Findings { tables: vec![table, residuals(&numbers)], figures: vec![figure], criteria })
    }
}
