//! Tables, figures and verdicts.

use super::{CLIENTS, Config, Rounds, SIZES_KIB};
use crate::experiment::Point;
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table, Value};
use anyhow::Result;
use kura_stores::{Measured, Side};
use serde_json::json;

/// Ours is to have this many times the best of the paper's three stores, or this share of the bare device.
const OTHERS_FACTOR: f64 = 1.5;
const DEVICE_SHARE: f64 = 0.9;
/// Objects of more than so many KiB are to be written at most so many times over.
const AMPLIFICATION: (usize, f64) = (64, 1.1);
/// An aged store is to have this share of what it had at first.
const AGED_SHARE: f64 = 0.85;

/// What the paper measured. It does not tell its figures' numbers but for these.
mod paper {
    /// "About ten times" the file systems, objects of 4 KB created.
    pub const BDB_OVER_FILES_4_KIB: f64 = 10.0;
    /// Berkeley DB, read: KiB of an object and MB/s. The last is "about".
    pub const BDB_READ_MB_S: [(usize, f64); 3] = [(256, 71.2), (512, 4.5), (1024, 4.0)];
    /// Berkeley DB over Btrfs, read, up to 256 KB: as much and more.
    pub const BDB_OVER_BTRFS: f64 = 2.0;
    /// Ext3 over Btrfs, objects of 32 KB read.
    pub const EXT3_OVER_BTRFS_32_KIB: f64 = 3.7;
}

/// Of what a side came to, one number.
type Of = fn(&Measured) -> Option<f64>;

/// A phase: its name, its figure in the paper, MB/s of it, and of it when aged.
struct Phase {
    name: &'static str,
    figure: &'static str,
    mb_s: Of,
    aged_mb_s: Of,
}

const PHASES: [Phase; 2] = [
    Phase {
        name: "create",
        figure: "Fig. 2",
        mb_s: |measured| Some(measured.create.mb_s),
        aged_mb_s: |measured| measured.aged.map(|aged| aged.create.mb_s),
    },
    Phase {
        name: "read",
        figure: "Fig. 3",
        mb_s: |measured| Some(measured.read.mb_s),
        aged_mb_s: |measured| measured.aged.map(|aged| aged.read.mb_s),
    },
];

/// The points of a number of clients, by size.
struct Line<'a> {
    clients: usize,
    points: Vec<(usize, &'a [Rounds])>,
}

pub fn judge(results: &[(Point<Config>, Vec<Rounds>)]) -> Result<Findings> {
    let mut findings = Findings::default();
    for clients in CLIENTS {
        let of_clients = results.iter().filter(|(point, _)| point.config.work.clients == clients);
        let points = of_clients.map(|(point, sides)| (point.config.work.size_bytes >> 10, sides.as_slice())).collect();
        let line = Line { clients, points };
        for phase in &PHASES {
            line.speed(phase, &mut findings)?;
        }
        if clients == 1 {
            findings.criteria.extend(line.as_in_the_paper());
        }
        for phase in &PHASES {
            findings.criteria.extend(line.least(
                "first: MB/s over the best of the others",
                phase,
                line.first(phase),
                1.0,
            ));
            findings.criteria.extend(line.least("MB/s over those at half the size", phase, line.steps(phase), 1.0));
            findings.criteria.extend(line.least("MB/s aged over fresh", phase, line.aged(phase), AGED_SHARE));
        }
        findings.criteria.extend(line.amplification());
        findings.tables.push(line.rest());
    }
    Ok(findings)
}

/// The median over the rounds of a side; none where it was not measured.
fn median(sides: &[Rounds], side: Side, of: Of) -> Option<f64> {
    let rounds = &sides.iter().find(|rounds| rounds.side == side)?.rounds;
    let mut values: Vec<f64> = rounds.iter().filter_map(of).collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => None,
        even if even % 2 == 0 => Some(f64::midpoint(values[half - 1], values[half])),
        _ => Some(values[half]),
    }
}

/// The best of the paper's three.
fn best_other(sides: &[Rounds], of: Of) -> Option<f64> {
    Side::PAPERS.iter().filter_map(|&side| median(sides, side, of)).reduce(f64::max)
}

/// What the device gives: what it gave bare, or more where a store has shown more.
fn of_device(sides: &[Rounds], of: Of) -> Option<f64> {
    [median(sides, Side::Device, of), best_other(sides, of)].into_iter().flatten().reduce(f64::max)
}

