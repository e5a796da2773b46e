//! On-the-fly automated storage tiering, the paper's algorithm to the letter (its section 3.2).
//!
//! ```text
//!   I/O of an interval ─> i reached? ─> top n ─> neighbours grouped ─> groups, most I/O first, until past m %
//!                           (step 1)   (step 2)      (step 3)                (step 4): the candidates
//!
//!   up:    a group c intervals in a row among them; what joins a group that has moved, at once
//!   down:  a region on the fast tier that was outside them o intervals in a row
//! ```
//!
//! The paper says "the same group" of groups in successive intervals that share a subLUN. A group has moved when one of
//! its subLUNs is on the fast tier. Below i nothing happens at all: streaks and timeouts stand still.

use super::{Policy, region_size, wants, within};
use crate::{Decision, Facts, Heat, Pace, Reason, Standing, Tier, VolumeFacts};
use kura_block::Result;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Parameters, with the paper's letters and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OtfAstSettings {
    /// t: seconds of an interval.
    #[serde(alias = "t")]
    pub interval_s: u64,
    /// n: regions that may move at once.
    #[serde(alias = "n")]
    pub moved_at_once: u32,
    /// m: the share of I/O, in per cent, that the candidates pass.
    #[serde(alias = "m")]
    pub share_percent: f64,
    /// c: intervals in a row before a group moves up.
    #[serde(alias = "c")]
    pub streak: u32,
    /// o: intervals in a row outside the candidates before a region moves down.
    #[serde(alias = "o")]
    pub timeout: u32,
    /// i: I/O a second of a volume under which nothing is decided.
    #[serde(alias = "i")]
    pub floor_iops: f64,
    /// Bytes of a subLUN.
    #[serde(alias = "sublun_bytes")]
    pub region_bytes: u64,
    /// The paper's open work: moves slow down while the slow tier is busy.
    pub throttle: bool,
    /// The paper's open work: what was not written while it was on the fast tier leaves without a copy.
    pub drop_clean: bool,
}

impl Default for OtfAstSettings {
    /// The paper's.
    fn default() -> Self {
        Self {
            interval_s: 60,
            moved_at_once: 20,
            share_percent: 60.0,
            streak: 3,
            timeout: 10,
            floor_iops: 50.0,
            region_bytes: 1 << 30,
            throttle: false,
            drop_clean: false,
        }
    }
}

const NAME: &str = "otf-ast";
/// Above this part of the time in which the slow tier is busy, or this many requests at a device, moves slow down.
const BUSY: f64 = 0.7;
const QUEUE: f64 = 4.0;
/// The least and the most to which the throttle sets the moves, in bytes a second.
const LEAST_PACE: u64 = 8 << 20;
const MOST_PACE: u64 = 512 << 20;

impl OtfAstSettings {
    pub(super) fn check(&self) -> Result<()> {
        within(NAME, "interval_s (t)", self.interval_s, 1..=86_400)?;
        within(NAME, "moved_at_once (n)", self.moved_at_once, 1..=1_000_000)?;
        // All I/O is not more than 100 %: nothing would ever move.
        within(NAME, "share_percent (m)", self.share_percent, 0.0..=99.0)?;
        within(NAME, "streak (c)", self.streak, 1..=10_000)?;
        within(NAME, "timeout (o)", self.timeout, 1..=10_000)?;
        within(NAME, "floor_iops (i)", self.floor_iops, 0.0..=1e9)?;
        region_size(NAME, self.region_bytes)
    }
}

/// A group of neighbours among the candidates.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) regions: Range<u32>,
    pub(crate) ios: u64,
    /// Intervals in a row.
    pub(crate) streak: u32,
}

#[derive(Clone, Debug, Default)]
struct Volume {
    /// The candidates of the last interval in which something was decided, the group with most I/O first.
    candidates: Vec<Group>,
    /// Regions on the fast tier, and how many intervals in a row they have been outside the candidates.
    idle: BTreeMap<u32, u32>,
    /// I/O of the last interval, of the volume and by region.
    total: u64,
    heat: Vec<Heat>,
}

/// The policy.
#[derive(Clone, Debug)]
pub struct OtfAst {
    settings: OtfAstSettings,
    volumes: BTreeMap<u64, Volume>,
    pace: Pace,
}

impl OtfAst {
    /// The policy at its beginning. The settings have been checked.
    pub fn new(settings: OtfAstSettings) -> Self {
        let pace = if settings.throttle { Pace { bytes_per_s: MOST_PACE, depth: 4 } } else { Pace::default() };
        Self { settings, volumes: BTreeMap::new(), pace }
    }

