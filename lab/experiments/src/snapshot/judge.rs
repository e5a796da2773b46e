//! What the runs show, against what the paper says.

use super::machine::{Load, Mix, Ran, Saving};
use super::methods::{BACKUP, Config, Done, NORMAL, RATIOS, SCALES, Work, writes};
use super::{CONTROLLERS, message, residuals};
use crate::experiment::Point;
use crate::figure::Figure;
use crate::findings::{Criterion, Findings, Table, Value};
use anyhow::{Context, Result};
use kura_snapshot::method::Kind;
use serde_json::json;

/// What the paper measured, relative to aggregate.
mod paper {
    use kura_snapshot::method::Kind;

    /// Fig. 9, in the text of 5.1.
    pub const ACCESS_CHANGE_ALL_SAVES: f64 = 0.9;
    /// Table 1.
    pub const TABLE_1: [(&str, super::Mix, Kind, f64); 4] = [
        ("normal operation", super::NORMAL, Kind::Message, 0.56),
        ("normal operation", super::NORMAL, Kind::AccessChange, 0.95),
        ("backup", super::BACKUP, Kind::Message, 0.68),
        ("backup", super::BACKUP, Kind::AccessChange, 0.97),
    ];
}

/// What a number of Table 1 and Fig. 9 may be away.
const NEAR: f64 = 0.05;

/// All points.
pub struct Results<'a>(pub &'a [(Point<Config>, Done)]);

impl Results<'_> {
    fn ran(&self, kind: Kind, controllers: u16, mix: Mix, saving: Saving) -> Result<Ran> {
        let is = |load: &Load| load.controllers == controllers && load.mix == mix && load.saving == saving;
        let found = self.0.iter().find_map(|(point, done)| match (&point.config.work, done) {
            (Work::Load(load), Done::Ran(ran)) if point.config.method == kind.name() && is(load) => Some(*ran),
            _ => None,
        });
        found.with_context(|| format!("{kind} was not run on {controllers} controllers, {mix:?}, {saving:?}"))
    }

    /// The speed relative to aggregate.
    fn speed(&self, kind: Kind, mix: Mix, saving: Saving) -> Result<f64> {
        let of = |kind| self.ran(kind, CONTROLLERS, mix, saving).map(|ran| ran.per_s);
        Ok(of(kind)? / of(Kind::Aggregate)?)
    }

    /// The part of the pool that was used, and the most that was stranded.
    fn filled(&self, kind: Kind) -> Result<[f64; 2]> {
        let found = self.0.iter().find_map(|(point, done)| match done {
            Done::Filled(filled) if point.config.method == kind.name() => Some([filled.used, filled.stranded]),
            _ => None,
        });
        found.with_context(|| format!("{kind} filled no pool"))
    }
}

pub fn judge(results: &Results<'_>) -> Result<Findings> {
    let mut findings = Findings::default();
    table_1(results, &mut findings)?;
    fig_9(results, &mut findings)?;
    table_2(results, &mut findings)?;
    costs(results, &mut findings)?;
    scaling(results, &mut findings)?;
    redirect(results, &mut findings)?;
    findings.tables.push(residuals(&numbers(results)?));
    Ok(findings)
}

/// The paper's numbers beside ours.
fn numbers(results: &Results<'_>) -> Result<Vec<(String, f64, f64)>> {
    let mut numbers = Vec::new();
    for (name, mix, kind, paper) in paper::TABLE_1 {
        numbers.push((format!("Table 1, {name}, {kind}"), paper, results.speed(kind, mix, Saving::Copy)?));
    }
    let ours = results.speed(Kind::AccessChange, writes(100), Saving::Copy)?;
    numbers.push(("Fig. 9, 100 %, access-change".to_owned(), paper::ACCESS_CHANGE_ALL_SAVES, ours));
    Ok(numbers)
}

