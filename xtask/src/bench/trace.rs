//! What recording costs: a volume while its requests are recorded, beside the same volume while they are not.

use super::fio::{Access, Work, fill};
use super::kura::Kura;
use super::report::{self, Samples, Verdict, median};
use super::side::Side;
use super::{kura, machine};
use crate::shell;
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
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each pair is measured.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Where the files lie: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// What is done to which volume. Reads of a volume on which nothing was written meet no device: there, what recording
/// costs weighs most.
const WORKS: [(Work, &str); 3] = [
    (random("read QD16", Access::Read), "bench"),
    (random("write QD16", Access::Write), "bench"),
    (random("read of zeroes QD16", Access::Read), "zeroes"),
];

const fn random(name: &'static str, access: Access) -> Work {
    Work { name, access, random: true, block_kib: 4, depth: 16, connections: 1 }
}

const NAMES: [&str; 2] = ["off", "on"];

/// The least share of the rate without recording that a volume keeps with it.
const KEEPS: f64 = 0.98;

/// Measures pairs, the two of each one right after the other, and judges the median of their ratios: what the machine
/// does to both is in neither.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let folder = tempfile::Builder::new().prefix("trace-").tempdir_in(match &args.dir {
        Some(dir) => dir.clone(),
        None => shell::target("bench")?,
    })?;
    let binary = kura::build()?;
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
            let mut iops = [0.0; 2];
            for turn in 0..2 {
                // Who comes first changes from round to round.
                let on = (round + turn) % 2;
                if on == 1 {
                    kura.ask(&["trace", "record", volume])?;
                }
                let sample = side.measure(work, size_bytes, args.seconds)?;
                if on == 1 {
                    kura.ask(&["trace", "delete", volume])?;
                }
                iops[on] = sample.figures.iops;
                samples.add(work.name, NAMES[on], sample);
            }
            ratios.push(iops[1] / iops[0]);
            eprintln!("round {:2} {:20} {:9.0}/s off {:9.0}/s on", round + 1, work.name, iops[0], iops[1]);
        }
        let kept = median(ratios);
        let aim = format!("{}: at least {KEEPS} x the rate without recording, median of the rounds", work.name);
        verdicts.push(Verdict { aim, ours: format!("{kept:.3} x"), holds: kept >= KEEPS });
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
