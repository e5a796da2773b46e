//! Which position of a place each of its rows lies at: decisions, and the format of a map. No I/O.
//!
//! ```text
//!  0  magic u32   4  CRC u32 (over the map, itself as zero)   8  volume u64   16  born u64
//! 24  place u16   26  zero u16   28  rows u32   32  taken u64   40  sequence u64   48  position u16 of each row; zeroes to the end
//! ```

use crate::blocks::Blocks;
use kura_block::{BLOCK_BYTES, Buf, Reader, Writer, is_sealed};
use std::ops::Range;

const MAGIC: u32 = 0x4d46_754b; // "KuFM"
const CRC_AT: usize = 4;
const HEADER_BYTES: usize = 48;
/// Free positions are looked for so far from where the head is: about a track.
const REACH: usize = 64;
/// Positions that nobody asked for are read with their neighbours where they are so few: that costs less than another request.
const GAP: usize = 8;

/// Copies of each map on its disk: a sector that is not read again costs nothing.
pub(crate) const MAP_COPIES: u64 = 2;

/// Bytes of the map of a place of so many rows.
pub(crate) fn map_bytes(rows: usize) -> u64 {
    (HEADER_BYTES + 2 * rows).next_multiple_of(BLOCK_BYTES) as u64
}

/// Whose rows lie at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowsOwner {
    /// The volume.
    pub volume: u64,
    /// LSN of the record that allocated the group.
    pub born: u64,
    /// Which of the group's places.
    pub place: u16,
}

/// Which of an owner's maps is the later one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    /// Where the log was when the group took the place: a map of an earlier time there says nothing any more.
    pub taken: u64,
    /// Counts the maps since.
    pub sequence: u64,
}

/// Where rows lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Map {
    at: Box<[u16]>,
    /// Positions that rows lie at, are being written to, or were left for while somebody may read them there.
    taken: Blocks,
    /// Of these, the last kind.
    left: Vec<u16>,
    /// Positions that a map on the disk has, or may have.
    named: Blocks,
    positions: usize,
}

impl Map {
    /// Rows in order, and a free position behind every so many of them, so that there is one near to each.
    pub fn initial(rows: usize, spare: usize) -> Self {
        Self::of((0..rows).map(|row| (row + row * spare / rows) as u16).collect(), rows + spare)
    }

    fn of(at: Box<[u16]>, positions: usize) -> Self {
        let mut taken = Blocks::none(positions);
        for position in &at {
            taken.add((*position).into());
        }
        Self { at, named: taken.clone(), taken, left: Vec::new(), positions }
    }

    pub fn position(&self, row: usize) -> usize {
        self.at[row].into()
    }

    /// Rows that lie on end: the first position, and how many.
    pub fn runs(&self, rows: Range<usize>) -> Vec<(usize, usize)> {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for position in rows.map(|row| self.position(row)) {
            match runs.last_mut() {
                Some((first, len)) if *first + *len == position => *len += 1,
                _ => runs.push((position, 1)),
            }
        }
        runs
    }

    /// What is read at once for rows: the positions, and which of them, counted from the first, have the rows.
    pub fn spans(&self, rows: Range<usize>) -> Vec<(Range<usize>, Vec<usize>)> {
        let mut spans: Vec<(Range<usize>, Vec<usize>)> = Vec::new();
        for position in rows.map(|row| self.position(row)) {
            match spans.last_mut() {
                Some((span, has)) if (span.end..=span.end + GAP).contains(&position) => {
                    has.push(position - span.start);
                    span.end = position + 1;
                }
                _ => spans.push((position..position + 1, vec![0])),
            }
        }
        spans
    }

    fn is_free(&self, position: usize) -> bool {
        !self.taken.has(position) && !self.named.has(position)
    }

