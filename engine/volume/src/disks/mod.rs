//! Disks that fail, refuse, leave or are away: what they had is told, moved, or lost exactly.

mod away;
mod homes;
mod journals;
mod rebuild;
mod refused;

pub use away::OnlyCopies;
pub use rebuild::Held;
pub(crate) use refused::{APART, Moved, Read, Refused, TIMES};
