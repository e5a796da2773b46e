//! `replicate-contention`: what it costs when several nodes create files in one directory.

use super::cluster::{Model, Ran, run};
use super::trees::{MB, Tree};
use super::{NEAR, residuals};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table};
use anyhow::{Result, ensure};
use kura_replicate::balance::{Balanced, Cost, Item, Lists, balanced, by_count};
use serde::Serialize;
use serde_json::json;

/// The experiment, with the model it is run on.
pub struct Contention {
    /// The cluster; to be the paper's.
    pub model: Model,
}

/// Who carries what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Deal {
    /// Every directory's files over all nodes, all nodes in one directory at a time.
    Contended,
    /// Every directory on one node.
    Apart,
    /// As `kura replicate` does it when nothing is said.
    Ours,
}

/// Three directories on three nodes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Config {
    /// Files in each directory.
    files: usize,
    /// Bytes in each file.
    size_bytes: u64,
    /// Who carries them.
    deal: Deal,
    /// What things cost.
    model: Model,
}

const NODES: usize = 3;
/// Table 1's files in a directory, and their size.
const TABLE_1: (usize, u64) = (3000, 10 << 10);
/// Fig. 4's files in a directory, and their sizes.
const FIG_4: (usize, [u64; 5]) = (810, [100 << 10, 500 << 10, MB, 5 * MB, 10 * MB]);

/// What the paper measured.
mod paper {
    pub const CONTENDED_S: f64 = 146.0;
    pub const APART_S: f64 = 41.0;
    /// Of the time for files of 10 MB: the only number of Fig. 4 that is printed.
    pub const OVERHEAD_10_MB_PERCENT: f64 = 0.53;
}

impl Experiment for Contention {
    type Config = Config;
    type Data = Ran;

    fn about(&self) -> About {
        About {
            name: "replicate-contention",
            paper: "001 Table 1, Fig. 4",
            shows: "What it costs when several nodes create files in one directory.",
        }
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        ensure!(setting.traces.is_empty(), "it takes no trace: run it without --trace");
        let point = |name: String, files, size_bytes, deal| Point {
            name,
            config: Config { files, size_bytes, deal, model: self.model },
        };
        let mut points = vec![
            point("table-1-contended".to_owned(), TABLE_1.0, TABLE_1.1, Deal::Contended),
            point("table-1-apart".to_owned(), TABLE_1.0, TABLE_1.1, Deal::Apart),
            point("table-1-ours".to_owned(), TABLE_1.0, TABLE_1.1, Deal::Ours),
        ];
        for size_bytes in FIG_4.1 {
            let name = |how| format!("fig-4-{}k-{how}", size_bytes >> 10);
            points.push(point(name("contended"), FIG_4.0, size_bytes, Deal::Contended));
            points.push(point(name("apart"), FIG_4.0, size_bytes, Deal::Apart));
        }
        Ok(points)
    }

    fn run(&self, point: &Point<Config>, _: &Setting, _: &Progress<'_>) -> Result<Ran> {
        let Config { files, size_bytes, deal, model } = &point.config;
        let tree = Tree::flat(NODES as u32, *files, *size_bytes);
        let items = tree.items();
        let cost = Cost::default();
        let lists = match deal {
            Deal::Contended => contended(&items, *files),
            Deal::Apart => by_count(&items, NODES, &cost),
            Deal::Ours => balanced(&items, NODES, Balanced::default(), &cost),
        };
        Ok(run(model, &items, lists, &[1.0; NODES]))
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Ran)]) -> Result<Findings> {
        let makespan_s = |size_bytes: u64, deal: Deal| {
            let is = |config: &Config| config.size_bytes == size_bytes && config.deal == deal;
            results.iter().find(|(point, _)| is(&point.config)).map_or(f64::NAN, |(_, ran)| ran.makespan_s())
        };
        let [contended_s, apart_s, ours_s] =
            [Deal::Contended, Deal::Apart, Deal::Ours].map(|deal| makespan_s(TABLE_1.1, deal));
        let mut fig_4 = Table::new(
            "overhead",
            "Share of the time that contention takes",
            &["size_mb", "contended_s", "apart_s", "overhead_percent", "paper_overhead_percent"],
        );
        let mut overheads = Vec::new();
        for size_bytes in FIG_4.1 {
            let (tc, tn) = (makespan_s(size_bytes, Deal::Contended), makespan_s(size_bytes, Deal::Apart));
            let overhead = (tc - tn) / tc * 100.0;
            let paper = (size_bytes == 10 * MB).then_some(paper::OVERHEAD_10_MB_PERCENT);
            fig_4.row([(size_bytes as f64 / MB as f64).into(), tc.into(), tn.into(), overhead.into(), paper.into()]);
            overheads.push(overhead);
        }
        let at_10_mb = overheads.last().copied().unwrap_or(f64::NAN);
        let criteria = vec![
            Criterion::within_part("contended, s (Table 1)", paper::CONTENDED_S, contended_s, NEAR),
            Criterion::within_part("not contended, s (Table 1)", paper::APART_S, apart_s, NEAR),
            Criterion::within_part("overhead at 10 MB, % (Fig. 4)", paper::OVERHEAD_10_MB_PERCENT, at_10_mb, NEAR),
            Criterion::number(
                "overhead at 100 KB over that at 10 MB (Fig. 4)",
                overheads[0] / at_10_mb,
                "falls with every size",
                overheads.is_sorted_by(|smaller, larger| smaller > larger),
            )
            .against("falls"),
            Criterion::at_most("ours over not contended (Table 1's files)", ours_s / apart_s, 1.02),
        ];
        let numbers = [
            ("Table 1, contended, s", paper::CONTENDED_S, contended_s),
            ("Table 1, not contended, s", paper::APART_S, apart_s),
            ("Fig. 4, overhead at 10 MB, %", paper::OVERHEAD_10_MB_PERCENT, at_10_mb),
        ];
        let (table_1, figure_1) = table_1([contended_s, apart_s, ours_s])?;
        let residuals = residuals("residuals", "The model against the paper", &numbers);
        let figures = vec![figure_1, figure_4(&fig_4)?];
        Ok(Findings { tables: vec![table_1, fig_4, residuals], figures, criteria })
    }
}

