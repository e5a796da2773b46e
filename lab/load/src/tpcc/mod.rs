//! Disk accesses of a database under TPC-C's transactions, as a buffer cache lets them through.
//!
//! ```text
//!  transactions ─> pages touched ─> LRU buffer cache ─> reads of what is missing, writes of what must leave
//!  (work.rs)       (tables.rs)      (cache.rs)          and, with checkpoints, writes of all that is dirty
//! ```
//!
//! Tables, row sizes, regions, the mix, the page and the cache are those of Mogi and Kitsuregawa's measurements (14
//! warehouses, 11,420 MB, 2 KB, 56 MB), and so are the consequences that the tests hold against the paper: hot and cold
//! areas apart, most blocks read and then written, at a distance of about one turn of the cache, and writes in waves
//! when there are checkpoints. Choices of ours: the rate, that a checkpoint writes three pages for each other access, and
//! that of an index only leaves and, where rows lie in it, the level above are followed.

mod cache;
mod tables;
#[cfg(test)]
mod tests;
mod work;

use crate::arrivals::{Arrivals, Clock};
use crate::params::{Invalid, Params};
use cache::{Access, Cache};
use kura_trace::{Op, Request};
use std::collections::VecDeque;
use tables::Tables;
use work::Work;

/// How many accesses of a checkpoint come for each other one while it lasts.
const CHECKPOINT_PACE: u64 = 3;

/// The cache is at most this part of the database. A larger one takes ever longer to fill, and one as large as the database
/// never is full.
const CACHE_PART: u64 = 4;

#[derive(Clone, Debug)]
pub(crate) struct Tpcc {
    tables: Tables,
    cache_pages: u32,
    checkpoint_ns: Option<u64>,
    arrivals: Arrivals,
}

impl Tpcc {
    pub(crate) fn from_params(params: &mut Params) -> Result<Self, Invalid> {
        let warehouses = params.count("warehouses", 14, 1..=1000, "the scale: 816 MB each")?;
        let page_bytes = params.size("block", 2 << 10, (1 << 10)..=(64 << 10), "bytes of a page")?;
        let cache = params.size("cache", 56 << 20, (1 << 20)..=(16 << 30), "bytes of the buffer cache")?;
        let minutes = params.number("checkpoint", 0.0, 0.0..=1e5, "minutes between checkpoints; 0: none")?;
        let tables = Tables::new(warehouses as u32, page_bytes);
        let most = u64::from(tables.pages()) * page_bytes / CACHE_PART;
        if cache > most {
            let (load, cache, most) = (params.load(), cache >> 20, most >> 20);
            return Err(Invalid(format!(
                "load:{load}: a cache of {cache}M holds more than a quarter of {warehouses} warehouses, after which hardly \
                 anything is read: give at most {most}M, or more warehouses"
            )));
        }
        Ok(Self {
            tables,
            cache_pages: (cache / page_bytes) as u32,
            checkpoint_ns: (minutes > 0.0).then_some((minutes * 60e9) as u64),
            arrivals: Arrivals::from_params(params, 100.0)?,
        })
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        u64::from(self.tables.pages()) * self.tables.page_bytes()
    }

    pub(crate) fn requests(&self, seed: u64) -> impl Iterator<Item = Request> + Send + use<> {
        let mut accesses = Accesses {
            page_bytes: self.tables.page_bytes(),
            cache: Cache::new(self.tables.pages(), self.cache_pages),
            work: Work::new(self.tables.clone(), seed),
            due: VecDeque::new(),
            clock: self.arrivals.clock(seed),
            now_ns: 0,
            checkpoint_ns: self.checkpoint_ns,
            dirty: VecDeque::new(),
            turn: 0,
        };
        accesses.warm_up(self.cache_pages);
        accesses
    }
}

/// The accesses, one by one.
struct Accesses {
    page_bytes: u64,
    cache: Cache,
    work: Work,
    /// What the transaction at work asks of the disk.
    due: VecDeque<Access>,
    clock: Clock,
    /// When the last access was.
    now_ns: u64,
    checkpoint_ns: Option<u64>,
    /// Pages the present checkpoint has still to write, in order of place.
    dirty: VecDeque<u32>,
    turn: u64,
}

impl Accesses {
    /// Works until the cache holds what it would after hours: two turns.
    fn warm_up(&mut self, cache_pages: u32) {
        for _ in 0..4 * u64::from(cache_pages) {
            self.of_transactions();
        }
    }

    fn of_transactions(&mut self) -> Access {
        loop {
            if let Some(access) = self.due.pop_front() {
                return access;
            }
            self.work.transaction(&mut self.cache, &mut self.due);
        }
    }

    /// The checkpoint's next write, if it is its turn.
    fn of_checkpoint(&mut self) -> Option<Access> {
        self.turn += 1;
        if self.turn.is_multiple_of(CHECKPOINT_PACE + 1) {
            return None;
        }
        // Pages that were written in the meantime, because they had to leave, are done.
        while let Some(page) = self.dirty.pop_front() {
            if self.cache.clean(page) {
                return Some(Access { op: Op::Write, page });
            }
        }
        None
    }

    fn begin_checkpoint(&mut self, at_ns: u64) {
        let due = |interval: u64| at_ns / interval > self.now_ns / interval;
        if self.checkpoint_ns.is_some_and(due) {
            self.dirty = self.cache.dirty().into();
        }
    }
}

impl Iterator for Accesses {
    type Item = Request;

    fn next(&mut self) -> Option<Request> {
        let pace = if self.dirty.is_empty() { 1 } else { CHECKPOINT_PACE + 1 };
        let at_ns = self.clock.tick_at(pace as f64);
        self.begin_checkpoint(at_ns);
        self.now_ns = at_ns;
        let of_checkpoint = if self.dirty.is_empty() { None } else { self.of_checkpoint() };
        let Access { op, page } = of_checkpoint.unwrap_or_else(|| self.of_transactions());
        Some(Request {
            at_ns,
            op,
            offset_bytes: u64::from(page) * self.page_bytes,
            len_bytes: self.page_bytes as u32,
            response_ns: 0,
        })
    }
}
