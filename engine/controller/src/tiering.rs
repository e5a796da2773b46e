//! The tiers of a pool: the policy that decides, what it decided, and what the user says of a volume.

use crate::{Controller, Node};
use kura_block::{DeviceId, Error, Local, Result};
use kura_tier::{Reason, Settings, SlowLoad, Standing, Tier};
use kura_volume::{Hits, RegionUse, TierChange, TierMove, TierRules, TierSetup};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Which policy decides what goes to the fast tier, and what the user insists on.
#[derive(Clone, Debug, PartialEq)]
pub struct TierConfig {
    /// The policy and its parameters.
    pub settings: Settings,
    /// The path of the only fast disk, which then serves reads; without it, a tier has two disks or more.
    pub single_disk: Option<String>,
}

/// The tiers as they are, summed over the controllers; sizes in bytes, counts since the start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TierInfo {
    /// The policy and its parameters; `None` when none is at work.
    pub settings: Option<Settings>,
    /// Why nothing goes up, where that is so: one line.
    pub hindrance: Option<String>,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// What the fast tier holds, one copy counted.
    pub total_bytes: u64,
    /// Of these, what nothing holds.
    pub free_bytes: u64,
    /// Bytes of blocks that lie in the fast tier, one copy counted.
    pub valid_bytes: u64,
    /// Of these, what the slow tier has older.
    pub stale_bytes: u64,
    /// Bytes of regions that wait to be moved.
    pub waiting_bytes: u64,
    /// Moves decided.
    pub moves: u64,
    /// Requests, and those that the fast tier served.
    pub hits: Hits,
    /// The slow tier's load in the last interval: mean of the controllers' views.
    pub load: SlowLoad,
    /// Bytes of memory that the policy holds.
    pub policy_bytes: u64,
}

/// A move, as it is remembered.
#[derive(Clone, Debug, PartialEq)]
pub struct TierMoveInfo {
    /// The controller that decided it.
    pub controller: u16,
    /// Counts up with each move of the controller.
    pub number: u64,
    /// The volume's name, or its number where it is gone.
    pub volume: String,
    /// Bytes of the volume.
    pub range: Range<u64>,
    /// Where to.
    pub to: Tier,
    /// Why.
    pub reason: Reason,
    /// How long ago it was decided.
    pub ago: Duration,
    /// How long it took; `None` while it goes on, or waits.
    pub took: Option<Duration>,
    /// Bytes that were copied.
    pub copied_bytes: u64,
    /// Why it did not come to its end.
    pub failed: Option<String>,
}

/// A region of a volume: how it was used in the last interval, how much of it is in the fast tier, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct TierWhyInfo {
    /// Bytes of the volume.
    pub range: Range<u64>,
    /// Its use.
    pub region: RegionUse,
    /// What the user says of its volume.
    pub rules: TierRules,
    /// What the policy thinks of it, as of the last interval.
    pub standing: Option<Standing>,
    /// Its last move, while that is remembered.
    pub last: Option<TierMoveInfo>,
    /// Where it lies, if that is not in the volume itself, as with a snapshot; `range` is there.
    pub lies_in: Option<String>,
}

impl Controller {
    fn set_tier(&self, config: Option<TierConfig>) -> Result<()> {
        let setup = match &config {
            None => None,
            Some(TierConfig { settings, single_disk }) => Some(TierSetup {
                policy: settings.policy()?,
                region_bytes: settings.region_bytes(),
                interval: Duration::from_nanos(settings.interval_ns()),
                single_disk: single_disk.as_ref().map(|path| self.disk_at(path)).transpose()?,
            }),
        };
        self.store().set_tier(setup)?;
        self.tiering.replace(config.map(|config| config.settings));
        Ok(())
    }

    fn disk_at(&self, path: &str) -> Result<DeviceId> {
        let pool = self.pool.borrow();
        let here = |found: &Option<crate::pool::Found>| found.as_ref().is_some_and(|(at, _)| at == path);
        let disk = pool.found.iter().position(here);
        let disk = disk.ok_or_else(|| Error::missing(format!("tier.single_disk: {path} is no disk of the pool")))?;
        Ok(DeviceId(disk as u16))
    }

    fn tier(&self) -> TierInfo {
        let status = self.store().tier();
        let bytes = |regions: u32| u64::from(regions) * status.region_bytes;
        TierInfo {
            settings: self.tiering.borrow().clone(),
            hindrance: status.hindrance,
            region_bytes: status.region_bytes,
            total_bytes: bytes(status.space.total),
            free_bytes: bytes(status.space.free),
            valid_bytes: status.valid_bytes,
            stale_bytes: status.stale_bytes,
            waiting_bytes: bytes(status.waiting),
            moves: status.moves,
            hits: status.hits,
            load: status.load,
            policy_bytes: status.policy_bytes as u64,
        }
    }

