//! What snapshots cost: volumes beside qcow2 and reflinked files, all over NBD, before, right after and long after a
//! snapshot, with few of them and with a hundred.

use super::fio::{Access, Work, overwrite};
use super::image::mount;
use super::kura::Kura;
use super::process::Process;
use super::report::{self, Aim, Samples, Verdict};
use super::side::{Side, uri};
use super::{fio, kura, machine};
use crate::{needs, shell};
use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of each side, in MiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 1024)]
    size: u64,
    /// Seconds of each measurement.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// How often each measurement is made, on new sides; medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Snapshots at the end.
    #[arg(long, default_value_t = 100)]
    snapshots: usize,
    /// Seconds that all sides are left alone after every block was overwritten in random order.
    #[arg(long, default_value_t = 60)]
    idle: u64,
    /// Where the files lie: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
    /// A release build that is there already.
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// The sides, in the order of the table.
const SIDES: [&str; 6] = ["kura", "kura-copy", "qcow2-overlay", "qcow2-internal", "xfs-reflink", "btrfs-reflink"];

/// What is measured of one state, each work after a snapshot of its own where there is to be one.
struct Stage {
    name: &'static str,
    works: &'static [Work],
    /// Before each work a snapshot is made.
    snapshot: bool,
}

const STAGES: [Stage; 4] = [
    Stage {
        name: "before",
        works: &[small("4k write, before"), large("64k write, before"), read("128k read, fresh")],
        snapshot: false,
    },
    Stage {
        name: "right after",
        works: &[small("4k write, right after"), large("64k write, right after")],
        snapshot: true,
    },
    Stage {
        name: "long after",
        works: &[read("128k read, overwritten"), small("4k write, long after"), large("64k write, long after")],
        snapshot: false,
    },
    Stage {
        name: "many",
        works: &[small("4k write, right after, many"), large("64k write, right after, many")],
        snapshot: true,
    },
];

const fn small(name: &'static str) -> Work {
    Work { name, access: Access::Write, random: true, block_kib: 4, depth: 16, connections: 1 }
}

const fn large(name: &'static str) -> Work {
    Work { block_kib: 64, ..small(name) }
}

const fn read(name: &'static str) -> Work {
    Work { name, access: Access::Read, random: false, block_kib: 128, depth: 16, connections: 1 }
}

/// What the issue asks for.
fn aims() -> Vec<Aim> {
    let right_after = "4k write, right after";
    let keep = |work, of| Aim::Keep { work, of, ours: "kura", factor: 0.8 };
    let above = SIDES.iter().filter(|side| !side.starts_with("kura"));
    let above = above.map(|&peer| Aim::Reach { work: right_after, ours: "kura", peer, factor: 1.0 });
    [keep(right_after, "4k write, before"), keep("128k read, overwritten", "128k read, fresh")]
        .into_iter()
        .chain(above)
        .collect()
}

/// Measures, prints and judges. Misses are reported, not failures.
pub fn run(args: &Args) -> Result<()> {
    ensure!(shell::is_root(), "loop devices and mounts want root");
    needs::ensure_file_systems()?;
    let facts = machine::facts();
    let binary = args.binary.clone().map_or_else(kura::build, Ok)?;
    let (mut samples, mut stops) = (Samples::default(), Vec::new());
    for round in 0..args.rounds {
        let folder = tempfile::Builder::new().prefix("snapshot-").tempdir_in(match &args.dir {
            Some(dir) => dir.clone(),
            None => shell::target("bench")?,
        })?;
        let mut subjects = Vec::new();
        for name in SIDES {
            eprintln!("writing {} MiB to {name}", args.size);
            let subject = Subject::make(name, args, &binary, &folder.path().join(name))?;
            fio::fill(&subject.side.target, args.size << 20)?;
            subject.side.settle()?;
            subjects.push(subject);
        }
        for stage in &STAGES {
            for subject in &mut subjects {
                subject.bring_to(stage.name, args)?;
            }
            if stage.name == "long after" {
                std::thread::sleep(Duration::from_secs(args.idle));
            }
            measure(args, stage, round, &mut subjects, &mut samples)?;
        }
        for subject in &mut subjects {
            if let Some(each) = subject.stops(args)? {
                stops.push((subject.side.name, each));
            }
        }
    }
    let works: Vec<Work> = STAGES.iter().flat_map(|stage| stage.works).copied().collect();
    let mut verdicts: Vec<Verdict> = aims().iter().filter_map(|aim| aim.judge(&samples)).collect();
    verdicts.extend(["kura", "kura-copy"].map(|side| judge_stops(side, &stops)));
    println!("{}\n", machine::line(&facts));
    println!(
        "{} MiB a side, {} s a measurement, medians of {} rounds, {} s idle, many: {} snapshots; each cell: rate (p50/p99 us, \
         server CPU an I/O)\n",
        args.size, args.seconds, args.rounds, args.idle, args.snapshots
    );
    println!("{}", report::table(&samples, &works, &SIDES, "kura"));
    println!("{}", report::verdicts(&verdicts));
    let settings = json!({
        "size_mib": args.size, "seconds": args.seconds, "rounds": args.rounds, "idle_s": args.idle,
        "snapshots": args.snapshots
    });
    println!("samples: {}", report::keep("snapshot", facts, settings, &samples, &verdicts)?.display());
    Ok(())
}

