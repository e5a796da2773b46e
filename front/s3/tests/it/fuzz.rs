//! The bytes of strangers, under a fixed budget of random ones.

use crate::fuzz_body;
use crate::mutated::try_all;

/// Inputs tried from each seed.
const TRIES: u64 = 200;

#[test]
fn requests_survive_anything() {
    try_all(fuzz_body::seeds(), TRIES, fuzz_body::ask);
}
