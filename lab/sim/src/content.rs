//! What a medium holds: bytes at rest, and above them the writes that a power cut may take back.

use crate::pages::{Change, Pages, page_numbers};
use crate::trouble::Fate;
use kura_block::Bufs;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::collections::VecDeque;
use std::ops::Range;

/// A write that is acknowledged and not at rest.
struct Unflushed {
    /// Its number in the order of acknowledgement.
    number: u64,
    offset: u64,
    change: Change,
}

impl Unflushed {
    fn end(&self) -> u64 {
        self.offset + self.change.len()
    }
}

/// Bytes at rest, and the volatile cache.
///
/// What must hold: reads see `at_rest` with the changes of `unflushed` applied in order; `cached` holds exactly the
/// pages in which the two differ, completed to whole pages, and possibly some in which they do not.
pub(crate) struct Content {
    at_rest: Pages,
    cached: Pages,
    unflushed: VecDeque<Unflushed>,
    unflushed_bytes: u64,
    /// Changes among `unflushed` that need not show in `cached`.
    unshown: usize,
    acknowledged: u64,
    /// What the cache holds before it writes the oldest to rest by itself; 0 without a cache.
    limit_bytes: u64,
    /// A power cut leaves each unit of this many bytes old or new.
    atom_bytes: u64,
}

impl Content {
    pub(crate) fn new(limit_bytes: u64, atom_bytes: u64) -> Self {
        Self {
            at_rest: Pages::default(),
            cached: Pages::default(),
            unflushed: VecDeque::new(),
            unflushed_bytes: 0,
            unshown: 0,
            acknowledged: 0,
            limit_bytes,
            atom_bytes,
        }
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Bufs {
        self.at_rest.read(&self.cached, offset, len)
    }

    pub(crate) fn read_at_rest(&self, offset: u64, len: usize) -> Bufs {
        self.at_rest.read(&Pages::default(), offset, len)
    }

    pub(crate) fn digest(&self) -> u64 {
        self.at_rest.digest()
    }

    pub(crate) fn unflushed_bytes(&self) -> u64 {
        self.unflushed_bytes
    }

    /// Pages at the range that hold something, at rest or in the cache.
    pub(crate) fn present(&self, offset: u64, len: u64) -> Vec<u64> {
        let range = page_numbers(offset, len);
        let mut pages: Vec<u64> = self.at_rest.present(range.clone()).chain(self.cached.present(range)).collect();
        pages.sort_unstable();
        pages.dedup();
        pages
    }

    /// A page at rest, every one as likely as the other; `None` when nothing is at rest.
    pub(crate) fn any_page(&self, rng: &mut ChaCha8Rng) -> Option<u64> {
        let pages = self.at_rest.len();
        if pages == 0 { None } else { self.at_rest.nth(rng.random_range(0..pages)) }
    }

    /// Inverts a bit at rest.
    pub(crate) fn flip(&mut self, offset: u64, bit: u32) {
        self.at_rest.flip(offset, bit);
    }

    /// Acknowledges a change: into the cache, or to rest when `durable` or when there is no cache.
    pub(crate) fn put(&mut self, offset: u64, change: Change, durable: bool) {
        if durable || self.limit_bytes == 0 {
            self.forget_unflushed(offset, change.len());
            self.at_rest.put(None, offset, &change);
            if self.unflushed.is_empty() {
                self.cached.clear();
            } else if self.cached.present(page_numbers(offset, change.len())).next().is_some() {
                // A page that the cache completed from below must not hide the new bytes.
                self.cached.put(Some(&self.at_rest), offset, &change);
            }
            return;
        }
        self.cached.put(Some(&self.at_rest), offset, &change);
        self.acknowledged += 1;
        self.push(Unflushed { number: self.acknowledged, offset, change });
        if self.unflushed_bytes > self.limit_bytes {
            // Half at once, so that what is left is sorted out rarely.
            let mut number = 0;
            let mut bytes = self.unflushed_bytes;
            for write in &self.unflushed {
                if bytes <= self.limit_bytes / 2 {
                    break;
                }
                bytes -= held_bytes(&write.change);
                number = write.number;
            }
            self.flush(number);
        }
    }

    /// What is acknowledged now: a flush that began now makes it durable.
    pub(crate) fn mark(&self) -> u64 {
        self.acknowledged
    }

    /// Puts to rest what was acknowledged up to `mark`.
    pub(crate) fn flush(&mut self, mark: u64) {
        while let Some(write) = self.unflushed.pop_front_if(|write| write.number <= mark) {
            self.count_out(&write);
            self.at_rest.put(None, write.offset, &write.change);
        }
        self.settle_cache();
    }

    /// Forgets what was acknowledged up to `mark` and is not at rest.
    pub(crate) fn lose(&mut self, mark: u64) {
        while let Some(write) = self.unflushed.pop_front_if(|write| write.number <= mark) {
            self.count_out(&write);
        }
        let left = std::mem::take(&mut self.unflushed);
        self.cached.clear();
        for write in left {
            self.cached.put(Some(&self.at_rest), write.offset, &write.change);
            self.unflushed.push_back(write);
        }
    }

    fn push(&mut self, write: Unflushed) {
        self.unflushed_bytes += held_bytes(&write.change);
        self.unshown += usize::from(!write.change.shows());
        self.unflushed.push_back(write);
    }

    fn count_out(&mut self, write: &Unflushed) {
        self.unflushed_bytes -= held_bytes(&write.change);
        self.unshown -= usize::from(!write.change.shows());
    }

    /// Drops cached pages that no unflushed write touches.
    fn settle_cache(&mut self) {
        if self.unflushed.is_empty() {
            self.cached.clear();
            return;
        }
        let mut ranges: Vec<Range<u64>> =
            self.unflushed.iter().map(|write| page_numbers(write.offset, write.change.len())).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let joined = next.start <= range.end;
            if joined {
                range.end = range.end.max(next.end);
            }
            joined
        });
        self.cached.retain(|page| {
            let after = ranges.partition_point(|range| range.start <= page);
            after > 0 && ranges[after - 1].contains(&page)
        });
    }

    /// Cuts the range out of the unflushed writes: what lies there now is newer than they are.
    fn forget_unflushed(&mut self, offset: u64, len: u64) {
        if self.unflushed.is_empty() {
            return;
        }
        let end = offset + len;
        if self.unshown == 0 && self.cached.present(page_numbers(offset, len)).next().is_none() {
            return;
        }
        let writes = std::mem::take(&mut self.unflushed);
        for write in writes {
            self.count_out(&write);
            if write.offset >= end || write.end() <= offset {
                self.push(write);
                continue;
            }
            for part in [write.offset..offset.min(write.end()), end.max(write.offset)..write.end()] {
                if part.start < part.end {
                    let change = write.change.slice(part.start - write.offset..part.end - write.offset);
                    self.push(Unflushed { number: write.number, offset: part.start, change });
                }
            }
        }
    }

    /// The power goes: each unflushed write, and each of `in_flight`, is kept, lost or torn.
    pub(crate) fn power_cut(&mut self, in_flight: Vec<(u64, Change)>, rng: &mut ChaCha8Rng) {
        let mood = Mood::draw(rng);
        let unflushed = std::mem::take(&mut self.unflushed).into_iter().map(|write| (write.offset, write.change));
        for (offset, change) in unflushed.chain(shuffled(in_flight, rng)) {
            for kept in mood.kept(change.len(), self.atom_bytes, rng) {
                self.at_rest.put(None, offset + kept.start, &change.slice(kept));
            }
        }
        self.cached.clear();
        self.unflushed_bytes = 0;
        self.unshown = 0;
    }

    /// What reaches the medium of a change with this fate, piece by piece, and where.
    pub(crate) fn landing(
        &self,
        (offset, change): (u64, &Change),
        fate: Fate,
        rng: &mut ChaCha8Rng,
    ) -> Vec<(u64, Change)> {
        let len = change.len();
        let (offset, kept) = match fate {
            Fate::Normal | Fate::ReadError | Fate::FlushError => (offset, whole(len)),
            Fate::Misdirected(elsewhere) => (elsewhere, whole(len)),
            Fate::Lost | Fate::Dead => (offset, vec![]),
            Fate::Torn => (offset, torn(len, self.atom_bytes, rng)),
            Fate::WriteError => (offset, Mood::Each.kept(len, self.atom_bytes, rng)),
        };
        kept.into_iter().map(|kept| (offset + kept.start, change.slice(kept))).collect()
    }
}

