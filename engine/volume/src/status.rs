//! Stores and volumes as they are, for those who look.

use crate::Store;
use crate::record::Spec;
use crate::snapshot::SvolStatus;
use kura_array::Shape;

/// A store as it is; sizes in bytes, counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// In the write buffer, not at its place yet.
    pub dirty_bytes: u64,
    /// The most the write buffer takes.
    pub dirty_limit_bytes: u64,
    /// Of the journal.
    pub journal_bytes: u64,
    /// Of the journal, what a crash now would replay.
    pub journal_used_bytes: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Of these, bytes that did not go through the journal: straight to their places, or ahead of their extent.
    pub straight_bytes: u64,
    /// Bytes of volumes in the mirrored hot area, one copy counted.
    pub hot_bytes: u64,
    /// What the hot area holds, one copy counted.
    pub hot_limit_bytes: u64,
    /// What the write buffer and the migration wrote to stripes and the hot area.
    pub array: ArrayCounters,
    /// Blocks of 4 KiB that snapshots had scattered and that were put back at their place.
    pub ordered_blocks: u64,
}

/// What was written to volumes with parity since the start, in blocks of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArrayCounters {
    /// From the write buffer to the mirrored hot area.
    pub hot_blocks: u64,
    /// From the hot area to their cold places.
    pub cooled_blocks: u64,
    /// From the write buffer straight to their cold places.
    pub cold_blocks: u64,
}

/// A volume as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its number; never used again.
    pub id: u64,
    /// What it was made as; the size is today's.
    pub spec: Spec,
    /// How it is laid on disks.
    pub shape: Shape,
    /// Bytes of extents it holds, one copy counted.
    pub allocated_bytes: u64,
    /// Handles open.
    pub open: u32,
    /// The number of the volumes that move with it: its PoolVOL's, or its own where it has none.
    pub family: u64,
    /// What clients have asked of it since it is here: a request counts once, and again for every 64 KiB.
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

/// What takes a pool's space: raw bytes of extents, all copies and parity counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Volumes and clones, at home.
    pub volume_bytes: u64,
    /// The mirrored hot areas, without what they have borrowed.
    pub hot_bytes: u64,
    /// What the hot areas have borrowed, which counts as free.
    pub borrowed_bytes: u64,
    /// PoolVOLs: versions of blocks that are there besides, because snapshots see others.
    pub snapshot_bytes: u64,
}

impl Store {
    /// What takes the space.
    pub fn space(&self) -> Space {
        let extent_bytes = self.inner.array.extent_bytes();
        let mirrored_bytes = |extents: usize| 2 * extents as u64 * extent_bytes;
        let borrowed_bytes = mirrored_bytes(self.inner.loan());
        let hot_bytes = mirrored_bytes(self.inner.hot.table.borrow().count()) - borrowed_bytes;
        let mut space = Space { hot_bytes, borrowed_bytes, ..Space::default() };
        for volume in self.inner.tables.borrow().volumes.homes().values() {
            let (width, columns) = volume.shape.cost();
            let raw_bytes = u64::from(volume.mapped()) * extent_bytes / columns * width;
            *(if volume.is_pool() { &mut space.snapshot_bytes } else { &mut space.volume_bytes }) += raw_bytes;
        }
        space
    }
}
