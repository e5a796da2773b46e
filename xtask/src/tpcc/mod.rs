//! `cargo xtask tpcc-trace`: traces of what a real database asks of a volume.
//!
//! A Postgres with a small buffer cache does TPC-C's transactions on a volume of kura, which records what reaches it:
//! once without checkpoints, once with; both are then replayed in the lab, and drawn. After Mogi and Kitsuregawa, who did it with Sybase on 14 warehouses and 56 MB.

mod lab;
mod postgres;
mod volume;

pub use lab::REPORT;

use crate::janitor::Janitor;
use crate::{bench, needs, shell};
use anyhow::{Context, Result, anyhow, bail, ensure};
use postgres::{Beside, MIX, Postgres};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use volume::{Recorded, Volume};

/// What to trace.
#[derive(clap::Args)]
pub struct Args {
    /// Minutes of each of the two traces.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=600))]
    minutes: u32,
    /// The scale: about 0.6 GB each.
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u32).range(1..=100))]
    warehouses: u32,
    /// Where the traces go; by default target/tpcc.
    #[arg(long)]
    out: Option<PathBuf>,
    /// A small database and seconds of trace, with the debug build: whether it works, not what it shows.
    #[arg(long)]
    quick: bool,
}

/// How much of everything.
struct Scale {
    warehouses: u32,
    /// Orders of a district at the beginning, ten lines each.
    orders: u32,
    buffers_mb: u32,
    clients: u32,
    transactions_per_s: u32,
    warm_up: Duration,
    run: Duration,
    /// From one checkpoint to the next.
    checkpoint: Duration,
}

impl Scale {
    fn new(args: &Args) -> Self {
        let seconds = Duration::from_secs;
        let full = Self {
            warehouses: args.warehouses,
            // Ten times TPC-C's: most of the data is old orders, as in the paper.
            orders: 30_000,
            buffers_mb: 4 * args.warehouses,
            clients: 8,
            // Well below what the volume can do: the clients say when accesses come, not the disk.
            transactions_per_s: 70,
            warm_up: seconds(30),
            run: seconds(60 * u64::from(args.minutes)),
            // The paper's 12 min were about one turn of its cache: so are these.
            checkpoint: seconds(10),
        };
        if args.quick {
            return Self { warehouses: 1, orders: 3000, buffers_mb: 4, warm_up: seconds(2), run: seconds(10), ..full };
        }
        full
    }

    /// The most requests that a trace is expected to have.
    fn requests(&self) -> u64 {
        self.run.as_secs() * u64::from(self.transactions_per_s) * REQUESTS
    }

    /// Room for the database, what it grows by, and its sorting.
    fn volume_bytes(&self) -> u64 {
        let rows = u64::from(self.warehouses) * (90 << 20) + u64::from(self.warehouses * self.orders) * 20_000;
        (rows + rows / 2 + (3 << 30)).next_multiple_of(1 << 20)
    }
}

/// Requests of a transaction for which a recording has room: somewhat less than twice the 28 that there were with 14 warehouses.
const REQUESTS: u64 = 50;
/// Accesses that the paper's Fig. 3 counts.
const ACCESSES: u64 = 1_000_000;

/// One of the two traces.
struct Trace {
    recorded: Recorded,
    pages_read: u64,
    transactions: u64,
    checkpoints: u32,
}

impl Args {
    /// What the tests run.
    pub fn quick(out: PathBuf) -> Self {
        Self { minutes: 1, warehouses: 1, out: Some(out), quick: true }
    }
}

/// Makes the traces.
pub fn run(args: &Args) -> Result<()> {
    // What other programs complain of comes in lines; ours is one.
    make(args).map_err(|error| anyhow!(format!("{error:#}").lines().collect::<Vec<_>>().join(": ")))
}

fn make(args: &Args) -> Result<()> {
    if !shell::is_root() {
        bail!("tpcc-trace mounts a file system on a loop device: run it as root");
    }
    let out = args.out.clone().map_or_else(|| shell::target("tpcc"), Ok)?;
    std::fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let scale = Scale::new(args);
    needs::ensure_database()?;
    let binary = if args.quick { debug_build()? } else { bench::kura::build()? };

    let (traces, mut about) = record(&binary, &scale, &out)?;
    let file = out.join("tpcc.txt");
    let save = |about: &str| volume::put(&file, |mut half| Ok(half.write_all(about.as_bytes())?));
    save(&about)?;
    about.push_str(&lab::replay(&binary, &traces, &out)?);
    save(&about)?;
    println!("{}\n\n{about}", file.display());
    Ok(())
}