    /// Takes the free position that comes under the head first, which is at `head`: the next one behind it, or else the nearest
    /// before it. `None` where there is none near it.
    pub fn take_near(&mut self, head: usize) -> Option<usize> {
        let behind = (head..self.positions.min(head + REACH)).find(|position| self.is_free(*position));
        let near = || (head.saturating_sub(REACH)..head.min(self.positions)).rev().find(|at| self.is_free(*at));
        let position = behind.or_else(near)?;
        self.taken.add(position);
        Some(position)
    }

    /// A row lies at the position taken for it now.
    pub fn put(&mut self, row: usize, position: usize) {
        self.left.push(std::mem::replace(&mut self.at[row], position as u16));
    }

    /// Nothing came of the position that was taken.
    pub fn give_back(&mut self, position: usize) {
        self.taken.remove(position);
    }

    /// Nobody reads at positions that were left.
    pub fn forget_left(&mut self) {
        for position in self.left.drain(..) {
            self.taken.remove(position.into());
        }
    }

    /// Positions that rows lie at.
    pub fn rows(&self) -> Blocks {
        Self::of(self.at.clone(), self.positions).taken
    }

    /// From now on a map on the disk may have these positions, too.
    pub fn name(&mut self, positions: &Blocks) {
        for position in (0..self.positions).filter(|position| positions.has(*position)) {
            self.named.add(position);
        }
    }

    /// The map on the disk has these positions and no others.
    pub fn name_only(&mut self, positions: Blocks) {
        self.named = positions;
    }

    /// The map as it goes to the disk.
    pub fn encode(&self, owner: RowsOwner, version: Version) -> Buf {
        let mut out = Writer::with_room(HEADER_BYTES + 2 * self.at.len());
        out.u32(MAGIC).u32(0).u64(owner.volume).u64(owner.born).u16(owner.place).u16(0);
        out.u32(self.at.len() as u32).u64(version.taken).u64(version.sequence);
        for position in &self.at {
            out.u16(*position);
        }
        out.pad_to(BLOCK_BYTES);
        out.seal(CRC_AT);
        Buf::copy_of(out.as_slice())
    }

    /// False for what was a map and is rotten, or torn.
    pub fn is_whole(bytes: &[u8]) -> bool {
        !bytes.starts_with(&MAGIC.to_le_bytes()) || is_sealed(bytes, CRC_AT)
    }

