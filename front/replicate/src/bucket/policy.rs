//! What a run does with a key.

use super::Carried;
use std::ops::Range;

/// Parts of a large object, at least.
const PART_BYTES: u64 = 16 << 20;
/// Parts that S3 allows of an object.
const PARTS: u64 = 10_000;

/// An object at the source, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    /// Its key.
    pub key: String,
    /// What another content, other headers, other tags, or a put of the same, have otherwise.
    pub identity: String,
    /// Its version.
    pub version: String,
    /// Bytes of content.
    pub size_bytes: u64,
}

/// An object at the target, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct There {
    /// Its key.
    pub key: String,
    /// Its `ETag`, without quotes.
    pub etag: String,
    /// Bytes of content.
    pub size_bytes: u64,
}

/// What is done with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The target gets the object.
    Carry,
    /// The target loses it.
    Delete,
    /// It is what it should be.
    Keep,
}

/// What to do with a key, of what both sides have under it.
pub fn next(here: Option<&Here>, there: Option<&There>, carried: &Carried) -> Step {
    match (here, there) {
        (Some(here), Some(there)) if carried.knows(here, &there.etag) && here.size_bytes == there.size_bytes => {
            Step::Keep
        }
        (Some(_), _) => Step::Carry,
        (None, Some(_)) => Step::Delete,
        (None, None) => Step::Keep,
    }
}

/// Whether the target's bucket is somebody else's by now, of what it lists first: something was carried to it, and of all that is there
/// nothing was.
pub fn is_others(first: &[There], carried: &Carried) -> bool {
    !carried.is_empty() && !first.is_empty() && !first.iter().any(|there| carried.has(&there.key))
}

/// Bytes of each part, the last apart, of an object of this size; none where it goes as a whole.
pub fn part_bytes(size_bytes: u64) -> Option<u64> {
    (size_bytes > PART_BYTES).then(|| size_bytes.div_ceil(PARTS).max(PART_BYTES))
}

/// The bytes of each part, of an object of this size.
pub fn parts(size_bytes: u64, part_bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let part_bytes = part_bytes.max(1);
    (0..size_bytes.div_ceil(part_bytes)).map(move |part| part * part_bytes..size_bytes.min((part + 1) * part_bytes))
}

/// Whether a URL can name the key: `.` and `..` between slashes would be taken for steps in a path.
pub fn is_addressable(key: &str) -> bool {
    !key.is_empty() && key.split('/').all(|step| step != "." && step != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(identity: &str) -> Here {
        Here { key: "k".into(), identity: identity.into(), version: "null".into(), size_bytes: 5 }
    }

    fn there(etag: &str, size_bytes: u64) -> There {
        There { key: "k".into(), etag: etag.into(), size_bytes }
    }

    #[test]
    fn only_what_is_known_to_be_the_same_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut carried = Carried::open(folder.path()).unwrap();
        carried.carried(&here("1"), "e").unwrap();
        let step = |here: Option<Here>, there: Option<There>| next(here.as_ref(), there.as_ref(), &carried);
        assert_eq!(step(Some(here("1")), Some(there("e", 5))), Step::Keep);
        assert_eq!(step(Some(here("2")), Some(there("e", 5))), Step::Carry, "changed here");
        assert_eq!(step(Some(here("1")), Some(there("f", 5))), Step::Carry, "changed there");
        assert_eq!(step(Some(here("1")), Some(there("e", 6))), Step::Carry, "another size there");
        assert_eq!(step(Some(here("1")), None), Step::Carry, "lost there");
        assert_eq!(step(None, Some(there("e", 5))), Step::Delete);
    }

    #[test]
    fn a_bucket_in_which_nothing_is_from_here_is_somebody_elses() {
        let folder = tempfile::tempdir().unwrap();
        let mut carried = Carried::open(folder.path()).unwrap();
        let other = || There { key: "other".into(), ..there("e", 5) };
        assert!(!is_others(&[other()], &carried), "nothing was carried yet");
        carried.carried(&here("1"), "e").unwrap();
        assert!(is_others(&[other()], &carried) && !is_others(&[], &carried));
        assert!(!is_others(&[other(), there("changed there", 6)], &carried));
    }

    #[test]
    fn an_object_of_any_size_fits_into_the_parts() {
        assert_eq!((part_bytes(0), part_bytes(PART_BYTES)), (None, None));
        for size in [PART_BYTES + 1, PART_BYTES * PARTS, PART_BYTES * PARTS + 1, 5 << 40] {
            let part = part_bytes(size).unwrap();
            assert!(part >= PART_BYTES && size.div_ceil(part) <= PARTS, "{size}");
            let all: Vec<_> = parts(size, part).collect();
            assert_eq!((all[0].start, all[all.len() - 1].end, all.len() as u64), (0, size, size.div_ceil(part)));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].end - pair[0].start == part));
        }
    }

    #[test]
    fn keys_that_are_steps_in_a_path_have_no_url() {
        for key in ["a", "a/", "/a", "//", "a/...", ".a", "a%2e%2e/b"] {
            assert!(is_addressable(key), "{key:?}");
        }
        for key in ["", ".", "..", "a/../b", "./a", "a/."] {
            assert!(!is_addressable(key), "{key:?}");
        }
    }
}
