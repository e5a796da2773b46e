//! What goes wrong, when, and on which disk.

use rand::{Rng, RngExt};
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// When a fault strikes. Counts and times begin when the plan is set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum When {
    /// At the disk's nth operation that the fault can concern, from 1, as its service begins. Once.
    Op(u64),
    /// After so much virtual time; a fault that needs an operation takes the next one it can concern. Once.
    After(Duration),
    /// At each operation that the fault can concern with this probability, 0 to 1. Again and again.
    Chance(f64),
}

/// Where a fault strikes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The range of the read that meets it.
    Request,
    /// One 4 KiB page of those that hold something, each as likely as the other.
    AnyPage,
    /// This range of bytes.
    Range(Range<u64>),
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A write is acknowledged and never happens.
    LostWrite,
    /// A write is acknowledged and a part of its atoms never happens.
    TornWrite,
    /// A write is acknowledged and lands at another place of the disk.
    MisdirectedWrite,
    /// A write fails with `Kind::Device`; all of it has happened, or nothing, or each of its atoms is old or new.
    WriteError,
    /// A flush fails, and what it was to make durable is gone. Each opened device hears of it once, with `Kind::Full`, at its
    /// next flush: as with a kernel through whose cache writes go.
    FlushError,
    /// Reads of the place fail with `Kind::Device` until it is written again, sector by sector.
    ReadError(Place),
    /// The read that meets it, and those that begin within so long, fail with `Kind::Device`; nothing else does, and what lies
    /// there stays.
    ReadsFail {
        /// How long it lasts; `Duration::MAX` for ever.
        lasts: Duration,
    },
    /// So many different bits of the place, at rest, are inverted. What is in the cache is not touched.
    BitRot(Place, u32),
    /// Operations that begin take so many times as long.
    Slow {
        /// How many times as long.
        times: u32,
        /// How long it lasts; `Duration::MAX` for ever.
        lasts: Duration,
    },
    /// No operation ends.
    Stall {
        /// How long it lasts; `Duration::MAX` for ever.
        lasts: Duration,
    },
    /// Every operation fails with `Kind::Device` from then on, until [`crate::SimDisk::revive`]; what was under way may have
    /// happened, in part or whole.
    Dead,
    /// Writes to pages that hold nothing yet fail with `Kind::Full`.
    Full {
        /// How long it lasts; `Duration::MAX` for ever.
        lasts: Duration,
    },
    /// Operations but flushes fail with `Kind::Retry`, and nothing of them happens.
    Refuses {
        /// How long it lasts; `Duration::MAX` for ever.
        lasts: Duration,
    },
}

/// One thing that goes wrong on one disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// The disk's name.
    pub disk: String,
    /// When it strikes.
    pub when: When,
    /// What goes wrong.
    pub what: FaultKind,
}

/// When the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// When the world issues its nth device operation, from 1: that operation is in flight, what comes after it in the
    /// same breath is not asked any more. Trying 1, 2, ... up to [`crate::Sim::operations`] of a run without a crash
    /// tries every crash point.
    Op(u64),
    /// After so much virtual time.
    After(Duration),
}

/// All that goes wrong in a run. Printing it shows one fault a line.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// Faults of disks.
    pub faults: Vec<Fault>,
    /// Power cuts.
    pub crashes: Vec<CrashPoint>,
}

/// What a random plan may look like.
#[derive(Clone, Debug)]
pub struct PlanShape {
    /// The disks that faults may strike.
    pub disks: Vec<String>,
    /// How many of them are struck in a plan.
    pub faulty_disks: RangeInclusive<usize>,
    /// How many faults a struck disk has.
    pub faults_per_disk: RangeInclusive<usize>,
    /// The faults to choose from, each as likely as the other.
    pub kinds: Vec<FaultKind>,
    /// Faults strike within the first so many operations they can concern, at least 1.
    pub within_ops: u64,
    /// The power goes once within the world's first so many operations; 0: never.
    pub crash_within_ops: u64,
}

