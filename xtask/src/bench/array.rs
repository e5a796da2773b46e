//! Layouts beside each other on pools of six files, and Btrfs's RAID over loop devices on six files of the same file
//! system: whole, with a disk away, and how long that takes to be rebuilt.

use super::fio::{Access, Target, Work, fill};
use super::image::Mounted;
use super::kura::Kura;
use super::machine;
use super::report::{self, Aim, Samples};
use super::side::Side;
use crate::shell;
use anyhow::{Result, ensure};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each volume, in MiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 2048)]
    size: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    ground: super::Ground,
}

/// kura's layouts, and whether they outlive a disk.
const LAYOUTS: [(&str, bool); 4] = [("none", false), ("mirror", true), ("raid5", true), ("hot-mirror", true)];
/// Btrfs's profiles of data; its metadata are mirrored.
const BTRFS: [(&str, &str); 2] = [("btrfs-raid1", "raid1"), ("btrfs-raid5", "raid5")];
/// Files of a side.
const DISKS: usize = 6;
/// The one that fails, counted from 1.
const FAILS: usize = 3;

const WORKS: [Work; 4] = [
    work("read QD16", Access::Read, 4),
    work("write QD16", Access::Write, 4),
    work("128k read", Access::Read, 128),
    work("128k write", Access::Write, 128),
];
/// With a disk away: kura's layouts only.
const DEGRADED: [Work; 2] =
    [work("degraded read QD16", Access::Read, 4), work("degraded write QD16", Access::Write, 4)];
/// A pool that a disk is away from, and that is in no haste to be whole again: of each controller, an extent in a minute.
const UNHURRIED: &str = "journal = '128M'\nrebuild_rate = '64K'";
const AIMS: [Aim; 2] = [
    Aim::Reach { work: "write QD16", ours: "hot-mirror", peer: "raid5", factor: 3.0 },
    Aim::Reach { work: "write QD16", ours: "hot-mirror", peer: "mirror", factor: 0.9 },
];

const fn work(name: &'static str, access: Access, block_kib: u32) -> Work {
    Work { name, access, random: block_kib == 4, block_kib, depth: 16, connections: 1 }
}

/// Measures and prints.
pub fn run(args: &Args) -> Result<()> {
    ensure!(shell::is_root(), "loop devices and mounts want root");
    let facts = machine::facts();
    let folder = args.ground.folder("array")?;
    let binary = args.ground.binary()?;
    let size_bytes = args.size << 20;
    // Beside a copy of the data, and what each layout has more: labels, journals, and room to rebuild in.
    let disk_bytes = size_bytes / 2 + (512 << 20);
    let mut arrays = Vec::new();
    for (layout, outlives) in LAYOUTS {
        let kura = Kura::on(&binary, &folder.path().join(layout), DISKS, disk_bytes, "journal = '128M'")?;
        let side = kura.layout(layout, size_bytes)?;
        arrays.push(Array { side, outlives, kind: Kind::Kura(kura) });
    }
    for (name, profile) in BTRFS {
        arrays.push(Btrfs::make(&folder.path().join(name), name, profile, disk_bytes)?);
    }
    for array in &arrays {
        write_all(&array.side, size_bytes)?;
    }
    let mut samples = Samples::default();
    rounds(args, &WORKS, &arrays, &mut samples)?;
    arrays.retain(|array| array.outlives);
    let mut rebuilds = BTreeMap::new();
    for array in &mut arrays {
        let begun = Instant::now();
        array.rebuild(disk_bytes)?;
        rebuilds.insert(array.side.name, begun.elapsed().as_secs_f64());
    }
    drop(arrays);
    for (layout, _) in LAYOUTS.into_iter().filter(|(_, outlives)| *outlives) {
        let folder = args.ground.folder("array")?;
        let kura = Kura::on(&binary, folder.path(), DISKS, disk_bytes, UNHURRIED)?;
        let side = kura.layout(layout, size_bytes)?;
        write_all(&side, size_bytes)?;
        kura.ask(&["disk", "fail", &FAILS.to_string()])?;
        for work in &DEGRADED {
            samples.add(work.name, layout, side.measure(work, size_bytes, args.seconds)?);
        }
    }

    let names: Vec<&str> = LAYOUTS.iter().chain(&BTRFS.map(|(name, _)| (name, true))).map(|(name, _)| *name).collect();
    println!("{}\n", machine::line(&facts));
    println!(
        "{} MiB a side on {DISKS} files, {} s a measurement, medians of {} rounds; each cell: rate (p50/p99 us, server CPU \
         an I/O)\n",
        args.size, args.seconds, args.rounds
    );
    let works: Vec<Work> = WORKS.into_iter().chain(DEGRADED).collect();
    println!("{}", report::table(&samples, &works, &names, "hot-mirror"));
    let verdicts: Vec<_> = AIMS.iter().filter_map(|aim| aim.judge(&samples)).collect();
    for (name, rebuild_s) in &rebuilds {
        println!("rebuild, {name}: {rebuild_s:.1} s");
    }
    let settings =
        json!({ "size_mib": args.size, "seconds": args.seconds, "rounds": args.rounds, "rebuild_s": rebuilds });
    report::finish("array", facts, settings, &samples, &verdicts)
}

