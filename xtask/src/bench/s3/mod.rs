//! S3 under many clients, beside the servers that people run: every side with a file system of its own, all in one run.

mod client;
mod servers;
mod sign;

use super::machine;
use super::report::{Verdict, median, verdicts};
use crate::{needs, shell};
use anyhow::{Context, Result, ensure};
use client::{Figures, Verb, work};
use serde_json::json;
use servers::{KINDS, Kind, PEERS, Server, peer};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Sizes of objects, in KiB.
    #[arg(long, value_delimiter = ',', default_values_t = [4, 64, 256, 1024, 16384])]
    sizes: Vec<usize>,
    /// Clients at once, a connection each.
    #[arg(long, default_value_t = 16)]
    clients: usize,
    /// Objects of each size, as many as these MiB let there be.
    #[arg(long, default_value_t = 4000)]
    count: usize,
    /// MiB of content that a measurement writes at most.
    #[arg(long, default_value_t = 384)]
    mib: usize,
    /// How often each measurement is made; medians are compared.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Only the sides whose names begin so, beside kura.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[command(flatten)]
    ground: super::Ground,
    /// Where the peers' programs are, or are built to, each with its version in its name.
    #[arg(long)]
    peers: Option<PathBuf>,
}

/// Samples by size in KiB, verb and side.
type Samples = BTreeMap<(usize, &'static str, &'static str), Vec<Figures>>;

const VERBS: [(&str, Verb); 2] = [("PUT", Verb::Put), ("GET", Verb::Get)];

/// Measures, prints, judges and keeps the result. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(args: &Args) -> Result<()> {
    ensure!(shell::is_root(), "loop devices and mounts want root");
    needs::ensure_file_systems()?;
    let facts = machine::facts();
    let binary = args.ground.binary()?;
    let peers = args.peers.clone().map_or_else(|| shell::target("peers"), Ok)?;
    let folder = args.ground.folder("s3")?;
    let kinds: Vec<Kind> = KINDS.into_iter().filter(|kind| is_wanted(args, kind)).collect();
    let mut samples = Samples::new();
    let mut sides = Vec::new();
    let mib = args.mib * args.sizes.len() + 2048;
    for kind in &kinds {
        let program = if kind.name == "kura" { binary.clone() } else { peer(kind.program(), &peers)? };
        eprintln!("starting {}", kind.name);
        sides.push(Server::start(*kind, &program, &folder.path().join(kind.name.replace([' ', ','], "")), mib)?);
    }
    for round in 0..args.rounds {
        for &kib in &args.sizes {
            let body = noise(kib << 10);
            let count = args.count.min(args.mib * 1024 / kib).max(args.clients);
            for (name, verb) in VERBS {
                for index in 0..sides.len() {
                    // Each round begins with another side, so that none always follows the same neighbour.
                    let side = &sides[(index + round) % sides.len()];
                    let figures = work(side.at, &side.credentials, verb, &body, args.clients, count);
                    let figures = figures.with_context(|| format!("{} {name} {kib} KiB", side.kind.name))?;
                    eprintln!("round {} {name} {kib:5} KiB {:18} {:9.1}/s", round + 1, side.kind.name, figures.ops_s);
                    samples.entry((kib, name, side.kind.name)).or_default().push(figures);
                    if verb == Verb::Put {
                        shell::output(&mut shell::command("sync", [] as [&str; 0]))?;
                    }
                }
            }
        }
    }
    drop(sides);
    println!("{}\n", machine::line(&facts));
    println!("{} clients, operations a second (p50/p99 ms), medians of {} rounds\n", args.clients, args.rounds);
    println!("{}", table(args, &kinds, &samples));
    println!("{}", verdicts(&judge(args, &kinds, &samples)));
    println!("samples: {}", keep(facts, &samples)?.display());
    Ok(())
}

fn is_wanted(args: &Args, kind: &Kind) -> bool {
    args.only.is_empty() || kind.name == "kura" || args.only.iter().any(|name| kind.name.starts_with(name.as_str()))
}

/// Bytes that nobody compresses.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..len.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(len).collect()
}

fn figure(samples: &Samples, key: (usize, &'static str, &'static str), of: fn(&Figures) -> f64) -> Option<f64> {
    Some(median(samples.get(&key)?.iter().map(of)))
}

fn table(args: &Args, kinds: &[Kind], samples: &Samples) -> String {
    let names: Vec<String> =
        kinds.iter().map(|kind| format!("{}{}", kind.name, if kind.durable { "" } else { " (not durable)" })).collect();
    let mut rows = vec![format!("| | {} |", names.join(" | ")), format!("|{}", " --- |".repeat(kinds.len() + 1))];
    for (verb, _) in VERBS {
        for &kib in &args.sizes {
            let cells = kinds.iter().map(|kind| {
                let of = |of: fn(&Figures) -> f64| figure(samples, (kib, verb, kind.name), of).unwrap_or(f64::NAN);
                format!("{:.0} ({:.1}/{:.1})", of(|f| f.ops_s), of(|f| f.p50_ms), of(|f| f.p99_ms))
            });
            rows.push(format!("| {verb} {kib} KiB | {} |", cells.collect::<Vec<_>>().join(" | ")));
        }
    }
    rows.join("\n") + "\n"
}

/// First at every size, of those whose acknowledgement means the same.
fn judge(args: &Args, kinds: &[Kind], samples: &Samples) -> Vec<Verdict> {
    let mut judged = Vec::new();
    for (verb, _) in VERBS {
        for &kib in &args.sizes {
            let rate = |kind: &Kind| Some((figure(samples, (kib, verb, kind.name), |f| f.ops_s)?, kind.name));
            // A read is the same whatever the write was.
            let peers = kinds.iter().filter(|kind| kind.name != "kura" && (kind.durable || verb == "GET"));
            let best = peers.filter_map(rate).max_by(|one, other| one.0.total_cmp(&other.0));
            let ours = figure(samples, (kib, verb, "kura"), |f| f.ops_s);
            let Some(((best, name), ours)) = best.zip(ours) else { continue };
            judged.push(Verdict {
                aim: format!("{verb} {kib} KiB: first of the durable ones"),
                ours: format!("{:.2} x {name}", ours / best),
                holds: ours >= best,
            });
        }
    }
    judged
}

/// Every sample in a file under `target/bench/`.
fn keep(facts: serde_json::Value, samples: &Samples) -> Result<PathBuf> {
    let rows = samples.iter().map(|((kib, verb, side), rounds)| {
        let rounds: Vec<_> =
            rounds.iter().map(|f| json!({"ops_s": f.ops_s, "p50_ms": f.p50_ms, "p99_ms": f.p99_ms})).collect();
        json!({"kib": kib, "verb": verb, "side": side, "rounds": rounds})
    });
    let path = shell::target("bench")?.join("s3.json");
    let peers: BTreeMap<&str, &str> = PEERS.into_iter().map(|(program, version, _)| (program, version)).collect();
    let all = json!({"machine": facts, "peers": peers, "samples": rows.collect::<Vec<_>>()});
    std::fs::write(&path, serde_json::to_string_pretty(&all)?).with_context(|| path.display().to_string())?;
    Ok(path)
}
