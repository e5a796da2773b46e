//! The store held against itself: what the index names against what is counted as alive.
//!
//! The index is gone through in steps, and changes meanwhile. What must hold: after each step what is [`Alive`] is what the rows
//! up to the last one seen name, as they are now. So the index tells of its changes, and those of rows that were seen count.

use crate::known::Known;
use crate::object::{PartitionId, Row};
use crate::space::blocks::Blocks;
use crate::space::segment::Use;
use crate::store::{Inner, State, Store};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

/// Rows, and segments, that are looked at without a pause: a millisecond or two.
const STEP_ROWS: usize = 1024;
const STEP_SEGMENTS: usize = 4096;
/// Blocks that are told of one by one.
const BLOCKS_TOLD: usize = 10;

/// Something in the store's tables that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is alive by the index alone, by segments.
#[derive(Default)]
pub(crate) struct Alive {
    segment_blocks: u32,
    /// The last row that was seen.
    last: Option<Row>,
    /// All of them were.
    all: bool,
    /// The name of the last one that was put without `versioned`.
    unversioned: Option<Vec<u8>>,
    rows: u64,
    log_bytes: BTreeMap<u32, u32>,
    blocks: BTreeMap<u32, Blocks>,
    violations: Vec<Violation>,
}

/// A check under way.
struct Check<'a> {
    inner: &'a Inner,
    alive: Rc<RefCell<Alive>>,
    /// The segment that is held against it next.
    segment: usize,
}

impl Store {
    /// Holds the tables in memory against each other: nothing is named twice, nothing that is named is free, and nothing
    /// is taken that nothing names. No read of the device; [`Store::scrub`] reads. Others go on meanwhile.
    pub async fn check(&self) -> Vec<Violation> {
        let mut check = Check::new(&self.inner);
        while check.step() {
            self.inner.runtime.sleep(Duration::ZERO).await;
        }
        check.alive.take().violations
    }

    /// The same while everything else waits: for tests.
    pub fn check_at_once(&self) -> Vec<Violation> {
        let mut check = Check::new(&self.inner);
        while check.step() {}
        check.alive.take().violations
    }
}

impl Alive {
    fn say(&mut self, what: String) {
        self.violations.push(Violation(what));
    }

    /// The index has changed.
    pub fn note(&mut self, row: &Row, before: Option<&Known>, now: Option<&Known>) {
        if !self.all && self.last.as_ref().is_none_or(|last| row > last) {
            return;
        }
        if let Some(before) = before {
            self.count(before, false);
            // Where what replaced another one is taken back, that one is there again.
            if now.is_none() && before.is_unversioned() {
                self.unversioned.take_if(|name| *name == row.name);
            }
        }
        if let Some(now) = now {
            self.count(now, true);
        }
    }

    /// Counts what a row names, or does no more: blocks that another one names, too, if there are any.
    fn count(&mut self, known: &Known, is_there: bool) -> Option<u32> {
        // Where the index cannot be read, what goes may not have been counted.
        self.rows = if is_there { self.rows + 1 } else { self.rows.saturating_sub(1) };
        let record = self.log_bytes.entry((known.place / self.segment_bytes()) as u32).or_default();
        *record = if is_there { *record + known.log_bytes() } else { record.saturating_sub(known.log_bytes()) };
        let mut shared = None;
        for extent in known.extents() {
            let of_segment = self.blocks.entry(extent.block / self.segment_blocks);
            let of_segment = of_segment.or_insert_with(|| Blocks::new(self.segment_blocks));
            let blocks = extent.all_blocks();
            if of_segment.set(extent.block % self.segment_blocks, blocks, is_there) != blocks {
                shared = Some(extent.block);
            }
        }
        shared
    }

    fn segment_bytes(&self) -> u64 {
        u64::from(self.segment_blocks) * kura_block::BLOCK_BYTES_U64
    }

    fn see(&mut self, state: &State, row: Row, known: &Known) {
        if self.last.as_ref().is_some_and(|last| *last >= row) {
            self.say(format!("{row}: stands in the index behind a later row"));
        }
        let partition = row.partition();
        if partition != PartitionId::ROOT && !state.partitions.contains_key(&partition.0) {
            self.say(format!("{row}: its partition does not exist"));
        }
        if let Some(block) = self.count(known, true) {
            self.say(format!("{row}: blocks of its extent at {block} belong to another object too"));
        }
        if known.is_unversioned() {
            let before = self.unversioned.replace(row.name.clone());
            if before.is_some_and(|before| before == row.name) {
                self.say(format!("{row}: a later version was put without versions, and this one is there still"));
            }
        }
        self.last = self.last.take().max(Some(row));
    }
}

