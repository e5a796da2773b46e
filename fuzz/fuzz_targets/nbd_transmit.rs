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

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz_body::transmit(data));

// What is too short to mean anything begins anew from a conversation that does.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let seeds = fuzz_body::transmission_seeds();
    let begin = &seeds[seed as usize % seeds.len()];
    let size = if size < 8 && begin.len() <= max_size {
        data[..begin.len()].copy_from_slice(begin);
        begin.len()
    } else {
        size
    };
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
});
