//! What recording costs: a volume while its requests are recorded, beside the same volume while they are not.

use super::fio::{self, Access, Work, fill};
use super::kura::Kura;
use super::machine;
use super::report::{self, Samples, Verdict, median};
use super::rest::Rest;
use super::side::Side;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How to measure.
#[derive(clap::Args)]
pub struct Args {
    /// Bytes of the volume, in GiB: all of them are written before anything is measured.
    #[arg(long, default_value_t = 2)]
    size: u64,
    /// Seconds of each work, during which recording goes on and off.
    #[arg(long, default_value_t = 60)]
    seconds: u32,
    /// Only works whose name has this in it.
    #[arg(long)]
    only: Option<String>,
    #[command(flatten)]
    ground: super::Ground,
}

/// What is done to which volume. Reads of a volume on which nothing was written meet no device: there, what recording
/// costs weighs most.
const WORKS: [(Work, &str); 9] = [
    (Work::random("read QD1", Access::Read, 1, 1), "bench"),
    (Work::random("write QD1", Access::Write, 1, 1), "bench"),
    (Work::random("read QD16", Access::Read, 16, 1), "bench"),
    (Work::random("write QD16", Access::Write, 16, 1), "bench"),
    (Work::random("read 4 x QD16", Access::Read, 16, 4), "bench"),
    (Work::random("write 4 x QD16", Access::Write, 16, 4), "bench"),
    (Work::sequential("128k read", Access::Read), "bench"),
    (Work::sequential("128k write", Access::Write), "bench"),
    (Work::random("read of zeroes QD16", Access::Read, 16, 1), "zeroes"),
];

/// The least share of the rate without recording that a volume keeps with it.
const KEEPS: f64 = 0.98;
/// How long recording stays on, or off: so short that what the machine does to both is the same, so long that a few milliseconds
/// of beginning and ending are little.
const SLOT: Duration = Duration::from_millis(200);
/// What is not counted at the beginning of each: the first request of a recording is the first to touch its memory, which is given
/// in pages of 2 MiB, room for 65,536 requests. Milliseconds once in a recording are no part of what a request costs.
const LEAD: Duration = Duration::from_millis(10);

/// Measures each work while recording goes on and off under it, and judges the median of neighbours' ratios.
pub fn run(args: &Args) -> Result<()> {
    let facts = machine::facts();
    let folder = args.ground.folder("trace")?;
    let binary = args.ground.binary()?;
    let size_bytes = args.size << 30;
    let kura = Kura::start(&binary, &folder.path().join("kura"), size_bytes)?;
    let [bench, zeroes] = <[Side; 2]>::try_from(kura.sides(size_bytes)?).map_err(|_| anyhow::anyhow!("two volumes"))?;
    fill(&bench.target, size_bytes)?;
    bench.settle()?;
    let mut costs = Vec::new();
    for (work, volume) in &WORKS {
        if args.only.as_ref().is_none_or(|only| work.name.contains(only.as_str())) {
            let side = if *volume == "bench" { &bench } else { &zeroes };
            let cost = Cost::measure(args, &kura, work, (volume, side))?;
            eprintln!("{:20} {}", work.name, cost.row()[4..].join(" "));
            costs.push(cost);
        }
    }
    let verdicts: Vec<Verdict> = costs.iter().map(Cost::judge).collect();
    println!("{}\n", machine::line(&facts));
    println!("{} GiB, {} s a work, on or off for {} ms\n", args.size, args.seconds, SLOT.as_millis());
    let heads = ["", "pairs", "off, a second", "on, a second", "CPU off, us", "CPU on, us", "on / off (95 %)"];
    println!("{}", report::plain(&heads, costs.iter().map(Cost::row)));
    let settings = json!({
        "size_gib": args.size, "seconds": args.seconds, "costs": costs.iter().map(Cost::json).collect::<Vec<_>>(),
    });
    report::finish("trace", facts, settings, &Samples::default(), &verdicts)
}

/// What happened while recording was off, or on.
#[derive(Clone, Copy)]
struct Slot {
    seconds: f64,
    requests: u64,
    /// The server's.
    cpu_us: f64,
}

impl Slot {
    fn rate(self) -> f64 {
        self.requests as f64 / self.seconds
    }
}

/// A work without recording and with it.
struct Cost {
    work: &'static str,
    /// Neighbours, off and on; which comes first changes from pair to pair.
    pairs: Vec<[Slot; 2]>,
}

