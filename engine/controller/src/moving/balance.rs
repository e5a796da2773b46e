//! Moving volumes by what clients ask for.

use super::node::Moved;
use super::policy::{Balance, Decision, Load};
use crate::Node;
use crate::info::VolumeInfo;
use kura_array::Layout;
use kura_block::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Requests a second with which a controller has enough to do for a volume of its to move.
const ENOUGH_PER_S: u64 = 100;

/// What is known from one look at the controllers' work to the next.
#[derive(Default)]
pub struct Balancer {
    policy: Balance,
    /// The work of each volume at the last look, by number.
    seen: BTreeMap<u64, u64>,
}

impl Balancer {
    /// What each family had to do since the last look; nothing at the first one.
    fn loads<'a>(&mut self, volumes: impl Iterator<Item = &'a VolumeInfo>) -> Vec<Load> {
        let mut families: BTreeMap<u64, Load> = BTreeMap::new();
        let mut seen = BTreeMap::new();
        for volume in volumes {
            seen.insert(volume.id, volume.work);
            // It counts anew where it has moved to.
            let work =
                self.seen.get(&volume.id).map_or(0, |before| volume.work.checked_sub(*before).unwrap_or(volume.work));
            let (family, controller) = (volume.family, volume.controller);
            families.entry(family).or_insert(Load { family, controller, work: 0 }).work += work;
        }
        self.seen = seen;
        families.into_values().collect()
    }
}

impl Node {
    /// Looks at what clients asked for in the `period` since the last look; where one controller has much more to do than
    /// another for some periods, it moves one volume, with its snapshots and clones. `may_move` says no to volumes that are
    /// not to; those of layout hot-mirror stay, for what they have in the hot area would have to be written to stripes first.
    pub async fn balance(
        &self,
        balancer: &mut Balancer,
        period: Duration,
        may_move: impl Fn(&VolumeInfo) -> bool,
    ) -> Result<Option<Moved>> {
        let volumes = self.volumes().await?;
        let stays = |volume: &VolumeInfo| volume.spec.layout == Layout::HotMirror || !may_move(volume);
        let staying: BTreeSet<u64> =
            volumes.iter().filter(|volume| stays(volume)).map(|volume| volume.family).collect();
        let loads = balancer.loads(volumes.iter());
        let takes = self.takes_volumes().await?;
        let enough = ENOUGH_PER_S * period.as_secs().max(1);
        let Some(Decision { family, to }) = balancer.policy.decide(&loads, &staying, &takes, enough) else {
            return Ok(None);
        };
        let Some(volume) = volumes.iter().find(|volume| volume.family == family) else { return Ok(None) };
        self.move_volume(&volume.spec.name, to).await.map(Some)
    }
}
