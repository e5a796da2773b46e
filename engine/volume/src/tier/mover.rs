//! The mover: carries out what was decided, an extent at a time, and brings down what lies on a disk that fails or leaves.

use super::engine::{Engine, Measured};
use super::{Bits, FastCopy, Inner, Key, TierMove};
use crate::tables::VolumeState;
use futures::StreamExt;
use futures::future::{Either, select};
use futures::stream::FuturesUnordered;
use kura_block::{Kind, Result};
use kura_tier::{Pace, Tier};
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
            self.tick().await;
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
        let waits = engine.line.waiting().next().map(|_| paced);
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
        while let Some(mut one) = engine.line.next() {
            let step = self.next_of(&mut one, &mut engine);
            engine.line.put_back(one, now);
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
    fn next_of(&self, one: &mut TierMove, engine: &mut Engine) -> Option<Step> {
        let volume = self.tables.borrow().volumes.get(&one.decided.volume).cloned();
        // What is on its way to another controller takes nothing along to there: its new owner decides anew.
        let volume = volume.filter(|volume| one.decided.to == Tier::Slow || volume.kept_cold.get() == 0);
        let next = |left: &std::ops::Range<u32>| {
            let index = volume.as_ref()?.next_mapped(left.start).filter(|index| *index < left.end)?;
            Some((volume.as_ref()?, index))
        };
        while let Some((volume, index)) = next(&one.left) {
            one.left.start = index + 1;
            let Some(extent) = volume.extent(index) else { continue };
            let key = (volume.id, index);
            let now = self.runtime.now();
            match (one.decided.to, extent.fast()) {
                // It would gain nothing.
                (Tier::Fast, None) if self.is_home_fast(&extent) => {}
                // Where there is one already that was cut short, that goes on.
                (Tier::Fast, copy)
                    if !engine.flying.contains(&key)
                        && copy.as_ref().is_none_or(|copy| !copy.is_filled() && !copy.is_leaving()) =>
                {
                    one.begin();
                    return Some(Step::Up(Rc::clone(volume), index, one.number));
                }
                // It was on its way down: it turns around.
                (Tier::Fast, Some(copy)) if copy.is_leaving() && self.is_wanted(&copy) => {
                    self.stay_up(&copy);
                    engine.left_out(key, now);
                    one.begin();
                    one.end(true);
                }
                (Tier::Slow, Some(copy)) if !copy.is_leaving() => {
                    engine.left_out(key, now);
                    one.begin();
                    engine.down_by.insert(key, one.number);
                    if !one.decided.drop_clean && self.is_redundant(&copy) {
                        self.change_copy(&copy, Bits::take_all_for_stale);
                    }
                    self.send_down(&copy);
                }
                _ => {}
            }
        }
        one.left = 0..0;
        self.tier.wake.notify_one();
        None
    }

    /// Copies with a disk that fails or leaves go down, whatever the policy thinks; so do those on one disk once there is a second:
    /// what is written goes past them, and where they are missed they come again on two.
    fn send_down_unwanted(&self) {
        let decides = self.tier.engine.borrow().setup.is_some();
        let width = if decides { self.fast_width().min(self.fast_disks().len()) } else { 0 };
        let unwanted = (self.unwanted_fast_disks(), width);
        if self.tier.seen_unwanted.borrow().as_ref() == Some(&unwanted) {
            return;
        }
        self.tier.width.set(width);
        let lies_there = |copy: &FastCopy| copy.places.iter().any(|place| unwanted.0.contains(&place.device));
        let goes = |copy: &FastCopy| lies_there(copy) || copy.places.len() < width;
        for copy in self.tier.copies().iter().filter(|copy| !copy.is_leaving() && goes(copy)) {
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
                        engine.line.change(number, self.runtime.now(), |one| {
                            one.bytes += bytes;
                            one.end(true);
                        });
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
            let goes_on = copy.is_leaving() && !dropped && self.extent_of(copy).is_some();
            let goes_on = goes_on && !engine.down_by.contains_key(&key);
            engine.line.change(number, now, |one| {
                one.bytes += done.as_ref().map_or(0, |(bytes, _)| *bytes);
                if !goes_on {
                    one.end(dropped);
                }
            });
            if goes_on {
                engine.down_by.insert(key, number);
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

impl Engine {
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

    /// A copy does not go down any more by the move that said so: it is gone, or turns around.
    pub(super) fn left_out(&mut self, key: Key, now: Duration) {
        if let Some(number) = self.down_by.remove(&key) {
            self.line.change(number, now, |one| one.end(false));
        }
    }

    /// An extent could not be brought up; where the tier is full, no other move begins for a while.
    fn refuse(&mut self, number: u64, index: u32, error: &kura_block::Error, now: Duration) {
        tracing::debug!(number, index, %error, "an extent was not brought up");
        // Of those that were under way together the first one tells.
        let counts = now >= self.refused_until;
        if self.line.refuse(number, index, error, counts, now) {
            self.refused_until = now + REFUSED;
            self.not_before = self.not_before.max(self.refused_until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::REFUSALS;
    use super::*;
    use kura_tier::Move;

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

    /// An engine with a move up of an extent, which is on its way.
    fn moving() -> Engine {
        let mut engine = Engine::default();
        let reason = kura_tier::Reason::Pinned;
        engine.line.take(
            Move { volume: 7, regions: 0..1, to: Tier::Fast, drop_clean: false, reason },
            1,
            Duration::ZERO,
        );
        let mut one = engine.line.next().unwrap();
        one.begin();
        one.left = 0..0;
        engine.line.put_back(one, Duration::ZERO);
        engine
    }

    #[test]
    fn what_is_given_up_on_its_way_down_is_on_its_way_no_more() {
        let mut engine = moving();
        engine.down_by.insert((7, 0), 1);
        engine.left_out((7, 0), Duration::from_secs(2));
        assert!(engine.down_by.is_empty());
        let done = engine.line.all().next().unwrap();
        assert_eq!((done.done, done.extents), (Some(Duration::from_secs(2)), 0));
    }

    #[test]
    fn what_finds_no_room_holds_up_the_others() {
        let (at, full) = (Duration::from_secs, kura_block::Error::full("full"));
        let mut engine = moving();
        engine.refuse(1, 0, &full, at(1));
        assert_eq!(engine.not_before, at(1) + REFUSED);
        // It waits for longer where the pace has it wait, too, which is no reason not to count.
        engine.not_before = at(99);
        for time in 2..=REFUSALS.into() {
            let mut one = engine.line.next().unwrap();
            one.begin();
            one.left = 0..0;
            engine.line.put_back(one, at(time));
            engine.refuse(1, 0, &full, at(time));
        }
        assert_eq!((engine.not_before, engine.line.waiting().count()), (at(99), 0));
        assert!(engine.line.all().next().unwrap().failed.is_some());
    }
}
