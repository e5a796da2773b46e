//! The mover: carries out what was decided, an extent at a time, and brings down what lies on a disk that fails or leaves.

use super::engine::{Measured, Waiting};
use super::{Bits, FastCopy, Inner, Key, TierMove};
use crate::tables::VolumeState;
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use kura_block::{Kind, Result};
use kura_tier::{Move, Pace, Tier};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// How often it is looked whether what waits can go on.
const LOOK: Duration = Duration::from_millis(50);
/// How often for what goes down, which may wait for a checkpoint.
const LEAVING: Duration = Duration::from_secs(1);
/// How long to wait before trying again what something else was in the way of.
const BUSY: Duration = Duration::from_millis(10);
/// How long to wait before trying again what the disks or a full tier refused.
const REFUSED: Duration = Duration::from_secs(1);
/// How often a move is refused before it is given up.
const REFUSALS: u32 = 5;

/// An extent to be moved.
enum Step {
    Up(Rc<VolumeState>, u32, u64),
    Down(Rc<FastCopy>),
}

impl Inner {
    /// The task of the fast tier, until the store stops or its journal fails.
    pub async fn tier_for_ever(self: Rc<Self>) {
        let mut flying = FuturesUnordered::new();
        while self.goes_on() {
            self.tick();
            let depth = self.tier.engine.borrow().pace.depth.max(1) as usize;
            while flying.len() < depth {
                let Some(step) = self.next_step_of_tier() else { break };
                flying.push(self.run_step(step));
            }
            let wake = std::pin::pin!(self.tier.wake.notified());
            let look = async {
                match self.until_look() {
                    Some(rest) => self.runtime.sleep(rest).await,
                    None => std::future::pending().await,
                }
            };
            let look = std::pin::pin!(look);
            let news = std::pin::pin!(select(wake, look));
            let woken = if flying.is_empty() {
                matches!(news.await, Either::Left(_))
            } else {
                matches!(select(flying.next(), news).await, Either::Right((Either::Left(_), _)))
            };
            if woken {
                self.rouse();
            }
        }
        while flying.next().await.is_some() {}
    }

    /// How long until there is something to look at although nothing has happened; `None` where only news can bring it.
    fn until_look(&self) -> Option<Duration> {
        let (engine, now) = (self.tier.engine.borrow(), self.runtime.now());
        let until = |time: Duration| time.saturating_sub(now);
        let decides = engine.setup.as_ref().filter(|_| !self.tier.rests.get());
        let decides = decides.map(|setup| until(engine.begun + setup.interval));
        let paced = Some(until(engine.not_before)).filter(|paced| !paced.is_zero()).unwrap_or(LOOK);
        let waits = (!engine.waiting.is_empty()).then_some(paced);
        // What has rested waits for a hand that is free, and that is news.
        let rested = engine.resting.values().map(|rested| until(*rested)).filter(|rest| !rest.is_zero());
        let rested = rested.min().unwrap_or(LEAVING);
        let paced = Some(until(engine.not_before)).filter(|paced| !paced.is_zero()).unwrap_or(LEAVING);
        let leaves = (!self.tier.leaving.borrow().is_empty()).then_some(rested.min(LEAVING).min(paced));
        [decides, waits, leaves].into_iter().flatten().min()
    }

    fn next_step_of_tier(&self) -> Option<Step> {
        self.send_down_unwanted();
        let now = self.runtime.now();
        let mut engine = self.tier.engine.borrow_mut();
        engine.resting.retain(|_, until| *until > now);
        let waits = engine.not_before > now || engine.pace.bytes_per_s == 0;
        let down = self.tier.leaving.borrow().iter().find_map(|key| {
            let copy = self.tier.copy(*key)?;
            let rests = engine.flying.contains(key) || engine.resting.contains_key(key);
            // What is only dropped writes nothing.
            let goes = !waits || copy.is_clean() || !self.is_paced(&copy);
            (!rests && goes && copy.can_go_on()).then_some(copy)
        });
        if let Some(copy) = down {
            engine.flying.insert(copy.key());
            return Some(Step::Down(copy));
        }
        if waits {
            return None;
        }
        while let Some(mut waiting) = engine.waiting.pop_front() {
            let step = self.next_of(&mut waiting, &mut engine);
            if waiting.left.is_empty() {
                engine.finish(&waiting, now);
            } else {
                engine.waiting.push_front(waiting);
            }
            if let Some(Step::Up(volume, index, _)) = &step {
                engine.flying.insert((volume.id, *index));
            }
            if step.is_some() {
                return step;
            }
        }
        None
    }

