//! What snapshots cost: volumes beside qcow2 and reflinked files, all over NBD, before, right after and long after a
//! snapshot, with one and with a hundred; how long making one stops writes; and what making and deleting one takes.

mod costs;
mod stops;
mod subject;

use super::fio::{Access, Work, overwrite};
use super::report::{self, Aim, Samples, Verdict};
use super::{fio, machine};
use crate::{needs, shell};
use anyhow::{Result, ensure};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use subject::Subject;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each side, in MiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 256)]
    size: u64,
    /// Seconds of each measurement at most: each block is written once, and a fast side is done earlier.
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// How often each measurement is made, on new sides; medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Snapshots, where there are many.
    #[arg(long, default_value_t = 100)]
    snapshots: usize,
    /// Seconds that all sides are left alone after every block was overwritten in random order.
    #[arg(long, default_value_t = 20)]
    idle: u64,
    /// Only these parts.
    #[arg(long, value_delimiter = ',', value_parser = PARTS, default_values_t = PARTS.map(String::from))]
    part: Vec<String>,
    /// Only these sides.
    #[arg(long, value_delimiter = ',', value_parser = SIDES)]
    side: Vec<String>,
    /// Slow kura's disks down to a model: nvme, sata-ssd, hdd-7200, hdd-10k or mogi1996. The other sides have none, and are left out.
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    ground: super::Ground,
}

/// The sides beside each other; how long a snapshot stops writes; the time to make and to delete one.
const PARTS: [&str; 3] = ["sides", "stops", "costs"];

/// The sides, in the order of the table.
const SIDES: [&str; 6] = ["kura", "kura-copy", "qcow2-overlay", "qcow2-internal", "xfs-reflink", "btrfs-reflink"];

