//! What it costs controllers to share a pool: CPU an I/O of a server with one controller, of one with two whose volumes are
//! used at once, and of one whose only controller serves both volumes; and what each method of sharing does for save copies.

use super::fio::{self, Access, Work, fill};
use super::kura::Kura;
use super::machine;
use super::report::{self, Samples, Verdict};
use super::side::{Sample, Side};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::path::Path;

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
    #[command(flatten)]
    ground: super::Ground,
    /// The methods of sharing whose save copies are counted.
    #[arg(long, value_delimiter = ',', value_parser = METHODS, default_values_t = METHODS.map(String::from))]
    sharing: Vec<String>,
}

const METHODS: [&str; 4] = ["lease", "message", "access-change", "aggregate"];
/// Controllers, and the volumes that they have among them.
const SIDES: [(&str, usize, usize); 3] = [("one", 1, 1), ("one, both volumes", 1, 2), ("two", 2, 2)];
const VOLUMES: [&str; 2] = ["v0", "v1"];
/// What a request may cost with two controllers, over what it costs with one alone.
const FACTOR: f64 = 1.05;

/// Requests a second of each client whose requests' cost is compared: what a core serves easily. Where clients ask for all
/// they can get, they and the controllers wait for each other's cores, and a request costs more with every thread.
const RATE: u32 = 8000;

/// What is measured, and at what rate where it keeps to one.
const WORKS: [(Work, Option<u32>); 5] = [
    (work("read, 8,000/s", Access::Read), Some(RATE)),
    (work("write, 8,000/s", Access::Write), Some(RATE)),
    (work("read, all it can", Access::Read), None),
    (work("write, all it can", Access::Write), None),
    (SAVES, Some(RATE)),
];
/// Each write is a save copy: it is the first to its block since a snapshot of the volume.
const SAVES: Work = work("write, save copies, 8,000/s", Access::WriteOnce);

const fn work(name: &'static str, access: Access) -> Work {
    Work::random(name, access, 4, 1)
}

/// Measures, prints and judges. Misses are reported, not failures.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let binary = args.ground.binary()?;
    let mut samples = Samples::default();
    for round in 0..args.rounds {
        for turn in 0..SIDES.len() {
            let (name, controllers, count) = SIDES[(turn + round) % SIDES.len()];
            let folder = args.ground.folder("controllers")?;
            let room = 4 * (args.size << 20) + (3 << 30);
            let kura = Kura::on(&binary, folder.path(), 1, room, &pool(controllers))?;
            let volumes = volumes(&kura, args, controllers, count)?;
            for (work, rate) in &WORKS {
                let sample = measure(work, *rate, args, &kura, &volumes)?;
                eprintln!(
                    "round {} {:27} {name:17} {:6.2} us",
                    round + 1,
                    work.name,
                    sample.cpu_us.unwrap_or(f64::NAN)
                );
                samples.add(work.name, name, sample);
            }
        }
    }
    let rated = WORKS.iter().filter(|(_, rate)| rate.is_some());
    let mut verdicts: Vec<Verdict> = rated.filter_map(|(work, _)| judge(&samples, work.name)).collect();
    let shared: Vec<Shared> = args.sharing.iter().map(|method| share(method, args, &binary)).collect::<Result<_>>()?;
    verdicts.extend(shared.iter().map(Shared::judge));
    println!("{}\n", machine::line(&facts));
    println!(
        "{} MiB a volume, {} s a measurement, medians of {} rounds; each cell: rate (p50/p99 us, server CPU an I/O)\n",
        args.size, args.seconds, args.rounds
    );
    println!("{}", report::table(&samples, &WORKS.map(|(work, _)| work), &SIDES.map(|(name, ..)| name), "two"));
    println!("Two controllers, {}; of a thousand requests:\n\n{}", SAVES.name, table(&shared));
    let settings = json!({
        "size_mib": args.size, "seconds": args.seconds, "rounds": args.rounds,
        "sharing": shared.iter().map(Shared::json).collect::<Vec<_>>(),
    });
    report::finish("controllers", facts, settings, &samples, &verdicts)
}

fn pool(controllers: usize) -> String {
    format!("journal = '512M'\ncontrollers = {controllers}")
}

/// So many volumes, full, of all controllers in turn.
fn volumes(kura: &Kura, args: &Args, controllers: usize, count: usize) -> Result<Vec<Side>> {
    let size = args.size << 20;
    let full = |(at, name): (usize, &&'static str)| {
        let side = kura.thin(name, "none", size, at % controllers)?;
        fill(&side.target, size)?;
        side.settle()?;
        Ok(side)
    };
    VOLUMES[..count].iter().enumerate().map(full).collect()
}