/// Records the two traces, without checkpoints first; and what is to be told of them. All that runs for it has ended.
fn record(binary: &Path, scale: &Scale, out: &Path) -> Result<(Vec<PathBuf>, String)> {
    let mut janitor = Janitor::new()?;
    // Not below the checkout: the database's user may not be allowed to go there.
    let home = folder(&mut janitor, Path::new("/var/tmp"))?;
    let volume = Volume::new(binary, scale.volume_bytes(), &home, &mut janitor)?;
    let postgres = Postgres::new(&volume.mount.join("data"), &home, &mut janitor)?;
    let loaded = load(&postgres, scale)?;
    let mut about = heading(scale, &postgres, &loaded);
    let mut traces = Vec::new();
    for name in ["without-checkpoints", "with-checkpoints"] {
        let file = out.join(format!("tpcc-{name}.csv.gz"));
        janitor.remove(&volume::half(&file))?;
        let interval = (name == "with-checkpoints").then_some(scale.checkpoint);
        about.push_str(&trace(&file, interval, scale, &volume, &postgres)?.told(name, scale));
        println!("{}", file.display());
        traces.push(file);
    }
    Ok((traces, about))
}

/// A folder with a name of its own, removed at the end.
fn folder(janitor: &mut Janitor, within: &Path) -> Result<PathBuf> {
    let folder = tempfile::Builder::new().prefix("kura-tpcc-").tempdir_in(within);
    let folder = folder.with_context(|| format!("making a folder in {}", within.display()))?.keep();
    janitor.remove(&folder)?;
    // The database is not ours to run: its user must come through.
    shell::output(Command::new("chmod").arg("755").arg(&folder))?;
    Ok(folder)
}

/// Makes and fills the tables, with all the memory and none of the care a database in use would take; tells what came
/// of it.
fn load(postgres: &Postgres, scale: &Scale) -> Result<String> {
    let start = Instant::now();
    println!("filling {} warehouses", scale.warehouses);
    let settings = ["fsync=off", "shared_buffers=512MB", "maintenance_work_mem=512MB", "checkpoint_timeout=1d"];
    postgres.start(&settings.map(String::from))?;
    let variables = [("warehouses", u64::from(scale.warehouses)), ("orders", u64::from(scale.orders))];
    postgres.sql(include_str!("load.sql"), &variables)?;
    postgres.sql(include_str!("transactions.sql"), &[])?;
    // Rows that are known to be there for all need no write when they are first read.
    postgres.sql("vacuum (freeze, analyze)", &[])?;
    let sizes = postgres.sql(
        "select relname || ' ' || pg_relation_size(oid) / 1048576 || ' MB' from pg_class
         where relkind in ('r', 'i') and relnamespace = 'public'::regnamespace order by pg_relation_size(oid) desc",
        &[],
    )?;
    postgres.stop()?;
    println!("filled in {}", shell::elapsed(start.elapsed()));
    Ok(sizes.lines().collect::<Vec<_>>().join(", "))
}

/// Runs the mix and records what reaches the volume.
fn trace(
    file: &Path,
    checkpoint: Option<Duration>,
    scale: &Scale,
    volume: &Volume,
    postgres: &Postgres,
) -> Result<Trace> {
    println!("tracing for {}", shell::elapsed(scale.run));
    let mut settings = vec![
        format!("shared_buffers={}MB", scale.buffers_mb),
        // None but ours.
        "checkpoint_timeout=1d".into(),
        // What must leave the buffer is written when it must, by who needs the room, and goes on to the disk at once.
        "bgwriter_lru_maxpages=0".into(),
        "backend_flush_after=1".into(),
        "checkpoint_flush_after=1".into(),
        // The log is elsewhere: it shall not be what the transactions wait for.
        "synchronous_commit=off".into(),
        // One process for each client.
        "max_parallel_workers_per_gather=0".into(),
        "jit=off".into(),
    ];
    settings.extend(postgres.direct());
    postgres.start(&settings)?;
    let trace = std::thread::scope(|scope| {
        let forgetful = postgres::forgetful(postgres, scope);
        postgres.work(scale, scale.warm_up, None)?;
        let read_before = postgres.pages_read()?;
        let checkpoints = checkpoint.map(|interval| postgres::checkpoints(postgres, interval, scope));
        volume.record(scale.requests())?;
        let transactions = postgres.work(scale, scale.run, Some(scale.transactions_per_s))?;
        let recorded = volume.export(file)?;
        let checkpoints = checkpoints.map_or(Ok(0), Beside::stop)?;
        let pages_read = postgres.pages_read()? - read_before;
        forgetful.stop()?;
        anyhow::Ok(Trace { recorded, pages_read, transactions, checkpoints })
    })?;
    postgres.stop()?;
    ensure!(trace.recorded.writes > 0, "the database wrote nothing: its cache is too large for its data");
    ensure!(trace.seen() > 0.8, "the page cache hid reads: the volume saw {:.0} % of them", 100.0 * trace.seen());
    Ok(trace)
}

