//! What recording costs: a volume while its requests are recorded, beside the same volume while they are not.

use super::fio::{Access, Work, fill};
use super::kura::Kura;
use super::report::{self, Samples, Verdict, median};
use super::side::{Sample, Side};
use super::{kura, machine};
use anyhow::Result;
use serde_json::json;
use std::path::PathBuf;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of the volume, in GiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 2)]
    size: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// How often each pair is measured.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Where the files lie: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A release build that is there already.
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// What is done to which volume. Reads of a volume on which nothing was written meet no device: there, what recording
/// costs weighs most.
const WORKS: [(Work, &str); 9] = [
    (Work::random("read QD1", Access::Read, 1, 1), "bench"),
    (Work::random("write QD1", Access::Write, 1, 1), "bench"),
    (Work::random("read QD16", Access::Read, 16, 1), "bench"),
    (Work::random("write QD16", Access::Write, 16, 1), "bench"),
    (Work::random("read 4 x QD16", Access::Read, 16, 4), "bench"),
    (Work::random("write 4 x QD16", Access::Write, 16, 4), "bench"),
    (Work::sequential("128k read", Access::Read), "bench"),
    (Work::sequential("128k write", Access::Write), "bench"),
    (Work::random("read of zeroes QD16", Access::Read, 16, 1), "zeroes"),
];

const NAMES: [&str; 2] = ["off", "on"];

/// The least share of the rate without recording that a volume keeps with it.
const KEEPS: f64 = 0.98;

/// Measures pairs, the two of each one right after the other, and judges the median of their ratios: what the machine
/// does to both is in neither.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let folder = super::folder("trace", args.dir.as_deref())?;
    let binary = args.binary.clone().map_or_else(kura::build, Ok)?;
    let size_bytes = args.size << 30;
    let kura = Kura::start(&binary, &folder.path().join("kura"), size_bytes)?;
    let [bench, zeroes] = <[Side; 2]>::try_from(kura.sides(size_bytes)?).map_err(|_| anyhow::anyhow!("two volumes"))?;
    fill(&bench.target, size_bytes)?;
    bench.settle()?;
    let mut samples = Samples::default();
    let mut verdicts = Vec::new();
    for (work, volume) in &WORKS {
        let side = if *volume == "bench" { &bench } else { &zeroes };
        let mut ratios = Vec::new();
        for round in 0..args.rounds {
            let [off, on] = pair(args, &kura, work, (volume, side), round)?;
            ratios.push(on.figures.iops / off.figures.iops);
            let [off_iops, on_iops] = [off, on].map(|sample| sample.figures.iops);
            eprintln!("round {:2} {:20} {off_iops:9.0}/s off {on_iops:9.0}/s on", round + 1, work.name);
            samples.add(work.name, NAMES[0], off);
            samples.add(work.name, NAMES[1], on);
        }
        verdicts.push(judge(work.name, &ratios));
    }
    println!("{}\n", machine::line(&facts));
    println!(
        "{} GiB, {} s a measurement, {} rounds; each cell: median rate (p50/p99 us, server CPU an I/O)\n",
        args.size, args.seconds, args.rounds
    );
    println!("{}", report::table(&samples, &WORKS.map(|(work, _)| work), &NAMES, "on"));
    println!("{}", report::verdicts(&verdicts));
    let settings = json!({"size_gib": args.size, "seconds": args.seconds, "rounds": args.rounds});
    println!("samples: {}", report::keep("trace", facts, settings, &samples, &verdicts)?.display());
    Ok(())
}

/// Measures a work without recording and with it.
fn pair(args: &Args, kura: &Kura, work: &Work, (volume, side): (&str, &Side), round: usize) -> Result<[Sample; 2]> {
    let without = || side.measure(work, args.size << 30, args.seconds);
    let with = || {
        kura.ask(&["trace", "record", volume])?;
        let sample = without()?;
        kura.ask(&["trace", "delete", volume])?;
        Ok::<_, anyhow::Error>(sample)
    };
    // Who comes first changes from round to round.
    if round.is_multiple_of(2) {
        let off = without()?;
        return Ok([off, with()?]);
    }
    let on = with()?;
    Ok([without()?, on])
}

/// By the median of the rounds; how far they are apart says what it is worth.
fn judge(work: &str, ratios: &[f64]) -> Verdict {
    let kept = median(ratios.iter().copied());
    let [least, most] = [f64::min, f64::max].map(|of| ratios.iter().copied().fold(f64::NAN, of));
    Verdict {
        aim: format!("{work}: at least {KEEPS} x the rate without recording, median of the rounds (least to most)"),
        ours: format!("{kept:.3} x ({least:.3} to {most:.3})"),
        holds: kept >= KEEPS,
    }
}
