//! Tiering policies held against each other: the same requests, in virtual time, over the same modelled devices.
//!
//! ```text
//!   requests ─> driver: tiered under a policy, or the block cache ─> four disks and a solid-state device (kura-sim)
//!                  └ shares, responses, minutes ─> tables, figures, criteria
//! ```

mod cache;
mod devices;
mod judge;
mod measure;
mod oracle;
mod policies;
mod ranges;
mod systems;
#[cfg(test)]
mod tests;
mod tiered;
mod traces;

pub use policies::TierPolicies;
pub use traces::TierTraces;

use crate::experiment::Progress;
use crate::source::Source;
use anyhow::{Result, ensure};
use cache::Cache;
use devices::Devices;
use kura_block::Runtime;
use kura_sim::Sim;
use kura_trace::{Op, Request};
use measure::{MINUTE_NS, Measured, Served, Tally};
use oracle::{Bound, Hindsight};
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;
use systems::System;
use tiered::Tiered;

/// A system under a load.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    system: &'static str,
    driver: System,
    source: Source,
    volume_bytes: u64,
    /// Seconds of the load before what is measured: static tiering is trained on them.
    from_s: u64,
    /// Whether the other systems serve those seconds too, unmeasured: else they begin cold, as the paper's do.
    warmed: bool,
    /// Seconds of the load up to which it is measured.
    to_s: u64,
}

/// A system measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Data {
    measured: Measured,
    /// The same once more, on what the first run left.
    again: Measured,
    /// About what the best placement with as many moves of the same regions, and as many placed before, would have had on the fast
    /// tier in the first run; none where nothing was placed.
    oracle: Option<Bound>,
}

/// The requests of a point that move data: those before it, and its own.
fn requests(config: &Config) -> Result<(Vec<Request>, Vec<Request>)> {
    let (mut before, mut own) = (Vec::new(), Vec::new());
    for request in config.source.requests(|_| {})? {
        let request = request?;
        if request.at_ns >= config.to_s * 1_000_000_000 {
            break;
        }
        if !matches!(request.op, Op::Read | Op::Write) {
            continue;
        }
        ensure!(request.end_bytes() <= config.volume_bytes, "a request ends at {}", request.end_bytes());
        if request.at_ns < config.from_s * 1_000_000_000 { before.push(request) } else { own.push(request) }
    }
    ensure!(!own.is_empty(), "{}: no request from second {} on", config.source.title(), config.from_s);
    Ok((before, own))
}

/// Runs a point.
fn run(config: &Config, seed: u64, progress: &Progress<'_>) -> Result<Data> {
    let (before, own) = requests(config)?;
    let sim = Sim::new(seed);
    sim.set_limit(Duration::from_hours(24 * 366 * 100));
    let devices = Rc::new(Devices::new(&sim, config.volume_bytes));
    match &config.driver {
        System::Tiered(spec) => {
            let trained_on = (config.system == systems::STATIC).then_some(before.as_slice());
            let driver = Tiered::start(spec, config.volume_bytes, &devices, &sim.runtime(), trained_on)?;
            let serving = Serving::Tiered(Rc::clone(&driver));
            warm_up(config, &sim, &devices, &serving, &before);
            let begun_with = driver.taken_up();
            let measured = play(&sim, &devices, &serving, &own, &|part| progress.at(0.5 * part));
            let interval_ns = spec.settings.interval_ns();
            let (region_bytes, begun_ns) = (spec.settings.region_bytes(), config.from_s * 1_000_000_000);
            let places = own.iter().map(|request| {
                (((request.at_ns - begun_ns) / interval_ns) as u32, (request.offset_bytes / region_bytes) as u32)
            });
            // Static tiering never moves: its oracle would be that of no move at all. What the others began with may be any regions
            // that the oracle likes.
            let placed = begun_with + measured.up_bytes.div_ceil(region_bytes);
            let has_oracle = placed > 0 && config.system != systems::STATIC;
            let oracle = has_oracle.then(|| Hindsight::of(places).bound(spec.fast_bytes / region_bytes, placed));
            let again = play(&sim, &devices, &serving, &own, &|part| progress.at(0.5 + 0.4 * part));
            Ok(Data { measured, again, oracle })
        }
        System::Cache { cache_bytes } => {
            let serving = Serving::Cache(Cache::new(*cache_bytes, &devices, &sim.runtime()));
            warm_up(config, &sim, &devices, &serving, &before);
            let measured = play(&sim, &devices, &serving, &own, &|part| progress.at(0.5 * part));
            let again = play(&sim, &devices, &serving, &own, &|part| progress.at(0.5 + 0.5 * part));
            Ok(Data { measured, again, oracle: None })
        }
    }
}

