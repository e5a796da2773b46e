//! What a family has in places that are its controller's, the fast tier and the hot area, goes to its own places.
//!
//! This goes on beside the clients' I/O, and takes as long as there is to write: only then does the family move.

use crate::cool::ColdStripe;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_array::Urgency;
use kura_block::{Error, Result};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// How long the fast copies of a family may take to come down.
const DOWN: Duration = Duration::from_millis(200);
/// How often they, or blocks that cannot leave the hot area now, are looked at.
const LOOK: Duration = Duration::from_millis(2);
/// How long no block of a family may leave the hot area.
const STUCK: Duration = Duration::from_secs(5);
/// Stripes that are written at once.
const WIDTH: usize = 16;

/// A family of which nothing more goes to the hot area, until this is dropped.
pub struct KeptCold(Vec<Rc<VolumeState>>);

impl KeptCold {
    pub(super) fn new(kin: Vec<Rc<VolumeState>>) -> Self {
        for volume in &kin {
            volume.kept_cold.set(volume.kept_cold.get() + 1);
        }
        Self(kin)
    }
}

impl Drop for KeptCold {
    fn drop(&mut self) {
        for volume in &self.0 {
            volume.kept_cold.set(volume.kept_cold.get() - 1);
        }
    }
}

impl Store {
    /// Brings what a family has in the hot area to its stripes: what is left for [`Store::offer`] is little then.
    pub async fn cool_down(&self, name: &str) -> Result<()> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        inner.ready(&volume)?;
        inner.cool_down(&KeptCold::new(inner.kin(&volume))).await
    }
}

impl Inner {
    /// Brings the fast copies of a family down.
    pub(super) async fn bring_down(&self, volume: &Rc<VolumeState>) -> Result<()> {
        let until = self.runtime.now() + DOWN;
        loop {
            let kin = self.kin(volume);
            let copies: Vec<_> = self.tier.copies();
            let mut waits = false;
            for copy in copies.iter().filter(|copy| kin.iter().any(|member| member.id == copy.key().0)) {
                waits = true;
                if !copy.is_leaving() {
                    self.send_down(copy);
                }
            }
            if !waits {
                return Ok(());
            }
            if self.runtime.now() >= until {
                let name = volume.spec.borrow().name.clone();
                return Err(Error::busy(format!(
                    "volume {name}: some of it does not leave the fast tier: pin it to slow, and try again"
                )));
            }
            self.tier.wake.notify_one();
            self.runtime.sleep(LOOK).await;
        }
    }

    /// Brings all blocks of a family to their cold places, durably; what was in the write buffer, too.
    pub(super) async fn cool_down(&self, family: &KeptCold) -> Result<()> {
        let (mut least, mut since) = (usize::MAX, self.runtime.now());
        loop {
            let stripes: Vec<_> = family.0.iter().flat_map(|volume| self.hot_stripes(volume)).collect();
            for chosen in stripes.chunks(WIDTH) {
                self.cool(chosen.to_vec(), Urgency::Buffer).await;
            }
            // What was on its way to the hot area is there after this, and slots of cooled blocks are given up.
            self.checkpoint().await?;
            let left: usize = family.0.iter().map(|volume| volume.hot.borrow().len()).sum();
            if left == 0 {
                return Ok(());
            }
            let now = self.runtime.now();
            if left < least {
                (least, since) = (left, now);
            } else if now.saturating_sub(since) >= STUCK {
                let name = family.0.first().map(|volume| volume.spec.borrow().name.clone()).unwrap_or_default();
                return Err(Error::busy(format!(
                    "volume {name}: {left} blocks do not leave the hot area: see whether kura check can read them all, and \
                     try again"
                )));
            } else {
                self.runtime.sleep(LOOK).await;
            }
        }
    }

    /// The stripes of a volume with blocks in the hot area only.
    fn hot_stripes(&self, volume: &VolumeState) -> Vec<ColdStripe> {
        let blocks = volume.shape.stripe_blocks();
        let stripes: BTreeSet<u64> = volume.hot.borrow().keys().map(|block| block / blocks).collect();
        let hot = stripes.into_iter().map(|stripe| (volume.id, stripe, self.cold_in_stripe(volume, stripe, 0)));
        hot.filter(|(.., blocks)| !blocks.is_empty()).collect()
    }
}
