//! Medians, ratios and aims, as Markdown for people and JSON for programs.

use super::fio::{Figures, Work};
use super::side::Sample;
use crate::shell;
use anyhow::Result;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Every sample of a run, by work and side.
#[derive(Default)]
pub struct Samples {
    taken: BTreeMap<(&'static str, &'static str), Vec<Sample>>,
}

impl Samples {
    pub fn add(&mut self, work: &'static str, side: &'static str, sample: Sample) {
        self.taken.entry((work, side)).or_default().push(sample);
    }

    /// The median of each figure over the rounds; none where this was not measured.
    pub fn median(&self, work: &'static str, side: &'static str) -> Option<Sample> {
        let samples = self.taken.get(&(work, side))?;
        let of = |figure: fn(&Sample) -> f64| median(samples.iter().map(figure));
        let cpu: Vec<f64> = samples.iter().filter_map(|sample| sample.cpu_us).collect();
        Some(Sample {
            figures: Figures {
                ios: of(|s| s.figures.ios),
                iops: of(|s| s.figures.iops),
                mb_s: of(|s| s.figures.mb_s),
                p50_us: of(|s| s.figures.p50_us),
                p99_us: of(|s| s.figures.p99_us),
                max_us: of(|s| s.figures.max_us),
            },
            cpu_us: (!cpu.is_empty()).then(|| median(cpu)),
        })
    }

    fn json(&self) -> Value {
        let sample = |sample: &Sample| {
            let figures = &sample.figures;
            json!({
                "iops": figures.iops, "mb_s": figures.mb_s, "p50_us": figures.p50_us, "p99_us": figures.p99_us,
                "max_us": figures.max_us, "ios": figures.ios, "server_cpu_us_per_io": sample.cpu_us,
            })
        };
        let rows = self.taken.iter().map(|((work, side), samples)| {
            json!({"work": work, "side": side, "rounds": samples.iter().map(sample).collect::<Vec<_>>()})
        });
        rows.collect()
    }
}

/// The middle of the values: of an even number the mean of the two in the middle, of none NaN.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

/// What is asked of us, what it came to, and whether that holds.
pub struct Verdict {
    pub aim: String,
    pub ours: String,
    pub holds: bool,
}

