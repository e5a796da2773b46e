//! Work is handed out at run time: each worker its own list first, then what others have not begun.

use super::{Group, Lists, Unit};
use std::collections::VecDeque;

/// Hands units of work lists to workers.
///
/// Every unit is handed out once, unless it is [given back](Self::give_back).
#[derive(Clone, Debug)]
pub struct Dealer {
    lists: Lists,
    left_s: Vec<f64>,
    stolen: u64,
    round: Round,
}

/// What [`Dealer::take`] gives to one worker after the other: to each as much.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// How many are to come.
    takes: usize,
    /// What each gets, in seconds.
    each_s: f64,
    /// All that is left is dealt out, and who comes last takes it.
    is_last: bool,
}

impl Dealer {
    /// A dealer of these lists.
    pub fn new(lists: Lists) -> Self {
        let left_s = lists.of_workers.iter().map(|list| list.iter().map(|group| group.cost_s).sum()).collect();
        Self { lists, left_s, stolen: 0, round: Round::default() }
    }

    /// The next unit for a worker; none when it shall have no more.
    ///
    /// A worker without work takes the longest group that another one has not begun, from the worker with the most
    /// left; where all are begun, the last units of such a group.
    pub fn next(&mut self, worker: usize) -> Option<Unit> {
        if self.lists.of_workers[worker].is_empty() && self.lists.may_steal {
            self.steal(worker);
        }
        let list = &mut self.lists.of_workers[worker];
        let group = list.front_mut()?;
        let unit = group.units.pop_front()?;
        group.begun = true;
        group.cost_s -= unit.cost_s;
        if group.units.is_empty() {
            list.pop_front();
        }
        self.left_s[worker] -= unit.cost_s;
        Some(unit)
    }

    /// Units for a worker, at least one unless there is none: where it costs to begin anew, such as starting a process, which
    /// must be worth so many seconds of work.
    ///
    /// Half of what is left is dealt out evenly, then half of the rest, so that all end together; where that would be too
    /// little for each, all of it.
    pub fn take(&mut self, worker: usize, least_s: f64) -> Vec<Unit> {
        let mut units: Vec<Unit> = Vec::new();
        if !self.lists.may_steal {
            return self.next(worker).into_iter().collect();
        }
        if self.round.takes == 0 {
            let (workers, left_s) = (self.left_s.len(), self.left_s());
            let half_s = left_s / (2.0 * workers as f64);
            let is_last = half_s < least_s;
            self.round = Round { takes: workers, each_s: if is_last { 2.0 * half_s } else { half_s }, is_last };
        }
        self.round.takes -= 1;
        let is_all = self.round.is_last && self.round.takes == 0;
        let enough_s = if is_all { f64::INFINITY } else { self.round.each_s };
        let mut taken_s = 0.0;
        while taken_s < enough_s {
            // One that leads farther past what is enough than it is away would be too much for this worker, and too little for another.
            let leads_too_far = self.next_s(worker).is_some_and(|next_s| next_s > 2.0 * (enough_s - taken_s));
            if leads_too_far && !units.is_empty() {
                break;
            }
            let Some(unit) = self.next(worker) else { break };
            taken_s += unit.cost_s;
            units.push(unit);
        }
        units
    }

    /// All that is not handed out, for nobody is left to do it.
    pub fn rest(&mut self) -> Vec<Unit> {
        self.lose_worker();
        std::iter::from_fn(|| self.next(0)).collect()
    }

    /// A unit that a worker could not do is to be done by whoever comes next.
    pub fn give_back(&mut self, worker: usize, unit: Unit) {
        self.left_s[worker] += unit.cost_s;
        self.lists.of_workers[worker].push_back(Group::of(vec![unit]));
        self.lose_worker();
    }

    /// A worker may be gone for good: its list is everybody's, whatever the split.
    pub fn lose_worker(&mut self) {
        self.lists.may_steal = true;
    }

    /// Whether there is a unit for a worker.
    pub fn has_any(&self, worker: usize) -> bool {
        let has_any = |list: &VecDeque<Group>| !list.is_empty();
        let lists = &self.lists.of_workers;
        has_any(&lists[worker]) || (self.lists.may_steal && lists.iter().any(has_any))
    }

    /// How much is not handed out yet, in seconds of one worker.
    fn left_s(&self) -> f64 {
        self.left_s.iter().sum::<f64>().max(0.0)
    }

    /// How often a worker took from another one.
    pub fn stolen(&self) -> u64 {
        self.stolen
    }

    /// What the next unit for a worker costs, in seconds, from whichever list it comes.
    fn next_s(&self, worker: usize) -> Option<f64> {
        let own = self.lists.of_workers[worker].front();
        let (victim, unbegun) = own.is_none().then(|| self.prey()).flatten().unwrap_or((worker, None));
        let group = self.lists.of_workers[victim].get(unbegun.unwrap_or(0))?;
        Some(group.units.front()?.cost_s)
    }

    /// Whom a worker without work takes some from, the one with the most left, and which group, where one is not begun.
    fn prey(&self) -> Option<(usize, Option<usize>)> {
        let has_work = |&worker: &usize| !self.lists.of_workers[worker].is_empty();
        let victims = (0..self.left_s.len()).filter(has_work);
        let victim = victims.max_by(|&a, &b| self.left_s[a].total_cmp(&self.left_s[b]).then(b.cmp(&a)))?;
        Some((victim, self.lists.of_workers[victim].iter().position(|group| !group.begun)))
    }

    /// Moves work to the list of `thief`, which is empty.
    fn steal(&mut self, thief: usize) {
        let Some((victim, unbegun)) = self.prey() else { return };
        let list = &mut self.lists.of_workers[victim];
        let Some(group) = unbegun.and_then(|group| list.remove(group)).or_else(|| half_of_first(list)) else {
            return;
        };
        self.left_s[victim] -= group.cost_s;
        self.left_s[thief] += group.cost_s;
        self.lists.of_workers[thief].push_back(group);
        self.stolen += 1;
    }
}

/// The last half of the units of the first group, rounded up.
fn half_of_first(list: &mut VecDeque<Group>) -> Option<Group> {
    let group = list.front_mut()?;
    let stolen = Group::of(group.units.split_off(group.units.len() / 2).into());
    group.cost_s -= stolen.cost_s;
    if group.units.is_empty() {
        list.pop_front();
    }
    Some(stolen)
}