/// Writes every byte of a side.
fn write_all(side: &Side, size_bytes: u64) -> Result<()> {
    eprintln!("writing {} MiB to {}", size_bytes >> 20, side.name);
    fill(&side.target, size_bytes)?;
    side.settle()
}

/// Does every work on every array once a round, beginning with another array each time.
fn rounds(args: &Args, works: &[Work], arrays: &[Array], samples: &mut Samples) -> Result<()> {
    for round in 0..args.rounds {
        for work in works {
            for index in 0..arrays.len() {
                let side = &arrays[(index + round) % arrays.len()].side;
                let sample = side.measure(work, args.size << 20, args.seconds)?;
                eprintln!("round {} {:12} {:12} {:9.0}/s", round + 1, work.name, side.name, sample.figures.iops);
                samples.add(work.name, side.name, sample);
            }
        }
    }
    Ok(())
}

/// A side that a disk can leave.
struct Array {
    side: Side,
    outlives: bool,
    kind: Kind,
}

enum Kind {
    Kura(Kura),
    Btrfs(Btrfs),
}

impl Array {
    /// Loses a disk; returns when all is there twice again: in kura's free space, or on a sparse file in the disk's place.
    fn rebuild(&mut self, disk_bytes: u64) -> Result<()> {
        match &mut self.kind {
            Kind::Kura(kura) => kura.ask(&["disk", "fail", &FAILS.to_string(), "--wait"]).map(drop),
            Kind::Btrfs(btrfs) => btrfs.rebuild(disk_bytes),
        }
    }
}

/// A Btrfs over loop devices.
struct Btrfs {
    folder: PathBuf,
    mounted: Mounted,
}

impl Btrfs {
    fn make(folder: &Path, name: &'static str, profile: &str, disk_bytes: u64) -> Result<Array> {
        let at = folder.join("mnt");
        std::fs::create_dir_all(&at)?;
        let mut mounted = Mounted::at(at)?;
        let mut devices = Vec::new();
        for number in 0..DISKS {
            let file = folder.join(format!("disk{number}"));
            shell::output(Command::new("fallocate").arg("--length").arg(disk_bytes.to_string()).arg(&file))?;
            devices.push(mounted.attach(&file)?);
        }
        let mut mkfs = shell::command("mkfs.btrfs", ["--quiet", "--data", profile, "--metadata", "raid1"]);
        shell::output(mkfs.args(&devices))?;
        mounted.mount(&devices[0])?;
        let side = Side { name, target: Target::File(mounted.at.join("file")), server: None };
        Ok(Array { side, outlives: true, kind: Kind::Btrfs(Self { folder: folder.to_owned(), mounted }) })
    }

    /// Replaces a disk that is read only where nothing else has what it holds.
    fn rebuild(&mut self, disk_bytes: u64) -> Result<()> {
        let file = self.folder.join("spare");
        std::fs::File::create(&file)?.set_len(disk_bytes)?;
        let spare = self.mounted.attach(&file)?;
        let mut replace = shell::command("btrfs", ["replace", "start", "-B", "-r", "-f", &FAILS.to_string(), &spare]);
        shell::output(replace.arg(&self.mounted.at)).map(drop)
    }
}