fn table_1(results: &Results<'_>, findings: &mut Findings) -> Result<()> {
    let title = "Table 1: speed relative to aggregate";
    let mut table = Table::new("mixes", title, &["mix", "method", "paper", "speed"]);
    for (name, mix) in [("normal operation", NORMAL), ("backup", BACKUP)] {
        for kind in Kind::ALL {
            let row = paper::TABLE_1.into_iter().find(|(_, its, its_kind, _)| *its == mix && *its_kind == kind);
            let paper = row.map(|(_, _, _, paper)| paper).or((kind == Kind::Aggregate).then_some(1.0));
            let speed = results.speed(kind, mix, Saving::Copy)?;
            table.row([name.into(), kind.name().into(), paper.into(), speed.into()]);
            if let Some((_, _, _, paper)) = row {
                let name = format!("speed of {kind}, {name} (Table 1)");
                findings.criteria.push(Criterion::within(name, paper, speed, NEAR));
            }
        }
    }
    let lease = results.speed(Kind::Lease, NORMAL, Saving::Copy)?;
    findings.criteria.push(Criterion::at_least("ours: speed of lease, normal operation", lease, 0.999));
    let ours = json!({ "mark": "bar", "encoding": {
        "y": { "field": "speed", "type": "quantitative", "title": "speed relative to aggregate" },
        "color": { "field": "method", "type": "nominal", "title": null, "sort": null },
    }});
    let axes = json!({
        "x": { "field": "mix", "type": "nominal", "title": null, "sort": null, "axis": { "labelAngle": 0 } },
        "xOffset": { "field": "method", "sort": null },
    });
    let drawing = json!({ "encoding": axes, "layer": [ours, Figure::ticks_of_paper("paper")] });
    let caption = "Normal operation: all requests to PVOLs, 60 % of them reads, a tenth of the writes make a save copy. \
                   Backup: beside these, 40 % of the requests read SVOLs. The ticks are the paper's.";
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}

fn fig_9(results: &Results<'_>, findings: &mut Findings) -> Result<()> {
    let title = "Fig. 9: PVOL write speed relative to aggregate";
    let mut table = Table::new("save-ratio", title, &["save_ratio_percent", "method", "speed", "paper_speed"]);
    for (kind, percent) in Kind::ALL.into_iter().flat_map(|kind| RATIOS.map(|percent| (kind, percent))) {
        let speed = results.speed(kind, writes(percent), Saving::Copy)?;
        let paper = (kind == Kind::AccessChange && percent == 100).then_some(paper::ACCESS_CHANGE_ALL_SAVES);
        table.row([u64::from(percent).into(), kind.name().into(), speed.into(), paper.into()]);
    }
    let mut farthest: f64 = 0.0;
    for (percent, paper) in message::paper::SPEEDS {
        farthest = farthest.max((results.speed(Kind::Message, writes(percent), Saving::Copy)? - paper).abs());
    }
    let name = "one cost model: farthest that message is from its curve in Fig. 5, with the times of all else here";
    findings.criteria.push(Criterion::at_most(name, farthest, message::NEAR).against("its own curve"));
    let all_saves = |kind| results.speed(kind, writes(100), Saving::Copy);
    let criteria = &mut findings.criteria;
    let name = "speed of access-change at 100 % save copies (Fig. 9)";
    criteria.push(Criterion::within(name, paper::ACCESS_CHANGE_ALL_SAVES, all_saves(Kind::AccessChange)?, NEAR));
    let mut gains = Vec::new();
    for percent in RATIOS.into_iter().filter(|percent| *percent > 0) {
        let of = |kind| results.speed(kind, writes(percent), Saving::Copy);
        gains.push(of(Kind::AccessChange)? / of(Kind::Message)?);
    }
    let least = gains.into_iter().fold(f64::INFINITY, f64::min);
    let name = "speed of access-change over that of message, least over the save copy ratios from 10 % (Fig. 9)";
    let faster = Criterion::number(name, least, "above 1", least > 1.0).against("much faster at every ratio");
    criteria.push(faster);
    criteria.push(Criterion::at_least("ours: speed of lease at 100 % save copies", all_saves(Kind::Lease)?, 0.998));
    let ours = json!({ "mark": { "type": "line", "point": true }, "encoding": {
        "y": { "field": "speed", "type": "quantitative", "title": "speed relative to aggregate" },
        "color": { "field": "method", "type": "nominal", "title": null, "sort": null },
    }});
    let x = Figure::axis("save_ratio_percent", "writes that make a save copy, %");
    let dots = Figure::dots_of_paper("paper_speed", "the paper, access-change");
    let drawing = Figure::layers(x, json!({ "type": "quantitative" }), vec![ours, dots]);
    let caption = "All requests write to PVOLs. access-change reaches shared memory for free pool entries only, lease \
                   for a batch of them. The paper: access-change falls to about 0.90 where every write makes a save copy.";
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}