    /// What leaves for regions of pinned volumes, no more than may move at once: what was outside the candidates for longest.
    fn for_pinned(&self, facts: &Facts<'_>, short: u32) -> Vec<(u64, u32)> {
        let most = short.min(self.settings.moved_at_once) as usize;
        if most == 0 {
            return Vec::new();
        }
        let (none, mut least) = (Volume::default(), Vec::new());
        // What is above its ceiling leaves anyway.
        for volume in facts.volumes.iter().filter(|volume| wants::is_free(volume) && wants::excess(volume) == 0) {
            let own = self.volumes.get(&volume.volume).unwrap_or(&none);
            let may_leave = own.least_first(volume).into_iter().take(wants::spare(volume) as usize);
            least.extend(may_leave.map(|(idle, region)| (idle, volume.volume, region)));
        }
        least.sort_by_key(|(idle, ..)| std::cmp::Reverse(*idle));
        least.into_iter().take(most).map(|(_, volume, region)| (volume, region)).collect()
    }

    /// Halves the moves' pace while the slow tier is busy, and doubles it while it is not.
    fn throttle(&mut self, facts: &Facts<'_>) {
        if !self.settings.throttle {
            return;
        }
        let busy = facts.slow.utilisation > BUSY || facts.slow.queue > QUEUE;
        let next = if busy { self.pace.bytes_per_s / 2 } else { self.pace.bytes_per_s * 2 };
        self.pace.bytes_per_s = next.clamp(LEAST_PACE, MOST_PACE);
        self.pace.depth = if busy { 1 } else { 4 };
    }
}

/// Steps 1 to 4: the groups that may move up, the one with most I/O first, with a streak of 0. `None` below the floor.
pub(crate) fn candidates(settings: &OtfAstSettings, heat: &[Heat], interval_ns: u64) -> Option<Vec<Group>> {
    let total: u64 = heat.iter().map(|heat| u64::from(heat.total())).sum();
    let iops = total as f64 / (interval_ns as f64 / 1e9);
    if iops < settings.floor_iops || total == 0 {
        return None;
    }
    let mut top: Vec<&Heat> = heat.iter().filter(|heat| heat.total() > 0).collect();
    let by_ios = |a: &&Heat, b: &&Heat| b.total().cmp(&a.total()).then(a.region.cmp(&b.region));
    let most = settings.moved_at_once as usize;
    if top.len() > most {
        top.select_nth_unstable_by(most - 1, by_ios);
        top.truncate(most);
    }
    top.sort_unstable_by_key(|heat| heat.region);
    let mut groups: Vec<Group> = Vec::new();
    for heat in top {
        let (region, ios) = (heat.region, u64::from(heat.total()));
        match groups.last_mut() {
            Some(group) if group.regions.end == region => {
                group.regions.end += 1;
                group.ios += ios;
            }
            _ => groups.push(Group { regions: region..region + 1, ios, streak: 0 }),
        }
    }
    groups.sort_by(|a, b| b.ios.cmp(&a.ios).then(a.regions.start.cmp(&b.regions.start)));
    let mut sum = 0;
    let past = |group: &Group| {
        sum += group.ios;
        sum as f64 * 100.0 > settings.share_percent * total as f64
    };
    // Even all of them together do not pass m %: the I/O is not concentrated enough.
    Some(groups.iter().position(past).map_or_else(Vec::new, |last| groups[..=last].to_vec()))
}

impl Volume {
    /// What is up and down after an interval. `free`: regions that the fast tier has room for; `gone`: those that leave already.
    fn decide(
        &mut self,
        settings: &OtfAstSettings,
        (facts, volume): (&Facts<'_>, &VolumeFacts<'_>),
        mut gone: BTreeSet<u32>,
        free: &mut u32,
        decision: &mut Decision,
    ) {
        self.heat = volume.heat.to_vec();
        self.total = volume.heat.iter().map(|heat| u64::from(heat.total())).sum();
        // Whatever is asked of the volume: the user's word holds of a quiet one too.
        gone.extend(self.lower_to_ceiling(volume, decision));
        self.idle.retain(|region, _| !gone.contains(region));
        let Some(mut groups) = candidates(settings, volume.heat, facts.interval_ns) else { return };
        for group in &mut groups {
            let before = self.candidates.iter().filter(|before| overlap(&before.regions, &group.regions));
            group.streak = 1 + before.map(|before| before.streak).max().unwrap_or(0);
        }
        self.candidates = groups;
        self.down(settings, volume, &gone, decision);
        self.up(settings, volume, free, decision);
    }

    fn up(&mut self, settings: &OtfAstSettings, volume: &VolumeFacts<'_>, free: &mut u32, decision: &mut Decision) {
        let mut room = wants::room(volume).min(*free);
        for group in &self.candidates {
            let on_fast = |region: &u32| volume.placed.binary_search_by_key(region, |placed| placed.region).is_ok();
            let has_moved = group.regions.clone().any(|region| on_fast(&region));
            let share = group.ios as f64 / self.total as f64;
            let reason = match (has_moved, group.streak >= settings.streak) {
                (true, _) => Reason::Joined { share },
                (false, true) => Reason::Streak { share, streak: group.streak },
                (false, false) => continue,
            };
            let comes = |region: &u32| !on_fast(region) && wants::is_mapped(volume, *region);
            for region in group.regions.clone().filter(comes) {
                if room == 0 {
                    return;
                }
                (room, *free) = (room - 1, *free - 1);
                wants::push(decision, volume.volume, region..region + 1, Tier::Fast, reason.clone());
            }
        }
    }

