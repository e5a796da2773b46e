//! Tables, figures and verdicts of tiering systems on loads.

use super::measure::{Measured, Minute};
use super::oracle::Bound;
use super::systems::{CACHE, OTF, OTF_UP, OURS, STATIC, TITLES, title};
use super::{Config, Data};
use crate::experiment::Point;
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table, Value};
use anyhow::Result;
use serde_json::json;

/// A system on a load.
pub struct Run<'a> {
    pub load: String,
    pub system: &'static str,
    data: &'a Data,
}

impl Run<'_> {
    /// What began with nothing on the fast tier, or with what was put there before.
    pub fn first(&self) -> &Measured {
        &self.data.measured
    }

    /// The same once more.
    pub fn second(&self) -> &Measured {
        &self.data.again
    }
}

/// All runs.
pub fn runs(results: &[(Point<Config>, Data)]) -> Vec<Run<'_>> {
    let of = |(point, data)| -> Run<'_> {
        let point: &Point<Config> = point;
        let load = point.config.source.title().replace(", a generated load", "");
        let nth = point.name.strip_prefix("trace-").and_then(|rest| rest.split('.').next());
        let load = nth.map_or(load.clone(), |nth| format!("{nth}: {load}"));
        Run { load, system: point.config.system, data }
    };
    results.iter().map(|(point, data)| of((point, data))).collect()
}

