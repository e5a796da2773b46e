//! The default policy: what saves more than it costs is on the fast tier.
//!
//! ```text
//!   expected I/O of a region   = the most that its own recent I/O, or a neighbourhood's, says, each corrected by what
//!                                regions that came up on such a word drew in fact
//!   up     where  expected I/O x (slow - fast response)  >  cost of the copy x how busy the slow tier is
//!   down   what is expected to draw least, for what draws clearly more, when room is wanted
//! ```
//!
//! - **Small regions, and their neighbourhoods.** A concentration is wider than what it touched so far, and creeps. So
//!   heat is counted at three sizes, and a quiet region in a hot neighbourhood comes up before it is asked for.
//! - **Quick to bring up, slow to give up.** What draws much now and then is not displaced by what draws a little all the time: of
//!   what might leave, the mean of a longer time counts where it is more.
//! - **Admission by measure.** What a level's word was worth is counted: requests that hit what came up on it, over those
//!   that it promised. A scan promises much and keeps nothing, so its regions soon need more to come up.
//! - **Cheap when idle.** A copy costs others' waiting, which is next to none while the slow tier is idle.
//! - **Throttled.** The moves' pace halves while the slow tier is busy and doubles while it is not.
//! - **Patient after a start.** What was up before is not displaced until a half-life of I/O was seen: how hot it is is not known yet.

mod heat;
mod round;

use super::{Policy, region_size, wants, within};
use crate::{Decision, Facts, Pace, Reason, Standing, Tier, VolumeFacts};
use heat::{COMING, COUNT, HeatMap, LEVELS, Now};
use kura_block::{Result, Sparse};
use round::{Round, Victim, Victims, by_least, keep_least};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorthSettings {
    /// Milliseconds of an interval.
    pub interval_ms: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Seconds in which what a request says of the future halves.
    pub half_life_s: u64,
    /// How many times its cost a move must save.
    pub margin: f64,
    /// How many times as much I/O what comes must be expected to draw as what leaves for it.
    pub displace: f64,
    /// Bytes of moves a second, at most.
    pub most_bytes_per_s: u64,
    /// Bytes of moves a second however busy the slow tier is.
    pub least_bytes_per_s: u64,
}

impl Default for WorthSettings {
    fn default() -> Self {
        Self {
            interval_ms: 1_000,
            region_bytes: 4 << 20,
            half_life_s: 300,
            margin: 1.0,
            displace: 1.5,
            most_bytes_per_s: 256 << 20,
            least_bytes_per_s: 8 << 20,
        }
    }
}

const NAME: &str = "worth";
/// Above this part of the time in which the slow tier is busy, or this many requests at a device, moves slow down.
const BUSY: f64 = 0.8;
const QUEUE: f64 = 4.0;
/// How a copy's cost is weighed: by the requests it delays, of which there are few on idle devices and many on busy ones.
/// Where it displaces something, the least is more: what leaves may have to come back.
const LEAST_WEIGHT: f64 = 0.05;
const LEAST_DISPLACING: f64 = 0.25;
const MOST_WEIGHT: f64 = 4.0;
/// Seconds in which what is known of a level's word halves, and how many requests stand for "it is kept" at first.
const WORD_HALF_LIFE_S: f64 = 1200.0;
const WORD_PRIOR: f64 = 100.0;
const WORD_RANGE: (f64, f64) = (0.01, 2.0);
/// Words are told apart by level, and by how much the cell drew: under 4 requests, 16, 64, 256, or more.
const AMOUNTS: usize = 5;

/// Which word a cell of this level that drew so much gives.
fn word_of(level: usize, drew: f32) -> usize {
    let amount = (1..AMOUNTS).take_while(|amount| drew >= (1_u32 << (2 * amount)) as f32).count();
    level * AMOUNTS + amount
}

/// What each word is worth.
type Worths = [f32; COUNT * AMOUNTS];

impl WorthSettings {
    pub(super) fn check(&self) -> Result<()> {
        within(NAME, "interval_ms", self.interval_ms, 100..=3_600_000)?;
        region_size(NAME, self.region_bytes)?;
        within(NAME, "half_life_s", self.half_life_s, 1..=1_000_000)?;
        within(NAME, "margin", self.margin, 0.0..=1e6)?;
        within(NAME, "displace", self.displace, 1.0..=1e6)?;
        within(NAME, "most_bytes_per_s", self.most_bytes_per_s, 1 << 16..=1 << 40)?;
        within(NAME, "least_bytes_per_s", self.least_bytes_per_s, 0..=self.most_bytes_per_s)
    }
}

