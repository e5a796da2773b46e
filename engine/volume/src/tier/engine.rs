//! The engine: once an interval the policy is told what was, and what it decides waits in line.

use super::{FastCopy, Hits, Key, Pin, TierRules};
use crate::store::Inner;
use crate::tables::{MappedRuns, VolumeState};
use kura_array::Work;
use kura_block::{Amount, DeviceId, Error, Result};
use kura_tier::{Costs, Facts, Heat, Move, Pace, Placed, Policy, Reason, SlowLoad, Space, Tier, VolumeFacts, Wants};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Moves that are remembered.
const REMEMBERED: usize = 1000;
/// How much the newest measurement counts.
const NEWEST: f64 = 0.2;
/// Seconds in which half of what was measured is forgotten.
const FADES_S: f64 = 60.0;

/// A policy at work.
pub struct TierSetup {
    /// Decides.
    pub policy: Box<dyn Policy>,
    /// Bytes of a region, at least an extent: a power of two.
    pub region_bytes: u64,
    /// How long an interval is.
    pub interval: Duration,
    /// The only fast disk, where the user insists on having no other: it serves reads.
    pub single_disk: Option<DeviceId>,
}

/// A move, as it is remembered.
#[derive(Clone, Debug, PartialEq)]
pub struct TierMove {
    /// Counts up with each move.
    pub number: u64,
    /// What was decided, and why.
    pub decided: Move,
    /// When that was, by the runtime's clock.
    pub at: Duration,
    /// Extents that have arrived.
    pub extents: u32,
    /// Bytes that were copied.
    pub bytes: u64,
    /// When it was done; `None` while it is not.
    pub done: Option<Duration>,
    /// Why it did not come to its end.
    pub failed: Option<String>,
    /// Extents on their way.
    pub(super) under_way: u32,
    /// None of it is left to begin.
    pub(super) all_begun: bool,
    /// Times that it found no room.
    pub(super) refused: u32,
}

/// A move that waits, and how far it has come.
pub(super) struct Waiting {
    pub number: u64,
    pub decided: Move,
    /// Extents left.
    pub left: std::ops::Range<u32>,
    /// There was something to move.
    pub begun: bool,
}

/// What the engine knows.
#[derive(Default)]
pub(crate) struct Engine {
    pub setup: Option<TierSetup>,
    pub(super) waiting: VecDeque<Waiting>,
    pub moves: VecDeque<TierMove>,
    pub next_number: u64,
    pub pace: Pace,
    /// When the interval began.
    pub begun: Duration,
    /// No move begins before.
    pub not_before: Duration,
    /// What was refused before then counts as one refusal.
    pub(super) refused_until: Duration,
    /// Extents that are being moved.
    pub flying: BTreeSet<Key>,
    /// Copies that are left alone until then.
    pub resting: BTreeMap<Key, Duration>,
    /// Of copies that go down, the move that said so.
    pub down_by: BTreeMap<Key, u64>,
    /// What the last interval was like.
    pub heat: BTreeMap<u64, Vec<Heat>>,
    pub load: SlowLoad,
    pub hits: Hits,
    pub measured: Measured,
}

/// Milliseconds that an extent takes up and down, waiting for users' requests included, as measured lately.
#[derive(Clone, Copy)]
pub(crate) struct Measured {
    pub up: f64,
    pub down: f64,
}

impl Default for Measured {
    fn default() -> Self {
        Self { up: 50.0, down: 80.0 }
    }
}

impl Measured {
    /// Notes one more measurement.
    pub fn note(was: &mut f64, took: Duration) {
        *was += (took.as_secs_f64() * 1000.0 - *was) * NEWEST;
    }

    /// Forgets in time: what was measured while the disks were busy keeps nothing from moving, and so from being measured, when they no
    /// longer are.
    fn fade(&mut self, passed: Duration) {
        let Self { up, down } = Self::default();
        let left = (-passed.as_secs_f64() / FADES_S).exp2();
        (self.up, self.down) = (up + (self.up - up) * left, down + (self.down - down) * left);
    }
}

