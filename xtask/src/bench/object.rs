//! The object store beside one file an object (ext4, ext3, Btrfs) and the bare device: the object paper's Figs. 2 and 3.
//!
//! Every side works on a file system of its own in an image of its own, all on the folder's device through loop devices,
//! so that all go the same way. Without root, only ext4's part is measured, in plain folders, and caches stay warm.

use super::machine;
use super::report::{Verdict, median, verdicts};
use crate::{needs, shell};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Sizes of objects, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 8, 16, 32, 64, 128, 256, 512, 1024])]
    sizes: Vec<usize>,
    /// Clients at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 16])]
    clients: Vec<usize>,
    /// Objects of each size, as many as these MiB let there be.
    #[arg(long, default_value_t = 10_000)]
    count: usize,
    /// MiB of content that a measurement writes at most.
    #[arg(long, default_value_t = 512)]
    mib: usize,
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Where the images lie: the file system and device to measure on.
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// A side: its name, the store it measures, and the file system that lies below it.
const SIDES: [(&str, &str, &str); 5] = [
    ("kura", "kura", "ext4"),
    ("ext4", "files", "ext4"),
    ("ext3", "files", "ext3"),
    ("btrfs", "files", "btrfs"),
    ("device", "device", "ext4"),
];
const PEERS: [&str; 3] = ["ext4", "ext3", "btrfs"];

/// Ours is to reach this many times the best peer's rate, or this share of the bare device's.
const PEERS_FACTOR: f64 = 1.5;
const DEVICE_SHARE: f64 = 0.9;
/// Content of this size or more is to be written at most so many times over.
const AMPLIFICATION: (usize, f64) = (128, 1.1);
/// After three rounds of overwriting, creating and reading are to reach this share of what they did at first.
const AGED_SHARE: f64 = 0.85;

/// What a million objects are to take at most: seconds of a restart, and megabytes of memory.
const RESTART_S: f64 = 1.0;
const MEMORY_MB: f64 = 200.0;

/// Samples by clients, phase, size in KiB and side.
type Samples = BTreeMap<(usize, String, usize, &'static str), Vec<Value>>;

/// Measures, prints, judges and keeps the result. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    shell::run(&mut shell::cargo(["build", "--release", "--package", "kura-stores"]))?;
    let binary = shell::target("release")?.join("kura-stores");
    let folder = tempfile::Builder::new().prefix("object-").tempdir_in(match &args.dir {
        Some(dir) => dir.clone(),
        None => shell::target("bench")?,
    })?;
    let mounts = sides(args, folder.path())?;
    let mut samples = Samples::new();
    for round in 0..args.rounds {
        for &clients in &args.clients {
            for &kib in &args.sizes {
                for index in 0..mounts.len() {
                    // Each round begins with another side, so that none always follows the same neighbour.
                    let mount = &mounts[(index + round) % mounts.len()];
                    let overwrites = if mount.side == "kura" && round == 0 { 3 } else { 0 };
                    measure(args, &binary, mount, (clients, kib, overwrites), &mut samples)?;
                }
            }
        }
    }
    drop(mounts);
    println!("{}\n", machine::line(&facts));
    println!("MB/s, medians of {} rounds; durable creates, reads with cold caches\n", args.rounds);
    for &clients in &args.clients {
        for phase in ["create", "read"] {
            println!("{}", table(args, &samples, clients, phase));
        }
    }
    let mut judged = judge(args, &samples);
    judged.extend(of_the_index(&binary, folder.path())?);
    println!("{}", verdicts(&judged));
    println!("samples: {}", keep(facts, &samples)?.display());
    Ok(())
}

/// A file system of a side's own, unmounted when dropped; without root, a folder.
struct Mount {
    side: &'static str,
    store: &'static str,
    folder: PathBuf,
    mounted: bool,
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted
            && let Err(error) = shell::output(Command::new("umount").arg(&self.folder))
        {
            eprintln!("{error:#}");
        }
    }
}

fn sides(args: &Args, folder: &Path) -> Result<Vec<Mount>> {
    let is_root = shell::is_root();
    if is_root {
        needs::ensure_file_systems()?;
    }
    let mut mounts = Vec::new();
    for (side, store, kind) in SIDES {
        let mountpoint = folder.join(side);
        std::fs::create_dir(&mountpoint)?;
        if is_root {
            eprintln!("making {kind} for {side}");
            mount(&folder.join(format!("{side}.image")), kind, &mountpoint, args.mib * 3 + 1536)?;
        } else if kind != "ext4" {
            eprintln!("{side} is left out: mounting it needs root");
            continue;
        }
        mounts.push(Mount { side, store, folder: mountpoint, mounted: is_root });
    }
    Ok(mounts)
}

