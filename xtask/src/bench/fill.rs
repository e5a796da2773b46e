//! A new volume written from its start to its end, beside the raw file, `qemu-nbd` and `nbdkit`; and one with parity.

use super::fio::{Access, Work, fill};
use super::kura::Kura;
use super::report::{self, Aim, Samples, Verdict};
use super::side::Side;
use super::{machine, nbd};
use anyhow::Result;
use serde_json::json;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes that are written, in GiB.
    #[arg(long, default_value_t = 4)]
    size: u64,
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    ground: super::Ground,
}

/// In order, each block once, and a flush at the end.
const fn whole(name: &'static str, block_kib: u32, depth: u32) -> Work {
    Work { name, access: Access::Fill, random: false, block_kib, depth, connections: 1 }
}

/// A volume of the default layout, in a pool of so many files.
const ARRAY: &str = "kura-array";
const DISKS: usize = 6;

const WORKS: [Work; 2] = [whole("128k, QD16", 128, 16), whole("1M, QD4", 1024, 4)];

const fn reach(work: &'static str, peer: &'static str) -> Aim {
    Aim::Reach { work, ours: "kura", peer, factor: 1.0 }
}

const AIMS: [Aim; 4] = [
    reach("128k, QD16", "qemu-nbd"),
    reach("128k, QD16", "nbdkit-file"),
    reach("1M, QD4", "qemu-nbd"),
    reach("1M, QD4", "nbdkit-file"),
];

/// Measures, prints, judges and keeps the result.
pub fn run(args: &Args) -> Result<()> {
    let (facts, size) = (machine::facts(), args.size << 30);
    let folder = args.ground.folder("fill")?;
    let folder = folder.path();
    let binary = args.ground.binary()?;
    let file = |name: &str| nbd::allocated(&folder.join(format!("{name}.raw")), size);
    let peers = [
        Side::raw(&file("raw")?),
        Side::qemu_nbd(&file("qemu-nbd")?, &folder.join("qemu-nbd.sock"))?,
        Side::nbdkit_file(&file("nbdkit-file")?, &folder.join("nbdkit-file.sock"))?,
    ];
    // To those it is the same whether a block was written before: the first time a file system has more to do.
    for side in &peers {
        fill(&side.target, size)?;
        side.settle()?;
    }
    let alone = Kura::start(&binary, &folder.join("kura"), size)?;
    let array = Kura::on(&binary, &folder.join(ARRAY), DISKS, size / 2 + (1 << 30), "journal = '512M'")?;
    let names: Vec<&str> = peers.iter().map(|side| side.name).chain(["kura", ARRAY]).collect();
    let mut samples = Samples::default();
    for round in 0..args.rounds {
        for work in &WORKS {
            // Each round begins with another side, so that none always follows the same neighbour.
            for index in 0..names.len() {
                let name = names[(index + round) % names.len()];
                let sample = match peers.iter().find(|side| side.name == name) {
                    Some(side) => side.measure(work, size, 0)?,
                    None => {
                        let is_array = name == ARRAY;
                        let (kura, layout) = if is_array { (&array, "hot-mirror") } else { (&alone, "none") };
                        let side = kura.thin(name, layout, size, 0)?;
                        let sample = side.measure(work, size, 0)?;
                        kura.ask(&["volume", "delete", name])?;
                        side.settle()?;
                        sample
                    }
                };
                eprintln!("round {} {:12} {name:12} {:6.0} MB/s", round + 1, work.name, sample.figures.mb_s);
                samples.add(work.name, name, sample);
            }
        }
    }
    let verdicts: Vec<Verdict> = AIMS.iter().filter_map(|aim| aim.judge(&samples)).collect();
    println!("{}\n", machine::line(&facts));
    println!("{} GiB, medians of {} rounds; each cell: rate (p50/p99 us, server CPU an I/O)\n", args.size, args.rounds);
    println!("{}", report::table(&samples, &WORKS, &names, "kura"));
    let settings = json!({"size_gib": args.size, "rounds": args.rounds});
    report::finish("fill", facts, settings, &samples, &verdicts)
}
