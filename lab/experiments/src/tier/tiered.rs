//! The tiering driver: the paper's tiering table, dispatcher and temporary buffer over the modelled devices, with any
//! policy above it.
//!
//! ```text
//!   request ─> dispatcher ─┬─ region on the fast tier ─────────────> solid-state device
//!                          ├─ region on its way: a write, or a read of what was written since ─> temporary buffer
//!                          └─ else ────────────────────────────────> disks
//!   counts ─> policy, once an interval ─> mover: one region after the other ─> the buffer's content to where the region is
//! ```

use super::devices::{Devices, Way, Work};
use super::measure::{Served, covered};
use super::ranges::Ranges;
use futures::StreamExt;
use kura_block::{Result, Runtime};
use kura_sim::SimRuntime;
use kura_tier::{
    Costs, Decision, Facts, Heat, Pace, Placed, Policy, Settings, SlowLoad, Space, Tier, VolumeFacts, Wants,
};
use kura_trace::{Op, Request};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

/// What is written to the temporary buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Buffer {
    /// Writes to the region that moves, into memory, as the paper has it.
    Moving,
    /// Besides, writes to regions on the slow tier, as far as it has room: on the solid-state device.
    Writes,
}

/// A tiering driver.
#[derive(Clone, Debug, Serialize)]
pub struct TieredSpec {
    /// Its policy.
    pub settings: Settings,
    /// Bytes of the fast tier.
    pub fast_bytes: u64,
    /// The temporary buffer.
    pub buffer: Buffer,
    /// Bytes of the temporary buffer.
    pub buffer_bytes: u64,
    /// What goes down are the sectors written since, not the region.
    pub only_dirty: bool,
    /// The paper's "without moves to HDD": what goes down is not copied.
    pub never_down: bool,
}

/// What an operation of memory takes.
const MEMORY: Duration = Duration::from_micros(10);
/// Bytes that a move reads at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// The paper's bound for writing the buffer's content where it belongs: 500 a second.
const SYNC_GAP: Duration = Duration::from_millis(2);
/// The same while there is room: what comes in order of address waits for its neighbours.
const IDLE_GAP: Duration = Duration::from_millis(50);
/// Mean seek and half a turn of the disks, and their bytes a millisecond: what costs are estimated by.
const POSITION_MS: f64 = 7.6;
const BYTES_PER_MS: f64 = 137_000.0;
const FAST_MS: f64 = 0.12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Coming,
    There,
    Leaving,
}

#[derive(Clone, Copy, Debug)]
struct Errand {
    region: u32,
    to: Tier,
    drop_clean: bool,
}

/// The region that moves.
#[derive(Clone, Copy, Debug)]
struct Moving {
    region: u32,
    to: Tier,
    /// Once it has been copied: the buffer's content up to here is where it belongs.
    synced_to: Option<u64>,
}

#[derive(Default)]
struct State {
    table: BTreeMap<u32, Phase>,
    moving: Option<Moving>,
    /// Written since they came up.
    dirty: Ranges,
    /// By region, whether something of it is dirty: what is asked of all of them in each interval.
    has_dirty: Vec<bool>,
    /// In the temporary buffer.
    buffered: Ranges,
    /// I/O of this interval by region, and which have some.
    counts: Vec<(u32, u32)>,
    touched: Vec<u32>,
    queue: VecDeque<Errand>,
    pace: Pace,
    before: Work,
    up_bytes: u64,
    down_bytes: u64,
}

/// The driver.
pub struct Tiered {
    spec: TieredSpec,
    region_bytes: u64,
    regions: u32,
    volume_bytes: u64,
    devices: Rc<Devices>,
    runtime: Rc<SimRuntime>,
    policy: RefCell<Box<dyn Policy>>,
    state: RefCell<State>,
    mover: Cell<Option<Waker>>,
}

