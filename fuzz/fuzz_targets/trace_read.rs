#![no_main]

//! Whatever a file holds, it is read as a trace or refused in one line.

#[path = "../../lab/trace/tests/fuzz/body.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| drop(body::read(data)));

// What is too short to mean anything begins anew from a trace.
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let seeds = body::seeds();
    let begin = &seeds[seed as usize % seeds.len()];
    let size = if size < 8 && begin.len() <= max_size {
        data[..begin.len()].copy_from_slice(begin);
        begin.len()
    } else {
        size
    };
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
});
