//! The free segments: what a thin device has room for among them, and which one is taken next.

use super::segment::Use;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Free segments, by what is known of the device's room for them. What is in neither list, the device has nothing of.
#[derive(Default)]
pub(crate) struct Free {
    all: BTreeSet<u32>,
    /// The device has room for all of each, and since when they are known to be free.
    whole: BTreeMap<u32, Option<Duration>>,
    /// They were in use, though not each block of them may ever have been written; the same.
    unseen: BTreeMap<u32, Option<Duration>>,
    /// As many of those that are whole are kept for removals, the cleaner and the next checkpoint, which must go on when the
    /// device has no more.
    pub reserve: usize,
    /// The device gave no room lately: only what it is known to have given counts.
    pub device_is_full: bool,
}

/// What a free segment is taken for that the device is to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// It was in use: is there room for all of it?
    Look(u32),
    /// The device shall give room for it.
    Room(u32),
}

impl Query {
    pub fn segment(self) -> u32 {
        match self {
            Self::Look(segment) | Self::Room(segment) => segment,
        }
    }
}

impl Free {
    pub fn extend(&mut self, segments: std::ops::Range<u32>) {
        self.all.extend(segments);
    }

    pub fn contains(&self, segment: u32) -> bool {
        self.all.contains(&segment)
    }

    /// Those that can be written, as far as is known.
    pub fn len(&self) -> usize {
        if self.device_is_full { self.whole.len() } else { self.all.len() }
    }

    /// The first ones.
    pub fn lowest(&self, count: usize) -> Vec<u32> {
        self.all.iter().take(count).copied().collect()
    }

    pub fn remove(&mut self, segment: u32) {
        self.all.remove(&segment);
        self.whole.remove(&segment);
        self.unseen.remove(&segment);
    }

    /// One that was in use.
    pub fn add(&mut self, segment: u32) {
        self.all.insert(segment);
        self.unseen.insert(segment, None);
    }

    /// One that the device has room for all of, or, as far as is known, nothing.
    pub fn add_seen(&mut self, segment: u32, is_whole: bool) {
        self.all.insert(segment);
        if is_whole {
            self.whole.insert(segment, None);
        }
    }

    pub fn reserve_is_complete(&self) -> bool {
        self.whole.len() >= self.reserve
    }

    /// The one to take now. What was written lately is written again soonest, where the reserve can do without; of the reserve
    /// the log has the first choice, whose entries should not meet a full device: if anything else meets one, only that fails.
    pub fn choose(&self, usage: Use) -> Option<u32> {
        let first = |list: &BTreeMap<u32, _>| list.keys().next().copied();
        let whole = first(&self.whole);
        if self.device_is_full {
            return whole;
        }
        let written = whole.into_iter().chain(first(&self.unseen)).min();
        if usage == Use::Log {
            return whole.or(written).or_else(|| self.bare());
        }
        let spare = written.filter(|_| self.whole.len() + self.unseen.len() > self.reserve);
        spare.or_else(|| self.bare()).or(written)
    }

    /// The first one that the device has nothing of.
    fn bare(&self) -> Option<u32> {
        let is_bare = |segment: &&u32| !self.whole.contains_key(segment) && !self.unseen.contains_key(segment);
        self.all.iter().find(is_bare).copied()
    }

    /// What the device is to be asked next, for the reserve; when it gave no room lately, what became free since is looked at,
    /// and it is asked for more only where somebody `waits`.
    pub fn query(&self, waits: bool) -> Option<Query> {
        if !self.device_is_full && self.reserve_is_complete() {
            return None;
        }
        let look = self.unseen.keys().next().copied().map(Query::Look);
        // Looked for only then: there may be many that are not bare.
        let asks = !self.device_is_full || waits;
        look.or_else(|| if asks { self.bare().map(Query::Room) } else { None })
    }

