//! `array-response`: how long reads take as arrivals come faster (003 Fig. 6 (a)).

use super::curve::Curve;
use super::systems::{FLOATING, HOT, HOT_PAPER, MIRROR_DISKS, MIRROR_TRACKS, RAID5, RAID5_QUEUED, SYSTEMS, System};
use super::{Config, Measured, RATES, at_equal_percentile, kept_up, lines, measured, points, under_and_near, warmed};
use crate::experiment::{About, Experiment, Point, Progress, Setting};
use crate::findings::{Criterion, Findings, Table, Value};
use anyhow::Result;

/// Read responses of disk arrays of equal capacity.
pub struct ArrayResponse;

/// The 90th percentile at which rates are held against each other: some three to four times that of an idle disk.
pub(super) const EQUAL_MS: f64 = 60.0;
/// By how much a percentile may fall between two rates by chance.
pub(super) const NOISE: f64 = 0.05;

impl Experiment for ArrayResponse {
    type Config = Config;
    type Data = Option<Measured>;

    fn about(&self) -> About {
        About {
            name: "array-response",
            paper: "003 Fig. 6 (a)",
            shows: "90th percentile of read responses of disk arrays of equal capacity as a database's accesses arrive \
                    faster: --trace without checkpoints; without a trace, of a generated load.",
        }
    }

    fn points(&self, setting: &Setting, progress: &Progress<'_>) -> Result<Vec<Point<Config>>> {
        points(setting, RATES, progress)
    }

    fn run(&self, point: &Point<Config>, setting: &Setting, progress: &Progress<'_>) -> Result<Option<Measured>> {
        let Some(mut session) = warmed(&point.config, setting, progress)? else { return Ok(None) };
        let accesses = point.config.accesses;
        let window = kept_up(session.play(accesses, |done| progress.at(0.7 + 0.3 * done as f64 / accesses as f64)))?;
        window.map(|window| measured(&window)).transpose()
    }

    fn judge(&self, _: &Setting, results: &[(Point<Config>, Option<Measured>)]) -> Result<Findings> {
        let columns = [
            "array",
            "arrivals_per_s",
            "acceleration",
            "read_p90_ms",
            "read_p50_ms",
            "read_mean_ms",
            "reads",
            "writes",
            "disks_busy",
            "busiest_disk",
        ];
        let title = "Fig. 6 (a): 90th percentile of read responses, normal operation";
        let mut table = Table::new("response", title, &columns);
        for (point, data) in results {
            let Some(data) = data else { continue };
            let title = super::system(&point.config)?.title;
            table.row([
                title.into(),
                point.config.arrivals_per_s.into(),
                point.config.acceleration.into(),
                data.read_p90_ms.into(),
                data.read_p50_ms.into(),
                data.read_mean_ms.into(),
                data.reads.into(),
                data.writes.into(),
                data.busy_mean.into(),
                data.busy_most.into(),
            ]);
        }
        let caption = "Nine of ten reads were answered within this time. A line ends where its array no longer kept up \
                       with the arrivals, or with the rates that were tried. All arrays hold the same data on disks of the paper's model, and are warmed up by \
                       10 million accesses as in the paper (--full), or by one for every 8 KiB of data (--quick). The \
                       paper: the mirror with 1.5 times the disks is the fastest, then hot mirroring; RAID5 and \
                       floating are the slowest.";
        let figure = lines(&table, title, caption, ("read_p90_ms", "90th percentile of read response, ms"))?;
        let criteria = criteria(&|system| curve(results, system, |data| data.read_p90_ms));
        Ok(Findings { tables: vec![table, overview(results)], figures: vec![figure], criteria })
    }
}

/// A measure of an array over the rate.
fn curve(results: &[(Point<Config>, Option<Measured>)], system: &System, of: fn(&Measured) -> f64) -> Curve {
    let own = results.iter().filter(|(point, _)| point.config.system == system.name);
    Curve(own.map(|(point, data)| (point.config.arrivals_per_s, data.as_ref().map(of))).collect())
}

