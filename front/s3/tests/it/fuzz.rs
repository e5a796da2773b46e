//! A fixed budget of mutated input in every test run; the fuzz target goes on where this ends.

use crate::fuzz_body;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Inputs tried from each seed.
const TRIES: u64 = 200;

fn mutate(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            _ if at == bytes.len() => bytes.extend(random.random::<[u8; 8]>()),
            2 => bytes[at] = random.random(),
            3 => bytes[at] ^= 1 << random.random_range(0..8),
            4 => drop(bytes.drain(at..(at + random.random_range(1..40)).min(bytes.len()))),
            5 => {
                let piece = bytes[at..(at + random.random_range(1..200)).min(bytes.len())].to_vec();
                let to = random.random_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => {
                let extreme = [[0; 4], [0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0, 0x10, 0, 0]];
                let len = bytes.len().min(at + 4) - at;
                bytes[at..at + len].copy_from_slice(&extreme[random.random_range(0..4)][..len]);
            }
        }
    }
}

#[test]
fn requests_survive_anything() {
    for (number, seed) in fuzz_body::seeds().into_iter().enumerate() {
        fuzz_body::ask(&seed);
        let mut random = ChaCha8Rng::seed_from_u64(number as u64);
        for _ in 0..TRIES {
            let mut bytes = seed.clone();
            mutate(&mut bytes, &mut random);
            fuzz_body::ask(&bytes);
        }
    }
}