    fn tier_move(&self, volume: String, ago: Duration, done: TierMove) -> TierMoveInfo {
        let region_bytes = self.store().region_bytes();
        let bytes = |region: u32| u64::from(region) * region_bytes;
        let TierMove { number, decided, at, bytes: copied_bytes, done, failed, .. } = done;
        TierMoveInfo {
            controller: self.id().0,
            number,
            volume,
            range: bytes(decided.regions.start)..bytes(decided.regions.end),
            to: decided.to,
            reason: decided.reason,
            ago,
            took: done.map(|done| done.saturating_sub(at)),
            copied_bytes,
            failed,
        }
    }

    fn tier_why(&self, name: &str, offset: u64) -> Result<TierWhyInfo> {
        let (why, ago) = self.store().tier_why(name, offset)?;
        let region_bytes = self.store().region_bytes();
        let start = u64::from(why.region.region) * region_bytes;
        let of = why.lies_in.as_deref().unwrap_or(name);
        let last = why.last.zip(ago).map(|(last, ago)| self.tier_move(of.to_owned(), ago, last));
        Ok(TierWhyInfo {
            range: start..start + region_bytes,
            region: why.region,
            rules: why.rules,
            standing: why.standing,
            last,
            lies_in: why.lies_in,
        })
    }
}

impl Node {
    /// Puts a tiering policy to work on every controller, or none: then what is in the fast tier stays there.
    pub async fn set_tier(&self, config: Option<TierConfig>) -> Result<()> {
        self.ask_each(move |controller| controller.set_tier(config.clone())).await?.into_iter().collect()
    }

    /// The tiers as they are.
    pub async fn tier(&self) -> Result<TierInfo> {
        let views = self.ask_each(|controller| controller.tier()).await?;
        let count = views.len().max(1) as f64;
        let mut sum = TierInfo::default();
        for view in views {
            sum.settings = sum.settings.or(view.settings);
            sum.hindrance = sum.hindrance.or(view.hindrance);
            sum.region_bytes = view.region_bytes;
            sum.total_bytes += view.total_bytes;
            sum.free_bytes += view.free_bytes;
            sum.valid_bytes += view.valid_bytes;
            sum.stale_bytes += view.stale_bytes;
            sum.waiting_bytes += view.waiting_bytes;
            sum.moves += view.moves;
            sum.hits = sum.hits + view.hits;
            sum.load.utilisation += view.load.utilisation / count;
            sum.load.queue += view.load.queue / count;
            sum.policy_bytes += view.policy_bytes;
        }
        Ok(sum)
    }

    /// The moves that are remembered, the oldest first.
    pub async fn tier_moves(&self) -> Result<Vec<TierMoveInfo>> {
        // Of a volume that has gone to another controller, that one knows the name.
        let volumes = self.volumes().await?.into_iter().map(|volume| (volume.id, volume.spec.name));
        let names = Arc::new(volumes.collect::<BTreeMap<_, _>>());
        let ask = move |controller: &Rc<Controller>| -> Vec<TierMoveInfo> {
            let moves = controller.store().tier_moves().into_iter().map(|(volume, ago, done)| {
                let id = done.decided.volume;
                let volume = volume.or_else(|| names.get(&id).cloned()).unwrap_or_else(|| id.to_string());
                controller.tier_move(volume, ago, done)
            });
            moves.collect()
        };
        let mut moves: Vec<_> = self.ask_each(ask).await?.into_iter().flatten().collect();
        moves.sort_by_key(|done| std::cmp::Reverse(done.ago));
        Ok(moves)
    }

    /// What the user says of a volume's place in the tiers.
    pub async fn tier_rules(&self, name: &str) -> Result<TierRules> {
        self.ask_owner(name, |controller, name| controller.store().tier_rules(name)).await
    }

    /// Changes what is named of that, and returns all of it; durable when the future resolves.
    pub async fn change_tier_rules(&self, name: &str, change: TierChange) -> Result<TierRules> {
        let make = move |controller: Rc<Controller>, name: String| -> Local<'static, Result<TierRules>> {
            Box::pin(async move { controller.store().change_tier_rules(&name, change).await })
        };
        self.at_owner(name, make).await
    }

    /// Why the region at an offset of a volume is where it is.
    pub async fn tier_why(&self, name: &str, offset: u64) -> Result<TierWhyInfo> {
        self.ask_owner(name, move |controller, name| controller.tier_why(name, offset)).await
    }

    /// The regions of a volume that were used in the last interval or are in the fast tier, in order of address; and the
    /// bytes of a region.
    pub async fn tier_heat(&self, name: &str) -> Result<(u64, Vec<RegionUse>)> {
        let heat = |controller: &Controller, name: &str| {
            Ok((controller.store().region_bytes(), controller.store().tier_heat(name)?))
        };
        self.ask_owner(name, heat).await
    }
}
