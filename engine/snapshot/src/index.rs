//! The index table of a volume: where the versions of its blocks lie that are not simply at home.

use crate::pool::Slot;
use std::collections::{BTreeMap, BTreeSet};

/// The number of a snapshot of a volume, from 1; as a birth, 0 is before the first one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(pub u32);

impl Epoch {
    /// Before the first snapshot.
    pub const FIRST: Self = Self(0);
    /// After every snapshot: what the volume itself sees.
    pub const NOW: Self = Self((1 << EPOCH_BITS) - 1);
}

const EPOCH_BITS: u32 = 26;

/// A version of a block: the block, and when it was born.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(u64);

impl Key {
    pub(crate) const ZERO: Self = Self(0);

    /// The version of `block` (below 2^38) born at `birth`; behind every version there is where the block is 2^38.
    pub fn new(block: u64, birth: Epoch) -> Self {
        Self(block.saturating_mul(1 << EPOCH_BITS) | u64::from(birth.0))
    }

    /// The block.
    pub fn block(self) -> u64 {
        self.0 >> EPOCH_BITS
    }

    /// When it was born.
    pub fn birth(self) -> Epoch {
        Epoch(self.0 as u32 & Epoch::NOW.0)
    }

    /// As it is stored.
    pub fn stored(self) -> u64 {
        self.0
    }

    /// Reads [`Key::stored`].
    pub fn of_stored(stored: u64) -> Self {
        Self(stored)
    }
}

/// Where a version lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// At the block's own place.
    Home,
    /// In a slot of the PoolVOL.
    Slot(Slot),
}

const HOME: u64 = u64::MAX;

/// As many versions of a block are walked over; where there are more, the one that is wanted is looked up.
const VERSIONS_NEAR: usize = 8;

/// Where versions lie, by block and birth; and where a whole group of blocks reads as zeroes from a birth on.
#[derive(Default)]
pub struct IndexTable {
    versions: BTreeMap<Key, u64>,
    /// Of these, those at home.
    homes: usize,
    holes: BTreeSet<(u32, Epoch)>,
}

impl IndexTable {
    /// The newest version of a block born before `before`, if one is listed.
    pub fn find(&self, block: u64, before: Epoch) -> Option<(Key, Location)> {
        let range = self.versions.range(Key::new(block, Epoch::FIRST)..Key::new(block, before));
        range.last().map(|(key, at)| (*key, location(*at)))
    }

    /// The version of the same block born next.
    pub fn next(&self, key: Key) -> Option<Key> {
        let end = Key::new(key.block(), Epoch::NOW);
        self.versions.range(Key(key.0 + 1)..end).next().map(|(next, _)| *next)
    }

    /// Where this version lies, if it is listed.
    pub fn get(&self, key: Key) -> Option<Location> {
        self.versions.get(&key).map(|at| location(*at))
    }

    /// The first block of `first..end` of which any version is listed.
    pub fn first_in(&self, first: u64, end: u64) -> Option<u64> {
        let range = self.versions.range(Key::new(first, Epoch::FIRST)..Key::new(end, Epoch::FIRST));
        range.map(|(key, _)| key.block()).next()
    }

    /// All listed versions of blocks in `first..end`, by block and birth.
    pub fn listed(&self, first: u64, end: u64) -> impl DoubleEndedIterator<Item = (Key, Location)> {
        let range = self.versions.range(Key::new(first, Epoch::FIRST)..Key::new(end, Epoch::FIRST));
        range.map(|(key, at)| (*key, location(*at)))
    }

    /// The newest version born before `before` of each block in `first..end` that has one, by block.
    pub fn seen(&self, first: u64, end: u64, before: Epoch) -> impl Iterator<Item = (Key, Location)> {
        let mut listed = self.listed(first, end).peekable();
        std::iter::from_fn(move || {
            loop {
                let (key, _) = *listed.peek()?;
                let (mut newest, mut versions) = (None, 0);
                while let Some(version) = listed.next_if(|(next, _)| next.block() == key.block()) {
                    versions += 1;
                    if versions > VERSIONS_NEAR {
                        newest = self.find(key.block(), before);
                        listed = self.listed(key.block() + 1, end).peekable();
                        break;
                    }
                    if version.0.birth() < before {
                        newest = Some(version);
                    }
                }
                if newest.is_some() {
                    return newest;
                }
            }
        })
    }

