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
    for seed in 0..40 {
        let crash = |sim: &Sim, round: usize| {
            let nth = sim.rng(&format!("crash {round}")).random_range(1..600);
            (!round.is_multiple_of(4)).then_some(CrashPoint::Op(nth))
        };
        world(5000 + seed, 6 << 20, 12, crash);
    }
}