    /// The next extent of a move; extents that go down are sent, and are found among those that leave.
    fn next_of(&self, waiting: &mut Waiting, engine: &mut super::engine::Engine) -> Option<Step> {
        let Some(volume) = self.tables.borrow().volumes.get(&waiting.decided.volume).cloned() else {
            waiting.left = 0..0;
            return None;
        };
        // What is on its way to another controller takes nothing along to there: its new owner decides anew.
        if waiting.decided.to == Tier::Fast && volume.kept_cold.get() > 0 {
            waiting.left = 0..0;
            return None;
        }
        let next = |left: &std::ops::Range<u32>| volume.next_mapped(left.start).filter(|index| *index < left.end);
        while let Some(index) = next(&waiting.left) {
            waiting.left.start = index + 1;
            let Some(extent) = volume.extent(index) else { continue };
            let key = (volume.id, index);
            let now = self.runtime.now();
            match (waiting.decided.to, extent.fast()) {
                // It would gain nothing.
                (Tier::Fast, None) if self.is_home_fast(&extent) => {}
                // Where there is one already that was cut short, that goes on.
                (Tier::Fast, copy)
                    if !engine.flying.contains(&key)
                        && copy.as_ref().is_none_or(|copy| !copy.is_filled() && !copy.is_leaving()) =>
                {
                    waiting.begun = true;
                    engine.begins(waiting.number);
                    return Some(Step::Up(volume, index, waiting.number));
                }
                // It was on its way down: it turns around.
                (Tier::Fast, Some(copy)) if copy.is_leaving() && self.is_wanted(&copy) => {
                    self.stay_up(&copy);
                    engine.left_out(key, now);
                    waiting.begun = true;
                    engine.begins(waiting.number);
                    engine.ends(waiting.number, true, now);
                }
                (Tier::Slow, Some(copy)) if !copy.is_leaving() => {
                    waiting.begun = true;
                    engine.left_out(key, now);
                    engine.begins(waiting.number);
                    engine.down_by.insert(key, waiting.number);
                    if !waiting.decided.drop_clean && self.is_redundant(&copy) {
                        self.change_copy(&copy, Bits::take_all_for_stale);
                    }
                    self.send_down(&copy);
                }
                _ => {}
            }
        }
        waiting.left.start = waiting.left.end;
        self.tier.wake.notify_one();
        None
    }

    /// Copies with a disk that fails or leaves go down, whatever the policy thinks.
    fn send_down_unwanted(&self) {
        let unwanted = self.unwanted_fast_disks();
        if self.tier.seen_unwanted.borrow().as_ref() == Some(&unwanted) {
            return;
        }
        let lies_there = |copy: &FastCopy| copy.places.iter().any(|place| unwanted.contains(&place.device));
        for copy in self.tier.copies().iter().filter(|copy| !copy.is_leaving() && lies_there(copy)) {
            self.send_down(copy);
        }
        self.tier.seen_unwanted.replace(Some(unwanted));
    }

    /// True for a copy that goes down because the policy says so: its disks stay, and so does its volume.
    fn is_paced(&self, copy: &FastCopy) -> bool {
        let volumes = &self.tables.borrow().volumes;
        self.is_wanted(copy) && volumes.get(&copy.owner.volume).is_some_and(|volume| volume.kept_cold.get() == 0)
    }