impl Trace {
    /// The share of the pages the database asked for that the volume was asked for.
    fn seen(&self) -> f64 {
        self.recorded.read_bytes as f64 / (self.pages_read.max(1) * 8192) as f64
    }

    fn told(&self, name: &str, scale: &Scale) -> String {
        let Recorded { reads, writes, read_bytes, written_bytes, left_out } = self.recorded;
        let (seconds, kib) =
            (scale.run.as_secs_f64(), |bytes: u64, count: u64| bytes as f64 / 1024.0 / count.max(1) as f64);
        let accesses = reads + writes;
        let mut lines = vec![
            format!("tpcc-{name}.csv.gz"),
            format!("{accesses} accesses in {}, {:.0} a second", shell::elapsed(scale.run), accesses as f64 / seconds),
            format!(
                "{reads} reads of {:.1} KiB, {writes} writes of {:.1} KiB on average",
                kib(read_bytes, reads),
                kib(written_bytes, writes)
            ),
            format!("{left_out} flushes and discards left out"),
            format!(
                "{} transactions, {:.1} a second; {} checkpoints",
                self.transactions,
                self.transactions as f64 / seconds,
                self.checkpoints
            ),
            format!("the volume saw {:.1} % of what the database read past its cache", 100.0 * self.seen()),
        ];
        if accesses < ACCESSES {
            lines
                .push(format!("fewer accesses than the {ACCESSES} that the paper's Fig. 3 is of: give more --minutes"));
        }
        format!("\n{}\n", lines.join("\n  "))
    }
}

fn heading(scale: &Scale, postgres: &Postgres, loaded: &str) -> String {
    let mut text = String::from("Traces of a database on a volume of kura, made by cargo xtask tpcc-trace\n\n");
    let mix: Vec<String> = MIX.iter().map(|(name, weight)| format!("{name} {weight}")).collect();
    let commit = shell::output(&mut shell::command("git", ["rev-parse", "--short", "HEAD"])).unwrap_or_default();
    let facts = [
        ("form", "MSR Cambridge CSV, gzip; pages of 8 KiB; the data area only, the log is elsewhere".to_string()),
        ("database", format!("{}, {} MB of buffers", postgres.version, scale.buffers_mb)),
        ("scale", format!("{} warehouses, {} orders a district", scale.warehouses, scale.orders)),
        ("tables", loaded.to_string()),
        (
            "load",
            format!(
                "{} transactions a second of {} clients; of 23: {}",
                scale.transactions_per_s,
                scale.clients,
                mix.join(", ")
            ),
        ),
        ("checkpoints", format!("none, or every {} s (12 min in the paper)", scale.checkpoint.as_secs())),
        (
            "before each",
            format!("{} of the same, as fast as it can, to fill the buffers", shell::elapsed(scale.warm_up)),
        ),
        ("path", "ext4 without a journal, loop device (direct I/O), nbdfuse, NBD, kura".to_string()),
        ("kura", format!("commit {}", commit.trim())),
    ];
    for (name, fact) in facts {
        let _ = writeln!(text, "{name:12} {fact}");
    }
    text
}

/// The binary that the acceptance tests run: when they have, it is there. A build without tests would ask for other features of
/// the libraries, and so be one of nearly everything.
fn debug_build() -> Result<PathBuf> {
    shell::run(&mut shell::tests(["--test", "acceptance", "--no-run"]))?;
    Ok(shell::target("debug")?.join("kura"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_has_room_for_the_longest_trace() {
        for minutes in [1, 12, 281, 600] {
            let scale = Scale::new(&Args { minutes, warehouses: 14, out: None, quick: false });
            // At 2000 a second, as it was measured, and half as much again; 4 GiB are the most that the server gives.
            let needed = u64::from(minutes) * 60 * 3000 * 32;
            let memory = volume::memory_bytes(scale.requests());
            assert!((needed..=4 << 30).contains(&memory), "{minutes} min: {memory} bytes for {needed}");
        }
        assert_eq!(volume::memory_bytes(1), 64 << 20);
    }

    #[test]
    fn a_trace_too_short_for_the_papers_figure_is_told_in_a_line() {
        let told = |reads| {
            let recorded = Recorded { reads, writes: 1, read_bytes: 8192, written_bytes: 8192, left_out: 0 };
            let trace = Trace { recorded, pages_read: 1, transactions: 1, checkpoints: 0 };
            trace.told("short", &Scale::new(&Args::quick(PathBuf::new())))
        };
        let short = told(999_998);
        assert_eq!(short.lines().filter(|line| line.contains("fewer accesses than the 1000000")).count(), 1, "{short}");
        assert!(!told(999_999).contains("fewer accesses"));
    }
}
