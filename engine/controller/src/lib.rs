//! Composes the layers and owns volumes.
//!
//! A [`Controller`] is one thread's: its volumes, its journal, its view of the disks. A [`Door`] leads onto that thread;
//! a [`Node`] joins the doors of a pool's controllers and may be used from any thread.
//!
//! ```text
//!   REST, CLI ──> Node ──> Door 0 ──> Controller 0 (thread, runtime, ring) ── volumes ── journal 0 ─┐
//!   NBD ─────────────────> Door 1 ──> Controller 1 (thread, runtime, ring) ── volumes ── journal 1 ─┴─ the same disks
//! ```
//!
//! What is free is shared and leased ([`SharedPool`]); what is allocated is owned by one controller: no lock and no message
//! lies between a request and its disk. A pool is made by [`format`], once.

mod controller;
mod door;
mod info;
mod membership;
mod moving;
mod node;
mod patient;
mod pool;
mod recording;
mod room;
mod snapshot;
mod tiering;

pub use controller::{Config, Controller, FoundDisks, Opener, Recovered, Sight};
pub use door::{Door, Inbox, door};
pub use info::{CheckReport, ControllerInfo, DiskInfo, DiskState, PoolInfo, VolumeInfo};
pub use kura_array::hot::HotSettings;
pub use kura_array::{Class as DiskClass, Layout, Shape, has_label};
pub use kura_journal::Limits as JournalLimits;
pub use kura_tier::{Reason as TierReason, Settings as TierSettings, Standing as TierStanding, Tier};
pub use kura_volume::{
    ArrayCounters, Changes, Check, Hits, Pin, RegionUse, Replayed, Saving, Settings, SharedPool, Sharing,
    SharingCounters, SnapshotSpec, Space, Spec as VolumeSpec, Stops, SvolStatus, TierChange, TierMove, TierRules,
    TierSetup, TierStatus, TierWhy, WhenFull,
};
pub use moving::{Balancer, Drained, Moved};
pub use node::Node;
pub use pool::{
    DiskFacts, EXTENT_MAX_BYTES, FoundDisk, FoundPool, NewDisk, PoolSpec, check_fits, format, journal_ranges, survey,
};
pub use recording::{Entry as RecordedRequest, Op as RecordedOp, RecordedRequests, RecordingInfo};
pub use tiering::{TierConfig, TierInfo, TierMoveInfo, TierWhyInfo};
