#![no_main]
#![allow(dead_code)] // The module is shared with the tests, which use more of it.

#[path = "../../front/replicate/tests/it/fuzz_body.rs"]
mod fuzz_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(fuzz_body::serve(data)));

// What is too short to mean anything begins anew from a conversation that does.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let seeds = fuzz_body::request_seeds();
    let begin = &seeds[seed as usize % seeds.len()];
    let size = if size < 8 && begin.len() <= max_size {
        data[..begin.len()].copy_from_slice(begin);
        begin.len()
    } else {
        size
    };
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
});
