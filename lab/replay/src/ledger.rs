//! What may lie where: the bytes of every write, and which of them a read may find.
//!
//! The bytes of write `id` at place `at` follow from both, so that a block found says which write it came from, and is
//! wrong anywhere else. Two requests under way over the same bytes have no order: a place then has several versions, and
//! a read may find any of them, block by block.

use crate::summary::VerifySummary;
use kura_block::{BLOCK_BYTES, BufMut, Bufs};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::ops::Range;

/// Stands for bytes that were never written.
const ZEROES: u64 = 0;

/// What a place may hold.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// When the request was issued: a number that counts up, and the write's name.
    issued: u64,
    /// When it was answered.
    answered: Option<u64>,
    /// It gave the place back: the place reads as zeroes, or as before.
    discard: bool,
}

impl Version {
    fn content(&self) -> u64 {
        if self.discard { ZEROES } else { self.issued }
    }
}

/// Bytes with the same versions.
struct Segment {
    end: u64,
    versions: SmallVec<[Version; 2]>,
    /// When a discard of them was issued last, whether or not it is among the versions still.
    discarded: u64,
}

/// A place, and the contents it may have.
type Piece = (Range<u64>, SmallVec<[u64; 2]>);

/// Everything written, by place. Places that are not there were never written.
#[derive(Default)]
pub(crate) struct Ledger {
    segments: BTreeMap<u64, Segment>,
    clock: u64,
    found: VerifySummary,
}

/// A write or discard under way.
pub(crate) struct Change {
    range: Range<u64>,
    issued: u64,
    discard: bool,
}

/// A read under way, and what it may find of what was issued before it.
pub(crate) struct Look {
    range: Range<u64>,
    issued: u64,
    pieces: Vec<Piece>,
}

impl Ledger {
    /// A write of `range` is issued: its bytes.
    pub(crate) fn write(&mut self, range: Range<u64>) -> (Change, Bufs) {
        let change = self.change(range.clone(), false);
        let mut bytes = BufMut::room((range.end - range.start) as usize);
        words(change.issued, range.start, bytes.len(), |at, word| bytes[at].copy_from_slice(word));
        (change, bytes.freeze().into())
    }

    /// A discard of `range` is issued; it concerns whole blocks only.
    pub(crate) fn discard(&mut self, range: Range<u64>) -> Change {
        let block = BLOCK_BYTES as u64;
        let start = range.start.next_multiple_of(block);
        self.change(start..(range.end / block * block).max(start), true)
    }

    fn change(&mut self, range: Range<u64>, discard: bool) -> Change {
        let issued = self.tick();
        self.cut(range.start);
        self.cut(range.end);
        self.fill_gaps(&range);
        for (_, segment) in self.segments.range_mut(range.clone()) {
            segment.versions.push(Version { issued, answered: None, discard });
            if discard {
                segment.discarded = issued;
            }
        }
        Change { range, issued, discard }
    }

    /// A change was answered. Where it was done, what had been answered before it was issued is gone.
    pub(crate) fn changed(&mut self, change: Change, done: bool) {
        let now = self.tick();
        let gone = |version: &Version| {
            done && version.answered.is_some_and(|at| at < change.issued) && (!change.discard || version.discard)
        };
        for (_, segment) in self.segments.range_mut(change.range.clone()) {
            segment.versions.retain(|version| !gone(version));
            if let Some(own) = segment.versions.iter_mut().find(|version| version.issued == change.issued) {
                own.answered = Some(now);
            }
        }
    }

    /// A read of `range` is issued.
    pub(crate) fn read(&mut self, range: Range<u64>) -> Look {
        Look { issued: self.tick(), pieces: self.pieces(range.clone()), range }
    }

    /// A read was answered with `bytes`.
    pub(crate) fn check(&mut self, look: Look, bytes: &Bufs) {
        let bytes = bytes.contiguous();
        self.found.checked_bytes += bytes.len() as u64;
        for (range, before) in &look.pieces {
            for (range, now) in self.pieces(range.clone()) {
                for block in blocks(range) {
                    let at = (block.start - look.range.start) as usize;
                    let found = &bytes[at..at + (block.end - block.start) as usize];
                    let mut may_be = before.iter().chain(&now).copied();
                    // A write or a discard issued while the read was under way, and gone since.
                    let meanwhile = look.issued..self.clock;
                    let newer = || {
                        let writer = writer(found, block.start).filter(|id| meanwhile.contains(id));
                        writer.is_some_and(|id| agrees(found, id, block.start))
                            || meanwhile.contains(&self.discarded(block.start)) && agrees(found, ZEROES, block.start)
                    };
                    if !may_be.any(|id| agrees(found, id, block.start)) && !newer() {
                        self.found.mismatches += 1;
                        let text = || format!("{}+{} is not what was written", block.start, found.len());
                        self.found.first_mismatch.get_or_insert_with(text);
                    }
                }
            }
        }
    }

