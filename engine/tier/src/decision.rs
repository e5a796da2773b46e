//! What a policy answers, and why.

use crate::Tier;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// What is to be done after an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Decision {
    /// Moves, in the order in which they are to be done, behind those that wait already. Those down come first where
    /// those up need their space.
    pub moves: Vec<Move>,
    /// How fast, until the next decision.
    pub pace: Pace,
}

/// How fast moves are done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Bytes of moves a second, at most; 0 begins no move.
    pub bytes_per_s: u64,
    /// Requests of moves that a device of the slow tier is given at the same time, 1 or more.
    pub depth: u32,
}

impl Default for Pace {
    /// As fast as the devices can.
    fn default() -> Self {
        Self { bytes_per_s: u64::MAX, depth: 8 }
    }
}

/// Neighbouring regions of a volume that change their tier together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// The volume's id.
    pub volume: u64,
    /// Which regions; not empty. Those that are on `to` already are left alone.
    pub regions: Range<u32>,
    /// Where to.
    pub to: Tier,
    /// Down: a region that nothing was written to since it came up is dropped, for the slow tier kept its place.
    /// Whether it is clean is looked up when its turn comes.
    pub drop_clean: bool,
    /// Why.
    pub reason: Reason,
}

/// Why a move was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "because", rename_all = "kebab-case")]
pub enum Reason {
    /// Up: a group of neighbours was among the candidates often enough in a row.
    Streak {
        /// Its share of the volume's I/O in the last interval, 0 to 1.
        share: f64,
        /// Intervals in a row.
        streak: u32,
    },
    /// Up: it is new in a group that has moved already.
    Joined {
        /// The group's share of the volume's I/O in the last interval, 0 to 1.
        share: f64,
    },
    /// Down: it was outside the candidates so many intervals in a row.
    Idle {
        /// Intervals in a row.
        intervals: u32,
    },
    /// Up: among the regions with most I/O while the policy was training.
    Ranked {
        /// Its rank, 1 for the most.
        rank: u32,
        /// Its I/O in that time.
        ios: u64,
    },
    /// Down: the policy has trained, and it is not among the regions chosen.
    NotChosen,
    /// Up: what it saves is more than what it costs.
    Worth {
        /// Requests expected at these regions.
        expected_ios: f64,
        /// Bytes of the neighbourhood whose I/O says so.
        seen_in_bytes: u64,
        /// Milliseconds of the slow tier's service that are saved, by what a request is assumed to take there.
        saves_ms: f64,
        /// Milliseconds that the move takes, weighed by how busy the slow tier is.
        costs_ms: f64,
    },
    /// Down: what comes in its place is worth more.
    Displaced {
        /// Requests expected at a region that leaves.
        expected_ios: f64,
        /// Requests expected at a region that comes.
        by_ios: f64,
    },
    /// Down: a volume that is pinned to the fast tier comes in its place.
    ForPinned,
    /// Up: it is what is missing of a region that is up.
    Rest,
    /// The volume is pinned to this tier.
    Pinned,
    /// Down: the volume has more regions on the fast tier than its ceiling.
    Ceiling,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Streak { share, streak } => {
                write!(
                    f,
                    "its group was a candidate {streak} intervals in a row, now with {:.0} % of the volume's I/O",
                    share * 100.0
                )
            }
            Self::Joined { share } => {
                write!(f, "it joined a group on the fast tier that drew {:.0} % of the volume's I/O", share * 100.0)
            }
            Self::Idle { intervals } => write!(f, "it was outside the candidates {intervals} intervals in a row"),
            Self::Ranked { rank, ios } => write!(f, "rank {rank} by I/O while training: {ios} requests"),
            Self::NotChosen => f.write_str("it is not among the regions chosen while training"),
            Self::Worth { expected_ios, seen_in_bytes, saves_ms, costs_ms } => write!(
                f,
                "{expected_ios:.1} requests expected by what {} MiB around it drew: saves about {saves_ms:.1} ms of \
                 the slow tier, at {:.1} ms a request, and costs {costs_ms:.1} ms",
                seen_in_bytes.div_ceil(1 << 20),
                saves_ms / expected_ios.max(f64::MIN_POSITIVE)
            ),
            Self::Displaced { expected_ios, by_ios } => {
                write!(f, "{expected_ios:.3} requests expected a region, {by_ios:.3} by what takes its place")
            }
            Self::ForPinned => f.write_str("a volume that is pinned to the fast tier takes its place"),
            Self::Rest => f.write_str("it is what is missing of a region on the fast tier"),
            Self::Pinned => f.write_str("the volume is pinned"),
            Self::Ceiling => f.write_str("the volume is above its ceiling"),
        }
    }
}

/// What a policy thinks of a region now: for who asks why it is where it is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Its share of the volume's I/O in the last interval, 0 to 1.
    pub share: f64,
    /// Intervals in a row as a candidate, where the policy counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub streak: Option<u32>,
    /// Intervals in a row outside the candidates, where the policy counts them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<u32>,
    /// Requests expected, where the policy expects some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_ios: Option<f64>,
    /// What would have to be for it to change its tier, one line.
    pub verdict: String,
}
