//! A fast copy in memory: where it lies, and which blocks it has.

use kura_array::{Blocks, FastPage, PageOwner, Places};
use std::cell::{Cell, Ref, RefCell};

/// Volume and extent.
pub(crate) type Key = (u64, u32);

/// Which blocks a copy has.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    /// These lie here.
    pub valid: Blocks,
    /// Of these, home is older.
    pub stale: Blocks,
    /// Of these, home has been written since, not durably yet.
    pub returned: Blocks,
}

/// A fast copy of an extent.
pub(crate) struct FastCopy {
    /// The extent of the volume, and the LSN of the record that made the copy.
    pub owner: PageOwner,
    /// Two places, or one.
    pub places: Places,
    bits: RefCell<Bits>,
    /// Of its page on the disks.
    sequence: Cell<u64>,
    /// It goes down: what leaves the write buffer goes home.
    leaving: Cell<bool>,
    /// What was at home was copied here, since the start of this program.
    filled: Cell<bool>,
}

impl FastCopy {
    /// A copy that has no block yet.
    pub fn empty(owner: PageOwner, places: Places, blocks: usize) -> Self {
        let none = || Blocks::none(blocks);
        let page = FastPage { owner, sequence: 0, valid: none(), stale: none() };
        Self::of_page(page, places, blocks)
    }

    /// A copy as its page has it.
    pub fn of_page(page: FastPage, places: Places, blocks: usize) -> Self {
        let FastPage { owner, sequence, valid, stale } = page;
        let bits = RefCell::new(Bits { valid, stale, returned: Blocks::none(blocks) });
        Self { owner, places, bits, sequence: Cell::new(sequence), leaving: Cell::new(false), filled: Cell::new(false) }
    }

    pub fn key(&self) -> Key {
        (self.owner.volume, self.owner.index)
    }

    pub fn bits(&self) -> Ref<'_, Bits> {
        self.bits.borrow()
    }

    pub fn change<T>(&self, change: impl FnOnce(&mut Bits) -> T) -> T {
        change(&mut self.bits.borrow_mut())
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.get()
    }

    /// True when it was copied whole. One that a restart found may have been cut short.
    pub fn is_filled(&self) -> bool {
        self.filled.get()
    }

    pub fn set_filled(&self) {
        self.filled.set(true);
    }

    pub fn set_leaving(&self, leaving: bool) {
        self.leaving.set(leaving);
    }

    /// True when no block's home is older.
    pub fn is_clean(&self) -> bool {
        self.bits().stale.count() == 0
    }

    /// The page to write out now, with its next sequence number.
    pub fn next_page(&self) -> FastPage {
        self.sequence.set(self.sequence.get() + 1);
        let bits = self.bits();
        FastPage {
            owner: self.owner,
            sequence: self.sequence.get(),
            valid: bits.valid.clone(),
            stale: bits.stale.clone(),
        }
    }

    /// The page taken last did not get to the disks: the next one goes where it was to go, for the other place has the one that counts.
    pub fn skip_page(&self) {
        self.sequence.set(self.sequence.get() + 1);
    }
}

impl Bits {
    /// True when what lies at home is older.
    pub fn is_older(&self, block: usize) -> bool {
        self.stale.has(block) && !self.returned.has(block)
    }

    /// The newest version of a block lies here, and only here.
    pub fn landed(&mut self, block: usize) {
        self.valid.add(block);
        self.stale.add(block);
        self.returned.remove(block);
    }

    /// The newest version of a block lies at home, and only there.
    pub fn left(&mut self, block: usize) {
        self.valid.remove(block);
        self.stale.remove(block);
        self.returned.remove(block);
    }

    /// The newest version of a block lies here as at home.
    pub fn copied(&mut self, block: usize) {
        self.valid.add(block);
    }

    /// Home counts for nothing: all that lies here is written there again.
    pub fn take_all_for_stale(&mut self) {
        self.stale = self.valid.clone();
        self.returned.clear();
    }

    /// What was written home does not count: a place of it moved meanwhile.
    pub fn forget_returned(&mut self) {
        self.returned.clear();
    }

    /// Home has the block too, durably, if nothing newer has landed here since.
    pub fn settle(&mut self, block: usize) {
        if self.returned.remove(block) {
            self.stale.remove(block);
        }
    }
}
