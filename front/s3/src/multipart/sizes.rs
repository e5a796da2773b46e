//! The sizes of an object's parts, by which one is read by its number: kept with the object as text, equal ones in a row once.
//!
//! ```text
//!   8388608*39 1234*1        39 parts of 8 MiB, and one of 1234 bytes
//! ```

use kura_object::Attributes;
use std::ops::Range;

/// The attribute that has them.
const SIZES: &str = "upload-sizes";

/// The attribute that keeps these sizes, where it takes no more than this, its name included.
pub(crate) fn kept(sizes: &[u64], most_bytes: usize) -> Option<(String, Vec<u8>)> {
    let runs = sizes.chunk_by(|one, next| one == next).map(|run| format!("{}*{}", run[0], run.len()));
    let text = runs.collect::<Vec<_>>().join(" ");
    (SIZES.len() + text.len() <= most_bytes).then(|| (SIZES.to_owned(), text.into_bytes()))
}

/// What is kept of them with an object.
pub(crate) fn of(attributes: &Attributes) -> Option<&str> {
    std::str::from_utf8(attributes.get(SIZES)?).ok()
}

/// The bytes of the part of this number, from 1 on.
pub(crate) fn part(sizes: &str, number: u64) -> Option<Range<u64>> {
    let (mut before, mut begin) = (number.checked_sub(1)?, 0);
    for run in sizes.split(' ') {
        let (size, count) = run.split_once('*')?;
        let (size, count): (u64, u64) = (size.parse().ok()?, count.parse().ok()?);
        if before < count {
            begin += before * size;
            return Some(begin..begin + size);
        }
        (before, begin) = (before - count, begin + count * size);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_by_its_number() {
        let sizes = [5, 5, 5, 7, 5, 0];
        let kept = Attributes::from([kept(&sizes, 100).unwrap()]);
        let text = of(&kept).unwrap();
        assert_eq!(text, "5*3 7*1 5*1 0*1");
        let parts = (0..8).map(|number| part(text, number));
        let found = [0..5, 5..10, 10..15, 15..22, 22..27, 27..27].map(Some);
        assert!(parts.eq([None].into_iter().chain(found).chain([None])));
        assert_eq!(super::kept(&sizes, text.len()), None, "its name counts");
    }
}
