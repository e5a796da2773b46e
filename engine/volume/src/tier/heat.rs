//! The log pool: requests of each region of a volume, counted as they come and taken once an interval.

use crate::snapshot::Place;
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::tier::FastCopy;
use kura_tier::Heat;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Requests of a volume's regions since they were taken last.
#[derive(Default)]
pub(crate) struct HeatMap {
    /// Reads and writes, by region; only those that were touched.
    counts: RefCell<BTreeMap<u32, [u32; 2]>>,
}

impl HeatMap {
    fn count(&self, region: u32, write: bool) {
        let counts = &mut *self.counts.borrow_mut();
        let count = counts.entry(region).or_default();
        count[usize::from(write)] = count[usize::from(write)].saturating_add(1);
    }

    /// The counts so far, in order of address; they begin anew.
    pub fn take(&self) -> Vec<Heat> {
        let taken = self.counts.take().into_iter();
        taken.map(|(region, [reads, writes])| Heat { region, reads, writes }).collect()
    }

    /// Forgets all: regions have another size from now on.
    pub fn forget(&self) {
        self.counts.take();
    }
}

/// Requests that the fast tier served, and all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    /// Reads whose first block lay there.
    pub fast_reads: u64,
    /// Writes that go there.
    pub fast_writes: u64,
    /// All reads.
    pub reads: u64,
    /// All writes.
    pub writes: u64,
}

impl std::ops::Add for Hits {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            fast_reads: self.fast_reads + other.fast_reads,
            fast_writes: self.fast_writes + other.fast_writes,
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
        }
    }
}

/// The region counted last, and its volume.
type Last = Option<(u64, u64)>;

impl Inner {
    /// Counts a request of blocks `first` to before `end`, where they lie: with a snapshot that may be in its PVOL, or in the
    /// PoolVOL. A region counts once a request.
    pub fn note_use(&self, volume: &Rc<VolumeState>, first: u64, end: u64, write: bool) {
        // What is up serves without a policy, too.
        let is_asked = self.tier.region_blocks.get() > 0 || !self.tier.copies.borrow().is_empty();
        if !is_asked || first >= end {
            return;
        }
        self.rouse();
        let (mut last, mut fast) = (None, None);
        if volume.branch.borrow().is_none() {
            fast = self.note_at(volume, first, end, write, &mut last);
        } else {
            let mut at = first;
            while at < end {
                let (place, run) = self.locate(volume, at, end);
                let found = match &place {
                    Place::At(state, block) => self.note_at(state, *block, block + run, write, &mut last),
                    Place::Zero => None,
                };
                fast = fast.or(found.filter(|_| at == first));
                at += run;
            }
        }
        let fast = fast.unwrap_or(false);
        let hits = &self.tier.hits;
        let mut now = hits.get();
        if write {
            now.writes += 1;
            now.fast_writes += u64::from(fast);
        } else {
            now.reads += 1;
            now.fast_reads += u64::from(fast);
        }
        hits.set(now);
    }

    /// Counts blocks of a volume where they are, but those of the region that was counted `last`; whether the first of them is
    /// served by the fast tier. What is not allocated has nothing to be moved.
    fn note_at(&self, volume: &VolumeState, first: u64, end: u64, write: bool, last: &mut Last) -> Option<bool> {
        let region_blocks = self.tier.region_blocks.get();
        let counted = (region_blocks > 0).then(|| first / region_blocks..=(end - 1) / region_blocks);
        for region in counted.into_iter().flatten() {
            let at = first.max(region * region_blocks);
            if volume.extent(self.index_of(at)).is_some()
                && last.replace((volume.id, region)) != Some((volume.id, region))
            {
                volume.heat.count(region as u32, write);
            }
        }
        let (index, inside) = self.split(first);
        let extent = volume.extent(index)?;
        let lies_there = |copy: Rc<FastCopy>| self.serves(&copy) && copy.bits().valid.has(inside);
        Some(if write { self.takes_writes(&extent).is_some() } else { extent.fast().is_some_and(lies_there) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_once_and_in_order() {
        let map = HeatMap::default();
        for (region, write) in [(5, true), (2, false), (5, false), (2, false)] {
            map.count(region, write);
        }
        let heat = |region, reads, writes| Heat { region, reads, writes };
        assert_eq!(map.take(), [heat(2, 2, 0), heat(5, 1, 1)]);
        assert!(map.take().is_empty());
        map.count(2, true);
        assert_eq!(map.take(), [heat(2, 0, 1)]);
    }
}
