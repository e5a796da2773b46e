//! A volume with snapshots: what sees which version.

use crate::index::{Epoch, IndexTable, Key, Location};
use crate::pair::PairTable;
use crate::pool::Slot;

/// The PVOL of a snapshot or clone, and the snapshot's number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Svol {
    /// The volume it was made of.
    pub pvol: u64,
    /// Its number among that one's snapshots.
    pub epoch: Epoch,
}

/// A volume's versions.
#[derive(Default)]
pub struct Pvol {
    /// Where they lie.
    pub index: IndexTable,
    /// Who sees them.
    pub pairs: PairTable,
    /// The volume is being rolled back.
    pub rolled: Option<Rolled>,
}

/// A volume that is what a snapshot of it is, but for what was written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rolled {
    /// The snapshot's volume.
    pub svol: u64,
    /// What is born then or later is the present; what is older is not.
    pub since: Epoch,
}

/// What one sees at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// What was there before anything is listed: at home, or, of a snapshot, what its PVOL has.
    Base,
    /// Zeroes.
    Hole,
    /// A listed version.
    Listed(Key, Location),
}

/// What becomes of a version that is not the present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is needed, or not there any more.
    Stays,
    /// Nobody sees it: it is not listed any more, and where it lay is free.
    Goes(Location),
}

impl Pvol {
    /// The version of `block`, which lies in `group`, that is the newest one born before `before`.
    pub fn version(&self, block: u64, group: u32, before: Epoch) -> Version {
        let listed = self.index.find(block, before);
        let hole = self.index.hole(group, before);
        match (listed, hole) {
            (Some((key, _)), Some(hole)) if hole > key.birth() => Version::Hole,
            (Some((key, at)), _) => Version::Listed(key, at),
            (None, Some(_)) => Version::Hole,
            (None, None) => Version::Base,
        }
    }

    /// When a version of a block of `group` was born, as far as that is listed.
    pub fn birth_of(&self, version: Version, group: u32, before: Epoch) -> Epoch {
        match version {
            Version::Base => Epoch::FIRST,
            Version::Hole => self.index.hole(group, before).unwrap_or_default(),
            Version::Listed(key, _) => key.birth(),
        }
    }

    /// The birth of what is written now: the present in place, unless it is older than this.
    pub fn era(&self) -> Epoch {
        self.rolled.map_or(Epoch::FIRST, |rolled| rolled.since).max(self.pairs.latest())
    }

    /// A version is written: it is the present, and born now. What was the present is left to the snapshots that see it;
    /// it is returned if none does.
    #[must_use]
    pub fn write(&mut self, key: Key, at: Location) -> Option<Key> {
        let before = self.index.find(key.block(), Epoch::NOW);
        self.index.insert(key, at);
        let (old, _) = before.filter(|(old, _)| *old != key)?;
        (!self.hold(old, key.birth())).then_some(old)
    }

    /// A version that was at home lies in a slot from now on; home has what is born at `home`.
    pub fn save(&mut self, key: Key, slot: Slot, home: Epoch) {
        self.index.insert(key, Location::Slot(slot));
        self.index.insert(Key::new(key.block(), home), Location::Home);
        self.hold(key, home);
    }

    /// True where all that one sees of a group, the blocks `first..end`, is its newest hole.
    pub fn is_hole(&self, group: u32, first: u64, end: u64) -> bool {
        let is_older = |hole: Epoch| self.index.listed(first, end).all(|(key, _)| key.birth() < hole);
        self.rolled.is_none() && self.index.hole(group, Epoch::NOW).is_some_and(is_older)
    }

    /// A group reads as zeroes for what is born at `birth` or later. Of its older holes those stay that a snapshot sees: else a
    /// volume that is written to and discarded again and again had one more each time.
    pub fn open_hole(&mut self, group: u32, birth: Epoch) {
        let mut next = birth;
        while let Some(older) = self.index.hole(group, next) {
            if self.pairs.sees(older, next).is_none() {
                self.index.close(group, older);
            } else {
                next = older;
            }
        }
        self.index.dig(group, birth);
    }

    /// A group, the blocks `first..end`, reads as zeroes from now on, born at `birth`. Listed versions born then or later
    /// must be gone before. Returns what nobody sees any more.
    #[must_use]
    pub fn dig(&mut self, group: u32, first: u64, end: u64, birth: Epoch) -> Vec<Key> {
        let mut newest: Vec<Key> = Vec::new();
        for (key, _) in self.index.listed(first, end) {
            match newest.last_mut() {
                Some(last) if last.block() == key.block() => *last = key,
                _ => newest.push(key),
            }
        }
        let superseded: Vec<_> =
            newest.into_iter().filter(|key| self.index.hole_after(group, key.birth()).is_none()).collect();
        self.open_hole(group, birth);
        superseded.into_iter().filter(|key| !self.hold(*key, birth)).collect()
    }

    /// Leaves a version to the newest snapshot that sees it; false when none does.
    fn hold(&mut self, key: Key, until: Epoch) -> bool {
        let seen = self.pairs.sees(key.birth(), until);
        if let Some(epoch) = seen {
            self.pairs.hold(epoch, key);
        }
        seen.is_some()
    }

    /// When a version of a block in `group` was superseded; `None` for the present. A roll-back supersedes what is older
    /// than itself.
    fn until(&self, key: Key, group: u32) -> Option<Epoch> {
        let next = self.index.next(key).map(Key::birth);
        let hole = self.index.hole_after(group, key.birth());
        let rolled = self.rolled.map(|rolled| rolled.since).filter(|since| key.birth() < *since);
        [next, hole, rolled].into_iter().flatten().min()
    }