impl Cost {
    fn measure(args: &Args, kura: &Kura, work: &Work, (volume, side): (&str, &Side)) -> Result<Self> {
        let mut meter = Meter { rest: kura.rest()?, side, recording: format!("/api/v1/volumes/{volume}/recording") };
        let before = meter.read()?.requests;
        let target = &side.target;
        let pairs = std::thread::scope(|scope| {
            let client = scope.spawn(move || fio::run(work, target, args.size << 30, args.seconds));
            while meter.read()?.requests == before && !client.is_finished() {
                std::thread::sleep(SLOT);
            }
            let mut pairs = Vec::new();
            loop {
                let on_first = pairs.len() % 2 == 1;
                let mut pair = [meter.slot(on_first)?, meter.slot(!on_first)?];
                if client.is_finished() {
                    // It ended in the middle of these, or of the ones before: its process outlives its work a little.
                    pairs.pop();
                    client.join().map_err(|_| anyhow::anyhow!("the client's thread panicked"))??;
                    break Ok::<_, anyhow::Error>(pairs);
                }
                if on_first {
                    pair.swap(0, 1);
                }
                pairs.push(pair);
            }
        })?;
        ensure!(!pairs.is_empty(), "{} s are too short to measure anything: give more --seconds", args.seconds);
        side.settle()?;
        Ok(Self { work: work.name, pairs })
    }

    /// The median of the pairs' rates with recording over those without, and the values between which it is at 95 % confidence.
    fn kept(&self) -> [f64; 3] {
        let mut ratios: Vec<f64> = self.pairs.iter().map(|[off, on]| on.rate() / off.rate()).collect();
        ratios.sort_by(f64::total_cmp);
        // How many of them are below the true median is binomial.
        let (half, reach) = (ratios.len() as f64 / 2.0, 0.98 * (ratios.len() as f64).sqrt());
        let at = |place: f64| ratios[(place.max(0.0) as usize).min(ratios.len() - 1)];
        [median(ratios.iter().copied()), at((half - reach).floor()), at((half + reach).ceil())]
    }

    /// Off and on: requests a second and the server's CPU microseconds for one, over all slots.
    fn means(&self) -> [(f64, f64); 2] {
        std::array::from_fn(|which| {
            let sum = |of: fn(&Slot) -> f64| self.pairs.iter().map(|pair| of(&pair[which])).sum::<f64>();
            let requests = sum(|slot| slot.requests as f64);
            (requests / sum(|slot| slot.seconds), sum(|slot| slot.cpu_us) / requests)
        })
    }

    fn row(&self) -> Vec<String> {
        let [(off, off_us), (on, on_us)] = self.means();
        let [kept, least, most] = self.kept();
        vec![
            self.work.into(),
            self.pairs.len().to_string(),
            format!("{off:.0}"),
            format!("{on:.0}"),
            format!("{off_us:.2}"),
            format!("{on_us:.2}"),
            format!("{kept:.3} ({least:.3} to {most:.3})"),
        ]
    }

    fn judge(&self) -> Verdict {
        let [kept, ..] = self.kept();
        Verdict {
            aim: format!("{}: at least {KEEPS} x the rate without recording", self.work),
            ours: format!("{kept:.3} x"),
            holds: kept >= KEEPS,
        }
    }

    fn json(&self) -> Value {
        let slot = |slot: Slot| json!({"seconds": slot.seconds, "requests": slot.requests, "cpu_us": slot.cpu_us});
        json!({"work": self.work, "off_on": self.pairs.iter().map(|pair| pair.map(slot)).collect::<Vec<_>>()})
    }
}

/// Reads what a server has done so far, and turns recording on and off.
struct Meter<'a> {
    rest: Rest,
    side: &'a Side,
    recording: String,
}

impl Meter<'_> {
    fn read(&mut self) -> Result<Slot> {
        let mut requests = 0;
        for controller in self.rest.get("/api/v1/controllers")?.as_array().context("no list of controllers")? {
            for count in ["reads", "writes"] {
                requests += controller[count].as_u64().with_context(|| format!("no {count} in {controller}"))?;
            }
        }
        let cpu_us = self.side.server.as_ref().context("a volume without a server")?.cpu_us()?;
        Ok(Slot { seconds: 0.0, requests, cpu_us })
    }

    /// What happens in a slot with or without recording.
    fn slot(&mut self, on: bool) -> Result<Slot> {
        if on {
            self.rest.post(&self.recording, &json!({}))?;
        }
        std::thread::sleep(LEAD);
        let (before, begun) = (self.read()?, Instant::now());
        std::thread::sleep(SLOT);
        let (after, seconds) = (self.read()?, begun.elapsed().as_secs_f64());
        if on {
            let recorded =
                self.rest.get(&self.recording)?["requests"].as_u64().context("no requests of a recording")?;
            ensure!(recorded > 0 || after.requests == before.requests, "nothing was recorded of {}", self.side.name);
            self.rest.delete(&self.recording)?;
        }
        Ok(Slot { seconds, requests: after.requests - before.requests, cpu_us: after.cpu_us - before.cpu_us })
    }
}
