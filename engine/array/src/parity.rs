//! Parity: how a row of a stripe is brought to its new state, decided from facts; and the arithmetic.
//!
//! The **rest** of a row is what a write leaves alone. From its parity, the *partial parity*, and the others of the rest a block of
//! it can be reconstructed, whatever became of the blocks that were being written. It goes to the journal first; that closes the
//! write hole: after a crash the parity is made anew from the partial parity and from what the written places hold then.
//!
//! Columns are bits of a mask, column 0 the lowest.

use kura_block::{BLOCK_BYTES, Buf, BufMut};

/// A row as it stands before a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Columns whose place counts in the parity.
    pub counted: u32,
    /// Columns that are written now.
    pub new: u32,
    /// Columns written since the last checkpoint: a crash may find their places old or new, but knows their data from
    /// elsewhere. They are no part of the rest.
    pub touched: u32,
    /// Columns whose place cannot be read, one at most unless the row is lost.
    pub lost: u32,
    /// Columns of which nobody knows what their place must hold. Were it rot, taking it out of the old parity would put it
    /// into the new one for ever.
    pub doubtful: u32,
    /// True when the parity can be read.
    pub parity: bool,
}

/// What is read before a row is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reads {
    /// These columns.
    pub columns: u32,
    /// The parity too.
    pub parity: bool,
}

impl Row {
    /// Columns that a write leaves alone, and that count.
    pub fn rest(&self) -> u32 {
        self.counted & !(self.new | self.touched)
    }

    /// Columns whose old data parity or partial parity may need.
    fn moving(&self) -> u32 {
        self.counted & (self.new | self.touched)
    }

    /// What to read: as little as does, the others of the row or its old parity, and everything where a place is lost
    /// that neither way can do without. `None` when too much is lost for parity to be computed.
    pub fn reads(&self) -> Option<Reads> {
        let others = Reads { columns: self.counted & !self.new, parity: false };
        let old = Reads { columns: self.moving(), parity: true };
        let all = Reads { columns: self.counted & !self.lost, parity: true };
        let possible = |reads: &Reads| reads.columns & self.lost == 0 && (self.parity || !reads.parity);
        let ways = [others, old].into_iter().filter(possible);
        let doubts = |reads: &Reads| reads.parity && self.moving() & self.doubtful != 0;
        let cheapest = ways.min_by_key(|reads| (doubts(reads), reads.columns.count_ones() + u32::from(reads.parity)));
        let one_lost = (self.lost & self.counted).count_ones() <= 1;
        cheapest.or_else(|| (self.parity && one_lost).then_some(all))
    }
}

/// What a row becomes.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The partial parity; `None` where there is no rest.
    pub rest: Option<Buf>,
    /// The new parity.
    pub parity: Buf,
}

impl Row {
    /// The new parity and the partial one, from what [`Row::reads`] asked for: `old` has the columns read, `parity` the
    /// old parity if it was, `new` the columns that are written.
    pub fn solve(&self, reads: Reads, old: &[Option<Buf>], parity: Option<&Buf>, new: &[Option<Buf>]) -> Solution {
        let read = |columns: u32| bits(columns & reads.columns).filter_map(|column| old[column].as_deref());
        let unread = self.counted & !reads.columns;
        // With the old parity, what was not read is known as a sum.
        let sum = parity.map(|parity| xor(read(reads.columns).chain([&**parity])));
        let of_sum = |columns: u32| sum.as_deref().filter(|_| unread & columns != 0);
        let rest = xor(read(self.rest()).chain(of_sum(self.rest())));
        let staying = self.moving() & !self.new;
        let written = bits(self.new).filter_map(|column| new[column].as_deref());
        let parity = xor(read(staying).chain(of_sum(staying)).chain(written).chain([&*rest]));
        Solution { rest: (self.rest() != 0).then_some(rest), parity }
    }
}

/// The columns of a mask.
pub fn bits(mask: u32) -> impl Iterator<Item = usize> {
    (0..u32::BITS as usize).filter(move |bit| mask & 1 << bit != 0)
}

/// The XOR of blocks; zeroes where there are none.
pub fn xor<'a>(blocks: impl IntoIterator<Item = &'a [u8]>) -> Buf {
    let mut sum = BufMut::zeroed(BLOCK_BYTES);
    for block in blocks {
        assert_eq!(sum.len(), block.len(), "blocks are of one size");
        add(&mut sum, block);
    }
    sum.freeze()
}

