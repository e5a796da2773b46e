//! A fixed budget of mutated input in every test run; the fuzz targets go on where this ends. Tests of rooms take it by path.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn mutate(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=bytes.len());
        match random.random_range(0..8) {
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
            // What stands elsewhere in it: text stays text.
            6 => {
                let byte = bytes[at];
                bytes.insert(random.random_range(0..=bytes.len()), byte);
            }
            _ => {
                let extreme = [[0; 4], [0xff; 4], [0x7f, 0xff, 0xff, 0xff], [0, 0x10, 0, 0]];
                let len = bytes.len().min(at + 4) - at;
                bytes[at..at + len].copy_from_slice(&extreme[random.random_range(0..4)][..len]);
            }
        }
    }
}

/// Hands every seed to `body`, and behind it so many mutations of it.
pub fn try_all(seeds: Vec<Vec<u8>>, tries: u64, mut body: impl FnMut(&[u8])) {
    for (number, seed) in seeds.into_iter().enumerate() {
        body(&seed);
        let mut random = ChaCha8Rng::seed_from_u64(number as u64);
        for _ in 0..tries {
            let mut bytes = seed.clone();
            mutate(&mut bytes, &mut random);
            body(&bytes);
        }
    }
}
