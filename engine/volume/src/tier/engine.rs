//! The engine: once an interval the policy is told what was, and what it decides waits in line.

use super::line::Line;
use super::{FastCopy, Hits, Key, Pin, TierRules};
use crate::store::Inner;
use crate::tables::{MappedRuns, VolumeState};
use kura_array::Work;
use kura_block::{Amount, DeviceId, Error, Result};
use kura_tier::{Costs, Facts, Heat, Move, Pace, Placed, Policy, Reason, SlowLoad, Space, Tier, VolumeFacts, Wants};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

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

/// What the engine knows.
#[derive(Default)]
pub(crate) struct Engine {
    pub setup: Option<TierSetup>,
    pub line: Line,
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
    /// Copies that there was room for on the fast disks, whoever has the rest, when it was looked last.
    pub room: Option<u64>,
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

/// A region with fast copies, or on its way up.
pub(super) struct Up {
    volume: u64,
    region: u32,
    /// It is not on its way down.
    stays: bool,
    /// The home of what stays is older.
    dirty: bool,
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
        engine.line.give_up(|_| true, "the policy has changed since", self.runtime.now());
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

    /// Regions that this controller's share of the fast disks holds, and of these what is left by so many that are up.
    pub fn tier_space(&self, up: usize) -> Space {
        let (disks, width) = (self.fast_disks(), self.fast_width());
        let members = disks.iter().filter_map(|disk| self.array.member(*disk));
        let extents = members.map(|disk| (disk.id, u64::from(disk.plan.extents)));
        let all = copies_on(extents.clone().map(|(_, extents)| extents), width);
        let left = copies_on(extents.map(|(disk, extents)| extents.saturating_sub(self.homes_on(disk))), width);
        // Each controller has its part of what its own volumes leave, as far as those of the others leave it.
        let share = (all / u64::from(self.controllers.max(1))).saturating_sub(all - left);
        let own = self.tier.copies.borrow().len() as u64;
        let share = self.tier.engine.borrow().room.map_or(share, |room| share.min(own + room));
        let total = fit(share / u64::from(self.region_extents()));
        Space { total, free: total.saturating_sub(fit(up as u64)) }
    }

    /// Looks how many copies the fast disks have room for; those that wait for the journal's tail leave theirs.
    async fn look_for_room(&self) -> Result<()> {
        let mut free = Vec::new();
        for disk in self.fast_disks() {
            free.push(u64::from(self.share.look(disk).await?));
        }
        let leaves = self.freed.borrow().iter().filter(|freed| freed.copy.is_some()).count() as u64;
        self.tier.engine.borrow_mut().room = Some(copies_on(free.into_iter(), self.fast_width()) + leaves);
        Ok(())
    }

    /// Asks the policy when an interval is over.
    pub async fn tick(&self) {
        if self.interval_over().is_none() {
            return;
        }
        if let Err(error) = self.look_for_room().await {
            tracing::debug!(%error, "nobody knows how much room the fast tier has");
        }
        if let Some(interval) = self.interval_over() {
            self.decide(interval);
        }
    }

