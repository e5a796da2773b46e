//! What the targets share.

/// Mutates an input; what is too short to mean anything begins anew from one of `seeds`, which do. The input's new size, in
/// bytes.
pub fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32, seeds: &[Vec<u8>]) -> usize {
    let begin = &seeds[seed as usize % seeds.len()];
    let size = if size < 8 && begin.len() <= max_size {
        data[..begin.len()].copy_from_slice(begin);
        begin.len()
    } else {
        size
    };
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
}
