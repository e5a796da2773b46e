//! Why a run could not be done, and why a file could not be carried.

use serde::{Serialize, Serializer};
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

/// Why a run could not be done, in one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The source cannot be read.
    #[error("the source {}: {cause}: name a directory that can be read", path.display())]
    Source {
        /// The source.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// The target cannot be written, or reached.
    #[error("the target {target}: {cause}")]
    Target {
        /// The target.
        target: String,
        /// Why, and what to do.
        cause: String,
    },
    /// A file of the job's own.
    #[error("{}: {cause}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: io::Error,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
}

impl Error {
    pub(crate) fn target(target: impl Into<String>, cause: impl ToString) -> Self {
        Self::Target { target: target.into(), cause: cause.to_string() }
    }

    /// Why, for who names the target.
    pub(crate) fn why(self) -> String {
        match self {
            Self::Target { cause, .. } => cause,
            other => other.to_string(),
        }
    }

    pub(crate) fn state(path: &Path, cause: io::Error) -> Self {
        Self::State { path: path.to_owned(), cause }
    }
}

/// A result with that.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a file is not carried, or perhaps not as it was at any instant.
pub(crate) const CHANGED: &str = "source: it changed while it was copied: the next run carries it";
/// Why nothing more goes to a target.
pub(crate) const FULL: &str = "the target is full: free some of its space and run again";

/// Why the source keeps what it has, when work with its copy is brought back.
pub(crate) const STAYS: &str = "the source's stays: the copy lacked something when it was failed over to, and nobody has written to this in it since, or \
     what was written has an older time than the source's: `touch` it there if it is work; after failback --anyway the next run \
     carries the source's";
/// Why a directory that is nowhere is not deleted at the target.
pub(crate) const MOVES: &str = "it may have moved while the tree was read, and its copy stays: the next run looks";
/// Why an empty directory is not carried.
pub(crate) const UNMOUNTED: &str =
    "what was mounted there is not, and its copy stays: mount it; or, where it is to be empty, say --allow-empty";
/// Why no new copy is made.
pub(crate) const GONE: &str = "its copy is no longer there: is it mounted? Say --adopt to make a new one";
/// Why a directory of the target is left as it is.
pub(crate) const COPY: &str = "a copy of its own is there, which is not deleted: move it to where no other copy is";

/// Something that was not carried.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Failure {
    /// Its path under the source's root.
    #[serde(serialize_with = "as_text")]
    pub path: Vec<u8>,
    /// Why.
    pub cause: String,
}

impl Failure {
    /// What was not carried, or differs, and why.
    pub fn new(path: impl Into<Vec<u8>>, cause: impl ToString) -> Self {
        Self { path: path.into(), cause: cause.to_string() }
    }
}

/// A path as text: bytes that are no UTF-8, controls and backslashes as `\xHH`, so that it can be read back; a root's as a dot.
pub fn escaped(path: &[u8]) -> String {
    let path = if path.is_empty() { b"." } else { path };
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter == '\\' || letter.is_control() {
                hexadecimal(&mut text, letter.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(letter);
            }
        }
        hexadecimal(&mut text, chunk.invalid());
    }
    text
}

fn hexadecimal(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // Writing to a string does not fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
}

fn as_text<S: Serializer>(path: &[u8], serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_str(&escaped(path))
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn a_path_as_text_is_one_line_that_can_be_read_back() {
        assert_eq!(escaped("é/b c".as_bytes()), "é/b c");
        assert_eq!(escaped(b"a\nb\xff\\"), "a\\x0ab\\xff\\x5c");
        assert_eq!(escaped(b""), ".");
    }
}
