//! What the devices were asked and answered: a hash of all of it, and the last of it to read.

use crate::model::{Io, IoKind};
use std::collections::VecDeque;
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Asked of the device.
    Issued,
    /// Answered with success.
    Done,
    /// Answered with an error.
    Failed,
}

/// One line of the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Virtual time.
    pub(crate) at_ns: u64,
    /// The disk's number, in the order in which disks were added.
    pub(crate) disk: u32,
    /// The operation's number in the world.
    pub(crate) op: u64,
    /// What the operation is.
    pub(crate) io: Io,
    /// True when the caller asked for durability with it.
    pub(crate) fua: bool,
    /// How far it has come.
    pub(crate) phase: Phase,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_ns, disk, op, io, fua, phase } = self;
        let name = match io.kind {
            IoKind::Read => "read",
            IoKind::Write => "write",
            IoKind::Flush => "flush",
            IoKind::Discard => "discard",
            IoKind::WriteZeroes => "write zeroes",
        };
        let phase = match phase {
            Phase::Issued => "issued",
            Phase::Done => "done",
            Phase::Failed => "failed",
        };
        write!(f, "{:>14.6} ms  op {op}  disk {disk}  {name}", *at_ns as f64 / 1e6)?;
        if io.kind != IoKind::Flush {
            write!(f, " {}+{}", io.offset_bytes, io.len_bytes)?;
        }
        write!(f, "{} {phase}", if *fua { " fua" } else { "" })
    }
}

/// Steps kept to be shown when something goes wrong.
const KEPT_STEPS: usize = 32;

pub(crate) struct Trace {
    hash: Xxh3,
    last: VecDeque<Step>,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { hash: Xxh3::new(), last: VecDeque::with_capacity(KEPT_STEPS) }
    }

    pub(crate) fn note(&mut self, step: Step) {
        let Step { at_ns, disk, op, io, fua, phase } = step;
        let flags = u64::from(disk) << 32 | (io.kind as u64) << 16 | u64::from(fua) << 8 | phase as u64;
        let mut bytes = [0; 40];
        for (slot, word) in bytes.chunks_exact_mut(8).zip([at_ns, op, flags, io.offset_bytes, io.len_bytes]) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        self.hash.update(&bytes);
        if self.last.len() == KEPT_STEPS {
            self.last.pop_front();
        }
        self.last.push_back(step);
    }

    pub(crate) fn digest(&self) -> u64 {
        self.hash.digest()
    }

    pub(crate) fn last(&self) -> impl Iterator<Item = &Step> {
        self.last.iter()
    }
}