/// A volume in the interval, with what its facts borrow.
struct Told {
    id: u64,
    regions: u32,
    mapped: MappedRuns,
    heat: Vec<Heat>,
    placed: Vec<Placed>,
    wants: Wants,
}

impl Inner {
    /// Extents in a region.
    pub fn region_extents(&self) -> u32 {
        (self.tier.region_blocks.get() / self.array.extent_blocks() as u64).max(1) as u32
    }

    /// Bytes in a region.
    pub fn region_bytes(&self) -> u64 {
        u64::from(self.region_extents()) * self.array.extent_bytes()
    }

    /// Puts another policy to work, or none: then what is up stays, until its disks are wanted back.
    pub fn set_tier(&self, setup: Option<TierSetup>) -> Result<()> {
        let extent_bytes = self.array.extent_bytes();
        let region_bytes = setup.as_ref().map_or(0, |setup| setup.region_bytes.max(extent_bytes));
        if !region_bytes.is_multiple_of(extent_bytes) {
            return Err(Error::invalid(format!(
                "regions of {}: give a power of two, the pool's extents have {}",
                Amount(region_bytes),
                Amount(extent_bytes)
            )));
        }
        self.tier.region_blocks.set(region_bytes / kura_block::BLOCK_BYTES_U64);
        for volume in self.tables.borrow().volumes.values() {
            volume.heat.forget();
        }
        let mut engine = self.tier.engine.borrow_mut();
        engine.setup = setup;
        engine.give_up(|_| true, "the policy has changed since", self.runtime.now());
        engine.heat.clear();
        drop(engine);
        self.begin_interval();
        Ok(())
    }

    /// Copies of an extent in the fast tier.
    pub fn fast_width(&self) -> usize {
        let named = self.tier.engine.borrow().setup.as_ref().and_then(|setup| setup.single_disk);
        // Another one that is left alone was not asked for.
        if named.is_some_and(|named| self.fast_disks() == [named]) { 1 } else { 2 }
    }

    /// Why nothing goes up, where that is so: one line.
    pub fn tier_hindrance(&self) -> Option<String> {
        let fast = self.fast_disks();
        let insisted = self.tier.engine.borrow().setup.as_ref().and_then(|setup| setup.single_disk);
        let bytes = |disks: &[DeviceId]| -> u64 {
            let members = disks.iter().filter_map(|disk| self.array.member(*disk));
            members.map(|member| u64::from(member.plan.extents) * member.plan.extent_bytes).sum()
        };
        let (fast_bytes, slow_bytes) = (bytes(&fast), bytes(&self.data_disks()));
        match fast.as_slice() {
            [] if self.disks_for(usize::MAX).len() > self.data_disks().len() => {
                Some("volumes lie on more disks than are slow, and the fast ones take data too: add slow disks".into())
            }
            [] => Some("there is no working disk of the fast class beside slow ones: add two".into()),
            [only] if insisted != Some(*only) => Some(format!(
                "disk {} is the only fast one, and what lies on one disk is lost with it: add another, or name it as \
                 tier.single_disk to have it serve reads",
                only.0
            )),
            _ if fast_bytes > slow_bytes => Some(format!(
                "the fast disks have {} and the slow ones {}: a fast tier is smaller than what lies under it; swap their \
                 classes, or add slow disks",
                Amount(fast_bytes),
                Amount(slow_bytes)
            )),
            _ => None,
        }
    }

