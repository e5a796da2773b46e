//! The store held against itself: what the index names against what is counted as alive.

use crate::known::Known;
use crate::object::{PartitionId, Row};
use crate::space::Use;
use crate::store::{State, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Something in the store's tables that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is alive by the index alone.
#[derive(Default)]
struct Alive {
    rows: u64,
    log_bytes: BTreeMap<u32, u32>,
    blocks: BTreeSet<u32>,
    violations: Vec<Violation>,
}

impl Store {
    /// Holds the tables in memory against each other: nothing is named twice, nothing that is named is free, and nothing
    /// is taken that nothing names. No read of the device; [`Store::scrub`] reads.
    pub fn check(&self) -> Vec<Violation> {
        let in_round = self.inner.in_round.get();
        self.inner.state.borrow().check(in_round)
    }
}

impl Alive {
    fn say(&mut self, what: String) {
        self.violations.push(Violation(what));
    }

    fn see(&mut self, state: &State, row: &Row, known: &Known, last: Option<&Row>) {
        self.rows += 1;
        if last.is_some_and(|last| last >= row) {
            self.say(format!("{row}: stands in the index behind a later row"));
        }
        let partition = row.partition();
        if partition != PartitionId::ROOT && !state.partitions.contains_key(&partition.0) {
            self.say(format!("{row}: its partition does not exist"));
        }
        let segment = state.space.segment_of_place(known.place);
        *self.log_bytes.entry(segment).or_default() += known.log_bytes();
        for extent in known.extents() {
            for block in extent.block..extent.block + extent.all_blocks() {
                if !self.blocks.insert(block) {
                    self.say(format!("{row}: block {block} belongs to another object too"));
                }
            }
        }
    }
}

impl State {
    fn check(&self, in_round: bool) -> Vec<Violation> {
        let mut alive = Alive::default();
        let mut last: Option<Row> = None;
        let scanned = self.index.scan(&Row::newest(Vec::new()), |row, known| {
            alive.see(self, &row, &known, last.as_ref());
            last = Some(row);
            true
        });
        if let Err(error) = scanned {
            alive.say(format!("the index cannot be read: {error}"));
        }
        if alive.rows != self.index.rows() {
            alive.say(format!("the index counts {} rows and has {}", self.index.rows(), alive.rows));
        }
        self.check_blocks(&mut alive);
        for (number, segment) in self.space.segments.iter().enumerate() {
            let number = number as u32;
            let live_bytes = alive.log_bytes.get(&number).copied().unwrap_or(0);
            if live_bytes != segment.live_bytes {
                alive.say(format!("segment {number} counts {} live bytes and has {live_bytes}", segment.live_bytes));
            }
            if live_bytes > 0 && segment.usage != Use::Log {
                alive.say(format!("segment {number} holds records and is not the log's"));
            }
            if segment.usage == Use::Index && !in_round && !self.index_segments.contains(&number) {
                alive.say(format!("segment {number} is taken by a checkpoint that is not the last one"));
            }
        }
        alive.violations.extend(self.space.check().into_iter().map(Violation));
        alive.violations
    }

    /// Every block that is taken is an object's, an upload's, or waits to be free.
    fn check_blocks(&self, alive: &mut Alive) {
        let waiting = self.space.in_limbo().chain(self.space.held.iter().map(|(block, blocks)| (*block, *blocks)));
        for (first, blocks) in waiting {
            for block in first..first + blocks {
                if !alive.blocks.insert(block) {
                    alive.say(format!("block {block} is an object's and waits to be free"));
                }
            }
        }
        let taken = self.space.taken_blocks();
        for block in alive.blocks.symmetric_difference(&taken).take(10).copied().collect::<Vec<_>>() {
            let problem = if taken.contains(&block) { "is taken and nothing names it" } else { "is named and free" };
            alive.say(format!("block {block} {problem}"));
        }
    }
}
