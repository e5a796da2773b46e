#![no_main]
#![allow(dead_code)] // The module is shared with the tests, which use more of it.

#[path = "../../front/replicate/tests/it/fuzz_body.rs"]
mod fuzz_body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fuzz_body::unpack(data);
});