    /// Regions on the fast tier, and how long each has been outside the candidates: the longest first.
    fn least_first(&self, volume: &VolumeFacts<'_>) -> Vec<(u32, u32)> {
        let idle = |region: u32| self.idle.get(&region).copied().unwrap_or(0);
        let mut placed: Vec<_> = volume.placed.iter().map(|placed| (idle(placed.region), placed.region)).collect();
        placed.sort_by_key(|(idle, _)| std::cmp::Reverse(*idle));
        placed
    }

    /// Sends down what the volume has above its ceiling; which regions.
    fn lower_to_ceiling(&self, volume: &VolumeFacts<'_>, decision: &mut Decision) -> BTreeSet<u32> {
        let excess = wants::excess(volume) as usize;
        if excess == 0 {
            return BTreeSet::new();
        }
        let lowered: BTreeSet<u32> =
            self.least_first(volume).into_iter().take(excess).map(|(_, region)| region).collect();
        for region in &lowered {
            wants::push(decision, volume.volume, *region..*region + 1, Tier::Slow, Reason::Ceiling);
        }
        lowered
    }

    fn down(
        &mut self,
        settings: &OtfAstSettings,
        volume: &VolumeFacts<'_>,
        gone: &BTreeSet<u32>,
        decision: &mut Decision,
    ) {
        let is_candidate = |region: u32| self.candidates.iter().any(|group| group.regions.contains(&region));
        let mut idle = BTreeMap::new();
        let mut spare = wants::spare(volume).saturating_sub(gone.len() as u32);
        for placed in volume.placed.iter().filter(|placed| !gone.contains(&placed.region)) {
            let before = self.idle.get(&placed.region).copied().unwrap_or(0);
            let outside = if is_candidate(placed.region) { 0 } else { before + 1 };
            if outside < settings.timeout || spare == 0 {
                idle.insert(placed.region, outside);
                continue;
            }
            spare -= 1;
            let reason = Reason::Idle { intervals: outside };
            wants::push(decision, volume.volume, placed.region..placed.region + 1, Tier::Slow, reason);
        }
        self.idle = idle;
    }
}

fn overlap(a: &Range<u32>, b: &Range<u32>) -> bool {
    a.start < b.end && b.start < a.end
}

impl Policy for OtfAst {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        self.throttle(facts);
        let mut decision = Decision { moves: Vec::new(), pace: self.pace };
        let left = wants::moves(facts, u32::MAX, &mut decision);
        let mut free = left.free;
        let victims = self.for_pinned(facts, left.short());
        left.displace(&victims, &mut decision);
        let known = |id: &u64| facts.volumes.iter().any(|volume| volume.volume == *id);
        self.volumes.retain(|id, _| known(id));
        for volume in facts.volumes.iter().filter(|volume| wants::is_free(volume)) {
            let own = self.volumes.entry(volume.volume).or_default();
            let gone = victims.iter().filter(|(of, _)| *of == volume.volume).map(|(_, region)| *region).collect();
            own.decide(&self.settings, (facts, volume), gone, &mut free, &mut decision);
        }
        for decided in &mut decision.moves {
            decided.drop_clean &= self.settings.drop_clean;
        }
        decision
    }

    fn standing(&self, volume: u64, region: u32) -> Standing {
        let Some(volume) = self.volumes.get(&volume) else {
            return Standing { verdict: "no I/O of the volume was seen yet".into(), ..Standing::default() };
        };
        let OtfAstSettings { streak: most, timeout, .. } = self.settings;
        let ios = volume.heat.binary_search_by_key(&region, |heat| heat.region);
        let ios = ios.map_or(0, |at| u64::from(volume.heat[at].total()));
        let group = volume.candidates.iter().find(|group| group.regions.contains(&region));
        let (streak, idle) = (group.map_or(0, |group| group.streak), volume.idle.get(&region).copied());
        let verdict = match (group, idle) {
            (_, Some(idle)) => {
                format!("on the fast tier; down after {timeout} intervals outside the candidates: {idle} so far")
            }
            (Some(group), None) => format!(
                "a candidate with regions {} to {}; up after {most} intervals in a row: {streak} so far",
                group.regions.start,
                group.regions.end - 1
            ),
            (None, None) => "no candidate".into(),
        };
        let share = ios as f64 / volume.total.max(1) as f64;
        Standing { share, streak: Some(streak), idle, expected_ios: None, verdict }
    }

    /// Without I/O streaks and timeouts stand still: only the throttle has something to do.
    fn rests(&self) -> bool {
        !self.settings.throttle || self.pace.bytes_per_s == MOST_PACE
    }

    fn memory_bytes(&self) -> usize {
        let of = |volume: &Volume| {
            volume.heat.capacity() * size_of::<Heat>()
                + volume.candidates.capacity() * size_of::<Group>()
                + volume.idle.len() * 2 * size_of::<(u32, u32)>()
        };
        self.volumes.values().map(of).sum()
    }
}
