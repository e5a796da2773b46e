//! How long making a snapshot stops writes: what controllers count, and what clients see.

use super::super::fio::{self, Access, Figures, Target, Work, fill};
use super::super::kura::Kura;
use super::super::report::{self, Verdict};
use super::super::side::Side;
use super::Args;
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// What a snapshot may stop writes for.
const STOP_MS: f64 = 10.0;
/// From one snapshot to the next.
const EVERY: Duration = Duration::from_millis(50);
/// Each client is watched this many times as long as other measurements last: the longest of few says little.
const LONGER: u32 = 3;

const WRITE: Work = Work::random("4k write", Access::Write, 16, 1);

/// Volumes that are snapshotted together, each of a controller of its own.
struct Case {
    name: &'static str,
    saving: &'static str,
    volumes: &'static [&'static str],
    /// The volume's size; none where it is full.
    size_bytes: Option<u64>,
    /// How much of each is written, as a multiple of what is asked for.
    filled: u64,
}

const FULL: Case = Case { name: "a full volume", saving: "redirect", volumes: &["v0"], size_bytes: None, filled: 1 };

const CASES: [Case; 4] = [
    FULL,
    Case { name: "a full volume, saving by copy", saving: "copy", ..FULL },
    Case { name: "a thin volume of 1 TiB", size_bytes: Some(1 << 40), filled: 4, ..FULL },
    Case { name: "two volumes of two controllers", volumes: &["v0", "v1"], ..FULL },
];

/// What came of a case.
pub struct Stopped {
    name: &'static str,
    snapshots: u64,
    longest_ms: f64,
    /// What the clients saw while none was made.
    without: Figures,
    with: Figures,
}

/// Goes through all cases.
pub fn measure(args: &Args, binary: &Path) -> Result<Vec<Stopped>> {
    CASES.iter().map(|case| stopped(case, args, binary)).collect()
}

fn stopped(case: &Case, args: &Args, binary: &Path) -> Result<Stopped> {
    let (filled, seconds) = (case.filled * (args.size << 20), LONGER * args.seconds);
    eprintln!("{}: writing {} MiB to each", case.name, filled >> 20);
    let folder = args.ground.folder("snapshot")?;
    // Every write of the clients is a block more: a GiB a second is more than they can do.
    let room = case.volumes.len() as u64 * filled + (u64::from(seconds) << 30) + (4 << 30);
    let pool = format!("journal = '512M'\nsaving = '{}'\ncontrollers = {}", case.saving, case.volumes.len());
    let kura = Kura::on(binary, folder.path(), 1, room, &pool)?;
    let mut sides: Vec<Side> = Vec::new();
    for (controller, name) in case.volumes.iter().enumerate() {
        let side = kura.thin(name, "none", case.size_bytes.unwrap_or(filled), controller)?;
        fill(&side.target, filled)?;
        sides.push(side);
    }
    let targets: Vec<Target> = sides.iter().map(|side| side.target.clone()).collect();
    let clients = || fio::run_together(&WRITE, &targets, filled, seconds, None);
    let settle = || sides.iter().try_for_each(Side::settle);
    settle()?;
    // The first time is slower: that is in no figure.
    clients()?;
    settle()?;
    let without = clients()?;
    settle()?;
    let with = std::thread::scope(|scope| {
        let clients = scope.spawn(clients);
        let mut rest = kura.rest()?;
        let mut number = 0;
        while !clients.is_finished() {
            rest.make(&case.volumes.iter().map(|volume| format!("{volume}@{number}")).collect::<Vec<_>>())?;
            number += 1;
            std::thread::sleep(EVERY);
        }
        clients.join().map_err(|_| anyhow!("a client's thread panicked"))?
    })?;
    let (snapshots, longest_ms) = counted(&kura)?;
    Ok(Stopped { name: case.name, snapshots, longest_ms, without, with })
}

/// Stops of all controllers, and the longest of them in milliseconds.
fn counted(kura: &Kura) -> Result<(u64, f64)> {
    let (mut all, mut most_ms) = (0, 0.0_f64);
    for told in kura.controllers()?.iter().map(|controller| &controller["snapshot_stops"]) {
        let (count, longest_ns) = (told["count"].as_u64(), told["longest_ns"].as_f64());
        let (count, longest_ns) = count.zip(longest_ns).context("no figures of the stops")?;
        all += count;
        most_ms = most_ms.max(longest_ns / 1e6);
    }
    Ok((all, most_ms))
}

impl Stopped {
    pub fn judge(&self) -> Verdict {
        Verdict {
            aim: format!("{}: a snapshot stops writes for at most {STOP_MS} ms", self.name),
            ours: format!("{:.3} ms, the longest of {}", self.longest_ms, self.snapshots),
            holds: self.snapshots > 0 && self.longest_ms <= STOP_MS,
        }
    }
}

/// One row a case: what controllers count, and what clients see while no snapshots are made, and while some are.
pub fn table(all: &[Stopped]) -> String {
    let row = |stopped: &Stopped| {
        let client = |figures: &Figures| {
            let ms = |us: f64| us / 1000.0;
            format!("{:.1}k ({:.1}/{:.1})", ms(figures.iops), ms(figures.p99_us), ms(figures.max_us))
        };
        let stops = [stopped.snapshots.to_string(), format!("{:.3}", stopped.longest_ms)];
        let clients = [client(&stopped.without), client(&stopped.with)];
        [stopped.name.to_owned()].into_iter().chain(stops).chain(clients).collect()
    };
    let heads = ["", "stops", "longest ms", "clients without: rate (p99/longest ms)", "clients with"];
    report::plain(&heads, all.iter().map(row))
}

pub fn json(all: &[Stopped]) -> Value {
    let client =
        |figures: &Figures| json!({ "iops": figures.iops, "p99_us": figures.p99_us, "max_us": figures.max_us });
    let row = |stopped: &Stopped| {
        json!({
            "case": stopped.name, "stops": stopped.snapshots, "longest_ms": stopped.longest_ms,
            "without": client(&stopped.without), "with": client(&stopped.with),
        })
    };
    all.iter().map(row).collect()
}
