//! The room from outside: whatever comes from the other end.
#![allow(clippy::unwrap_used, reason = "a test breaks by panicking")]

mod fuzz_body;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs tried from each seed in every run; the fuzz targets go on where this ends.
const TRIES: u64 = 250;

fn mutate(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..5) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..6) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            _ if at == bytes.len() => bytes.extend(random.random::<[u8; 6]>()),
            2 => bytes[at] = random.random(),
            3 => bytes[at] ^= 1 << random.random_range(0..8),
            4 => drop(bytes.drain(at..(at + random.random_range(1..20)).min(bytes.len()))),
            _ => {
                let piece = bytes[at..(at + random.random_range(1..60)).min(bytes.len())].to_vec();
                let to = random.random_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

fn try_all(seeds: Vec<Vec<u8>>, body: impl Fn(&[u8])) {
    for (number, seed) in seeds.into_iter().enumerate() {
        body(&seed);
        let mut random = ChaCha8Rng::seed_from_u64(number as u64);
        for _ in 0..TRIES {
            let mut bytes = seed.clone();
            mutate(&mut bytes, &mut random);
            body(&bytes);
        }
    }
}

#[test]
fn a_target_survives_any_source() {
    for seed in fuzz_body::request_seeds() {
        // Else the others begin with nothing that is understood.
        assert_eq!(fuzz_body::replies(&fuzz_body::serve(&seed)).len(), fuzz_body::requests(&seed));
    }
    try_all(fuzz_body::request_seeds(), |bytes| drop(fuzz_body::serve(bytes)));
}

#[test]
fn frames_of_volumes_are_taken_whole_or_refused() {
    for seed in fuzz_body::frame_seeds() {
        assert!(fuzz_body::unpack(&seed), "a frame that is none");
    }
    try_all(fuzz_body::frame_seeds(), |bytes| {
        fuzz_body::unpack(bytes);
    });
}
