//! What it takes to make and to delete a snapshot, by the number of them and by the size of the volume.

use super::super::fio::{Target, fill};
use super::super::kura::Kura;
use super::super::process::Process;
use super::super::report::{self, Verdict, median};
use super::super::rest::Rest;
use super::super::side::Side;
use super::Args;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// What the slowest case may take, over the fastest. A cost that grows with the size or the number would do so by
/// orders of magnitude here; the rest is what a disk's flushes differ by.
const FACTOR: f64 = 1.5;
/// Pairs of a snapshot made and one deleted, of each case and round: the server's CPU time is told in steps of 10 ms, of which one
/// is a hundredth of what so many take.
const PAIRS: usize = 1001;
/// The small volume's size in MiB.
const SMALL_MIB: u64 = 64;
/// How many times the size of a side the large volume has.
const LARGE: u64 = 8;
/// Once so long nothing was done, nothing is left to do: space is given back to the disks after a second.
const QUIET: Duration = Duration::from_millis(1500);
/// What is written between a snapshot and the next.
const WRITTEN: u64 = 64 << 10;

/// What a volume with so many snapshots took: each time.
pub struct Cost {
    mib: u64,
    snapshots: usize,
    make_ms: Vec<f64>,
    delete_ms: Vec<f64>,
    /// Of each round, the server's for both, with what it does in the background afterwards, and without what is written to the
    /// volume in between.
    cpu_ms: Vec<f64>,
}

impl Cost {
    fn new(mib: u64, snapshots: usize) -> Self {
        Self { mib, snapshots, make_ms: Vec::new(), delete_ms: Vec::new(), cpu_ms: Vec::new() }
    }

    /// The medians: to make one, to delete one, and the server's for both.
    fn medians_ms(&self) -> [f64; 3] {
        [&self.make_ms, &self.delete_ms, &self.cpu_ms].map(|times| median(times.iter().copied()))
    }
}

/// Measures a small volume and a large one with more and more snapshots, and once more from one on in the next round.
pub fn measure(args: &Args, binary: &Path) -> Result<Vec<Cost>> {
    let folder = args.ground.folder("snapshot")?;
    let sizes_mib = [SMALL_MIB, LARGE * args.size];
    let room = sizes_mib.iter().sum::<u64>() + 4096;
    let kura = Kura::on(binary, folder.path(), 1, room << 20, "journal = '512M'\ncontrollers = 1")?;
    let mut volumes = Vec::new();
    for (name, mib) in ["small", "large"].into_iter().zip(sizes_mib) {
        eprintln!("writing {mib} MiB to the {name} volume");
        volumes.push(Volume::make(&kura, name, mib)?);
    }
    let cost = |snapshots| sizes_mib.map(|mib| Cost::new(mib, snapshots));
    let mut costs: Vec<Cost> = [1, args.snapshots, 10 * args.snapshots].into_iter().flat_map(cost).collect();
    for round in 0..args.rounds {
        for (at, cost) in costs.iter_mut().enumerate() {
            volumes[at % 2].measure(cost)?;
            let [make_ms, delete_ms, _] = cost.medians_ms();
            eprintln!(
                "round {} {:5} MiB {:5} snapshots {make_ms:7.3} ms to make {delete_ms:7.3} ms to delete {:7.3} ms of CPU",
                round + 1,
                cost.mib,
                cost.snapshots,
                cost.cpu_ms.last().unwrap_or(&f64::NAN)
            );
        }
    }
    Ok(costs)
}

/// A volume whose snapshots come and go, the oldest first, as those of a schedule do.
struct Volume<'a> {
    kura: &'a Kura,
    side: Side,
    mib: u64,
    writer: Writer,
    /// The numbers of its snapshots.
    there: std::ops::Range<usize>,
}

impl<'a> Volume<'a> {
    /// A full one.
    fn make(kura: &'a Kura, name: &'static str, mib: u64) -> Result<Self> {
        let side = kura.thin(name, "none", mib << 20, 0)?;
        fill(&side.target, mib << 20)?;
        side.settle()?;
        let writer = Writer::start(&side.target)?;
        Ok(Self { kura, side, mib, writer, there: 0..0 })
    }

