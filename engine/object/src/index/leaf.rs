//! A leaf: rows in order, each name without what it shares with the one before, in one run of bytes that is the same
//! in memory and in a checkpoint.
//!
//! ```text
//!  row: shared, rest (bytes of the name), version, packed (bytes): numbers of 7 bits a byte; then rest and packed
//! ```

use crate::known::{Known, UNVERSIONED, Unpack, put};
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
    /// One of its versions at least was put without `versioned`.
    pub(super) has_unversioned: bool,
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

/// A row as it lies in a leaf.
struct Raw<'a> {
    /// Its bytes in the leaf.
    range: Range<usize>,
    /// Bytes that its name shares with that of the row before: as many as it does.
    shared: usize,
    /// The name's other bytes.
    rest: &'a [u8],
    version: u64,
    packed: &'a [u8],
}

impl Raw<'_> {
    fn is_unversioned(&self) -> bool {
        self.packed.first().is_some_and(|flags| flags & UNVERSIONED != 0)
    }
}

/// Where the parts of a row are among a leaf's bytes.
#[derive(Clone, Copy)]
struct Parts {
    /// Bytes of the name that are not here.
    shared: usize,
    version: usize,
    rest: usize,
    packed: usize,
    end: usize,
}

/// Goes through the rows of a leaf without their names.
struct Rows<'a> {
    bytes: &'a [u8],
    end: usize,
}

impl<'a> Rows<'a> {
    /// The next row; none at the end.
    fn next(&mut self) -> Result<Option<Raw<'a>>> {
        if self.end == self.bytes.len() {
            return Ok(None);
        }
        let parts = self.parts()?;
        self.row(parts).map(Some)
    }

    /// The next row, whose parts are there.
    fn row(&mut self, parts: Parts) -> Result<Raw<'a>> {
        let Parts { shared, version, rest, packed, end } = parts;
        let version = Unpack { bytes: &self.bytes[version..rest] }.number()?;
        let range = self.end..end;
        self.end = end;
        Ok(Raw { range, shared, rest: &self.bytes[rest..packed], version, packed: &self.bytes[packed..end] })
    }

    #[inline]
    fn parts(&self) -> Result<Parts> {
        match self.short_parts() {
            Some(parts) => Ok(parts),
            None => self.any_parts(),
        }
    }

    /// Those of a row whose lengths take a byte each and its version at most eight, as nearly all do: a search spends its time
    /// here.
    #[inline]
    fn short_parts(&self) -> Option<Parts> {
        const LAST: u64 = 0x8080_8080_8080_8080;
        let [shared, rest_bytes, eight @ ..] = *self.bytes[self.end..].first_chunk::<10>()?;
        let version = self.end + 2;
        // The first byte without the bit is the version's last; without any, what comes next is beyond.
        let version_bytes = (!u64::from_le_bytes(eight) & LAST).trailing_zeros() as usize / 8 + 1;
        let packed_bytes = *self.bytes.get(version + version_bytes)?;
        let rest = version + version_bytes + 1;
        let packed = rest + usize::from(rest_bytes);
        let end = packed + usize::from(packed_bytes);
        let is_short = (shared | rest_bytes | packed_bytes) < 0x80 && version_bytes <= 8 && end <= self.bytes.len();
        is_short.then_some(Parts { shared: shared.into(), version, rest, packed, end })
    }

    #[cold]
    fn any_parts(&self) -> Result<Parts> {
        let mut reader = Unpack { bytes: &self.bytes[self.end..] };
        let at = |reader: &Unpack<'_>| self.bytes.len() - reader.bytes.len();
        let (shared, rest_bytes) = (reader.number()? as usize, reader.number()? as usize);
        let version = at(&reader);
        reader.number()?;
        let packed_bytes = reader.number()? as usize;
        let rest = at(&reader);
        reader.take(rest_bytes)?;
        let packed = at(&reader);
        reader.take(packed_bytes)?;
        Ok(Parts { shared, version, rest, packed, end: at(&reader) })
    }
}

/// Goes through the rows of a leaf with their names.
pub(crate) struct Walk<'a> {
    rows: Rows<'a>,
    name: Vec<u8>,
    known: Known,
}

impl<'a> Walk<'a> {
    /// Goes on to the next row; none at the end.
    fn step(&mut self) -> Result<Option<Raw<'a>>> {
        let row = self.rows.next()?;
        if let Some(row) = &row {
            self.name.truncate(row.shared);
            self.name.extend_from_slice(row.rest);
        }
        Ok(row)
    }

    /// The next row, taken apart.
    pub fn next(&mut self) -> Result<Option<(Row, Known)>> {
        let Some(row) = self.step()? else { return Ok(None) };
        let known = Known::unpack(row.version, row.packed)?;
        Ok(Some((Row::new(self.name.clone(), row.version), known)))
    }

    /// The same, lent.
    pub fn next_value(&mut self) -> Result<Option<(&[u8], &Known)>> {
        let Some(row) = self.step()? else { return Ok(None) };
        self.known.refill(row.version, row.packed)?;
        Ok(Some((&self.name, &self.known)))
    }
}