    /// Regions of which something has still to be written home because the policy said so.
    pub fn going_down(&self) -> u32 {
        let leaving = self.tier.leaving.borrow();
        let copies = leaving.iter().filter_map(|key| self.tier.copy(*key));
        let going = copies.filter(|copy| !copy.is_clean() && copy.can_go_on() && self.is_paced(copy));
        let of = self.region_extents();
        let mut regions: Vec<_> = going.map(|copy| (copy.owner.volume, copy.owner.index / of)).collect();
        // They come in order.
        regions.dedup();
        regions.len() as u32
    }

    async fn run_step(&self, step: Step) {
        match step {
            Step::Up(volume, index, number) => {
                let (key, begun) = ((volume.id, index), self.runtime.now());
                let done = self.step_up(&volume, index).await;
                let took = self.runtime.now().saturating_sub(begun);
                let mut engine = self.tier.engine.borrow_mut();
                engine.flying.remove(&key);
                match done {
                    Ok(bytes) => {
                        if bytes > 0 {
                            Measured::note(&mut engine.measured.up, took);
                        }
                        engine.charge(bytes, begun);
                        engine.copied(number, bytes);
                        engine.ends(number, true, self.runtime.now());
                    }
                    Err(error) => engine.refuse(number, index, &error, self.runtime.now()),
                }
            }
            Step::Down(copy) => self.step_down(&copy).await,
        }
        self.tier.wake.notify_one();
    }

    /// Brings an extent down, as far as it can now.
    async fn step_down(&self, copy: &Rc<FastCopy>) {
        let (begun, key) = (self.runtime.now(), copy.key());
        // Whoever else gives up the copy meanwhile is not to count it.
        let number = self.tier.engine.borrow_mut().down_by.remove(&key);
        let done = self.demote(copy).await;
        let now = self.runtime.now();
        let mut engine = self.tier.engine.borrow_mut();
        engine.flying.remove(&key);
        let dropped = done.as_ref().is_ok_and(|(_, dropped)| *dropped);
        if let Some(number) = number {
            engine.copied(number, done.as_ref().map_or(0, |(bytes, _)| *bytes));
            let goes_on = copy.is_leaving() && !dropped && self.extent_of(copy).is_some();
            if goes_on && !engine.down_by.contains_key(&key) {
                engine.down_by.insert(key, number);
            } else {
                engine.ends(number, dropped, now);
            }
        }
        match done {
            Ok((bytes, _)) => {
                if self.is_paced(copy) {
                    engine.charge(bytes, begun);
                }
                if bytes > 0 {
                    Measured::note(&mut engine.measured.down, now.saturating_sub(begun));
                } else if !dropped {
                    // What is left cannot be read, or waits for the write buffer.
                    engine.resting.insert(key, now + REFUSED);
                    self.checkpointer.notify_one();
                }
            }
            Err(error) => {
                let is_busy = error.kind() == Kind::Retry && self.stalled.borrow().is_none();
                let rest = if is_busy { BUSY } else { REFUSED };
                engine.resting.insert(key, now + rest);
            }
        }
    }

    /// Brings an extent up; bytes copied.
    async fn step_up(&self, volume: &Rc<VolumeState>, index: u32) -> Result<u64> {
        let Some(copy) = self.promote(volume, index, self.fast_width()).await? else { return Ok(0) };
        loop {
            match self.copy_up(&copy).await {
                Err(error) if error.kind() == Kind::Retry && !self.is_stopping() => self.runtime.sleep(BUSY).await,
                done => return done,
            }
        }
    }
}

impl FastCopy {
    /// True when something can be done to bring it down now, not only when a checkpoint has settled what was.
    fn can_go_on(&self) -> bool {
        let bits = self.bits();
        bits.stale.count() == 0 || !bits.stale.are_among(&bits.returned)
    }
}

