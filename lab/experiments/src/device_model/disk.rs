//! The disk that turns, against Table 4.

use super::{Criterion, Findings, Table};
use crate::figure::Figure;
use anyhow::Result;
use kura_block::{Block, Runtime};
use kura_sim::{ChaCha8Rng, DiskSpec, RotatingSpec, Sim, SimBlock, SimRuntime};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;

/// Table 4, written down a second time: what the model is held against must not be the model.
mod table4 {
    pub const REVOLUTION_MS: f64 = 13.33;
    pub const SECTORS_PER_TRACK: f64 = 50.0;
    pub const SECTOR_BYTES: f64 = 2048.0;
    pub const TRACKS_PER_CYLINDER: f64 = 2.0;
    pub const TRACK_SKEW_SECTORS: f64 = 6.0;
    /// Ours: the paper gives none between cylinders, and this one is the least that covers a seek over one.
    pub const CYLINDER_SKEW_SECTORS: f64 = 12.0;

    pub fn seek_ms(cylinders: f64) -> f64 {
        2.867 + 0.0029 * cylinders + 0.13 * cylinders.sqrt()
    }

    pub fn sector_ms() -> f64 {
        REVOLUTION_MS / SECTORS_PER_TRACK
    }

    /// From the end of a track until the first sector of one that begins `skew_sectors` later, when the heads take
    /// `move_ms`: a whole turn more for each time they come too late.
    fn gap_ms(skew_sectors: f64, move_ms: f64) -> f64 {
        let skew_ms = skew_sectors * sector_ms();
        skew_ms + ((move_ms - skew_ms) / REVOLUTION_MS).ceil().max(0.0) * REVOLUTION_MS
    }

    /// Reading so many tracks on end, from the first one's first sector.
    pub fn sequential_ms(tracks: f64) -> f64 {
        let cylinders = (tracks / TRACKS_PER_CYLINDER).ceil();
        let (between, within) = (cylinders - 1.0, tracks - cylinders);
        tracks * REVOLUTION_MS
            + within * gap_ms(TRACK_SKEW_SECTORS, 0.0)
            + between * gap_ms(CYLINDER_SKEW_SECTORS, seek_ms(1.0))
    }
}

/// A seek as measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seek {
    cylinders: u64,
    seek_ns: u64,
}

/// Waits for sectors to come round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rotation {
    mean_ns: f64,
    /// The farthest that the waits' distribution is from a uniform one over a turn (Kolmogorov-Smirnov).
    distance: f64,
    /// Waits in each of [`BINS`] equal parts of a turn.
    bins: Vec<u64>,
    reads: u64,
}

/// Transfers of whole tracks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// One track, from when its first sector passes.
    track_ns: u64,
    /// So many tracks on end.
    tracks: u64,
    /// All of them, from when the first one's first sector passes.
    sequential_ns: u64,
}

const BINS: usize = 40;

/// A disk in a world of its own.
struct Bench {
    spec: RotatingSpec,
    sim: Sim,
    runtime: Rc<SimRuntime>,
    device: Rc<SimBlock>,
}

impl Bench {
    fn new(spec: RotatingSpec, seed: u64) -> Self {
        let sim = Sim::new(seed);
        let disk = sim.disk("disk", DiskSpec { keep_content: false, ..DiskSpec::rotating(spec) });
        Self { spec, runtime: sim.runtime(), device: disk.open(), sim }
    }

    /// Nanoseconds of a read that is issued `after` from now.
    fn read_ns(&self, after: Duration, offset: u64, len: u64) -> Result<u64> {
        let read = async {
            self.runtime.sleep(after).await;
            self.device.read(offset, len as usize).await
        };
        let start = self.sim.now() + after;
        self.sim.block_on(read)?;
        Ok(self.sim.now().saturating_sub(start).as_nanos() as u64)
    }

    /// The same from the outer edge, issued `phase_ns` after the mark of a turn: nanoseconds from that mark to the end.
    fn ends_ns(&self, phase_ns: u64, offset: u64, len: u64) -> Result<u64> {
        self.read_ns(Duration::ZERO, 0, u64::from(self.spec.sector_bytes))?;
        let turned_ns = self.sim.now().as_nanos() as u64 % self.spec.revolution_ns;
        let after_ns = self.spec.revolution_ns - turned_ns + phase_ns;
        Ok(phase_ns + self.read_ns(Duration::from_nanos(after_ns), offset, len)?)
    }