    /// Regions that this controller's share of the fast disks holds, and of these what nothing holds.
    pub fn tier_space(&self) -> Space {
        self.see_fast_homes();
        let (disks, width) = (self.fast_disks(), self.fast_width());
        let members = disks.iter().filter_map(|disk| self.array.member(*disk));
        let extents = members.map(|disk| (disk.id, u64::from(disk.plan.extents)));
        let all = copies_on(extents.clone().map(|(_, extents)| extents), width);
        let left = copies_on(extents.map(|(disk, extents)| extents.saturating_sub(self.homes_on(disk))), width);
        // Each controller has its part of what its own volumes leave.
        let share = (all / u64::from(self.controllers.max(1))).saturating_sub(all - left);
        let total = fit(share / u64::from(self.region_extents()));
        let (mut held, of) = (BTreeSet::new(), self.region_extents());
        held.extend(self.tier.copies().iter().map(|copy| (copy.owner.volume, copy.owner.index / of)));
        let engine = self.tier.engine.borrow();
        for waiting in engine.waiting.iter().filter(|waiting| waiting.decided.to == Tier::Fast) {
            held.extend(waiting.decided.regions.clone().map(|region| (waiting.decided.volume, region)));
        }
        Space { total, free: total.saturating_sub(held.len() as u32) }
    }

    /// Asks the policy when an interval is over.
    pub fn tick(&self) {
        let now = self.runtime.now();
        let (begun, interval) = {
            let engine = self.tier.engine.borrow();
            let Some(setup) = &engine.setup else { return };
            (engine.begun, setup.interval)
        };
        if !self.tier.rests.get() && now.saturating_sub(begun) >= interval {
            self.decide(now, now.saturating_sub(begun));
        }
    }

    /// Something may be to decide: where the policy rested, an interval begins.
    pub fn rouse(&self) {
        if self.tier.rests.get() {
            self.begin_interval();
        }
    }

    fn begin_interval(&self) {
        self.tier.rests.set(false);
        // What was before counts for none.
        let _ = self.slow_load(Duration::ZERO);
        self.tier.engine.borrow_mut().begun = self.runtime.now();
        self.tier.wake.notify_one();
    }

    /// How busy the slow tier was in the interval that ends now.
    fn slow_load(&self, interval: Duration) -> SlowLoad {
        let disks = self.data_disks();
        let part = |time: Duration| time.as_secs_f64() / interval.as_secs_f64().max(1e-9);
        disks.iter().fold(SlowLoad::default(), |load, disk| {
            let Work { busy, waited } = self.array.take_work(*disk);
            SlowLoad {
                utilisation: load.utilisation + part(busy) / disks.len() as f64,
                queue: load.queue.max(part(waited)),
            }
        })
    }

    fn decide(&self, now: Duration, interval: Duration) {
        let told = self.tell_policy();
        let (space, load) = (self.tier_space(), self.slow_load(interval));
        let (hindered, going_down) = (self.tier_hindrance().is_some(), self.going_down());
        let engine = &mut *self.tier.engine.borrow_mut();
        engine.measured.fade(now.saturating_sub(engine.begun));
        engine.begun = now;
        engine.load = load;
        engine.hits = self.tier.hits.get();
        let of = f64::from(self.region_extents());
        let Measured { up, down } = engine.measured;
        let volumes: Vec<_> = told
            .iter()
            .map(|volume| VolumeFacts {
                volume: volume.id,
                regions: volume.regions,
                mapped: &volume.mapped,
                heat: &volume.heat,
                placed: &volume.placed,
                wants: volume.wants,
            })
            .collect();
        let facts = Facts {
            now_ns: now.as_nanos() as u64,
            interval_ns: interval.as_nanos() as u64,
            region_bytes: self.region_bytes(),
            volumes: &volumes,
            fast: if hindered { Space::default() } else { space },
            waiting: engine.waiting_regions().saturating_add(going_down),
            slow: load,
            costs: Costs { up_ms: up * of, down_ms: down * of, slow_ms: Costs::SLOW_MS, fast_ms: Costs::FAST_MS },
        };
        let Some(setup) = &mut engine.setup else { return };
        let decision = setup.policy.decide(&facts);
        let asked = told.iter().any(|volume| !volume.heat.is_empty() || volume.wants != Wants::default());
        let moves = !decision.moves.is_empty() || !engine.waiting.is_empty();
        self.tier.rests.set(!asked && !moves && setup.policy.rests());
        engine.take_pace(decision.pace, now);
        for decided in decision.moves.into_iter().filter(|decided| decided.to == Tier::Slow || !hindered) {
            engine.take(decided, self.region_extents(), now);
        }
        self.follow_up(engine, &told, now);
        engine.heat = told.into_iter().map(|volume| (volume.id, volume.heat)).collect();
    }

