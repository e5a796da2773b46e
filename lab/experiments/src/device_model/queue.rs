//! Queues in front of a device, against queueing theory.

use super::{Criterion, Findings, Table};
use crate::experiment::Progress;
use crate::figure::Figure;
use anyhow::Result;
use kura_block::{Block, Runtime};
use kura_sim::{ChaCha8Rng, DiskSpec, Io, RotatingSpec, ServiceModel, Sim};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Who serves the arrivals, one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Server {
    /// A device on which every read takes [`CONSTANT_NS`].
    Constant {
        /// Reads served at the same time; theory is about one.
        channels: usize,
    },
    /// A disk that turns; a read seeks over up to half the disk, any distance as likely as any other.
    Disk(RotatingSpec),
}

/// Reads that arrive by a Poisson process.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Load {
    /// Mean arrivals a second.
    pub arrivals_per_s: u64,
    /// Arrivals in all.
    pub arrivals: u64,
}

/// A queue as measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// Mean time from arrival to the beginning of the service.
    wait_s: f64,
    /// Its standard error, by the means of [`BATCHES`] batches.
    error_s: f64,
    /// Mean time of the service.
    service_s: f64,
    /// Mean of the service times' squares.
    service_s2: f64,
}

/// Service of the constant device, in nanoseconds.
const CONSTANT_NS: u64 = 1_000_000;
/// Batches by which the error is estimated.
const BATCHES: usize = 32;
const NS_PER_S: f64 = 1e9;
const SECTOR_BYTES: u64 = 2048;

impl Server {
    /// The queue's name in theory and in the names of files.
    pub fn queue(self) -> &'static str {
        match self {
            Self::Constant { .. } => "md1",
            Self::Disk(_) => "mg1",
        }
    }

    /// Arrivals a second: from idle to nine tenths of what can be served.
    pub fn arrivals_per_s(self) -> &'static [u64] {
        match self {
            Self::Constant { .. } => &[100, 200, 300, 400, 500, 600, 700, 800, 900],
            Self::Disk(_) => &[10, 20, 30, 40, 45, 50],
        }
    }
}

/// Every operation takes the same time, on so many channels.
struct Constant {
    channels: usize,
}

impl ServiceModel for Constant {
    fn channels(&self) -> usize {
        self.channels
    }

    fn service_ns(&mut self, _: &Io, _: u64) -> u64 {
        CONSTANT_NS
    }
}

impl Server {
    fn device(self) -> DiskSpec {
        match self {
            Self::Constant { channels } => DiskSpec::new(1 << 20, Constant { channels }),
            Self::Disk(spec) => DiskSpec::rotating(spec),
        }
    }
}

/// Where reads go.
struct Places {
    server: Server,
    rng: ChaCha8Rng,
    cylinder: u64,
}

impl Places {
    fn next(&mut self) -> u64 {
        let Server::Disk(spec) = self.server else { return 0 };
        // Theory wants service times that know nothing of each other. Between places at random, distances would: one at
        // the edge is far from both its neighbours.
        let distance = self.rng.random_range(0..=spec.cylinders / 2);
        let farther = self.cylinder + distance;
        self.cylinder = if farther < spec.cylinders { farther } else { self.cylinder - distance };
        let sectors = spec.tracks_per_cylinder * spec.sectors_per_track;
        let sector = self.cylinder * sectors + self.rng.random_range(0..sectors);
        sector * u64::from(spec.sector_bytes)
    }
}

/// When a read arrived and when it was answered, in nanoseconds.
type Read = (u64, u64);

/// Lets reads arrive and wait.
pub fn measure(server: Server, load: Load, seed: u64, progress: &Progress<'_>) -> Result<Queue> {
    let sim = Sim::new(seed);
    let device = sim.disk("disk", DiskSpec { keep_content: false, ..server.device() }).open();
    let runtime = sim.runtime();
    let mut times = sim.rng("arrivals");
    let mut places = Places { server, rng: sim.rng("places"), cylinder: 0 };
    let reads: Rc<RefCell<Vec<Result<Read>>>> = Rc::default();
    let arrive = async {
        let mut arrival_ns = 0.0;
        for arrival in 0..load.arrivals {
            // 1 - u is above zero.
            let gap_s = -(1.0 - times.random::<f64>()).ln() / load.arrivals_per_s as f64;
            arrival_ns += gap_s * NS_PER_S;
            runtime.sleep(Duration::from_nanos(arrival_ns as u64).saturating_sub(runtime.now())).await;
            let (device, clock, reads) = (Rc::clone(&device), Rc::clone(&runtime), Rc::clone(&reads));
            let (arrived_ns, offset) = (now_ns(&*clock), places.next());
            runtime.spawn(Box::pin(async move {
                let answer = device.read(offset, SECTOR_BYTES as usize).await;
                reads.borrow_mut().push(answer.map(|_| (arrived_ns, now_ns(&*clock))).map_err(Into::into));
            }));
            if arrival.is_multiple_of(10_000) {
                progress.at(arrival as f64 / load.arrivals as f64);
            }
        }
        while (reads.borrow().len() as u64) < load.arrivals {
            runtime.sleep(Duration::from_secs(1)).await;
        }
    };
    sim.block_on(arrive);
    let reads = reads.take().into_iter().collect::<Result<Vec<_>>>()?;
    Ok(moments(&reads))
}