/// What a level promised, and what was kept of it, in requests.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    promised: f64,
    kept: f64,
}

impl Word {
    fn worth(self) -> f32 {
        let (least, most) = WORD_RANGE;
        ((self.kept + WORD_PRIOR) / (self.promised + WORD_PRIOR)).clamp(least, most) as f32
    }
}

#[derive(Clone, Debug, Default)]
struct Volume {
    heat: HeatMap,
    /// The word on which a region came up, by region, plus one; 0 where it came by none.
    came_by: Sparse<u8>,
    /// Regions that were up before the policy began, in order; none any more once it has seen enough.
    found: Vec<u32>,
    /// I/O of the last interval, by region and of all.
    last: Vec<(u32, u32)>,
    total: u64,
    now: Option<Now>,
}

/// A run of regions that might move, each expected to draw so much.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Index of the volume in the facts.
    volume: usize,
    start: u32,
    end: u32,
    level: usize,
    word: usize,
    /// Requests expected a region.
    expected: f32,
}

/// The greatest is the one to come up first: it draws most.
impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let place = |one: &Self| (one.volume, one.start, one.level);
        self.expected.total_cmp(&other.expected).then_with(|| place(other).cmp(&place(self)))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Candidate {}

/// The policy.
#[derive(Clone, Debug)]
pub struct Worth {
    settings: WorthSettings,
    volumes: BTreeMap<u64, Volume>,
    words: [Word; COUNT * AMOUNTS],
    /// When it was told something last.
    told_ns: Option<u64>,
    /// How much time with I/O it has seen, as far as that matters.
    seen_ns: u64,
    pace_bytes_per_s: u64,
}

impl Worth {
    /// The policy at its beginning. The settings have been checked.
    pub fn new(settings: WorthSettings) -> Self {
        let pace_bytes_per_s = settings.most_bytes_per_s;
        Self {
            settings,
            volumes: BTreeMap::new(),
            words: [Word::default(); COUNT * AMOUNTS],
            told_ns: None,
            seen_ns: 0,
            pace_bytes_per_s,
        }
    }

    /// What each word is worth.
    fn worths(&self) -> Worths {
        self.words.map(Word::worth)
    }

    /// Takes in an interval: heat, and which promises were kept.
    fn learn(&mut self, facts: &Facts<'_>) {
        let known: BTreeSet<u64> = facts.volumes.iter().map(|volume| volume.volume).collect();
        self.volumes.retain(|id, _| known.contains(id));
        self.know_found(facts);
        let passed_ns =
            self.told_ns.replace(facts.now_ns).map_or(facts.interval_ns, |told| facts.now_ns.saturating_sub(told));
        let fade = (-(passed_ns as f64) / 1e9 / WORD_HALF_LIFE_S).exp2();
        for word in &mut self.words {
            (word.promised, word.kept) = (word.promised * fade, word.kept * fade);
        }
        for volume in facts.volumes {
            let own = self.volumes.entry(volume.volume).or_default();
            own.heat.resize(volume.regions);
            own.came_by.resize(volume.regions);
            let now = own.heat.now(facts.now_ns, self.settings.half_life_s * 1_000_000_000);
            own.heat.add(volume.heat, now);
            own.now = Some(now);
            own.last = volume.heat.iter().map(|heat| (heat.region, heat.total())).collect();
            own.total = own.last.iter().map(|(_, ios)| u64::from(*ios)).sum();
            let mut placed = volume.placed.iter().map(|placed| placed.region).peekable();
            for heat in volume.heat {
                while placed.next_if(|region| *region < heat.region).is_some() {}
                if placed.peek() == Some(&heat.region) {
                    // What was up before, or is pinned, came by none.
                    let word = own.came_by.get(heat.region).and_then(|word| usize::from(*word).checked_sub(1));
                    if let Some(word) = word {
                        self.words[word].kept += f64::from(heat.total());
                    }
                }
            }
        }
    }