/// Where a row stands in a leaf, or would.
struct Place<'a> {
    /// The rows from there on: the first that is not before it, and those behind.
    first: Option<Raw<'a>>,
    behind: Rows<'a>,
    /// That row is the one looked for.
    is_it: bool,
    /// Bytes of the name looked for that the row before has too, and that the first one has.
    shared: usize,
    shared_behind: usize,
}

/// Bytes that two names begin with, both.
fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Appends a row whose name is `shared` bytes of the one before, and then `rest`, in parts.
fn encode(out: &mut Vec<u8>, shared: usize, rest: [&[u8]; 2], version: u64, packed: &[u8]) {
    put(out, shared as u64);
    put(out, (rest[0].len() + rest[1].len()) as u64);
    put(out, version);
    put(out, packed.len() as u64);
    out.extend_from_slice(rest[0]);
    out.extend_from_slice(rest[1]);
    out.extend_from_slice(packed);
}

impl Leaf {
    /// Bytes as they were written; the rows are held against the format as they are met.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut room = Vec::with_capacity(bytes.len().max(ROOM_BYTES));
        room.extend_from_slice(bytes);
        // Until the rows are met.
        Self { bytes: room, has_unversioned: true }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn copy(&self) -> Self {
        Self { bytes: self.bytes.clone(), has_unversioned: self.has_unversioned }
    }

