//! Power cuts at every operation of the device.

use super::model::world;
use kura_sim::{CrashPoint, Sim};
use rand::RngExt;

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
