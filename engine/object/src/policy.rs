//! Decisions: facts in, decisions out.

use std::time::Duration;

/// Log after which a checkpoint is written, in bytes, however small the index is.
const CHECKPOINT_LEAST_BYTES: u64 = 64 << 20;
/// Log for each byte of index after which a checkpoint is written: a checkpoint costs a sixth of the log then.
const CHECKPOINT_RATIO: u64 = 6;

/// Records after which a checkpoint is written, however small the index is, and for each row of it: a restart replays
/// some half a million a second.
const CHECKPOINT_LEAST_RECORDS: u64 = 100_000;
const CHECKPOINT_ROWS: u64 = 8;

/// What a restart would read and replay of the log, and the index that it would read.
#[derive(Clone, Copy)]
pub(crate) struct Tail {
    pub log_bytes: u64,
    pub records: u64,
    pub index_bytes: u64,
    pub rows: u64,
}

impl Tail {
    /// How long the log behind a checkpoint is, of the length that makes the next one due.
    fn length(self) -> f64 {
        let bytes = CHECKPOINT_LEAST_BYTES.max(self.index_bytes * CHECKPOINT_RATIO);
        let records = CHECKPOINT_LEAST_RECORDS.max(self.rows / CHECKPOINT_ROWS);
        (self.log_bytes as f64 / bytes as f64).max(self.records as f64 / records as f64)
    }
}

/// True when the log since the last checkpoint is long enough for the next one.
pub(crate) fn checkpoint_is_due(tail: Tail) -> bool {
    tail.length() >= 1.0
}

/// True when the log has grown so long since a checkpoint began that users wait for its end: a restart would replay what
/// made it due, too.
pub(crate) fn checkpoint_is_outrun(tail: Tail) -> bool {
    tail.length() >= 0.5
}

/// Who wants a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum For {
    /// What adds to the store.
    Users,
    /// What only removes: it makes room.
    Removals,
    /// What is moved to make room.
    Cleaner,
    /// The entry by which what died becomes room.
    Proof,
}

/// Free segments that are left for others: for the next checkpoint of the index, with some growth, by all; for the log, when
/// room depends on its next entry, by the cleaner; for the cleaner by those who are not; and for removals by those who add.
pub(crate) fn floor(index_bytes: u64, segment_bytes: u64, who: For) -> usize {
    let checkpoint = (index_bytes + index_bytes / 4).div_ceil(segment_bytes) as usize + 1;
    checkpoint
        + match who {
            For::Users => 6,
            For::Removals => 4,
            For::Cleaner => 1,
            For::Proof => 0,
        }
}

/// The victims to clean in one go: as many, best first, as what is alive in them fits into `room`, in segments.
pub(crate) fn affordable(victims: &[(u32, f64)], mut room: f64) -> usize {
    let fits = victims.iter().take_while(|(_, alive)| {
        room -= alive;
        room >= 0.0
    });
    fits.count()
}

/// Log segments that must wait for a checkpoint for it to be worth its while though nobody wants room: so many that it gives
/// back twice what it writes, the segments of the one `before` among them.
pub(crate) fn checkpoint_worth(index_bytes: u64, segment_bytes: u64, before: usize) -> usize {
    let writes = index_bytes.div_ceil(segment_bytes).max(1) as usize;
    (2 * writes).saturating_sub(before).max(1)
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

/// Entries that wait to be written, from which on those wait, too, who would be acknowledged in memory: they would outrun
/// the device, fill memory, and use up segments that only what is written can free.
pub(crate) const BACKLOG_ENTRIES: usize = 8;

/// Segments that the reserve has beyond what is kept from users: what is taken by others is asked for anew in time.
pub(crate) const RESERVE_SPARE: usize = 2;

/// Free segments that are looked at for room that the device has given already: those that are used first.
pub(crate) const LOOK_SEGMENTS: usize = 1 << 16;

/// A segment is cleaned when at most this share of it is alive, while nobody waits; and when somebody does.
pub(crate) const MOST_ALIVE: f64 = 0.8;
pub(crate) const MOST_ALIVE_WANTED: f64 = 0.95;
/// Below this share a segment of the log is cleaned though nobody wants room, so that the device gets back what is dead in it: no
/// more is written than is gained. And so many segments at most at a time, once a minute.
pub(crate) const TIDY_ALIVE: f64 = 0.5;
pub(crate) const TIDY_SEGMENTS: usize = 64;
/// Rounds of housekeeping that gain nothing before a store is said to be full.
pub(crate) const ROUNDS_IN_VAIN: u32 = 3;
/// How long each of those waits for uploads under way to replace something.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Entries of the log before housekeeping that gained nothing is tried again.
pub(crate) const VAIN_ENTRIES: u64 = 64;
/// Below so many free segments the cleaner works beside the users.
pub(crate) fn low_water(floor: usize, segments: usize) -> usize {
    floor + 4 + segments / 16
}

/// What cleaning a segment is worth: room gained for bytes moved, more where nothing has changed for long. (The cost
/// and benefit of Rosenblum and Ousterhout's log-structured file system; the age counts entries of the log.) When
/// somebody waits, only what is gained counts.
pub(crate) fn cleaning_gain(alive: f64, age: u64, wanted: bool) -> f64 {
    if wanted {
        return 1.0 - alive;
    }
    (1.0 - alive) * ((age + 1) as f64).sqrt() / (1.0 + alive)
}

/// True when room is gained by emptying data segments rather than by cleaning the log: given the least share alive among
/// the victims of each, where there are any. Emptying looks through the whole index: it must be clearly better.
pub(crate) fn evacuates(log_alive: Option<f64>, data_alive: Option<f64>) -> bool {
    match (log_alive, data_alive) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(log), Some(data)) => data + 0.2 < log,
    }
}