impl<'a> Check<'a> {
    fn new(inner: &'a Inner) -> Self {
        let state = &mut *inner.state.borrow_mut();
        let alive = Alive { segment_blocks: state.space.segment_blocks, ..Alive::default() };
        let alive = Rc::new(RefCell::new(alive));
        state.index.tell(&alive);
        Self { inner, alive, segment: 0 }
    }

    /// Goes on; false at the end.
    fn step(&mut self) -> bool {
        let state = self.inner.state.borrow();
        let alive = &mut *self.alive.borrow_mut();
        if !alive.all {
            state.see_rows(alive);
            return true;
        }
        let end = state.space.segments.len().min(self.segment + STEP_SEGMENTS);
        state.hold_blocks(alive, self.segment as u32..end as u32);
        state.hold_segments(alive, self.segment as u32..end as u32, self.inner.agenda.borrow().in_round);
        self.segment = end;
        if end < state.space.segments.len() {
            return true;
        }
        if alive.rows != state.index.rows() {
            alive.say(format!("the index counts {} rows and has {}", state.index.rows(), alive.rows));
        }
        false
    }
}

impl State {
    /// The next rows of the index.
    fn see_rows(&self, alive: &mut Alive) {
        let from = alive.last.clone().map_or_else(
            || Some(Row::newest(Vec::new())),
            |Row { name, version }| Some(Row::new(name, version.0.checked_sub(1)?)),
        );
        let Some(from) = from else {
            alive.all = true;
            return;
        };
        let mut rows = 0;
        let scanned = self.index.scan(&from, |row, known| {
            rows += 1;
            alive.see(self, row, &known);
            rows < STEP_ROWS
        });
        if let Err(error) = &scanned {
            alive.say(format!("the index cannot be read: {error}"));
        }
        alive.all = rows < STEP_ROWS || scanned.is_err();
    }

    /// Every block that is taken is an object's, an upload's, or waits to be free.
    fn hold_blocks(&self, alive: &mut Alive, segments: std::ops::Range<u32>) {
        let blocks_of = self.space.segment_blocks;
        let mut named: BTreeMap<u32, Blocks> =
            alive.blocks.range(segments.clone()).map(|(segment, blocks)| (*segment, blocks.clone())).collect();
        let held = self.space.held.iter().map(|(block, blocks)| (*block, *blocks));
        for (first, blocks) in self.space.in_limbo().chain(held) {
            if !segments.contains(&(first / blocks_of)) {
                continue;
            }
            let of_segment = named.entry(first / blocks_of).or_insert_with(|| Blocks::new(blocks_of));
            if of_segment.set(first % blocks_of, blocks, true) != blocks {
                alive.say(format!("blocks of the extent at {first} are an object's and wait to be free"));
            }
        }
        let none = Blocks::new(blocks_of);
        let mut told = 0;
        for segment in segments {
            let taken = self.space.segments[segment as usize].taken.as_ref().unwrap_or(&none);
            let named = named.get(&segment).unwrap_or(&none);
            if taken == named {
                continue;
            }
            for at in (0..blocks_of).filter(|at| taken.has(*at) != named.has(*at)) {
                told += 1;
                if told <= BLOCKS_TOLD {
                    let problem = if taken.has(at) { "is taken and nothing names it" } else { "is named and free" };
                    alive.say(format!("block {} {problem}", segment * blocks_of + at));
                }
            }
        }
    }

    fn hold_segments(&self, alive: &mut Alive, segments: std::ops::Range<u32>, in_round: bool) {
        for number in segments.clone() {
            let segment = &self.space.segments[number as usize];
            let live_bytes = alive.log_bytes.get(&number).copied().unwrap_or(0);
            if live_bytes != segment.live_bytes {
                alive.say(format!("segment {number} counts {} live bytes and has {live_bytes}", segment.live_bytes));
            }
            if live_bytes > 0 && segment.usage != Use::Log {
                alive.say(format!("segment {number} holds records and is not the log's"));
            }
            let is_named = self.index_segments.contains(&number) || self.old_index_segments.contains(&number);
            if segment.usage == Use::Index && !in_round && !is_named {
                alive.say(format!("segment {number} is taken by a checkpoint that is not the last one"));
            }
        }
        alive.violations.extend(self.space.check(segments).into_iter().map(Violation));
    }
}