fn now_ns(runtime: &dyn Runtime) -> u64 {
    runtime.now().as_nanos() as u64
}

/// Waits and services, of reads served one at a time in the order of arrival.
fn moments(reads: &[Read]) -> Queue {
    let mut free_ns = 0;
    let served = reads.iter().map(|&(arrived_ns, answered_ns)| {
        let begun_ns = arrived_ns.max(free_ns);
        free_ns = answered_ns;
        ((begun_ns - arrived_ns) as f64 / NS_PER_S, (answered_ns as f64 - begun_ns as f64) / NS_PER_S)
    });
    let served: Vec<(f64, f64)> = served.collect();
    // The queue began empty: the first twentieth is not counted.
    let served = &served[served.len() / 20..];
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64, served: &[(f64, f64)]| {
        served.iter().map(of).sum::<f64>() / served.len() as f64
    };
    let wait = |served: &[(f64, f64)]| mean(&|(wait_s, _)| *wait_s, served);
    let batches: Vec<f64> = served.chunks_exact(served.len() / BATCHES).map(wait).collect();
    let wait_s = wait(served);
    let variance = batches.iter().map(|batch_s| (batch_s - wait_s).powi(2)).sum::<f64>() / (BATCHES - 1) as f64;
    Queue {
        wait_s,
        error_s: (variance / BATCHES as f64).sqrt(),
        service_s: mean(&|(_, service_s)| *service_s, served),
        service_s2: mean(&|(_, service_s)| service_s.powi(2), served),
    }
}

/// The mean wait by Pollaczek and Khinchine.
fn theory_s(arrivals_per_s: f64, service_s: f64, service_s2: f64) -> f64 {
    arrivals_per_s * service_s2 / (2.0 * (1.0 - arrivals_per_s * service_s))
}

/// Judges the queues in front of one server, lightest load first.
pub fn judge(queues: &[(Server, Load, Queue)], findings: &mut Findings) -> Result<()> {
    let Some(&(server, ..)) = queues.first() else { return Ok(()) };
    let (name, theory, title, caption) = match server {
        Server::Constant { .. } => (
            "M/D/1",
            "theory: M/D/1",
            "Waiting for a device of constant service",
            "Reads arrive at random in front of a device that takes 1 ms for each. The mean wait is the one of an \
             M/D/1 queue: it grows without limit as the load nears one. Bars are four standard errors either way.",
        ),
        Server::Disk(_) => (
            "M/G/1",
            "theory: Pollaczek-Khinchine",
            "Waiting for the disk that turns",
            "The same in front of the paper's disk. The mean wait is the one that the Pollaczek-Khinchine formula \
             makes of the measured service times' mean and mean square. Bars are four standard errors either way.",
        ),
    };
    let columns = ["arrivals_per_s", "load", "theory_ms", "measured_ms", "low_ms", "high_ms", "service_ms"];
    let mut table = Table::new(server.queue(), title, &columns);
    let (mut farthest, mut roughest): (f64, f64) = (0.0, 0.0);
    for (_, load, queue) in queues {
        let rate = load.arrivals_per_s;
        let (service_s, service_s2) = match server {
            Server::Constant { .. } => (CONSTANT_NS as f64 / NS_PER_S, (CONSTANT_NS as f64 / NS_PER_S).powi(2)),
            Server::Disk(_) => (queue.service_s, queue.service_s2),
        };
        let theory_s = theory_s(rate as f64, service_s, service_s2);
        farthest = farthest.max((queue.wait_s - theory_s).abs() / queue.error_s);
        roughest = roughest.max(queue.error_s / theory_s.abs());
        let [wait_ms, error_ms] = [queue.wait_s, queue.error_s].map(|s| s * 1000.0);
        table.row([
            rate.into(),
            (rate as f64 * service_s).into(),
            (theory_s * 1000.0).into(),
            wait_ms.into(),
            (wait_ms - 4.0 * error_ms).into(),
            (wait_ms + 4.0 * error_ms).into(),
            (queue.service_s * 1000.0).into(),
        ]);
    }
    let what = format!("farthest wait from {name}, in standard errors");
    findings.criteria.push(Criterion::at_most(what, farthest, 4.0));
    let what = format!("largest standard error of a wait in {name}, part of it");
    findings.criteria.push(Criterion::at_most(what, roughest, 0.05));
    let whiskers = json!({ "mark": { "type": "rule", "color": Figure::OURS }, "encoding": {
        "y": { "field": "low_ms", "type": "quantitative" }, "y2": { "field": "high_ms" },
    }});
    let drawing = Figure::layers(
        Figure::axis("load", "load: arrivals times service"),
        Figure::axis("measured_ms", "mean wait, ms"),
        vec![Figure::line("theory_ms", theory), whiskers, Figure::dots("measured_ms", "ours: the simulated device")],
    );
    findings.figures.push(Figure::of(&table, title, caption, drawing)?);
    findings.tables.push(table);
    Ok(())
}
