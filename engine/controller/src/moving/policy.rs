//! Which volume is to move to which controller, by what clients ask for: facts in, decisions out.
//!
//! One family at a time goes from the controller with most to do to the one with least. What must hold, so that nothing
//! flaps:
//! 1. A move leaves the larger of the two controllers with an eighth less at least than the busiest one had.
//! 2. It is wanted for [`PERIODS`] periods on end, between the same two controllers.
//! 3. What it has brought is seen for [`REST`] periods before the next one, and the family stays for [`STAYS`].

use std::collections::{BTreeMap, BTreeSet};

const PERIODS: u32 = 3;
const REST: u32 = 3;
const STAYS: u32 = 60;
/// One part in so many of what the busiest controller has to do.
const GAIN: u64 = 8;

/// What a family of volumes had to do in a period.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub family: u64,
    pub controller: u16,
    pub work: u64,
}

/// A family is to be this controller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub family: u64,
    pub to: u16,
}

/// What was wanted and done in the periods before.
#[derive(Debug, Default)]
pub(crate) struct Balance {
    /// From where to where, for so many periods on end.
    wanted: Option<((u16, u16), u32)>,
    rest: u32,
    /// Families that stay, for so many more periods.
    stays: BTreeMap<u64, u32>,
}

impl Balance {
    /// Decides at the end of a period, in which a controller had enough to do if that was `enough`. `takes` has the
    /// controllers that are given volumes, `staying` the families that cannot move.
    pub fn decide(
        &mut self,
        loads: &[Load],
        staying: &BTreeSet<u64>,
        takes: &BTreeSet<u16>,
        enough: u64,
    ) -> Option<Decision> {
        self.rest = self.rest.saturating_sub(1);
        self.stays.retain(|_, periods| {
            *periods -= 1;
            *periods > 0
        });
        let best = self.best(loads, staying, takes, enough);
        let wanted = best.map(|(from, Decision { to, .. })| (from, to));
        let before = self.wanted.filter(|(way, _)| Some(*way) == wanted).map_or(0, |(_, periods)| periods);
        self.wanted = wanted.map(|way| (way, before + 1));
        let (_, decision) = best.filter(|_| before + 1 >= PERIODS && self.rest == 0)?;
        self.wanted = None;
        self.rest = REST;
        self.stays.insert(decision.family, STAYS);
        Some(decision)
    }

