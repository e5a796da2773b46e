//! Why a connection ended before its time.

use std::io;
use std::time::Duration;

/// Why a connection ended other than by the client's wish. No other connection notices.
#[derive(Debug, thiserror::Error)]
pub enum Hangup {
    /// The socket failed, or the client left in the middle of a message.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// The client sent what the protocol forbids, in a way that cannot be answered.
    #[error("the client broke the protocol: {0}")]
    Violation(&'static str),
    /// The client took too long.
    #[error("the client took longer than {limit:?} to {what}")]
    Slow {
        /// What it should have done.
        what: &'static str,
        /// In which time.
        limit: Duration,
    },
}