    /// Lists a version.
    pub fn insert(&mut self, key: Key, at: Location) {
        let at = match at {
            Location::Home => HOME,
            Location::Slot(slot) => slot.0,
        };
        let before = self.versions.insert(key, at);
        self.homes = self.homes + usize::from(at == HOME) - usize::from(before == Some(HOME));
    }

    /// Lists a version no more.
    pub fn remove(&mut self, key: Key) -> Option<Location> {
        let at = self.versions.remove(&key)?;
        self.homes -= usize::from(at == HOME);
        Some(location(at))
    }

    /// The newest hole of a group born before `before`.
    pub fn hole(&self, group: u32, before: Epoch) -> Option<Epoch> {
        self.holes.range((group, Epoch::FIRST)..(group, before)).last().map(|(_, birth)| *birth)
    }

    /// The oldest hole of a group born after `birth`.
    pub fn hole_after(&self, group: u32, birth: Epoch) -> Option<Epoch> {
        let after = (group, Epoch(birth.0 + 1))..(group, Epoch::NOW);
        self.holes.range(after).next().map(|(_, birth)| *birth)
    }

    /// A group reads as zeroes for what is born at `birth` or later.
    pub fn dig(&mut self, group: u32, birth: Epoch) {
        self.holes.insert((group, birth));
    }

    /// This hole of a group is none any more.
    pub fn close(&mut self, group: u32, birth: Epoch) {
        self.holes.remove(&(group, birth));
    }

    /// The oldest hole of a group.
    pub fn oldest_hole(&self, group: u32) -> Option<Epoch> {
        self.holes.range((group, Epoch::FIRST)..=(group, Epoch::NOW)).next().map(|(_, birth)| *birth)
    }

    /// Some groups that have holes, in order, from `group` on.
    pub fn holed_from(&self, group: u32, count: usize) -> Vec<u32> {
        let mut groups: Vec<u32> = Vec::new();
        for (holed, _) in self.holes.range((group, Epoch::FIRST)..) {
            if groups.last() != Some(holed) {
                if groups.len() == count {
                    break;
                }
                groups.push(*holed);
            }
        }
        groups
    }

    /// A group has no holes any more.
    pub fn fill(&mut self, group: u32) {
        while let Some(birth) = self.oldest_hole(group) {
            self.close(group, birth);
        }
    }

    /// All holes, by group and birth.
    pub fn holes(&self) -> impl ExactSizeIterator<Item = (u32, Epoch)> {
        self.holes.iter().copied()
    }

    /// The slots in which versions lie, one after the other: they may be millions.
    pub fn into_slots(self) -> impl Iterator<Item = Slot> {
        self.versions.into_values().filter(|at| *at != HOME).map(Slot)
    }

    /// Versions that lie in slots.
    pub fn slots(&self) -> usize {
        self.versions.len() - self.homes
    }

    /// True when nothing is listed: every block is at home, or never written.
    pub fn is_empty(&self) -> bool {
        self.versions.is_empty() && self.holes.is_empty()
    }
}

fn location(at: u64) -> Location {
    if at == HOME { Location::Home } else { Location::Slot(Slot(at)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_seen_of_a_range_is_what_is_found_block_by_block() {
        let mut index = IndexTable::default();
        // Blocks without a version, with few and with many of them.
        for block in 0..40 {
            for version in 0..block * 7 % 23 {
                let at = if version % 3 == 0 { Location::Home } else { Location::Slot(Slot(100 * block + version)) };
                index.insert(Key::new(block, Epoch((version * 2 + block % 2) as u32)), at);
            }
        }
        for (first, end) in [(0, 40), (3, 4), (17, 29), (39, 64)] {
            for before in (0..50).map(Epoch).chain([Epoch::NOW]) {
                let found: Vec<_> = (first..end).filter_map(|block| index.find(block, before)).collect();
                let seen: Vec<_> = index.seen(first, end, before).collect();
                assert_eq!(seen, found, "{first}..{end} before {before:?}");
            }
        }
    }
}