/// Cache a change takes: a command without data takes the room of a sector.
fn held_bytes(change: &Change) -> u64 {
    match change {
        Change::Data(data) => data.len() as u64,
        Change::Zeroes(_) => 512,
    }
}

/// How a power cut treats what is not at rest. Each write is drawn on its own, but all or nothing is common enough to
/// be met in every hundred seeds.
#[derive(Clone, Copy)]
enum Mood {
    KeepAll,
    LoseAll,
    Each,
}

impl Mood {
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        match rng.random_range(0..6) {
            0 => Self::KeepAll,
            1 => Self::LoseAll,
            _ => Self::Each,
        }
    }

    fn kept(self, len: u64, atom_bytes: u64, rng: &mut ChaCha8Rng) -> Vec<Range<u64>> {
        match self {
            Self::KeepAll => whole(len),
            Self::LoseAll => vec![],
            Self::Each => match rng.random_range(0..3) {
                0 => whole(len),
                1 => vec![],
                _ => torn(len, atom_bytes, rng),
            },
        }
    }
}

/// All of a write, as its pieces that reach the medium.
fn whole(len: u64) -> Vec<Range<u64>> {
    std::iter::once(0..len).collect()
}

/// The pieces of a write that reach the medium when it is torn: a proper part where it has more than one atom.
fn torn(len: u64, atom_bytes: u64, rng: &mut ChaCha8Rng) -> Vec<Range<u64>> {
    // Long ranges are torn in larger pieces, so that a power cut costs no time.
    let atom_bytes = atom_bytes * len.div_ceil(atom_bytes).div_ceil(2048).max(1);
    let atoms = len.div_ceil(atom_bytes);
    if atoms < 2 {
        return vec![];
    }
    if rng.random() {
        let prefix = rng.random_range(1..atoms) * atom_bytes;
        return std::iter::once(0..prefix).collect();
    }
    // An arbitrary part: one atom is lost for sure, and one is kept.
    let lost = rng.random_range(0..atoms);
    let sure = (lost + rng.random_range(1..atoms)) % atoms;
    let mut kept: Vec<Range<u64>> = Vec::new();
    for atom in 0..atoms {
        if atom == lost || (atom != sure && rng.random()) {
            continue;
        }
        let range = atom * atom_bytes..len.min((atom + 1) * atom_bytes);
        match kept.last_mut().filter(|last| last.end == range.start) {
            Some(last) => last.end = range.end,
            None => kept.push(range),
        }
    }
    kept
}

/// Operations in flight have no order.
fn shuffled<T>(mut items: Vec<T>, rng: &mut ChaCha8Rng) -> Vec<T> {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.random_range(0..=last));
    }
    items
}