impl Line<'_> {
    fn by(&self) -> String {
        format!("{} client{}", self.clients, if self.clients == 1 { "" } else { "s" })
    }

    /// A phase of every side over the size of the objects, and whether ours is fast enough at each.
    fn speed(&self, phase: &Phase, findings: &mut Findings) -> Result<()> {
        let Phase { name, figure, mb_s, .. } = *phase;
        let by = self.by();
        let title = format!("{name}, {by} ({figure})");
        let columns = ["size_kib", "store", "mb_s", "paper_mb_s"];
        let mut table = Table::new(format!("{name}-{}", self.clients), title.clone(), &columns);
        for &(kib, sides) in &self.points {
            for side in Side::ALL {
                if let Some(rate) = median(sides, side, mb_s) {
                    let paper = self.of_paper(phase, side, kib);
                    table.row([(kib as u64).into(), side.to_string().into(), rate.into(), paper.into()]);
                }
            }
            let Some((ours, best)) = median(sides, Side::Kura, mb_s).zip(best_other(sides, mb_s)) else { continue };
            let share = of_device(sides, mb_s).map_or(0.0, |device| ours / device);
            let holds = ours >= OTHERS_FACTOR * best || share >= DEVICE_SHARE;
            findings.criteria.push(Criterion::number(
                format!("{name} {kib} KiB, {by}: MB/s over the best of the others"),
                ours / best,
                format!("at least {OTHERS_FACTOR}, or {DEVICE_SHARE} of the device, of which it has {share:.2}"),
                holds,
            ));
        }
        let names = Side::ALL.map(|side| side.to_string());
        let mut layers = vec![json!({ "mark": { "type": "line", "point": true }, "encoding": {
            "y": { "field": "mb_s", "type": "quantitative" },
            "color": { "field": "store", "type": "nominal", "title": null, "sort": null, "scale": { "domain": names } },
        }})];
        if self.points.iter().any(|(kib, _)| self.of_paper(phase, Side::BerkeleyDb, *kib).is_some()) {
            layers.push(Figure::dots_of_paper("paper_mb_s", "Berkeley DB in the paper"));
        }
        let x = json!({
            "field": "size_kib", "type": "quantitative", "title": "size of an object, KiB",
            "scale": { "type": "log", "base": 2 }, "axis": { "values": SIZES_KIB },
        });
        let y = json!({ "type": "quantitative", "title": "MB/s", "scale": { "type": "log" } });
        let drawing = Figure::layers(x, y, layers);
        let caption = format!(
            "MB of content a second (10^6 bytes), median of the rounds, {by}; {}. The device is what no store can beat by \
             much. The paper's numbers are of another machine: 10 times the file systems for Berkeley DB at 4 KB in Fig. 2, \
             and its fall from 71.2 to 4.5 MB/s from 256 to 512 KB in Fig. 3.",
            if name == "create" { "each durable when it is acknowledged" } else { "nothing of it in memory before" },
        );
        findings.figures.push(Figure::of(&table, title, caption, drawing)?);
        findings.tables.push(table);
        Ok(())
    }

    /// MB/s of the paper, where it prints them: of one client, as far as can be told.
    fn of_paper(&self, phase: &Phase, side: Side, kib: usize) -> Option<f64> {
        let is_printed = self.clients == 1 && phase.name == "read" && side == Side::BerkeleyDb;
        let found = paper::BDB_READ_MB_S.into_iter().find(|(at, _)| is_printed && *at == kib);
        found.map(|(_, mb_s)| mb_s)
    }

    /// What the paper found of its three stores, here. Its numbers are of a disk of 2009: its order is judged.
    fn as_in_the_paper(&self) -> Vec<Criterion> {
        let [create, read] = &PHASES;
        let of = |phase: &Phase, side, kib| {
            let (_, sides) = self.points.iter().find(|(at, _)| *at == kib)?;
            median(sides, side, phase.mb_s)
        };
        let files_4_kib = [Side::Btrfs, Side::Ext3].iter().filter_map(|side| of(create, *side, 4)).reduce(f64::max);
        let over_btrfs = |kib| Some(of(read, Side::BerkeleyDb, kib)? / of(read, Side::Btrfs, kib)?);
        let least = SIZES_KIB.into_iter().filter(|kib| *kib <= 256).filter_map(over_btrfs).reduce(f64::min);
        let [(before, high), (after, low), _] = paper::BDB_READ_MB_S;
        let judged = |what: &str, ours: Option<f64>, bound: &str, holds: fn(f64) -> bool| {
            ours.map(|ours| Criterion::number(format!("the paper's stores here: {what}"), ours, bound, holds(ours)))
        };
        let ratio = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
        let criteria = [
            judged(
                "create 4 KiB, Berkeley DB over the better file system (Fig. 2)",
                ratio(of(create, Side::BerkeleyDb, 4), files_4_kib),
                "above 1",
                |ours| ours > 1.0,
            )
            .map(|it| it.against(paper::BDB_OVER_FILES_4_KIB)),
            judged("read to 256 KiB, Berkeley DB over Btrfs, least (Fig. 3)", least, "above 1", |ours| ours > 1.0)
                .map(|it| it.against(paper::BDB_OVER_BTRFS)),
            judged(
                "read, Berkeley DB at 512 KiB over that at 256 KiB (Fig. 3)",
                ratio(of(read, Side::BerkeleyDb, after), of(read, Side::BerkeleyDb, before)),
                "below 1",
                |ours| ours < 1.0,
            )
            .map(|it| it.against(low / high).by_formula()),
            judged(
                "read 32 KiB, Ext3 over Btrfs (Fig. 3)",
                ratio(of(read, Side::Ext3, 32), of(read, Side::Btrfs, 32)),
                "above 1",
                |ours| ours > 1.0,
            )
            .map(|it| it.against(paper::EXT3_OVER_BTRFS_32_KIB)),
        ];
        criteria.into_iter().flatten().collect()
    }

    /// Ours over the best of the paper's three.
    fn first(&self, phase: &Phase) -> Vec<(usize, f64)> {
        let over = |(kib, sides): &(usize, &[Rounds])| {
            Some((*kib, median(sides, Side::Kura, phase.mb_s)? / best_other(sides, phase.mb_s)?))
        };
        self.points.iter().filter_map(over).collect()
    }

    /// The least of ratios by size, which is to be at least `bound`.
    fn least(&self, what: &str, phase: &Phase, ratios: Vec<(usize, f64)>, bound: f64) -> Option<Criterion> {
        let (kib, ratio) = ratios.into_iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let name = format!("{what}, {}, {}: the least at any size", phase.name, self.by());
        Some(Criterion::number(name, ratio, format!("at least {bound} (at {kib} KiB)"), ratio >= bound))
    }

    /// Ours at each size over that at half the size; where the device is the limit, over what is asked of ours there.
    fn steps(&self, phase: &Phase) -> Vec<(usize, f64)> {
        let steps = self.points.windows(2).filter_map(|pair| {
            let [(_, half), (kib, sides)] = pair else { return None };
            let before = median(half, Side::Kura, phase.mb_s)?;
            let limit = of_device(sides, phase.mb_s).unwrap_or(f64::INFINITY) * DEVICE_SHARE;
            Some((*kib, median(sides, Side::Kura, phase.mb_s)? / before.min(limit)))
        });
        steps.collect()
    }

    /// Ours when aged, over what it was at first.
    fn aged(&self, phase: &Phase) -> Vec<(usize, f64)> {
        let ratios = self.points.iter().filter_map(|(kib, sides)| {
            let of = |of| median(sides, Side::Kura, of);
            Some((*kib, of(phase.aged_mb_s)? / of(phase.mb_s)?))
        });
        ratios.collect()
    }

    fn amplification(&self) -> Option<Criterion> {
        let (above_kib, bound) = AMPLIFICATION;
        let large = self.points.iter().filter(|(kib, _)| *kib > above_kib);
        let of = |sides| median(sides, Side::Kura, |measured| Some(measured.write_amplification));
        let all = large.filter_map(|(kib, sides)| Some((*kib, of(sides)?)));
        let (kib, most) = all.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let name = format!("bytes written for each of content above {above_kib} KiB, {}: the most", self.by());
        Some(Criterion::number(name, most, format!("at most {bound} (at {kib} KiB)"), most <= bound))
    }

    /// What the figures do not show.
    fn rest(&self) -> Table {
        let columns = [
            "size_kib",
            "store",
            "write_amplification",
            "create_p50_us",
            "create_p99_us",
            "read_p50_us",
            "read_p99_us",
            "aged_create_mb_s",
            "aged_read_mb_s",
        ];
        let mut table = Table::new(
            format!("rest-{}", self.clients),
            format!("Bytes written for each of content, times of a request, and ours when aged; {}", self.by()),
            &columns,
        );
        for &(kib, sides) in &self.points {
            for side in Side::ALL {
                let of = |of: Of| -> Value { median(sides, side, of).into() };
                table.row([
                    (kib as u64).into(),
                    side.to_string().into(),
                    of(|it| Some(it.write_amplification)),
                    of(|it| Some(it.create.p50_us)),
                    of(|it| Some(it.create.p99_us)),
                    of(|it| Some(it.read.p50_us)),
                    of(|it| Some(it.read.p99_us)),
                    of(|it| it.aged.map(|aged| aged.create.mb_s)),
                    of(|it| it.aged.map(|aged| aged.read.mb_s)),
                ]);
            }
        }
        table
    }
}
