//! Volumes over NBD beside the raw file, `qemu-nbd` and `nbdkit`.

use super::fio::{Access, Work, fill};
use super::kura::Kura;
use super::report::{self, Aim, Samples, Verdict};
use super::side::Side;
use super::{kura, machine};
use crate::shell;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each side, in GiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 4)]
    size: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Only works whose name has this in it.
    #[arg(long)]
    only: Option<String>,
    /// Only these sides.
    #[arg(long, value_delimiter = ',', value_parser = SIDES)]
    side: Vec<String>,
    #[command(flatten)]
    ground: super::Ground,
}

const SIDES: [&str; 6] = ["raw", "qemu-nbd", "nbdkit-file", "nbdkit-memory", "kura", "kura-zeroes"];

const WORKS: &[Work] = &[
    Work::random("read QD1", Access::Read, 1, 1),
    Work::random("read QD16", Access::Read, 16, 1),
    Work::random("read 4 x QD16", Access::Read, 16, 4),
    Work::random("write QD1", Access::Write, 1, 1),
    Work::random("write QD16", Access::Write, 16, 1),
    Work::random("write 4 x QD16", Access::Write, 16, 4),
    Work::random("write + flush", Access::WriteSync, 1, 1),
    Work::sequential("128k read", Access::Read),
    Work::sequential("128k write", Access::Write),
];

const AIMS: &[Aim] = &[
    reach("read QD16", "kura", "qemu-nbd", 1.5),
    reach("write QD16", "kura", "qemu-nbd", 1.5),
    reach("read QD1", "kura", "qemu-nbd", 1.2),
    reach("write QD1", "kura", "qemu-nbd", 1.2),
    reach("write + flush", "kura", "qemu-nbd", 1.2),
    reach("128k read", "kura", "qemu-nbd", 1.0),
    reach("128k write", "kura", "qemu-nbd", 1.0),
    reach("128k write", "kura", "nbdkit-file", 1.0),
    reach("read QD16", "kura", "raw", 0.8),
    reach("write QD16", "kura", "raw", 0.8),
    reach("write QD1", "kura", "nbdkit-file", 1.0),
    reach("write QD16", "kura", "nbdkit-file", 1.0),
    reach("read QD1", "kura-zeroes", "nbdkit-memory", 1.0),
    reach("read QD16", "kura-zeroes", "nbdkit-memory", 1.0),
    reach("read 4 x QD16", "kura-zeroes", "nbdkit-memory", 1.0),
    reach("128k read", "kura-zeroes", "nbdkit-memory", 1.0),
    Aim::Spend { work: "read QD16", ours: "kura", cpu_us: 25.0 },
    Aim::Spend { work: "write QD16", ours: "kura", cpu_us: 25.0 },
];

const fn reach(work: &'static str, ours: &'static str, peer: &'static str, factor: f64) -> Aim {
    Aim::Reach { work, ours, peer, factor }
}

/// The most a first start may take, in seconds.
const STARTUP_S: f64 = 2.0;

/// The most memory the default server may have after its 1 GiB volume was written and read, in MiB.
const MEMORY_MIB: f64 = 100.0;

