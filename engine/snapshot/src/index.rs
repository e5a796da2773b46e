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

    /// The version of `block` (below 2^38) born at `birth`.
    pub fn new(block: u64, birth: Epoch) -> Self {
        Self(block << EPOCH_BITS | u64::from(birth.0))
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
            self.holes.remove(&(group, birth));
        }
    }

    /// All holes, by group and birth.
    pub fn holes(&self) -> impl ExactSizeIterator<Item = (u32, Epoch)> {
        self.holes.iter().copied()
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
