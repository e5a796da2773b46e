//! Volumes: what a run does next, and how changed blocks travel.
//!
//! ```text
//!   source  db@P1 ──── db@P2          a point: a read-only snapshot, of the same name at both ends
//!             │  frames  │            what differs, piece by piece: compressed, with a checksum
//!   target copy@P1 ── (copy) ── copy@P2
//! ```
//!
//! What must hold, whatever stops where:
//! 1. A point at the target is, byte for byte, the point of that name at the source.
//! 2. While a transfer from P1 to P2 is under way, a block of the target's volume is P1's or P2's, and P2's below the
//!    offset that the target keeps durably. So frames may come twice, and in any order.
//! 3. The newest point that both have is deleted at neither end: where a full pool may drop snapshots it spares the target's, and
//!    without the source's all is sent.
//! 4. A target whose content is anything else goes back to a point first, or gets all of it.

mod frame;
mod policy;

pub use frame::{Extent, FRAME_BYTES, Frame, Head};
pub use policy::{Facts, Point, Step, Tidy, Transfer, common, is_own, next, pair_of, point_name, tidy};
