//! The newest requests of a volume, in memory of a fixed size.

use kura_block::{Amount, Error, Result};
use std::ops::Range;
use std::time::Duration;

/// What a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Bytes were read.
    Read,
    /// Bytes, or zeroes, were written.
    Write,
    /// Space was given back.
    Discard,
    /// What was acknowledged became durable.
    Flush,
}

/// A request, as it arrived at the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When it arrived, in nanoseconds since the recording began; never less than the entry's before it.
    pub at_ns: u64,
    /// Where it begins, in bytes; 0 for a flush.
    pub offset_bytes: u64,
    /// How long it took, in nanoseconds; 0 as long as it is not answered.
    pub response_ns: u64,
    /// How many bytes it covers; 0 for a flush. What is larger is told as `u32::MAX`.
    pub len_bytes: u32,
    /// What it did.
    pub op: Op,
}

/// Bytes of memory that a request takes.
pub const ENTRY_BYTES: u64 = size_of::<Entry>() as u64;
const _: () = assert!(ENTRY_BYTES == 32);

/// The least memory of a ring.
pub const MEMORY_MIN_BYTES: u64 = 64 << 10;
/// The most memory of a ring.
pub const MEMORY_MAX_BYTES: u64 = 4 << 30;

/// Entries by number, counted from 0; the newest that fit.
#[derive(Default)]
pub struct Ring {
    /// Entry `number` is at `number % capacity`. Memory is touched as it fills.
    entries: Vec<Entry>,
    capacity: u64,
    next: u64,
}

impl Ring {
    /// An empty ring of this much memory.
    pub fn new(memory_bytes: u64) -> Result<Self> {
        if !(MEMORY_MIN_BYTES..=MEMORY_MAX_BYTES).contains(&memory_bytes) {
            return Err(Error::invalid(format!(
                "a recording of {memory_bytes} bytes: give it at least {} and at most {}; a request takes {ENTRY_BYTES} bytes",
                Amount(MEMORY_MIN_BYTES),
                Amount(MEMORY_MAX_BYTES)
            )));
        }
        let capacity = memory_bytes / ENTRY_BYTES;
        let mut entries = Vec::new();
        entries.try_reserve_exact(capacity as usize).map_err(|_| {
            Error::invalid(format!("no memory for a recording of {}: give it less", Amount(memory_bytes)))
        })?;
        Ok(Self { entries, capacity, next: 0 })
    }

    /// Adds an entry, over the oldest one when there is no room, and returns its number.
    pub fn push(&mut self, entry: Entry) -> u64 {
        let number = self.next;
        self.next += 1;
        if number < self.capacity {
            self.entries.push(entry);
        } else {
            let at = (number % self.capacity) as usize;
            self.entries[at] = entry;
        }
        number
    }

    /// Notes how long a request took, if its entry is still here.
    pub fn answer(&mut self, number: u64, took: impl FnOnce(&Entry) -> u64) {
        if number < self.oldest() || number >= self.next {
            return;
        }
        let at = (number % self.capacity) as usize;
        let entry = &mut self.entries[at];
        entry.response_ns = took(entry);
    }

    /// The number of the next entry: how many there have been.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The number of the oldest entry that is here: how many are gone.
    pub fn oldest(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    /// Bytes of memory it may take.
    pub fn memory_bytes(&self) -> u64 {
        self.capacity * ENTRY_BYTES
    }

    /// At most `count` of the entries in `range` that are here, from its first one on, or from the oldest where that is
    /// gone; with the number of the first.
    pub fn copy(&self, range: Range<u64>, count: usize) -> (u64, Vec<Entry>) {
        let first = range.start.max(self.oldest());
        let end = range.end.min(self.next).min(first.saturating_add(count as u64));
        if end <= first {
            return (first, Vec::new());
        }
        let (after, from) = self.entries.split_at((first % self.capacity) as usize);
        (first, from.iter().chain(after).take((end - first) as usize).copied().collect())
    }
}

/// Nanoseconds, for five centuries.
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64) -> Entry {
        Entry { at_ns: number, offset_bytes: number * 4096, response_ns: 0, len_bytes: 4096, op: Op::Read }
    }

    fn filled(count: u64) -> Ring {
        let mut ring = Ring::new(MEMORY_MIN_BYTES).unwrap();
        for number in 0..count {
            assert_eq!(ring.push(entry(number)), number);
        }
        ring
    }

    const CAPACITY: u64 = MEMORY_MIN_BYTES / ENTRY_BYTES;

    #[test]
    fn a_ring_keeps_the_newest_in_order() {
        for count in [0, 1, CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY + 7] {
            let ring = filled(count);
            let oldest = count.saturating_sub(CAPACITY);
            assert_eq!((ring.oldest(), ring.next()), (oldest, count));
            assert_eq!(ring.copy(0..u64::MAX, usize::MAX), (oldest, (oldest..count).map(entry).collect()), "{count}");
        }
    }

    #[test]
    fn it_is_read_in_pieces_and_a_reader_that_falls_behind_sees_the_gap() {
        let mut ring = filled(10);
        assert_eq!(ring.copy(0..8, 4), (0, (0..4).map(entry).collect()));
        assert_eq!(ring.copy(4..100, 100), (4, (4..10).map(entry).collect()));
        assert_eq!(ring.copy(10..100, 100), (10, vec![]));
        for number in 10..CAPACITY + 20 {
            ring.push(entry(number));
        }
        assert_eq!(ring.copy(4..99, 2), (20, vec![entry(20), entry(21)]));
        assert_eq!(ring.copy(4..10, 9), (20, vec![]));
    }

    #[test]
    fn an_answer_finds_its_entry_and_no_other() {
        let mut ring = filled(CAPACITY + 2);
        for (number, expected) in [(1, None), (2, Some(7)), (CAPACITY + 1, Some(7)), (CAPACITY + 2, None)] {
            ring.answer(number, |_| 7);
            let changed: Vec<_> =
                ring.copy(0..u64::MAX, usize::MAX).1.into_iter().filter(|entry| entry.response_ns > 0).collect();
            let numbers: Vec<_> = changed.iter().map(|entry| entry.at_ns).collect();
            assert_eq!(numbers.contains(&number), expected.is_some(), "{number}: {changed:?}");
        }
        let mut taken = std::mem::take(&mut ring);
        ring.answer(2, |_| 9);
        assert_eq!(ring.copy(0..u64::MAX, usize::MAX), (0, vec![]));
        taken.answer(3, |entry| entry.at_ns + 1);
        assert_eq!(taken.copy(3..4, 9).1[0].response_ns, 4);
    }

    #[test]
    fn memory_has_bounds() {
        for bytes in [0, MEMORY_MIN_BYTES - 1, MEMORY_MAX_BYTES + 1, u64::MAX] {
            let why = Ring::new(bytes).err().unwrap().to_string();
            assert!(why.contains(&bytes.to_string()) && !why.contains('\n'), "{why}");
        }
        assert_eq!(Ring::new(MEMORY_MIN_BYTES).unwrap().memory_bytes(), MEMORY_MIN_BYTES);
    }
}
