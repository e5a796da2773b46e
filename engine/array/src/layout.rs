//! Where things lie: layouts over disks.
//!
//! ```text
//!  a group of RAID5, 2D+P, chunks of 2 blocks        place 0   place 1   place 2
//!                                        stripe 0     0  1      2  3      P  P        row 0 = blocks 0, 2 and P
//!                                        stripe 1     4  5      P  P      6  7        row 1 = blocks 1, 3 and P
//!                                        stripe 2     P  P      8  9     10 11
//! ```

use kura_block::{DeviceId, Error, ExtentId, Result};
use smallvec::SmallVec;
use std::ops::Range;

/// How a volume's extents are laid on disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One copy: a lost disk loses data.
    None,
    /// Two copies on two disks.
    Mirror,
    /// Stripes over several disks, each with its parity: one disk of a group may be lost.
    Raid5,
    /// As RAID5, with blocks that are used often in a mirrored area besides.
    HotMirror,
    /// As RAID5, with data and parity that are written where the head of their disk is next.
    Floating,
}

/// A layout over so many disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Copies of each block.
    pub copies: u8,
    /// Disks over which the data of a group is spread.
    pub columns: u8,
    /// True when each stripe has a parity chunk on one disk more.
    pub parity: bool,
    /// True when rows have no fixed position on their disks: only with parity.
    pub floats: bool,
    /// Blocks of a stripe that lie on end on one disk: a power of two.
    pub chunk_blocks: u16,
}

impl Shape {
    /// One copy.
    pub const SINGLE: Self = Self { copies: 1, columns: 1, parity: false, floats: false, chunk_blocks: 1 };
    /// Two copies.
    pub const MIRROR: Self = Self { copies: 2, ..Self::SINGLE };
    /// The longest chunk: what a record says of a stripe has to fit an entry of the journal.
    pub const CHUNK_LIMIT_BLOCKS: u16 = 128;
    /// The most disks of a group with parity where nobody says how many: the paper's 5D+P.
    const WIDTH: usize = 6;
    /// The most columns of a group.
    pub const COLUMNS_LIMIT: u8 = 16;

    /// The shape of RAID5 over `disks` disks, parity's among them, 3 to 17.
    pub fn raid5(disks: usize, chunk_blocks: u16) -> Self {
        assert!((3..=usize::from(Self::COLUMNS_LIMIT) + 1).contains(&disks), "RAID5 over {disks} disks");
        Self { copies: 1, columns: disks as u8 - 1, parity: true, floats: false, chunk_blocks }
    }

    /// Disks that a group lies on.
    pub fn width(&self) -> usize {
        usize::from(self.copies) * usize::from(self.columns) + usize::from(self.parity)
    }

    /// Extents of a volume in a group.
    pub fn extents(&self) -> u32 {
        u32::from(self.columns)
    }

    /// Blocks of data in a stripe.
    pub fn stripe_blocks(&self) -> u64 {
        u64::from(self.columns) * u64::from(self.chunk_blocks)
    }

    /// Bytes on disks that a byte of data takes, as a fraction.
    pub fn cost(&self) -> (u64, u64) {
        (self.width() as u64, u64::from(self.columns))
    }

    /// Which of a group's places has a column of a stripe.
    pub fn place_of(&self, stripe: u64, column: usize) -> usize {
        if !self.parity {
            return 0;
        }
        let parity = self.parity_place(stripe);
        (parity + 1 + column) % self.width()
    }

    /// Which of a group's places has the parity of a stripe.
    pub fn parity_place(&self, stripe: u64) -> usize {
        let width = self.width();
        width - 1 - (stripe % width as u64) as usize
    }

    /// The pieces of a range of blocks of a group that lie on end on one disk each, in order.
    pub fn pieces(self, blocks: Range<u64>) -> impl Iterator<Item = Piece> {
        let mut at = blocks.start;
        std::iter::from_fn(move || {
            if at >= blocks.end {
                return None;
            }
            let piece = self.piece_at(at, blocks.end);
            at += piece.rows.len() as u64;
            Some(piece)
        })
    }

