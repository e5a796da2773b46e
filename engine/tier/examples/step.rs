//! Measures what one decision costs, a line of JSON for each policy and kind of interval. `cargo xtask bench tier` puts
//! them together.
#![allow(clippy::print_stdout, reason = "it is what this program is for")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it measures the engine, and is none of it")]

use kura_block::Result;
use kura_tier::{Costs, Facts, Heat, Placed, Settings, SlowLoad, Space, VolumeFacts, Wants};
use std::time::Instant;

/// Regions of the volume: a TiB of 1 MiB each, or 4 TiB of 4 MiB.
const REGIONS: u32 = 1 << 20;
/// Regions on the fast tier: a twelfth.
const PLACED: u32 = REGIONS / 12;
const ROUNDS: usize = 21;

/// A cheap sequence that looks random.
fn scatter(at: u32) -> u32 {
    (at.wrapping_mul(2_654_435_761)) >> 12
}

/// I/O of an interval on `touched` regions, spread over the volume.
fn heat(touched: u32, round: u32) -> Vec<Heat> {
    let mut regions: Vec<u32> = (0..touched).map(|at| scatter(at + round * 7) % REGIONS).collect();
    regions.sort_unstable();
    regions.dedup();
    regions.into_iter().map(|region| Heat { region, reads: 1 + scatter(region) % 50, writes: region % 3 }).collect()
}

fn main() -> Result<()> {
    let placed: Vec<Placed> = (0..PLACED).map(|at| Placed { region: at * 12, dirty: at % 2 == 0 }).collect();
    for name in Settings::NAMES {
        for (kind, touched) in [("1 % touched", REGIONS / 100), ("all touched", REGIONS * 4)] {
            let settings = Settings::named(name)?;
            let mut policy = settings.policy()?;
            let mut times_ms = Vec::new();
            let mut moves = 0;
            for round in 0..ROUNDS {
                let (heat, all) = (heat(touched, round as u32), 0..REGIONS);
                let volume = VolumeFacts {
                    volume: 1,
                    regions: REGIONS,
                    mapped: std::slice::from_ref(&all),
                    heat: &heat,
                    placed: &placed,
                    wants: Wants::default(),
                };
                let facts = Facts {
                    now_ns: (round as u64 + 1) * settings.interval_ns(),
                    interval_ns: settings.interval_ns(),
                    region_bytes: settings.region_bytes(),
                    volumes: &[volume],
                    // Full: what comes up displaces something.
                    fast: Space { total: PLACED, free: 0 },
                    waiting: 0,
                    slow: SlowLoad { utilisation: 0.3, queue: 0.5 },
                    costs: Costs { up_ms: 60.0, down_ms: 60.0, slow_ms: 7.6, fast_ms: 0.1 },
                };
                let begun = Instant::now();
                let decision = policy.decide(&facts);
                times_ms.push(begun.elapsed().as_secs_f64() * 1e3);
                moves += decision.moves.len();
            }
            times_ms.sort_unstable_by(f64::total_cmp);
            println!(
                "{{\"policy\":\"{name}\",\"interval\":\"{kind}\",\"median_ms\":{:.3},\"most_ms\":{:.3},\"moves\":{moves},\
                 \"memory_bytes\":{},\"regions\":{REGIONS}}}",
                times_ms[ROUNDS / 2],
                times_ms[ROUNDS - 1],
                policy.memory_bytes()
            );
        }
    }
    Ok(())
}
