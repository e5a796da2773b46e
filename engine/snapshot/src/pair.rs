//! The pair table of a volume: its snapshots, and what only they see.

use crate::index::{Epoch, Key};
use std::collections::{BTreeMap, BTreeSet};

/// A snapshot of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The volume that is the snapshot.
    pub svol: u64,
    /// The LSN of the record that made it: an extent born later was not there yet.
    pub lsn: u64,
    /// When it was made: seconds since 1970.
    pub made_unix_s: u64,
}

/// Which snapshots a volume has.
///
/// What must hold: `made` has each of `live` with the LSN that made it, and nothing else.
#[derive(Default)]
pub struct PairTable {
    live: BTreeMap<Epoch, Pair>,
    /// The same by their LSNs: for a block it is asked which of thousands were there when its extent was born.
    made: BTreeSet<(u64, Epoch)>,
    /// The last number given.
    last: u32,
    /// Versions that are not the present, each with the newest snapshot that sees it.
    superseded: BTreeMap<Epoch, BTreeSet<Key>>,
    /// How many of these there are, by that snapshot and by when they were born.
    births: BTreeMap<(Epoch, Epoch), u64>,
}

impl PairTable {
    /// A table as it was written out.
    pub fn restore(last: u32, live: impl IntoIterator<Item = (Epoch, Pair)>) -> Self {
        let mut table = Self { last, ..Self::default() };
        live.into_iter().for_each(|(epoch, pair)| table.add(epoch, pair));
        table
    }

    /// The snapshots, oldest first.
    pub fn live(&self) -> impl ExactSizeIterator<Item = (Epoch, Pair)> + DoubleEndedIterator {
        self.live.iter().map(|(epoch, pair)| (*epoch, *pair))
    }

    /// The snapshot of this number.
    pub fn get(&self, epoch: Epoch) -> Option<Pair> {
        self.live.get(&epoch).copied()
    }

    /// True when the volume has no snapshots.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The number last given to a snapshot.
    pub fn last_given(&self) -> u32 {
        self.last
    }

    /// The newest snapshot, or [`Epoch::FIRST`].
    pub fn latest(&self) -> Epoch {
        self.live.last_key_value().map_or(Epoch::FIRST, |(epoch, _)| *epoch)
    }

    /// The newest snapshot made before the log reached `lsn`, or [`Epoch::FIRST`].
    pub fn latest_at(&self, lsn: u64) -> Epoch {
        self.made.range(..(lsn, Epoch::FIRST)).next_back().map_or(Epoch::FIRST, |(_, epoch)| *epoch)
    }

    /// The newest snapshot that sees a version born at `birth` and superseded at `until`.
    pub fn sees(&self, birth: Epoch, until: Epoch) -> Option<Epoch> {
        if until <= birth {
            return None;
        }
        self.live.range(Epoch(birth.0 + 1)..=until).next_back().map(|(epoch, _)| *epoch)
    }

    /// The number of the next snapshot.
    pub fn next(&self) -> Epoch {
        Epoch(self.last + 1)
    }

    /// A number is given to something that is no snapshot.
    pub fn skip(&mut self, epoch: Epoch) {
        self.last = self.last.max(epoch.0);
    }

    /// A snapshot is made.
    pub fn add(&mut self, epoch: Epoch, pair: Pair) {
        self.last = self.last.max(epoch.0);
        self.made.insert((pair.lsn, epoch));
        self.live.insert(epoch, pair);
    }

    /// A snapshot is gone; what it was the newest one to see.
    pub fn remove(&mut self, epoch: Epoch) -> BTreeSet<Key> {
        if let Some(pair) = self.live.remove(&epoch) {
            self.made.remove(&(pair.lsn, epoch));
        }
        let births: Vec<_> =
            self.births.range((epoch, Epoch::FIRST)..=(epoch, Epoch::NOW)).map(|(key, _)| *key).collect();
        for birth in births {
            self.births.remove(&birth);
        }
        self.superseded.remove(&epoch).unwrap_or_default()
    }

    /// The version is seen by `epoch`, and by no newer one; said twice, it counts once.
    pub fn hold(&mut self, epoch: Epoch, key: Key) {
        if self.superseded.entry(epoch).or_default().insert(key) {
            *self.births.entry((epoch, key.birth())).or_default() += 1;
        }
    }

    /// How many versions only a snapshot and older ones see that were born at `birth` or later.
    pub fn held_since(&self, epoch: Epoch, birth: Epoch) -> u64 {
        self.births.range((epoch, birth)..=(epoch, Epoch::NOW)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots come and go, also those in the middle: what was newest when the log was somewhere is still told.
    #[test]
    fn the_newest_at_any_time_is_the_last_made_before_it() {
        let pair = |lsn| Pair { svol: lsn, lsn, made_unix_s: 0 };
        let mut pairs = PairTable::restore(3, [(Epoch(1), pair(10)), (Epoch(3), pair(30))]);
        pairs.add(Epoch(4), pair(40));
        let newest = |pairs: &PairTable| [10, 11, 30, 31, 41].map(|lsn| pairs.latest_at(lsn).0);
        assert_eq!(newest(&pairs), [0, 1, 1, 3, 4]);
        pairs.remove(Epoch(3));
        assert_eq!(newest(&pairs), [0, 1, 1, 1, 4]);
        pairs.remove(Epoch(1));
        assert_eq!(newest(&pairs), [0, 0, 0, 0, 4]);
    }

    #[test]
    fn what_a_snapshot_holds_is_counted_by_birth() {
        let mut pairs = PairTable::default();
        for (epoch, block, birth) in [(4, 7, 0), (4, 7, 2), (4, 8, 2), (4, 8, 2), (4, 7, 3), (5, 7, 3)] {
            pairs.hold(Epoch(epoch), Key::new(block, Epoch(birth)));
        }
        assert_eq!([0, 1, 2, 3, 4].map(|birth| pairs.held_since(Epoch(4), Epoch(birth))), [4, 3, 3, 1, 0]);
        assert_eq!(pairs.remove(Epoch(4)).len(), 4);
        assert_eq!((pairs.held_since(Epoch(4), Epoch(0)), pairs.held_since(Epoch(5), Epoch(0))), (0, 1));
    }
}