    /// Reads a map and its version; `None` where there is none of this owner.
    pub fn decode(bytes: &[u8], owner: RowsOwner, rows: usize, spare: usize) -> Option<(Self, Version)> {
        let mut reader = Reader::new(bytes);
        if reader.u32().ok()? != MAGIC || !is_sealed(bytes, CRC_AT) {
            return None;
        }
        reader.u32().ok()?;
        let (volume, born, place) = (reader.u64().ok()?, reader.u64().ok()?, reader.u16().ok()?);
        reader.u16().ok()?;
        if (RowsOwner { volume, born, place }) != owner || reader.u32().ok()? as usize != rows {
            return None;
        }
        let version = Version { taken: reader.u64().ok()?, sequence: reader.u64().ok()? };
        let at: Box<[u16]> = (0..rows).map(|_| reader.u16()).collect::<Result<_, _>>().ok()?;
        let sound = at.iter().all(|position| usize::from(*position) < rows + spare);
        let map = sound.then(|| Self::of(at, rows + spare))?;
        (map.taken.count() as usize == rows).then_some((map, version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const OWNER: RowsOwner = RowsOwner { volume: 7, born: 9, place: 2 };

    #[test]
    fn every_neighbourhood_begins_with_a_free_position() {
        for (rows, spare) in [(16, 1), (128, 12), (1024, 113), (16384, 16384)] {
            let map = Map::initial(rows, spare);
            assert_eq!(map.rows().count() as usize, rows);
            let free: Vec<_> = (0..rows + spare).filter(|at| map.is_free(*at)).collect();
            assert_eq!(free.len(), spare);
            let widest = free.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
            assert!(widest <= rows.div_ceil(spare) + 1, "{rows} and {spare}: {widest}");
        }
    }

    #[test]
    fn what_lies_near_is_read_at_once() {
        let mut map = Map::initial(32, 4);
        assert_eq!(map.spans(0..10), [(0..11, vec![0, 1, 2, 3, 4, 5, 6, 7, 9, 10])]);
        assert_eq!(map.runs(0..10), [(0, 8), (9, 2)]);
        let far = map.take_near(30).unwrap();
        map.put(3, far);
        assert_eq!(map.spans(2..5), [(2..3, vec![0]), (far..far + 1, vec![0]), (4..5, vec![0])]);
    }

    #[test]
    fn a_map_is_read_by_its_owner_and_whole() {
        let map = Map::initial(100, 10);
        let version = Version { taken: 11, sequence: 5 };
        let bytes = map.encode(OWNER, version);
        assert_eq!(bytes.len() as u64, map_bytes(100));
        assert_eq!(Map::decode(&bytes, OWNER, 100, 10), Some((map, version)));
        for other in [RowsOwner { volume: 8, ..OWNER }, RowsOwner { born: 8, ..OWNER }, RowsOwner { place: 3, ..OWNER }]
        {
            assert_eq!(Map::decode(&bytes, other, 100, 10), None);
        }
        assert_eq!(Map::decode(&bytes, OWNER, 100, 1), None, "it has positions that this place lacks");
        let mut torn = bytes.to_vec();
        torn[60] ^= 1;
        assert_eq!(Map::decode(&torn, OWNER, 100, 10), None);
    }

    proptest! {
        /// Whatever is written, each row has a position of its own, and no position that a map on the disk has is written as
        /// another row's before a map without it is there.
        #[test]
        fn rows_never_meet(
            rows in 1usize..200,
            spare in 1usize..60,
            work in proptest::collection::vec((0u8..4, any::<u16>(), any::<u16>()), 1..200),
        ) {
            let mut map = Map::initial(rows, spare);
            // What the disk may have: the last map that is durable, and one that was written since.
            let (mut durable, mut written) = (map.clone(), None::<Map>);
            let mut under_way: Vec<(usize, usize)> = Vec::new();
            for (what, row, head) in work {
                let (row, head) = (usize::from(row) % rows, usize::from(head) % (rows + spare));
                match what {
                    0 if under_way.iter().all(|(other, _)| *other != row) => {
                        if let Some(position) = map.take_near(head) {
                            let may_be_found = [Some(&durable), written.as_ref()];
                            for found in may_be_found.into_iter().flatten().chain([&map]) {
                                prop_assert!((0..rows).all(|other| found.position(other) != position));
                            }
                            under_way.push((row, position));
                        }
                    }
                    1 => if let Some((row, position)) = under_way.pop() { map.put(row, position) },
                    2 => if let Some((_, position)) = under_way.pop() { map.give_back(position) },
                    _ if written.is_none() => {
                        map.name(&map.rows());
                        written = Some(map.clone());
                    }
                    _ => {
                        if let Some(now) = written.take() {
                            map.name_only(now.rows());
                            durable = now;
                        }
                        map.forget_left();
                    }
                }
                let positions: BTreeSet<_> = (0..rows).map(|row| map.position(row)).collect();
                prop_assert_eq!(positions.len(), rows);
                prop_assert!(under_way.iter().all(|(_, position)| !positions.contains(position)));
                let runs: Vec<_> = map.runs(0..rows).into_iter().flat_map(|(at, len)| at..at + len).collect();
                prop_assert_eq!(runs, (0..rows).map(|row| map.position(row)).collect::<Vec<_>>());
                let spans = map.spans(0..rows).into_iter();
                let read: Vec<_> = spans.flat_map(|(at, has)| has.into_iter().map(move |nth| at.start + nth)).collect();
                prop_assert_eq!(read, (0..rows).map(|row| map.position(row)).collect::<Vec<_>>());
            }
        }
    }
}
