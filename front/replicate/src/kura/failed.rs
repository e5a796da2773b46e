//! What could not be done at the target, as it is told.

use crate::error::{FULL, Failure};
use std::io::{Error, Result};

pub fn is_full(error: &Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

pub fn cause(error: &Error) -> String {
    if is_full(error) {
        return FULL.to_owned();
    }
    format!(
        "target: {}",
        Error::from_raw_os_error(error.raw_os_error().unwrap_or(0))
            .to_string()
            .split(" (os")
            .next()
            .unwrap_or_default()
    )
}

pub fn failed(path: &[u8], error: Error) -> Failure {
    if error.raw_os_error().is_some() {
        Failure::new(path, cause(&error))
    } else {
        Failure::new(path, format!("target: {error}"))
    }
}

pub fn one(path: &[u8], done: Result<()>) -> Vec<Failure> {
    done.err().map(|error| failed(path, error)).into_iter().collect()
}

pub fn each<'a, T>(list: &'a [T], mut one: impl FnMut(&'a T) -> (&'a [u8], Result<()>)) -> Vec<Failure> {
    list.iter()
        .filter_map(|item| {
            let (path, done) = one(item);
            done.err().map(|error| failed(path, error))
        })
        .collect()
}
