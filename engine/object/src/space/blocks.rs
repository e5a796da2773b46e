//! The blocks of a segment, a bit each.

/// Some of a segment's blocks.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Blocks {
    bits: Box<[u64]>,
    count: u32,
}

impl Blocks {
    /// None of so many.
    pub fn new(count: u32) -> Self {
        Self { bits: vec![0; count.div_ceil(64) as usize].into(), count }
    }

    pub fn has(&self, at: u32) -> bool {
        self.bits[at as usize / 64] & 1 << (at % 64) != 0
    }

    /// Adds blocks or takes them out, as far as the segment goes: how many that changes.
    pub fn set(&mut self, first: u32, blocks: u32, to: bool) -> u32 {
        let mut changed = 0;
        for at in first..(first + blocks).min(self.count) {
            let bit = 1u64 << (at % 64);
            let word = &mut self.bits[at as usize / 64];
            changed += u32::from((*word & bit != 0) != to);
            *word = if to { *word | bit } else { *word & !bit };
        }
        changed
    }
}