impl Tiered {
    /// A driver that moves as its policy says from now on, with nothing on the fast tier at first; or one that is trained on
    /// requests before, has there what its policy chooses of them, and moves nothing.
    pub fn start(
        spec: &TieredSpec,
        volume_bytes: u64,
        devices: &Rc<Devices>,
        runtime: &Rc<SimRuntime>,
        trained_on: Option<&[Request]>,
    ) -> Result<Rc<Self>> {
        let region_bytes = spec.settings.region_bytes();
        let regions = volume_bytes.div_ceil(region_bytes) as u32;
        let driver = Rc::new(Self {
            spec: spec.clone(),
            region_bytes,
            regions,
            volume_bytes,
            devices: Rc::clone(devices),
            runtime: Rc::clone(runtime),
            policy: RefCell::new(spec.settings.policy()?),
            state: RefCell::new(State {
                counts: vec![(0, 0); regions as usize],
                has_dirty: vec![false; regions as usize],
                ..State::default()
            }),
            mover: Cell::new(None),
        });
        match trained_on {
            Some(before) => driver.place(before),
            None => {
                runtime.spawn(Box::pin(Rc::clone(&driver).decide()));
                runtime.spawn(Box::pin(Rc::clone(&driver).move_on()));
            }
        }
        if spec.buffer == Buffer::Writes {
            runtime.spawn(Box::pin(Rc::clone(&driver).write_back()));
        }
        Ok(driver)
    }

    /// Puts on the fast tier what the policy chooses from what was before, as the paper does for static tiering: by
    /// writing the table.
    fn place(&self, before: &[Request]) {
        let Some(last) = before.last() else { return };
        for request in before {
            self.count(request);
        }
        // A policy is first asked after a second.
        let decision = self.ask(last.at_ns.max(1_000_000_000));
        let ups = decision.moves.into_iter().filter(|decided| decided.to == Tier::Fast);
        self.state.borrow_mut().table.extend(ups.flat_map(|up| up.regions).map(|region| (region, Phase::There)));
    }

    /// Bytes on the fast tier, and bytes moved up and down.
    pub fn moved(&self) -> (u64, u64, u64) {
        let state = self.state.borrow();
        let there = state.table.values().filter(|phase| **phase != Phase::Coming).count();
        (there as u64 * self.region_bytes, state.up_bytes, state.down_bytes)
    }

    /// Regions on the fast tier, and the one on its way there.
    pub fn taken_up(&self) -> u64 {
        let state = self.state.borrow();
        let is_coming = state.moving.is_some_and(|moving| moving.to == Tier::Fast);
        let there = state.table.values().filter(|phase| **phase != Phase::Coming).count() as u64;
        there + u64::from(is_coming)
    }

    fn pieces(&self, request: &Request) -> impl Iterator<Item = (u32, Range<u64>)> + use<> {
        let (all, region_bytes) = (covered(request), self.region_bytes);
        let regions = all.start / region_bytes..(all.end - 1) / region_bytes + 1;
        regions.map(move |region| {
            let own = region * region_bytes..(region + 1) * region_bytes;
            (region as u32, own.start.max(all.start)..own.end.min(all.end))
        })
    }

    fn count(&self, request: &Request) {
        let mut state = self.state.borrow_mut();
        for (region, _) in self.pieces(request) {
            let (reads, writes) = &mut state.counts[region as usize];
            let is_first = *reads + *writes == 0;
            *(if request.op == Op::Read { reads } else { writes }) += 1;
            if is_first {
                state.touched.push(region);
            }
        }
    }

    /// The dispatcher.
    pub async fn serve(&self, request: Request) -> Served {
        self.count(&request);
        let mut served = Served { fast: true, buffer: true, slow: false, dirty_hit: false };
        for (region, range) in self.pieces(&request) {
            let to = match request.op {
                Op::Write => self.write_to(region, &range),
                _ => self.read_from(region, &range),
            };
            served.fast &= to == To::Fast;
            served.buffer &= to == To::Buffer;
            served.slow |= to == To::Slow;
            let way = if request.op == Op::Write { Way::Write } else { Way::Read };
            match to {
                To::Slow => self.devices.slow(way, range).await,
                To::Buffer if self.spec.buffer == Buffer::Moving => self.runtime.sleep(MEMORY).await,
                To::Fast | To::Buffer => self.devices.fast(way, range).await,
            }
        }
        served
    }

