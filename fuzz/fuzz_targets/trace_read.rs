#![no_main]

//! Whatever a file holds, it is read as a trace or refused in one line.

#[path = "../../lab/trace/tests/fuzz/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(body::read(data)));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    kura_fuzz::mutate(data, size, max_size, seed, &body::seeds())
});