    /// Takes times with as many snapshots as the case has, each of which holds something.
    fn measure(&mut self, cost: &mut Cost) -> Result<()> {
        let mut rest = self.kura.rest()?;
        while self.there.len() > cost.snapshots {
            self.delete_one(&mut rest)?;
        }
        while self.there.len() < cost.snapshots {
            self.make_one(&mut rest)?;
        }
        self.settle()?;
        // A server lets go of who is silent for long.
        rest = self.kura.rest()?;
        let before_us = self.cpu_us()?;
        for _ in 0..PAIRS {
            cost.make_ms.push(self.make_one(&mut rest)?);
            cost.delete_ms.push(self.delete_one(&mut rest)?);
        }
        self.settle()?;
        let between_us = self.cpu_us()?;
        (self.there.end..self.there.end + PAIRS).try_for_each(|number| self.write(number))?;
        self.settle()?;
        let (with_us, written_us) = (between_us - before_us, self.cpu_us()? - between_us);
        cost.cpu_ms.push((with_us - written_us) / 1000.0 / PAIRS as f64);
        Ok(())
    }

    fn write(&mut self, number: usize) -> Result<()> {
        self.writer.write(number as u64 * 7919 * WRITTEN % (self.mib << 20))
    }

    /// Writes something of the newest snapshot's own, and makes one more; how long that took, in milliseconds.
    fn make_one(&mut self, rest: &mut Rest) -> Result<f64> {
        let number = self.there.end;
        self.write(number)?;
        let begun = Instant::now();
        rest.make(&[format!("{}@{number}", self.side.name)])?;
        self.there.end += 1;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    fn delete_one(&mut self, rest: &mut Rest) -> Result<f64> {
        let begun = Instant::now();
        rest.delete(&format!("/api/v1/snapshots/{}@{}", self.side.name, self.there.start))?;
        self.there.start += 1;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    fn server(&self) -> Result<&Process> {
        self.side.server.as_deref().context("a volume without a server")
    }

    fn cpu_us(&self) -> Result<f64> {
        self.server()?.cpu_us()
    }

    /// All that was asked for is done, in the background, too.
    fn settle(&self) -> Result<()> {
        self.server()?.settle_for(QUIET)
    }
}

/// A client that is told what to write: one process for all.
struct Writer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Writer {
    fn start(target: &Target) -> Result<Self> {
        let Target::Uri(uri) = target else { bail!("a volume over NBD is wanted") };
        let mut command = Command::new("qemu-io");
        let mut child = command.args(["-f", "raw", uri]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (orders, answers) = child.stdin.take().zip(child.stdout.take()).context("qemu-io without its pipes")?;
        Ok(Self { child, orders, answers: BufReader::new(answers) })
    }

    /// Writes at an offset; it is acknowledged when this returns.
    fn write(&mut self, at: u64) -> Result<()> {
        writeln!(self.orders, "write {at} {WRITTEN}")?;
        let mut answer = String::new();
        // It says what was written, and then how fast.
        while !answer.contains(" ops;") {
            answer.clear();
            if self.answers.read_line(&mut answer)? == 0 || answer.contains("failed") {
                bail!("qemu-io: {}", answer.trim_end());
            }
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It goes when nobody can tell it more; where it does not, it is ended.
        let _ = writeln!(self.orders, "quit");
        let _ = self.child.wait();
    }
}

/// The slowest case beside the one that should be the fastest: one snapshot of the small volume.
pub fn judge(costs: &[Cost]) -> Vec<Verdict> {
    let Some(least) = costs.first() else { return Vec::new() };
    let verdict = |(at, what): (usize, &str)| {
        let ratio = costs.iter().map(|cost| cost.medians_ms()[at]).fold(0.0, f64::max) / least.medians_ms()[at];
        let aim = format!("{what}: at most {FACTOR} x that with 1 snapshot of {SMALL_MIB} MiB, at any number and size");
        Verdict { aim, ours: format!("{ratio:.2} x"), holds: ratio <= FACTOR }
    };
    ["time to make a snapshot", "time to delete one", "server CPU for both"]
        .into_iter()
        .enumerate()
        .map(verdict)
        .collect()
}

/// One row a case.
pub fn table(costs: &[Cost]) -> String {
    let row = |cost: &Cost| {
        let times = cost.medians_ms().map(|ms| format!("{ms:.2}"));
        [format!("{} MiB", cost.mib), cost.snapshots.to_string()].into_iter().chain(times).collect()
    };
    let heads = ["volume", "snapshots", "to make one, ms", "to delete one, ms", "server CPU for both, ms"];
    report::plain(&heads, costs.iter().map(row))
}

pub fn json(costs: &[Cost]) -> Value {
    let row = |cost: &Cost| {
        let [make_ms, delete_ms, cpu_ms] = cost.medians_ms();
        json!({
            "volume_mib": cost.mib, "snapshots": cost.snapshots, "make_ms": make_ms, "delete_ms": delete_ms,
            "server_cpu_ms": cpu_ms,
        })
    };
    costs.iter().map(row).collect()
}