    /// Notes what was up before the policy began, and forgets that once a half-life of I/O has said what is hot.
    fn know_found(&mut self, facts: &Facts<'_>) {
        if self.told_ns.is_none() {
            for volume in facts.volumes {
                let found = volume.placed.iter().map(|placed| placed.region).collect();
                self.volumes.entry(volume.volume).or_default().found = found;
            }
        }
        let half_life_ns = self.settings.half_life_s * 1_000_000_000;
        if self.seen_ns < half_life_ns && facts.volumes.iter().any(|volume| !volume.heat.is_empty()) {
            self.seen_ns = self.seen_ns.saturating_add(facts.interval_ns);
        }
        if self.seen_ns >= half_life_ns {
            for own in self.volumes.values_mut() {
                own.found = Vec::new();
            }
        }
    }

    /// Requests that a region must be expected to draw before it is worth its copy: into free space, and by how many
    /// more than what leaves for it.
    fn bars(&self, facts: &Facts<'_>) -> (f32, f32) {
        let busy = facts.slow.utilisation.clamp(0.0, 0.99);
        let weight = busy / (1.0 - busy);
        let saved_ms = (facts.costs.slow_ms - facts.costs.fast_ms).max(0.01);
        let bar =
            |least| (self.settings.margin * facts.costs.up_ms * weight.clamp(least, MOST_WEIGHT) / saved_ms) as f32;
        (bar(LEAST_WEIGHT), bar(LEAST_DISPLACING))
    }

    /// What might come up: the cells with I/O in this interval that are expected to draw at least `bar`, at all levels;
    /// on a heap, for few of them are looked at.
    fn candidates(&self, facts: &Facts<'_>, bar: f32) -> BinaryHeap<Candidate> {
        let worths = self.worths();
        let mut found = Vec::new();
        for (index, volume) in facts.volumes.iter().enumerate().filter(|(_, volume)| wants::is_free(volume)) {
            let Some((own, now)) = self.known(volume.volume) else { continue };
            for (level, shift) in LEVELS.iter().map(|level| level.shift).enumerate().take(COMING) {
                for of_cell in volume.heat.chunk_by(|a, b| a.region >> shift == b.region >> shift) {
                    let region = of_cell[0].region;
                    let (word, expected) = own.expected_by(level, region, &worths, now);
                    if expected >= bar {
                        let start = region >> shift << shift;
                        let end = start.saturating_add(1 << shift).min(volume.regions);
                        found.push(Candidate { volume: index, start, end, level, word, expected });
                    }
                }
            }
        }
        found.into()
    }

    /// A volume that has been told of, and the moment when it was last.
    fn known(&self, volume: u64) -> Option<(&Volume, Now)> {
        let own = self.volumes.get(&volume)?;
        Some((own, own.now?))
    }

    /// What the regions of a volume on the fast tier that `may_leave` are expected to draw: the `most` least, in no order.
    fn least(
        &self,
        (index, volume): (usize, &VolumeFacts<'_>),
        most: usize,
        may_leave: impl Fn(&Volume, u32) -> bool,
    ) -> Vec<Victim> {
        let Some((own, now)) = self.known(volume.volume) else { return Vec::new() };
        let worths = self.worths();
        let mut expected = Expected::of(own, &worths, now);
        let regions = volume.placed.iter().map(|placed| placed.region).filter(|region| may_leave(own, *region));
        let mut least: Vec<Victim> = regions.map(|region| (expected.at(region), index, region)).collect();
        keep_least(&mut least, most);
        least
    }

    /// What the regions on the fast tier are expected to draw, the least first: no more than `most` of them, and none that
    /// leaves already. For a pinned volume what was found up may leave, too.
    fn victims(&self, facts: &Facts<'_>, most: usize, gone: &[BTreeSet<u32>], for_pinned: bool) -> Vec<Victim> {
        let mut victims = Vec::new();
        if most == 0 {
            return victims;
        }
        for (index, volume) in facts.volumes.iter().enumerate() {
            // What is above its ceiling has been dealt with.
            if wants::is_free(volume) && wants::excess(volume) == 0 {
                // The best ones stay, down to the floor.
                let spare = (wants::spare(volume) as usize).saturating_sub(gone[index].len());
                victims.extend(self.least((index, volume), spare, |own, region| {
                    !gone[index].contains(&region) && (for_pinned || !own.is_found(region))
                }));
            }
        }
        keep_least(&mut victims, most);
        victims.sort_unstable_by(by_least);
        victims
    }

    /// Of each volume that is at its ceiling and in use, what its regions on the fast tier are expected to draw, the least first:
    /// no more than `most` of them.
    fn own_victims(&self, facts: &Facts<'_>, most: usize) -> BTreeMap<usize, Victims> {
        let is_full = |volume: &VolumeFacts<'_>| {
            let at_ceiling = wants::is_free(volume) && wants::room(volume) == 0 && wants::excess(volume) == 0;
            at_ceiling && facts.fast.total > 0 && !volume.heat.is_empty()
        };
        let full = facts.volumes.iter().enumerate().filter(|(_, volume)| is_full(volume));
        let least = full.map(|(index, volume)| {
            let mut victims = self.least((index, volume), most, |own, region| !own.is_found(region));
            victims.sort_unstable_by(by_least);
            (index, victims.into_iter().peekable())
        });
        least.collect()
    }