    /// What was the present of the blocks `first..end` when the roll-back under way began, and was written at `made`, the
    /// number of the snapshot that the volume is rolled back to, or later: only younger snapshots may see it still.
    pub fn rolled_over(&self, first: u64, end: u64, made: Epoch) -> Vec<Key> {
        let Some(Rolled { since, .. }) = self.rolled else { return Vec::new() };
        let listed = self.index.listed(first, end).map(|(key, _)| key);
        listed.filter(|key| (made..since).contains(&key.birth()) && self.index.next(*key).is_none()).collect()
    }

    /// True when a snapshot sees what home's extent, taken at `born` (an LSN), had before anything was listed, or would if nothing
    /// else were listed.
    pub fn base_is_seen(&self, born: u64) -> bool {
        let base = self.pairs.latest_at(born);
        self.pairs.sees(base, self.era()).is_some()
    }

    /// Decides on a version of a block in `group`, when the newest snapshot that saw it is gone, or on all when the tables
    /// are read again. What nobody sees is not listed any more. A roll-back asks again when another snapshot goes.
    pub fn judge(&mut self, key: Key, group: u32) -> Verdict {
        let Some(at) = self.index.get(key) else { return Verdict::Stays };
        let Some(until) = self.until(key, group) else { return Verdict::Stays };
        if let Some(epoch) = self.pairs.sees(key.birth(), until) {
            // What only the roll-back supersedes is left to the snapshot by what is written in its place.
            if self.index.next(key).is_some() || self.index.hole_after(group, key.birth()).is_some() {
                self.pairs.hold(epoch, key);
            }
            return Verdict::Stays;
        }
        self.index.remove(key);
        Verdict::Goes(at)
    }

    /// The newest version of a block that lies in a slot and was born before `birth`.
    pub fn older_slot(&self, block: u64, birth: Epoch) -> Option<(Key, Slot)> {
        let listed = self.index.listed(block, block + 1).rev();
        listed.filter(|(key, _)| key.birth() < birth).find_map(|(key, at)| match at {
            Location::Slot(slot) => Some((key, slot)),
            Location::Home => None,
        })
    }

    /// The version that a snapshot sees at home, where home's extent was taken at `born` (an LSN): what only it has there
    /// must lie elsewhere before home is anything else's.
    pub fn seen_at_home(&self, block: u64, group: u32, born: u64) -> Option<Key> {
        let listed = self.index.listed(block, block + 1).find(|(_, at)| *at == Location::Home);
        if let Some((key, _)) = listed {
            let until = self.until(key, group)?;
            return self.pairs.sees(key.birth(), until).map(|_| key);
        }
        self.home_is_seen(block, group, born).then(|| Key::new(block, self.pairs.latest_at(born)))
    }

    /// What home has, which is not the present, lies in a slot from now on: home is free.
    pub fn vacate(&mut self, key: Key, slot: Slot) {
        let listed = self.index.get(key).is_some();
        self.index.insert(key, Location::Slot(slot));
        // What was never listed is left to nobody yet.
        if !listed && let Some(next) = self.index.next(key) {
            self.hold(key, next.birth());
        }
    }

    /// The present, which lay in a slot, is at home, which was free. The slot that says so from now on and its version, where
    /// that is not the oldest version there is.
    pub fn come_home(&mut self, present: Key) -> Option<(Key, Slot)> {
        self.index.remove(present);
        let says = self.older_slot(present.block(), present.birth());
        if says.is_some() {
            self.index.insert(present, Location::Home);
        }
        says
    }

    /// True when a snapshot sees what home had before anything was listed of this block, where home's extent was taken
    /// at `born` (an LSN).
    pub fn home_is_seen(&self, block: u64, group: u32, born: u64) -> bool {
        let first = self.index.listed(block, block + 1).next().map(|(key, _)| key.birth());
        let hole = self.index.hole_after(group, Epoch::FIRST).or_else(|| self.index.hole(group, Epoch(1)));
        let until = [first, hole].into_iter().flatten().min().unwrap_or(Epoch::NOW);
        let base = self.pairs.latest_at(born);
        until > base && self.pairs.sees(base, until).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::Pair;

    #[test]
    fn of_many_holes_those_stay_that_a_snapshot_sees() {
        let mut pvol = Pvol::default();
        let has = |pvol: &Pvol| pvol.index.holes().map(|(_, birth)| birth.0).collect::<Vec<_>>();
        for epoch in 1..=9 {
            pvol.pairs.add(Epoch(epoch), Pair { svol: u64::from(epoch), lsn: u64::from(epoch), made_unix_s: 0 });
            pvol.open_hole(7, Epoch(epoch));
        }
        assert_eq!(has(&pvol), (1..=9).collect::<Vec<_>>());
        for gone in [2, 3, 5, 9] {
            pvol.pairs.remove(Epoch(gone));
        }
        let seen = |pvol: &Pvol| (1..=9).map(|before| pvol.index.hole(7, Epoch(before))).collect::<Vec<_>>();
        let before = seen(&pvol);
        pvol.open_hole(7, Epoch(10));
        assert_eq!(has(&pvol), [3, 5, 6, 7, 10]);
        for epoch in [1, 4, 6, 7, 8] {
            assert_eq!(seen(&pvol)[epoch - 1].is_some(), before[epoch - 1].is_some(), "snapshot {epoch}");
        }
    }
}