    /// What was written to `range` cannot be read.
    pub(crate) fn lost(&mut self, range: Range<u64>, error: &kura_block::Error) {
        self.found.mismatches += 1;
        self.found
            .first_mismatch
            .get_or_insert_with(|| format!("{}+{} cannot be read: {error}", range.start, range.end - range.start));
    }

    /// Everything that was ever written, as ranges of at most `most_bytes`, in order.
    pub(crate) fn ranges(&self, most_bytes: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for (start, segment) in &self.segments {
            for at in (*start..segment.end).step_by(most_bytes as usize) {
                let end = segment.end.min(at + most_bytes);
                match ranges.last_mut() {
                    Some(last) if last.end == at && end - last.start <= most_bytes => last.end = end,
                    _ => ranges.push(at..end),
                }
            }
        }
        ranges
    }

    /// What was found so far.
    pub(crate) fn found(&self) -> VerifySummary {
        self.found.clone()
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// When a discard of `at` was issued last.
    fn discarded(&self, at: u64) -> u64 {
        let segment = self.segments.range(..=at).next_back().map(|(_, segment)| segment);
        segment.filter(|segment| at < segment.end).map_or(0, |segment| segment.discarded)
    }

    /// Lets no segment reach over `at`.
    fn cut(&mut self, at: u64) {
        let Some((start, segment)) = self.segments.range_mut(..at).next_back() else { return };
        if *start < at && at < segment.end {
            let rest = Segment { versions: segment.versions.clone(), ..*segment };
            segment.end = at;
            self.segments.insert(at, rest);
        }
    }

    fn fill_gaps(&mut self, range: &Range<u64>) {
        let mut gaps = Vec::new();
        let mut at = range.start;
        for (start, segment) in self.segments.range(range.clone()) {
            if at < *start {
                gaps.push(at..*start);
            }
            at = segment.end;
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        let zeroes = Version { issued: ZEROES, answered: Some(0), discard: true };
        for gap in gaps {
            self.segments.insert(gap.start, Segment { end: gap.end, versions: smallvec![zeroes], discarded: 0 });
        }
    }

    /// `range`, cut where what it may hold changes.
    fn pieces(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let before = self.segments.range(..range.start).next_back().map_or(range.start, |(start, _)| *start);
        for (start, segment) in self.segments.range(before..range.end) {
            let (from, to) = (at.max(*start), range.end.min(segment.end));
            if from >= to {
                continue;
            }
            if at < from {
                pieces.push((at..from, smallvec![ZEROES]));
            }
            pieces.push((from..to, segment.versions.iter().map(Version::content).collect()));
            at = to;
        }
        if at < range.end {
            pieces.push((at..range.end, smallvec![ZEROES]));
        }
        pieces
    }
}

/// The parts of a range in one block each.
fn blocks(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let block = BLOCK_BYTES as u64;
    (range.start / block..range.end.div_ceil(block))
        .map(move |at| range.start.max(at * block)..range.end.min((at + 1) * block))
}

const WORD: usize = 8;

/// The eight bytes that write `id` puts at the word of this number; a write can be told from them.
fn word(id: u64, number: u64) -> [u8; WORD] {
    (mix(number) ^ id).to_le_bytes()
}

/// A number that has nothing to do with its neighbours' (the finalizer of `SplitMix64`).
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Shows the bytes of write `id` for `len` bytes from `at` on, word by word: where they lie in the range, and the bytes.
fn words(id: u64, at: u64, len: usize, mut show: impl FnMut(Range<usize>, &[u8])) {
    let end = at + len as u64;
    for number in at / WORD as u64..end.div_ceil(WORD as u64) {
        let start = number * WORD as u64;
        let (from, to) = (at.max(start), end.min(start + WORD as u64));
        let bytes = word(id, number);
        show((from - at) as usize..(to - at) as usize, &bytes[(from - start) as usize..(to - start) as usize]);
    }
}

/// True when `bytes` at place `at` are those of write `id`.
fn agrees(bytes: &[u8], id: u64, at: u64) -> bool {
    if id == ZEROES {
        return bytes.iter().all(|byte| *byte == 0);
    }
    let mut agrees = true;
    words(id, at, bytes.len(), |range, word| agrees &= bytes[range] == *word);
    agrees
}

/// The write that `bytes` at place `at` came from, if any; `None` where there is no whole word.
fn writer(bytes: &[u8], at: u64) -> Option<u64> {
    let first = at.next_multiple_of(WORD as u64);
    let skip = (first - at) as usize;
    let found: [u8; WORD] = bytes.get(skip..skip + WORD)?.try_into().ok()?;
    Some(u64::from_le_bytes(found) ^ mix(first / WORD as u64))
}

#[cfg(test)]
mod tests;