    fn piece_at(self, at: u64, end: u64) -> Piece {
        if !self.parity {
            return Piece { stripe: 0, column: 0, rows: at as usize..end as usize };
        }
        let chunk = u64::from(self.chunk_blocks);
        let (stripe, inside) = (at / self.stripe_blocks(), at % self.stripe_blocks());
        let (column, row) = ((inside / chunk) as usize, (inside % chunk) as usize);
        let rows = row..row + (end - at).min(chunk - row as u64) as usize;
        Piece { stripe, column, rows }
    }

    /// The block of a group that lies in a row of a column of a stripe.
    pub fn block_of(&self, stripe: u64, column: usize, row: usize) -> u64 {
        stripe * self.stripe_blocks() + column as u64 * u64::from(self.chunk_blocks) + row as u64
    }

    /// Where a row of a stripe lies in each of a group's extents on disks, in blocks from their start.
    pub fn row_at(&self, stripe: u64, row: usize) -> usize {
        if self.parity { stripe as usize * usize::from(self.chunk_blocks) + row } else { row }
    }

    /// Which of a group's places keep the page of its extent `member`, and whether as their own or as a neighbour's.
    pub fn page_places(&self, member: usize) -> SmallVec<[(usize, Shelf); 2]> {
        if self.parity {
            return [(member, Shelf::Own), (member + 1, Shelf::Neighbour)].into_iter().collect();
        }
        (0..usize::from(self.copies)).map(|copy| (copy, Shelf::Own)).collect()
    }
}

/// Blocks that lie on end on one disk: rows of a column of a stripe (of copies, blocks of the extent).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The stripe of the group.
    pub stripe: u64,
    /// The column of the stripe.
    pub column: usize,
    /// Its rows.
    pub rows: Range<usize>,
}

/// Whose page it is that lies beside an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shelf {
    /// That of the extent of the volume that has the same number in the group as the place (of copies, the only one).
    Own,
    /// That of the one before it: a page lies on two disks, as the data is on two or can be reconstructed.
    Neighbour,
}

impl Layout {
    /// The number that stands for it in records.
    pub fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Mirror => 1,
            Self::Raid5 => 2,
            Self::HotMirror => 3,
            Self::Floating => 4,
        }
    }

    /// The layout of a number in a record.
    pub fn from_code(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Self::None),
            1 => Ok(Self::Mirror),
            2 => Ok(Self::Raid5),
            3 => Ok(Self::HotMirror),
            4 => Ok(Self::Floating),
            _ => Err(Error::corrupt(format!("layout {code} in a record is unknown"))),
        }
    }

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mirror => "mirror",
            Self::Raid5 => "raid5",
            Self::HotMirror => "hot-mirror",
            Self::Floating => "floating",
        }
    }

    /// The fewest disks on which a group of it lies.
    pub fn least_disks(self) -> usize {
        match self {
            Self::None => 1,
            Self::Mirror => 2,
            Self::Raid5 | Self::HotMirror | Self::Floating => 3,
        }
    }

    /// The shape it takes in a pool of so many disks for data. Groups with parity have at most `width` disks; where nobody
    /// says how many, one fewer than there are, and at most six.
    pub fn shape(self, disks: usize, width: Option<u8>, chunk_blocks: u16) -> Result<Shape> {
        let needed = self.least_disks();
        if disks < needed {
            return Err(Error::invalid(format!(
                "layout {} needs {needed} disks for data and the pool has {disks}: add disks, or choose another layout",
                self.name()
            )));
        }
        // The disk that a group leaves out is where a rebuild goes without a spare. Three disks have none to leave out.
        let width = width.map_or_else(|| disks.saturating_sub(1).clamp(3, Shape::WIDTH), usize::from);
        let possible = (3..=usize::from(Shape::COLUMNS_LIMIT) + 1).contains(&width);
        if !possible || !chunk_blocks.is_power_of_two() || chunk_blocks > Shape::CHUNK_LIMIT_BLOCKS {
            return Err(Error::invalid(format!(
                "groups of {width} disks in chunks of {chunk_blocks} blocks: give 3 to 17 disks, and a power of two up to {}",
                Shape::CHUNK_LIMIT_BLOCKS
            )));
        }
        let striped = Shape::raid5(disks.min(width).max(3), chunk_blocks);
        Ok(match self {
            Self::None => Shape::SINGLE,
            Self::Mirror => Shape::MIRROR,
            Self::Raid5 | Self::HotMirror => striped,
            Self::Floating => Shape { floats: true, ..striped },
        })
    }
}