    /// Extents that have come into a region of the fast tier since it went there go there too.
    fn follow_up(&self, engine: &mut Engine, told: &[Told], now: Duration) {
        let of = self.region_extents();
        for volume in told {
            let Some(state) = self.tables.borrow().volumes.get(&volume.id).cloned() else { continue };
            for placed in &volume.placed {
                let touched = volume.heat.binary_search_by_key(&placed.region, |heat| heat.region).is_ok();
                let waits = || {
                    let here = |waiting: &&Waiting| waiting.decided.volume == volume.id;
                    engine.waiting.iter().filter(here).any(|waiting| waiting.decided.regions.contains(&placed.region))
                };
                let lacks = |index: u32| {
                    let extent = state.extent(index);
                    let extent = extent.filter(|extent| !self.is_home_fast(extent));
                    extent.is_some_and(|extent| extent.fast().is_none_or(|copy| !copy.is_filled()))
                };
                if !touched || waits() || !(placed.region * of..(placed.region + 1) * of).any(lacks) {
                    continue;
                }
                let last = engine.moves.iter().rev().find(|done| done.decided.is_about(volume.id, placed.region));
                let regions = placed.region..placed.region + 1;
                let rest = |reason| Move { volume: volume.id, regions, to: Tier::Fast, drop_clean: true, reason };
                match last.map(|last| &last.decided) {
                    // A restart forgets why.
                    None => engine.take(rest(Reason::Rest), of, now),
                    Some(last) if last.to == Tier::Fast => engine.take(rest(last.reason.clone()), of, now),
                    Some(_) => {}
                }
            }
        }
    }

    /// What the policy is told of each volume; not of snapshots, which have nothing of their own but slots of a PoolVOL.
    fn tell_policy(&self) -> Vec<Told> {
        let of = self.region_extents();
        self.see_fast_homes();
        let mut placed: BTreeMap<u64, BTreeMap<u32, bool>> = BTreeMap::new();
        for copy in self.tier.copies().iter().filter(|copy| !copy.is_leaving()) {
            let regions = placed.entry(copy.owner.volume).or_default();
            *regions.entry(copy.owner.index / of).or_default() |= !copy.is_clean();
        }
        for Waiting { decided, .. } in &self.tier.engine.borrow().waiting {
            let regions = placed.entry(decided.volume).or_default();
            match decided.to {
                Tier::Fast => {
                    for region in decided.regions.clone() {
                        regions.entry(region).or_default();
                    }
                }
                Tier::Slow => {
                    let gone: Vec<_> = regions.range(decided.regions.clone()).map(|(region, _)| *region).collect();
                    for region in gone {
                        regions.remove(&region);
                    }
                }
            }
        }
        let tables = self.tables.borrow();
        let own = tables.volumes.homes().values();
        let mut pools: BTreeMap<u64, Wants> = BTreeMap::new();
        for volume in own.clone() {
            if let Some(branch) = volume.branch() {
                let here = placed.get(&volume.id).map_or(0, |regions| regions.len() as u32);
                pools.insert(branch.pool_vol.volume.id, self.wants_of(volume.tier.get()).less(here));
            }
        }
        own.map(|volume| {
            let regions = self.regions_of(volume);
            let wants = pools.get(&volume.id).copied();
            let wants = wants.unwrap_or_else(|| self.wants_of(volume.tier.get()));
            let mut heat = volume.heat.take();
            heat.retain(|heat| heat.region < regions);
            let here = placed.remove(&volume.id).unwrap_or_default();
            let here = here.into_iter().filter(|(region, _)| *region < regions);
            let placed = here.map(|(region, dirty)| Placed { region, dirty }).collect();
            Told { id: volume.id, regions, mapped: within(self.runs_below(volume), regions), heat, placed, wants }
        })
        .collect()
    }

