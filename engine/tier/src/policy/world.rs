//! For tests: a volume whose moves are done at once.

use crate::{Costs, Decision, Facts, Heat, Placed, Policy, SlowLoad, Space, Tier, VolumeFacts, Wants};
use std::collections::BTreeMap;
use std::ops::Range;

/// A volume, and what of it is on the fast tier: whether it is dirty there.
pub(super) struct World {
    pub regions: u32,
    pub room: u32,
    pub region_bytes: u64,
    pub interval_ns: u64,
    pub now_ns: u64,
    pub slow: SlowLoad,
    pub wants: Wants,
    /// What of it is allocated; `None` is all.
    pub mapped: Option<&'static [Range<u32>]>,
    pub placed: BTreeMap<u32, bool>,
}

impl World {
    /// The paper's volume: 300 subLUNs of 1 GB, 24 of them fast, a minute's interval.
    pub fn paper() -> Self {
        Self {
            regions: 300,
            room: 24,
            region_bytes: 1 << 30,
            interval_ns: 60_000_000_000,
            now_ns: 0,
            slow: SlowLoad { utilisation: 0.3, queue: 0.5 },
            wants: Wants::default(),
            mapped: None,
            placed: BTreeMap::new(),
        }
    }

    /// An interval with this I/O (in order of regions), and its moves done.
    pub fn interval(&mut self, policy: &mut dyn Policy, heat: &[Heat]) -> Decision {
        self.now_ns += self.interval_ns;
        let placed: Vec<Placed> =
            self.placed.iter().map(|(region, dirty)| Placed { region: *region, dirty: *dirty }).collect();
        let (regions, wants, all) = (self.regions, self.wants, 0..self.regions);
        let mapped = self.mapped.unwrap_or(std::slice::from_ref(&all));
        let volume = VolumeFacts { volume: 7, regions, mapped, heat, placed: &placed, wants };
        let up_ms = 30.0 + self.region_bytes as f64 / 137_000.0;
        let decision = policy.decide(&Facts {
            now_ns: self.now_ns,
            interval_ns: self.interval_ns,
            region_bytes: self.region_bytes,
            volumes: &[volume],
            fast: Space { total: self.room, free: self.room - placed.len() as u32 },
            waiting: 0,
            slow: self.slow,
            costs: Costs { up_ms, down_ms: up_ms, slow_ms: 7.6, fast_ms: 0.12 },
        });
        for heat in heat.iter().filter(|heat| heat.writes > 0) {
            self.placed.entry(heat.region).and_modify(|dirty| *dirty = true);
        }
        for decided in &decision.moves {
            for region in decided.regions.clone() {
                match decided.to {
                    Tier::Fast => drop(self.placed.insert(region, false)),
                    Tier::Slow => drop(self.placed.remove(&region)),
                }
            }
        }
        decision
    }

    /// Regions on the fast tier.
    pub fn fast(&self) -> Vec<u32> {
        self.placed.keys().copied().collect()
    }
}

/// Reads by region.
pub(super) fn reads(counts: impl IntoIterator<Item = (u32, u32)>) -> Vec<Heat> {
    let mut heat: Vec<Heat> = counts.into_iter().map(|(region, reads)| Heat { region, reads, writes: 0 }).collect();
    heat.sort_by_key(|heat| heat.region);
    heat
}