/// What is measured of one state.
struct Stage {
    when: When,
    works: &'static [Work],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// There is no snapshot yet.
    Before,
    /// Before each work a snapshot is made, with which there are so many.
    RightAfter(Count),
    /// The newest of so many snapshots holds every block, and is the only one to: all were overwritten since.
    LongAfter(Count),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Count {
    One,
    Many,
}

const STAGES: [Stage; 5] = [
    Stage {
        when: When::Before,
        works: &[small("4k write, before"), large("64k write, before"), read("128k read, fresh")],
    },
    Stage {
        when: When::RightAfter(Count::One),
        works: &[small("4k write, right after, one"), large("64k write, right after, one")],
    },
    Stage {
        when: When::LongAfter(Count::One),
        works: &[
            read("128k read, overwritten, one"),
            small("4k write, long after, one"),
            large("64k write, long after, one"),
        ],
    },
    Stage {
        when: When::RightAfter(Count::Many),
        works: &[small("4k write, right after, many"), large("64k write, right after, many")],
    },
    Stage {
        when: When::LongAfter(Count::Many),
        works: &[
            read("128k read, overwritten, many"),
            small("4k write, long after, many"),
            large("64k write, long after, many"),
        ],
    },
];

/// Each block is written at most once, so that right after a snapshot every write is the first to its block.
const fn small(name: &'static str) -> Work {
    Work::random(name, Access::WriteOnce, 16, 1)
}

const fn large(name: &'static str) -> Work {
    Work { block_kib: 64, ..small(name) }
}

const fn read(name: &'static str) -> Work {
    Work::sequential(name, Access::Read)
}

/// What the issue asks for.
fn aims() -> Vec<Aim> {
    let keep = |work, of, factor| Aim::Keep { work, of, ours: "kura", factor };
    let mut aims = Vec::new();
    for (right_after, overwritten) in [
        ("4k write, right after, one", "128k read, overwritten, one"),
        ("4k write, right after, many", "128k read, overwritten, many"),
    ] {
        // A write takes 1.2 times as long at most.
        aims.extend([keep(right_after, "4k write, before", 1.0 / 1.2), keep(overwritten, "128k read, fresh", 0.8)]);
        let peers = SIDES.iter().filter(|side| !side.starts_with("kura"));
        aims.extend(peers.map(|&peer| Aim::Reach { work: right_after, ours: "kura", peer, factor: 1.0 }));
    }
    aims
}

/// Measures, prints and judges. Misses are reported, not failures.
pub fn run(args: &Args) -> Result<()> {
    ensure!(shell::is_root(), "loop devices and mounts want root");
    needs::ensure_file_systems()?;
    let facts = machine::facts();
    let binary = args.ground.binary()?;
    let wants = |part: &str| args.part.iter().any(|wanted| wanted == part);
    let mut samples = Samples::default();
    for round in 0..if wants("sides") { args.rounds } else { 0 } {
        measure_sides(args, &binary, round, &mut samples)?;
    }
    let stops = if wants("stops") { stops::measure(args, &binary)? } else { Vec::new() };
    let costs = if wants("costs") { costs::measure(args, &binary)? } else { Vec::new() };
    let mut verdicts: Vec<Verdict> = aims().iter().filter_map(|aim| aim.judge(&samples)).collect();
    verdicts.extend(stops.iter().map(stops::Stopped::judge));
    verdicts.extend(costs::judge(&costs));
    println!("{}\n", machine::line(&facts));
    if let Some(model) = &args.model {
        println!("disks slowed down to the model {model}\n");
    }
    println!(
        "{} MiB a side, {} s a measurement at most, medians of {} rounds, {} s idle, many: {} snapshots; each cell: \
         rate (p50/p99 us, server CPU an I/O)\n",
        args.size, args.seconds, args.rounds, args.idle, args.snapshots
    );
    let works: Vec<Work> = STAGES.iter().flat_map(|stage| stage.works).copied().collect();
    let tables = [report::table(&samples, &works, &args.sides(), "kura"), stops::table(&stops), costs::table(&costs)];
    for (_, table) in PARTS.iter().zip(tables).filter(|(part, _)| wants(part)) {
        println!("{table}");
    }
    let settings = json!({
        "size_mib": args.size, "seconds": args.seconds, "rounds": args.rounds, "idle_s": args.idle,
        "snapshots": args.snapshots, "model": args.model, "stops": stops::json(&stops), "costs": costs::json(&costs),
    });
    report::finish("snapshot", facts, settings, &samples, &verdicts)
}

/// Brings new sides from stage to stage.
fn measure_sides(args: &Args, binary: &Path, round: usize, samples: &mut Samples) -> Result<()> {
    let folder = args.ground.folder("snapshot")?;
    let size_bytes = args.size << 20;
    let mut subjects = Vec::new();
    for name in args.sides() {
        eprintln!("writing {} MiB to {name}", args.size);
        let subject = Subject::make(name, size_bytes, (binary, args.model.as_deref()), &folder.path().join(name))?;
        fio::fill(&subject.side.target, size_bytes)?;
        subject.side.settle()?;
        // Whoever serves for the first time is slower: that is in no figure.
        subject.side.measure(&small("4k write, first of all"), size_bytes, args.seconds)?;
        subjects.push(subject);
    }
    for stage in &STAGES {
        if let When::LongAfter(count) = stage.when {
            for subject in &mut subjects {
                subject.renew(args.count(count), size_bytes)?;
                overwrite(&subject.side.target, size_bytes)?;
                subject.side.settle()?;
            }
            std::thread::sleep(Duration::from_secs(args.idle));
        }
        measure(args, stage, round, &mut subjects, samples)?;
    }
    Ok(())
}

/// Does every work of a stage on every side, beginning with another side each round.
fn measure(args: &Args, stage: &Stage, round: usize, subjects: &mut [Subject], samples: &mut Samples) -> Result<()> {
    let sides = subjects.len();
    for work in stage.works {
        for index in 0..sides {
            let subject = &mut subjects[(index + round) % sides];
            if let When::RightAfter(count) = stage.when {
                subject.renew(args.count(count), args.size << 20)?;
            }
            let sample = subject.side.measure(work, args.size << 20, args.seconds)?;
            eprintln!("round {} {:28} {:14} {:9.0}/s", round + 1, work.name, subject.side.name, sample.figures.iops);
            samples.add(work.name, subject.side.name, sample);
        }
    }
    Ok(())
}

impl Args {
    fn sides(&self) -> Vec<&'static str> {
        let is_wanted = |side: &&str| self.side.is_empty() || self.side.iter().any(|wanted| wanted == side);
        let has_model = |side: &&str| self.model.is_none() || side.starts_with("kura");
        SIDES.into_iter().filter(is_wanted).filter(has_model).collect()
    }

    fn count(&self, count: Count) -> usize {
        match count {
            Count::One => 1,
            Count::Many => self.snapshots,
        }
    }
}
