//! Disks that fail, refuse, leave or are away: what they had is told, moved, or lost exactly.

mod away;
mod homes;
mod journals;
mod rebuild;
mod refused;

pub use away::OnlyCopies;
pub(crate) use refused::{APART, Moved, Read, Refused, TIMES};

/// What lies on a disk that is failed or leaving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Copies of extents.
    pub copies: u64,
    /// Of these, copies of extents of which no copy on a working disk is left.
    pub lost: u64,
}
