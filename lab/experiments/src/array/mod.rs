//! `array-response` and `array-rebuild`: disk arrays under a database's disk accesses (003 section 3.2, Fig. 6).
//!
//! ```text
//!   all data written ──> warm up ──> a window: array-response
//!                           └──────> a disk fails, a spare comes ──> until all is rebuilt: array-rebuild
//! ```
//!
//! Each point is one array at one rate of arrivals, from its making to its end, in open loop: the trace at that rate from
//! the first access on. An array that falls [`BEHIND_S`] seconds behind is overloaded at that rate.

mod curve;
mod rebuild;
mod response;
mod systems;
#[cfg(test)]
mod tests;

pub use rebuild::ArrayRebuild;
pub use response::ArrayResponse;

use crate::experiment::{Point, Progress, Setting};
use crate::figure::Figure;
use crate::findings::{Criterion, Table};
use crate::source::{Extent, Source};
use anyhow::{Result, bail, ensure};
use curve::Curve;
use kura_replay::{Error, NodeSpec, Options, Session, Window};
use kura_trace::TraceError;
use response::EQUAL_MS;
use serde::{Deserialize, Serialize};
use serde_json::json;
use systems::{ALIKE, SYSTEMS, System};

/// Seconds of arrivals under way with which an array is overloaded.
const BEHIND_S: f64 = 4.0;
/// Arrivals a second: more than the fastest of the arrays takes of the generated load.
const RATES: &[f64] = &[200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 1000.0, 1200.0, 1400.0, 1600.0];

/// The largest volume: a hundred times the paper's.
const DATA_BYTES_LIMIT: u64 = 1 << 40;

/// One array under one rate of arrivals.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    system: &'static str,
    node: NodeSpec,
    source: Source,
    /// Bytes of the volume, all of them written.
    data_bytes: u64,
    /// Arrivals a second.
    arrivals_per_s: f64,
    /// Arrivals a second over the trace's own.
    acceleration: f64,
    /// Accesses before the window.
    warm_up: u64,
    /// Accesses of a window that nothing else ends.
    accesses: u64,
}

/// An array in a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    reads: u64,
    writes: u64,
    /// Response times of reads, in milliseconds.
    read_p50_ms: f64,
    read_p90_ms: f64,
    read_mean_ms: f64,
    /// The part of the time in which slow disks were busy: mean over them, and that of the busiest.
    busy_mean: f64,
    busy_most: f64,
    elapsed_s: f64,
}

/// The load: the trace that was given, or TPC-C's at a size that the scale says.
fn source(setting: &Setting, progress: &Progress<'_>) -> Result<Source> {
    match setting.traces.as_slice() {
        [] => {
            // The paper's database in blocks of ours, or a part of it with the same part of its buffer cache.
            let (warehouses, cache_mib) = setting.scaled((2, 8), (14, 56));
            let text =
                format!("load:tpcc-like,warehouses={warehouses},cache={cache_mib}M,block=4K,requests=1000000000");
            Source::load(&text, setting.seed)
        }
        [path] => Source::of(path, setting.seed, &|part| progress.at(part)),
        other => bail!(
            "it wants one trace, recorded without checkpoints, or none for a generated load: {} given",
            other.len()
        ),
    }
}

/// Every array at every rate.
fn points(setting: &Setting, rates: &[f64], progress: &Progress<'_>) -> Result<Vec<Point<Config>>> {
    let source = progress.part(0.0, 0.2, |progress| source(setting, progress))?;
    let extent = progress.part(0.2, 1.0, |progress| source.extent(&|part| progress.at(part)))?;
    source.reaches_at_most(&extent, DATA_BYTES_LIMIT, "an array here, all of which is written before, holds")?;
    let Extent { end_bytes, arrivals_per_s: own_rate, .. } = extent;
    let data_bytes = end_bytes.next_multiple_of(4096);
    // The paper's, or one for every second block of data, and one for every eighth.
    let warm_up = setting.scaled(data_bytes / 8192, 10_000_000);
    let accesses = setting.scaled(data_bytes / 32768, 500_000);
    let at = |system: &System, rate: f64| Point {
        name: format!("{}-{rate}", system.name),
        config: Config {
            system: system.name,
            node: system.node(data_bytes),
            source: source.clone(),
            data_bytes,
            arrivals_per_s: rate,
            acceleration: rate / own_rate,
            warm_up,
            accesses,
        },
    };
    Ok(SYSTEMS.iter().flat_map(|system| rates.iter().map(move |rate| at(system, *rate))).collect())
}

/// The system of a point.
fn system(config: &Config) -> Result<&'static System> {
    let found = SYSTEMS.iter().find(|system| system.name == config.system);
    found.ok_or_else(|| anyhow::anyhow!("{}: there is no such array", config.system))
}

