//! What a family has in places that are its controller's, the fast tier and the hot area, goes to its own places.
//!
//! This goes on beside the clients' I/O, and takes as long as there is to write: only then does the family move.

use crate::hot::ColdStripe;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_array::Urgency;
use kura_block::{BLOCK_BYTES, Error, Progress, Result};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

/// How often they, or blocks that cannot leave the hot area now, are looked at.
const LOOK: Duration = Duration::from_millis(2);
/// How long nothing of a family may come down, as long as something is to.
const STUCK: Duration = Duration::from_secs(5);
/// Stripes that are written at once.
const WIDTH: usize = 16;

/// A family of which nothing more goes to the hot area or to the fast tier, until this is dropped.
pub struct KeptCold(Vec<Rc<VolumeState>>);

impl KeptCold {
    pub(super) fn new(kin: Vec<Rc<VolumeState>>) -> Self {
        for volume in &kin {
            volume.kept_cold.set(volume.kept_cold.get() + 1);
        }
        Self(kin)
    }

    fn name(&self) -> String {
        self.0.first().map(|volume| volume.spec.borrow().name.clone()).unwrap_or_default()
    }

    /// Blocks in the hot area.
    fn hot_blocks(&self) -> usize {
        self.0.iter().map(|volume| volume.hot.borrow().len()).sum()
    }

    /// Tells how many blocks have still to come down; an error where nobody wants that any more.
    fn tell(&self, progress: &Progress, blocks: usize) -> Result<()> {
        progress.remains((blocks * BLOCK_BYTES) as u64);
        if progress.is_cancelled() {
            return Err(Error::busy(format!("volume {}: its move was cancelled, and it stays", self.name())));
        }
        Ok(())
    }
}

impl Drop for KeptCold {
    fn drop(&mut self) {
        for volume in &self.0 {
            volume.kept_cold.set(volume.kept_cold.get() - 1);
        }
    }
}

/// The least that was left to come down, and since when.
struct Patience {
    least: usize,
    since: Duration,
}

impl Patience {
    fn new(now: Duration) -> Self {
        Self { least: usize::MAX, since: now }
    }

    /// Notes what is left; true when it has been no less for too long.
    fn is_stuck(&mut self, left: usize, now: Duration) -> bool {
        if left < self.least {
            *self = Self { least: left, since: now };
        }
        now.saturating_sub(self.since) >= STUCK
    }
}

impl Store {
    /// Brings what a family has in the fast tier and in the hot area to its own places: what is left for [`Store::offer`]
    /// is little then. `progress` is told of bytes, and may cancel it.
    pub async fn cool_down(&self, name: &str, progress: &Progress) -> Result<()> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        inner.ready(&volume)?;
        inner.come_down(&KeptCold::new(inner.kin(&volume)), progress).await
    }
}

impl Inner {
    /// Brings a family to its own places, durably.
    pub(super) async fn come_down(&self, family: &KeptCold, progress: &Progress) -> Result<()> {
        self.leave_fast_tier(family, progress).await?;
        self.leave_hot_area(family, progress).await
    }

    /// Brings the fast copies of a family down.
    async fn leave_fast_tier(&self, family: &KeptCold, progress: &Progress) -> Result<()> {
        let mut patience = Patience::new(self.runtime.now());
        loop {
            let mut left = 0;
            for copy in family.0.iter().flat_map(|member| self.tier.copies_of(member.id, 0)) {
                left += 1 + copy.bits().stale.count() as usize;
                if !copy.is_leaving() {
                    self.send_down(&copy);
                }
            }
            family.tell(progress, left + family.hot_blocks())?;
            if left == 0 {
                return Ok(());
            }
            if patience.is_stuck(left, self.runtime.now()) {
                return Err(Error::busy(format!(
                    "volume {}: some of it does not leave the fast tier: see whether kura check can read all of it, and try \
                     again",
                    family.name()
                )));
            }
            self.tier.wake.notify_one();
            self.runtime.sleep(LOOK).await;
        }
    }

    /// Brings all blocks of a family from the hot area to their cold places; what was in the write buffer, too.
    async fn leave_hot_area(&self, family: &KeptCold, progress: &Progress) -> Result<()> {
        let mut patience = Patience::new(self.runtime.now());
        loop {
            let stripes: Vec<_> = family.0.iter().flat_map(|volume| self.hot_stripes(volume)).collect();
            let (hot, mut cooled) = (family.hot_blocks(), 0);
            for chosen in stripes.chunks(WIDTH) {
                cooled += self.cool(chosen.to_vec(), Urgency::Buffer).await.unwrap_or_default();
                family.tell(progress, hot.saturating_sub(cooled))?;
            }
            // What was on its way to the hot area is there after this, and slots of cooled blocks are given up.
            self.checkpoint().await?;
            let left = family.hot_blocks();
            family.tell(progress, left)?;
            if left == 0 {
                return Ok(());
            }
            if patience.is_stuck(left, self.runtime.now()) {
                return Err(Error::busy(format!(
                    "volume {}: {left} blocks do not leave the hot area: see whether kura check can read them all, and try \
                     again",
                    family.name()
                )));
            }
            self.runtime.sleep(LOOK).await;
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