    /// Nanoseconds of a read from the outer edge that need not wait for the disk to turn: the read that, issued any
    /// later, ends a turn later.
    fn quickest_ns(&self, offset: u64, len: u64) -> Result<u64> {
        let end_ns = self.ends_ns(0, offset, len)?;
        let (mut early_ns, mut late_ns) = (0, self.spec.revolution_ns);
        while late_ns - early_ns > 1 {
            let middle_ns = early_ns.midpoint(late_ns);
            if self.ends_ns(middle_ns, offset, len)? == end_ns {
                early_ns = middle_ns;
            } else {
                late_ns = middle_ns;
            }
        }
        Ok(end_ns - early_ns)
    }

    fn cylinder_bytes(&self) -> u64 {
        self.spec.tracks_per_cylinder * self.spec.track_bytes()
    }
}

pub fn seeks(spec: RotatingSpec, step: usize) -> Result<Vec<Seek>> {
    let bench = Bench::new(spec, 0);
    let sector_bytes = u64::from(spec.sector_bytes);
    let seek = |cylinders| {
        let read_ns = bench.quickest_ns(cylinders * bench.cylinder_bytes(), sector_bytes)?;
        Ok(Seek { cylinders, seek_ns: read_ns - spec.revolution_ns / spec.sectors_per_track })
    };
    (1..spec.cylinders).step_by(step).map(seek).collect()
}

pub fn rotation(spec: RotatingSpec, reads: u64, seed: u64) -> Result<Rotation> {
    let bench = Bench::new(spec, seed);
    let mut rng: ChaCha8Rng = bench.sim.rng("rotation");
    let sector_bytes = u64::from(spec.sector_bytes);
    let turn_ns = spec.revolution_ns as f64;
    let mut wait = || {
        let after = Duration::from_nanos(rng.random_range(0..10 * spec.revolution_ns));
        let sector = rng.random_range(0..spec.sectors_per_track);
        let read_ns = bench.read_ns(after, sector * sector_bytes, sector_bytes)?;
        Ok(read_ns.saturating_sub(spec.revolution_ns / spec.sectors_per_track))
    };
    let mut waits = (0..reads).map(|_| wait()).collect::<Result<Vec<u64>>>()?;
    waits.sort_unstable();
    let mut bins = vec![0; BINS];
    let mut distance: f64 = 0.0;
    for (below, wait_ns) in waits.iter().enumerate() {
        let turned = *wait_ns as f64 / turn_ns;
        bins[((turned * BINS as f64) as usize).min(BINS - 1)] += 1;
        let (low, high) = (below as f64 / reads as f64, (below + 1) as f64 / reads as f64);
        distance = distance.max(turned - low).max(high - turned);
    }
    Ok(Rotation { mean_ns: waits.iter().sum::<u64>() as f64 / reads as f64, distance, bins, reads })
}

pub fn transfer(spec: RotatingSpec, tracks: u64) -> Result<Transfer> {
    let bench = Bench::new(spec, 0);
    let track_ns = bench.quickest_ns(0, spec.track_bytes())?;
    // In requests of one track, each issued when the one before it is answered.
    let mut sequential_ns = bench.quickest_ns(0, spec.track_bytes())?;
    bench.ends_ns(0, 0, spec.track_bytes())?;
    for track in 1..tracks {
        sequential_ns += bench.read_ns(Duration::ZERO, track * spec.track_bytes(), spec.track_bytes())?;
    }
    Ok(Transfer { track_ns, tracks, sequential_ns })
}

const NS_PER_MS: f64 = 1e6;

pub fn judge_seeks(seeks: &[Seek], findings: &mut Findings) -> Result<()> {
    let mut table = Table::new("seek", "Seek time over distance", &["distance_cylinders", "paper_ms", "measured_ms"]);
    let mut farthest_ns: f64 = 0.0;
    for seek in seeks {
        let (formula_ms, measured_ms) = (table4::seek_ms(seek.cylinders as f64), seek.seek_ns as f64 / NS_PER_MS);
        farthest_ns = farthest_ns.max((seek.seek_ns as f64 - formula_ms * NS_PER_MS).abs());
        table.row([seek.cylinders.into(), formula_ms.into(), measured_ms.into()]);
    }
    if let Some(last) = seeks.last() {
        let name = format!("seek over {} cylinders, ms", last.cylinders);
        let paper_ms = table4::seek_ms(last.cylinders as f64);
        let criterion = Criterion::within(name, paper_ms, last.seek_ns as f64 / NS_PER_MS, 0.001);
        findings.criteria.push(criterion.by_formula());
    }
    let name = "farthest that any seek is from the formula, ns";
    findings.criteria.push(Criterion::at_most(name, farthest_ns, 1000.0));
    let title = "Seek time over distance";
    let caption = "The time of a seek rises steeply over the first cylinders, then almost in proportion to the \
                   distance. Each measured seek is the quickest of reads issued at different moments of a turn, less \
                   the transfer.";
    let drawing = Figure::layers(
        Figure::axis("distance_cylinders", "cylinders"),
        Figure::axis("measured_ms", "seek, ms"),
        vec![
            Figure::curve("measured_ms", "ours: the simulated disk"),
            Figure::line("paper_ms", "paper: the formula of Table 4"),
        ],
    );
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}

