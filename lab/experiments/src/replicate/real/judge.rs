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
/// The most that the split by size gains (Fig. 5).
const TIMES_AS_FAST: f64 = 1.483;

pub fn judge(results: &[(Point<Config>, Compared)]) -> Result<Findings> {
    let columns = [
        "tree",
        "split",
        "seconds",
        "over_bound",
        "paper_over_bound",
        "longest_worker_over_mean",
        "times_as_fast_as_by_count",
        "paper_times_as_fast_as_by_count",
    ];
    let mut table = Table::new("splits", "Seconds of each split, over the least time there is", &columns);
    let mut criteria = Vec::new();
    for (point, compared) in results {
        let tree = tree(point.config.what);
        let of = |split| compared.sides.iter().find(|side| side.split == split).map_or(f64::INFINITY, seconds);
        let (count, size, ours) = (of(Split::ByCount), of(Split::SizeAware), of(Split::Balanced));
        for side in &compared.sides {
            let seconds = seconds(side);
            table.row([
                tree.into(),
                name(side.split).into(),
                seconds.into(),
                (seconds / compared.bound_s).into(),
                papers_over_bound(point.config.what, side.split).into(),
                median(side, balance).into(),
                (count / seconds).into(),
                papers_times_as_fast(point.config.what, side.split).into(),
            ]);
        }
        let over = ours / count.min(size);
        let name = format!("ours first, {tree}: seconds over the better of the paper's splits");
        criteria.push(Criterion::number(name, over, "below 1", over < 1.0));
        let gain = format!("{tree}: times as fast by size as by count");
        criteria.push(match point.config.what {
            What::Table2 => {
                let by_count = compared.sides.iter().find(|side| side.split == Split::ByCount);
                let what = format!("{tree}: by count, the longest process over the mean");
                Criterion::within_part(what, TABLE_2, by_count.map_or(0.0, |side| median(side, balance)), 0.1)
            }
            What::Most { big_files: true } => Criterion::at_least(gain, count / size, 1.0).against(TIMES_AS_FAST),
            What::Most { big_files: false } => {
                Criterion::at_least(gain, count / size, 0.95).against("no gain, hardly any loss")
            }
        });
    }
    let caption = "Seconds of a whole copy over bytes / (processes x 17 MB/s), median of the rounds. Each process is a real rsync \
                   held to 17 MB/s, what the paper's came to; sizes are scaled, numbers of files are the paper's. The tick is \
                   the paper's: of its Table 2, the longest process's 748 s over the mean of all three.";
    let title = "Real rsync processes, by split";
    let seconds = drawn(&table, title, caption, ("over_bound", "seconds over the least", "paper_over_bound"))?;
    let gain = Table { name: "gain".to_owned(), ..table.clone() };
    let caption = "How many times as fast a whole copy is as split by count. The tick is the paper's: its split by size gains 48.3 \
                   % at most, on five nodes of a cluster file system (Fig. 5).";
    let y = ("times_as_fast_as_by_count", "times as fast as by count", "paper_times_as_fast_as_by_count");
    let gain = drawn(&gain, "Real rsync processes, over the split by count", caption, y)?;
    Ok(Findings { tables: vec![table], figures: vec![seconds, gain], criteria })
}

/// Bars of the splits, a panel a tree, with ticks of the paper: the column, the axis's title, the paper's column.
fn drawn(table: &Table, title: &str, caption: &str, (y, y_title, paper): (&str, &str, &str)) -> Result<Figure> {
    let bars = json!({ "mark": { "type": "bar", "color": Figure::OURS }, "encoding": {
        "y": { "field": y, "type": "quantitative", "title": y_title },
    }});
    let x = json!({ "field": "split", "type": "nominal", "title": null, "sort": null });
    let layers = json!([bars, Figure::ticks_of_paper(paper)]);
    let drawing = json!({
        "facet": { "column": { "field": "tree", "type": "nominal", "title": null, "sort": null } },
        "spec": { "width": 200, "height": 260, "encoding": { "x": x }, "layer": layers },
    });
    Figure::of(table, title, caption, drawing)
}

/// The longest process of the paper's Table 2 over the mean of all: what its copy took over the least.
fn papers_over_bound(what: What, split: Split) -> Option<f64> {
    (what == What::Table2 && split == Split::ByCount).then_some(TABLE_2)
}

fn papers_times_as_fast(what: What, split: Split) -> Option<f64> {
    (what == What::Most { big_files: true } && split == Split::SizeAware).then_some(TIMES_AS_FAST)
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
