//! A process of its own: what is freed by others would be counted, too.

use std::time::Duration;

/// Pages that the system gave this process so far (field 10 of its `stat`, the eighth behind the name).
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("this process");
    let field = stat.rsplit(')').next().and_then(|behind| behind.split_whitespace().nth(7));
    field.and_then(|field| field.parse().ok()).expect("a number")
}

/// Takes 128 MiB, and gives them back for longer than the allocator waits.
fn take_and_free() {
    let taken: Vec<Vec<u8>> = (0..2048).map(|at| vec![at as u8 | 1; 64 << 10]).collect();
    assert!(taken.iter().all(|bytes| bytes[0] > 0));
    drop(taken);
    std::thread::sleep(Duration::from_millis(300));
    // Whoever asks for something has what is due for it given back.
    drop((0..2048).map(|at| vec![1_u8; 512 + at]).collect::<Vec<_>>());
}

#[test]
fn what_is_freed_stays() {
    kura_memory::keep_freed();
    take_and_free();
    let before = faults();
    (0..4).for_each(|_| take_and_free());
    let since = faults() - before;
    assert!(since < 4096, "{since} pages were given again, of 131,072 that were used");
}
