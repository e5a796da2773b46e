//! A row of a stripe: what is known of it, and what it comes to.

use crate::disks::Read;
use kura_array::parity::{Reads, Row, Solution, bits};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Checksum, Error, Result};
use smallvec::SmallVec;

/// A place in a stripe: a column, or the parity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Slot {
    Column(usize),
    Parity,
}

/// A row of a stripe: what is known of it, and what was read.
pub(crate) struct StripeRow {
    pub row: usize,
    pub facts: Row,
    /// What columns at rest must agree with.
    pub expected: SmallVec<[Option<Checksum>; 8]>,
    /// The columns of which only an earlier version lies here: it is nobody's, though parity counts on it.
    pub nobodys: u32,
    pub old: SmallVec<[Option<Buf>; 8]>,
    /// What was read of columns that did not agree. Where such a block was given up, parity agrees with what lies there.
    pub bad: SmallVec<[Option<Buf>; 8]>,
    pub parity: Option<Buf>,
    pub new: SmallVec<[Option<Buf>; 8]>,
    /// A read of one of its places that the disk refused, and may grant later.
    pub refused: Option<Error>,
}

/// What a slot of a row is reconstructed from: all others of it.
pub(crate) fn others(facts: &Row, slot: Slot) -> Reads {
    match slot {
        Slot::Column(column) => Reads { columns: facts.counted & !(1 << column), parity: true },
        Slot::Parity => Reads { columns: facts.counted, parity: false },
    }
}

/// Blocks as they are written: neighbouring rows as one.
pub(crate) fn gather(blocks: impl IntoIterator<Item = (usize, Buf)>) -> Vec<(usize, Bufs)> {
    let (mut writes, mut next) = (Vec::<(usize, Bufs)>::new(), None);
    for (row, block) in blocks {
        match writes.last_mut().filter(|_| next == Some(row)) {
            Some((_, data)) => data.push(block),
            None => writes.push((row, block.into())),
        }
        next = Some(row + 1);
    }
    writes
}

/// What parity takes a place for in which nothing was put.
static NOTHING: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

impl StripeRow {
    /// An error while a disk refuses to read a place of the row: nothing of it may be taken for lost.
    pub fn unless_refused(&self) -> Result<()> {
        self.refused.clone().map_or(Ok(()), Err)
    }

    /// Takes what was read of a slot.
    pub fn take(&mut self, slot: Slot, block: Read) {
        let block = match block {
            Read::Found(block) => Some(block),
            Read::Refused(error) => {
                self.refused = Some(error);
                None
            }
            Read::Lost => None,
        };
        match slot {
            Slot::Parity => {
                self.facts.parity = block.is_some();
                self.parity = block;
            }
            Slot::Column(column) => {
                let agrees = block.as_ref().is_some_and(|block| self.agrees(slot, block));
                self.facts.lost |= u32::from(!agrees) << column;
                (self.old[column], self.bad[column]) = if agrees { (block, None) } else { (None, block) };
            }
        }
    }

    /// True unless a block of a slot is known to be another one.
    pub fn agrees(&self, slot: Slot, block: &Buf) -> bool {
        match slot {
            Slot::Parity => true,
            Slot::Column(column) => self.expected[column].is_none_or(|expected| Checksum::of(block) == expected),
        }
    }

    /// The row's new parity and partial parity; `None` when too much of it is lost.
    pub fn solve(&self) -> Option<Solution> {
        let reads = self.facts.reads()?;
        Some(self.facts.solve(reads, &self.old, self.parity.as_ref().filter(|_| reads.parity), &self.new))
    }

    /// A slot reconstructed from the others, when all of them were read; its place must count. Others that are lost serve, too, by
    /// what lies at their places, or as zeroes, as where nothing was put since the group was mapped, where the result is known to
    /// be right.
    pub fn reconstructed(&self, slot: Slot) -> Option<Buf> {
        let known = matches!(slot, Slot::Column(column) if self.expected[column].is_some());
        let right = |block: &Buf| known && self.agrees(slot, block);
        let as_it_lies = |column: usize| self.old[column].as_deref().or(self.bad[column].as_deref());
        self.sum_of_others(slot, |column| self.old[column].as_deref())
            .or_else(|| self.sum_of_others(slot, as_it_lies).filter(right))
            .or_else(|| self.sum_of_others(slot, |column| self.old[column].as_deref().or(Some(&NOTHING))).filter(right))
    }

    fn sum_of_others<'a>(&'a self, slot: Slot, of: impl Fn(usize) -> Option<&'a [u8]>) -> Option<Buf> {
        let reads = others(&self.facts, slot);
        let counts =
            matches!(slot, Slot::Column(column) if self.facts.counted & 1 << column != 0) || slot == Slot::Parity;
        let parity = if reads.parity { Some(self.parity.as_deref()?) } else { None };
        let columns = bits(reads.columns).map(of).collect::<Option<Vec<_>>>().filter(|_| counts)?;
        Some(kura_array::parity::xor(columns.into_iter().chain(parity)))
    }
}