pub fn judge_rotation(rotation: &Rotation, findings: &mut Findings) -> Result<()> {
    let title = "The wait for a sector to come round";
    let mut table = Table::new("rotation", title, &["from_ms", "to_ms", "measured_share", "paper_share"]);
    let bin_ms = table4::REVOLUTION_MS / BINS as f64;
    for (bin, &waits) in rotation.bins.iter().enumerate() {
        let from_ms = bin as f64 * bin_ms;
        let share = waits as f64 / rotation.reads as f64;
        table.row([from_ms.into(), (from_ms + bin_ms).into(), share.into(), (1.0 / BINS as f64).into()]);
    }
    let mean_ms = rotation.mean_ns / NS_PER_MS;
    let criterion = Criterion::within_part("mean wait, ms", table4::REVOLUTION_MS / 2.0, mean_ms, 0.01);
    findings.criteria.push(criterion.by_formula());
    // A uniform distribution is farther than this once in a thousand runs.
    let bound = 1.95 / (rotation.reads as f64).sqrt();
    let name = "waits' distance from uniform (Kolmogorov-Smirnov)";
    findings.criteria.push(Criterion::at_most(name, rotation.distance, bound));
    let caption = "A read issued at a random moment waits for its sector between nothing and a whole turn, every wait \
                   as likely as any other, and half a turn on average.";
    let bars = json!({ "mark": { "type": "bar", "orient": "vertical", "opacity": 0.75 }, "encoding": {
        "x2": { "field": "to_ms" },
        "y": { "field": "measured_share", "type": "quantitative" },
        "color": Figure::named("ours: the simulated disk", Figure::OURS),
    }});
    let drawing = Figure::layers(
        json!({ "field": "from_ms", "type": "quantitative", "title": "wait, ms",
            "scale": { "nice": false, "padding": 0 } }),
        Figure::axis("measured_share", "share of reads"),
        vec![bars, Figure::line("paper_share", "paper: uniform over the turn of Table 4")],
    );
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}

pub fn judge_transfer(transfer: &Transfer, findings: &mut Findings) {
    let Transfer { track_ns, tracks, sequential_ns } = *transfer;
    let track_bytes = table4::SECTORS_PER_TRACK * table4::SECTOR_BYTES;
    let mb_per_s = |ms: f64| tracks as f64 * track_bytes / ms / 1000.0;
    let track_ms = track_ns as f64 / NS_PER_MS;
    let formula_mb_per_s = mb_per_s(table4::sequential_ms(tracks as f64));
    let ours_mb_per_s = mb_per_s(sequential_ns as f64 / NS_PER_MS);
    // The paper gives no skew between cylinders, so this formula is not all its own.
    let title = format!(
        "Transfer of whole tracks; {} sectors of skew between cylinders are ours",
        table4::CYLINDER_SKEW_SECTORS
    );
    let mut table = Table::new("transfer", title, &["quantity", "formula", "measured"]);
    table.row(["a track, ms".into(), table4::REVOLUTION_MS.into(), track_ms.into()]);
    table.row([format!("{tracks} tracks on end, MB/s").into(), formula_mb_per_s.into(), ours_mb_per_s.into()]);
    findings.criteria.push(Criterion::within("transfer of a whole track, ms", table4::REVOLUTION_MS, track_ms, 0.001));
    let name = format!("sequential reading of {tracks} tracks, MB/s");
    let bound = format!("within 0.1 % of {formula_mb_per_s:.4}, by the formula");
    let holds = (ours_mb_per_s - formula_mb_per_s).abs() <= 0.001 * formula_mb_per_s;
    findings.criteria.push(Criterion::number(name, ours_mb_per_s, bound, holds));
    findings.tables.push(table);
}
