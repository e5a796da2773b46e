//! The disks of a pool: their labels, the extents they are cut into, the layouts that put copies on several of them,
//! and the checksums that every read is held against.
//!
//! ```text
//!  a disk   | label A | label B | pad to 1 MiB | journals, one region a controller | pages | pad | extents ......... |
//!                                                (journal disks only)               A, B of each extent
//!
//!  a group of extents of a volume = one place (layout none), two places on two disks (mirror),
//!  or a place a column and one for parity, in stripes (raid5)
//! ```
//!
//! A **page** holds the checksum of every block of an extent; zero says that nothing is written there. It is kept on two
//! disks of the group (on one with layout none), twice on each, and the two are written in turn, so that a torn page
//! leaves the one before it.
//!
//! What must hold:
//! 1. Bytes handed up agree with their checksum; a copy that does not is passed over, counted, and named to the caller.
//! 2. A disk marked failed is neither read nor written until it is replaced.
//! 3. A page belongs to the extent's present owner (volume, index, birth): what an earlier owner left is foreign.
//!
//! The array does not know the journal: the layer above orders its writes so that no crash can tear them unseen.

mod array;
mod blocks;
mod copies;
mod fast;
mod floating;
pub mod hot;
mod label;
mod layout;
mod load;
mod page;
mod pages;
pub mod parity;
mod plan;
pub mod policy;
mod queue;
#[cfg(test)]
mod tests;

pub use array::{Array, Counters, Failure, Found, Member, Site};
pub use blocks::Blocks;
pub use copies::{Agreement, BadCopy, Verified};
pub use fast::FastPage;
pub use floating::{Afloat, Berth, LeavingMaps, Rows, RowsOwner};
pub use label::{Class, JournalPart, Label, LabelMember, has_label, read_label, wipe_label, write_label};
pub use layout::{Layout, Piece, Place, Places, Shape, Shelf};
pub use load::Work;
pub use page::{LOST_STEP, Page, PageOwner};
pub use pages::{Lacking, Refusal, Sought};
pub use plan::Plan;
pub use queue::Urgency;
