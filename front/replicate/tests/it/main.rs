//! The room from outside: whatever comes from the other end.
#![allow(clippy::unwrap_used, reason = "a test breaks by panicking")]

mod fuzz_body;
#[path = "../../../../fuzz/mutated.rs"]
mod mutated;

use mutated::try_all;

/// Inputs tried from each seed.
const TRIES: u64 = 250;

#[test]
fn a_target_survives_any_source() {
    for seed in fuzz_body::request_seeds() {
        // Else the others begin with nothing that is understood.
        assert_eq!(fuzz_body::replies(&fuzz_body::serve(&seed)).len(), fuzz_body::requests(&seed));
    }
    try_all(fuzz_body::request_seeds(), TRIES, |bytes| drop(fuzz_body::serve(bytes)));
}

#[test]
fn frames_of_volumes_are_taken_whole_or_refused() {
    for seed in fuzz_body::frame_seeds() {
        assert!(fuzz_body::unpack(&seed), "a frame that is none");
    }
    try_all(fuzz_body::frame_seeds(), TRIES, |bytes| {
        fuzz_body::unpack(bytes);
    });
}
