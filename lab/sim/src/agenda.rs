//! What is going to happen, by time and then by the order in which it was entered.

use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Waker;

/// Something that happens at a moment of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// A sleep ends.
    Timer(usize),
    /// A device has served the operation in this slot.
    Device { disk: u32, slot: usize },
    /// A device's stall may be over.
    Wake { disk: u32 },
    /// A fault planned for this moment strikes.
    Fault { disk: u32, index: usize },
    /// The crash planned for this moment.
    Crash,
}

type Entry = Reverse<(u64, u64, Event)>;

struct Timer {
    sequence: u64,
    /// `None` until the sleep is polled.
    waker: Option<Waker>,
}

/// A sleep's place in the agenda.
#[derive(Clone, Copy)]
pub(crate) struct TimerKey {
    slot: usize,
    sequence: u64,
}

/// The heap of events. Timers can be taken back: their entries stay in the heap until they come up or are too many.
#[derive(Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Entry>,
    timers: Slab<Timer>,
    sequence: u64,
    cancelled: usize,
}

impl Agenda {
    pub(crate) fn enter(&mut self, at_ns: u64, event: Event) -> u64 {
        self.sequence += 1;
        self.heap.push(Reverse((at_ns, self.sequence, event)));
        self.sequence
    }

    pub(crate) fn sleep_until(&mut self, at_ns: u64) -> TimerKey {
        let slot = self.timers.vacant_key();
        let sequence = self.enter(at_ns, Event::Timer(slot));
        self.timers.insert(Timer { sequence, waker: None });
        TimerKey { slot, sequence }
    }

    /// True when the sleep is over; else `waker` is woken when it is.
    pub(crate) fn poll(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.timers.get_mut(key.slot).filter(|timer| timer.sequence == key.sequence) {
            None => true,
            Some(timer) => {
                match &mut timer.waker {
                    Some(known) => known.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                false
            }
        }
    }

    /// Takes a sleep back. Without effect when it is over.
    pub(crate) fn cancel(&mut self, key: TimerKey) {
        if self.timers.get(key.slot).is_some_and(|timer| timer.sequence == key.sequence) {
            self.timers.remove(key.slot);
            self.cancelled += 1;
            if self.cancelled > 64 + self.heap.len() / 2 {
                let timers = &self.timers;
                self.heap.retain(|Reverse((_, sequence, event))| is_live(timers, *sequence, *event));
                self.cancelled = 0;
            }
        }
    }

    /// The next event and its time; an ended sleep comes with its waker.
    pub(crate) fn next(&mut self) -> Option<(u64, Event, Option<Waker>)> {
        while let Some(Reverse((at_ns, sequence, event))) = self.heap.pop() {
            if !is_live(&self.timers, sequence, event) {
                self.cancelled -= 1;
                continue;
            }
            let waker = match event {
                Event::Timer(slot) => self.timers.remove(slot).waker,
                _ => None,
            };
            return Some((at_ns, event, waker));
        }
        None
    }

    /// A power cut: nobody sleeps, no device works; what is planned stays planned, and a stall goes on. Returns the wakers
    /// to be dropped outside.
    pub(crate) fn clear(&mut self) -> Vec<Waker> {
        self.heap.retain(|Reverse((_, _, event))| !matches!(event, Event::Timer(_) | Event::Device { .. }));
        self.cancelled = 0;
        std::mem::take(&mut self.timers).into_iter().filter_map(|(_, timer)| timer.waker).collect()
    }

    /// A new plan is set: nothing of the old one is to come.
    pub(crate) fn clear_plan(&mut self) {
        self.heap.retain(|Reverse((_, _, event))| !matches!(event, Event::Fault { .. } | Event::Crash));
    }
}

fn is_live(timers: &Slab<Timer>, sequence: u64, event: Event) -> bool {
    match event {
        Event::Timer(slot) => timers.get(slot).is_some_and(|timer| timer.sequence == sequence),
        _ => true,
    }
}
