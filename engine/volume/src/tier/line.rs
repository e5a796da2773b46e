//! The line of moves: what was decided waits in it, is on its way extent by extent, and is remembered when it is done.
//!
//! ```text
//!   take ─> waiting <─> next, put_back ─> (extents on their way: begin, end) ─> done, the newest remembered
//!              ^                                │
//!              └──────── refuse: no room ───────┘
//! ```

use kura_block::{Error, Kind};
use kura_tier::{Move, Reason};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Moves that are remembered when they are done.
const REMEMBERED: usize = 1000;
/// How often a move is refused before it is given up.
pub(super) const REFUSALS: u32 = 5;

/// A move, as it is remembered.
#[derive(Clone, Debug, PartialEq)]
pub struct TierMove {
    /// Counts up with each move.
    pub number: u64,
    /// What was decided, and why.
    pub decided: Move,
    /// When that was, by the runtime's clock.
    pub at: Duration,
    /// Extents that have arrived.
    pub extents: u32,
    /// Bytes that were copied.
    pub bytes: u64,
    /// When it was done; `None` while it is not.
    pub done: Option<Duration>,
    /// Why it did not come to its end.
    pub failed: Option<String>,
    /// Extents of which none has begun.
    pub(super) left: Range<u32>,
    /// There was something to move.
    begun: bool,
    /// Extents on their way.
    under_way: u32,
    /// Times that it found no room.
    refused: u32,
}

impl TierMove {
    /// An extent is on its way.
    pub(super) fn begin(&mut self) {
        self.begun = true;
        self.under_way += 1;
    }

    /// An extent is no longer on its way: it has arrived, or will not.
    pub(super) fn end(&mut self, arrived: bool) {
        self.under_way -= 1;
        self.extents += u32::from(arrived);
    }

    fn goes_on(&self) -> bool {
        !self.left.is_empty() || self.under_way > 0
    }

    /// One that had nothing to do is forgotten; so is one that looked for what is missing, and copied nothing.
    fn is_told(&self) -> bool {
        self.begun && (self.decided.reason != Reason::Rest || self.bytes > 0 || self.failed.is_some())
    }
}

/// The moves of a controller.
#[derive(Default)]
pub(crate) struct Line {
    /// So many were decided.
    pub decided: u64,
    /// Those that are not done, by number.
    open: BTreeMap<u64, TierMove>,
    /// Those of them of which something has still to begin, in the order in which that is done.
    waiting: VecDeque<u64>,
    /// Those that are done.
    done: VecDeque<TierMove>,
}

impl Line {
    /// Takes a move in, at its end.
    pub fn take(&mut self, decided: Move, region_extents: u32, at: Duration) {
        self.decided += 1;
        let number = self.decided;
        let left = decided.regions.start * region_extents..decided.regions.end * region_extents;
        let (extents, bytes, done, failed) = (0, 0, None, None);
        let (begun, under_way, refused) = (false, 0, 0);
        let taken = TierMove { number, decided, at, extents, bytes, done, failed, left, begun, under_way, refused };
        self.open.insert(number, taken);
        self.waiting.push_back(number);
    }

    /// What waits, in order.
    pub fn waiting(&self) -> impl Iterator<Item = &Move> {
        self.waiting.iter().filter_map(|number| self.open.get(number)).map(|one| &one.decided)
    }

    /// All that is known, in no order.
    pub fn all(&self) -> impl Iterator<Item = &TierMove> {
        self.done.iter().chain(self.open.values())
    }

    /// The last move of a region, while it is known.
    pub fn last_of(&self, volume: u64, region: u32) -> Option<&TierMove> {
        let is_its = |one: &&TierMove| one.decided.volume == volume && one.decided.regions.contains(&region);
        self.all().filter(is_its).max_by_key(|one| one.number)
    }

    /// Takes the first one that waits out, for some of it to begin.
    pub fn next(&mut self) -> Option<TierMove> {
        self.waiting.pop_front().and_then(|number| self.open.remove(&number))
    }

    /// Puts it back, in front.
    pub fn put_back(&mut self, one: TierMove, now: Duration) {
        if !one.left.is_empty() {
            self.waiting.push_front(one.number);
        }
        let number = one.number;
        self.open.insert(number, one);
        self.change(number, now, |_| {});
    }

    /// Changes a move that is not done; where it is then, it is remembered.
    pub fn change(&mut self, number: u64, now: Duration, change: impl FnOnce(&mut TierMove)) {
        let Some(one) = self.open.get_mut(&number) else { return };
        change(one);
        if one.goes_on() {
            return;
        }
        let done = self.open.remove(&number).filter(TierMove::is_told);
        self.done.extend(done.map(|one| TierMove { done: Some(now), ..one }));
        if self.done.len() > REMEMBERED {
            self.done.pop_front();
        }
    }

    /// Nothing more of some moves begins.
    pub fn give_up(&mut self, which: impl Fn(&Move) -> bool, why: &str, now: Duration) {
        let of = self.open.values().filter(|one| which(&one.decided));
        let gone: BTreeSet<u64> = of.map(|one| one.number).collect();
        self.waiting.retain(|number| !gone.contains(number));
        for number in gone {
            self.change(number, now, |one| {
                if one.begun && !one.left.is_empty() {
                    one.failed = Some(why.to_owned());
                }
                one.left = 0..0;
                // What finds no room does not wait for it.
                one.refused = REFUSALS;
            });
        }
    }

