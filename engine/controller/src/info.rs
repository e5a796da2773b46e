//! What a node tells about itself. Plain data; sizes are bytes.

use kura_array::{Class, Layout, Shape};
use kura_volume::{ArrayCounters, Sharing, SharingCounters, Spec, Stops, SvolStatus};

pub use kura_volume::Report as CheckReport;

/// A volume as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// What it was made as; the size is today's.
    pub spec: Spec,
    /// Its number in the pool; never used again.
    pub id: u64,
    /// The controller that owns it.
    pub controller: u16,
    /// How it is laid on disks.
    pub shape: Shape,
    /// Bytes of extents it holds, one copy counted.
    pub allocated_bytes: u64,
    /// Bytes of extents it holds, all copies and parity counted.
    pub raw_bytes: u64,
    /// Clients that have it open.
    pub open: u32,
    /// The number of the volumes that move with it.
    pub family: u64,
    /// What clients have asked of it since it is with its controller: a request counts once, and again for every 64 KiB.
    pub work: u64,
    /// Snapshots and clones made of it.
    pub snapshots: u32,
    /// True where it can only be deleted: the table of its family's snapshots is lost with its disks.
    pub lost: bool,
    /// True where it can only be read, and is lost at the next start: parts of that table are in memory alone.
    pub doomed: bool,
    /// What it is besides, where it is a snapshot or clone itself.
    pub svol: Option<SvolStatus>,
}

/// Whether a disk works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskState {
    /// In use.
    Healthy,
    /// Failed by errors or by hand: not used until it is replaced.
    Failed,
    /// Not found when the pool was opened.
    Missing,
    /// On its way out of the pool: it takes nothing new, and what it holds moves to the others.
    Leaving,
}

/// A disk of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskInfo {
    /// Its place in the pool's table of members.
    pub id: u16,
    /// The UUID in its label.
    pub uuid: [u8; 16],
    /// Where it was found: a path, or a model's name in the lab.
    pub path: String,
    /// What it is used for.
    pub class: Class,
    /// Whether it works.
    pub state: DiskState,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes for volumes' data on it.
    pub data_bytes: u64,
    /// Bytes of `data_bytes` that hold nothing.
    pub free_bytes: u64,
    /// Where it is failed or leaving, bytes of volumes' data that a rebuild has still to move.
    pub unwanted_bytes: u64,
    /// Of these, bytes of which no copy on a working disk is left.
    pub lost_bytes: u64,
    /// Why the rebuild does not go on, while that is so.
    pub stalled: Option<String>,
    /// True when it takes volumes' data now.
    pub takes_data: bool,
    /// Journals of which a copy lies on it.
    pub journals: u16,
    /// Journals of which a copy is to lie on it.
    pub journals_due: u16,
    /// Journals of which no other disk has a copy.
    pub only_journals: u16,
    /// I/O errors since the start.
    pub io_errors: u64,
    /// Blocks that failed their checksum since the start.
    pub checksum_errors: u64,
}

impl DiskInfo {
    /// Bytes of volumes' data on it. Controllers count what is free at different moments: it may be more than there is.
    pub fn used_bytes(&self) -> u64 {
        self.data_bytes.saturating_sub(self.free_bytes)
    }

    /// True when it works and has all journals that it is to have.
    pub fn carries_journals(&self) -> bool {
        self.state == DiskState::Healthy && self.journals_due > 0 && !self.lacks_journals()
    }

    /// True when it is to have journals that it does not have.
    pub fn lacks_journals(&self) -> bool {
        self.journals < self.journals_due
    }
}

/// The pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// Its UUID.
    pub uuid: [u8; 16],
    /// Bytes in an extent.
    pub extent_bytes: u64,
    /// Raw bytes for volumes' data on the disks that take it.
    pub data_bytes: u64,
    /// Raw bytes of these that hold nothing.
    pub free_bytes: u64,
    /// Its disks, by number.
    pub disks: Vec<DiskInfo>,
}

impl PoolInfo {
    /// The layout of a volume for which nobody names one: hot mirroring where three disks or more of the slow class take data,
    /// else two copies.
    pub fn layout(&self) -> Layout {
        let slow = self.disks.iter().filter(|disk| disk.takes_data && disk.class == Class::Slow).count();
        if slow >= 3 { Layout::HotMirror } else { Layout::Mirror }
    }

    /// That of a volume which the server makes for itself: one copy where there is one disk for it.
    pub fn own_layout(&self) -> Layout {
        let disks = self.disks.iter().filter(|disk| disk.takes_data).count();
        if disks > 1 { self.layout() } else { Layout::None }
    }
}

/// A controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Its number.
    pub id: u16,
    /// Volumes it owns.
    pub volumes: u32,
    /// It takes no volume: it was drained.
    pub drained: bool,
    /// Why it takes no writes, where its journal has failed.
    pub failure: Option<String>,
    /// Bytes of its journal.
    pub journal_bytes: u64,
    /// Bytes of the journal that a crash now would replay.
    pub journal_used_bytes: u64,
    /// Bytes in the write buffer that are not at their place yet.
    pub dirty_bytes: u64,
    /// The most the write buffer takes.
    pub dirty_limit_bytes: u64,
    /// Journal entries replayed when it started.
    pub replayed_entries: u64,
    /// Bytes of data replayed when it started.
    pub replayed_bytes: u64,
    /// Reads since the start.
    pub reads: u64,
    /// Writes since the start.
    pub writes: u64,
    /// Bytes read since the start.
    pub read_bytes: u64,
    /// Bytes written since the start.
    pub written_bytes: u64,
    /// Of these, bytes that did not go through the journal: straight to their places, or ahead of their extent.
    pub straight_bytes: u64,
    /// What was written to stripes and the hot area since the start.
    pub array: ArrayCounters,
    /// Blocks of 4 KiB that snapshots had scattered and that were put back at their place since the start.
    pub ordered_blocks: u64,
    /// How it shares what is free.
    pub method: Sharing,
    /// What sharing the pool with the others has cost since the start.
    pub sharing: SharingCounters,
    /// Requests since the start of clients whose connection is with this controller and whose volume has moved on to another.
    pub carried: u64,
    /// How long writes stood still while snapshots were made.
    pub snapshot_stops: Stops,
}
