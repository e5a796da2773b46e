//! What it costs controllers to share a pool: CPU an I/O of a server with one controller, and of one with two whose volumes
//! are used at once.

use super::fio::{self, Access, Figures, Work, fill};
use super::kura::Kura;
use super::report::{self, Samples, Verdict};
use super::side::{Sample, Side};
use super::{kura, machine};
use crate::shell;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::{Path, PathBuf};

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each volume, in MiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each measurement is made, on new pools; medians are compared.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Where the files lie: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A build that is there already.
    #[arg(long)]
    binary: Option<PathBuf>,
}

const SIDES: [(&str, usize); 2] = [("one", 1), ("two", 2)];
const VOLUMES: [&str; 2] = ["v0", "v1"];
/// What a request may cost with two controllers, over what it costs with one alone.
const FACTOR: f64 = 1.05;

/// Requests a second of each client whose requests' cost is compared: what a core serves easily. Where clients ask for all
/// they can get, they and the controllers wait for each other's cores, and a request costs more with every thread.
const RATE: u32 = 8000;

const WORKS: [Work; 4] = [
    work("read, 8,000/s", Access::Read),
    work("write, 8,000/s", Access::Write),
    work("read, all it can", Access::Read),
    work("write, all it can", Access::Write),
];
/// So many of those keep to the rate.
const RATED: usize = 2;

const fn work(name: &'static str, access: Access) -> Work {
    Work { name, access, random: true, block_kib: 4, depth: 4, connections: 1 }
}

/// Measures, prints and judges. Misses are reported, not failures.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let binary = args.binary.clone().map_or_else(kura::build, Ok)?;
    let (mut samples, mut told) = (Samples::default(), Vec::new());
    for round in 0..args.rounds {
        for turn in 0..SIDES.len() {
            let (name, controllers) = SIDES[(turn + round) % SIDES.len()];
            let folder = tempfile::Builder::new().prefix("controllers-").tempdir_in(match &args.dir {
                Some(dir) => dir.clone(),
                None => shell::target("bench")?,
            })?;
            let (kura, volumes) = served(args, &binary, folder.path(), controllers)?;
            for (at, work) in WORKS.iter().enumerate() {
                let rate = (at < RATED).then_some(RATE);
                let sample = measure(work, rate, args, &volumes)?;
                eprintln!("round {} {:17} {name:4} {:6.2} us", round + 1, work.name, sample.cpu_us.unwrap_or(f64::NAN));
                samples.add(work.name, name, sample);
            }
            if round == 0 {
                told.push(kura.ask(&["controller", "stats"])?);
            }
        }
    }
    let verdicts: Vec<Verdict> = WORKS[..RATED].iter().filter_map(|work| judge(&samples, work.name)).collect();
    println!("{}\n", machine::line(&facts));
    println!(
        "{} MiB a volume, {} s a measurement, medians of {} rounds; each cell: rate (p50/p99 us, server CPU an I/O)\n",
        args.size, args.seconds, args.rounds
    );
    println!("{}", report::table(&samples, &WORKS, &SIDES.map(|(name, _)| name), "two"));
    println!("{}", report::verdicts(&verdicts));
    println!("```\n{}\n```\n", told.join("\n").trim_end());
    let settings = json!({ "size_mib": args.size, "seconds": args.seconds, "rounds": args.rounds });
    println!("samples: {}", report::keep("controllers", facts, settings, &samples, &verdicts)?.display());
    Ok(())
}

/// A server with so many controllers, each with a volume that is full.
fn served(args: &Args, binary: &Path, folder: &Path, controllers: usize) -> Result<(Kura, Vec<Side>)> {
    let size = args.size << 20;
    let room = (2 * size + size / 4) + (3 << 30);
    let pool = format!("journal = '512M'\ncontrollers = {controllers}");
    let kura = Kura::on(binary, &folder.join("data"), 1, room, &pool)?;
    let mut volumes = Vec::new();
    for (controller, name) in VOLUMES[..controllers].iter().enumerate() {
        kura.ask(&["volume", "create", name, "--size", &size.to_string(), "--layout", "none", "--thin"])?;
        kura.ask(&["volume", "move", name, "--controller", &controller.to_string()])?;
        let side = kura.export(name);
        fill(&side.target, size)?;
        side.settle()?;
        volumes.push(side);
    }
    Ok((kura, volumes))
}

/// Does `work` on all volumes at once: what they did together, and the server's CPU time for each I/O of it.
fn measure(work: &Work, rate: Option<u32>, args: &Args, volumes: &[Side]) -> Result<Sample> {
    let server = volumes.first().and_then(|side| side.server.clone()).context("a server without a volume")?;
    let before_us = server.cpu_us()?;
    let targets: Vec<_> = volumes.iter().map(|side| side.target.clone()).collect();
    let (size_bytes, seconds) = (args.size << 20, args.seconds);
    let client = |target| match rate {
        Some(rate) => fio::run_at(work, target, size_bytes, seconds, rate),
        None => fio::run(work, target, size_bytes, seconds),
    };
    let each: Vec<Figures> = std::thread::scope(|scope| {
        let clients: Vec<_> = targets.iter().map(|target| scope.spawn(move || client(target))).collect();
        let ended = |client: std::thread::ScopedJoinHandle<'_, Result<Figures>>| {
            client.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a client's thread panicked")))
        };
        clients.into_iter().map(ended).collect::<Result<_>>()
    })?;
    let after_us = server.cpu_us()?;
    server.settle()?;
    let sum = |of: fn(&Figures) -> f64| each.iter().map(of).sum::<f64>();
    let worst = |of: fn(&Figures) -> f64| each.iter().map(of).fold(0.0, f64::max);
    let ios = sum(|figures| figures.ios);
    let figures = Figures {
        ios,
        iops: sum(|figures| figures.iops),
        mb_s: sum(|figures| figures.mb_s),
        p50_us: worst(|figures| figures.p50_us),
        p99_us: worst(|figures| figures.p99_us),
    };
    Ok(Sample { figures, cpu_us: Some((after_us - before_us) / ios) })
}

fn judge(samples: &Samples, work: &'static str) -> Option<Verdict> {
    let [one, two] = SIDES.map(|(name, _)| samples.median(work, name)?.cpu_us);
    let factor = two? / one?;
    let aim = format!("{work}: CPU an I/O with two controllers at most {FACTOR} of one's alone");
    Some(Verdict { aim, ours: format!("{factor:.3}"), holds: factor <= FACTOR })
}
