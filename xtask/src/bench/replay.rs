//! How fast the lab is: traces through the engine on a plain mirror of simulated disks, the whole command.

use super::report::{Verdict, median, verdicts};
use super::{kura, machine};
use crate::test;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What to replay, and how often.
#[derive(clap::Args)]
pub struct Args {
    /// A folder of traces; by default the one that the tests take theirs from, if there is one.
    #[arg(long)]
    traces: Option<PathBuf>,
    /// How often each trace is replayed.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// A release build of kura that is there; one is built without it.
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// Requests a second of real time that a replay is to reach.
const AIM: f64 = 200_000.0;

/// A plain mirror on disks without arms, and nothing that moves.
const NODE: &str = "[pool]
disks = [
    { model = 'nvme', class = 'fast', size = '4G' },
    { model = 'nvme', class = 'fast', size = '4G' },
    { model = 'sata-ssd', class = 'slow', size = '1T' },
    { model = 'sata-ssd', class = 'slow', size = '1T' },
    { model = 'sata-ssd', class = 'slow', size = '1T' },
    { model = 'sata-ssd', class = 'slow', size = '1T' },
]
[tier]
policy = 'off'
";

/// Loads that are always there: 4 KiB at random, half of them reads. The lab keeps the first one's requests in memory
/// from pass to pass, and makes those of the second one again.
const LOADS: [&str; 2] =
    ["load:uniform,size=4G,rate=20000,requests=1000000", "load:uniform,size=4G,rate=20000,requests=3000000"];

/// What the second load may take at its peak, over the first one.
const MEMORY: f64 = 1.1;

/// One replay.
struct Took {
    requests: f64,
    seconds: f64,
    peak_mib: f64,
}

impl Took {
    fn median(taken: &[Self]) -> Self {
        let of = |figure: fn(&Self) -> f64| median(taken.iter().map(figure));
        Self {
            requests: of(|took| took.requests),
            seconds: of(|took| took.seconds),
            peak_mib: of(|took| took.peak_mib),
        }
    }
}

/// Measures in rounds, prints and judges. Misses are reported, not failures: a busy machine misses aims too.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let binary = args.binary.clone().map_or_else(kura::build, Ok)?;
    let folder = tempfile::tempdir()?;
    let node = folder.path().join("node.toml");
    std::fs::write(&node, NODE)?;
    let mut loads = LOADS.map(str::to_owned).to_vec();
    if let Some(traces) = args.traces.clone().or_else(test::traces_beside) {
        loads.extend(traces_in(&traces)?);
    }
    let mut taken: Vec<Vec<Took>> = loads.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for (load, taken) in loads.iter().zip(&mut taken) {
            let took = replay(&binary, &node, load)?;
            eprintln!("round {:2} {load} {:.3} s", round + 1, took.seconds);
            taken.push(took);
        }
    }
    println!("{}\n\n{} rounds\n", machine::line(&facts), args.rounds);
    println!("| load | requests | s | requests a second | peak MiB |\n| --- | --- | --- | --- | --- |");
    let mut judged = Vec::new();
    for (load, taken) in loads.iter().zip(&taken) {
        let Took { requests, seconds, peak_mib } = Took::median(taken);
        let name = Path::new(load).file_name().map_or_else(|| load.clone(), |name| name.to_string_lossy().into_owned());
        let rate = requests / seconds;
        println!("| {name} | {requests:.0} | {seconds:.3} | {rate:.0} | {peak_mib:.0} |");
        let aim = format!("{name}: at least {AIM} requests a second");
        judged.push(Verdict { aim, ours: format!("{rate:.0}"), holds: rate >= AIM });
    }
    judged.push(judge_memory(&taken[0], &taken[1]));
    println!("\n{}", verdicts(&judged));
    Ok(())
}

/// More requests than are kept are to take no more memory.
fn judge_memory(kept: &[Took], more: &[Took]) -> Verdict {
    let [kept_mib, more_mib] = [kept, more].map(|taken| Took::median(taken).peak_mib);
    Verdict {
        aim: format!("3,000,000 requests: at most {MEMORY} x the memory of 1,000,000 at the peak"),
        ours: format!("{more_mib:.0} MiB for {kept_mib:.0} MiB"),
        holds: more_mib <= MEMORY * kept_mib,
    }
}

/// The traces in a folder, in the order of their names.
fn traces_in(folder: &Path) -> Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("{}: no folder of traces", folder.display()))?;
    let files = entries.flatten().map(|entry| entry.path());
    let is_trace = |path: &PathBuf| path.is_file() && path.extension().is_none_or(|extension| extension != "md");
    let mut traces: Vec<String> = files.filter(is_trace).map(|path| path.display().to_string()).collect();
    traces.sort();
    Ok(traces)
}

fn replay(binary: &Path, node: &Path, load: &str) -> Result<Took> {
    let mut command = Command::new(binary);
    command.args(["lab", "replay", load, "--json", "--config"]).arg(node);
    let begun = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("kura lab replay")?;
    let status = format!("/proc/{}/status", child.id());
    let watch = std::thread::spawn(move || {
        let mut peak_kib = 0.0;
        // What a process peaked at is told until it is gone.
        while let Some(now) = std::fs::read_to_string(&status).ok().and_then(|text| peak(&text)) {
            peak_kib = now;
            std::thread::sleep(Duration::from_millis(2));
        }
        peak_kib
    });
    let mut told = String::new();
    if let Some(stdout) = &mut child.stdout {
        std::io::Read::read_to_string(stdout, &mut told)?;
    }
    let ended = child.wait()?;
    let seconds = begun.elapsed().as_secs_f64();
    anyhow::ensure!(ended.success(), "kura lab replay {load} failed: {ended}");
    let told: Value = serde_json::from_str(&told)?;
    let requests = told.pointer("/replay/load/requests").and_then(Value::as_f64);
    let peak_kib = watch.join().unwrap_or_default();
    Ok(Took { requests: requests.unwrap_or(f64::NAN), seconds, peak_mib: peak_kib / 1024.0 })
}

fn peak(status: &str) -> Option<f64> {
    status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?.split_whitespace().next()?.parse().ok()
}
