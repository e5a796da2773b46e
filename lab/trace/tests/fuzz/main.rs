//! A fixed budget of mutated traces in every test run; the fuzz target goes on where this ends.

mod body;

use flate2::Compression;
use flate2::write::GzEncoder;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::io::Write;

/// Files tried from each seed.
const TRIES: u64 = 1000;

fn mutate(bytes: &mut Vec<u8>, random: &mut ChaCha8Rng) {
    for _ in 0..random.random_range(1..5) {
        let at = random.random_range(0..=bytes.len());
        let end = (at + random.random_range(1..40)).min(bytes.len());
        match random.random_range(0..7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.random()),
            2 => bytes.insert(at, b"0123456789,+ \n"[random.random_range(0..14)]),
            _ if at == bytes.len() => bytes.extend(random.random::<[u8; 8]>()),
            3 => bytes[at] = random.random(),
            4 => bytes[at] ^= 1 << random.random_range(0..8),
            5 => drop(bytes.drain(at..end)),
            _ => {
                let piece = bytes[at..end].to_vec();
                let to = random.random_range(0..=bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes it");
    encoder.finish().expect("memory takes it")
}

#[test]
fn a_file_is_a_trace_or_is_refused_in_one_line() {
    let mut seeds = body::seeds();
    let plain = seeds[0].clone();
    seeds.extend([gzip(&plain), zstd::encode_all(&plain[..], 1).expect("memory takes it")]);
    let (mut read, mut refused) = (0, 0);
    for (number, seed) in seeds.into_iter().enumerate() {
        assert_eq!(body::read(&seed), Ok(2), "seed {number}");
        let mut random = ChaCha8Rng::seed_from_u64(number as u64);
        for _ in 0..TRIES {
            let mut bytes = seed.clone();
            mutate(&mut bytes, &mut random);
            *(if body::read(&bytes).is_ok() { &mut read } else { &mut refused }) += 1;
        }
    }
    // Neither is rare: the mutations are neither without effect nor all at the first byte.
    assert!(read > 200 && refused > 1000, "{read} were read and {refused} refused");
}