/// Serves what comes before, where that is asked for.
fn warm_up(config: &Config, sim: &Sim, devices: &Devices, serving: &Serving, before: &[Request]) {
    if config.warmed && config.system != systems::STATIC {
        play(sim, devices, serving, before, &|_| {});
    }
}

/// A driver that serves.
enum Serving {
    Tiered(Rc<Tiered>),
    Cache(Rc<Cache>),
}

impl Serving {
    /// Bytes on the fast tier, moved up and moved down so far.
    fn moved(&self) -> (u64, u64, u64) {
        match self {
            Self::Tiered(driver) => driver.moved(),
            Self::Cache(cache) => cache.moved(),
        }
    }
}

/// Plays requests, each at its time from now on whatever happened to those before it, and measures them.
fn play(sim: &Sim, devices: &Devices, serving: &Serving, requests: &[Request], tell: &dyn Fn(f64)) -> Measured {
    let runtime = sim.runtime();
    let begun = runtime.now();
    let first_ns = requests.first().map_or(0, |request| request.at_ns);
    let tally = Rc::new(RefCell::new(Tally::new(begun.as_nanos() as u64)));
    let open = Rc::new(Cell::new(0_u64));
    let (busy_before, (_, up_before, down_before)) = (devices.work().busy_ns, serving.moved());
    sim.block_on(async {
        let mut next_minute = 1;
        for (index, request) in requests.iter().enumerate() {
            let at = begun + Duration::from_nanos(request.at_ns - first_ns);
            while begun + Duration::from_nanos(next_minute * MINUTE_NS) <= at {
                let minute_end = begun + Duration::from_nanos(next_minute * MINUTE_NS);
                runtime.sleep(minute_end.saturating_sub(runtime.now())).await;
                tally.borrow_mut().placed(minute_end.as_nanos() as u64 - 1, serving.moved().0);
                next_minute += 1;
            }
            let early = at.saturating_sub(runtime.now());
            if !early.is_zero() {
                runtime.sleep(early).await;
            }
            if index % 65_536 == 0 {
                tell(index as f64 / requests.len() as f64);
            }
            open.set(open.get() + 1);
            let (tally, open, request, runtime_) = (Rc::clone(&tally), Rc::clone(&open), *request, Rc::clone(&runtime));
            let note = move |served: Served| {
                let response_ns = runtime_.now().saturating_sub(at).as_nanos() as u64;
                tally.borrow_mut().note(at.as_nanos() as u64, served, response_ns);
                open.set(open.get() - 1);
            };
            match serving {
                Serving::Tiered(driver) => {
                    let driver = Rc::clone(driver);
                    runtime.spawn(Box::pin(async move { note(driver.serve(request).await) }));
                }
                Serving::Cache(cache) => {
                    let cache = Rc::clone(cache);
                    runtime.spawn(Box::pin(async move { note(cache.serve(request).await) }));
                }
            }
        }
        // The last minute ends with the last request.
        tally.borrow_mut().placed(runtime.now().as_nanos() as u64, serving.moved().0);
        while open.get() > 0 {
            runtime.sleep(Duration::from_millis(1)).await;
        }
    });
    let elapsed_ns = runtime.now().saturating_sub(begun).as_nanos() as f64;
    let (_, up_bytes, down_bytes) = serving.moved();
    let tally = std::mem::take(&mut *tally.borrow_mut());
    Measured {
        up_bytes: up_bytes - up_before,
        down_bytes: down_bytes - down_before,
        disks_busy: (devices.work().busy_ns - busy_before) as f64 / elapsed_ns.max(1.0) / devices.disks() as f64,
        ..tally.end()
    }
}
