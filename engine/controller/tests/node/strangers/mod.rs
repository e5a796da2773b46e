//! Disks that somebody made up: labels and journals that agree with their checksums and with nothing else.
//!
//! What must hold: they are refused in one line, or served; nothing panics, and nothing is waited for without end.

mod body;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Disks tried in every run; the fuzz target goes on where this ends.
const TRIES: u64 = 600;

#[test]
fn disks_that_were_made_up_are_refused_or_served() {
    let mut ended = [0; 2];
    for seed in 0..TRIES {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let bytes: Vec<u8> = (0..random.random_range(5..40)).map(|_| random.random()).collect();
        ended[usize::from(body::start(&bytes))] += 1;
    }
    // Else it looks at nothing.
    assert!(ended.iter().all(|count| *count > TRIES / 20), "{} refused, {} served", ended[0], ended[1]);
}
