//! The tiers as they travel.

use crate::{DiskClass, Timestamp};
use kura_controller as engine;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use utoipa::ToSchema;

/// The tiers of the pool; sizes in bytes, counts since the start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierStatus {
    /// The policy and its parameters, as in the configuration; absent when none is at work.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub policy: Option<serde_json::Value>,
    /// Why nothing goes up, where that is so: one line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindrance: Option<String>,
    /// Bytes of a region (the paper's subLUN).
    pub region_bytes: u64,
    /// What the fast tier holds, one copy counted.
    pub total_bytes: u64,
    /// Of these, what nothing holds.
    pub free_bytes: u64,
    /// Bytes of blocks that lie in the fast tier.
    pub valid_bytes: u64,
    /// Of these, what the slow tier has older.
    pub stale_bytes: u64,
    /// Bytes of regions that wait to be moved.
    pub waiting_bytes: u64,
    /// Moves decided.
    pub moves: u64,
    /// Reads of volumes.
    pub reads: u64,
    /// Of these, those that the fast tier served.
    pub fast_reads: u64,
    /// Writes of volumes.
    pub writes: u64,
    /// Of these, those that go to the fast tier.
    pub fast_writes: u64,
    /// The part of the last interval in which the slow tier's disks were busy, 0 to 1.
    pub slow_utilisation: f64,
    /// Requests at the busiest of them, mean over the last interval.
    pub slow_queue: f64,
    /// Bytes of memory that the policy holds.
    pub policy_bytes: u64,
}

/// What the user says of a volume's place in the tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TierRules {
    /// The tier that all of it is held in; absent: the policy decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<DiskClass>,
    /// Bytes of it that stay in the fast tier once they are there, the best ones.
    pub floor_bytes: u64,
    /// The most bytes of it in the fast tier; 0 is no limit.
    pub ceiling_bytes: u64,
}

/// A tier that a volume is held in, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TierPin {
    /// All of it is in the fast tier, as far as there is room.
    Fast,
    /// None of it is.
    Slow,
    /// The policy decides.
    #[default]
    None,
}

/// A change of what the user says of a volume's place in the tiers: what is absent stays as it is, and what is `null` is said no more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TierChange {
    /// The tier that all of it is held in.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "null_is_none")]
    pub pin: Option<TierPin>,
    /// Bytes of it that stay in the fast tier once they are there, the best ones.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "null_is_none")]
    pub floor_bytes: Option<u64>,
    /// The most bytes of it in the fast tier; 0 is no limit.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "null_is_none")]
    pub ceiling_bytes: Option<u64>,
}

/// Takes `null` for the word that says nothing.
fn null_is_none<'de, D, T>(given: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Some(Option::deserialize(given)?.unwrap_or_default()))
}

/// A move of neighbouring regions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierMove {
    /// The controller that decided it.
    pub controller: u16,
    /// Counts up with each move of the controller.
    pub number: u64,
    /// The volume's name, or its number where it is gone.
    pub volume: String,
    /// Where in the volume.
    pub offset_bytes: u64,
    /// How much of it.
    pub len_bytes: u64,
    /// Where to.
    pub to: DiskClass,
    /// Why, for people.
    pub reason: String,
    /// Why, for programs.
    #[schema(value_type = Object)]
    pub because: serde_json::Value,
    /// When it was decided.
    #[schema(value_type = String, format = DateTime)]
    pub decided_at: Timestamp,
    /// Seconds until it was done; absent while it waits or goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_s: Option<f64>,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Why it did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// A region of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegionHeat {
    /// Where in the volume.
    pub offset_bytes: u64,
    /// Reads in the last interval.
    pub reads: u32,
    /// Writes in the last interval.
    pub writes: u32,
    /// Bytes of it that lie in the fast tier.
    pub valid_bytes: u64,
    /// Of these, what the slow tier has older.
    pub stale_bytes: u64,
}

/// How a volume was used in the last interval: its regions that were used or are in the fast tier, in order of address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeHeat {
    /// Bytes of a region.
    pub region_bytes: u64,
    /// The regions.
    pub regions: Vec<RegionHeat>,
}