/// The array, warmed up; none where it fell behind.
fn warmed(config: &Config, setting: &Setting, progress: &Progress<'_>) -> Result<Option<Session<TraceError>>> {
    let options = Options {
        seed: setting.seed,
        layout: system(config)?.layout,
        in_flight_limit: (config.arrivals_per_s * BEHIND_S) as u64,
        ..Options::default()
    };
    let requests = config.source.endless(config.acceleration)?;
    let mut session = Session::start(&config.node, &options, config.data_bytes, requests)?;
    progress.at(0.1);
    let tell = |done: u64| progress.at(0.1 + 0.6 * done as f64 / config.warm_up as f64);
    Ok(kept_up(session.play(config.warm_up, tell))?.map(|_| session))
}

/// None where the array fell behind.
fn kept_up<T>(done: Result<T, Error>) -> Result<Option<T>> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Error::Overloaded { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn measured(window: &Window) -> Result<Measured> {
    if let Some(error) = &window.first_error {
        bail!("{} accesses failed: {error}", window.errors);
    }
    ensure!(!window.trace_ended, "the trace ended before the window did");
    let Some(read) = window.read else { bail!("the window has no reads: give another trace") };
    let ms = |ns: u64| ns as f64 / 1e6;
    let slow = window.disks.iter().filter(|disk| disk.name.starts_with("slow") && disk.reads > 0);
    let busy: Vec<f64> = slow.map(|disk| disk.busy).collect();
    Ok(Measured {
        reads: read.count,
        writes: window.write.map_or(0, |write| write.count),
        read_p50_ms: ms(read.p50_ns),
        read_p90_ms: ms(read.p90_ns),
        read_mean_ms: ms(read.mean_ns),
        busy_mean: busy.iter().sum::<f64>() / busy.len().max(1) as f64,
        busy_most: busy.iter().copied().fold(0.0, f64::max),
        elapsed_s: window.elapsed_ns as f64 / 1e9,
    })
}

/// How much slower than the mirror with one and a half times the disks is near it, and the part of its highest rate that is
/// near it. The paper has "lower, but good enough for what it costs", without a number: these bounds are ours.
const NEAR: (f64, f64) = (1.25, 0.8);

/// Hot mirroring lies under RAID5 and under floating data and parity everywhere, and near the mirror with more disks: each
/// scheme of it against those that are [alike](ALIKE). `mode` says in which operation.
fn under_and_near(curve: &dyn Fn(&System) -> Curve, mode: &str) -> Vec<Criterion> {
    let says = "hot mirroring is faster than RAID5 and floating";
    let lower = "lower than it, but good enough for its cost";
    let mut criteria = Vec::new();
    for [hot, raid5, floating, mirror] in &ALIKE {
        let [ours, near] = [hot, mirror].map(curve);
        for under in [raid5, floating] {
            let least = curve(under).least_over(&ours);
            let name = format!("{} over {}: 90th percentile{mode}, least over the rates", under.title, hot.title);
            criteria.push(Criterion::number(name, least, "above 1", least.is_finite() && least > 1.0).against(says));
        }
        let most = ours.over(&near).fold(f64::NEG_INFINITY, f64::max);
        let name = format!("{} over {}: 90th percentile{mode}, most where both keep up", hot.title, mirror.title);
        let holds = most.is_finite() && most <= NEAR.0;
        criteria.push(Criterion::number(name, most, format!("at most {}", NEAR.0), holds).against(lower));
        let name = format!("{} over {}: highest rate{mode}", hot.title, mirror.title);
        criteria.push(highest_rate(name, &ours, &near).against(lower));
    }
    criteria
}

/// The highest rate of one over that of the other, which is to be near.
fn highest_rate(name: String, ours: &Curve, other: &Curve) -> Criterion {
    match ours.saturation_over(other) {
        Some(ratio) => Criterion::at_least(name, ratio, NEAR.1),
        None => Criterion {
            name,
            paper: None,
            ours: "not known: the other keeps up with every rate".into(),
            bound: format!("at least {}", NEAR.1),
            holds: false,
        },
    }
}

/// The arrivals a second of one over those of the other at an equal 90th percentile.
fn at_equal_percentile(ours: (&str, &Curve), other: (&str, &Curve)) -> (String, f64) {
    let name = format!(
        "arrivals at an equal 90th percentile, {EQUAL_MS} ms or the highest that both reach: {} over {}",
        ours.0, other.0
    );
    (name, ours.1.rate_over(other.1, EQUAL_MS))
}

/// A figure's lines: one an array, over the rate of arrivals.
fn lines(table: &Table, title: &str, caption: &str, y: (&str, &str)) -> Result<Figure> {
    let mark = json!({ "type": "line", "strokeWidth": 3, "point": true });
    let titles: Vec<String> = SYSTEMS.iter().map(|system| system.title.to_owned()).collect();
    let (colour, dash) = Figure::series("array", &titles, ", queued");
    let drawing = json!({ "mark": mark, "encoding": {
        "x": Figure::axis("arrivals_per_s", "arrivals a second"),
        "y": Figure::axis(y.0, y.1),
        "color": colour,
        "strokeDash": dash,
    }});
    Figure::of(table, title, caption, drawing)
}