    fn write_to(&self, region: u32, range: &Range<u64>) -> To {
        let mut state = self.state.borrow_mut();
        let phase = state.table.get(&region).copied();
        let home = match state.moving.filter(|moving| moving.region == region) {
            Some(Moving { synced_to: Some(place), to, .. }) if range.end <= place => to,
            Some(_) => {
                state.buffered.insert(range.clone());
                return To::Buffer;
            }
            None if matches!(phase, Some(Phase::There | Phase::Leaving)) => Tier::Fast,
            None => Tier::Slow,
        };
        let room = state.buffered.bytes() + (range.end - range.start) <= self.spec.buffer_bytes;
        if home == Tier::Slow && self.spec.buffer == Buffer::Writes && room {
            state.buffered.insert(range.clone());
            return To::Buffer;
        }
        state.buffered.remove(range.clone());
        if home == Tier::Slow {
            return To::Slow;
        }
        state.dirty.insert(range.clone());
        state.has_dirty[region as usize] = true;
        To::Fast
    }

    fn read_from(&self, region: u32, range: &Range<u64>) -> To {
        let state = self.state.borrow();
        if state.buffered.covers(range) {
            return To::Buffer;
        }
        let moving = state.moving.filter(|moving| moving.region == region);
        let on_fast = match moving {
            Some(moving) => (moving.to == Tier::Fast) == moving.synced_to.is_some(),
            None => matches!(state.table.get(&region), Some(Phase::There | Phase::Leaving)),
        };
        if on_fast { To::Fast } else { To::Slow }
    }

    /// The analysis, once an interval, and the instructions to the mover.
    async fn decide(self: Rc<Self>) {
        let interval_ns = self.spec.settings.interval_ns();
        loop {
            self.runtime.sleep(Duration::from_nanos(interval_ns)).await;
            let Decision { moves, pace } = self.ask(interval_ns);
            let mut state = self.state.borrow_mut();
            state.pace = pace;
            for decided in moves {
                for region in decided.regions {
                    let phase = state.table.get(&region).copied();
                    match (decided.to, phase) {
                        (Tier::Fast, None) => state.table.insert(region, Phase::Coming),
                        (Tier::Slow, Some(Phase::There)) => state.table.insert(region, Phase::Leaving),
                        _ => continue,
                    };
                    state.queue.push_back(Errand { region, to: decided.to, drop_clean: decided.drop_clean });
                }
            }
            if let Some(waker) = self.mover.take() {
                waker.wake();
            }
        }
    }

    /// Asks the policy about the interval that ends now.
    fn ask(&self, interval_ns: u64) -> Decision {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        state.touched.sort_unstable();
        let heat: Vec<Heat> = state
            .touched
            .drain(..)
            .map(|region| {
                let (reads, writes) = std::mem::take(&mut state.counts[region as usize]);
                Heat { region, reads, writes }
            })
            .collect();
        let there = state.table.iter().filter(|(_, phase)| **phase != Phase::Leaving);
        let is_dirty = |region: u32| state.has_dirty[region as usize];
        let placed: Vec<Placed> =
            there.map(|(region, _)| Placed { region: *region, dirty: is_dirty(*region) }).collect();
        let total = (self.spec.fast_bytes / self.region_bytes) as u32;
        let work = self.devices.work();
        let before = std::mem::replace(&mut state.before, work);
        let part = |ns: u64| ns as f64 / interval_ns as f64;
        let queues = work.present_ns.iter().zip(before.present_ns).map(|(now, before)| part(now - before));
        let all = 0..self.regions;
        let volume = VolumeFacts {
            volume: 0,
            regions: self.regions,
            mapped: std::slice::from_ref(&all),
            heat: &heat,
            placed: &placed,
            wants: Wants::default(),
        };
        let touching = self.devices.disks().min(self.region_bytes.div_ceil(64 << 10)) as f64;
        let move_ms = touching * POSITION_MS + self.region_bytes as f64 / BYTES_PER_MS;
        let facts = Facts {
            now_ns: self.runtime.now().as_nanos() as u64,
            interval_ns,
            region_bytes: self.region_bytes,
            volumes: &[volume],
            fast: Space { total, free: total.saturating_sub(state.table.len() as u32) },
            waiting: state.queue.len() as u32,
            slow: SlowLoad {
                utilisation: part(work.busy_ns - before.busy_ns) / self.devices.disks() as f64,
                queue: queues.fold(0.0, f64::max),
            },
            costs: Costs { up_ms: move_ms, down_ms: move_ms, slow_ms: POSITION_MS, fast_ms: FAST_MS },
        };
        self.policy.borrow_mut().decide(&facts)
    }

