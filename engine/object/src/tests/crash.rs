//! Power cuts at every operation of the device.

use super::model::{world, world_of};
use kura_sim::{CrashPoint, Fault, FaultKind, FaultPlan, Sim, When};
use rand::RngExt;
use std::time::Duration;

/// A run of a few hundred operations is cut at each of them in turn, once a seed.
#[test]
fn the_power_goes_at_every_operation() {
    for nth in 1..400 {
        world(1000 + nth, 8 << 20, 1, |_, _| Some(CrashPoint::Op(nth)));
    }
}

/// Worlds that go through many cuts, with the cleaner at work: what recovery leaves is recovered from again.
#[test]
fn the_power_goes_again_and_again() {
    let (mut checkpoints, mut cleaned, mut evacuated) = (0, 0, 0);
    for seed in 0..40 {
        let crash = |sim: &Sim, round: usize| {
            let nth = sim.rng(&format!("crash {round}")).random_range(1..600);
            (!round.is_multiple_of(4)).then_some(CrashPoint::Op(nth))
        };
        let (_, counters) = world(5000 + seed, (3 << 20) + ((seed % 40) << 16), 12, crash);
        checkpoints += counters.checkpoints;
        cleaned += counters.cleaned_segments;
        evacuated += counters.evacuated_segments;
    }
    let busy = checkpoints > 40 && cleaned > 40 && evacuated > 40;
    assert!(busy, "the cuts met {checkpoints} checkpoints, {cleaned} cleaned and {evacuated} evacuated segments");
}

/// A thin device has no room now and then, and the power goes: what was refused did not happen, all else did, and the
/// store lives on.
#[test]
fn the_device_is_full_and_the_power_goes() {
    let mut given_up = 0;
    for seed in 0..150 {
        let plan = |sim: &Sim, round: usize| {
            let mut rng = sim.rng(&format!("plan {round}"));
            let full = |rng: &mut kura_sim::ChaCha8Rng| Fault {
                disk: "disk".to_string(),
                when: When::Op(rng.random_range(30..300)),
                what: FaultKind::Full { lasts: Duration::from_micros(rng.random_range(10..3000)) },
            };
            let faults = (0..4).map(|_| full(&mut rng)).collect();
            let crash = CrashPoint::Op(rng.random_range(100..600));
            let crashes = rng.random_bool(0.7).then_some(crash).into_iter().collect();
            FaultPlan { faults, crashes }
        };
        let (_, counters) = world_of(9000 + seed, (6 << 20) + ((seed % 40) << 16), 3, true, plan, |_, _| {});
        given_up += counters.given_up_entries;
    }
    assert!(given_up > 100, "{given_up} entries met no room");
}
