//! The bytes of strangers, under a fixed budget of random ones.

use crate::fuzz_body;
use crate::mutated::try_all;

/// Inputs tried from each seed.
const TRIES: u64 = 400;

#[test]
fn negotiation_survives_anything() {
    try_all(fuzz_body::negotiation_seeds(), TRIES, fuzz_body::negotiate);
}

#[test]
fn transmission_survives_anything() {
    try_all(fuzz_body::transmission_seeds(), TRIES, fuzz_body::transmit);
}
