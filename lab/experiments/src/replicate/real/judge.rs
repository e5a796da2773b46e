//! Tables, figures and verdicts.

use super::{Compared, Config, Ran, Side, What};
use crate::experiment::Point;
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table};
use anyhow::Result;
use kura_replicate::Split;
use serde_json::json;

/// Table 2's processes: 748, 91 and 86 s.
const TABLE_2: f64 = 748.0 / ((748.0 + 91.0 + 86.0) / 3.0);
/// What counts as level: of three runs of some seconds, nobody is first by less.
const LEVEL: f64 = 1.02;

pub fn judge(results: &[(Point<Config>, Compared)]) -> Result<Findings> {
    let columns = ["tree", "split", "seconds", "over_bound", "longest_worker_over_mean"];
    let mut table = Table::new("splits", "Seconds of each split, over the least time there is", &columns);
    let mut criteria = Vec::new();
    for (point, compared) in results {
        let tree = tree(point.config.what);
        for side in &compared.sides {
            let seconds = seconds(side);
            table.row([
                tree.into(),
                name(side.split).into(),
                seconds.into(),
                (seconds / compared.bound_s).into(),
                median(side, balance).into(),
            ]);
        }
        let of = |split| compared.sides.iter().find(|side| side.split == split).map_or(f64::INFINITY, seconds);
        let (count, size, ours) = (of(Split::ByCount), of(Split::SizeAware), of(Split::Balanced));
        criteria.push(Criterion::at_most(
            format!("{tree}: seconds of ours over the better of the paper's splits"),
            ours / count.min(size),
            LEVEL,
        ));
        let gain = format!("{tree}: times as fast by size as by count");
        criteria.push(match point.config.what {
            What::Table2 => {
                let by_count = compared.sides.iter().find(|side| side.split == Split::ByCount);
                let what = format!("{tree}: by count, the longest process over the mean");
                Criterion::within_part(what, TABLE_2, by_count.map_or(0.0, |side| median(side, balance)), 0.1)
            }
            What::Most { big_files: true } => Criterion::at_least(gain, count / size, 1.0).against(1.483),
            What::Most { big_files: false } => {
                Criterion::at_least(gain, count / size, 0.95).against("no gain, hardly any loss")
            }
        });
    }
    let drawing = json!({ "mark": "bar", "encoding": {
        "x": { "field": "split", "type": "nominal", "title": null, "sort": null },
        "y": { "field": "over_bound", "type": "quantitative", "title": "seconds over the least" },
        "column": { "field": "tree", "type": "nominal", "title": null, "sort": null },
    }});
    let caption = "Seconds of a whole copy over bytes / (processes x 17 MB/s), median of the rounds. Each process is a real rsync \
                   held to 17 MB/s, what the paper's came to; sizes are scaled, numbers of files are the paper's.";
    let figure = Figure::of(&table, "Real rsync processes, by split", caption, drawing)?;
    Ok(Findings { tables: vec![table], figures: vec![figure], criteria })
}

fn tree(what: What) -> &'static str {
    match what {
        What::Table2 => "Table 2",
        What::Most { big_files: true } => "P(75,10,10,5,0), Fig. 5",
        What::Most { big_files: false } => "P(75,10,10,5,0) without big files, Fig. 7",
    }
}

fn name(split: Split) -> &'static str {
    match split {
        Split::ByCount => "by count (R1.1.1.2)",
        Split::SizeAware => "by size (R1.3.1)",
        Split::Balanced => "ours",
    }
}

fn seconds(side: &Side) -> f64 {
    median(side, |ran| ran.seconds)
}

/// The worker that worked longest over the mean; 1 is perfect.
fn balance(ran: &Ran) -> f64 {
    let mean = ran.workers_s.iter().sum::<f64>() / ran.workers_s.len().max(1) as f64;
    if mean > 0.0 { ran.workers_s.iter().copied().fold(0.0, f64::max) / mean } else { 1.0 }
}

fn median(side: &Side, of: impl Fn(&Ran) -> f64) -> f64 {
    let mut values: Vec<f64> = side.rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::INFINITY)
}