/// What each array is, and what it takes.
fn overview(results: &[(Point<Config>, Option<Measured>)]) -> Table {
    let columns =
        ["array", "disks", "disk_bytes", "write_buffer_bytes", "data_bytes", "keeps_up_to_per_s", "rate_at_60_ms"];
    let mut table = Table::new("arrays", "The arrays, and the arrivals a second that they take", &columns);
    for system in SYSTEMS {
        let Some((point, _)) = results.iter().find(|(point, _)| point.config.system == system.name) else { continue };
        let (node, curve) = (&point.config.node, curve(results, system, |data| data.read_p90_ms));
        table.row([
            system.title.into(),
            system.disks.into(),
            node.disks.last().map_or(0, |disk| disk.size_bytes).into(),
            node.settings.write_buffer_bytes.into(),
            point.config.data_bytes.into(),
            if curve.fell_behind() {
                curve.saturation().into()
            } else {
                Value::Text(format!("at least {}", curve.saturation()))
            },
            curve.rate_at(EQUAL_MS).into(),
        ]);
    }
    table
}

/// What the paper says of the figure, each held against the data. It prints no numbers: the bounds are ours.
fn criteria(curve: &dyn Fn(&System) -> Curve) -> Vec<Criterion> {
    let [raid5, disks, tracks, paper, ours] =
        [RAID5, MIRROR_DISKS, MIRROR_TRACKS, HOT_PAPER, HOT].map(|system| curve(&system));
    let mut criteria = Vec::new();
    let least = raid5.over(&disks).fold(f64::INFINITY, f64::min);
    criteria.push(
        Criterion::number(
            "90th percentile of RAID5 over that of the mirror with 1.5 x the disks, least over the rates",
            least,
            "above 1",
            least.is_finite() && least > 1.0,
        )
        .against("the mirror is faster than hot mirroring, and that than RAID5"),
    );
    let (mirror, tracked) = (("mirror with 1.5 x the disks", &disks), ("mirror with 1.5 x the tracks", &tracks));
    let (name, ratio) = at_equal_percentile(mirror, ("RAID5", &raid5));
    criteria.push(Criterion::at_least(name, ratio, 1.2).against("more: the figure's order"));
    let (name, ratio) = at_equal_percentile(tracked, mirror);
    criteria
        .push(Criterion::at_most(name, ratio, 0.9).against("low: two thirds of the disks, and long seeks for writes"));
    let least = paper.over(&disks).fold(f64::INFINITY, f64::min);
    let name = "90th percentile of hot mirroring as in the paper over that of the mirror with 1.5 x the disks, least over \
                the rates";
    criteria.push(
        Criterion::number(name, least, "above 1", least.is_finite() && least > 1.0)
            .against("it is slower than the mirror with more disks"),
    );
    criteria.extend(under_and_near(curve, ""));
    let kuras = ("kura's hot mirroring", &ours);
    let (name, ratio) = at_equal_percentile(kuras, ("the paper's", &paper));
    criteria.push(Criterion::at_least(name, ratio, 2.0));
    let (name, ratio) = at_equal_percentile(kuras, ("RAID5 with the same queues", &curve(&RAID5_QUEUED)));
    criteria.push(Criterion::number(name, ratio, "above 1", ratio > 1.0));
    let curves = [
        (RAID5, raid5),
        (FLOATING, curve(&FLOATING)),
        (MIRROR_DISKS, disks),
        (MIRROR_TRACKS, tracks),
        (HOT_PAPER, paper),
        (HOT, ours),
    ];
    for (system, curve) in curves {
        let name = format!("deepest fall of the 90th percentile as arrivals come faster, {}", system.title);
        criteria.push(Criterion::at_most(name, curve.deepest_fall(), NOISE).against("it rises"));
    }
    criteria
}
