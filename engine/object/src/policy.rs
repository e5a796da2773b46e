//! Decisions: facts in, decisions out.

/// Log after which a checkpoint is written, in bytes, however small the index is.
const CHECKPOINT_LEAST_BYTES: u64 = 64 << 20;
/// Log for each byte of index after which a checkpoint is written: a checkpoint costs a sixth of the log then.
const CHECKPOINT_RATIO: u64 = 6;

/// True when the log since the last checkpoint is long enough for the next one.
pub(crate) fn checkpoint_is_due(log_bytes: u64, index_bytes: u64) -> bool {
    log_bytes >= CHECKPOINT_LEAST_BYTES.max(index_bytes * CHECKPOINT_RATIO)
}

/// Free segments that are not for users: a checkpoint of the index with some growth, the log's next segment, and two
/// for the cleaner. Removals make room: they may go further.
pub(crate) fn floor(index_bytes: u64, segment_bytes: u64, only_removes: bool) -> usize {
    let checkpoint = (index_bytes + index_bytes / 4).div_ceil(segment_bytes) as usize + 1;
    checkpoint + if only_removes { 2 } else { 5 }
}

/// Bytes of a segment on a device of this size: at least 256 of them, and at most 4 MiB each.
pub(crate) fn segment_bytes(size_bytes: u64) -> u32 {
    let wanted = (size_bytes / 256).max(1).next_power_of_two() / 2;
    wanted.clamp(64 << 10, 4 << 20) as u32
}

/// Content up to this many bytes lies behind its record, unless measured otherwise.
pub(crate) fn inline_limit_bytes(segment_bytes: u32) -> u32 {
    (segment_bytes / 8).min(64 << 10)
}
