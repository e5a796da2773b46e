//! The comparator: a block cache in the manner of `FlashCache`. Blocks of 4 KiB, write-back, sets of 512 blocks that lie
//! on end on the volume, the least recently used of a set leaves first.
//!
//! Its rules: a miss is read from the disks and written to the cache; a write goes to the cache whether or not the block
//! is there, with a write of metadata when a block becomes dirty; a set with more than a fifth dirty is cleaned, the
//! least recently used first, four writes at a time; where a set has no clean block to give, the
//! request goes to the disks. What it leaves out: cleaning of what is dirty for a quarter of an hour.

use super::devices::{Devices, Way};
use super::measure::{Served, covered};
use futures::future::join_all;
use kura_block::Runtime;
use kura_sim::SimRuntime;
use kura_trace::{Op, Request};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

const BLOCK_BYTES: u64 = 4096;
const WAYS: usize = 512;
/// The largest volume: its blocks have tags.
pub const VOLUME_BYTES_LIMIT: u64 = u32::MAX as u64 * BLOCK_BYTES;
/// Blocks of a set that may be dirty before it is cleaned: a fifth.
const DIRTY: usize = WAYS / 5;
/// Cleaning writes under way.
const CLEANING: usize = 4;

#[derive(Clone, Copy, Default)]
struct Slot {
    /// The block's number and one; 0: none.
    tag: u32,
    used: u64,
    dirty: bool,
}

struct State {
    /// Empty where nothing of a set was asked for.
    sets: Vec<Vec<Slot>>,
    /// Touches of blocks so far.
    clock: u64,
    /// Runs of neighbouring blocks that are to be written back.
    to_clean: VecDeque<Range<u64>>,
    cleaning: usize,
    cleaned_bytes: u64,
    /// Blocks that were read from the disks to be kept.
    filled_bytes: u64,
    /// Blocks that it has.
    held: u64,
}

/// The cache.
pub struct Cache {
    devices: Rc<Devices>,
    runtime: Rc<SimRuntime>,
    state: RefCell<State>,
}

/// What became of a block that is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Hit {
        dirty: bool,
    },
    Taken,
    /// No block of the set is clean.
    None,
}

impl State {
    fn set(&mut self, block: u64) -> &mut [Slot] {
        let set = (block / WAYS as u64 % self.sets.len() as u64) as usize;
        let slots = &mut self.sets[set];
        if slots.is_empty() {
            slots.resize(WAYS, Slot::default());
        }
        slots
    }

    /// Finds a block, or takes the place of the least recently used clean one.
    fn touch(&mut self, block: u64, write: bool) -> Found {
        self.clock += 1;
        let (clock, tag) = (self.clock, block as u32 + 1);
        let set = self.set(block);
        if let Some(slot) = set.iter_mut().find(|slot| slot.tag == tag) {
            let dirty = slot.dirty;
            (slot.used, slot.dirty) = (clock, dirty || write);
            return Found::Hit { dirty };
        }
        let Some(slot) = set.iter_mut().filter(|slot| !slot.dirty).min_by_key(|slot| slot.used) else {
            return Found::None;
        };
        let was_empty = slot.tag == 0;
        *slot = Slot { tag, used: clock, dirty: write };
        self.held += u64::from(was_empty);
        self.filled_bytes += if write { 0 } else { BLOCK_BYTES };
        Found::Taken
    }

    /// What is to be cleaned of a block's set: of its dirty blocks those above the bound, least recently used first, as
    /// runs of neighbours. They count as clean from now on.
    fn clean(&mut self, block: u64) {
        let set = self.set(block);
        let mut dirty: Vec<usize> = (0..set.len()).filter(|at| set[*at].dirty).collect();
        if dirty.len() <= DIRTY {
            return;
        }
        dirty.sort_unstable_by_key(|at| set[*at].used);
        dirty.truncate(dirty.len() - DIRTY);
        let mut blocks: Vec<u64> = dirty.iter().map(|at| u64::from(set[*at].tag) - 1).collect();
        for at in dirty {
            set[at].dirty = false;
        }
        blocks.sort_unstable();
        for run in blocks.chunk_by(|a, b| a + 1 == *b) {
            self.to_clean.push_back(run[0] * BLOCK_BYTES..(run[run.len() - 1] + 1) * BLOCK_BYTES);
        }
    }
}

