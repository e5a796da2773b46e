//! The journal as it stands, and what its committer does next: a decision, no I/O.

use crate::Lsn;
use crate::entry::{Group, Stamp};
use crate::habit::Habit;
use crate::journal::{JournalCopy, Limits};
use crate::root::{Root, TablesRef};
use kura_block::{Error, Result};
use std::collections::VecDeque;
use std::time::Duration;

/// An entry in the ring that is still needed.
pub(crate) struct Kept {
    pub first_lsn: Lsn,
    pub end_lsn: Lsn,
    pub sequence: u64,
    pub position: u64,
}

/// Where the log stands when a scan hands over.
pub(crate) struct Start {
    pub root: Root,
    pub next_lsn: Lsn,
    pub position: u64,
    pub sequence: u64,
    /// The entries from the tail on.
    pub kept: VecDeque<Kept>,
    /// The copies that are present and were live when the log ended.
    pub live_copies: u32,
    pub mends: Vec<Mend>,
}

/// An entry that a live copy lacks.
pub(crate) struct Mend {
    /// Where it can be read.
    pub source: JournalCopy,
    /// The copy without it.
    pub lacking: usize,
    pub position: u64,
    pub bytes: u64,
}

pub(crate) struct State {
    pub groups: VecDeque<Group>,
    /// Bytes of the groups' entries, without what is on its way elsewhere, and of that, if it had to be carried.
    pub pending_bytes: u64,
    pub elsewhere_bytes: u64,
    pub pending_since: Duration,
    pub next_lsn: Lsn,
    /// Every record below is written.
    pub written: Lsn,
    /// Bytes written since the copies were last flushed, and when the first of them was.
    pub unflushed_bytes: u64,
    pub unflushed_since: Duration,
    /// Every record below is durable.
    pub durable: Lsn,
    /// Every entry below is durable.
    pub durable_sequence: u64,
    /// Somebody waits for the records below to be durable.
    pub wanted: Lsn,
    /// The least of what is waited for.
    pub wanted_first: Option<Lsn>,
    /// Whether what is appended is about to be waited for.
    pub habit: Habit,
    /// The live copies that the last entry or root told of.
    pub told: u32,
    pub position: u64,
    pub sequence: u64,
    pub kept: VecDeque<Kept>,
    pub root: Root,
    pub live_copies: u32,
    /// Those that were written and are no longer.
    pub lost_copies: u32,
    /// A copy that is written and does not count yet.
    pub joining: Option<Joining>,
    /// Entries that live copies lack, until recovery has begun a new epoch.
    pub mends: Vec<Mend>,
    /// No append before recovery has begun a new epoch.
    pub sealed: bool,
    pub closing: bool,
    /// No entry is written any more, and those there are are durable.
    pub closed: bool,
    pub failed: Option<Error>,
}

/// A copy on its way to count: it must have the tables, and every entry from the root's tail on.
#[derive(Clone, Copy)]
pub(crate) struct Joining {
    pub index: usize,
    /// It has every entry from this one on.
    pub sequence: u64,
    pub has_tables: bool,
}

/// What the committer does next.
pub(crate) enum Step {
    /// Writes an entry; with `durable`, it is durable together with all before it.
    Write { group: Group, durable: bool },
    /// Makes what was written durable.
    Flush,
    /// Ends.
    End,
}

/// Bytes on their way elsewhere that are made durable there although nobody waits.
const ELSEWHERE_BYTES: u64 = 4 << 20;
/// Unflushed bytes after which the copies are flushed although nobody waits.
const FLUSH_BYTES: u64 = 4 << 20;
/// And how long anything stays unflushed.
const FLUSH_AFTER: Duration = Duration::from_millis(20);

impl State {
    /// What to do now, or how long to wait when nothing new comes.
    pub fn step(&mut self, now: Duration, limits: Limits) -> std::result::Result<Step, Option<Duration>> {
        let awaited = |upto: Lsn| self.wanted_first.is_some_and(|first| first <= upto);
        // Not by records: an entry may have none, and is part of the log all the same.
        let unflushed = self.sequence > self.durable_sequence;
        let exposed = now.saturating_sub(self.unflushed_since);
        let much = self.unflushed_bytes >= FLUSH_BYTES || exposed >= FLUSH_AFTER;
        if unflushed && (awaited(self.written) || much) {
            return Ok(Step::Flush);
        }
        if self.groups.is_empty() {
            return match (self.closing, unflushed) {
                (true, true) => Ok(Step::Flush),
                (true, false) => Ok(Step::End),
                (false, true) => Err(Some(FLUSH_AFTER.saturating_sub(exposed))),
                (false, false) => Err(None),
            };
        }
        let waited = now.saturating_sub(self.pending_since);
        let expected = self.habit.expects();
        let due = expected || self.wanted > self.written || self.closing || self.is_much(limits);
        if !due && waited < limits.linger {
            return Err(Some(limits.linger.saturating_sub(waited)));
        }
        let group = self.groups.pop_front().unwrap_or_default();
        self.pending_since = now;
        // The last group that somebody waits for, with nothing unflushed before it, needs no flush of its own.
        let durable = !unflushed && (expected || awaited(self.after(&group)));
        Ok(Step::Write { group, durable })
    }

    /// True when enough waits to be written for an entry, although nobody waits for it.
    pub fn is_much(&self, limits: Limits) -> bool {
        self.pending_bytes >= limits.batch_bytes || self.elsewhere_bytes >= ELSEWHERE_BYTES
    }

    /// Every record below is written when `group` is.
    pub fn after(&self, group: &Group) -> Lsn {
        Lsn(self.written.0 + group.skipped + u64::from(group.count))
    }

    pub fn stamp(&self, group: &Group) -> Stamp {
        Stamp {
            epoch: self.root.epoch,
            sequence: self.sequence,
            first_lsn: Lsn(self.written.0 + group.skipped),
            live_copies: self.live_copies,
            durable_sequence: self.durable_sequence,
        }
    }

    /// The root that moves the tail to `tail`, as things stand; after a scan, in the next epoch.
    pub fn next_root(&self, tail: Lsn, settled: Lsn, tables: TablesRef) -> Root {
        let kept = self.kept.iter().find(|kept| kept.end_lsn > tail);
        let head = (self.position, self.sequence, self.written);
        let (tail_position, tail_sequence, tail_lsn) =
            kept.map_or(head, |kept| (kept.position, kept.sequence, kept.first_lsn));
        let joined = self.joining.filter(|joining| joining.has_tables && joining.sequence <= tail_sequence);
        Root {
            generation: self.root.generation + 1,
            epoch: self.root.epoch + u64::from(self.sealed),
            epoch_sequence: if self.sealed { self.sequence } else { self.root.epoch_sequence },
            tail_position,
            tail_sequence,
            tail_lsn,
            settled,
            tables,
            live_copies: self.live_copies | joined.map_or(0, |joining| 1 << joining.index),
            told_sequence: self.sequence,
            closed: self.closed,
        }
    }

    pub fn tail_position(&self) -> u64 {
        self.kept.front().map_or(self.position, |kept| kept.position)
    }

    pub fn used_bytes(&self) -> u64 {
        self.position - self.tail_position() + self.pending_bytes + self.elsewhere_bytes
    }

    pub fn alive(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}
