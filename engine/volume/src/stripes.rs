//! A controller's stripes with parity: what happens to them just now, and what a crash would find of them.

use crate::stripe::StripeId;
use kura_block::Error;
use kura_journal::Lsn;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

#[derive(Default)]
pub(crate) struct Stripes {
    /// Those on their way to their places, or being read as a whole, and why one waits for a disk, while it does.
    pub busy: RefCell<BTreeMap<StripeId, Option<Error>>>,
    /// Of these, those on their way.
    pub flying: Cell<u32>,
    /// Bytes of the journal that what is on its way may still take.
    pub flying_debt: Cell<u64>,
    /// One was left with data and parity apart: no checkpoint is made any more.
    pub torn: Cell<bool>,
    /// For rows, the columns written since the last checkpoint.
    pub touched: RefCell<BTreeMap<StripeId, Vec<u32>>>,
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

    /// Notes that columns of a row may be found old or new after a crash.
    pub fn touch(&self, id: StripeId, row: usize, chunk: usize, columns: u32) {
        let mut touched = self.touched.borrow_mut();
        touched.entry(id).or_insert_with(|| vec![0; chunk])[row] |= columns;
    }
}
