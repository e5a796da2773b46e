//! A leaf: rows in order, each name without what it shares with the one before, in one run of bytes that is the same
//! in memory and in a checkpoint.
//!
//! ```text
//!  row: shared, rest (bytes of the name), version, packed (bytes): numbers of 7 bits a byte; then rest and packed
//! ```

use crate::known::{Known, Unpack, put};
use crate::object::Row;
use kura_block::Result;
use std::cmp::{Ordering, Reverse};
use std::ops::Range;

/// A leaf above this many bytes is split, unless it is a single row.
pub(crate) const LEAF_LIMIT_BYTES: usize = 2048;
/// The memory of a leaf: of one size, so that leaves that come and go leave no gaps between them.
const ROOM_BYTES: usize = LEAF_LIMIT_BYTES + 256;

#[derive(Default)]
pub(crate) struct Leaf {
    bytes: Vec<u8>,
}

/// What an edit met.
pub(crate) struct Edited {
    /// The row's value before.
    pub found: Option<Known>,
    /// The row behind it in the leaf, if it is of the same name.
    pub sibling: Option<(Row, Known)>,
    /// False when the row is the leaf's last one: what is behind it is not known here.
    pub sees_behind: bool,
}

/// Goes through the rows of a leaf.
pub(crate) struct Walk<'a> {
    bytes: &'a [u8],
    end: usize,
    /// Bytes of the row last met, whole.
    row: Range<usize>,
    name: Vec<u8>,
    version: u64,
    packed: Range<usize>,
}

impl<'a> Walk<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, end: 0, row: 0..0, name: Vec::new(), version: 0, packed: 0..0 }
    }

    /// Goes on to the next row; false at the end.
    fn step(&mut self) -> Result<bool> {
        if self.end == self.bytes.len() {
            return Ok(false);
        }
        let mut reader = Unpack { bytes: &self.bytes[self.end..] };
        let (shared, rest) = (reader.number()? as usize, reader.number()? as usize);
        let version = reader.number()?;
        let packed_bytes = reader.number()? as usize;
        let suffix = reader.take(rest)?;
        self.name.truncate(shared);
        self.name.extend_from_slice(suffix);
        reader.take(packed_bytes)?;
        let end = self.bytes.len() - reader.bytes.len();
        self.row = self.end..end;
        self.packed = end - packed_bytes..end;
        self.version = version;
        self.end = end;
        Ok(true)
    }

    fn order(&self, row: &Row) -> Ordering {
        self.name.as_slice().cmp(&row.name).then_with(|| Reverse(self.version).cmp(&row.version))
    }

    /// The next row, taken apart.
    pub fn next(&mut self) -> Result<Option<(Row, Known)>> {
        if !self.step()? {
            return Ok(None);
        }
        self.current().map(Some)
    }

    /// The same with its name lent.
    pub fn next_value(&mut self) -> Result<Option<(&[u8], Known)>> {
        if !self.step()? {
            return Ok(None);
        }
        let known = Known::unpack(self.version, &self.bytes[self.packed.clone()])?;
        Ok(Some((&self.name, known)))
    }

    fn current(&self) -> Result<(Row, Known)> {
        let known = Known::unpack(self.version, &self.bytes[self.packed.clone()])?;
        Ok((Row::new(self.name.clone(), self.version), known))
    }
}

fn encode(out: &mut Vec<u8>, before: &[u8], name: &[u8], version: u64, packed: &[u8]) {
    let shared = before.iter().zip(name).take_while(|(a, b)| a == b).count();
    put(out, shared as u64);
    put(out, (name.len() - shared) as u64);
    put(out, version);
    put(out, packed.len() as u64);
    out.extend_from_slice(&name[shared..]);
    out.extend_from_slice(packed);
}

impl Leaf {
    /// Bytes as they were written; the rows are held against the format as they are met.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut room = Vec::with_capacity(bytes.len().max(ROOM_BYTES));
        room.extend_from_slice(bytes);
        Self { bytes: room }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn copy(&self) -> Self {
        Self { bytes: self.bytes.clone() }
    }

