//! Parts of large files of which the other end has an earlier version: what differs is found by sums of both sides.
//!
//! ```text
//!   worker: ask coarse 1, sum 1 ─ ask coarse 2, sum 2 ─ ... ─ take theirs 1: ask fine 1, sum 1 ─ ... ─ take theirs 1: send 1
//!   target:          sum 1               sum 2                                    sum 1
//! ```
//! Both sides read at the same time, and several parts are on their way, so that a far target keeps nobody waiting.

use super::contents::{read_full, sum_blocks};
use super::large::Large;
use super::message::{Reply, Request};
use super::worker::{Broken, CHUNK, FINE, Lost, Sent, Ticket, Worker};
use crate::balance::Piece;
use std::fs::File;
use std::ops::Range;

/// Bytes of a part that are compared at once: their sums fit into a message, whatever differs.
const WINDOW: u64 = 1 << 30;
/// Blocks that are compared first; within those that differ, [`FINE`] ones.
const COARSE: u64 = 64 << 10;
/// Parts of a worker that are compared at a time, each with an open file.
const AHEAD: usize = 32;

/// A part that is compared.
pub struct Comparing<'a> {
    /// Of which unit it is.
    unit: usize,
    piece: Piece,
    large: &'a Large,
    file: File,
    /// What of it is not looked at yet.
    left: Range<u64>,
    /// Which blocks of it were asked for, and our sums of them.
    block: u64,
    ranges: Vec<Range<u64>>,
    ours: Vec<u128>,
}

impl<'a> Worker<'a> {
    /// Begins to compare a part, and goes on with the first one where there are many.
    pub fn compare(&mut self, piece: &Piece, large: &'a Large, file: File) -> Sent {
        let left = piece.offset_bytes..piece.offset_bytes + piece.length_bytes;
        let (block, ranges, ours) = (COARSE, Vec::new(), Vec::new());
        self.compare_window(Comparing { unit: self.unit, piece: *piece, large, file, left, block, ranges, ours })?;
        while self.comparing.len() > AHEAD {
            self.compare_on()?;
        }
        Ok(())
    }

    /// Takes the sums of the first one, and does what comes next for it.
    pub fn compare_on(&mut self) -> Sent {
        let Some(comparing) = self.comparing.pop_front() else { return Ok(()) };
        self.within(comparing.unit, |worker| worker.compare_next(comparing))
    }

    fn compare_next(&mut self, mut comparing: Comparing<'a>) -> Sent {
        let reply = self.await_call()?;
        let large = comparing.large;
        if large.is_over() {
            return Ok(());
        }
        if let Reply::Bytes(theirs) = reply {
            let asked = bytes(&comparing.ranges);
            comparing.take(&theirs)?;
            self.count(asked - bytes(&comparing.ranges));
            if comparing.block == COARSE && !comparing.ranges.is_empty() {
                comparing.block = FINE;
                return self.ask(comparing);
            }
        }
        match self.send_differing(&comparing) {
            Ok(()) if !comparing.left.is_empty() => self.compare_window(comparing),
            done => self.part_is_sent(&comparing.piece, large, &comparing.file, done),
        }
    }

    /// Compares what is left of a part, or as much as is compared at once.
    fn compare_window(&mut self, mut comparing: Comparing<'a>) -> Sent {
        let window = comparing.left.start..comparing.left.end.min(comparing.left.start + WINDOW);
        comparing.left.start = window.end;
        (comparing.block, comparing.ranges) = (COARSE, vec![window]);
        self.ask(comparing)
    }

    /// Asks for the sums of what is compared, and makes ours.
    fn ask(&mut self, mut comparing: Comparing<'a>) -> Sent {
        let (seed, block) = (self.larges.seed, comparing.block);
        let ranges: Vec<_> = comparing.ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
        self.post(Request::Sums { at: comparing.large.at(), seed, block, ranges: ranges.clone() }, Ticket::Call)?;
        comparing.ours.clear();
        let ours = &mut comparing.ours;
        let done = sum_blocks(&comparing.file, seed, block, &ranges, &mut vec![0; CHUNK], |sum| ours.push(sum));
        if let Err(error) = done {
            self.part_is_sent(&comparing.piece, comparing.large, &comparing.file, Err(Broken::Source(error)))?;
        }
        // In any case: the reply comes.
        self.comparing.push_back(comparing);
        Ok(())
    }

    fn send_differing(&mut self, comparing: &Comparing<'_>) -> Result<(), Broken> {
        let entry = comparing.large.job.entry(self.carry.changes);
        let mut ours = vec![0; CHUNK];
        for range in &comparing.ranges {
            for offset in range.clone().step_by(CHUNK) {
                let part = (range.end - offset).min(CHUNK as u64) as usize;
                let count = read_full(&comparing.file, offset, &mut ours[..part])?;
                self.count((part - count) as u64);
                self.difference(comparing.large, entry, offset, &ours[..count])?;
            }
        }
        Ok(())
    }
}

impl Comparing<'_> {
    /// Keeps of its ranges the blocks of which the target has other sums.
    fn take(&mut self, theirs: &[u8]) -> Sent {
        if theirs.len() != 16 * self.ours.len() {
            return Err(Lost("it answers something else".to_owned()));
        }
        let theirs = theirs.as_chunks::<16>().0.iter().map(|sum| u128::from_le_bytes(*sum));
        let block = self.block;
        let blocks = self
            .ranges
            .iter()
            .flat_map(|range| range.clone().step_by(block as usize).map(|start| start..(start + block).min(range.end)));
        let mut differing: Vec<Range<u64>> = Vec::new();
        for ((block, ours), theirs) in blocks.zip(&self.ours).zip(theirs) {
            match differing.last_mut() {
                _ if *ours == theirs => {}
                Some(last) if last.end == block.start => last.end = block.end,
                _ => differing.push(block),
            }
        }
        self.ranges = differing;
        Ok(())
    }
}

fn bytes(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}
