//! A fixed budget of mutated traces in every test run; the fuzz target goes on where this ends.

mod body;
#[path = "../../../../fuzz/mutated.rs"]
mod mutated;

use flate2::Compression;
use flate2::write::GzEncoder;
use mutated::try_all;
use std::io::Write;

/// Files tried from each seed.
const TRIES: u64 = 1000;

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
    for (number, seed) in seeds.iter().enumerate() {
        assert_eq!(body::read(seed), Ok(2), "seed {number}");
    }
    let (mut read, mut refused) = (0, 0);
    try_all(seeds, TRIES, |bytes| *(if body::read(bytes).is_ok() { &mut read } else { &mut refused }) += 1);
    // Neither is rare: the mutations are neither without effect nor all at the first byte.
    assert!(read > 200 && refused > 1000, "{read} were read and {refused} refused");
}
