//! Chance: named streams from one seed, so that a new draw in one moves no other.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use xxhash_rust::xxh3::xxh3_64;

/// The stream of this name.
pub(crate) fn stream(seed: u64, name: &str) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(xxh3_64(name.as_bytes()));
    rng
}

/// True with this probability.
pub(crate) fn coin(rng: &mut ChaCha8Rng, probability: f64) -> bool {
    rng.random::<f64>() < probability
}

/// A step by which one goes round `places` and comes to each of them once before any twice; places that follow each other
/// in time lie far apart.
pub(crate) fn stride(places: u64) -> u64 {
    const GOLDEN: f64 = 0.618_033_988_749_894_9;
    let start = (places as f64 * GOLDEN) as u64;
    (start..=places).find(|step| gcd(*step, places) == 1).unwrap_or(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
