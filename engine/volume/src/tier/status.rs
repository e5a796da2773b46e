//! What can be asked of the tier, and told it.

use super::{FastCopy, Hits, TierChange, TierMove, TierRules, TierSetup};
use crate::record::Record;
use crate::snapshot::Place;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_block::{Amount, BLOCK_BYTES_U64, Error, Result};
use kura_tier::{Heat, Move, SlowLoad, Space, Standing};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// The fast tier as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct TierStatus {
    /// The policy's name; `None` when none is at work.
    pub policy: Option<&'static str>,
    /// How long an interval is.
    pub interval: Duration,
    /// Why nothing goes up, where that is so.
    pub hindrance: Option<String>,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// This controller's share of the fast disks, in regions.
    pub space: Space,
    /// Bytes of extents that have a fast copy, one place of it counted.
    pub fast_bytes: u64,
    /// Of these, bytes of blocks that lie there.
    pub valid_bytes: u64,
    /// Of these, bytes of blocks of which home is older.
    pub stale_bytes: u64,
    /// Regions that wait to be moved.
    pub waiting: u32,
    /// Moves decided since the start.
    pub moves: u64,
    /// Requests since the start, and those that the fast tier served.
    pub hits: Hits,
    /// The slow tier's load in the last interval.
    pub load: SlowLoad,
    /// Bytes of memory that the policy holds.
    pub policy_bytes: usize,
}

/// A region of a volume: how it was used in the last interval, and how much of it is in the fast tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegionUse {
    /// Counted from 0 by address.
    pub region: u32,
    /// Reads in the last interval.
    pub reads: u32,
    /// Writes in the last interval.
    pub writes: u32,
    /// Bytes of it that lie in the fast tier.
    pub valid_bytes: u64,
    /// Of these, bytes of which home is older.
    pub stale_bytes: u64,
}

/// Why a region is where it is.
#[derive(Clone, Debug, PartialEq)]
pub struct TierWhy {
    /// Its use, and how much of it is in the fast tier.
    pub region: RegionUse,
    /// What the user says of its volume.
    pub rules: TierRules,
    /// What the policy thinks of it, as of the last interval.
    pub standing: Option<Standing>,
    /// Its last move, while that is remembered.
    pub last: Option<TierMove>,
    /// Where it lies, if that is not in the volume itself, as with a snapshot.
    pub lies_in: Option<String>,
}

impl Store {
    /// Puts a tiering policy to work, or none: then what is in the fast tier stays there.
    pub fn set_tier(&self, setup: Option<TierSetup>) -> Result<()> {
        self.inner.set_tier(setup)
    }