/// Makes a file system in an image that is written once, so that no side pays for allocating it, and mounts it.
pub(super) fn mount(image: &Path, kind: &str, mountpoint: &Path, mib: usize) -> Result<()> {
    let mut dd = Command::new("dd");
    dd.args(["if=/dev/zero", "bs=1M", "oflag=direct", "status=none"]).arg(format!("count={mib}"));
    shell::output(dd.arg(format!("of={}", image.display()))).context("writing an image")?;
    let mut mkfs = Command::new(format!("mkfs.{kind}"));
    match kind {
        "btrfs" => mkfs.args(["--quiet", "--nodiscard"]),
        "xfs" => mkfs.args(["-q", "-K"]),
        _ => mkfs.args(["-q", "-F", "-E", "nodiscard,lazy_itable_init=0"]),
    };
    shell::output(mkfs.arg(image))?;
    let device = shell::output(Command::new("losetup").args(["--direct-io=on", "--find", "--show"]).arg(image))?;
    let mounted = shell::output(Command::new("mount").args(["-t", kind, device.trim()]).arg(mountpoint));
    // The device goes when the file system is unmounted, or now where that failed.
    shell::output(Command::new("losetup").args(["--detach", device.trim()]))?;
    mounted.map(drop)
}

fn measure(
    args: &Args,
    binary: &Path,
    mount: &Mount,
    (clients, kib, overwrites): (usize, usize, usize),
    samples: &mut Samples,
) -> Result<()> {
    let count = args.count.min(args.mib * 1024 / kib).max(clients);
    let mut command = Command::new(binary);
    command.args(["work", "--store", mount.store, "--folder"]).arg(mount.folder.join("work"));
    for (name, value) in
        [("--size", kib * 1024), ("--count", count), ("--clients", clients), ("--overwrites", overwrites)]
    {
        command.arg(name).arg(value.to_string());
    }
    for line in shell::output(&mut command)?.lines() {
        let sample: Value = serde_json::from_str(line)?;
        let phase = sample["phase"].as_str().unwrap_or_default().to_string();
        let rate = sample["figures"]["mb_s"].as_f64().unwrap_or_default();
        eprintln!("{:7} {kib:5} KiB, {clients:2} clients, {phase:9} {rate:8.1} MB/s", mount.side);
        samples.entry((clients, phase, kib, mount.side)).or_default().push(sample["figures"].clone());
    }
    shell::output(&mut Command::new("sync")).map(drop)
}

/// What a million objects take in memory, and how long a restart with them takes, after a kill and after a clean end.
fn of_the_index(binary: &Path, folder: &Path) -> Result<Vec<Verdict>> {
    const COUNT: usize = 1_000_000;
    let mut judged = Vec::new();
    let step = |flags: &[&str]| -> Result<Value> {
        let mut command = Command::new(binary);
        command.arg("index").arg("--folder").arg(folder).args(["--count", &COUNT.to_string()]).args(flags);
        Ok(serde_json::from_str(&shell::output(&mut command)?)?)
    };
    let filled = step(&["--fill"])?;
    let killed = step(&["--close"])?;
    let clean = step(&["--close"])?;
    let number = |value: &Value, name: &str| value[name].as_f64().unwrap_or(f64::NAN);
    let million = number(&filled, "objects") / 1e6;
    for (how, after) in [("a kill", &killed), ("a clean end", &clean)] {
        let seconds = number(after, "open_s") / million;
        let (aim, ours) = (format!("restart after {how}: {RESTART_S} s a million objects"), format!("{seconds:.2} s"));
        judged.push(Verdict { aim, ours, holds: seconds <= RESTART_S });
    }
    for (when, after) in [("when filled", &filled), ("after a restart", &clean)] {
        let mb = number(after, "resident_bytes") / 1e6 / million;
        let leaves = number(after, "index_bytes") / 1e6 / million;
        let aim = format!("memory {when}: {MEMORY_MB} MB a million objects");
        judged.push(Verdict { aim, ours: format!("{mb:.0} MB ({leaves:.0} MB of index)"), holds: mb <= MEMORY_MB });
    }
    Ok(judged)
}

/// The median of a figure; none where it was not measured.
fn figure(samples: &Samples, clients: usize, phase: &str, kib: usize, side: &'static str, name: &str) -> Option<f64> {
    let taken = samples.get(&(clients, phase.to_string(), kib, side))?;
    let values: Vec<f64> = taken.iter().filter_map(|figures| figures[name].as_f64()).collect();
    (!values.is_empty()).then(|| median(values))
}