/// Stops of writes for snapshots.
#[derive(Clone, Copy, Default)]
struct Stops {
    count: u64,
    longest_ms: f64,
}

/// What a snapshot may stop writes for.
const STOP_MS: f64 = 10.0;

fn judge_stops(side: &str, all: &[(&str, Stops)]) -> Verdict {
    let of_side = || all.iter().filter(|(name, _)| *name == side).map(|(_, stops)| stops);
    let count: u64 = of_side().map(|stops| stops.count).sum();
    let longest_ms = of_side().map(|stops| stops.longest_ms).fold(0.0, f64::max);
    Verdict {
        aim: format!("{side}: a snapshot stops writes for at most {STOP_MS} ms"),
        ours: format!("{longest_ms:.3} ms, the longest of {count}"),
        holds: count > 0 && longest_ms <= STOP_MS,
    }
}

/// Does every work of a stage on every side, beginning with another side each round.
fn measure(args: &Args, stage: &Stage, round: usize, subjects: &mut [Subject], samples: &mut Samples) -> Result<()> {
    let sides = subjects.len();
    for work in stage.works {
        for index in 0..sides {
            let subject = &mut subjects[(index + round) % sides];
            if stage.snapshot {
                subject.snapshot()?;
            }
            let sample = subject.side.measure(work, args.size << 20, args.seconds)?;
            eprintln!("round {} {:28} {:14} {:9.0}/s", round + 1, work.name, subject.side.name, sample.figures.iops);
            samples.add(work.name, subject.side.name, sample);
        }
    }
    Ok(())
}

/// A side whose snapshots can be made.
struct Subject {
    side: Side,
    folder: PathBuf,
    /// Snapshots made.
    made: usize,
    kind: Kind,
}

enum Kind {
    Kura(Kura),
    /// A qcow2 file over that of before, by `qemu-nbd`.
    Overlay,
    /// Snapshots within one qcow2 file.
    Internal,
    /// Copies of a file that share its blocks, on a file system of its own.
    Reflink(Mounted),
}

/// A mounted file system, unmounted when dropped.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = shell::output(Command::new("umount").arg(&self.0)) {
            eprintln!("{error:#}");
        }
    }
}

/// qcow2's best case for overlays.
const QCOW2: &str = "extended_l2=on,cluster_size=128k";

impl Subject {
    fn make(name: &'static str, args: &Args, binary: &Path, folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let (size, room_mib) = ((args.size << 20).to_string(), args.size * 8 + 2048);
        let kind = match name {
            "kura" | "kura-copy" => {
                let saving = if name == "kura" { "redirect" } else { "copy" };
                let pool = format!("journal = '512M'\nsaving = '{saving}'");
                let kura = Kura::on(binary, &folder.join("data"), 1, room_mib << 20, &pool)?;
                let side = Side { name, ..kura.layout("none", args.size << 20)? };
                return Ok(Self { side, folder: folder.to_owned(), made: 0, kind: Kind::Kura(kura) });
            }
            "qcow2-overlay" | "qcow2-internal" => {
                let mut create = Command::new("qemu-img");
                create.args(["create", "-q", "-f", "qcow2", "-o", QCOW2]).arg(folder.join("layer0.qcow2")).arg(&size);
                shell::output(&mut create)?;
                if name == "qcow2-overlay" { Kind::Overlay } else { Kind::Internal }
            }
            _ => {
                let (image, at) = (folder.join("image"), folder.join("mnt"));
                std::fs::create_dir(&at)?;
                mount(&image, name.trim_end_matches("-reflink"), &at, room_mib as usize)?;
                let mounted = Mounted(at);
                let mut fallocate = Command::new("fallocate");
                shell::output(fallocate.args(["--length", &size]).arg(mounted.0.join("file")))?;
                Kind::Reflink(mounted)
            }
        };
        let side = Side { name, target: uri("", &folder.join("nbd.sock")), server: None };
        let mut subject = Self { side, folder: folder.to_owned(), made: 0, kind };
        subject.serve()?;
        Ok(subject)
    }

