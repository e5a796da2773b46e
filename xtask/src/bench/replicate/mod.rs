//! Copies of file trees: kura beside rsync, fpsync, xargs and rclone, each with four workers where it has workers; into a
//! directory, to daemons on the loopback, or over a link that is far.
//!
//! Every round, each side in its turn makes a copy anew, does it again with nothing changed, and again with one per cent
//! changed. All contents are in the page cache.

mod far;
mod sites;
mod trees;

use super::machine;
use super::report::{Verdict, median, verdicts};
use crate::{needs, shell};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use sites::{Place, Way, remove};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only these trees: d1, d2, d3.
    #[arg(long, value_delimiter = ',', default_values = ["d1", "d2", "d3"])]
    tree: Vec<String>,
    /// Only sides whose name has this in it.
    #[arg(long)]
    side: Option<String>,
    /// The way to the copies.
    #[arg(long, default_value = "local")]
    way: Way,
    #[command(flatten)]
    ground: super::Ground,
}

const SIDES: [&str; 9] = [
    "rsync -a",
    "xargs rsync",
    "fpsync",
    "rclone",
    "kura, rsync by size",
    "kura, rsync balanced",
    "kura",
    "kura, durable",
    "kura, in place",
];
/// On the loopback also this, as all others but rclone go there without TLS.
const PLAIN: &str = "kura, plain";
const PHASES: [&str; 3] = ["cold", "unchanged", "1 % changed"];

/// What of a side was measured in a phase of a tree.
#[derive(Clone, Copy)]
struct Sample {
    seconds: f64,
    /// Of kura: the worker that worked longest over the mean, where more than one worked, and bytes of contents that were sent.
    balance: Option<f64>,
    sent_bytes: Option<u64>,
}

type Samples = BTreeMap<(String, &'static str, &'static str), Vec<Sample>>;

/// Measures, prints and keeps the result.
pub fn run(args: &Args) -> Result<()> {
    needs::ensure()?;
    let facts = machine::facts();
    let binary = args.ground.binary()?;
    let folder = args.ground.folder("replicate")?;
    let place = Place::new(fs::canonicalize(binary)?, folder.path(), args.way)?;
    let plain = (args.way == Way::Loopback).then_some(PLAIN);
    // Far away it takes several round trips a file, half an hour for D2's.
    let is_hopeless = |side: &str| args.way == Way::Far && side == "rclone";
    let wanted = |side: &&str| !is_hopeless(side) && args.side.as_ref().is_none_or(|part| side.contains(&**part));
    let sides: Vec<&'static str> = SIDES.into_iter().chain(plain).filter(wanted).collect();
    let mut samples = Samples::new();
    for tree in &args.tree {
        for round in 0..args.rounds {
            measure(&place, tree, round, &sides, &mut samples)?;
        }
    }
    println!("{}\n\n{}", machine::line(&facts), table(&args.tree, &sides, &samples, |sample| Some(sample.seconds), 3));
    println!("The worker that worked longest, over the mean:\n");
    println!("{}", table(&args.tree, &ours(&sides), &samples, |sample| sample.balance, 2));
    println!("MB of contents sent:\n");
    let sent = |sample: &Sample| Some(sample.sent_bytes? as f64 / 1e6);
    println!("{}", table(&args.tree, &ours(&sides), &samples, sent, 1));
    println!("{}", verdicts(&judge(args.way, &samples)));
    keep(args.way, &facts, &samples)
}

