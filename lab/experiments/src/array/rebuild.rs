//! `array-rebuild`: how long reads take while a disk that failed is rebuilt on a spare, and how long that takes
//! (003 Fig. 6 (b)).

use super::curve::Curve;
use super::response::NOISE;
use super::systems::{FLOATING, HOT, MIRROR_DISKS, MIRROR_TRACKS, RAID5, RAID5_QUEUED, System};
use super::{Config, Measured, RATES, kept_up, lines, measured, points, system, under_and_near, warmed};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::{Criterion, Findings, Table};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// Read responses of disk arrays while they rebuild a disk.
pub struct ArrayRebuild;

/// The disk that fails: by its number in the node, behind the two fast ones.
const FAILS: u16 = 7;

/// An array before a disk failed, and from then until all is rebuilt: none where it fell behind only then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    pub(super) normal: Measured,
    pub(super) rebuild: Option<Measured>,
}

impl Experiment for ArrayRebuild {
    type Config = Config;
    type Data = Option<Data>;

    fn about(&self) -> About {
        About {
            name: "array-rebuild",
            paper: "003 Fig. 6 (b)",
            shows: "The same while a disk that failed is rebuilt on a spare, and how long the rebuild takes: --trace \
                    without checkpoints; without a trace, of a generated load.",
        }
    }

    fn points(&self, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        points(setting, RATES, progress)
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Option<Data>> {
        let config = &point.config;
        let Some(mut session) = warmed(config, setting, progress)? else { return Ok(None) };
        let Some(normal) = kept_up(session.play(config.accesses, |_| {}))? else { return Ok(None) };
        progress.at(0.8);
        let spare = system(config)?.slow_disk(config.data_bytes, "slow-spare");
        let rebuild = kept_up(session.play_rebuild(FAILS, &spare))?;
        Ok(Some(Data { normal: measured(&normal)?, rebuild: rebuild.as_ref().map(measured).transpose()? }))
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Option<Data>)]) -> Result<Findings> {
        let columns = [
            "array",
            "arrivals_per_s",
            "acceleration",
            "read_p90_ms",
            "normal_read_p90_ms",
            "rebuild_s",
            "reads",
            "disks_busy",
        ];
        let title = "Fig. 6 (b): 90th percentile of read responses, while a disk is rebuilt";
        let mut table = Table::new("rebuild", title, &columns);
        for (point, data) in results {
            let Some(Data { normal, rebuild: Some(rebuild) }) = data else { continue };
            table.row([
                system(&point.config)?.title.into(),
                point.config.arrivals_per_s.into(),
                point.config.acceleration.into(),
                rebuild.read_p90_ms.into(),
                normal.read_p90_ms.into(),
                rebuild.elapsed_s.into(),
                rebuild.reads.into(),
                rebuild.busy_mean.into(),
            ]);
        }
        let caption = "Nine of ten reads were answered within this time, from the failure of a disk until all that it held \
                       is on a spare. A line ends where its array no longer kept up with the arrivals, or with the \
                       rates that were tried. The paper: the same order as in normal operation.";
        let figure = lines(&table, title, caption, ("read_p90_ms", "90th percentile of read response, ms"))?;
        let title = "Time of the rebuild";
        let times = Table { name: "rebuild-time".to_owned(), title: title.to_owned(), ..table.clone() };
        let caption = "From the failure of a disk until all that it held is on a spare, while accesses go on. How hard a \
                       rebuild works is kura's: it rests between two extents as long as one took, but in kura's hot \
                       mirroring the queues of the disks put it behind all else instead.";
        let time = lines(&times, title, caption, ("rebuild_s", "rebuild, s"))?;
        let criteria = criteria(results);
        Ok(Findings { tables: vec![table, times], figures: vec![figure, time], criteria })
    }
}

/// A measure of an array over the rate: of its normal operation up to where that falls behind, of its rebuild up to where that does.
fn curve(results: &[(Point<Config>, Option<Data>)], system: &System, of: fn(&Data) -> Option<f64>) -> Curve {
    let own = results.iter().filter(|(point, _)| point.config.system == system.name);
    Curve(own.map(|(point, data)| (point.config.arrivals_per_s, data.as_ref().and_then(of))).collect())
}

/// What the paper says of the figure, each held against the data. It prints no numbers: the bounds are ours.
fn criteria(results: &[(Point<Config>, Option<Data>)]) -> Vec<Criterion> {
    let during = |system: &System| curve(results, system, |data| Some(data.rebuild.as_ref()?.read_p90_ms));
    let normal = |system: &System| curve(results, system, |data| Some(data.normal.read_p90_ms));
    let mut criteria = Vec::new();
    let least = during(&RAID5).over(&during(&MIRROR_DISKS)).fold(f64::INFINITY, f64::min);
    criteria.push(
        Criterion::number(
            "90th percentile of RAID5 over that of the mirror with 1.5 x the disks, both rebuilding, least over the rates",
            least,
            "above 1",
            least.is_finite() && least > 1.0,
        )
        .against("the mirror is faster than hot mirroring, and that than RAID5"),
    );
    let worst = during(&RAID5).over(&normal(&RAID5)).fold(0.0, f64::max);
    let name = "90th percentile of RAID5, rebuilding over normal, most over the rates";
    criteria.push(Criterion::at_least(name, worst, 1.2).against("RAID5 suffers while it recovers (section 1)"));
    criteria.extend(under_and_near(&during, ", rebuilding"));
    let half = normal(&HOT).saturation() / 2.0;
    let suffers = during(&HOT)
        .up_to(half)
        .zip(normal(&HOT).up_to(half))
        .map_or(f64::INFINITY, |(during, normal)| during / normal);
    let name = "90th percentile of kura's hot mirroring at half its highest rate, rebuilding over normal";
    criteria.push(Criterion::at_most(name, suffers, 1.2));
    let time = |system: &System| curve(results, system, |data| Some(data.rebuild.as_ref()?.elapsed_s));
    for (raid5, as_what) in [(RAID5, ""), (RAID5_QUEUED, " with the same queues")] {
        let longest = time(&HOT).over(&time(&raid5)).fold(f64::NEG_INFINITY, f64::max);
        let name = format!("time of the rebuild, kura's hot mirroring over RAID5{as_what}, most over the rates");
        criteria.push(Criterion::number(name, longest, "at most 0.333", longest.is_finite() && longest <= 1.0 / 3.0));
    }
    for system in [RAID5, FLOATING, MIRROR_DISKS, MIRROR_TRACKS] {
        let name = format!("deepest fall of the 90th percentile as arrivals come faster, rebuilding, {}", system.title);
        let fall = during(&system).deepest_fall();
        criteria.push(Criterion::at_most(name, fall, NOISE).against("it rises: only hot mirroring's does not always"));
    }
    criteria
}
