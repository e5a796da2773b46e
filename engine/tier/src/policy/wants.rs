//! What the user wants of a volume, kept in the same way by every policy.

use crate::{Decision, Facts, Move, Reason, Tier, VolumeFacts};
use std::ops::Range;

/// What pins leave.
pub(super) struct Left {
    /// Space of the fast tier that they do not take, in regions.
    pub free: u32,
    /// Regions that may still be decided on.
    pub budget: u32,
    /// Regions of pinned volumes for which there is no space: volume and runs, in order.
    lacking: Vec<(u64, Range<u32>)>,
}

/// Moves that a pin wants, whatever a policy thinks, as far as there is space; no more than `budget` regions come up at once, for who
/// unpins a volume does not want the rest.
pub(super) fn moves(facts: &Facts<'_>, budget: u32, decision: &mut Decision) -> Left {
    let mut left = Left { free: facts.fast.free, budget, lacking: Vec::new() };
    for volume in facts.volumes {
        match volume.wants.pin {
            Some(Tier::Fast) => {
                for gap in gaps(volume) {
                    let end = gap.end.min(gap.start.saturating_add(left.free));
                    left.free -= end - gap.start;
                    let comes = end.min(gap.start.saturating_add(left.budget));
                    left.budget -= comes - gap.start;
                    push(decision, volume.volume, gap.start..comes, Tier::Fast, Reason::Pinned);
                    if end < gap.end {
                        left.lacking.push((volume.volume, end..gap.end));
                    }
                }
            }
            Some(Tier::Slow) => all_down(volume, decision),
            None => {}
        }
    }
    if facts.fast.total == 0 {
        // Nothing comes up whatever leaves.
        left.lacking.clear();
    }
    left
}

impl Left {
    /// Regions of pinned volumes for which there is no space.
    pub fn short(&self) -> u32 {
        self.lacking.iter().fold(0, |short, (_, run)| short.saturating_add(run.end - run.start))
    }

    /// Sends regions of volumes that are not pinned down, and brings as many of pinned ones up.
    pub fn displace(self, victims: &[(u64, u32)], decision: &mut Decision) {
        for (volume, region) in victims {
            push(decision, *volume, *region..*region + 1, Tier::Slow, Reason::ForPinned);
        }
        let mut room = victims.len() as u32;
        for (volume, run) in self.lacking {
            let end = run.end.min(run.start.saturating_add(room));
            room -= end - run.start;
            push(decision, volume, run.start..end, Tier::Fast, Reason::Pinned);
        }
    }
}

/// Whether a policy decides about a volume's regions.
pub(super) fn is_free(volume: &VolumeFacts<'_>) -> bool {
    volume.wants.pin.is_none()
}

/// Whether there is anything of a region to be moved.
pub(super) fn is_mapped(volume: &VolumeFacts<'_>, region: u32) -> bool {
    let run = volume.mapped.partition_point(|run| run.end <= region);
    volume.mapped.get(run).is_some_and(|run| run.contains(&region))
}

/// How many more regions of a volume may come up.
pub(super) fn room(volume: &VolumeFacts<'_>) -> u32 {
    volume.wants.ceiling_regions.map_or(u32::MAX, |ceiling| ceiling.saturating_sub(volume.placed.len() as u32))
}

/// How many regions of a volume may leave.
pub(super) fn spare(volume: &VolumeFacts<'_>) -> u32 {
    (volume.placed.len() as u32).saturating_sub(volume.wants.floor_regions)
}

/// How many regions of a volume must leave.
pub(super) fn excess(volume: &VolumeFacts<'_>) -> u32 {
    volume.wants.ceiling_regions.map_or(0, |ceiling| (volume.placed.len() as u32).saturating_sub(ceiling))
}

/// The runs of a volume that could be on the fast tier and are not.
fn gaps(volume: &VolumeFacts<'_>) -> Vec<Range<u32>> {
    let mut gaps = Vec::new();
    let mut placed = volume.placed.iter().map(|placed| placed.region).peekable();
    for run in volume.mapped {
        let mut from = run.start;
        while let Some(region) = placed.next_if(|region| *region < run.end) {
            if region > from {
                gaps.push(from..region);
            }
            from = from.max(region + 1);
        }
        if from < run.end {
            gaps.push(from..run.end);
        }
    }
    gaps
}

fn all_down(volume: &VolumeFacts<'_>, decision: &mut Decision) {
    for placed in volume.placed {
        push(decision, volume.volume, placed.region..placed.region + 1, Tier::Slow, Reason::Pinned);
    }
}

/// Adds a move, joined to the last one where it goes on from it for the same reason.
pub(super) fn push(decision: &mut Decision, volume: u64, regions: Range<u32>, to: Tier, reason: Reason) {
    if regions.is_empty() {
        return;
    }
    if let Some(last) = decision.moves.last_mut()
        && last.volume == volume
        && last.to == to
        && last.regions.end == regions.start
        && last.reason == reason
    {
        last.regions.end = regions.end;
        return;
    }
    decision.moves.push(Move { volume, regions, to, drop_clean: to == Tier::Slow, reason });
}