    /// Changes what is said of a volume's place in the tiers, and returns all that is said of it then; durable when the future
    /// resolves. Two changes at a time lose nothing of each other.
    pub async fn change_tier_rules(&self, name: &str, change: TierChange) -> Result<TierRules> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        if let Some(pvol) = inner.followed(&volume) {
            let pvol = pvol.spec.borrow().name.clone();
            return Err(Error::invalid(format!(
                "{name} is a snapshot or a clone, and follows what is said of volume {pvol}: say it of that one"
            )));
        }
        let rules = volume.tier.get().changed(change);
        rules.check()?;
        let (ceiling, region) = (rules.ceiling_bytes, inner.region_bytes());
        if (1..region).contains(&ceiling) {
            return Err(Error::invalid(format!(
                "volume {name}: a ceiling of {} is less than a region, of {}, and lets nothing up: give as much at least, or pin \
                 the volume to the slow tier",
                Amount(ceiling),
                Amount(region)
            )));
        }
        inner.append(&Record::TierRules { volume: volume.id, rules });
        volume.tier.set(rules);
        let pool = volume.branch().map(|branch| branch.pool_vol.volume.id);
        let is_its = |decided: &Move| decided.volume == volume.id || Some(decided.volume) == pool;
        let why = "what is said of the volume's place in the tiers has changed since";
        inner.tier.engine.borrow_mut().line.give_up(is_its, why, inner.runtime.now());
        inner.rouse();
        inner.commit_all().await?;
        Ok(rules)
    }

    /// What is said of a volume's place in the tiers; of a snapshot's, what is said of its volume's.
    pub fn tier_rules(&self, name: &str) -> Result<TierRules> {
        let volume = self.inner.find(name)?;
        Ok(self.inner.followed(&volume).unwrap_or(volume).tier.get())
    }

    /// Bytes of a region.
    pub fn region_bytes(&self) -> u64 {
        self.inner.region_bytes()
    }

    /// The fast tier as it is. Goes over all that lies there.
    pub fn tier(&self) -> TierStatus {
        let inner = &self.inner;
        let (mut valid, mut stale) = (0, 0);
        let copies = inner.tier.copies();
        for copy in &copies {
            let (here, newer) = copy.bytes();
            valid += here;
            stale += newer;
        }
        inner.see_fast_homes();
        let (hindrance, space) = (inner.tier_hindrance(), inner.tier_space(inner.regions_up().len()));
        let engine = inner.tier.engine.borrow();
        let setup = engine.setup.as_ref();
        TierStatus {
            policy: setup.map(|setup| setup.policy.name()),
            interval: setup.map_or(Duration::ZERO, |setup| setup.interval),
            hindrance,
            region_bytes: inner.region_bytes(),
            space,
            fast_bytes: copies.len() as u64 * inner.array.extent_bytes(),
            valid_bytes: valid,
            stale_bytes: stale,
            waiting: engine.waiting_regions(),
            moves: engine.line.decided,
            hits: inner.tier.hits.get(),
            load: engine.load,
            policy_bytes: setup.map_or(0, |setup| setup.policy.memory_bytes()),
        }
    }

    /// The moves that are remembered, each with its volume's name, and how long ago it was decided.
    pub fn tier_moves(&self) -> Vec<(Option<String>, Duration, TierMove)> {
        let now = self.inner.runtime.now();
        let tables = self.inner.tables.borrow();
        let engine = self.inner.tier.engine.borrow();
        let mut all: Vec<_> = engine.line.all().collect();
        all.sort_by_key(|one| one.number);
        let named = all.into_iter().map(|done| {
            let name = tables.volumes.get(&done.decided.volume).map(|volume| self.inner.known_as(volume));
            (name, now.saturating_sub(done.at), done.clone())
        });
        named.collect()
    }

    /// The regions of a volume that were used in the last interval or are in the fast tier, in order of address.
    pub fn tier_heat(&self, name: &str) -> Result<Vec<RegionUse>> {
        let volume = self.inner.find(name)?;
        Ok(self.inner.region_uses(&volume).into_values().collect())
    }

    /// Why the region at an offset of a volume is where it is, and how long ago its last move was decided.
    pub fn tier_why(&self, name: &str, offset: u64) -> Result<(TierWhy, Option<Duration>)> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        if offset >= volume.size_bytes() {
            return Err(Error::invalid(format!(
                "volume {name}: offset {} is beyond its end, at {}",
                Amount(offset),
                Amount(volume.size_bytes())
            )));
        }
        let block = offset / BLOCK_BYTES_U64;
        let (place, block) = match inner.locate(&volume, block, block + 1).0 {
            Place::At(place, block) => (place, block),
            Place::Zero => (Rc::clone(&volume), block),
        };
        let region = (block * BLOCK_BYTES_U64 / inner.region_bytes()) as u32;
        let used = inner.region_uses(&place).remove(&region);
        let engine = inner.tier.engine.borrow();
        let last = engine.line.last_of(place.id, region).cloned();
        let ago = last.as_ref().map(|last| inner.runtime.now().saturating_sub(last.at));
        let why = TierWhy {
            region: used.unwrap_or(RegionUse { region, ..RegionUse::default() }),
            rules: self.tier_rules(name)?,
            standing: engine.setup.as_ref().map(|setup| setup.policy.standing(place.id, region)),
            last,
            lies_in: (place.id != volume.id).then(|| inner.known_as(&place)),
        };
        Ok((why, ago))
    }
}

impl Inner {
    /// The volume whose PoolVOL this is.
    fn pvol_of(&self, pool: u64) -> Option<Rc<VolumeState>> {
        let is_its = |pvol: &&Rc<VolumeState>| {
            let branch = pvol.branch().filter(|branch| branch.parent.is_none());
            branch.is_some_and(|branch| branch.pool_vol.volume.id == pool)
        };
        self.tables.borrow().volumes.homes().values().find(is_its).cloned()
    }

    /// The volume whose place in the tiers that of a snapshot or clone follows; `None` for another volume.
    fn followed(&self, volume: &VolumeState) -> Option<Rc<VolumeState>> {
        let branch = volume.branch().filter(|branch| branch.parent.is_some())?;
        self.pvol_of(branch.pool_vol.volume.id)
    }

    /// What a volume is called by those who use it.
    fn known_as(&self, volume: &VolumeState) -> String {
        if volume.is_pool() {
            let pvol = self.pvol_of(volume.id).map(|pvol| pvol.spec.borrow().name.clone());
            return format!("{} (blocks beside its snapshots)", pvol.unwrap_or_default());
        }
        volume.spec.borrow().name.clone()
    }

    fn region_uses(&self, volume: &Rc<VolumeState>) -> BTreeMap<u32, RegionUse> {
        let mut uses: BTreeMap<u32, RegionUse> = BTreeMap::new();
        let engine = self.tier.engine.borrow();
        for Heat { region, reads, writes } in engine.heat.get(&volume.id).into_iter().flatten().copied() {
            uses.insert(region, RegionUse { region, reads, writes, ..RegionUse::default() });
        }
        for copy in self.tier.copies_of(volume.id, 0) {
            let region = copy.owner.index / self.region_extents();
            let used = uses.entry(region).or_insert(RegionUse { region, ..RegionUse::default() });
            let (valid, stale) = copy.bytes();
            used.valid_bytes += valid;
            used.stale_bytes += stale;
        }
        uses
    }
}

impl FastCopy {
    /// Bytes of blocks that lie here, and of those of which home is older.
    fn bytes(&self) -> (u64, u64) {
        let bits = self.bits();
        let of = |blocks: &kura_array::Blocks| u64::from(blocks.count()) * BLOCK_BYTES_U64;
        (of(&bits.valid), of(&bits.stale))
    }
}