    /// How long the interval was, if it is over.
    fn interval_over(&self) -> Option<Duration> {
        let engine = self.tier.engine.borrow();
        let passed = self.runtime.now().saturating_sub(engine.begun);
        let over = engine.setup.as_ref().is_some_and(|setup| passed >= setup.interval);
        (over && !self.tier.rests.get()).then_some(passed)
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
        self.tier.engine.borrow_mut().begin(self.runtime.now());
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

    fn decide(&self, interval: Duration) {
        self.see_fast_homes();
        self.send_down_what_is_beyond();
        let (now, up) = (self.runtime.now(), self.regions_up());
        let told = self.tell_policy(&up);
        let (space, load) = (self.tier_space(up.len()), self.slow_load(interval));
        let (hindered, going_down) = (self.tier_hindrance().is_some(), self.going_down());
        let engine = &mut *self.tier.engine.borrow_mut();
        engine.begin(now);
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
        let moves = !decision.moves.is_empty() || engine.line.waiting().next().is_some();
        self.tier.rests.set(!asked && !moves && setup.policy.rests());
        engine.take_pace(decision.pace, now);
        for decided in decision.moves.into_iter().filter(|decided| decided.to == Tier::Slow || !hindered) {
            engine.line.take(decided, self.region_extents(), now);
        }
        self.follow_up(engine, &told, now);
        engine.heat = told.into_iter().map(|volume| (volume.id, volume.heat)).collect();
    }

    /// Extents that have come into a region of the fast tier since it went there go there too, once it is used.
    fn follow_up(&self, engine: &mut Engine, told: &[Told], now: Duration) {
        let of = self.region_extents();
        for volume in told {
            let Some(state) = self.tables.borrow().volumes.get(&volume.id).cloned() else { continue };
            for Heat { region, .. } in volume.heat.iter().copied() {
                let waits = || {
                    let here = |decided: &Move| decided.volume == volume.id && decided.regions.contains(&region);
                    engine.line.waiting().any(here)
                };
                let lacks = |index: u32| {
                    let extent = state.extent(index);
                    let extent = extent.filter(|extent| !self.is_home_fast(extent));
                    extent.is_some_and(|extent| extent.fast().is_none_or(|copy| !copy.is_filled()))
                };
                let is_up = volume.placed.binary_search_by_key(&region, |placed| placed.region).is_ok();
                if !is_up || !(region * of..(region + 1) * of).any(lacks) || waits() {
                    continue;
                }
                let reason = match engine.line.last_of(volume.id, region).map(|last| &last.decided) {
                    // A restart forgets why.
                    None => Reason::Rest,
                    Some(last) if last.to == Tier::Fast => last.reason.clone(),
                    Some(_) => continue,
                };
                let regions = region..region + 1;
                let rest = Move { volume: volume.id, regions, to: Tier::Fast, drop_clean: true, reason };
                engine.line.take(rest, of, now);
            }
        }
    }

    /// The regions with fast copies and those on their way up, in order.
    pub(super) fn regions_up(&self) -> Vec<Up> {
        let of = self.region_extents();
        let mut all: Vec<Up> = Vec::new();
        for copy in self.tier.copies.borrow().values() {
            let (volume, region, stays) = (copy.owner.volume, copy.owner.index / of, !copy.is_leaving());
            let dirty = stays && !copy.is_clean();
            match all.last_mut().filter(|last| (last.volume, last.region) == (volume, region)) {
                Some(last) => (last.stays, last.dirty) = (last.stays || stays, last.dirty || dirty),
                None => all.push(Up { volume, region, stays, dirty }),
            }
        }
        // Of several moves of a region the last one says where it is in the end; that it comes takes room in any case.
        let mut moved: BTreeMap<(u64, u32), (bool, bool)> = BTreeMap::new();
        for decided in self.tier.engine.borrow().line.waiting() {
            let comes = decided.to == Tier::Fast;
            for region in decided.regions.clone() {
                let known = moved.entry((decided.volume, region)).or_default();
                *known = (known.0 || comes, comes);
            }
        }
        let known = all.len();
        for ((volume, region), (comes, stays)) in moved {
            match all[..known].binary_search_by_key(&(volume, region), |up| (up.volume, up.region)) {
                Ok(at) => all[at].stays = stays,
                Err(_) if comes => all.push(Up { volume, region, stays, dirty: false }),
                Err(_) => {}
            }
        }
        all.sort_by_key(|up| (up.volume, up.region));
        all
    }

    /// Copies of what a volume that was made smaller has beyond its end, in a group of which it keeps a part, go down: no policy is
    /// told of them.
    fn send_down_what_is_beyond(&self) {
        let tables = self.tables.borrow();
        for volume in tables.volumes.homes().values() {
            let end = self.regions_of(volume) * self.region_extents();
            let beyond = self.tier.copies_of(volume.id, end);
            beyond.iter().filter(|copy| !copy.is_leaving()).for_each(|copy| self.send_down(copy));
        }
    }

    /// What the policy is told of each volume; not of snapshots, which have nothing of their own but slots of a PoolVOL.
    fn tell_policy(&self, up: &[Up]) -> Vec<Told> {
        let of_volumes = up.chunk_by(|one, next| one.volume == next.volume);
        let mut placed: BTreeMap<u64, Vec<Placed>> = BTreeMap::new();
        for of_volume in of_volumes {
            let here = of_volume.iter().filter(|up| up.stays);
            let here = here.map(|Up { region, dirty, .. }| Placed { region: *region, dirty: *dirty });
            placed.insert(of_volume[0].volume, here.collect());
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
            let mut placed = placed.remove(&volume.id).unwrap_or_default();
            placed.retain(|placed| placed.region < regions);
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
    /// An interval begins.
    fn begin(&mut self, now: Duration) {
        self.measured.fade(now.saturating_sub(self.begun));
        self.begun = now;
    }

    /// Regions that wait to be moved.
    pub fn waiting_regions(&self) -> u32 {
        let decided = self.line.waiting().filter(|decided| decided.reason != Reason::Rest);
        fit(decided.map(|decided| decided.regions.len() as u64).sum())
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
