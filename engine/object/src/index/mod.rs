//! The ordered index: every version of every key, packed, in memory.

mod leaf;
#[cfg(test)]
mod tests;

use crate::housekeeping::check::Alive;
use crate::known::Known;
use crate::object::Row;
use kura_block::{Error, Result};
pub(crate) use leaf::{Edited, Leaf};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::rc::{Rc, Weak};

/// Rows in leaves, by the leaves' first possible rows. The first leaf begins before every row.
pub(crate) struct Index {
    leaves: BTreeMap<Row, Leaf>,
    rows: u64,
    bytes: u64,
    /// The checks under way, which are told of every change.
    told: Vec<Weak<RefCell<Alive>>>,
}

/// Leaves that together have no more bytes than this are joined.
const JOIN_BYTES: usize = leaf::LEAF_LIMIT_BYTES / 2;

impl Index {
    pub fn new() -> Self {
        let leaves = BTreeMap::from([(Row::newest(Vec::new()), Leaf::default())]);
        Self { leaves, rows: 0, bytes: 0, told: Vec::new() }
    }

    /// Versions, markers and partitions in it.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of its leaves: about what a checkpoint takes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tells a check of every change from now on, as long as it goes on.
    pub fn tell(&mut self, alive: &Rc<RefCell<Alive>>) {
        self.told.push(Rc::downgrade(alive));
    }

    /// Sets (`Some`) or removes a row; what it was comes back.
    pub fn edit(&mut self, row: &Row, known: Option<&Known>) -> Result<Option<Known>> {
        self.edit_beside(row, known).map(|edited| edited.found)
    }

    /// As [`Index::edit`], with a look at the row behind.
    pub fn edit_beside(&mut self, row: &Row, known: Option<&Known>) -> Result<Edited> {
        let Some((_, leaf)) = self.leaves.range_mut(..=row).next_back() else {
            return Err(Error::corrupt("the index has no first leaf"));
        };
        self.bytes -= leaf.bytes().len() as u64;
        let edited = leaf.edit(row, known)?;
        let split = leaf.split()?;
        self.bytes += leaf.bytes().len() as u64;
        let is_small = leaf.bytes().len() < JOIN_BYTES;
        self.rows = self.rows + u64::from(known.is_some()) - u64::from(edited.found.is_some());
        match split {
            Some((first, mut right)) => {
                // A row that is large by itself may leave two cuts to make.
                if let Some((second, rest)) = right.split()? {
                    self.bytes += rest.bytes().len() as u64;
                    self.leaves.insert(second, rest);
                }
                self.bytes += right.bytes().len() as u64;
                self.leaves.insert(first, right);
            }
            None if is_small && known.is_none() => self.join(row)?,
            None => {}
        }
        self.told.retain(|alive| {
            let told = alive.upgrade().map(|alive| alive.borrow_mut().note(row, edited.found.as_ref(), known));
            told.is_some()
        });
        Ok(edited)
    }

    /// Joins the leaf of `row` with the one behind it or else with the one before, where both are small or one is empty: in
    /// whatever order rows are removed, leaves go with them.
    fn join(&mut self, row: &Row) -> Result<()> {
        let Some((own, _)) = self.leaves.range(..=row).next_back() else { return Ok(()) };
        let behind = self.leaves.range((Excluded(own), Unbounded)).next();
        let before = self.leaves.range(..own).next_back();
        let pairs = [behind.map(|(next, _)| (own, next)), before.map(|(last, _)| (last, own))];
        let fits = |(left, right): &(&Row, &Row)| {
            let (left, right) = (self.leaves[left].bytes().len(), self.leaves[right].bytes().len());
            left + right <= JOIN_BYTES || left == 0 || right == 0
        };
        let Some((left, right)) = pairs.into_iter().flatten().find(fits) else { return Ok(()) };
        let (left, right) = (left.clone(), right.clone());
        if let Some(right) = self.leaves.remove(&right)
            && let Some(left) = self.leaves.get_mut(&left)
        {
            let two_bytes = left.bytes().len() + right.bytes().len();
            left.absorb(&right)?;
            self.bytes = self.bytes - two_bytes as u64 + left.bytes().len() as u64;
        }
        Ok(())
    }