impl FaultKind {
    /// Every kind; what lasts for a while lasts half a second, and a stall also longer than a disk is waited for.
    pub fn all() -> Vec<Self> {
        let lasts = Duration::from_millis(500);
        vec![
            Self::LostWrite,
            Self::TornWrite,
            Self::MisdirectedWrite,
            Self::WriteError,
            Self::FlushError,
            Self::ReadError(Place::Request),
            Self::ReadError(Place::AnyPage),
            Self::ReadsFail { lasts },
            Self::BitRot(Place::Request, 1),
            Self::BitRot(Place::AnyPage, 100),
            Self::Slow { times: 20, lasts },
            Self::Stall { lasts },
            Self::Stall { lasts: Duration::from_mins(1) },
            Self::Dead,
            Self::Full { lasts },
            Self::Refuses { lasts },
        ]
    }
}

impl FaultPlan {
    /// A random plan of the given shape.
    pub fn random(rng: &mut impl Rng, shape: &PlanShape) -> Self {
        let mut plan = Self::default();
        let mut disks: Vec<&String> = shape.disks.iter().collect();
        let struck = rng.random_range(shape.faulty_disks.clone()).min(disks.len());
        for _ in 0..struck {
            let disk = disks.swap_remove(rng.random_range(0..disks.len()));
            if shape.kinds.is_empty() {
                break;
            }
            for _ in 0..rng.random_range(shape.faults_per_disk.clone()) {
                let what = shape.kinds[rng.random_range(0..shape.kinds.len())].clone();
                let when = When::Op(rng.random_range(1..=shape.within_ops.max(1)));
                plan.faults.push(Fault { disk: disk.clone(), when, what });
            }
        }
        if shape.crash_within_ops > 0 {
            plan.crashes.push(CrashPoint::Op(rng.random_range(1..=shape.crash_within_ops)));
        }
        plan
    }
}

/// A fault that has struck.
#[derive(Clone, Debug, PartialEq)]
pub struct Strike {
    /// Virtual time.
    pub at: Duration,
    /// The disk's name.
    pub disk: String,
    /// What went wrong.
    pub what: FaultKind,
    /// The bytes of the disk that it concerns; empty when it concerns the whole disk.
    pub range: Range<u64>,
}

struct Lasts(Duration);

impl fmt::Display for Lasts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Duration::MAX { write!(f, "for ever") } else { write!(f, "for {:?}", self.0) }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request => write!(f, "what is read"),
            Self::AnyPage => write!(f, "any page"),
            Self::Range(range) => write!(f, "{}+{}", range.start, range.end.saturating_sub(range.start)),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LostWrite => write!(f, "lost write"),
            Self::TornWrite => write!(f, "torn write"),
            Self::MisdirectedWrite => write!(f, "misdirected write"),
            Self::WriteError => write!(f, "write error"),
            Self::FlushError => write!(f, "flush error"),
            Self::ReadError(place) => write!(f, "read error of {place}"),
            Self::ReadsFail { lasts } => write!(f, "reads fail {}", Lasts(*lasts)),
            Self::BitRot(place, bits) => write!(f, "{bits} rotten bits in {place}"),
            Self::Slow { times, lasts } => write!(f, "{times} times as slow {}", Lasts(*lasts)),
            Self::Stall { lasts } => write!(f, "stalled {}", Lasts(*lasts)),
            Self::Dead => write!(f, "dead"),
            Self::Full { lasts } => write!(f, "full {}", Lasts(*lasts)),
            Self::Refuses { lasts } => write!(f, "refuses {}", Lasts(*lasts)),
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Op(nth) => write!(f, "at its operation {nth}"),
            Self::After(time) => write!(f, "after {time:?}"),
            Self::Chance(probability) => write!(f, "with probability {probability}"),
        }
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Fault { disk, when, what } in &self.faults {
            writeln!(f, "disk {disk}: {what} {when}")?;
        }
        for crash in &self.crashes {
            match crash {
                CrashPoint::Op(nth) => writeln!(f, "power cut at operation {nth} of the world")?,
                CrashPoint::After(time) => writeln!(f, "power cut after {time:?}")?,
            }
        }
        if self.faults.is_empty() && self.crashes.is_empty() {
            writeln!(f, "nothing goes wrong")?;
        }
        Ok(())
    }
}

impl fmt::Display for Strike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} disk {}: {}", self.at, self.disk, self.what)?;
        if self.range.is_empty() {
            Ok(())
        } else {
            write!(f, " ({}+{})", self.range.start, self.range.end - self.range.start)
        }
    }
}
