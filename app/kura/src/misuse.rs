//! What was asked for in a way that no server and no file could answer: told as the parser tells it, with the status of that.

use std::fmt;

/// What is wrong with a command, and how it is right.
#[derive(Debug)]
pub struct Misuse(pub String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}
