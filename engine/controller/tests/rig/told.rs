//! A tiering policy that does as a test says.

use kura_controller::{Controller, TierSetup};
use kura_tier::{Decision, Facts, Move, Pace, Policy, Reason, Standing, Tier, VolumeFacts};
use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// Brings everything that is not pinned up, or down, at a pace, as its cell says from then on.
#[derive(Clone)]
pub struct Told(pub Rc<Cell<(Tier, Pace)>>);

impl Told {
    /// Where to, and how fast.
    pub fn new(to: Tier, pace: Pace) -> Self {
        Self(Rc::new(Cell::new((to, pace))))
    }

    /// It decides for the controller, in regions of so many bytes.
    pub fn decide_for(&self, controller: &Controller, region_bytes: u64) {
        let (policy, interval) = (Box::new(self.clone()), Duration::from_millis(100));
        let setup = TierSetup { policy, region_bytes, interval, single_disk: None };
        controller.store().set_tier(Some(setup)).unwrap();
    }
}

impl Policy for Told {
    fn name(&self) -> &'static str {
        "told"
    }

    fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        let (to, pace) = self.0.get();
        let free = facts.volumes.iter().filter(|volume| volume.wants.pin.is_none());
        let all = |volume: &VolumeFacts<'_>| Move {
            volume: volume.volume,
            regions: 0..volume.regions,
            to,
            drop_clean: true,
            reason: Reason::Pinned,
        };
        Decision { moves: free.map(all).collect(), pace }
    }

    fn rests(&self) -> bool {
        false
    }

    fn standing(&self, _: u64, _: u32) -> Standing {
        Standing::default()
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}
