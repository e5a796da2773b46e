//! What a store may take, and how it works.

use crate::snapshot::{Saving, WhenFull};
use kura_array::hot::HotSettings;
use kura_snapshot::method::Kind as Sharing;

/// What a store may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Bytes of the write buffer.
    pub write_buffer_bytes: u64,
    /// Writes of at least so many blocks go straight to their places where those hold nothing yet, or in a stream over what is
    /// there to other places, instead of through the journal; with `usize::MAX` none does.
    pub straight_blocks: usize,
    /// Checksum pages kept in memory (each 4 bytes a block of an extent).
    pub pages: usize,
    /// The most bytes a second that a rebuild copies; 0 is no limit.
    pub rebuild_bytes_per_s: u64,
    /// Groups that a rebuild moves at once.
    pub rebuild_width: usize,
    /// Disks are mixed in groups, so that what one held is rebuilt from all others; else the same ones lie together as long as
    /// they are equally full, and two that fail at once are less often of one group.
    pub scatter: bool,
    /// Requests that a disk which turns is given at once, in the order of who waits for them: 0 gives it all that is asked.
    pub disk_queue: usize,
    /// The most disks of a group of a new volume with parity, 3 to 17; none leaves one of the pool's out, and takes six at
    /// most.
    pub raid_width: Option<u8>,
    /// Blocks of a new volume's stripe that lie on end on one disk: a power of two.
    pub chunk_blocks: u16,
    /// How the mirrored hot area is used.
    pub hot: HotSettings,
    /// How what a snapshot sees is saved from a write.
    pub saving: Saving,
    /// What a full pool does with snapshots.
    pub when_full: WhenFull,
    /// How controllers share what is free: the same with all of them.
    pub sharing: Sharing,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            write_buffer_bytes: 24 << 20,
            straight_blocks: 16,
            pages: 4096,
            rebuild_bytes_per_s: 0,
            rebuild_width: 3,
            scatter: true,
            disk_queue: 0,
            raid_width: None,
            chunk_blocks: 16,
            hot: HotSettings::TODAY,
            saving: Saving::default(),
            when_full: WhenFull::default(),
            sharing: Sharing::default(),
        }
    }
}
