#![no_main]

#[path = "../../front/s3/tests/it/fuzz_body.rs"]
mod fuzz_body;
#[path = "../../front/s3/tests/it/local.rs"]
#[expect(dead_code, reason = "only tests lose blocks")]
mod local;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_body::ask(data));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    kura_fuzz::mutate(data, size, max_size, seed, &fuzz_body::seeds())
});