fn table_2(results: &Results<'_>, findings: &mut Findings) -> Result<()> {
    let title = "Table 2: use of the pool, filled by controllers of which each saves twice as fast as the next one";
    let columns = ["method", "paper_shares_the_pool", "used_when_full_percent", "stranded_at_most_percent"];
    let mut table = Table::new("pool", title, &columns);
    for kind in Kind::ALL {
        let paper = match kind {
            Kind::Aggregate => "no",
            Kind::Message | Kind::AccessChange => "yes",
            Kind::Lease => "-",
        };
        let [used, stranded] = results.filled(kind)?;
        table.row([kind.name().into(), paper.into(), (used * 100.0).into(), (stranded * 100.0).into()]);
        let name = format!("part of the pool used when {kind} finds no room (Table 2)");
        findings.criteria.push(match kind {
            Kind::Aggregate => Criterion::number(name, used, "below 0.9", used < 0.9).against("poor: it cannot share"),
            Kind::Lease => Criterion::at_least(format!("ours: {name}"), used, 1.0),
            _ => Criterion::at_least(name, used, 1.0).against("good: it can share"),
        });
    }
    let [_, stranded] = results.filled(Kind::Lease)?;
    findings.criteria.push(Criterion::at_most("ours: part of the pool stranded by lease, at most", stranded, 0.001));
    let drawing = json!({ "mark": { "type": "bar", "color": Figure::OURS }, "encoding": {
        "x": { "field": "method", "type": "nominal", "title": null, "sort": null, "axis": { "labelAngle": 0 } },
        "y": { "field": "used_when_full_percent", "type": "quantitative", "title": "used when full, %" },
    }});
    let caption = "The part of the pool in use when a save copy first finds no room. With aggregate each controller has \
                   a pool of its own, and the first to fill it has no use of what the others have free.";
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}

/// What each method promises to cost, counted.
fn costs(results: &Results<'_>, findings: &mut Findings) -> Result<()> {
    let columns = [
        "mix",
        "method",
        "shared_reads_a_thousand",
        "shared_updates_a_thousand",
        "messages_a_thousand",
        "drops_a_thousand",
        "hits_a_thousand",
        "saves_a_thousand",
    ];
    let mut table = Table::new("counters", "Counted in a thousand requests", &columns);
    for (name, mix) in [("normal operation", NORMAL), ("backup", BACKUP), ("writes, all save", writes(100))] {
        for kind in Kind::ALL {
            let ran = results.ran(kind, CONTROLLERS, mix, Saving::Copy)?;
            let counts = [ran.shared_reads, ran.shared_updates, ran.messages, ran.drops, ran.hits, ran.saves];
            let counts = counts.map(|count| Value::from(ran.a_thousand(count)));
            table.row([vec![name.into(), kind.name().into()], counts.to_vec()].concat());
        }
    }
    findings.tables.push(table);
    let ran = |kind| results.ran(kind, CONTROLLERS, writes(100), Saving::Copy);
    let criteria = &mut findings.criteria;
    let aggregate = ran(Kind::Aggregate)?;
    let all = aggregate.shared_accesses() + aggregate.messages + aggregate.drops;
    criteria.push(Criterion::at_most("shared accesses, messages and drops of aggregate", all as f64, 0.0));
    let message = ran(Kind::Message)?;
    let others = f64::from(CONTROLLERS - 1);
    let exactly = |name: &str, ours: f64, promised: f64| {
        let bound = format!("{promised}, within 1 %");
        Criterion::number(name, ours, bound, (ours - promised).abs() <= promised * 0.01)
    };
    criteria.push(exactly("messages a save copy, message", message.a_save(message.messages), others));
    // The entry and the index; and each entry that another took is claimed in vain, or read again, or both.
    let name = "shared accesses a save copy, message";
    criteria.push(Criterion::at_most(name, message.a_save(message.shared_accesses()), 2.0 + 2.0 * others));
    let access_change = ran(Kind::AccessChange)?;
    let name = "shared accesses a save copy, access-change: a search and an update";
    criteria.push(exactly(name, access_change.a_save(access_change.shared_accesses()), 2.0));
    let lease = ran(Kind::Lease)?;
    let name = "ours: shared accesses a save copy, lease";
    criteria.push(Criterion::at_most(name, lease.a_save(lease.shared_accesses()), 0.02));
    let told = access_change.messages + access_change.drops + lease.messages + lease.drops;
    criteria.push(Criterion::at_most("messages and drops of access-change and lease", told as f64, 0.0));
    Ok(())
}

