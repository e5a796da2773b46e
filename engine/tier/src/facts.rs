//! What a policy is told at the end of an interval.

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A class of devices that data lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// Solid-state devices: few bytes, quick.
    Fast,
    /// Disks: where every region has a place.
    Slow,
}

/// I/O of a region in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heat {
    /// The region, counted from 0 by address. (The paper counts subLUNs from 1.)
    pub region: u32,
    /// Reads that touched it.
    pub reads: u32,
    /// Writes that touched it.
    pub writes: u32,
}

impl Heat {
    /// Reads and writes.
    pub fn total(&self) -> u32 {
        self.reads.saturating_add(self.writes)
    }
}

/// A region that is on the fast tier, or on its way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// The region.
    pub region: u32,
    /// Whether the slow tier's copy is older than it: such a region is copied when it leaves.
    pub dirty: bool,
}

/// What the user wants of a volume, whatever the policy thinks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Wants {
    /// All of the volume is to be on this tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<Tier>,
    /// So many of its regions stay on the fast tier once they are there, the best ones.
    pub floor_regions: u32,
    /// No more of its regions than this are on the fast tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_regions: Option<u32>,
}

impl Wants {
    /// What is left of it for the other part of a volume whose data lies in two, when so many regions of the one are there.
    pub fn less(self, regions: u32) -> Self {
        Self {
            pin: self.pin,
            floor_regions: self.floor_regions.saturating_sub(regions),
            ceiling_regions: self.ceiling_regions.map(|ceiling| ceiling.saturating_sub(regions)),
        }
    }
}

/// A volume (the paper's LUN) in the interval.
#[derive(Clone, Copy, Debug)]
pub struct VolumeFacts<'a> {
    /// The volume's id.
    pub volume: u64,
    /// How many regions it has.
    pub regions: u32,
    /// Runs of regions in which something is allocated, in order of address, none next to the other. The rest are holes: there
    /// is nothing to move.
    pub mapped: &'a [Range<u32>],
    /// The regions with I/O, in order of address, each once.
    pub heat: &'a [Heat],
    /// The regions on the fast tier and those on their way there, not those on their way down; in order of address.
    pub placed: &'a [Placed],
    /// What the user wants of it.
    pub wants: Wants,
}

/// Space of the fast tier, in regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// All it has.
    pub total: u32,
    /// What nothing holds: neither a region that is there, nor one on its way there, nor one that has not yet left.
    pub free: u32,
}

/// How busy the slow tier was in the interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SlowLoad {
    /// The part of the time in which its devices were busy, mean over them, 0 to 1; moves included.
    pub utilisation: f64,
    /// Requests that waited or were served at its busiest device, mean over the interval.
    pub queue: f64,
}

/// What moves and misses cost. Who tells a policy says what it has measured: the engine measures how long moves take, and assumes what
/// a request takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Milliseconds for which bringing a region up keeps devices of the slow tier busy, summed over them; or, at most, how long it takes.
    pub up_ms: f64,
    /// The same for copying a region down.
    pub down_ms: f64,
    /// The same for a user's request; waiting left out.
    pub slow_ms: f64,
    /// Milliseconds that a user's request takes on the fast tier.
    pub fast_ms: f64,
}

impl Costs {
    /// What a request to the slow tier is assumed to take.
    pub const SLOW_MS: f64 = 8.0;
    /// And one to the fast tier.
    pub const FAST_MS: f64 = 0.1;
}

/// All that is known at the end of an interval.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// When the interval ended, in nanoseconds since some fixed point; never falls.
    pub now_ns: u64,
    /// How long it was, in nanoseconds. More may have passed since the last one: then there was no I/O.
    pub interval_ns: u64,
    /// Bytes of a region (the paper's subLUN); the last of a volume may be shorter.
    pub region_bytes: u64,
    /// The volumes, by id.
    pub volumes: &'a [VolumeFacts<'a>],
    /// The fast tier's space.
    pub fast: Space,
    /// Regions that earlier decisions moved and that have not arrived yet.
    pub waiting: u32,
    /// The slow tier's load.
    pub slow: SlowLoad,
    /// What moves and misses cost.
    pub costs: Costs,
}
