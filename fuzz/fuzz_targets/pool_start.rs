#![no_main]

#[path = "../../engine/controller/tests/node/strangers/body.rs"]
mod body;
#[path = "../../engine/controller/tests/rig/mod.rs"]
mod rig;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    body::start(data);
});