impl super::engine::Engine {
    /// So many bytes are moved since then: for as long as the pace allows for them no other move begins.
    fn charge(&mut self, bytes: u64, since: Duration) {
        if self.pace.bytes_per_s > 0 {
            let takes = Duration::from_secs_f64(bytes as f64 / self.pace.bytes_per_s as f64);
            self.not_before = self.not_before.max(since) + takes;
        }
    }

    /// From now on moves have this pace, and what was charged at a slower one is paid off at this one.
    pub(super) fn take_pace(&mut self, pace: Pace, now: Duration) {
        let (before, after) = (self.pace.bytes_per_s, pace.bytes_per_s);
        if before > 0 && after > before {
            let left = self.not_before.saturating_sub(now);
            self.not_before = now + left.mul_f64(before as f64 / after as f64);
        }
        self.pace = pace;
    }

    /// An extent of a move is on its way.
    fn begins(&mut self, number: u64) {
        if let Some(remembered) = self.remembered(number) {
            remembered.under_way += 1;
        }
    }

    /// An extent of a move is no longer on its way: it has arrived, or will not.
    fn ends(&mut self, number: u64, arrived: bool, now: Duration) {
        if let Some(remembered) = self.remembered(number) {
            remembered.under_way -= 1;
            remembered.extents += u32::from(arrived);
            remembered.settle(now);
        }
    }

    /// Bytes of a move have been copied.
    fn copied(&mut self, number: u64, bytes: u64) {
        if let Some(remembered) = self.remembered(number) {
            remembered.bytes += bytes;
        }
    }

    /// A copy does not go down any more by the move that said so: it is gone, or turns around.
    pub(super) fn left_out(&mut self, key: Key, now: Duration) {
        if let Some(number) = self.down_by.remove(&key) {
            self.ends(number, false, now);
        }
    }

    /// Nothing more of some moves begins.
    pub(super) fn give_up(&mut self, which: impl Fn(&Move) -> bool, why: &str, now: Duration) {
        for remembered in self.moves.iter_mut().filter(|remembered| which(&remembered.decided)) {
            // What finds no room does not wait for it.
            remembered.refused = REFUSALS;
        }
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let (gone, stay): (VecDeque<_>, _) = waiting.partition(|waiting| which(&waiting.decided));
        self.waiting = stay;
        let (begun, not_begun): (Vec<_>, Vec<_>) = gone.into_iter().partition(|waiting| waiting.begun);
        let not_begun: BTreeSet<_> = not_begun.into_iter().map(|waiting| waiting.number).collect();
        self.moves.retain(|remembered| !not_begun.contains(&remembered.number));
        for waiting in begun {
            if let Some(remembered) = self.remembered(waiting.number) {
                remembered.failed = Some(why.to_owned());
            }
            self.finish(&waiting, now);
        }
    }

    /// Nothing is left to begin of a move. One that had nothing to do at all is forgotten.
    fn finish(&mut self, waiting: &Waiting, now: Duration) {
        if !waiting.begun {
            self.moves.retain(|remembered| remembered.number != waiting.number);
        } else if let Some(remembered) = self.remembered(waiting.number) {
            remembered.all_begun = true;
            remembered.settle(now);
        }
    }

    /// An extent could not be brought up: where the tier is full, the move waits; else the extent is left out.
    fn refuse(&mut self, number: u64, index: u32, error: &kura_block::Error, now: Duration) {
        tracing::debug!(number, index, %error, "an extent was not brought up");
        let full = error.kind() == Kind::Full;
        // Of those that were under way together the first one tells.
        let counts = full && now >= self.refused_until;
        let Some(remembered) = self.remembered(number) else { return };
        remembered.under_way -= 1;
        remembered.refused = remembered.refused.saturating_add(counts.into());
        let again = (full && remembered.refused < REFUSALS).then(|| remembered.decided.clone());
        if again.is_some() {
            remembered.all_begun = false;
        } else {
            remembered.failed = Some(error.to_string());
            remembered.settle(now);
        }
        let waits = self.waiting.iter_mut().find(|waiting| waiting.number == number);
        match (again, waits) {
            (Some(_), Some(waiting)) => {
                waiting.left = waiting.left.start.min(index)..waiting.left.end.max(index + 1);
                self.wait_for_room(now);
            }
            // What makes room may come behind it.
            (Some(decided), None) => {
                self.waiting.push_back(Waiting { number, decided, left: index..index + 1, begun: true });
                self.wait_for_room(now);
            }
            (None, Some(waiting)) if full => waiting.left.start = waiting.left.end,
            (None, _) => {}
        }
    }