    fn bytes_of(&self, region: u32) -> Range<u64> {
        let start = u64::from(region) * self.region_bytes;
        start..(start + self.region_bytes).min(self.volume_bytes)
    }

    /// Does one errand after the other.
    async fn move_on(self: Rc<Self>) {
        loop {
            let errand = poll_fn(|context| match self.state.borrow_mut().queue.pop_front() {
                Some(errand) => Poll::Ready(errand),
                None => {
                    self.mover.set(Some(context.waker().clone()));
                    Poll::Pending
                }
            });
            let errand = errand.await;
            match errand.to {
                Tier::Fast => self.bring(errand.region).await,
                Tier::Slow => self.send(errand).await,
            }
        }
    }

    async fn bring(&self, region: u32) {
        let range = self.bytes_of(region);
        {
            let mut state = self.state.borrow_mut();
            let there = state.table.values().filter(|phase| **phase != Phase::Coming).count() as u64;
            if there >= self.spec.fast_bytes / self.region_bytes {
                state.table.remove(&region);
                return;
            }
            state.moving = Some(Moving { region, to: Tier::Fast, synced_to: None });
            state.up_bytes += range.end - range.start;
        }
        self.copy(Tier::Fast, range).await;
        self.arrive(region, Tier::Fast).await;
    }

    async fn send(&self, errand: Errand) {
        let range = self.bytes_of(errand.region);
        let is_clean = self.state.borrow().dirty.first_in(range.clone()).is_none();
        self.state.borrow_mut().moving = Some(Moving { region: errand.region, to: Tier::Slow, synced_to: None });
        if !(self.spec.never_down || is_clean && errand.drop_clean) {
            for part in self.parts_down(range.clone()) {
                self.state.borrow_mut().down_bytes += part.end - part.start;
                self.copy(Tier::Slow, part).await;
            }
        }
        {
            let mut state = self.state.borrow_mut();
            state.dirty.remove(range);
            state.has_dirty[errand.region as usize] = false;
        }
        self.arrive(errand.region, Tier::Slow).await;
    }

    /// What of a region is copied down: all of it, or what is dirty, with what lies between where that is little.
    fn parts_down(&self, range: Range<u64>) -> Vec<Range<u64>> {
        const GAP_BYTES: u64 = 256 << 10;
        if !self.spec.only_dirty {
            return vec![range];
        }
        let state = self.state.borrow();
        let mut parts: Vec<Range<u64>> = Vec::new();
        let mut from = range.start;
        while let Some(dirty) = state.dirty.first_in(from..range.end) {
            from = dirty.end;
            match parts.last_mut() {
                Some(last) if dirty.start - last.end <= GAP_BYTES => last.end = dirty.end,
                _ => parts.push(dirty),
            }
            if from == range.end {
                break;
            }
        }
        parts
    }

