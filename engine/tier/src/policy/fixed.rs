//! Static tiering: what drew most I/O while it was training is on the fast tier from then on.

use super::{Policy, region_size, wants, within};
use crate::{Decision, Facts, Reason, Standing, Tier, VolumeFacts};
use kura_block::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Parameters; the defaults are those the paper compares with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FixedSettings {
    /// Seconds of an interval.
    pub interval_s: u64,
    /// Seconds of training before anything moves.
    pub training_s: u64,
    /// How many regions move up, at most.
    pub regions: u32,
    /// Bytes of a region.
    pub region_bytes: u64,
}

impl Default for FixedSettings {
    fn default() -> Self {
        Self { interval_s: 60, training_s: 6000, regions: 24, region_bytes: 1 << 30 }
    }
}

const NAME: &str = "static";

impl FixedSettings {
    pub(super) fn check(&self) -> Result<()> {
        within(NAME, "interval_s", self.interval_s, 1..=86_400)?;
        within(NAME, "training_s", self.training_s, 1..=366 * 86_400)?;
        within(NAME, "regions", self.regions, 1..=u32::MAX)?;
        region_size(NAME, self.region_bytes)
    }
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Fixed {
    settings: FixedSettings,
    trained_ns: u64,
    /// I/O by volume and region.
    counts: BTreeMap<(u64, u32), u64>,
    /// The regions chosen, the one with most I/O first; empty while it trains.
    chosen: Vec<(u64, u32)>,
}

impl Fixed {
    /// The policy at its beginning. The settings have been checked.
    pub fn new(settings: FixedSettings) -> Self {
        Self { settings, trained_ns: 0, counts: BTreeMap::new(), chosen: Vec::new() }
    }

    fn train(&mut self, facts: &Facts<'_>) {
        for volume in facts.volumes.iter().filter(|volume| wants::is_free(volume)) {
            for heat in volume.heat.iter().filter(|heat| heat.total() > 0) {
                *self.counts.entry((volume.volume, heat.region)).or_default() += u64::from(heat.total());
            }
        }
        if self.counts.is_empty() {
            // Training begins with the first I/O.
            return;
        }
        self.trained_ns += facts.interval_ns;
        if self.trained_ns >= self.settings.training_s * 1_000_000_000 {
            let mut ranked: Vec<_> = self.counts.iter().map(|(place, ios)| (*ios, *place)).collect();
            ranked.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
            ranked.truncate(self.settings.regions as usize);
            self.chosen = ranked.into_iter().map(|(_, place)| place).collect();
        }
    }

    /// A volume's regions on the fast tier, with their ranks: what was not chosen, then the lowest ranks.
    fn least_first(&self, volume: &VolumeFacts<'_>) -> Vec<(usize, u32)> {
        let own = self.chosen.iter().enumerate().filter(|(_, place)| place.0 == volume.volume);
        let ranks: BTreeMap<u32, usize> = own.map(|(rank, place)| (place.1, rank)).collect();
        let rank = |region: u32| ranks.get(&region).copied().unwrap_or(usize::MAX);
        let ranked = volume.placed.iter().map(|placed| (rank(placed.region), placed.region));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
        ranked
    }

    /// What leaves for regions of pinned volumes, as many as are chosen at once and no more than `short`.
    fn for_pinned(&self, facts: &Facts<'_>, short: u32) -> Vec<(u64, u32)> {
        let most = short.min(self.settings.regions) as usize;
        if most == 0 {
            return Vec::new();
        }
        let mut least = Vec::new();
        // What is above its ceiling leaves anyway.
        for volume in facts.volumes.iter().filter(|volume| wants::is_free(volume) && wants::excess(volume) == 0) {
            let may_leave = self.least_first(volume).into_iter().take(wants::spare(volume) as usize);
            least.extend(may_leave.map(|(rank, region)| (rank, volume.volume, region)));
        }
        least.sort_by_key(|(rank, ..)| std::cmp::Reverse(*rank));
        least.into_iter().take(most).map(|(_, volume, region)| (volume, region)).collect()
    }

    /// Sends down what was not chosen, but what a floor keeps, and what a volume has above its ceiling: the lowest ranks. `gone`
    /// leaves already.
    fn lower(&self, volume: &VolumeFacts<'_>, gone: &[(u64, u32)], decision: &mut Decision) {
        let (least, excess) = (self.least_first(volume), wants::excess(volume) as usize);
        let not_chosen = least.iter().filter(|(rank, _)| *rank == usize::MAX).count();
        let not_chosen = if self.chosen.is_empty() { 0 } else { not_chosen.min(wants::spare(volume) as usize) };
        for (number, (_, region)) in least.into_iter().enumerate().take(not_chosen.max(excess)) {
            if !gone.contains(&(volume.volume, region)) {
                let reason = if number < excess { Reason::Ceiling } else { Reason::NotChosen };
                wants::push(decision, volume.volume, region..region + 1, Tier::Slow, reason);
            }
        }
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        let mut decision = Decision::default();
        let left = wants::moves(facts, u32::MAX, &mut decision);
        let mut free = left.free;
        let victims = self.for_pinned(facts, left.short());
        left.displace(&victims, &mut decision);
        if self.chosen.is_empty() {
            self.train(facts);
        }
        let mut rooms: BTreeMap<u64, u32> = BTreeMap::new();
        for volume in facts.volumes.iter().filter(|volume| wants::is_free(volume)) {
            rooms.insert(volume.volume, wants::room(volume));
            self.lower(volume, &victims, &mut decision);
        }
        // Every interval again, for a full fast tier may have room later.
        for (place, rank) in self.chosen.iter().zip(1..) {
            let Some(volume) = facts.volumes.iter().find(|volume| volume.volume == place.0) else { continue };
            let on_fast = volume.placed.binary_search_by_key(&place.1, |placed| placed.region).is_ok();
            let comes = free > 0 && !on_fast && wants::is_mapped(volume, place.1);
            let Some(room) = rooms.get_mut(&place.0).filter(|room| **room > 0 && comes) else {
                continue;
            };
            (*room, free) = (*room - 1, free - 1);
            let reason = Reason::Ranked { rank, ios: self.counts.get(place).copied().unwrap_or(0) };
            wants::push(&mut decision, place.0, place.1..place.1 + 1, Tier::Fast, reason);
        }
        decision
    }

    fn standing(&self, volume: u64, region: u32) -> Standing {
        let ios = self.counts.get(&(volume, region)).copied().unwrap_or(0);
        let of_volume = self.counts.range((volume, 0)..=(volume, u32::MAX)).map(|(_, ios)| ios).sum::<u64>();
        let share = ios as f64 / of_volume.max(1) as f64;
        let rank = self.chosen.iter().position(|place| *place == (volume, region));
        let verdict = match rank {
            Some(rank) => format!("chosen: rank {} by I/O while training, {ios} requests", rank + 1),
            None if self.chosen.is_empty() => format!(
                "training, {} of {} s: {ios} requests so far",
                self.trained_ns / 1_000_000_000,
                self.settings.training_s
            ),
            None => format!("not chosen: {ios} requests while training"),
        };
        Standing { share, verdict, ..Standing::default() }
    }

    /// Training takes its time whether there is I/O or not, once there was some.
    fn rests(&self) -> bool {
        self.counts.is_empty() || !self.chosen.is_empty()
    }

    fn memory_bytes(&self) -> usize {
        self.counts.len() * 2 * size_of::<((u64, u32), u64)>() + self.chosen.capacity() * size_of::<(u64, u32)>()
    }
}