    /// Starts `qemu-nbd` on what there is now.
    fn serve(&mut self) -> Result<()> {
        let (format, file) = match &self.kind {
            Kind::Kura(_) => return Ok(()),
            Kind::Overlay => ("qcow2", self.layer(self.made)),
            Kind::Internal => ("qcow2", self.layer(0)),
            Kind::Reflink(at) => ("raw", at.0.join("file")),
        };
        let socket = self.folder.join("nbd.sock");
        let mut command = Command::new("qemu-nbd");
        command.args(["--cache=none", "--aio=io_uring", "--persistent", "--shared=16", "--socket"]).arg(&socket);
        self.side.server = Some(Process::start(command.arg("--format").arg(format).arg(file), &socket)?.into());
        Ok(())
    }

    fn layer(&self, number: usize) -> PathBuf {
        self.folder.join(format!("layer{number}.qcow2"))
    }

    /// Makes a snapshot. Only kura does so while it serves: `qemu-nbd` is stopped and started around it.
    fn snapshot(&mut self) -> Result<()> {
        let number = self.made + 1;
        if !matches!(self.kind, Kind::Kura(_)) {
            self.side.server = None;
        }
        match &self.kind {
            Kind::Kura(kura) => drop(kura.ask(&["snapshot", "create", &format!("none@{number}")])?),
            Kind::Overlay => {
                let mut create = Command::new("qemu-img");
                create.args(["create", "-q", "-f", "qcow2", "-o", QCOW2, "-F", "qcow2", "-b"]);
                shell::output(create.arg(self.layer(self.made)).arg(self.layer(number)))?;
            }
            Kind::Internal => {
                let mut create = Command::new("qemu-img");
                shell::output(create.args(["snapshot", "-q", "-c", &number.to_string()]).arg(self.layer(0)))?;
            }
            Kind::Reflink(at) => {
                let mut copy = Command::new("cp");
                copy.arg("--reflink=always").arg(at.0.join("file")).arg(at.0.join(number.to_string()));
                shell::output(&mut copy)?;
            }
        }
        self.made = number;
        self.serve()
    }

    /// Makes snapshots as long as a client writes; what those and the ones before stopped.
    fn stops(&mut self, args: &Args) -> Result<Option<Stops>> {
        if !matches!(self.kind, Kind::Kura(_)) {
            return Ok(None);
        }
        let (target, size_bytes, seconds) = (self.side.target.clone(), args.size << 20, args.seconds);
        let client = std::thread::spawn(move || fio::run(&small("4k write"), &target, size_bytes, seconds));
        while !client.is_finished() {
            self.snapshot()?;
            std::thread::sleep(Duration::from_millis(50));
        }
        client.join().map_err(|_| anyhow!("a client's thread panicked"))??;
        let Kind::Kura(kura) = &self.kind else { return Ok(None) };
        let controllers: Vec<Value> = serde_json::from_str(&kura.ask(&["controller", "list", "--json"])?)?;
        let mut stops = Stops::default();
        for told in controllers.iter().map(|controller| &controller["snapshot_stops"]) {
            let (count, longest_ns) = (told["count"].as_u64(), told["longest_ns"].as_f64());
            let (count, longest_ns) = count.zip(longest_ns).context("no figures of the stops")?;
            stops.count += count;
            stops.longest_ms = stops.longest_ms.max(longest_ns / 1e6);
        }
        Ok(Some(stops))
    }

    /// Does what comes before a stage.
    fn bring_to(&mut self, stage: &str, args: &Args) -> Result<()> {
        match stage {
            "long after" => {
                // All of it is held by a snapshot.
                self.snapshot()?;
                overwrite(&self.side.target, args.size << 20)?;
            }
            "many" => {
                let fio::Target::Uri(uri) = self.side.target.clone() else { return Ok(()) };
                while self.made + 2 < args.snapshots {
                    self.snapshot()?;
                    // Something of each snapshot's own.
                    let at = (self.made as u64 * 7919) % (args.size * 16);
                    let mut write = Command::new("qemu-io");
                    write.args(["-f", "raw", "-c", &format!("write -q {}k 64k", at * 64), &uri]);
                    shell::output(&mut write)?;
                }
            }
            _ => {}
        }
        self.side.settle()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        // Before the file system under it is unmounted.
        self.side.server = None;
    }
}