    /// Copies a range, at the policy's pace.
    async fn copy(&self, to: Tier, range: Range<u64>) {
        let depth = self.state.borrow().pace.depth.max(1) as usize;
        let begun = self.runtime.now();
        let chunks = range.clone().step_by(CHUNK_BYTES as usize);
        let chunks = chunks.map(|start| start..(start + CHUNK_BYTES).min(range.end));
        let one = |chunk: Range<u64>| async {
            let allowed = self.state.borrow().pace.bytes_per_s.max(1);
            let due = begun + Duration::from_secs_f64((chunk.start - range.start) as f64 / allowed as f64);
            let early = due.saturating_sub(self.runtime.now());
            if !early.is_zero() {
                self.runtime.sleep(early).await;
            }
            match to {
                Tier::Fast => {
                    self.devices.slow(Way::Read, chunk.clone()).await;
                    self.devices.fast(Way::Write, chunk).await;
                }
                Tier::Slow => {
                    self.devices.fast(Way::Read, chunk.clone()).await;
                    self.devices.slow(Way::Write, chunk).await;
                }
            }
        };
        futures::stream::iter(chunks).map(one).buffer_unordered(depth).for_each(|()| async {}).await;
    }

    /// A region has been copied: what the buffer holds of it goes where it is now, in order of address. Where the
    /// buffer takes other writes too, that is no hurry.
    async fn arrive(&self, region: u32, to: Tier) {
        let range = self.bytes_of(region);
        if self.spec.buffer == Buffer::Moving {
            self.set_synced(range.start);
            loop {
                let from = self.synced_to(range.start);
                let found = self.state.borrow().buffered.first_in(from..range.end).filter(|_| from < range.end);
                let Some(found) = found else { break };
                let part = found.start..found.end.min(found.start + CHUNK_BYTES);
                self.put(to, part.clone()).await;
                self.set_synced(part.end);
                self.runtime.sleep(SYNC_GAP).await;
            }
        }
        let mut state = self.state.borrow_mut();
        state.moving = None;
        match to {
            Tier::Fast => state.table.insert(region, Phase::There),
            Tier::Slow => state.table.remove(&region),
        };
    }

    fn set_synced(&self, to: u64) {
        if let Some(moving) = &mut self.state.borrow_mut().moving {
            moving.synced_to = Some(to);
        }
    }

    fn synced_to(&self, or: u64) -> u64 {
        self.state.borrow().moving.and_then(|moving| moving.synced_to).unwrap_or(or)
    }

    /// Writes a part of the buffer's content where it belongs.
    async fn put(&self, to: Tier, part: Range<u64>) {
        match to {
            Tier::Fast => self.devices.fast(Way::Write, part.clone()).await,
            Tier::Slow => self.devices.slow(Way::Write, part.clone()).await,
        }
        let mut state = self.state.borrow_mut();
        state.buffered.remove(part.clone());
        if to == Tier::Fast {
            state.has_dirty[(part.start / self.region_bytes) as usize] = true;
            state.dirty.insert(part);
        }
    }

    /// Empties a buffer that takes all writes: round and round in order of address, at the paper's pace when it fills,
    /// slower while there is room.
    async fn write_back(self: Rc<Self>) {
        let mut at = 0;
        loop {
            let (gap, part) = {
                let state = self.state.borrow();
                let moving: BTreeSet<u32> = state.moving.iter().map(|moving| moving.region).collect();
                let next = state.buffered.first_in(at..u64::MAX).or_else(|| state.buffered.first_in(0..u64::MAX));
                let full = state.buffered.bytes() > self.spec.buffer_bytes / 2;
                let part = next.map(|part| {
                    let region = (part.start / self.region_bytes) as u32;
                    let end = part.end.min(part.start + CHUNK_BYTES).min(self.bytes_of(region).end);
                    (region, part.start..end)
                });
                (if full { SYNC_GAP } else { IDLE_GAP }, part.filter(|(region, _)| !moving.contains(region)))
            };
            if let Some((region, part)) = part {
                let there = matches!(self.state.borrow().table.get(&region), Some(Phase::There));
                at = part.end;
                self.put(if there { Tier::Fast } else { Tier::Slow }, part).await;
            }
            self.runtime.sleep(gap).await;
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Fast,
    Slow,
    Buffer,
}