    /// The tier is full: no other move begins for a while.
    fn wait_for_room(&mut self, now: Duration) {
        self.refused_until = now + REFUSED;
        self.not_before = self.not_before.max(self.refused_until);
    }
}

impl TierMove {
    /// It is done when nothing is left to begin, and nothing on its way.
    fn settle(&mut self, now: Duration) {
        if self.all_begun && self.under_way == 0 {
            self.done.get_or_insert(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine::Engine;
    use super::*;

    #[test]
    fn what_was_charged_at_a_slow_pace_is_paid_off_at_a_faster_one() {
        let at = Duration::from_secs;
        let pace = |bytes_per_s| Pace { bytes_per_s, depth: 1 };
        let mut engine = Engine::default();
        engine.take_pace(pace(1 << 10), at(0));
        engine.charge(4 << 20, at(0));
        assert_eq!(engine.not_before, at(4096));
        engine.take_pace(pace(256 << 10), at(0));
        assert_eq!(engine.not_before, at(16));
        // A slower one makes nobody wait for what was moved before.
        engine.take_pace(pace(1), at(8));
        assert_eq!(engine.not_before, at(16));
    }

    /// An engine with a move up of so many extents, all of them on their way.
    fn moving(extents: u32) -> Engine {
        let mut engine = Engine::default();
        let (regions, reason) = (0..extents, kura_tier::Reason::Pinned);
        engine.take(Move { volume: 7, regions, to: Tier::Fast, drop_clean: false, reason }, 1, Duration::ZERO);
        let mut waiting = engine.waiting.pop_front().unwrap();
        waiting.begun = true;
        waiting.left = extents..extents;
        (0..extents).for_each(|_| engine.begins(1));
        engine.finish(&waiting, Duration::ZERO);
        engine
    }

    #[test]
    fn a_move_is_done_with_its_last_extent() {
        let at = Duration::from_secs;
        let mut engine = moving(2);
        engine.copied(1, 4096);
        engine.ends(1, true, at(1));
        assert_eq!((engine.moves[0].done, engine.moves[0].bytes), (None, 4096));
        // The other one goes down meanwhile, and is deleted.
        engine.down_by.insert((7, 1), 1);
        engine.left_out((7, 1), at(2));
        assert_eq!((engine.moves[0].done, engine.moves[0].extents), (Some(at(2)), 1));
        assert!(engine.down_by.is_empty());
    }

    #[test]
    fn what_finds_no_room_waits_for_it_until_nobody_wants_it() {
        let (at, full) = (Duration::from_secs, kura_block::Error::full("full"));
        let mut engine = moving(1);
        for time in 1..u64::from(REFUSALS) {
            engine.refuse(1, 0, &full, at(time));
            assert_eq!(engine.not_before, at(time) + REFUSED);
            let waiting = engine.waiting.pop_front().unwrap();
            assert_eq!((waiting.left, engine.moves[0].done, &engine.moves[0].failed), (0..1, None, &None));
            engine.begins(1);
        }
        // It waits for longer where the pace has it wait, too, which is no reason not to count.
        engine.not_before = at(99);
        engine.refuse(1, 0, &full, at(9));
        assert!(engine.waiting.is_empty() && engine.moves[0].failed.is_some());
        let mut engine = moving(1);
        engine.give_up(|decided| decided.volume == 7, "why", at(1));
        engine.refuse(1, 0, &full, at(2));
        assert!(engine.waiting.is_empty() && engine.moves[0].done == Some(at(2)));
    }
}