    /// The row, if it is there.
    pub fn get(&self, row: &Row) -> Result<Option<Known>> {
        Ok(self.seek(row)?.filter(|(found, _)| found == row).map(|(_, known)| known))
    }

    /// The first row at or behind `row`.
    pub fn seek(&self, row: &Row) -> Result<Option<(Row, Known)>> {
        let before = self.leaves.range(..=row).next_back();
        let behind = self.leaves.range((Excluded(row), Unbounded));
        for (_, leaf) in before.into_iter().chain(behind) {
            if let Some(found) = leaf.walk_from(row)?.next()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The version of a name that was put without `versioned`, but for the row `but`. Of very many versions, leaves without any
    /// such are passed over.
    pub fn unversioned(&self, name: &[u8], but: Option<&Row>) -> Result<Option<(Row, Known)>> {
        let from = Row::newest(name.to_vec());
        let before = self.leaves.range(..=&from).next_back();
        let behind = self.leaves.range((Excluded(&from), Unbounded)).take_while(|(first, _)| first.name == name);
        for (_, leaf) in before.into_iter().chain(behind).filter(|(_, leaf)| leaf.has_unversioned) {
            let mut walk = leaf.walk_from(&from)?;
            while let Some((row, known)) = walk.next()?.filter(|(row, _)| row.name == name) {
                if known.is_unversioned() && but != Some(&row) {
                    return Ok(Some((row, known)));
                }
            }
        }
        Ok(None)
    }

    /// Calls `see` for the rows from `row` on, in order, until it says false.
    pub fn scan(&self, row: &Row, mut see: impl FnMut(Row, Known) -> bool) -> Result<()> {
        let before = self.leaves.range(..=row).next_back();
        let behind = self.leaves.range((Excluded(row), Unbounded));
        for (_, leaf) in before.into_iter().chain(behind) {
            let mut walk = leaf.walk_from(row)?;
            while let Some((found, known)) = walk.next()? {
                if !see(found, known) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Calls `see` for the rows of so many leaves, in order, with their names: of the first ones, or of those from `from` on.
    /// Where the next ones begin, if there are any. It is less work than [`Index::scan`], as a start does it.
    pub fn each(
        &self,
        from: Option<&Row>,
        leaves: usize,
        mut see: impl FnMut(&[u8], &Known) -> Result<()>,
    ) -> Result<Option<Row>> {
        let mut left = self.leaves.range((from.map_or(Unbounded, Included), Unbounded));
        for (_, leaf) in left.by_ref().take(leaves) {
            let mut walk = leaf.walk();
            while let Some((name, known)) = walk.next_value()? {
                see(name, known)?;
            }
        }
        Ok(left.next().map(|(first, _)| first.clone()))
    }

    /// A leaf of the rows behind `after` (all rows for `None`) and the last row in it: one step of a walk that may go
    /// on while the index changes.
    pub fn leaf_after(&self, after: Option<&Row>) -> Result<Option<(Row, Leaf)>> {
        let from = after.cloned().unwrap_or_else(|| Row::newest(Vec::new()));
        let before = self.leaves.range(..=&from).next_back();
        let behind = self.leaves.range((Excluded(&from), Unbounded));
        for (_, leaf) in before.into_iter().chain(behind) {
            let Some((first, last)) = leaf.ends()? else { continue };
            if after.is_none_or(|after| first > *after) {
                return Ok(Some((last, leaf.copy())));
            }
            if after.is_some_and(|after| last > *after) {
                // Leaves were joined since: what was taken already is left out.
                let mut rest = Leaf::default();
                let mut walk = leaf.walk_from(&from)?;
                while let Some((row, known)) = walk.next()? {
                    if row > from {
                        rest.edit(&row, Some(&known))?;
                    }
                }
                return Ok(Some((last, rest)));
            }
        }
        Ok(None)
    }

    /// Adds a leaf of a checkpoint; leaves come in order.
    pub fn push_leaf(&mut self, mut leaf: Leaf) -> Result<()> {
        if let Some((first, rows)) = leaf.first()? {
            self.rows += rows;
            self.bytes += leaf.bytes().len() as u64;
            self.leaves.insert(first, leaf);
        }
        Ok(())
    }
}