    /// True when there is something to ask the device that nobody waits for.
    pub fn wants_to_ask(&self) -> bool {
        if self.device_is_full {
            !self.unseen.is_empty()
        } else {
            !self.reserve_is_complete() && self.all.len() > self.whole.len()
        }
    }

    /// Those that the device may have something of, and that have been free since `before`.
    pub fn old(&self, before: Duration) -> Vec<u32> {
        let written = self.whole.iter().chain(&self.unseen);
        written.filter(|(_, since)| since.is_some_and(|at| at <= before)).map(|(segment, _)| *segment).collect()
    }

    /// True for one of those that still is one, and that the reserve does not want.
    pub fn may_go(&self, segment: u32, before: Duration) -> bool {
        let is_old = |since: &Option<Duration>| since.is_some_and(|at| at <= before);
        self.unseen.get(&segment).is_some_and(is_old)
            || self.whole.len() > self.reserve && self.whole.get(&segment).is_some_and(is_old)
    }

    /// Those that became free since this was called last have been free since `now`.
    pub fn note_old(&mut self, now: Duration) {
        for since in self.whole.values_mut().chain(self.unseen.values_mut()) {
            since.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of ten segments the device has room for two, and may have it for two more.
    fn free(reserve: usize, device_is_full: bool) -> Free {
        let mut free = Free { reserve, device_is_full, ..Free::default() };
        free.extend(0..10);
        for segment in [3, 7] {
            free.add_seen(segment, true);
        }
        for segment in [5, 2] {
            free.add(segment);
        }
        free
    }

    #[test]
    fn what_was_written_is_taken_again_and_the_log_finds_room() {
        for (reserve, full, usage, first) in [
            (0, false, Use::Data, 2),
            (4, false, Use::Data, 0),
            (4, false, Use::Log, 3),
            (0, true, Use::Data, 3),
            (9, true, Use::Index, 3),
        ] {
            assert_eq!(free(reserve, full).choose(usage), Some(first), "{usage:?}, reserve {reserve}, full: {full}");
        }
        let mut none = free(4, true);
        for segment in [3, 7] {
            none.remove(segment);
        }
        assert_eq!(
            (none.choose(Use::Log), none.len()),
            (None, 0),
            "what was not looked at does not count on a full device"
        );
        none.device_is_full = false;
        assert_eq!((none.choose(Use::Log), none.len()), (Some(2), 8));
    }

    #[test]
    fn a_device_is_asked_where_the_reserve_lacks_and_a_full_one_by_who_waits() {
        let mut free = free(2, false);
        assert_eq!((free.query(true), free.wants_to_ask()), (None, false), "the reserve is complete");
        free.reserve = 3;
        assert_eq!((free.query(false), free.wants_to_ask()), (Some(Query::Look(2)), true));
        for segment in [2, 5] {
            free.remove(segment);
        }
        for segment in [2, 5] {
            free.add_seen(segment, false);
        }
        assert_eq!((free.query(false), free.wants_to_ask()), (Some(Query::Room(0)), true));
        free.device_is_full = true;
        assert_eq!((free.query(false), free.query(true), free.wants_to_ask()), (None, Some(Query::Room(0)), false));
        free.add(9);
        assert_eq!((free.query(false), free.wants_to_ask()), (Some(Query::Look(9)), true));
    }

    #[test]
    fn the_reserve_stays_and_the_rest_goes_back_when_it_is_old() {
        let mut free = free(2, false);
        let at = Duration::from_secs;
        free.note_old(at(1));
        free.add(9);
        free.note_old(at(2));
        assert_eq!(free.old(at(1)), [3, 7, 2, 5]);
        let may_go: Vec<u32> = (0..10).filter(|segment| free.may_go(*segment, at(1))).collect();
        assert_eq!(may_go, [2, 5]);
        free.reserve = 1;
        assert!(free.may_go(3, at(1)) && !free.may_go(9, at(1)));
    }
}