/// The place of an extent on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The disk.
    pub device: DeviceId,
    /// The extent on it.
    pub extent: ExtentId,
}

/// The places of a group, on distinct disks.
pub type Places = SmallVec<[Place; 2]>;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn layouts_have_codes_and_need_disks() {
        for layout in [Layout::None, Layout::Mirror, Layout::Raid5, Layout::HotMirror, Layout::Floating] {
            assert_eq!(Layout::from_code(layout.code()).unwrap(), layout);
        }
        assert_eq!(Layout::from_code(200).unwrap_err().kind(), kura_block::Kind::Corrupt);
        let width = |layout: Layout, disks| layout.shape(disks, None, 16).map(|shape| shape.width());
        assert_eq!(width(Layout::Mirror, 18).unwrap(), 2);
        for (layout, disks) in [(Layout::None, 0), (Layout::Mirror, 1), (Layout::Raid5, 2)] {
            assert_eq!(width(layout, disks).unwrap_err().kind(), kura_block::Kind::Invalid);
        }
    }

    #[test]
    fn a_group_leaves_a_disk_out_unless_it_is_told_not_to() {
        let width = |disks, width| Layout::Raid5.shape(disks, width, 16).unwrap().width();
        let of_itself = [(3, 3), (4, 3), (5, 4), (6, 5), (7, 6), (18, 6)];
        assert_eq!(of_itself.map(|(disks, _)| width(disks, None)), of_itself.map(|(_, width)| width));
        for disks in 3..10 {
            assert_eq!(width(disks, None), Layout::HotMirror.shape(disks, None, 16).unwrap().width());
            assert_eq!(width(disks, Some(9)), disks, "as asked, as far as there are disks");
            assert_eq!(width(disks, Some(3)), 3);
        }
        for wrong in [0, 2, 18] {
            let refused = Layout::Raid5.shape(18, Some(wrong), 16).unwrap_err();
            assert!(refused.to_string().contains("give 3 to 17 disks"), "{refused}");
        }
    }

    proptest! {
        /// Every block of a group has a place of its own, none is where the stripe's parity is, and it is found again.
        #[test]
        fn blocks_and_parity_share_nothing(disks in 3usize..=17, power in 0u32..5, stripes in 1u64..40) {
            let shape = Shape::raid5(disks, 1 << power);
            let mut seen = BTreeSet::new();
            for piece in shape.pieces(0..stripes * shape.stripe_blocks()) {
                let place = shape.place_of(piece.stripe, piece.column);
                prop_assert_ne!(place, shape.parity_place(piece.stripe));
                for row in piece.rows {
                    prop_assert!(seen.insert((place, shape.row_at(piece.stripe, row))));
                    let block = shape.block_of(piece.stripe, piece.column, row);
                    let again: Vec<_> = shape.pieces(block..block + 1).collect();
                    prop_assert_eq!(&again, &[Piece { stripe: piece.stripe, column: piece.column, rows: row..row + 1 }]);
                }
            }
            for stripe in 0..stripes {
                for row in 0..1 << power {
                    prop_assert!(seen.insert((shape.parity_place(stripe), shape.row_at(stripe, row))));
                }
            }
            prop_assert_eq!(seen.len() as u64, stripes * (1 << power) * disks as u64);
        }

        /// The pieces of a range are the range.
        #[test]
        fn pieces_follow_each_other(disks in 3usize..=8, from in 0u64..500, len in 1u64..500) {
            let shape = Shape::raid5(disks, 4);
            let mut at = from;
            for piece in shape.pieces(from..from + len) {
                prop_assert_eq!(shape.block_of(piece.stripe, piece.column, piece.rows.start), at);
                at += piece.rows.len() as u64;
            }
            prop_assert_eq!(at, from + len);
        }
    }
}