    fn rows(&self) -> Rows<'_> {
        Rows { bytes: &self.bytes, end: 0 }
    }

    pub fn walk(&self) -> Walk<'_> {
        Walk { rows: self.rows(), name: Vec::new(), known: Known::default() }
    }

    /// The first row, and how many there are, with little of a look at what they say; none of an empty leaf.
    pub fn first(&mut self) -> Result<Option<(Row, u64)>> {
        let mut rows = Rows { bytes: &self.bytes, end: 0 };
        let Some(first) = rows.next()? else { return Ok(None) };
        let mut count = 1;
        self.has_unversioned = first.is_unversioned();
        while let Some(row) = rows.next()? {
            count += 1;
            self.has_unversioned |= row.is_unversioned();
        }
        Ok(Some((Row::new(first.rest.to_vec(), first.version), count)))
    }

    /// Looks whether a version was put without `versioned`.
    fn note_unversioned(&mut self) -> Result<()> {
        self.has_unversioned = false;
        let mut rows = Rows { bytes: &self.bytes, end: 0 };
        while let Some(row) = rows.next()?.filter(|_| !self.has_unversioned) {
            self.has_unversioned = row.is_unversioned();
        }
        Ok(())
    }

    /// The first and the last row; none of an empty leaf.
    pub fn ends(&self) -> Result<Option<(Row, Row)>> {
        let mut walk = self.walk();
        let Some(mut last) = walk.step()? else { return Ok(None) };
        let first = Row::new(walk.name.clone(), last.version);
        while let Some(row) = walk.step()? {
            last = row;
        }
        Ok(Some((first, Row::new(walk.name, last.version))))
    }

    /// Looks for a row. Names are not put together for it: where the row before shares `shared` bytes with the name
    /// looked for, and a row shares more than that with the row before, it differs from the name where that one does; if
    /// it shares less, it is behind. Only where it shares as many are its other bytes looked at.
    fn find(&self, row: &Row) -> Result<Place<'_>> {
        let mut behind = self.rows();
        let mut shared = 0;
        while behind.end < self.bytes.len() {
            // Not by `parts`: a row that is passed on by way of memory takes twice as long.
            let parts = match behind.short_parts() {
                Some(parts) => parts,
                None => behind.any_parts()?,
            };
            if parts.shared > shared {
                behind.end = parts.end;
                continue;
            }
            let next = behind.row(parts)?;
            let (order, shared_behind) = if next.shared < shared {
                (Ordering::Greater, next.shared)
            } else {
                let wanted = row.name.get(shared..).unwrap_or_default();
                let more = common(next.rest, wanted);
                let order = next.rest[more..].cmp(&wanted[more..]);
                (order.then_with(|| Reverse(next.version).cmp(&row.version)), shared + more)
            };
            if order == Ordering::Less {
                shared = shared_behind;
                continue;
            }
            return Ok(Place { first: Some(next), behind, is_it: order == Ordering::Equal, shared, shared_behind });
        }
        Ok(Place { first: None, behind, is_it: false, shared, shared_behind: 0 })
    }

    /// Goes through the rows at and behind `row`.
    pub fn walk_from(&self, row: &Row) -> Result<Walk<'_>> {
        let first = self.find(row)?.first;
        let (end, shared) = first.map_or((self.bytes.len(), 0), |first| (first.range.start, first.shared));
        let rows = Rows { bytes: &self.bytes, end };
        Ok(Walk { rows, name: row.name[..shared].to_vec(), known: Known::default() })
    }

    /// Sets or removes a row.
    pub fn edit(&mut self, row: &Row, known: Option<&Known>) -> Result<Edited> {
        let Place { first, mut behind, is_it, shared, shared_behind } = self.find(row)?;
        // The row behind the one that is edited, and the bytes of the name that it shares.
        let (found, next, next_shared) = match first {
            Some(it) if is_it => {
                let next = behind.next()?;
                let next_shared = next.as_ref().map_or(0, |next| next.shared);
                (Some(it), next, next_shared)
            }
            first => (None, first, shared_behind),
        };
        let mut edited = Edited { found: None, sibling: None, sees_behind: next.is_some() };
        if let Some(found) = &found {
            edited.found = Some(Known::unpack(row.version.0, found.packed)?);
        }
        if let Some(next) = &next
            && next_shared == row.name.len()
            && next.shared + next.rest.len() == next_shared
        {
            let known = Known::unpack(next.version, next.packed)?;
            edited.sibling = Some((Row::new(row.name.clone(), next.version), known));
        }
        let start = found.as_ref().or(next.as_ref()).map_or(self.bytes.len(), |first| first.range.start);
        let mut range = start..found.as_ref().map_or(start, |found| found.range.end);
        let mut patch = Vec::with_capacity(256);
        if let Some(known) = known {
            encode(&mut patch, shared, [&row.name[shared..], &[]], row.version.0, &known.pack());
        }
        // What the row behind shares with the one before it has changed.
        if let Some(next) = next {
            let shared = if known.is_some() { next_shared } else { shared.min(next_shared) };
            if shared != next.shared {
                let gained = row.name.get(shared..next.shared).unwrap_or_default();
                let lost = shared.saturating_sub(next.shared);
                encode(&mut patch, shared, [gained, &next.rest[lost..]], next.version, next.packed);
                range.end = next.range.end;
            }
        }
        self.replace(range, &patch);
        match known {
            Some(known) => self.has_unversioned |= known.is_unversioned(),
            None if edited.found.as_ref().is_some_and(Known::is_unversioned) => self.note_unversioned()?,
            None => {}
        }
        Ok(edited)
    }

    /// An empty leaf has no memory before it is to hold something.
    fn make_room(&mut self) {
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(ROOM_BYTES);
        }
    }

    /// Puts other bytes in the place of some.
    fn replace(&mut self, range: Range<usize>, patch: &[u8]) {
        self.make_room();
        let (old, end) = (self.bytes.len(), range.start + patch.len());
        let new = old - range.len() + patch.len();
        self.bytes.resize(old.max(new), 0);
        self.bytes.copy_within(range.end..old, end);
        self.bytes.truncate(new);
        self.bytes[range.start..end].copy_from_slice(patch);
    }

    /// Cuts a leaf that is too large in two; the second half and its first row.
    pub fn split(&mut self) -> Result<Option<(Row, Leaf)>> {
        if self.bytes.len() <= LEAF_LIMIT_BYTES {
            return Ok(None);
        }
        let mut walk = self.walk();
        while let Some(row) = walk.step()? {
            let cut = row.range;
            let is_first = cut.start == 0;
            let is_last = cut.end == self.bytes.len();
            // Behind the middle, or a row that is large by itself: it gets a leaf of its own.
            if !is_first && (cut.end > self.bytes.len() / 2 || is_last) {
                let mut right = Vec::with_capacity(ROOM_BYTES);
                encode(&mut right, 0, [&walk.name, &[]], row.version, row.packed);
                right.extend_from_slice(&self.bytes[cut.end..]);
                let first = Row::new(walk.name, row.version);
                self.bytes.truncate(cut.start);
                // A row that is large by itself had more room than a leaf has.
                self.bytes.shrink_to(ROOM_BYTES);
                let mut right = Self { bytes: right, has_unversioned: false };
                self.note_unversioned()?;
                right.note_unversioned()?;
                return Ok(Some((first, right)));
            }
        }
        Ok(None)
    }

    /// Takes over the rows of the leaf behind this one.
    pub fn absorb(&mut self, right: &Leaf) -> Result<()> {
        self.make_room();
        self.has_unversioned |= right.has_unversioned;
        let mut walk = self.walk();
        while walk.step()?.is_some() {}
        let last = walk.name;
        if let Some(first) = right.rows().next()? {
            let shared = common(&last, first.rest);
            encode(&mut self.bytes, shared, [&first.rest[shared..], &[]], first.version, first.packed);
            self.bytes.extend_from_slice(&right.bytes[first.range.end..]);
        }
        Ok(())
    }
}
