//! The journal of a controller: the non-volatile write buffer of the hot mirroring paper, and the log that every table
//! is a fold of.
//!
//! A controller appends [records](Journal::append) (a few bytes that only the layer above understands, with the data
//! blocks of a write behind them) and waits for [`Journal::commit`] where a client was promised durability. Records
//! that arrive while an entry is being written form the next one: group commit. Each entry goes to every copy of the
//! journal (two, on two fast devices, where the pool has them) and counts when all live copies have it.
//!
//! ```text
//!  region on a device      | root A | root B | tables A | tables B | ring ............................ |
//!                            4 KiB    4 KiB                          tail entry ... head entry, free
//!
//!  an entry in the ring    | header: magic, CRC, epoch, sequence, first LSN, counts | records | pad | data blocks |
//! ```
//!
//! What must hold:
//! 1. An entry counts as durable only when it and all before it are, on every live copy. Each says below which one that
//!    was so when it was written. Entries that nobody waits for are made durable many at a time.
//! 2. What lies behind the tail is never needed again: its data is at its place, its tables are checkpointed.
//! 3. A root is written only after all it speaks of (tables, data, checksum pages) is durable.
//! 4. Entries carry the epoch of their root; each recovery begins a new epoch before anything is appended, so a stale
//!    entry is never taken for a new one.
//! 5. A copy that failed is named dead in an entry or a root on the others before anything is acknowledged without it; a
//!    journal whose newest copy may be away does not open unasked. What lies on copies that are not live is not believed.
//! 6. An entry that is damaged is told apart from the log's end: a later one says that it was durable, or a root that the log was
//!    closed behind it.
//! 7. An entry that says of data that it lies elsewhere is written only when it is durable there.
//!
//! The formats are in `docs/format.md`; the modules `entry` and `root` are their only writers and readers.

mod commit;
mod copies;
mod elsewhere;
mod entry;
mod habit;
mod journal;
mod root;
mod scan;
mod state;
#[cfg(test)]
mod tests;

pub use commit::PATIENCE;
pub use elsewhere::{Carried, Settle};
pub use entry::{Entry, Record};
pub use journal::{Journal, JournalCopy, Limits, Tables, Usage};
pub use root::{Identity, Shape};
pub use scan::{Scan, blank, format};

/// Number of a record: counts up with each record, for ever; numbers may be [skipped](Journal::skip_to).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lsn(pub u64);
