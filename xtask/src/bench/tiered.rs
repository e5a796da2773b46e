//! Tiers over real files: what a hit costs beside a volume without tiers, and how long reads take while regions move
//! between the files and slow ones, which a model of a disk slows down.

use super::fio::{Access, Work, distribution, fill};
use super::kura::Kura;
use super::report::{Samples, Verdict, median};
use super::side::Side;
use anyhow::{Result, bail};
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// What a hit must keep of the rate of a volume without tiers.
const KEEPS: f64 = 0.98;
/// Reads a second while moves go on: half of what a modelled pair of disks can do.
const RATE: u32 = 100;
/// The longest that a volume may take to be moved.
const MOVED_S: u64 = 120;

/// A read that hits.
pub const HIT: Work = Work::random("read QD16", Access::Read, 16, 1);
const READS: Work = Work { name: "read QD4", depth: 4, ..HIT };

/// Files of a pool: two fast ones, and two slow ones of which the configuration says more.
fn disks(size_bytes: u64, slow: &'static str) -> Vec<(String, &'static str, u64)> {
    let fast = (0..2).map(|number| (format!("fast{number}"), "class = 'fast'", size_bytes + (512 << 20)));
    // Not smaller than the fast ones.
    let slow = (0..2).map(|number| (format!("slow{number}"), slow, 3 * size_bytes + (512 << 20)));
    fast.chain(slow).collect()
}

const POOL: &str = "controllers = 1\njournal = '64M'";

fn up_bytes(kura: &Kura) -> Result<u64> {
    let status: serde_json::Value = serde_json::from_str(&kura.ask(&["tier", "status", "--json"])?)?;
    Ok(status["valid_bytes"].as_u64().unwrap_or(0))
}

/// Holds a volume in a tier, and waits until so many bytes are up.
fn pin(kura: &Kura, volume: &str, to: &str, arrived: impl Fn(u64) -> bool) -> Result<()> {
    kura.ask(&["tier", "pin", volume, to])?;
    let begun = Instant::now();
    while !arrived(up_bytes(kura)?) {
        if begun.elapsed() > Duration::from_secs(MOVED_S) {
            bail!("volume {volume} is not in the {to} tier after {MOVED_S} s");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Reads of a volume that lies on the fast tier beside reads of one in a pool without tiers, in turns.
pub fn hit(binary: &Path, folder: &Path, size_bytes: u64, seconds: u32, rounds: usize) -> Result<(Samples, Verdict)> {
    let with = Kura::of(binary, &folder.join("with"), &disks(size_bytes, "class = 'slow'"), POOL, "")?;
    let off = "[tier]\npolicy = 'off'\n";
    let without = Kura::of(binary, &folder.join("without"), &disks(size_bytes, "class = 'slow'"), POOL, off)?;
    let sides: [Side; 2] =
        [without.volume("without", "mirror", size_bytes)?, with.volume("with", "mirror", size_bytes)?];
    for side in &sides {
        fill(&side.target, size_bytes)?;
        side.settle()?;
    }
    pin(&with, "with", "fast", |up| up == size_bytes)?;
    let (mut samples, mut ratios) = (Samples::default(), Vec::new());
    for round in 0..rounds {
        let mut iops = [0.0; 2];
        for turn in 0..2 {
            let at = (round + turn) % 2;
            let sample = sides[at].measure(&HIT, size_bytes, seconds)?;
            iops[at] = sample.figures.iops;
            samples.add(HIT.name, sides[at].name, sample);
        }
        eprintln!("round {:2} {:9.0}/s without {:9.0}/s with", round + 1, iops[0], iops[1]);
        ratios.push(iops[1] / iops[0]);
    }
    let kept = median(ratios);
    let aim = format!("a hit: at least {KEEPS} x the rate of a volume without tiers, median of the rounds");
    Ok((samples, Verdict { aim, ours: format!("{kept:.3} x"), holds: kept >= KEEPS }))
}

/// How long reads take: by name, the microseconds by per cent of them.
pub type Distributions = Vec<(&'static str, Vec<(f64, f64)>)>;

/// Reads of a volume on slow disks while nothing moves, while another volume goes up and down, and of that one itself.
pub fn moving(binary: &Path, folder: &Path, size_bytes: u64, seconds: u32) -> Result<Distributions> {
    let kura =
        Kura::of(binary, &folder.join("slow"), &disks(size_bytes, "class = 'slow', model = 'hdd-7200'"), POOL, "")?;
    let still = kura.volume("still", "mirror", size_bytes)?;
    let moved = kura.volume("moved", "mirror", size_bytes)?;
    for side in [&still, &moved] {
        fill(&side.target, size_bytes)?;
        kura.ask(&["tier", "pin", side.name, "slow"])?;
    }
    pin(&kura, "moved", "slow", |up| up == 0)?;
    still.settle()?;
    let reads = |side: &Side| {
        let target = side.target.clone();
        std::thread::spawn(move || distribution(&READS, &target, size_bytes, seconds, RATE))
    };
    let mut all = Vec::new();
    for (name, side, moves) in [
        ("nothing moves", &still, false),
        ("another volume moves", &still, true),
        ("the volume itself moves", &moved, true),
    ] {
        let reads = reads(side);
        while moves && !reads.is_finished() {
            pin(&kura, "moved", "fast", |up| up == size_bytes || reads.is_finished())?;
            pin(&kura, "moved", "slow", |up| up == 0)?;
        }
        let Ok(found) = reads.join() else { bail!("reading panicked") };
        all.push((name, found?));
    }
    Ok(all)
}

/// A row a distribution: some of its percentiles, in milliseconds.
pub fn table(all: &Distributions) -> String {
    let percents = [10.0, 50.0, 90.0, 95.0, 99.0, 99.9];
    let heads: Vec<String> = percents.iter().map(|percent| format!("p{percent} ms")).collect();
    let mut text = format!("| reads while | {} |\n|{}\n", heads.join(" | "), " --- |".repeat(percents.len() + 1));
    for (name, points) in all {
        let at =
            |percent: f64| points.iter().find(|point| point.0 >= percent).map_or(f64::NAN, |point| point.1 / 1000.0);
        let cells: Vec<String> = percents.iter().map(|percent| format!("{:.2}", at(*percent))).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
    text
}