/// Why a region of a volume is where it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TierWhy {
    /// Bytes of the region.
    pub region_bytes: u64,
    /// Its use, and how much of it is in the fast tier.
    pub region: RegionHeat,
    /// What the user says of its volume.
    pub rules: TierRules,
    /// What the policy thinks of it as of the last interval, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// The same, for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub standing: Option<serde_json::Value>,
    /// Its last move, while that is remembered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_move: Option<TierMove>,
    /// Where the region lies, if that is not in the volume itself, as with a snapshot; offsets are those there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lies_in: Option<String>,
}

impl From<engine::Tier> for DiskClass {
    fn from(tier: engine::Tier) -> Self {
        match tier {
            engine::Tier::Fast => Self::Fast,
            engine::Tier::Slow => Self::Slow,
        }
    }
}

impl From<engine::TierInfo> for TierStatus {
    fn from(info: engine::TierInfo) -> Self {
        let engine::Hits { fast_reads, fast_writes, reads, writes } = info.hits;
        Self {
            policy: info.settings.and_then(|settings| serde_json::to_value(settings).ok()),
            hindrance: info.hindrance,
            region_bytes: info.region_bytes,
            total_bytes: info.total_bytes,
            free_bytes: info.free_bytes,
            valid_bytes: info.valid_bytes,
            stale_bytes: info.stale_bytes,
            waiting_bytes: info.waiting_bytes,
            moves: info.moves,
            reads,
            fast_reads,
            writes,
            fast_writes,
            slow_utilisation: info.load.utilisation,
            slow_queue: info.load.queue,
            policy_bytes: info.policy_bytes,
        }
    }
}

impl From<engine::TierRules> for TierRules {
    fn from(rules: engine::TierRules) -> Self {
        let engine::TierRules { pin, floor_bytes, ceiling_bytes } = rules;
        let pin = match pin {
            engine::Pin::None => None,
            engine::Pin::Fast => Some(DiskClass::Fast),
            engine::Pin::Slow => Some(DiskClass::Slow),
        };
        Self { pin, floor_bytes, ceiling_bytes }
    }
}

impl From<TierChange> for engine::TierChange {
    fn from(change: TierChange) -> Self {
        let TierChange { pin, floor_bytes, ceiling_bytes } = change;
        let pin = pin.map(|pin| match pin {
            TierPin::None => engine::Pin::None,
            TierPin::Fast => engine::Pin::Fast,
            TierPin::Slow => engine::Pin::Slow,
        });
        Self { pin, floor_bytes, ceiling_bytes }
    }
}

impl From<engine::TierMoveInfo> for TierMove {
    fn from(info: engine::TierMoveInfo) -> Self {
        Self {
            controller: info.controller,
            number: info.number,
            volume: info.volume,
            offset_bytes: info.range.start,
            len_bytes: info.range.end - info.range.start,
            to: info.to.into(),
            reason: info.reason.to_string(),
            because: serde_json::to_value(&info.reason).unwrap_or_default(),
            decided_at: Timestamp(SystemTime::now() - info.ago),
            took_s: info.took.map(|took| took.as_secs_f64()),
            copied_bytes: info.copied_bytes,
            failed: info.failed,
        }
    }
}

impl RegionHeat {
    fn new(region_bytes: u64, used: engine::RegionUse) -> Self {
        let engine::RegionUse { region, reads, writes, valid_bytes, stale_bytes } = used;
        Self { offset_bytes: u64::from(region) * region_bytes, reads, writes, valid_bytes, stale_bytes }
    }
}

impl From<(u64, Vec<engine::RegionUse>)> for VolumeHeat {
    fn from((region_bytes, regions): (u64, Vec<engine::RegionUse>)) -> Self {
        let regions = regions.into_iter().map(|used| RegionHeat::new(region_bytes, used)).collect();
        Self { region_bytes, regions }
    }
}

impl From<engine::TierWhyInfo> for TierWhy {
    fn from(info: engine::TierWhyInfo) -> Self {
        let region_bytes = info.range.end - info.range.start;
        Self {
            region_bytes,
            region: RegionHeat::new(region_bytes, info.region),
            rules: info.rules.into(),
            verdict: info.standing.as_ref().map(|standing| standing.verdict.clone()),
            standing: info.standing.and_then(|standing| serde_json::to_value(standing).ok()),
            last_move: info.last.map(TierMove::from),
            lies_in: info.lies_in,
        }
    }
}