/// Does `work` on all volumes at once: what they did together, and the server's CPU time for each I/O of it.
fn measure(work: &Work, rate: Option<u32>, args: &Args, kura: &Kura, volumes: &[Side]) -> Result<Sample> {
    if work.access == Access::WriteOnce {
        kura.rest()?.make(&volumes.iter().map(|side| format!("{}@saved", side.name)).collect::<Vec<_>>())?;
    }
    let server = volumes.first().and_then(|side| side.server.clone()).context("a server without a volume")?;
    let before_us = server.cpu_us()?;
    let targets: Vec<_> = volumes.iter().map(|side| side.target.clone()).collect();
    let figures = fio::run_together(work, &targets, args.size << 20, args.seconds, rate)?;
    server.settle()?;
    Ok(Sample { figures, cpu_us: Some((server.cpu_us()? - before_us) / figures.ios) })
}

fn judge(samples: &Samples, work: &'static str) -> Option<Verdict> {
    let [one, _, two] = SIDES.map(|(name, ..)| samples.median(work, name)?.cpu_us);
    let factor = two? / one?;
    let aim = format!("{work}: CPU an I/O with two controllers at most {FACTOR} of one's alone");
    Some(Verdict { aim, ours: format!("{factor:.3}"), holds: factor <= FACTOR })
}

/// A pool large enough that a lease is a batch (a thousandth of it may be on lease), with small extents, of which a
/// thousand save copies fill so many.
const SHARED_POOL: &str = "extent = '1M'";
const SHARED_DISK: &str = "class = 'slow', size = '64G'";
const TAKEN: f64 = 1000.0 / 256.0;

/// What a method of sharing did for a thousand requests.
struct Shared {
    method: String,
    requests: f64,
    /// In the order of [`COUNTED`].
    counts: [f64; 4],
}

/// What controllers count of their sharing.
const COUNTED: [&str; 4] = ["shared_accesses", "messages", "drops", "local_hits"];

/// Counts what the save copies of two controllers cost by a method.
fn share(method: &str, args: &Args, binary: &Path) -> Result<Shared> {
    eprintln!("save copies by {method}");
    let folder = args.ground.folder("controllers")?;
    let pool = format!("{}\n{SHARED_POOL}\nsharing = '{method}'", pool(VOLUMES.len()));
    let kura = Kura::of(binary, folder.path(), &[("disk0.raw".into(), SHARED_DISK, 0)], &pool, "")?;
    let volumes = volumes(&kura, args, VOLUMES.len(), VOLUMES.len())?;
    let before = counted(&kura)?;
    let requests = measure(&SAVES, Some(RATE), args, &kura, &volumes)?.figures.ios;
    let after = counted(&kura)?;
    let counts = std::array::from_fn(|at| (after[at] - before[at]) * 1000.0 / requests);
    Ok(Shared { method: method.to_owned(), requests, counts })
}

/// What all controllers have counted so far.
fn counted(kura: &Kura) -> Result<[f64; 4]> {
    let mut sums = [0.0; 4];
    for controller in kura.controllers()? {
        for (sum, name) in sums.iter_mut().zip(COUNTED) {
            *sum += controller["sharing"][name].as_f64().with_context(|| format!("no {name} in {controller}"))?;
        }
    }
    Ok(sums)
}

impl Shared {
    /// Against what the method promises: see `docs/operate.md`.
    fn judge(&self) -> Verdict {
        let [accesses, messages, drops, _] = self.counts;
        let is_quiet = messages == 0.0 && drops == 0.0;
        // A look, a search and an update of each extent.
        let each = 3.0 * TAKEN;
        let about = |count: f64, wanted: f64| (0.9 * wanted..=1.1 * wanted).contains(&count);
        let (promise, holds) = match self.method.as_str() {
            "aggregate" => ("no access, no message".to_owned(), accesses == 0.0 && is_quiet),
            // What is dropped is read again, at most all three times.
            "message" => (
                format!("{each:.1} to {:.1} accesses, {TAKEN:.1} messages and drops", 3.0 * each),
                (0.9 * each..=3.3 * each).contains(&accesses) && about(messages, TAKEN) && about(drops, TAKEN),
            ),
            "access-change" => (format!("{each:.1} accesses, no message"), about(accesses, each) && is_quiet),
            _ => (format!("at most an eighth of {each:.1} accesses, no message"), 8.0 * accesses <= each && is_quiet),
        };
        let aim = format!("{}, of a thousand save copies: {promise}", self.method);
        let ours = format!("{accesses:.2} accesses, {messages:.2} messages, {drops:.2} drops");
        Verdict { aim, ours, holds }
    }

    fn json(&self) -> Value {
        json!({ "method": self.method, "requests": self.requests, "counted": COUNTED, "per_thousand": self.counts })
    }
}

/// One row a method.
fn table(shared: &[Shared]) -> String {
    let row = |Shared { method, requests, counts }: &Shared| {
        let counts = counts.map(|count| format!("{count:.2}"));
        [method.clone(), format!("{requests:.0}")].into_iter().chain(counts).collect()
    };
    let heads = ["", "requests", "shared accesses", "messages", "drops", "local hits"];
    report::plain(&heads, shared.iter().map(row))
}