    /// Halves the pace while the slow tier is busy, and doubles it while it is not.
    fn throttle(&mut self, facts: &Facts<'_>) {
        let busy = facts.slow.utilisation > BUSY || facts.slow.queue > QUEUE;
        let next = if busy { self.pace_bytes_per_s / 2 } else { self.pace_bytes_per_s.saturating_mul(2) };
        self.pace_bytes_per_s = next.clamp(self.settings.least_bytes_per_s.max(1), self.settings.most_bytes_per_s);
    }

    /// Regions that may be decided on now: what the pace allows in an interval, less what waits.
    fn budget(&self, facts: &Facts<'_>) -> u32 {
        let bytes = self.pace_bytes_per_s as f64 * facts.interval_ns as f64 / 1e9;
        let regions = (bytes / facts.region_bytes.max(1) as f64).ceil();
        (regions.min(f64::from(u32::MAX)) as u32).saturating_sub(facts.waiting)
    }
}

impl Volume {
    /// True for a region that was up before the policy began, and may be hot.
    fn is_found(&self, region: u32) -> bool {
        self.found.binary_search(&region).is_ok()
    }

    /// Requests expected at a region by the word of one level, and which word that is.
    fn expected_by(&self, level: usize, region: u32, worths: &Worths, now: Now) -> (usize, f32) {
        let word = word_of(level, self.heat.drew(level, region, now));
        (word, self.heat.density(level, region, now) * worths[word])
    }
}

/// Requests expected at one region after the other, in order of address: what a neighbourhood says is looked up once.
struct Expected<'a> {
    of: &'a Volume,
    worths: &'a Worths,
    now: Now,
    /// Of each level, the last cell and what it said.
    last: [Option<(u32, f32)>; COUNT],
}

impl<'a> Expected<'a> {
    fn of(of: &'a Volume, worths: &'a Worths, now: Now) -> Self {
        Self { of, worths, now, last: [None; COUNT] }
    }

    /// The most that the region's own I/O, or a neighbourhood's, says.
    fn at(&mut self, region: u32) -> f32 {
        let mut most = 0.0_f32;
        for (level, shift) in LEVELS.iter().map(|level| level.shift).enumerate() {
            let cell = region >> shift;
            let said = match self.last[level] {
                Some((last, said)) if last == cell => said,
                _ => self.of.expected_by(level, region, self.worths, self.now).1,
            };
            self.last[level] = Some((cell, said));
            most = most.max(said);
        }
        most
    }
}

