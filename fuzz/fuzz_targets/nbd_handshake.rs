#![no_main]
#![allow(dead_code)] // The modules are shared with the tests, which use more of them.

#[path = "../../front/nbd/tests/it/certificates.rs"]
mod certificates;
#[path = "../../front/nbd/tests/it/client.rs"]
mod client;
#[path = "../../front/nbd/tests/it/fuzz_body.rs"]
mod fuzz_body;
#[path = "../../front/nbd/tests/it/local.rs"]
mod local;
#[path = "../../front/nbd/tests/it/memory.rs"]
mod memory;

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_body::negotiate(data));

libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    kura_fuzz::mutate(data, size, max_size, seed, &fuzz_body::negotiation_seeds())
});