/// The loads, in order, each once.
pub fn loads(runs: &[Run<'_>]) -> Vec<String> {
    let mut loads: Vec<String> = Vec::new();
    for run in runs {
        if !loads.contains(&run.load) {
            loads.push(run.load.clone());
        }
    }
    loads
}

/// Tables and figures, and what is claimed of kura's policy.
pub fn findings(runs: &[Run<'_>]) -> Result<Findings> {
    let mut figures = vec![placed(runs)?, minutes(runs)?];
    figures.push(distributions(runs)?);
    let drawn = figures.iter().map(|(table, _)| table.clone());
    let tables = [shares(runs), responses(runs), moves(runs)].into_iter().chain(drawn).collect();
    let loads = loads(runs);
    let criteria = loads.iter().flat_map(|load| OURS.iter().flat_map(|system| ours(runs, load, system))).collect();
    Ok(Findings { tables, figures: figures.into_iter().map(|(_, figure)| figure).collect(), criteria })
}

/// What the name of a second run ends with.
const SECOND: &str = ", 2nd run";

/// The runs as rows, first and second.
fn rows<'a>(runs: &'a [Run<'a>]) -> impl Iterator<Item = (&'a Run<'a>, String, &'a Measured)> {
    runs.iter().flat_map(|run| {
        let second = format!("{}{SECOND}", title(run.system));
        [(run, title(run.system).to_owned(), run.first()), (run, second, run.second())]
    })
}

/// What the paper printed of a system on a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct Printed {
    /// In per cent, as the next.
    pub ssd: Option<f64>,
    pub buffer: Option<f64>,
    /// Mean responses: of all, of those up to 100 ms, and of the first 20 minutes.
    pub mean_ms: Option<f64>,
    pub to_100_ms: Option<f64>,
    pub to_20_min_ms: Option<f64>,
}

/// The paper's numbers of a system on the volume that a load is like.
pub fn printed(load: &str, system: &str, again: bool) -> Printed {
    let first = load.starts_with("src1_0");
    if !first && !load.starts_with("src1_1") {
        return Printed::default();
    }
    let to_20_min_ms = (first && system == OTF && !again).then_some(34.2);
    let all =
        |[ssd, buffer, mean_ms, to_100_ms]: [Option<f64>; 4]| Printed { ssd, buffer, mean_ms, to_100_ms, to_20_min_ms };
    let of = |src1_0: [f64; 3], src1_1: [f64; 4]| {
        let [share, buffer, mean] = src1_0;
        if first { [Some(share), Some(buffer), Some(mean), None] } else { src1_1.map(Some) }
    };
    all(match (system, again) {
        (OTF, false) => of([24.0, 5.0, 45.4], [46.0, 0.0, 56.8, 9.9]),
        (OTF_UP, false) if first => [None, None, Some(38.2), None],
        (OTF_UP, false) => [None, None, Some(15.3), Some(3.7)],
        (STATIC, false) => of([1.0, 0.0, 50.8], [1.0, 0.0, 7.1, 6.6]),
        (CACHE, false) => of([7.0, 0.0, 33.6], [37.0, 0.0, 6.9, 6.4]),
        (CACHE, true) => of([19.0, 5.0, 36.6], [37.0, 0.0, 6.9, 6.4]),
        _ => [None; 4],
    })
}

fn percent(part: f64) -> Value {
    (part * 100.0).into()
}

fn shares(runs: &[Run<'_>]) -> Table {
    let columns = [
        "load",
        "system",
        "ssd_percent",
        "paper_ssd_percent",
        "buffer_percent",
        "dirty_hits_percent",
        "paper_buffer_percent",
        "without_disks_percent",
        "oracle_percent",
        "ssd_over_oracle",
    ];
    let mut table = Table::new("shares", "Table 4: who served the requests", &columns);
    for (run, name, measured) in rows(runs) {
        let paper = printed(&run.load, run.system, name.ends_with(SECOND));
        // A second run begins with what the first left, and has its own moves.
        let oracle = run.data.oracle.filter(|_| !name.ends_with(SECOND)).map(|Bound { share, .. }| share);
        table.row([
            run.load.clone().into(),
            name.into(),
            percent(measured.fast),
            paper.ssd.into(),
            percent(measured.buffer),
            percent(measured.dirty_hits),
            paper.buffer.into(),
            percent(measured.not_slow),
            oracle.map(|share| share * 100.0).into(),
            oracle.map(|share| measured.fast / share.max(1e-9)).into(),
        ]);
    }
    table
}

fn responses(runs: &[Run<'_>]) -> Table {
    let columns = [
        "load",
        "system",
        "mean_ms",
        "paper_mean_ms",
        "mean_to_100_ms",
        "paper_mean_to_100_ms",
        "mean_20_min_ms",
        "paper_mean_20_min_ms",
        "p50_ms",
        "p95_ms",
        "p99_ms",
    ];
    let mut table = Table::new("responses", "Table 5: responses of users' requests", &columns);
    for (run, name, measured) in rows(runs) {
        let paper = printed(&run.load, run.system, name.ends_with(SECOND));
        table.row([
            run.load.clone().into(),
            name.into(),
            measured.mean_ms.into(),
            paper.mean_ms.into(),
            measured.mean_to_100_ms.into(),
            paper.to_100_ms.into(),
            measured.mean_20_min_ms.into(),
            paper.to_20_min_ms.into(),
            measured.p50_ms.into(),
            measured.p95_ms.into(),
            measured.p99_ms.into(),
        ]);
    }
    table
}

fn moves(runs: &[Run<'_>]) -> Table {
    let columns = ["load", "system", "up_gib", "down_gib", "disks_busy", "requests"];
    let mut table = Table::new("moves", "What moved, and how busy the disks were", &columns);
    for (run, name, measured) in rows(runs) {
        let gib = |bytes: u64| Value::from(bytes as f64 / f64::from(1 << 30));
        table.row([
            run.load.clone().into(),
            name.into(),
            gib(measured.up_bytes),
            gib(measured.down_bytes),
            measured.disks_busy.into(),
            measured.requests.into(),
        ]);
    }
    table
}

/// A figure with a panel for each load and a line for each system; `paper` is a layer of what the paper says, if any.
fn panels(
    table: Table,
    caption: &str,
    x: serde_json::Value,
    y: serde_json::Value,
    paper: Option<serde_json::Value>,
) -> Result<(Table, Figure)> {
    // The legend has the second runs only where there are some.
    let has_second = table.rows.iter().flatten().any(|it| matches!(it, Value::Text(text) if text.ends_with(SECOND)));
    let names = |(_, title): &(&str, &str)| [Some(title.to_string()), has_second.then(|| format!("{title}{SECOND}"))];
    let names: Vec<String> = TITLES.iter().flat_map(names).flatten().collect();
    let (colour, dash) = Figure::series("system", &names, SECOND);
    let lines = json!({ "mark": { "type": "line", "strokeWidth": 1.5 }, "encoding": {
        "x": x, "y": y, "color": colour, "strokeDash": dash,
    }});
    let layers: Vec<_> = std::iter::once(lines).chain(paper).collect();
    let drawing = json!({
        "facet": { "row": { "field": "load", "type": "nominal", "title": null } },
        "spec": { "width": 620, "height": 200, "layer": layers },
    });
    let figure = Figure::of(&table, table.title.clone(), caption, drawing)?;
    Ok((table, figure))
}

/// Minutes that one point of a line covers: of days, so many points that a line can be seen.
fn minutes_a_point(measured: &Measured) -> usize {
    measured.minutes.len().div_ceil(600).max(1)
}

/// Of which loads a point covers more than a minute.
fn coarse(runs: &[Run<'_>]) -> String {
    let told = loads(runs).into_iter().map(|load| {
        let own = runs.iter().filter(|run| run.load == load);
        match own.map(|run| minutes_a_point(run.first())).max() {
            None | Some(1) => String::new(),
            Some(minutes) => format!(" Of {load} a point covers {minutes} minutes."),
        }
    });
    told.collect()
}

/// A row for each point of a line, where `values` has some.
fn each_point(runs: &[Run<'_>], table: &mut Table, values: impl Fn(&str, &Minute) -> Option<Vec<Value>>) {
    for (run, name, measured) in runs.iter().map(|run| (run, title(run.system), run.first())) {
        let step = minutes_a_point(measured);
        for (nth, minutes) in measured.minutes.chunks(step).enumerate() {
            let Some(values) = values(&run.load, &Minute::sum(minutes)) else { continue };
            let place = vec![run.load.clone().into(), name.into(), ((nth * step) as u64).into()];
            table.row([place, values].concat());
        }
    }
}

/// What the paper's solid-state device holds, in subLUNs of 1 GB: the highest that its Fig. 6 can be.
const PAPER_MOST_GIB: f64 = 24.0;

fn placed(runs: &[Run<'_>]) -> Result<(Table, Figure)> {
    let is_papers = |load: &str| printed(load, OTF, false).ssd.is_some();
    let columns = ["load", "system", "minute", "gib", "paper_most_gib"];
    let mut table = Table::new("placed", "Fig. 6: what lies on the fast tier", &columns);
    each_point(runs, &mut table, |load, minute| {
        let most = is_papers(load).then_some(PAPER_MOST_GIB);
        Some(vec![(minute.placed_bytes as f64 / f64::from(1 << 30)).into(), most.into()])
    });
    let caption = "GiB on the fast tier, minute by minute; the paper counts subLUNs of 1 GB, 24 of them at most (dashed). \
                   OTF-AST fills it while a concentration lasts and empties it ten minutes later; the cache only fills.";
    let caption = caption.to_owned() + &coarse(runs);
    let paper = runs.iter().any(|run| is_papers(&run.load)).then(|| {
        json!({ "mark": { "type": "rule", "strokeDash": [6, 4], "color": Figure::PAPER }, "encoding": {
            "y": { "field": "paper_most_gib", "type": "quantitative", "aggregate": "max" },
        }})
    });
    panels(table, &caption, Figure::axis("minute", "minute"), Figure::axis("gib", "GiB on the fast tier"), paper)
}

fn minutes(runs: &[Run<'_>]) -> Result<(Table, Figure)> {
    let columns = ["load", "system", "minute", "ssd_percent"];
    let mut table = Table::new("minutes", "SSD share, minute by minute", &columns);
    // A share of nothing is no share.
    let share = |minute: &Minute| percent(minute.fast as f64 / minute.requests as f64);
    each_point(runs, &mut table, |_, minute| (minute.requests > 0).then(|| vec![share(minute)]));
    let caption = "The part of a minute's requests that the fast tier served. Where a concentration ends and another \
                   begins somewhere else, every line falls; how soon it rises again is what tells the systems apart. Where \
                   nothing was asked for there is no point.";
    let caption = caption.to_owned() + &coarse(runs);
    panels(table, &caption, Figure::axis("minute", "minute"), Figure::axis("ssd_percent", "SSD share, %"), None)
}

fn distributions(runs: &[Run<'_>]) -> Result<(Table, Figure)> {
    let columns = ["load", "system", "response_us", "percent"];
    let mut table = Table::new("responses-cdf", "Figs. 7-9: responses, cumulative", &columns);
    for (run, name, measured) in rows(runs) {
        for (us, part) in &measured.cdf {
            table.row([run.load.clone().into(), name.clone().into(), (*us).into(), percent(*part)]);
        }
    }
    let caption = "The part of the requests that were answered within a time. The step at the left is the solid-state \
                   device (the temporary buffer is left of it), the slope at the right the disks.";
    let x =
        json!({ "field": "response_us", "type": "quantitative", "title": "response, us", "scale": { "type": "log" } });
    panels(table, caption, x, Figure::axis("percent", "requests, %"), None)
}

/// What is claimed of kura's policy on a load, in one of the ways it is run: on its first run against the others' first, on its
/// second against their second.
fn ours(runs: &[Run<'_>], load: &str, system: &str) -> Vec<Criterion> {
    let Some(own) = runs.iter().find(|run| run.load == load && run.system == system) else { return Vec::new() };
    let others = || runs.iter().filter(|run| run.load == load && !OURS.contains(&run.system));
    let who = format!("{load}: {}", title(system));
    let mut criteria = against(&who, own.first(), others().map(Run::first).collect());
    // Where nothing was placed there is nothing to hold it against.
    if let Some(oracle) = own.data.oracle {
        let name = format!("{who}: SSD share over the oracle's with as many moves");
        criteria.push(Criterion::at_least(name, own.first().fast / oracle.share.max(1e-9), 0.85));
    }
    let (by_share, by_response) = behind(runs, load, own.first());
    for (what, minutes) in [("an SSD share", by_share), ("a mean response", by_response)] {
        let name =
            format!("{who}: minutes with {what} more than 2 % behind the better of static and LRU, beyond noise");
        criteria.push(Criterion::at_most(name, minutes, 0.0));
    }
    let rivals: Vec<&Measured> = others().map(Run::first).collect();
    for (what, minutes) in [
        ("an SSD share", minutes_behind(own.first(), &rivals, |minute| minute.fast as f64)),
        ("a mean response", minutes_behind(own.first(), &rivals, |minute| -minute.response_ms)),
    ] {
        let name = format!("{who}: minutes with {what} more than 2 % behind the best of the others");
        criteria.push(Criterion::at_most(name, minutes, 0.0));
    }
    criteria.extend(against(&format!("{who}{SECOND}"), own.second(), others().map(Run::second).collect()));
    criteria
}

/// Ours against the best of the others, measure by measure.
fn against(who: &str, ours: &Measured, others: Vec<&Measured>) -> Vec<Criterion> {
    let most = others.iter().map(|other| other.fast).fold(0.0, f64::max);
    let least = |of: fn(&Measured) -> f64| others.iter().map(|other| of(other)).fold(f64::INFINITY, f64::min);
    let below = |what: &str, ours: f64| {
        Criterion::number(format!("{who}: {what} over the best of the others"), ours, "below 1", ours < 1.0)
    };
    vec![
        Criterion::at_least(format!("{who}: SSD share over the best of the others"), ours.fast / most.max(1e-9), 1.25),
        below("mean response", ours.mean_ms / least(|it| it.mean_ms)),
        below("95th percentile of responses", ours.p95_ms / least(|it| it.p95_ms)),
    ]
}

/// Minutes in which ours is more than 2 % behind the best of `rivals` in a measure of which more is better. All had the same
/// requests in the same minute, so that sums compare as means do.
fn minutes_behind(mine: &Measured, rivals: &[&Measured], of: fn(&Minute) -> f64) -> f64 {
    let is_behind = |(nth, mine): (usize, &Minute)| {
        let rivals = rivals.iter().filter_map(|rival| rival.minutes.get(nth));
        let best = rivals.map(of).fold(f64::NEG_INFINITY, f64::max);
        mine.requests > 0 && best - of(mine) > 0.02 * best.abs()
    };
    mine.minutes.iter().enumerate().filter(|minute| is_behind(*minute)).count() as f64
}

/// Minutes in which ours is more than 2 % behind the better of static tiering and the cache's first run, by more than
/// twice the deviation that so many requests have by chance: by share, and by response.
fn behind(runs: &[Run<'_>], load: &str, mine: &Measured) -> (f64, f64) {
    let of = |system: &str| runs.iter().find(|run| run.load == load && run.system == system).map(Run::first);
    let (Some(fixed), Some(cache)) = (of(STATIC), of(CACHE)) else { return (0.0, 0.0) };
    let (mut by_share, mut by_response) = (0.0, 0.0);
    for ((mine, fixed), cache) in mine.minutes.iter().zip(&fixed.minutes).zip(&cache.minutes) {
        let count = mine.requests as f64;
        if count == 0.0 {
            continue;
        }
        let share = |minute: &Minute| minute.fast as f64 / count;
        let best = f64::max(share(fixed), share(cache));
        let noise = 2.0 * (best * (1.0 - best) / count).sqrt();
        by_share += f64::from(u8::from(best - share(mine) > 0.02 * best + noise));
        let response = |minute: &Minute| minute.response_ms / count;
        let best = f64::min(response(fixed), response(cache));
        // Responses of disks scatter about as much as they last.
        let noise = 2.0 * best / count.sqrt();
        by_response += f64::from(u8::from(response(mine) - best > 0.02 * best + noise));
    }
    (by_share, by_response)
}