fn ours(sides: &[&'static str]) -> Vec<&'static str> {
    sides.iter().copied().filter(|side| side.starts_with("kura")).collect()
}

fn keep(way: Way, facts: &Value, samples: &Samples) -> Result<()> {
    let row = |sample: &Sample| {
        let Sample { seconds, balance, sent_bytes } = sample;
        json!({"seconds": seconds, "balance": balance, "sent_bytes": sent_bytes})
    };
    let rows: Vec<_> = samples
        .iter()
        .map(|((t, p, s), v)| json!({"tree": t, "phase": p, "side": s, "samples": v.iter().map(row).collect::<Vec<_>>()}))
        .collect();
    let way = format!("{way:?}").to_lowercase();
    let file = shell::target("bench")?.join(format!("replicate-{way}.json"));
    let all = json!({"bench": "replicate", "way": way, "machine": facts, "samples": rows});
    fs::write(&file, serde_json::to_string_pretty(&all)?)?;
    println!("every sample is in {}", file.display());
    Ok(())
}

/// Every side once: a copy anew, the same again, and again after a change. A copy does not outlive its side's turn, for
/// what the page cache can hold is little.
fn measure(place: &Place, tree: &str, round: usize, sides: &[&'static str], samples: &mut Samples) -> Result<()> {
    let source = place.folder.join("source");
    remove(&source)?;
    trees::grow(tree, &source)?;
    for index in 0..sides.len() {
        // Each round begins with another side, so that none always follows the same neighbour.
        let side = sides[(index + round) % sides.len()];
        place.clear()?;
        for phase in PHASES {
            if phase == PHASES[2] {
                trees::change(tree, &source, round * sides.len() + index)?;
            }
            settle()?;
            let mut command = place.command(side, &source)?;
            let began = Instant::now();
            let output = command.stdin(Stdio::null()).output()?;
            let seconds = began.elapsed().as_secs_f64();
            if !output.status.success() {
                let said = [output.stderr, output.stdout].concat();
                bail!("{side}: {}: {}", output.status, String::from_utf8_lossy(&said));
            }
            let sample = Sample { seconds, ..of_summary(&output.stdout) };
            eprintln!("round {} {tree} {phase:12} {side:22} {seconds:7.3} s", round + 1);
            samples.entry((tree.to_owned(), phase, side)).or_default().push(sample);
        }
    }
    Ok(())
}

/// What kura says of its run.
fn of_summary(text: &[u8]) -> Sample {
    let said: Value = serde_json::from_slice(text).unwrap_or_default();
    let workers = said["workers"].as_array().into_iter().flatten();
    let busy: Vec<f64> = workers.filter_map(|worker| worker["seconds"].as_f64()).collect();
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    // What is little is one list: a second process would take longer to start.
    let is_shared = busy.iter().filter(|seconds| **seconds > 0.0).count() > 1;
    let balance = is_shared.then(|| busy.iter().copied().fold(0.0, f64::max) / mean);
    Sample { seconds: 0.0, balance, sent_bytes: said["sent_bytes"].as_u64() }
}

/// Nothing of one side's writes may be left to do while another one is measured; nor is a file so young that kura looks at it
/// once more.
fn settle() -> Result<()> {
    std::thread::sleep(Duration::from_secs(3));
    shell::output(&mut Command::new("sync")).map(drop)
}

/// One row a side: a figure cold / unchanged / changed of each tree.
fn table(
    trees: &[String],
    sides: &[&'static str],
    samples: &Samples,
    figure: impl Fn(&Sample) -> Option<f64> + Copy,
    digits: usize,
) -> String {
    let mut text =
        format!("| {} | {} |\n| --- |{}\n", PHASES.join(" / "), trees.join(" | "), " --- |".repeat(trees.len()));
    for side in sides {
        let cells = trees.iter().map(|tree| {
            let of = |phase| {
                middle(samples, tree, phase, side, figure).map_or("-".to_owned(), |value| format!("{value:.digits$}"))
            };
            PHASES.map(of).join(" / ")
        });
        text += &["| ", side, " | ", &cells.collect::<Vec<_>>().join(" | "), " |\n"].concat();
    }
    text
}

fn middle(
    samples: &Samples,
    tree: &str,
    phase: &'static str,
    side: &'static str,
    figure: impl Fn(&Sample) -> Option<f64>,
) -> Option<f64> {
    let figures: Vec<f64> = samples.get(&(tree.to_owned(), phase, side))?.iter().filter_map(figure).collect();
    (!figures.is_empty()).then(|| median(figures))
}

/// What is asked: seconds at most. Far away, what is new goes at the link's rate, or nearly.
const AIMS: [(Way, &str, &str, &str, f64); 13] = [
    (Way::Local, "d1", "cold", "kura", 1.3),
    (Way::Local, "d2", "cold", "kura", 1.2),
    (Way::Local, "d1", "unchanged", "kura", 0.05),
    (Way::Local, "d2", "unchanged", "kura", 0.05),
    (Way::Local, "d3", "unchanged", "kura", 0.05),
    (Way::Local, "d3", "1 % changed", "kura", 1.6),
    (Way::Loopback, "d3", "1 % changed", "kura", 1.6),
    (Way::Loopback, "d3", "1 % changed", "kura, in place", 1.6),
    (Way::Far, "d1", "cold", "kura", 13.6),
    (Way::Far, "d2", "cold", "kura", 1.7),
    (Way::Far, "d3", "cold", "kura", 19.7),
    (Way::Far, "d2", "unchanged", "kura", 0.3),
    (Way::Far, "d3", "1 % changed", "kura", 1.6),
];

/// What it may take more until all is durable, and what may be sent of a changed D3.
const DURABLE_S: f64 = 1.0;
const SENT_MB: f64 = 25.0;

fn judge(way: Way, samples: &Samples) -> Vec<Verdict> {
    let mut judged = Vec::new();
    let seconds = |tree: &str, phase, side| middle(samples, tree, phase, side, |sample| Some(sample.seconds));
    for (_, tree, phase, side, most) in AIMS.into_iter().filter(|aim| aim.0 == way) {
        if let Some(value) = seconds(tree, phase, side) {
            let aim = format!("{tree} {phase}: {side} at most {most} s");
            judged.push(Verdict { aim, ours: format!("{value:.3} s"), holds: value <= most });
        }
    }
    for tree in ["d1", "d2", "d3"] {
        let cold = |side| seconds(tree, PHASES[0], side);
        if let Some((durable, begun)) = cold("kura, durable").zip(cold("kura")) {
            let (aim, more) = (format!("{tree} cold: durable at most {DURABLE_S} s later"), durable - begun);
            judged.push(Verdict { aim, ours: format!("{more:.2} s"), holds: more <= DURABLE_S });
        }
    }
    // Where kura is at both ends, blocks that both have are not sent.
    let sent = middle(samples, "d3", PHASES[2], "kura", |sample| Some(sample.sent_bytes? as f64 / 1e6));
    if let Some(sent) = sent.filter(|_| way != Way::Local) {
        let aim = format!("d3 {}: kura sends at most {SENT_MB} MB", PHASES[2]);
        judged.push(Verdict { aim, ours: format!("{sent:.1} MB"), holds: sent <= SENT_MB });
    }
    for (tree, phase) in ["d1", "d2", "d3"].into_iter().flat_map(|tree| PHASES.map(|phase| (tree, phase))) {
        // First in every column, among those that make nothing durable.
        let peers = SIDES[..4].iter().filter_map(|side| Some((seconds(tree, phase, side)?, side)));
        let best = peers.min_by(|one, other| one.0.total_cmp(&other.0));
        for (side, factor) in [("kura", 1.0), (PLAIN, 1.0), ("kura, rsync balanced", 1.05)] {
            if let (Some((peer, name)), Some(ours)) = (best, seconds(tree, phase, side)) {
                let aim = format!("{tree} {phase}: {side} at most {factor} x the best of the others ({name})");
                judged.push(Verdict { aim, ours: format!("{:.2} x", ours / peer), holds: ours <= factor * peer });
            }
        }
        let most = if phase == PHASES[0] { 1.05 } else { 1.2 };
        let balance = middle(samples, tree, phase, "kura, rsync balanced", |sample| sample.balance);
        if let Some(balance) = balance.filter(|_| phase != PHASES[1]) {
            let aim = format!("{tree} {phase}: rsync's workers work at most {most} x their mean");
            judged.push(Verdict { aim, ours: format!("{balance:.2} x"), holds: balance <= most });
        }
    }
    judged
}