/// An aim between two sides of one work, or for one side's CPU time.
#[derive(Clone, Copy)]
pub enum Aim {
    /// `ours` reaches `factor` times the operations a second of `peer`.
    Reach { work: &'static str, ours: &'static str, peer: &'static str, factor: f64 },
    /// `ours` does `work` at `factor` times the rate at which it does `of`.
    Keep { work: &'static str, of: &'static str, ours: &'static str, factor: f64 },
    /// The server of `ours` spends at most this much CPU time an I/O, in microseconds.
    Spend { work: &'static str, ours: &'static str, cpu_us: f64 },
}

impl Aim {
    /// Judges the aim; none when its sides were not both measured.
    pub fn judge(&self, samples: &Samples) -> Option<Verdict> {
        match *self {
            Self::Reach { work, ours, peer, factor } => {
                let us = samples.median(work, ours)?.figures.iops;
                let them = samples.median(work, peer)?.figures.iops;
                let aim = format!("{work}: {ours} at least {factor} x {peer}");
                Some(Verdict { aim, ours: format!("{:.2} x", us / them), holds: us >= factor * them })
            }
            Self::Keep { work, of, ours, factor } => {
                let (now, then) = (samples.median(work, ours)?.figures.iops, samples.median(of, ours)?.figures.iops);
                let aim = format!("{work}: {ours} at least {} x {of}", (factor * 100.0).round() / 100.0);
                Some(Verdict { aim, ours: format!("{:.2} x", now / then), holds: now >= factor * then })
            }
            Self::Spend { work, ours, cpu_us } => {
                let spent_us = samples.median(work, ours)?.cpu_us?;
                let aim = format!("{work}: {ours} at most {cpu_us} us of server CPU an I/O");
                Some(Verdict { aim, ours: format!("{spent_us:.1} us"), holds: spent_us <= cpu_us })
            }
        }
    }
}

/// One row a work: operations a second (or MB/s for large blocks), p50/p99 and CPU of each side, and the ratios of
/// `ours` to the sides that are not ours.
pub fn table(samples: &Samples, works: &[Work], sides: &[&'static str], ours: &'static str) -> String {
    let peers: Vec<&str> = sides.iter().copied().filter(|side| !side.starts_with(ours)).collect();
    let names = sides.iter().map(ToString::to_string).chain(peers.iter().map(|peer| format!("{ours} / {peer}")));
    let mut text = row("", names);
    text += &row("---", (0..sides.len() + peers.len()).map(|_| "---".into()));
    for work in works {
        let cells = sides.iter().map(|side| {
            let sample = samples.median(work.name, side);
            sample.map_or_else(String::new, |sample| cell(work, &sample))
        });
        let iops = |side| samples.median(work.name, side).map(|sample| sample.figures.iops);
        let ratios = peers.iter().map(|peer| {
            let rates = iops(ours).zip(iops(peer));
            rates.map_or_else(String::new, |(us, them)| format!("{:.2}", us / them))
        });
        text += &row(work.name, cells.chain(ratios));
    }
    text
}

/// A table of texts.
pub fn plain(heads: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&heads.iter().map(ToString::to_string).collect::<Vec<_>>());
    text += &line(&vec!["---".into(); heads.len()]);
    text.extend(rows.into_iter().map(|row| line(&row)));
    text
}

fn row(first: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: Vec<String> = cells.collect();
    format!("| {first} | {} |\n", cells.join(" | "))
}

fn cell(work: &Work, sample: &Sample) -> String {
    let figures = &sample.figures;
    let rate = match work.block_kib {
        0..=16 => format!("{:.1}k", figures.iops / 1000.0),
        _ => format!("{:.0} MB/s", figures.mb_s),
    };
    let cpu = sample.cpu_us.map(|cpu_us| format!(", {cpu_us:.0} us")).unwrap_or_default();
    format!("{rate} ({:.0}/{:.0}{cpu})", figures.p50_us, figures.p99_us)
}

/// One row an aim.
pub fn verdicts(verdicts: &[Verdict]) -> String {
    let holds = |verdict: &Verdict| if verdict.holds { "yes" } else { "no" };
    let row = |verdict: &Verdict| vec![verdict.aim.clone(), verdict.ours.clone(), holds(verdict).into()];
    plain(&["aim", "ours", "holds"], verdicts.iter().map(row))
}

/// Prints the verdicts, keeps everything under `target/bench/`, and says where.
pub fn finish(bench: &str, facts: Value, settings: Value, samples: &Samples, judged: &[Verdict]) -> Result<()> {
    println!("{}", verdicts(judged));
    let judged: Vec<Value> = judged.iter().map(|v| json!({"aim": v.aim, "ours": v.ours, "holds": v.holds})).collect();
    let result =
        json!({"bench": bench, "machine": facts, "settings": settings, "samples": samples.json(), "aims": judged});
    let file = shell::target("bench")?.join(format!("{bench}.json"));
    std::fs::write(&file, serde_json::to_string_pretty(&result)?)?;
    println!("samples: {}", file.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(ours: &[f64], peer: &[f64]) -> Samples {
        let mut samples = Samples::default();
        for (side, rates) in [("ours", ours), ("peer", peer)] {
            for iops in rates {
                let figures = Figures { ios: 1.0, iops: *iops, mb_s: 0.0, p50_us: 1.0, p99_us: 2.0, max_us: 3.0 };
                samples.add("w", side, Sample { figures, cpu_us: Some(*iops) });
            }
        }
        samples
    }

    #[test]
    fn the_median_is_of_the_rounds() {
        assert!((median([3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn an_aim_holds_at_its_border_and_not_below() {
        let aim = Aim::Reach { work: "w", ours: "ours", peer: "peer", factor: 1.5 };
        assert!(aim.judge(&samples(&[15.0, 1.0, 99.0], &[10.0])).unwrap().holds);
        assert!(!aim.judge(&samples(&[14.9], &[10.0])).unwrap().holds);
        assert!(aim.judge(&samples(&[15.0], &[])).is_none(), "an aim is not judged without its peer");
        let cpu = Aim::Spend { work: "w", ours: "ours", cpu_us: 25.0 };
        assert!(cpu.judge(&samples(&[25.0], &[])).unwrap().holds);
        assert!(!cpu.judge(&samples(&[25.1], &[])).unwrap().holds);
    }
}
