//! `[pool.hot]`: the mirrored hot area's numbers.

use super::check::{within, within_bytes};
use super::{Finding, Spanned};
use crate::size::Size;
use kura_controller::HotSettings;
use serde::Deserialize;
use std::ops::RangeInclusive;

/// How the mirrored hot area of volumes of layout `hot-mirror` is used: a preset's numbers, and those that differ.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hot {
    /// Where numbers that are not given come from.
    pub preset: Preset,
    /// The hot area's share of the data disks, in thousandths.
    pub share_permille: Option<Spanned<u16>>,
    /// The most that it holds for each controller, one copy counted.
    pub limit: Option<Spanned<Size>>,
    /// Blocks in a track: what one movement of a disk's head reaches.
    pub track_slots: Option<Spanned<u16>>,
    /// Blocks that are written together.
    pub batch: Option<Spanned<u16>>,
    /// Tracks of the pair whose blocks age by one at each write.
    pub aged_tracks: Option<Spanned<u16>>,
    /// From which Age on a block is cold.
    pub cold_age: Option<Spanned<u8>>,
    /// Writable tracks of a pair with which it needs no migration.
    pub enough_tracks: Option<Spanned<u32>>,
    /// Whether whole stripes are written straight to their cold places.
    pub eager: Option<bool>,
    /// Whether blocks whose cold places share a stripe migrate together.
    pub by_stripe: Option<bool>,
    /// Whether it takes more than its share while the pool has room.
    pub borrow: Option<bool>,
}

/// Numbers that go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// Today's disks, and what has been found better since.
    #[default]
    Today,
    /// Those of the paper, and nothing it does not have.
    Mogi1996,
}

const SHARE_PERMILLE: RangeInclusive<u64> = 1..=900;
const LIMIT_BYTES: RangeInclusive<u64> = (16 << 20)..=(1 << 50);
const TRACK_SLOTS: RangeInclusive<u64> = 1..=256;
const AGED_TRACKS: RangeInclusive<u64> = 1..=1024;
const COLD_AGE: RangeInclusive<u64> = 1..=255;
const ENOUGH_TRACKS: RangeInclusive<u64> = 1..=1_000_000;

impl Hot {
    /// The numbers that hold.
    pub fn settings(&self) -> HotSettings {
        let preset = match self.preset {
            Preset::Today => HotSettings::TODAY,
            Preset::Mogi1996 => HotSettings::MOGI1996,
        };
        HotSettings {
            share_permille: value(self.share_permille.as_ref(), preset.share_permille),
            limit_bytes: self.limit.as_ref().map_or(preset.limit_bytes, |limit| limit.get_ref().0),
            track_slots: value(self.track_slots.as_ref(), preset.track_slots),
            batch: value(self.batch.as_ref(), preset.batch),
            aged_tracks: value(self.aged_tracks.as_ref(), preset.aged_tracks),
            cold_age: value(self.cold_age.as_ref(), preset.cold_age),
            enough_tracks: value(self.enough_tracks.as_ref(), preset.enough_tracks),
            eager: self.eager.unwrap_or(preset.eager),
            by_stripe: self.by_stripe.unwrap_or(preset.by_stripe),
            borrows: self.borrow.unwrap_or(preset.borrows),
        }
    }

    /// What is wrong.
    pub(super) fn check(&self, findings: &mut Vec<Finding>) {
        within("pool.hot.share_permille", self.share_permille.as_ref(), SHARE_PERMILLE, findings);
        within("pool.hot.track_slots", self.track_slots.as_ref(), TRACK_SLOTS, findings);
        within("pool.hot.aged_tracks", self.aged_tracks.as_ref(), AGED_TRACKS, findings);
        within("pool.hot.cold_age", self.cold_age.as_ref(), COLD_AGE, findings);
        within("pool.hot.enough_tracks", self.enough_tracks.as_ref(), ENOUGH_TRACKS, findings);
        if let Some(limit) = &self.limit {
            within_bytes("pool.hot.limit", limit, LIMIT_BYTES, findings);
        }
        let HotSettings { batch, track_slots, .. } = self.settings();
        if batch == 0 || batch > track_slots {
            let text =
                format!("a batch of {batch} blocks does not fit a track of {track_slots}: give 1 to {track_slots}");
            let place = self.batch.as_ref().or(self.track_slots.as_ref()).map_or(0..0, Spanned::span);
            findings.push(Finding::new("pool.hot.batch", place, text));
        }
    }
}

fn value<T: Copy>(given: Option<&Spanned<T>>, preset: T) -> T {
    given.map_or(preset, |given| *given.get_ref())
}
