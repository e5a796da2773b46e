#![no_main]

//! Whatever a file holds, it is read as a trace or refused in one line.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| std::env::temp_dir().join(format!("kura-fuzz-trace-{}", std::process::id())));

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    fs::write(&*FILE, data).expect("the file is written");
    let mut last_ns = 0;
    let read = kura_trace::open(&FILE).and_then(|reader| {
        for request in reader {
            let request = request?;
            assert!(last_ns <= request.at_ns && i64::try_from(request.end_bytes()).is_ok());
            last_ns = request.at_ns;
        }
        Ok(())
    });
    if let Err(refusal) = read {
        assert!(!refusal.to_string().contains('\n'));
    }
});