/// Word by word: a build that is hardly optimised does nothing else for long where parity is made byte by byte.
fn add(sum: &mut [u8], block: &[u8]) {
    let ((sums, _), (words, _)) = (sum.as_chunks_mut::<8>(), block.as_chunks::<8>());
    for (sum, word) in sums.iter_mut().zip(words) {
        *sum = (u64::from_ne_bytes(*sum) ^ u64::from_ne_bytes(*word)).to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reads(row: Row) -> Option<(u32, bool)> {
        row.reads().map(|reads| (reads.columns, reads.parity))
    }

    #[test]
    fn the_cheaper_way_is_taken() {
        let row = Row { counted: 0b11111, parity: true, ..Row::default() };
        assert_eq!(reads(Row { new: 0b00001, ..row }), Some((0b00001, true)), "old data and old parity");
        assert_eq!(reads(Row { new: 0b01111, ..row }), Some((0b10000, false)), "the one that is left");
        assert_eq!(reads(Row { new: 0b11111, ..row }), Some((0, false)), "a whole row needs nothing");
        assert_eq!(reads(Row { counted: 0b00001, new: 0b00011, ..row }), Some((0, false)), "nor does a fresh one");
        assert_eq!(reads(Row { new: 1, touched: 0b00010, ..row }), Some((0b00011, true)));
        assert_eq!(reads(Row { new: 1, doubtful: 1, ..row }), Some((0b11110, false)), "what may be rot is left out");
        assert_eq!(reads(Row { new: 1, doubtful: 1, lost: 2, ..row }), Some((1, true)), "unless there is no other way");
        assert_eq!(
            reads(Row { new: 1, touched: 0b00110, ..row }),
            Some((0b11110, false)),
            "of equals, the verified one"
        );
    }

    #[test]
    fn a_lost_place_is_gone_around() {
        let row = Row { counted: 0b11111, parity: true, ..Row::default() };
        assert_eq!(reads(Row { new: 0b01111, lost: 0b10000, ..row }), Some((0b01111, true)), "the rest is lost");
        assert_eq!(reads(Row { new: 1, lost: 1, ..row }), Some((0b11110, false)), "what is written is lost");
        assert_eq!(reads(Row { new: 1, touched: 0b10, lost: 0b10, ..row }), Some((0b11101, true)), "all that is left");
        assert_eq!(reads(Row { new: 1, parity: false, ..row }), Some((0b11110, false)), "the parity is made anew");
        assert_eq!(reads(Row { new: 1, lost: 0b10, parity: false, ..row }), None);
        assert_eq!(reads(Row { new: 1, touched: 0b110, lost: 0b110, ..row }), None);
    }

    proptest! {
        /// Whatever is read, the solution is that of someone who knows everything.
        #[test]
        fn what_is_read_is_enough(counted in 0u32..64, new in 1u32..64, touched in 0u32..64, lost in 0u32..12) {
            let row = Row { counted, new, touched, lost: 1 << lost & counted, doubtful: 0, parity: true };
            let reads = row.reads().unwrap();
            prop_assert_eq!(reads.columns & row.lost, 0);
            let block = |byte: usize| Buf::copy_of(&[byte as u8; BLOCK_BYTES]);
            let data = |column: usize| block(column * column + 7);
            let fresh = |column: usize| block(column * 31 + 1);
            let columns = |mask: u32, of: &dyn Fn(usize) -> Buf| -> Vec<_> {
                (0..6).map(|column| (mask & 1 << column != 0).then(|| of(column))).collect()
            };
            let sum = |blocks: Vec<Buf>| xor(blocks.iter().map(|block| &**block));
            let before = sum(bits(counted).map(data).collect());
            let parity = reads.parity.then_some(&before);
            let solved = row.solve(reads, &columns(reads.columns, &data), parity, &columns(new, &fresh));
            let rest = sum(bits(counted & !(new | touched)).map(data).collect());
            prop_assert_eq!(&*solved.rest.unwrap_or(block(0)), &*rest);
            let after = bits(counted & !new).map(data).chain(bits(new).map(fresh));
            prop_assert_eq!(&*solved.parity, &*sum(after.collect()));
        }
    }
}