/// Measures, prints, judges and keeps the result. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let works: Vec<Work> = WORKS.iter().filter(|work| args.wants_work(work.name)).copied().collect();
    if works.is_empty() {
        bail!("no work's name has {:?} in it", args.only.as_deref().unwrap_or_default());
    }
    let folder = args.ground.folder("nbd")?;
    // Before anything else runs: compiling takes both the processor and the page cache.
    let build = || args.ground.binary();
    let binary = (args.wants_side("kura") || args.wants_side("kura-zeroes")).then(build).transpose()?;
    let sides = prepare(args, binary.as_deref(), folder.path())?;
    let mut samples = Samples::default();
    for round in 0..args.rounds {
        for work in &works {
            // Each round begins with another side, so that none always follows the same neighbour.
            for index in 0..sides.len() {
                let side = &sides[(index + round) % sides.len()];
                if side.name == "kura-zeroes" && work.access != Access::Read {
                    continue;
                }
                let sample = side.measure(work, args.size_bytes(), args.seconds)?;
                eprintln!("round {} {:15} {:14} {:9.0}/s", round + 1, work.name, side.name, sample.figures.iops);
                samples.add(work.name, side.name, sample);
            }
        }
    }
    let mut verdicts: Vec<Verdict> = AIMS.iter().filter_map(|aim| aim.judge(&samples)).collect();
    let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
    drop(sides);
    if let Some(binary) = &binary {
        verdicts.extend(of_the_default_server(binary, folder.path())?);
    }
    println!("{}\n", machine::line(&facts));
    println!(
        "{} GiB a side, {} s a measurement, medians of {} rounds; each cell: rate (p50/p99 us, server CPU an I/O)\n",
        args.size, args.seconds, args.rounds
    );
    println!("{}", report::table(&samples, &works, &names, "kura"));
    let settings = json!({"size_gib": args.size, "seconds": args.seconds, "rounds": args.rounds});
    report::finish("nbd", facts, settings, &samples, &verdicts)
}

impl Args {
    fn size_bytes(&self) -> u64 {
        self.size << 30
    }

    fn wants_work(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    fn wants_side(&self, name: &str) -> bool {
        self.side.is_empty() || self.side.iter().any(|side| side == name)
    }
}

/// Starts the sides, kura where there is a binary of it, each with a file of its own, every byte of which is allocated and written.
fn prepare(args: &Args, binary: Option<&Path>, folder: &Path) -> Result<Vec<Side>> {
    let size = args.size_bytes();
    let file = |name: &str| allocated(&folder.join(format!("{name}.raw")), size);
    let socket = |name: &str| folder.join(format!("{name}.sock"));
    let mut sides = Vec::new();
    for name in SIDES.into_iter().filter(|name| args.wants_side(name)) {
        match name {
            "raw" => sides.push(Side::raw(&file(name)?)),
            "qemu-nbd" => sides.push(Side::qemu_nbd(&file(name)?, &socket(name))?),
            "nbdkit-file" => sides.push(Side::nbdkit_file(&file(name)?, &socket(name))?),
            "nbdkit-memory" => sides.push(Side::nbdkit_memory(size, &socket(name))?),
            _ => {}
        }
    }
    if let Some(binary) = binary {
        let kura = Kura::start(binary, &folder.join("kura"), size)?;
        let all = kura.sides(size)?;
        sides.extend(all.into_iter().filter(|side| args.wants_side(side.name)));
    }
    for side in sides.iter().filter(|side| side.name != "kura-zeroes") {
        eprintln!("writing {} GiB to {}", args.size, side.name);
        fill(&side.target, size)?;
        side.settle()?;
    }
    Ok(sides)
}

/// Makes the file of a side; its path.
pub fn allocated(path: &Path, size_bytes: u64) -> Result<PathBuf> {
    shell::output(Command::new("fallocate").arg("--length").arg(size_bytes.to_string()).arg(path))
        .context("making the file of a side")?;
    Ok(path.to_path_buf())
}

/// What the server takes to start and to hold, as a user meets it first: nothing configured.
fn of_the_default_server(binary: &Path, folder: &Path) -> Result<Vec<Verdict>> {
    let start = kura::default_start(binary, &folder.join("default"))?;
    let at_rest = format!("{:.0} MiB at rest, {:.0} MiB after", start.memory_at_rest_mib, start.memory_after_mib);
    Ok(vec![
        Verdict {
            aim: format!("first start under {STARTUP_S} s"),
            ours: format!("{:.2} s", start.ready_s),
            holds: start.ready_s < STARTUP_S,
        },
        Verdict {
            aim: format!("default server under {MEMORY_MIB} MiB after its 1 GiB volume was written and read"),
            ours: at_rest,
            holds: start.memory_after_mib < MEMORY_MIB,
        },
    ])
}