/// Table 1, with ours beside it: seconds contended, apart and of ours.
fn table_1([contended_s, apart_s, ours_s]: [f64; 3]) -> Result<(Table, Figure)> {
    let title = "Three directories of 3,000 files of 10 KB on three nodes (Table 1)";
    let mut table = Table::new("contention", title, &["deal", "seconds", "paper_seconds"]);
    for (deal, seconds, paper) in [
        ("all nodes in one directory at a time", contended_s, Some(paper::CONTENDED_S)),
        ("each node in its own directory", apart_s, Some(paper::APART_S)),
        ("as kura replicate deals", ours_s, None),
    ] {
        table.row([deal.into(), seconds.into(), paper.into()]);
    }
    let bars = json!({ "mark": { "type": "bar", "color": Figure::OURS }, "encoding": {
        "y": { "field": "seconds", "type": "quantitative", "title": "time, s" },
    }});
    let x = json!({ "field": "deal", "type": "nominal", "title": null, "sort": null, "axis": { "labelAngle": 0 } });
    let drawing = json!({ "encoding": { "x": x }, "layer": [bars, Figure::ticks_of_paper("paper_seconds")] });
    let caption = "Whoever creates a file in a directory that another node changed last waits for the right to do so. The \
                   ticks are the paper's: 146 and 41 s.";
    let figure = Figure::of(&table, title, caption, drawing)?;
    Ok((table, figure))
}

fn figure_4(table: &Table) -> Result<Figure> {
    let ours = json!({ "mark": { "type": "line", "point": true, "color": Figure::OURS }, "encoding": {
        "y": { "field": "overhead_percent", "type": "quantitative" },
    }});
    let x = json!({ "field": "size_mb", "type": "quantitative", "title": "size of the files, MB", "scale": { "type": "log" } });
    let y = json!({ "type": "quantitative", "title": "overhead of contention, %" });
    let drawing = Figure::layers(x, y, vec![ours, Figure::dots_of_paper("paper_overhead_percent", "the paper")]);
    let caption = "Three nodes send three directories of 810 files each, all nodes into the same directory or each into its \
                   own. The larger the files, the less it matters. The paper prints one of its numbers: 0.53 % at 10 MB.";
    Figure::of(table, "Overhead of contention (Fig. 4)", caption, drawing)
}

/// A third of every directory to each node; all work through the directories in the same order.
fn contended(items: &[Item<'_>], files: usize) -> Lists {
    let share = files / NODES;
    let mut lists = Lists { of_workers: Vec::new(), may_steal: false };
    for node in 0..NODES {
        let is_mine = |item: &usize| item % files / share == node;
        let mine: Vec<usize> = (0..items.len()).filter(is_mine).collect();
        let of_node: Vec<Item<'_>> = mine.iter().map(|&item| items[item]).collect();
        let mut list = by_count(&of_node, 1, &Cost::default()).of_workers.remove(0);
        for piece in list.iter_mut().flat_map(|group| &mut group.units).flat_map(|unit| &mut unit.pieces) {
            piece.item = mine[piece.item];
        }
        lists.of_workers.push(list);
    }
    lists
}