    /// The family whose move makes the larger of the two controllers smallest, and from where it goes.
    fn best(
        &self,
        loads: &[Load],
        staying: &BTreeSet<u64>,
        takes: &BTreeSet<u16>,
        enough: u64,
    ) -> Option<(u16, Decision)> {
        let mut sums: BTreeMap<u16, u64> = takes.iter().map(|controller| (*controller, 0)).collect();
        for load in loads {
            *sums.entry(load.controller).or_default() += load.work;
        }
        let (&from, &most) = sums.iter().max_by_key(|(_, work)| **work)?;
        let (&to, &least) = sums.iter().filter(|(id, _)| takes.contains(id)).min_by_key(|(_, work)| **work)?;
        if most < enough {
            return None;
        }
        let may_go = |load: &&Load| !staying.contains(&load.family) && !self.stays.contains_key(&load.family);
        let mine = loads.iter().filter(|load| load.controller == from).filter(may_go);
        let after = |load: &Load| (most - load.work).max(least + load.work);
        let best = mine.min_by_key(|load| (after(load), load.family))?;
        (after(best) <= most - most / GAIN).then_some((from, Decision { family: best.family, to }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: u64 = 1000;
    /// All may move.
    const NONE: BTreeSet<u64> = BTreeSet::new();

    fn load(family: u64, controller: u16, work: u64) -> Load {
        Load { family, controller, work }
    }

    fn all(controllers: u16) -> BTreeSet<u16> {
        (0..controllers).collect()
    }

    /// Periods in which the same is asked for, with what is decided done: how many moves.
    fn settle(balance: &mut Balance, loads: &mut [Load], takes: &BTreeSet<u16>, periods: u32) -> u32 {
        let mut moves = 0;
        for _ in 0..periods {
            if let Some(Decision { family, to }) = balance.decide(loads, &NONE, takes, ENOUGH) {
                moves += 1;
                loads.iter_mut().filter(|load| load.family == family).for_each(|load| load.controller = to);
            }
        }
        moves
    }

    fn sums(loads: &[Load], controllers: u16) -> Vec<u64> {
        let of = |id| loads.iter().filter(|load| load.controller == id).map(|load| load.work).sum();
        (0..controllers).map(of).collect()
    }

    #[test]
    fn a_move_waits_until_it_is_wanted_for_long() {
        let mut balance = Balance::default();
        let loads = [load(1, 0, 3000), load(2, 0, 2000)];
        let decide = |balance: &mut Balance, loads: &[Load]| balance.decide(loads, &NONE, &all(2), ENOUGH);
        assert_eq!([0; 2].map(|_| decide(&mut balance, &loads)), [None; 2]);
        assert_eq!(decide(&mut balance, &[load(1, 0, 10), load(2, 0, 20)]), None, "a quiet period begins it anew");
        assert_eq!([0; 2].map(|_| decide(&mut balance, &loads)), [None; 2]);
        assert_eq!(decide(&mut balance, &loads), Some(Decision { family: 1, to: 1 }));
    }

    #[test]
    fn one_family_alone_stays_where_it_is() {
        let mut loads = [load(1, 0, 90_000), load(2, 0, 5000)];
        // The small one goes only where that helps.
        assert_eq!(settle(&mut Balance::default(), &mut loads, &all(2), 1000), 0);
        let mut loads = [load(1, 0, 90_000), load(2, 0, 20_000)];
        assert_eq!(settle(&mut Balance::default(), &mut loads, &all(2), 1000), 1);
        assert_eq!(sums(&loads, 2).into_iter().max(), Some(90_000));
    }

    #[test]
    fn a_controller_that_is_drained_gets_nothing() {
        let mut loads = [load(1, 0, 3000), load(2, 0, 3000)];
        let takes = BTreeSet::from([0, 2]);
        assert_eq!(settle(&mut Balance::default(), &mut loads, &takes, 100), 1);
        assert_eq!(sums(&loads, 3), [3000, 0, 3000]);
    }

    /// Sixteen families, of which the first is asked for most and each next one less, all on one of four controllers.
    #[test]
    fn work_spreads_and_comes_to_rest() {
        let mut balance = Balance::default();
        let mut loads: Vec<_> = (1..=16).map(|family| load(family, 0, 48_000 / family)).collect();
        let moves = settle(&mut balance, &mut loads, &all(4), 300);
        let sums = sums(&loads, 4);
        let (mean, most) = (sums.iter().sum::<u64>() / 4, sums.iter().copied().max().unwrap_or(0));
        assert!(most * 4 <= mean * 5, "{sums:?}");
        assert!(moves <= 16, "{moves}");
        assert_eq!(settle(&mut balance, &mut loads, &all(4), 10_000), 0, "and then nothing moves");
    }

    /// What clients ask for changes from period to period, by a fifth up and down and from one to the other.
    #[test]
    fn what_comes_and_goes_moves_nothing() {
        let (mut swaying, mut turning) = (Balance::default(), Balance::default());
        let mut moves = 0;
        for period in 0..10_000_u64 {
            let sway = |family: u64| 10_000 + (period * 7919 + family * 104_729) % 4000;
            let loads = [load(1, 0, sway(1)), load(2, 0, sway(2)), load(3, 1, sway(3)), load(4, 1, sway(4))];
            moves += u32::from(swaying.decide(&loads, &NONE, &all(2), ENOUGH).is_some());
            let turn = (period / 2 % 2) as u16;
            let loads = [load(1, turn, 9000), load(2, turn, 9000)];
            moves += u32::from(turning.decide(&loads, &NONE, &all(2), ENOUGH).is_some());
        }
        assert_eq!(moves, 0);
    }
}