/// Beyond the paper: more controllers.
fn scaling(results: &Results<'_>, findings: &mut Findings) -> Result<()> {
    let title = "Speed over that of one controller, normal operation";
    let mut table = Table::new("controllers", title, &["controllers", "method", "speed"]);
    let speed = |kind, controllers| -> Result<f64> {
        let of = |controllers| results.ran(kind, controllers, NORMAL, Saving::Copy).map(|ran| ran.per_s);
        Ok(of(controllers)? / of(1)?)
    };
    for (kind, controllers) in Kind::ALL.into_iter().flat_map(|kind| SCALES.map(|controllers| (kind, controllers))) {
        table.row([u64::from(controllers).into(), kind.name().into(), speed(kind, controllers)?.into()]);
    }
    let time = 2.0 / speed(Kind::Lease, 2)?;
    let name = "ours: time of a request with two controllers over that with one, lease";
    findings.criteria.push(Criterion::at_most(name, time, 1.05));
    for controllers in SCALES.into_iter().filter(|controllers| *controllers > 1) {
        let part = speed(Kind::Lease, controllers)? / f64::from(controllers);
        let name = format!("ours: speed of {controllers} controllers over {controllers} times that of one, lease");
        findings.criteria.push(Criterion::at_least(name, part, 0.99));
    }
    let drawing = json!({ "mark": { "type": "line", "point": true }, "encoding": {
        "x": { "field": "controllers", "type": "quantitative", "title": "controllers" },
        "y": { "field": "speed", "type": "quantitative", "title": "speed over one controller's" },
        "color": { "field": "method", "type": "nominal", "title": null, "sort": null },
    }});
    let caption = "Each controller has as many volumes and hosts as any other. Shared memory serves one access at a \
                   time; with message every save copy is work for all.";
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}

/// Beside the paper: the same where saving does not copy. No criterion: what is left of a request is so short that any
/// access to shared memory weighs more.
fn redirect(results: &Results<'_>, findings: &mut Findings) -> Result<()> {
    let title = "Saving by redirect: nothing is copied";
    let columns = ["mix", "method", "speed_over_aggregate_by_redirect", "speed_over_aggregate_by_copy"];
    let mut table = Table::new("redirect", title, &columns);
    let mixes = [("normal operation".to_owned(), NORMAL), ("backup".to_owned(), BACKUP)];
    let ratios = RATIOS.map(|percent| (format!("writes, {percent} % save"), writes(percent)));
    for (name, mix) in mixes.into_iter().chain(ratios) {
        let copied = results.ran(Kind::Aggregate, CONTROLLERS, mix, Saving::Copy)?;
        for kind in Kind::ALL {
            let per_s = results.ran(kind, CONTROLLERS, mix, Saving::Redirect)?.per_s;
            let speed = results.speed(kind, mix, Saving::Redirect)?;
            table.row([name.as_str().into(), kind.name().into(), speed.into(), (per_s / copied.per_s).into()]);
        }
    }
    findings.tables.push(table);
    Ok(())
}
