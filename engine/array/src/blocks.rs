//! Which blocks of an extent: a bit for each.

use kura_block::Reader;

/// A bit for each block of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks(Box<[u8]>);

impl Blocks {
    /// No block of so many.
    pub fn none(blocks: usize) -> Self {
        Self(vec![0; blocks.div_ceil(8)].into())
    }

    /// All of so many.
    pub(crate) fn all(blocks: usize) -> Self {
        Self(vec![0xff; blocks.div_ceil(8)].into())
    }

    /// What [`as_bytes`](Self::as_bytes) gave for so many.
    pub(crate) fn read(reader: &mut Reader<'_>, blocks: usize) -> Option<Self> {
        Some(Self(reader.bytes(blocks.div_ceil(8)).ok()?.into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// True when a block is among them.
    pub fn has(&self, block: usize) -> bool {
        self.0[block / 8] & 1 << (block % 8) != 0
    }

    /// Takes a block in; true when it was not among them.
    pub fn add(&mut self, block: usize) -> bool {
        let before = self.has(block);
        self.0[block / 8] |= 1 << (block % 8);
        !before
    }

    /// Takes a block out; true when it was among them.
    pub fn remove(&mut self, block: usize) -> bool {
        let before = self.has(block);
        self.0[block / 8] &= !(1 << (block % 8));
        before
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.0.fill(0);
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|byte| byte.count_ones()).sum()
    }

    /// True when every one of them is among `others`.
    pub fn are_among(&self, others: &Self) -> bool {
        self.0.iter().zip(&others.0).all(|(mine, theirs)| mine & !theirs == 0)
    }
}