    /// Regions of a volume.
    pub fn regions_of(&self, volume: &VolumeState) -> u32 {
        fit(volume.size_bytes().div_ceil(self.region_bytes()))
    }

    /// What rules come to in regions: a floor is at least what it says, a ceiling at most.
    fn wants_of(&self, rules: TierRules) -> Wants {
        let region_bytes = self.region_bytes();
        let ceiling = (rules.ceiling_bytes > 0).then_some(fit(rules.ceiling_bytes / region_bytes));
        Wants {
            pin: match rules.pin {
                Pin::None => None,
                Pin::Fast => Some(Tier::Fast),
                Pin::Slow => Some(Tier::Slow),
            },
            floor_regions: fit(rules.floor_bytes.div_ceil(region_bytes)).min(ceiling.unwrap_or(u32::MAX)),
            ceiling_regions: ceiling,
        }
    }

    /// A copy goes down from now on.
    pub fn send_down(&self, copy: &Rc<FastCopy>) {
        copy.set_leaving(true);
        self.tier.leaving.borrow_mut().insert(copy.key());
    }

    /// A copy that was on its way down stays.
    pub fn stay_up(&self, copy: &FastCopy) {
        copy.set_leaving(false);
        self.tier.leaving.borrow_mut().remove(&copy.key());
    }
}

/// So many regions, or more than anything has.
fn fit(regions: u64) -> u32 {
    u32::try_from(regions).unwrap_or(u32::MAX)
}

/// How many copies there can be on disks that have so many extents each: those of one are on as many disks.
fn copies_on(extents: impl Iterator<Item = u64> + Clone, width: usize) -> u64 {
    let (all, largest) = (extents.clone().sum::<u64>(), extents.max().unwrap_or_default());
    if width < 2 { all } else { (all / 2).min(all - largest) }
}

impl Engine {
    /// Takes a move into the line.
    pub(super) fn take(&mut self, decided: Move, region_extents: u32, at: Duration) {
        self.next_number += 1;
        let number = self.next_number;
        let left = decided.regions.start * region_extents..decided.regions.end * region_extents;
        self.moves.push_back(TierMove {
            number,
            decided: decided.clone(),
            at,
            extents: 0,
            bytes: 0,
            done: None,
            failed: None,
            under_way: 0,
            all_begun: false,
            refused: 0,
        });
        if self.moves.len() > REMEMBERED {
            self.moves.pop_front();
        }
        self.waiting.push_back(Waiting { number, decided, left, begun: false });
    }

    /// Regions that wait to be moved.
    pub fn waiting_regions(&self) -> u32 {
        let decided = self.waiting.iter().map(|waiting| &waiting.decided);
        let regions =
            decided.filter(|decided| decided.reason != Reason::Rest).map(|decided| decided.regions.len() as u64);
        fit(regions.sum())
    }

    /// A move, while it is remembered.
    pub fn remembered(&mut self, number: u64) -> Option<&mut TierMove> {
        self.moves.iter_mut().rev().find(|remembered| remembered.number == number)
    }
}

/// Of these runs what lies within so many regions: whole groups are allocated, and the last one of a volume may reach beyond its end.
fn within(mapped: MappedRuns, regions: u32) -> MappedRuns {
    if mapped.last().is_none_or(|last| last.end <= regions) {
        return mapped;
    }
    let inside = mapped.iter().filter(|run| run.start < regions);
    inside.map(|run| run.start..run.end.min(regions)).collect()
}

/// What a move is about.
trait About {
    fn is_about(&self, volume: u64, region: u32) -> bool;
}

impl About for Move {
    fn is_about(&self, volume: u64, region: u32) -> bool {
        self.volume == volume && self.regions.contains(&region)
    }
}