impl Cache {
    /// An empty cache.
    pub fn new(cache_bytes: u64, devices: &Rc<Devices>, runtime: &Rc<SimRuntime>) -> Rc<Self> {
        let sets = (cache_bytes / BLOCK_BYTES) as usize / WAYS;
        let state = State {
            sets: vec![Vec::new(); sets.max(1)],
            clock: 0,
            to_clean: VecDeque::new(),
            cleaning: 0,
            cleaned_bytes: 0,
            filled_bytes: 0,
            held: 0,
        };
        Rc::new(Self { devices: Rc::clone(devices), runtime: Rc::clone(runtime), state: RefCell::new(state) })
    }

    /// Bytes in the cache, read into it, and written back.
    pub fn moved(&self) -> (u64, u64, u64) {
        let state = self.state.borrow();
        (state.held * BLOCK_BYTES, state.filled_bytes, state.cleaned_bytes)
    }

    /// Serves a request.
    pub async fn serve(self: Rc<Self>, request: Request) -> Served {
        let all = covered(&request);
        let write = request.op == Op::Write;
        let blocks = all.start / BLOCK_BYTES..all.end.div_ceil(BLOCK_BYTES);
        let found: Vec<(u64, Found)> = {
            let mut state = self.state.borrow_mut();
            blocks.clone().map(|block| (block, state.touch(block, write))).collect()
        };
        let is_hit = |found: &Found| matches!(found, Found::Hit { .. });
        let served = Served {
            fast: found.iter().all(|(_, found)| is_hit(found)),
            buffer: false,
            slow: found.iter().any(|(_, found)| *found == Found::None || !write && !is_hit(found)),
            dirty_hit: write && found.iter().all(|(_, found)| *found == Found::Hit { dirty: true }),
        };
        // All at once, as the pieces of a request are.
        join_all(found.chunk_by(|a, b| kind(a.1) == kind(b.1)).map(|run| {
            let range = run[0].0 * BLOCK_BYTES..(run[run.len() - 1].0 + 1) * BLOCK_BYTES;
            self.serve_run(write, run[0].1, range)
        }))
        .await;
        if write {
            let mut state = self.state.borrow_mut();
            blocks.step_by(WAYS / 2).chain([all.end.div_ceil(BLOCK_BYTES) - 1]).for_each(|block| state.clean(block));
        }
        self.go_on_cleaning();
        served
    }

    /// Serves neighbours that are served alike.
    async fn serve_run(self: &Rc<Self>, write: bool, found: Found, range: Range<u64>) {
        match (write, found) {
            (_, Found::None) => self.devices.slow(if write { Way::Write } else { Way::Read }, range).await,
            (false, Found::Hit { .. }) => self.devices.fast(Way::Read, range).await,
            (false, Found::Taken) => {
                self.devices.slow(Way::Read, range.clone()).await;
                let cache = Rc::clone(self);
                let fill = async move { cache.devices.fast(Way::Write, range).await };
                self.runtime.spawn(Box::pin(fill));
            }
            (true, how) => {
                self.devices.fast(Way::Write, range.clone()).await;
                if how != (Found::Hit { dirty: true }) {
                    // Its metadata.
                    self.devices.fast(Way::Write, range.start..range.start + BLOCK_BYTES).await;
                }
            }
        }
    }

    fn go_on_cleaning(self: &Rc<Self>) {
        loop {
            let next = {
                let mut state = self.state.borrow_mut();
                if state.cleaning >= CLEANING {
                    return;
                }
                let Some(next) = state.to_clean.pop_front() else { return };
                state.cleaning += 1;
                state.cleaned_bytes += next.end - next.start;
                next
            };
            let cache = Rc::clone(self);
            self.runtime.spawn(Box::pin(async move {
                cache.devices.fast(Way::Read, next.clone()).await;
                cache.devices.slow(Way::Write, next).await;
                cache.state.borrow_mut().cleaning -= 1;
                cache.go_on_cleaning();
            }));
        }
    }
}

/// Blocks that are served alike are asked for together.
fn kind(found: Found) -> u8 {
    match found {
        Found::Hit { dirty: true } => 0,
        Found::Hit { dirty: false } => 1,
        Found::Taken => 2,
        Found::None => 3,
    }
}
