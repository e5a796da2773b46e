//! `tier-policies`: the paper's evaluation (its Tables 4 and 5, Figs. 6 to 9) on generated loads, with kura's default
//! policy and an oracle beside it.

use super::judge::{self, Printed, Run};
use super::measure::Measured;
use super::systems::{OTF, OTF_UP, STATIC, Scene, TITLES, title};
use super::{Config, Data};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::{Criterion, Findings};
use crate::source::Source;
use anyhow::{Result, bail};

/// The paper's systems and ours on the two loads of the paper's kind.
pub struct TierPolicies;

/// A load and what the paper says of the volume it is like.
struct Load {
    name: &'static str,
    /// Seconds of the paper's section of it; as many before it are for training.
    seconds: u64,
}

const LOADS: [Load; 2] = [Load { name: "src1_0-like", seconds: 6000 }, Load { name: "src1_1-like", seconds: 7200 }];
const VOLUME_BYTES: u64 = 293 << 30;

impl Experiment for TierPolicies {
    type Config = Config;
    type Data = Data;

    fn about(&self) -> About {
        About {
            name: "tier-policies",
            paper: "002 Tables 4-5, Figs. 6-9",
            shows: "What tiering policies and an LRU cache have on a solid-state device as concentrations move, and what \
                    responses users see meanwhile; beside the best placement in hindsight.",
        }
    }

    fn points(&self, setting: &Setting, _: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        if !setting.traces.is_empty() {
            bail!("it takes no trace: its loads are generated; `tier-traces` does the same with traces");
        }
        let mut points = Vec::new();
        for load in LOADS {
            let source = Source::load(&format!("load:{},seconds={}", load.name, 2 * load.seconds), setting.seed)?;
            points.extend(TITLES.map(|(system, _)| Point {
                name: format!("{}.{system}", load.name.replace('_', "-")),
                config: Config {
                    system,
                    driver: Scene::PAPER.system(system),
                    source: source.clone(),
                    volume_bytes: VOLUME_BYTES,
                    from_s: load.seconds,
                    warmed: false,
                    to_s: 2 * load.seconds,
                },
            }));
        }
        Ok(points)
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Data> {
        super::run(&point.config, setting.seed, progress)
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Data)]) -> Result<Findings> {
        let runs = judge::runs(results);
        let mut findings = judge::findings(&runs)?;
        let papers: Vec<Criterion> = judge::loads(&runs).iter().flat_map(|load| papers(&runs, load)).collect();
        findings.criteria.splice(0..0, papers);
        Ok(findings)
    }
}

/// What the paper says of its own policies.
fn papers(runs: &[Run<'_>], load: &str) -> Vec<Criterion> {
    let of = |system: &str| runs.iter().find(|run| run.load == load && run.system == system).map(Run::first);
    let mut criteria = order(runs, load);
    if let Some(moving) = of(OTF) {
        for (system, what) in [(OTF_UP, "the same without moves to HDD"), (STATIC, "static tiering")] {
            let minutes = of(system).map_or(0.0, |still| slow_minutes(moving, still));
            let name = format!(
                "{load}: moves overload the disks: minutes in which OTF-AST's mean response is over twice that of {what}"
            );
            criteria.push(Criterion::number(name, minutes, "at least 1", minutes >= 1.0).against("they do"));
        }
    }
    criteria.extend(sizes(runs, load));
    criteria
}

/// A column of Tables 4 and 5: what it is, the paper's number and ours.
type Column = (&'static str, fn(&Printed) -> Option<f64>, fn(&Measured) -> f64);

/// The columns, but for the buffer's, which is 0 or little.
const COLUMNS: [Column; 3] = [
    ("SSD share, % (Table 4)", |paper| paper.ssd, |ours| ours.fast * 100.0),
    ("mean response, ms (Table 5)", |paper| paper.mean_ms, |ours| ours.mean_ms),
    ("mean response up to 100 ms, ms (Table 5)", |paper| paper.to_100_ms, |ours| ours.mean_to_100_ms),
];

/// The paper's lines of a load, first and second runs: what each is called, and both sides of its numbers.
fn lines<'a>(runs: &'a [Run<'a>], load: &str) -> Vec<(String, Printed, &'a Measured)> {
    let of_load = runs.iter().filter(|run| run.load == load);
    let lines = of_load.flat_map(|run| {
        let first = (title(run.system).to_owned(), judge::printed(load, run.system, false), run.first());
        let second = format!("{}, its 2nd run", title(run.system));
        [first, (second, judge::printed(load, run.system, true), run.second())]
    });
    lines.collect()
}

/// Every two numbers of a column of the paper's, the larger one over the other: ours are to be in that order.
fn order(runs: &[Run<'_>], load: &str) -> Vec<Criterion> {
    let (lines, mut criteria) = (lines(runs, load), Vec::new());
    for (what, papers, ours) in COLUMNS {
        let printed = lines.iter().filter_map(|(name, paper, run)| Some((name, papers(paper)?, ours(run))));
        let mut printed: Vec<_> = printed.collect();
        printed.sort_by(|one, other| other.1.total_cmp(&one.1));
        for (nth, (over, more, ours_more)) in printed.iter().enumerate() {
            // Of two that are alike in print none comes first.
            for (under, less, ours_less) in printed[nth + 1..].iter().filter(|below| below.1 < *more) {
                let ratio = ours_more / ours_less.max(1e-9);
                let name = format!("{load}: {what}, {over} over {under}");
                criteria.push(Criterion::number(name, ratio, "above 1", ratio > 1.0).against(more / less));
            }
        }
    }
    criteria
}

/// How far, as a factor, is of the same rough size: a half to twice the paper's.
const ROUGHLY: f64 = 2.0;

/// Every number of those columns, and of the first 20 minutes, against ours.
fn sizes(runs: &[Run<'_>], load: &str) -> Vec<Criterion> {
    let first_20: Column = (
        "mean response of the first 20 minutes, ms (section 4)",
        |paper| paper.to_20_min_ms,
        |ours| ours.mean_20_min_ms,
    );
    let mut criteria = Vec::new();
    for (name, paper, measured) in lines(runs, load) {
        for (what, papers, ours) in COLUMNS.into_iter().chain([first_20]) {
            let (Some(paper), ours) = (papers(&paper), ours(measured)) else { continue };
            let holds = (paper / ROUGHLY..=paper * ROUGHLY).contains(&ours);
            let name = format!("{load}: rough size of {name}: {what}");
            criteria.push(Criterion::number(name, ours, "half to twice the paper's", holds).against(paper));
        }
    }
    criteria
}

/// Minutes in which the mean response was over twice that of the same minute of another system, which had the same requests.
fn slow_minutes(measured: &Measured, other: &Measured) -> f64 {
    let minutes = measured.minutes.iter().zip(&other.minutes);
    minutes.filter(|(minute, other)| minute.response_ms > 2.0 * other.response_ms).count() as f64
}
