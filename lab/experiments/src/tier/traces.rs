//! `tier-traces`: the same systems on traces, or on generated loads of other kinds.

use super::judge;
use super::systems::{Scene, TITLES};
use super::{Config, Data};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::Findings;
use crate::source::{Extent, Source};
use anyhow::{Result, ensure};

/// The paper's systems and ours on any traces.
pub struct TierTraces;

/// What is looked at where no trace was given: concentrations with as many reads as writes, several at once, those of
/// which the disks are as busy as the paper's, a few blocks that stay hot, and a scan.
const LOADS: [&str; 5] = [
    "load:concentrations,seconds=7200",
    "load:concentrations,at_once=4,reads=0.7,window=0.012,seconds=7200",
    "load:src1_0-like,rate=1000,seconds=2400",
    "load:zipf,size=64G,rate=150,seconds=7200",
    "load:sequential,size=64G,rate=150,seconds=7200",
];
const GIB: u64 = 1 << 30;
/// What the cache can address, in whole GiB.
const VOLUME_BYTES_LIMIT: u64 = super::cache::VOLUME_BYTES_LIMIT / GIB * GIB;
/// A year: every interval of a policy is gone through.
const DAYS_LIMIT: u64 = 366;
/// The paper's volume has 293 GB, its fast tier 24.
const PAPER_SUBLUNS: u64 = 293;
const PAPER_FAST: u64 = 24;
/// The paper's n, of as many subLUNs.
const PAPER_MOVED_AT_ONCE: u64 = 20;

impl Experiment for TierTraces {
    type Config = Config;
    type Data = Data;

    fn about(&self) -> About {
        About {
            name: "tier-traces",
            paper: "002, beyond",
            shows: "The same on the traces given with --trace, with as large a part of the volume fast; without one, on \
                    generated loads of other kinds.",
        }
    }

    fn points(&self, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        let sources: Vec<Source> = match setting.traces.as_slice() {
            [] => LOADS.iter().map(|text| Source::load(text, setting.seed)).collect::<Result<_>>()?,
            paths => progress.part(0.0, 0.2, |progress| Source::all(paths, setting.seed, progress))?,
        };
        let (mut points, all) = (Vec::new(), sources.len() as f64);
        for (source, n) in sources.into_iter().zip(1_u32..) {
            let (begin, end) = (0.2 + 0.8 * f64::from(n - 1) / all, 0.2 + 0.8 * f64::from(n) / all);
            let Fitted { paper, volume_bytes, from_s, to_s } =
                progress.part(begin, end, |progress| scene(&source, progress))?;
            points.extend(TITLES.map(|(system, _)| {
                let (driver, source) = (paper.system(system), source.clone());
                let config = Config { system, driver, source, volume_bytes, from_s, warmed: true, to_s };
                Point { name: format!("trace-{n}.{system}"), config }
            }));
        }
        Ok(points)
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Data> {
        super::run(&point.config, setting.seed, progress)
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Data)]) -> Result<Findings> {
        judge::findings(&judge::runs(results))
    }
}

/// The paper's devices for a trace.
struct Fitted {
    paper: Scene,
    volume_bytes: u64,
    from_s: u64,
    to_s: u64,
}

/// A volume as long as the trace reaches, in subLUNs of which there are some 293 or, in powers of two, up to twice as
/// many, of 16 GiB at most; as large a part of it fast, and moved at once, as in the paper. The first third trains static tiering.
fn scene(source: &Source, progress: &Progress<'_>) -> Result<Fitted> {
    let extent = source.extent(&|part| progress.at(part))?;
    let Extent { end_bytes, arrivals_per_s, mut last_ns, .. } = extent;
    source.reaches_at_most(&extent, VOLUME_BYTES_LIMIT, "the cache that it is tried on addresses")?;
    let volume_bytes = end_bytes.next_multiple_of(GIB);
    let sublun_bytes = (volume_bytes / PAPER_SUBLUNS).next_power_of_two() / 2;
    // No policy takes larger regions.
    let sublun_bytes = sublun_bytes.clamp(1 << 20, 16 << 30);
    let subluns = volume_bytes / sublun_bytes;
    let fast_bytes = subluns * PAPER_FAST / PAPER_SUBLUNS * sublun_bytes;
    let moved_at_once = (subluns * PAPER_MOVED_AT_ONCE + PAPER_SUBLUNS / 2) / PAPER_SUBLUNS;
    if let Source::Load(_) = source {
        for request in source.requests(|_| {})? {
            last_ns = request?.at_ns;
        }
    }
    let days = |ns: u64| ns / 86_400_000_000_000;
    let (gap_ns, request) = extent.longest_gap;
    ensure!(
        days(last_ns) <= DAYS_LIMIT,
        "{}: it lasts {} days, {} of them before request {request}, and {DAYS_LIMIT} are played at most: give a part of it, \
         or a trace of which all times are right",
        source.title(),
        days(last_ns),
        days(gap_ns)
    );
    let to_s = last_ns / 1_000_000_000 + 1;
    // The paper sets i by the mean of the days before.
    let floor_iops = arrivals_per_s.min(Scene::PAPER.floor_iops);
    let paper = Scene { fast_bytes, sublun_bytes, floor_iops, moved_at_once: moved_at_once as u32 };
    Ok(Fitted { paper, volume_bytes, from_s: to_s / 3, to_s })
}
