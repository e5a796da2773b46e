//! A controller's stripes with parity: what happens to them just now, and what a crash would find of them.

use crate::record::Rest;
use crate::stripe::StripeId;
use kura_block::{Checksum, Error};
use kura_journal::Lsn;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What the log says of a row that was written since it was last said to be at rest: by a checkpoint, a *settled*, or a *move*.
#[derive(Clone, Copy, Default)]
pub(crate) struct Announced {
    /// Columns that may be found old or new after a crash.
    pub columns: u32,
    /// The last word on it, which is the one that counts, and the record that has it.
    pub last: Option<(Word, Lsn)>,
}

/// What a record says of a row. The others do not change without being written, so that their checksum tells their XOR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// The columns that are written.
    pub written: u32,
    /// The others, and the checksum of their XOR where it is given.
    pub rest: (Rest, Option<Checksum>),
}

#[derive(Default)]
pub(crate) struct Stripes {
    /// Those on their way to their places, or being read as a whole, and why one waits for a disk, while it does.
    pub busy: RefCell<BTreeMap<StripeId, Option<Error>>>,
    /// Of these, those on their way, but for what goes past the journal.
    pub flying: Cell<u32>,
    /// Bytes of the journal that what is on its way may still take.
    pub flying_debt: Cell<u64>,
    /// One was left with data and parity apart: no checkpoint is made any more.
    pub torn: Cell<bool>,
    /// Rows written since they were last said to be at rest.
    pub announced: RefCell<BTreeMap<(StripeId, usize), Announced>>,
    /// While a checkpoint is made, only blocks with a record below go to places with parity.
    pub parity_below: Cell<Option<Lsn>>,
}

impl Stripes {
    /// Takes a stripe for a flight, unless something happens to it.
    pub fn take(&self, id: StripeId) -> bool {
        let taken = match self.busy.borrow_mut().entry(id) {
            Entry::Vacant(free) => free.insert(None).is_none(),
            Entry::Occupied(_) => false,
        };
        self.flying.set(self.flying.get() + u32::from(taken));
        taken
    }

    /// What the log says of a row.
    pub fn announced(&self, id: StripeId, row: usize) -> Announced {
        self.announced.borrow().get(&(id, row)).copied().unwrap_or_default()
    }

    /// Notes what the log says of a row.
    pub fn announce(&self, id: StripeId, row: usize, word: Word, lsn: Lsn) {
        let mut announced = self.announced.borrow_mut();
        let row = announced.entry((id, row)).or_default();
        *row = Announced { columns: row.columns | word.written, last: Some((word, lsn)) };
    }
}
