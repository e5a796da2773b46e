#![no_main]
#![allow(dead_code)] // The module is shared with the tests, which use more of it.

#[path = "../../front/replicate/tests/it/fuzz_body.rs"]
mod fuzz_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(fuzz_body::serve(data)));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    kura_fuzz::mutate(data, size, max_size, seed, &fuzz_body::request_seeds())
});
