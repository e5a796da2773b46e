//! `tier-policies`: the paper's evaluation (its Tables 4 and 5, Figs. 6 to 9) on generated loads, with kura's default
//! policy and an oracle beside it.

use super::judge::{self, Run};
use super::measure::Measured;
use super::systems::{CACHE, OTF, OTF_UP, STATIC, Scene, TITLES, title};
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
    let of = |system: &str| runs.iter().find(|run| run.load == load && run.system == system);
    let share = |system: &str, measured: fn(&Run<'_>) -> f64| of(system).map_or(0.0, measured).max(1e-9);
    let first = |system: &str| share(system, |run| run.first().fast);
    let mean = |system: &str| share(system, |run| run.first().mean_ms);
    let is_writes = load.starts_with("src1_0");
    let (otf, caches) = if is_writes { (24.0, [7.0, 19.0]) } else { (46.0, [37.0, 37.0]) };
    let over =
        |name: String, ours: f64, paper: f64| Criterion::number(name, ours, "above 1", ours > 1.0).against(paper);
    let busy = of(OTF).map_or(0.0, |run| slow_minutes(run.first()));
    let mut criteria = vec![
        over(
            format!("{load}: SSD share, OTF-AST over LRU cache (Table 4)"),
            first(OTF) / first(CACHE),
            otf / caches[0],
        ),
        over(
            format!("{load}: SSD share, OTF-AST over LRU cache, its 2nd run (Table 4)"),
            first(OTF) / share(CACHE, |run| run.second().fast),
            otf / caches[1],
        ),
        over(format!("{load}: SSD share, LRU cache over static (Table 4)"), first(CACHE) / first(STATIC), caches[0]),
        over(
            format!("{load}: mean response, OTF-AST over the same without moves to HDD (Table 5)"),
            mean(OTF) / mean(OTF_UP),
            if is_writes { 45.4 / 38.2 } else { 56.8 / 15.3 },
        ),
        Criterion::number(
            format!("{load}: moves overload the disks: minutes in which OTF-AST's mean response is over twice its median minute's"),
            busy,
            "at least 1",
            busy >= 1.0,
        )
        .against("they do"),
    ];
    criteria.extend(sizes(runs, load));
    if !is_writes {
        let name = format!("{load}: mean response, OTF-AST over static (Table 5)");
        criteria.push(over(name, mean(OTF) / mean(STATIC), 56.8 / 7.1));
    }
    criteria
}

/// How far, as a factor, is of the same rough size: a half to twice the paper's.
const ROUGHLY: f64 = 2.0;

/// Every number of Tables 4 and 5 but the buffer's, which is 0 or little, against ours.
fn sizes(runs: &[Run<'_>], load: &str) -> Vec<Criterion> {
    let mut criteria = Vec::new();
    for run in runs.iter().filter(|run| run.load == load) {
        for (nth, measured, again) in [("", run.first(), false), (", its 2nd run", run.second(), true)] {
            let papers = judge::printed(load, run.system, again);
            for (what, ours, paper) in [
                ("SSD share, % (Table 4)", measured.fast * 100.0, papers.ssd),
                ("mean response, ms (Table 5)", measured.mean_ms, papers.mean_ms),
                ("mean response up to 100 ms, ms (Table 5)", measured.mean_to_100_ms, papers.to_100_ms),
                ("mean response of the first 20 minutes, ms (section 4)", measured.mean_20_min_ms, papers.to_20_min_ms),
            ] {
                let Some(paper) = paper else { continue };
                let holds = (paper / ROUGHLY..=paper * ROUGHLY).contains(&ours);
                let name = format!("{load}: rough size of {}{nth}: {what}", title(run.system));
                criteria.push(Criterion::number(name, ours, "half to twice the paper's", holds).against(paper));
            }
        }
    }
    criteria
}

/// Minutes in which the mean response was over twice that of the median minute.
fn slow_minutes(measured: &Measured) -> f64 {
    let mut means: Vec<f64> =
        measured.minutes.iter().map(|minute| minute.response_ms / minute.requests.max(1) as f64).collect();
    means.sort_by(f64::total_cmp);
    let median = means.get(means.len() / 2).copied().unwrap_or(0.0);
    means.iter().filter(|mean| **mean > 2.0 * median).count() as f64
}
