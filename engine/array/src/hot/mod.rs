//! The mirrored hot area: which block lies in which of its places.
//!
//! ```text
//!  hot extents, each mirrored on a pair of disks (chained declustering: disks 0-1, 1-2, 2-3, ... n-0)
//!   | track 0: slot slot slot ... | track 1 ......... | ...
//!               mirror ID ──> block, state, Age                                       (the management table)
//! ```
//!
//! A block's place here is free: what is written goes to free slots of one track of the pair that has the least to do,
//! and the slots it lay in before are given up. Slots given up are used again only when no replay of the log could read
//! them. The table is a fold of the journal; a page beside each hot extent says who has its slots.
//!
//! Source: Mogi and Kitsuregawa, section 3.1; the numbers are parameters ([`HotSettings`]).

mod page;
mod settings;
mod table;
#[cfg(test)]
mod tests;

pub use page::HotPage;
pub use settings::HotSettings;
pub use table::{HotExtent, HotTable, MirrorId, Owner, Pair};