fn table(args: &Args, samples: &Samples, clients: usize, phase: &str) -> String {
    let plural = if clients == 1 { "" } else { "s" };
    let names: Vec<&str> = SIDES.iter().map(|(side, ..)| *side).collect();
    let mut rows = vec![
        format!("**{phase}, {clients} client{plural}**\n"),
        format!("| KiB | {} | ours / best file system | ours / device |", names.join(" | ")),
        format!("|{}", " --- |".repeat(SIDES.len() + 3)),
    ];
    let shown = |figure: Option<f64>, digits: usize| figure.map_or("-".into(), |figure| format!("{figure:.digits$}"));
    for &kib in &args.sizes {
        let rate = |side| figure(samples, clients, phase, kib, side, "mb_s");
        let best = PEERS.into_iter().filter_map(rate).reduce(f64::max);
        let ratio = |peer: Option<f64>| rate("kura").zip(peer).map(|(ours, peer)| ours / peer);
        let mut cells = vec![kib.to_string()];
        cells.extend(names.iter().map(|side| shown(figure(samples, clients, phase, kib, side, "mb_s"), 1)));
        cells.extend([shown(ratio(best), 2), shown(ratio(rate("device")), 2)]);
        rows.push(format!("| {} |", cells.join(" | ")));
    }
    rows.join("\n") + "\n"
}

fn judge(args: &Args, samples: &Samples) -> Vec<Verdict> {
    let mut judged = Vec::new();
    for &clients in &args.clients {
        for &kib in &args.sizes {
            let of = |phase, side, name| figure(samples, clients, phase, kib, side, name);
            for phase in ["create", "read"] {
                let best = PEERS.into_iter().filter_map(|side| of(phase, side, "mb_s")).reduce(f64::max);
                let device = of(phase, "device", "mb_s");
                let Some((ours, best)) = of(phase, "kura", "mb_s").zip(best) else { continue };
                let share = device.map_or(0.0, |device| ours / device);
                judged.push(Verdict {
                    aim: format!(
                        "{phase} {kib} KiB, {clients} clients: {PEERS_FACTOR} x the best file system, or {DEVICE_SHARE} of the device"
                    ),
                    ours: format!("{:.2} x, {share:.2}", ours / best),
                    holds: ours >= PEERS_FACTOR * best || share >= DEVICE_SHARE,
                });
            }
            if let Some(written) = of("create", "kura", "amplification").filter(|_| kib >= AMPLIFICATION.0) {
                judged.push(Verdict {
                    aim: format!("{kib} KiB, {clients} clients: written at most {} times", AMPLIFICATION.1),
                    ours: format!("{written:.3}"),
                    holds: written <= AMPLIFICATION.1,
                });
            }
            for (fresh, aged) in [("create", "overwrite"), ("read", "read aged")] {
                let Some((fresh_rate, aged_rate)) =
                    first(samples, clients, fresh, kib).zip(last(samples, clients, aged, kib))
                else {
                    continue;
                };
                judged.push(Verdict {
                    aim: format!("{fresh} {kib} KiB, {clients} clients, written over 3 times: {AGED_SHARE} of fresh"),
                    ours: format!("{:.2}", aged_rate / fresh_rate),
                    holds: aged_rate >= AGED_SHARE * fresh_rate,
                });
            }
        }
    }
    judged
}

/// Ours in the round that was written over: before, and after.
fn first(samples: &Samples, clients: usize, phase: &str, kib: usize) -> Option<f64> {
    samples.get(&(clients, phase.to_string(), kib, "kura"))?.first()?["mb_s"].as_f64()
}

fn last(samples: &Samples, clients: usize, phase: &str, kib: usize) -> Option<f64> {
    samples.get(&(clients, phase.to_string(), kib, "kura"))?.last()?["mb_s"].as_f64()
}

/// Every sample in a file under `target/bench/`.
fn keep(facts: Value, samples: &Samples) -> Result<PathBuf> {
    let rows = samples.iter().map(|((clients, phase, kib, side), rounds)| {
        json!({"clients": clients, "phase": phase, "kib": kib, "side": side, "rounds": rounds})
    });
    let path = shell::target("bench")?.join("object.json");
    let all = json!({"machine": facts, "samples": rows.collect::<Vec<_>>()});
    std::fs::write(&path, serde_json::to_string_pretty(&all)?).with_context(|| path.display().to_string())?;
    Ok(path)
}