    /// An extent could not be brought up: where the tier is full, the move waits, which is the answer; else the extent is left out.
    /// It `counts` if none was refused a moment before.
    pub fn refuse(&mut self, number: u64, index: u32, error: &Error, counts: bool, now: Duration) -> bool {
        let full = error.kind() == Kind::Full;
        let mut waits = false;
        self.change(number, now, |one| {
            one.under_way -= 1;
            one.refused = one.refused.saturating_add(u32::from(full && counts));
            waits = full && one.refused < REFUSALS;
            one.left = match one.left.clone() {
                left if waits && left.is_empty() => index..index + 1,
                left if waits => left.start.min(index)..left.end.max(index + 1),
                _ if full => 0..0,
                left => left,
            };
            if !waits {
                one.failed = Some(error.to_string());
            }
        });
        if full && !waits {
            self.waiting.retain(|waiting| *waiting != number);
        } else if waits && !self.waiting.contains(&number) {
            // What makes room may come behind it.
            self.waiting.push_back(number);
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_tier::Tier;

    const REASONS: [Reason; 2] = [Reason::Pinned, Reason::Rest];

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn up(regions: Range<u32>, reason: Reason) -> Move {
        Move { volume: 7, regions, to: Tier::Fast, drop_clean: false, reason }
    }

    /// A line with a move up of so many extents, all of them on their way.
    fn moving(extents: u32) -> Line {
        let mut line = Line::default();
        line.take(up(0..extents, Reason::Pinned), 1, at(0));
        let mut one = line.next().unwrap();
        (0..extents).for_each(|_| one.begin());
        one.left = 0..0;
        line.put_back(one, at(0));
        line
    }

    fn first(line: &Line) -> &TierMove {
        line.all().next().unwrap()
    }

    #[test]
    fn a_move_is_done_with_its_last_extent() {
        let mut line = moving(2);
        line.change(1, at(1), |one| one.bytes += 4096);
        line.change(1, at(1), |one| one.end(true));
        assert_eq!((first(&line).done, first(&line).bytes), (None, 4096));
        line.change(1, at(2), |one| one.end(false));
        assert_eq!((first(&line).done, first(&line).extents), (Some(at(2)), 1));
    }

    #[test]
    fn what_finds_no_room_waits_for_it_until_nobody_wants_it() {
        let full = Error::full("full");
        let mut line = moving(1);
        for time in 1..u64::from(REFUSALS) {
            assert!(line.refuse(1, 0, &full, true, at(time)));
            let mut one = line.next().unwrap();
            assert_eq!((&one.left, one.done, &one.failed), (&(0..1), None, &None));
            one.begin();
            one.left.start = 1;
            line.put_back(one, at(time));
        }
        assert!(!line.refuse(1, 0, &full, true, at(9)));
        assert!(line.waiting().next().is_none() && first(&line).failed.is_some());
        let mut line = moving(1);
        line.give_up(|decided| decided.volume == 7, "why", at(1));
        assert!(!line.refuse(1, 0, &full, true, at(2)));
        assert!(line.waiting().next().is_none() && first(&line).done == Some(at(2)));
    }

    /// However many are decided at once: none that is not done is forgotten, and of those that are the newest are not.
    #[test]
    fn what_waits_is_not_forgotten() {
        let mut line = Line::default();
        let all = REMEMBERED as u32 + 500;
        (0..all).for_each(|region| line.take(up(region..region + 1, Reason::Pinned), 1, at(0)));
        assert_eq!((line.all().count(), line.waiting().count()), (all as usize, all as usize));
        let mut one = line.next().unwrap();
        one.begin();
        one.left.start += 1;
        line.put_back(one, at(1));
        assert!(line.refuse(1, 0, &Error::full("full"), true, at(1)), "the first of them, too, waits for room");
        while let Some(mut one) = line.next() {
            one.begin();
            one.left = 0..0;
            let number = one.number;
            line.put_back(one, at(2));
            line.change(number, at(2), |one| one.end(true));
        }
        assert_eq!(line.all().count(), REMEMBERED);
        assert_eq!((line.last_of(7, all - 1).unwrap().done, line.last_of(7, 1)), (Some(at(2)), None));
    }

    /// A restart forgets whether what is up is all there: that nothing was missing is nothing to tell.
    #[test]
    fn what_had_nothing_to_do_is_not_told() {
        for (reason, bytes) in REASONS.into_iter().flat_map(|reason| [(reason.clone(), 0), (reason, 4096)]) {
            let mut line = Line::default();
            line.take(up(0..1, reason.clone()), 1, at(0));
            let mut one = line.next().unwrap();
            one.begin();
            one.left = 0..0;
            line.put_back(one, at(0));
            line.change(1, at(1), |one| one.bytes += bytes);
            line.change(1, at(1), |one| one.end(true));
            let told = bytes > 0 || reason == Reason::Pinned;
            assert_eq!(line.all().count(), usize::from(told), "{reason:?}, {bytes} bytes");
        }
    }
}