    pub fn walk(&self) -> Walk<'_> {
        Walk::new(&self.bytes)
    }

    /// The first row, and how many there are, without a look at what they say; none of an empty leaf.
    pub fn first(&self) -> Result<Option<(Row, u64)>> {
        let mut walk = self.walk();
        if !walk.step()? {
            return Ok(None);
        }
        let (first, mut rows) = (Row::new(walk.name.clone(), walk.version), 1);
        while walk.step()? {
            rows += 1;
        }
        Ok(Some((first, rows)))
    }

    /// The first and the last row; none of an empty leaf.
    pub fn ends(&self) -> Result<Option<(Row, Row)>> {
        let mut walk = self.walk();
        if !walk.step()? {
            return Ok(None);
        }
        let first = Row::new(walk.name.clone(), walk.version);
        while walk.step()? {}
        Ok(Some((first, Row::new(walk.name, walk.version))))
    }

    /// The first row at or behind `row`, and whether it is `row` itself.
    pub fn seek(&self, row: &Row) -> Result<Option<(Row, Known)>> {
        let mut walk = self.walk();
        while walk.step()? {
            if walk.order(row) != Ordering::Less {
                return walk.current().map(Some);
            }
        }
        Ok(None)
    }

    /// Sets or removes a row.
    pub fn edit(&mut self, row: &Row, known: Option<&Known>) -> Result<Edited> {
        let mut walk = self.walk();
        let mut before: Vec<u8> = Vec::new();
        let mut found = None;
        // The bytes to replace, and the row behind them, whose shared part changes.
        let mut range = self.bytes.len()..self.bytes.len();
        let mut behind = None;
        loop {
            before.clear();
            before.extend_from_slice(&walk.name);
            if !walk.step()? {
                break;
            }
            let order = walk.order(row);
            if order == Ordering::Less {
                continue;
            }
            range = walk.row.clone();
            if order == Ordering::Equal {
                found = Some(walk.current()?.1);
                if !walk.step()? {
                    break;
                }
                range.end = walk.row.end;
            }
            behind = Some((walk.name.clone(), walk.version, walk.packed.clone()));
            break;
        }
        let mut patch = Vec::new();
        let mut last: &[u8] = &before;
        if let Some(known) = known {
            encode(&mut patch, last, &row.name, row.version.0, &known.pack());
            last = &row.name;
        }
        let (sees_behind, mut sibling) = (behind.is_some(), None);
        if let Some((name, version, packed)) = behind {
            let packed = &self.bytes[packed];
            encode(&mut patch, last, &name, version, packed);
            if name == row.name {
                sibling = Some((Row::new(name, version), Known::unpack(version, packed)?));
            }
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(ROOM_BYTES);
        }
        self.bytes.splice(range, patch);
        Ok(Edited { found, sibling, sees_behind })
    }

    /// Cuts a leaf that is too large in two; the second half and its first row.
    pub fn split(&mut self) -> Result<Option<(Row, Leaf)>> {
        if self.bytes.len() <= LEAF_LIMIT_BYTES {
            return Ok(None);
        }
        let mut walk = self.walk();
        while walk.step()? {
            let cut = walk.row.clone();
            let is_first = cut.start == 0;
            let is_last = cut.end == self.bytes.len();
            // Behind the middle, or a row that is large by itself: it gets a leaf of its own.
            if !is_first && (cut.end > self.bytes.len() / 2 || is_last) {
                let mut right = Vec::new();
                encode(&mut right, &[], &walk.name, walk.version, &self.bytes[walk.packed.clone()]);
                right.extend_from_slice(&self.bytes[cut.end..]);
                let row = Row::new(walk.name.clone(), walk.version);
                self.bytes.truncate(cut.start);
                // A row that is large by itself had more room than a leaf has.
                self.bytes.shrink_to(ROOM_BYTES);
                return Ok(Some((row, Self::from_bytes(&right))));
            }
        }
        Ok(None)
    }

    /// Takes over the rows of the leaf behind this one.
    pub fn absorb(&mut self, right: &Leaf) -> Result<()> {
        let mut walk = self.walk();
        while walk.step()? {}
        let last = walk.name;
        let mut behind = right.walk();
        if behind.step()? {
            encode(&mut self.bytes, &last, &behind.name, behind.version, &right.bytes[behind.packed.clone()]);
            self.bytes.extend_from_slice(&right.bytes[behind.end..]);
        }
        Ok(())
    }
}
