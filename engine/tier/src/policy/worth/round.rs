//! One decision: candidates become moves, as far as the budget and the room go.

use super::Candidate;
use crate::policy::wants;
use crate::{Decision, Facts, Reason, Tier};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// A region that may leave: requests expected at it, the index of its volume in the facts, and which.
pub(super) type Victim = (f32, usize, u32);
/// Some of them, the least first.
pub(super) type Victims = std::iter::Peekable<std::vec::IntoIter<Victim>>;

pub(super) fn by_least(a: &Victim, b: &Victim) -> Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2))
}

/// Leaves the `most` least.
pub(super) fn keep_least(victims: &mut Vec<Victim>, most: usize) {
    if (1..victims.len()).contains(&most) {
        victims.select_nth_unstable_by(most - 1, by_least);
    }
    victims.truncate(most);
}

/// Turns candidates into moves, as far as the budget and the room go.
pub(super) struct Round<'a, 'f> {
    pub facts: &'a Facts<'f>,
    pub decision: Decision,
    pub ups: Decision,
    /// Regions that may still move, and that there is room for.
    pub budget: u32,
    pub free: u32,
    pub victims: Victims,
    pub displace: f32,
    pub displacing: f32,
    /// By volume: regions that may still come up, and those that move by now.
    pub rooms: Vec<u32>,
    pub taken: Vec<BTreeSet<u32>>,
    /// Of volumes at their ceilings, what of their own may leave for something better, the least first.
    pub own: BTreeMap<usize, Victims>,
}

impl Round<'_, '_> {
    /// Brings a candidate's regions up; the number that do.
    pub fn bring(&mut self, candidate: &Candidate, reason: &Reason) -> Vec<u32> {
        let volume = &self.facts.volumes[candidate.volume];
        let from = volume.placed.partition_point(|placed| placed.region < candidate.start);
        let mut mapped =
            volume.mapped[volume.mapped.partition_point(|run| run.end <= candidate.start)..].iter().peekable();
        let mut placed = volume.placed[from..].iter().map(|placed| placed.region).peekable();
        let mut brought = Vec::new();
        for region in candidate.start..candidate.end {
            while mapped.next_if(|run| run.end <= region).is_some() {}
            let is_there = placed.next_if_eq(&region).is_some() || self.taken[candidate.volume].contains(&region);
            if is_there || !mapped.peek().is_some_and(|run| run.contains(&region)) {
                continue;
            }
            if self.budget == 0 || !self.make_room_below_ceiling(candidate) || !self.make_room(candidate) {
                break;
            }
            (self.budget, self.free) = (self.budget - 1, self.free - 1);
            self.rooms[candidate.volume] -= 1;
            self.taken[candidate.volume].insert(region);
            wants::push(&mut self.ups, volume.volume, region..region + 1, Tier::Fast, reason.clone());
            brought.push(region);
        }
        brought
    }

    /// What a candidate must draw, at least, for there to be room.
    pub fn least(&mut self) -> f32 {
        if self.free > 0 {
            return 0.0;
        }
        let own = self.own.values_mut().filter_map(std::iter::Peekable::peek).map(|(expected, ..)| *expected);
        let least = self.victims.peek().map(|(expected, ..)| *expected).into_iter().chain(own).min_by(f32::total_cmp);
        least.map_or(f32::INFINITY, |least| self.clearly_more(least))
    }

    /// What must be expected of something for which another leaves, of which so much is.
    fn clearly_more(&self, expected: f32) -> f32 {
        (expected * self.displace).max(expected + self.displacing)
    }

    /// At its volume's ceiling, sends the region of the same volume down that is expected to draw least, if the candidate draws
    /// clearly more. What leaves makes room in the tier, too.
    fn make_room_below_ceiling(&mut self, candidate: &Candidate) -> bool {
        if self.rooms[candidate.volume] > 0 {
            return true;
        }
        let Some(own) = self.own.get_mut(&candidate.volume) else { return false };
        let taken = &self.taken[candidate.volume];
        while own.next_if(|(.., region)| taken.contains(region)).is_some() {}
        let Some(victim) = own.peek().copied().filter(|victim| candidate.expected > self.clearly_more(victim.0)) else {
            return false;
        };
        self.rooms[candidate.volume] += 1;
        self.send_down(victim, candidate);
        true
    }

    /// A region leaves for a candidate.
    fn send_down(&mut self, (expected, index, region): Victim, candidate: &Candidate) {
        let reason = Reason::Displaced { expected_ios: expected.into(), by_ios: candidate.expected.into() };
        wants::push(&mut self.decision, self.facts.volumes[index].volume, region..region + 1, Tier::Slow, reason);
        self.taken[index].insert(region);
        self.free += 1;
    }

    /// Whether there is room for a candidate, or for what it draws clearly more than something that leaves for it.
    pub fn has_room(&mut self, candidate: &Candidate) -> bool {
        self.free > 0 || candidate.expected > self.least()
    }

    /// Sends the region down that is expected to draw least, if there is no room and the candidate draws clearly more.
    fn make_room(&mut self, candidate: &Candidate) -> bool {
        if self.free > 0 {
            return true;
        }
        while self.victims.next_if(|(_, index, region)| self.taken[*index].contains(region)).is_some() {}
        let Some(victim) =
            self.victims.peek().copied().filter(|victim| candidate.expected > self.clearly_more(victim.0))
        else {
            return false;
        };
        self.send_down(victim, candidate);
        true
    }
}
