//! A segment of the device: what it is used for, and what is alive in it.

use crate::space::blocks::Blocks;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The roots.
    Root,
    /// Free, but not to be taken: the device is being asked for room for it, or told that nothing is there.
    Lent,
    Free,
    Log,
    Data,
    /// A checkpoint of the index.
    Index,
}

/// Newer than any entry of the log.
pub(crate) const OPEN: u64 = u64::MAX;

pub(crate) struct Segment {
    pub usage: Use,
    /// Of the log: bytes of records that the index still names.
    pub live_bytes: u32,
    /// Of the log: the newest entry in it; [`OPEN`] while the log may go on there.
    pub last_sequence: u64,
    /// Of the log: the newest entry that made a record in it dead.
    pub killed_sequence: u64,
    /// Of data: the blocks that are taken.
    pub taken: Option<Blocks>,
    pub taken_blocks: u32,
}

impl Segment {
    /// True while the log may go on there.
    pub fn is_open(&self) -> bool {
        self.last_sequence == OPEN
    }

    /// True where the log has gone on elsewhere and the index names no record any more.
    pub fn is_dead_log(&self) -> bool {
        self.usage == Use::Log && self.live_bytes == 0 && !self.is_open()
    }

    pub fn new(usage: Use) -> Self {
        Self { usage, live_bytes: 0, last_sequence: 0, killed_sequence: 0, taken: None, taken_blocks: 0 }
    }
}