impl Policy for Worth {
    fn name(&self) -> &'static str {
        NAME
    }

    fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        self.learn(facts);
        self.throttle(facts);
        let mut decision = Decision { moves: Vec::new(), pace: Pace { bytes_per_s: self.pace_bytes_per_s, depth: 1 } };
        let left = wants::moves(facts, self.budget(facts), &mut decision);
        self.lower_to_ceilings(facts, &mut decision);
        let (bar, displacing) = self.bars(facts);
        let (budget, free) = (left.budget, left.free);
        let asked = facts.fast.total > 0 && facts.volumes.iter().any(|volume| !volume.heat.is_empty());
        // What the user says goes first.
        let mut taken = vec![BTreeSet::new(); facts.volumes.len()];
        let go = self.victims(facts, left.short().min(budget) as usize, &taken, true);
        let gone: Vec<_> = go.iter().map(|(_, index, region)| (facts.volumes[*index].volume, *region)).collect();
        left.displace(&gone, &mut decision);
        for (_, index, region) in &go {
            taken[*index].insert(*region);
        }
        let short = if asked { budget.saturating_sub(free).saturating_sub(go.len() as u32) } else { 0 };
        let victims = self.victims(facts, short as usize, &taken, false);
        let mut round = Round {
            facts,
            decision,
            ups: Decision::default(),
            budget: budget - go.len() as u32,
            free,
            victims: victims.into_iter().peekable(),
            displace: self.settings.displace as f32,
            displacing,
            rooms: facts.volumes.iter().map(wants::room).collect(),
            taken,
            own: self.own_victims(facts, budget as usize),
        };
        let mut candidates = self.candidates(facts, bar.max(round.least()));
        let saved_ms = facts.costs.slow_ms - facts.costs.fast_ms;
        let worths = self.worths();
        // What draws less has no room either.
        while let Some(candidate) = candidates.pop().filter(|candidate| round.budget > 0 && round.has_room(candidate)) {
            let expected = f64::from(candidate.expected);
            let reason = Reason::Worth {
                expected_ios: expected,
                seen_in_bytes: facts.region_bytes << LEVELS[candidate.level].shift,
                saves_ms: expected * saved_ms,
                costs_ms: f64::from(bar) * saved_ms,
            };
            let brought = round.bring(&candidate, &reason);
            self.words[candidate.word].promised += brought.len() as f64 * expected / f64::from(worths[candidate.word]);
            if let Some(own) = self.volumes.get_mut(&facts.volumes[candidate.volume].volume) {
                for region in brought {
                    if let Some(word) = own.came_by.get_mut(region) {
                        *word = candidate.word as u8 + 1;
                    }
                }
            }
        }
        let Round { mut decision, ups, .. } = round;
        for down in decision.moves.iter().filter(|decided| decided.to == Tier::Slow) {
            if let Some(own) = self.volumes.get_mut(&down.volume) {
                for region in down.regions.clone() {
                    if let Some(word) = own.came_by.get_mut(region) {
                        *word = 0;
                    }
                }
            }
        }
        decision.moves.extend(ups.moves);
        decision
    }

    fn standing(&self, volume: u64, region: u32) -> Standing {
        let Some((own, now)) = self.known(volume) else {
            return Standing { verdict: "no I/O of the volume was seen yet".into(), ..Standing::default() };
        };
        let worths = self.worths();
        let of = |level: usize| own.expected_by(level, region, &worths, now).1;
        let level = (0..COUNT).max_by(|a, b| of(*a).total_cmp(&of(*b))).unwrap_or(0);
        let (expected, neighbourhood) = (of(level), self.settings.region_bytes << LEVELS[level].shift);
        let ios = own.last.binary_search_by_key(&region, |(region, _)| *region).map_or(0, |at| own.last[at].1);
        Standing {
            share: f64::from(ios) / own.total.max(1) as f64,
            expected_ios: Some(expected.into()),
            verdict: format!(
                "{expected:.3} requests expected by what {} MiB around it drew{}",
                neighbourhood.div_ceil(1 << 20),
                if own.is_found(region) { "; it was up at the start, and is not displaced yet" } else { "" }
            ),
            ..Standing::default()
        }
    }

    /// What is known fades by the clock, and nothing comes up without I/O.
    fn rests(&self) -> bool {
        self.pace_bytes_per_s == self.settings.most_bytes_per_s
    }

    fn memory_bytes(&self) -> usize {
        let of = |own: &Volume| {
            let lists = own.found.capacity() * size_of::<u32>() + own.last.capacity() * size_of::<(u32, u32)>();
            own.heat.memory_bytes() + own.came_by.memory_bytes() + lists
        };
        self.volumes.values().map(of).sum()
    }
}

impl Worth {
    /// Sends down what a volume has above its ceiling: what is expected to draw least.
    fn lower_to_ceilings(&self, facts: &Facts<'_>, decision: &mut Decision) {
        let is_above = |volume: &VolumeFacts<'_>| wants::is_free(volume) && wants::excess(volume) > 0;
        for (index, volume) in facts.volumes.iter().enumerate().filter(|(_, volume)| is_above(volume)) {
            let mut all = self.least((index, volume), wants::excess(volume) as usize, |_, _| true);
            all.sort_unstable_by_key(|victim| victim.2);
            for (_, _, region) in all {
                wants::push(decision, volume.volume, region..region + 1, Tier::Slow, Reason::Ceiling);
            }
        }
    }
}
