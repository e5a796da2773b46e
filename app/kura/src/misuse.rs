//! What was asked for in a way that no server and no file could answer: told as the parser tells it, with the status of that.

/// What is wrong with a command, and how it is right.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);
