//! A tiering policy that knows nothing, and is content only where nobody has asked for anything for a while.

use kura_tier::{Decision, Facts, Move, Pace, Policy, Reason, Standing, Tier};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

pub struct Restless {
    pub rng: ChaCha8Rng,
    pub content: bool,
}

impl Policy for Restless {
    fn name(&self) -> &'static str {
        "restless"
    }

    fn decide(&mut self, facts: &Facts<'_>) -> Decision {
        let mut moves = Vec::new();
        let asked = facts.volumes.iter().any(|volume| !volume.heat.is_empty());
        self.content = !asked && (self.content || self.rng.random_bool(0.05));
        for volume in facts.volumes.iter().filter(|_| !self.content) {
            assert!(volume.placed.is_sorted_by_key(|placed| placed.region));
            assert!(volume.heat.is_sorted_by_key(|heat| heat.region));
            for _ in 0..self.rng.random_range(0..4) {
                let first = self.rng.random_range(0..volume.regions);
                let end = self.rng.random_range(first..=volume.regions).max(first + 1);
                // Half of what goes down is what is up.
                let placed = (!volume.placed.is_empty() && self.rng.random_bool(0.5))
                    .then(|| volume.placed[self.rng.random_range(0..volume.placed.len())].region);
                let (regions, to) = match placed {
                    Some(region) => (region..region + 1, Tier::Slow),
                    None if self.rng.random_bool(0.7) => (first..end, Tier::Fast),
                    None => (first..end, Tier::Slow),
                };
                moves.push(Move { volume: volume.volume, regions, to, drop_clean: true, reason: Reason::Pinned });
            }
        }
        Decision { moves, pace: Pace { depth: self.rng.random_range(1..4), ..Pace::default() } }
    }

    fn rests(&self) -> bool {
        self.content
    }

    fn standing(&self, _: u64, _: u32) -> Standing {
        Standing::default()
    }

    fn memory_bytes(&self) -> usize {
        0
    }
}
