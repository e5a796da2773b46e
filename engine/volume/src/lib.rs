//! Thin and thick volumes in extents of the pool.
//!
//! A [`Store`] is one controller's volumes: their tables, a write buffer before the disks, and the tasks that empty it.
//! A [`Volume`] is one of them, opened: a block device.
//!
//! ```text
//!   write ──> journal (record with data) ──> write buffer ── destage ──> places on disks (array)
//!               │                              ▲  read                    ▲  read, held against checksums
//!               └── commit: FUA, flush         │                          │
//!   read  ─────────────────────────────────────┴── or ────────────────────┘
//!
//!   checkpoint: buffer at its place ─> flush ─> pages ─> flush ─> tables, root ─> the journal's tail moves on
//! ```
//!
//! What must hold:
//! 1. A write is acknowledged from the write buffer; FUA and flush are when the journal is durable.
//! 2. A block goes to its place only after its record is durable, and never while an earlier version is on its way
//!    there: after a crash a place holds a version that is durable in the journal or behind its tail. Large writes to where
//!    nothing is, and streams of them to a place of their own, go the other way round: there first, durably, and then into the log.
//! 3. A checksum page goes to a disk only after every record it reflects is durable.
//! 4. An extent given up goes back to the pool only when the journal's tail has passed that record, so that no replay
//!    writes there, and when no read or write of it is under way.
//! 5. Replaying any part of the log again, in order, ends in the same state: records name logical blocks.
//! 6. A read returns bytes that agree with their checksum, or an error.

mod changes;
mod check;
mod checkpoint;
mod clear;
mod destage;
mod disks;
mod extent;
mod hot;
mod life;
mod open;
mod owner;
mod pages;
pub mod policy;
mod read;
mod record;
mod reserve;
mod settings;
mod share;
mod sizes;
mod snapshot;
mod status;
mod store;
mod straight;
mod stripe;
mod tables;
mod tier;
mod volume;
mod volumes;
mod write;

pub use check::{Check, Report};
pub use disks::{Held, OnlyCopies};
pub use kura_snapshot::method::{Counters as SharingCounters, Kind as Sharing, SharedPool};
pub use open::{JournalPlace, Parts, Recovered, Replayed};
pub use owner::{Departing, Departure, KeptCold, Still, Ticket};
pub use record::Spec;
pub use settings::Settings;
pub use snapshot::{Changes, Droppable, HeldWrites, Others, Saving, SnapshotSpec, Stops, SvolStatus, WhenFull};
pub use status::{ArrayCounters, Space, Status, VolumeStatus};
pub use store::Store;
pub use tier::{Hits, Pin, RegionUse, TierChange, TierMove, TierRules, TierSetup, TierStatus, TierWhy};
pub use volume::Volume;
