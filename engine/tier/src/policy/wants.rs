//! What the user wants of a volume, kept in the same way by every policy.

use crate::{Decision, Facts, Move, Reason, Tier, VolumeFacts};
use std::ops::Range;

/// Moves that a pin or a ceiling wants, whatever a policy thinks. Returns how much space of the fast tier they leave.
pub(super) fn moves(facts: &Facts<'_>, decision: &mut Decision) -> u32 {
    let mut free = facts.fast.free;
    for volume in facts.volumes {
        match volume.wants.pin {
            Some(Tier::Fast) => {
                for gap in gaps(volume) {
                    let end = gap.end.min(gap.start + free);
                    free -= end - gap.start;
                    push(decision, volume.volume, gap.start..end, Tier::Fast, Reason::Pinned);
                }
            }
            Some(Tier::Slow) => all_down(volume, decision),
            None => {}
        }
    }
    free
}

/// Whether a policy decides about a volume's regions.
pub(super) fn is_free(volume: &VolumeFacts<'_>) -> bool {
    volume.wants.pin.is_none()
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

/// The runs of a volume that are not on the fast tier.
fn gaps(volume: &VolumeFacts<'_>) -> Vec<Range<u32>> {
    let mut gaps = Vec::new();
    let mut from = 0;
    for placed in volume.placed {
        if placed.region > from {
            gaps.push(from..placed.region);
        }
        from = placed.region + 1;
    }
    if from < volume.regions {
        gaps.push(from..volume.regions);
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
