//! The format of a checksum page: written here, read here, nowhere else.
//!
//! ```text
//!  0  magic u32   4  CRC u32 (over the page, itself as zero)   8  volume u64   16  born u64
//! 24  index u32  28  blocks u32  32  sequence u64  40  checksum u32 of each block (0: not written)
//!     a bit for each block: its place counts in the parity of its row; zeroes to the end
//! ```

use crate::blocks::Blocks;
use kura_block::{BLOCK_BYTES, Buf, BufMut, Checksum, Reader, Writer, is_sealed, seal};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

const MAGIC: u32 = 0x4350_754b; // "KuPC"
/// A checksum where nobody knows it.
const LOST: u32 = 0x7473_6f6c; // "lost"
/// No page is written so often: a lost one is older than the one that takes its place.
pub const LOST_STEP: u64 = 1 << 32;

/// Bytes a page of this many blocks takes, before it is padded to whole blocks.
pub(crate) fn encoded_bytes(blocks: usize) -> usize {
    Head::BYTES + 4 * blocks + blocks.div_ceil(8)
}

/// Whose page it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOwner {
    /// The volume.
    pub volume: u64,
    /// Number of the extent in the volume.
    pub index: u32,
    /// LSN of the record that put this extent here: tells an extent from the one that lay here before it.
    pub born: u64,
}

/// What a page of an extent begins with, of whichever kind its magic says it is.
pub(crate) struct Head {
    pub magic: u32,
    pub owner: PageOwner,
    /// Blocks of the extent.
    pub blocks: usize,
}

impl Head {
    pub const BYTES: usize = 40;
    /// Where the page is to be sealed.
    pub const CRC_AT: usize = 4;

    pub fn write(&self, sequence: u64, out: &mut Writer) {
        let PageOwner { volume, index, born } = self.owner;
        out.u32(self.magic).u32(0).u64(volume).u64(born).u32(index).u32(self.blocks as u32).u64(sequence);
    }

    /// The sequence of a page that begins so, and what is behind that; `None` where there is none (never written, torn, an earlier
    /// owner's).
    pub fn read<'b>(&self, bytes: &'b [u8]) -> Option<(u64, Reader<'b>)> {
        let mut reader = Reader::new(bytes);
        if reader.u32().ok()? != self.magic || !is_sealed(bytes, Self::CRC_AT) {
            return None;
        }
        reader.u32().ok()?;
        let (volume, born, index) = (reader.u64().ok()?, reader.u64().ok()?, reader.u32().ok()?);
        if (PageOwner { volume, index, born }) != self.owner || reader.u32().ok()? as usize != self.blocks {
            return None;
        }
        Some((reader.u64().ok()?, reader))
    }
}

/// The checksums of an extent's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Counts up with each time it is written.
    pub sequence: u64,
    checksums: Box<[U32]>,
    written: u32,
    in_parity: Blocks,
}

impl Page {
    /// A page of an extent in which nothing is written yet.
    pub fn empty(blocks: usize) -> Self {
        Self { sequence: 0, checksums: vec![U32::ZERO; blocks].into(), written: 0, in_parity: Blocks::none(blocks) }
    }

    /// A page in the place of one that is lost: nobody knows what was written, and so that nothing is taken for zeroes all of
    /// it was, with what no block agrees with. A version up to `sequence` may still come to light: this one is newer.
    pub fn lost(blocks: usize, sequence: u64) -> Self {
        Self {
            sequence: sequence + LOST_STEP,
            checksums: vec![LOST.into(); blocks].into(),
            written: blocks as u32,
            in_parity: Blocks::all(blocks),
        }
    }

    /// The checksum of a block; `None` where nothing is written.
    pub fn get(&self, block: usize) -> Option<Checksum> {
        Checksum::from_stored(self.checksums[block].get())
    }

    /// Sets or clears the checksum of a block.
    pub fn set(&mut self, block: usize, checksum: Option<Checksum>) {
        self.written -= u32::from(self.checksums[block] != U32::ZERO);
        self.checksums[block] = checksum.map_or(0, Checksum::stored).into();
        self.written += u32::from(checksum.is_some());
    }

    /// True when what lies at the block's place, whatever it is, counts in the parity of its row; where nothing has been
    /// put since the extent was allocated, parity takes it for zeroes.
    pub fn is_in_parity(&self, block: usize) -> bool {
        self.in_parity.has(block)
    }

    /// From now on the block's place counts in the parity of its row. True when it did not before.
    pub fn put_in_parity(&mut self, block: usize) -> bool {
        self.in_parity.add(block)
    }

    /// Blocks that are written.
    pub fn written(&self) -> u32 {
        self.written
    }

    /// Blocks in the extent.
    pub fn blocks(&self) -> usize {
        self.checksums.len()
    }

    /// The page as it goes to a disk.
    pub(crate) fn encode(&self, owner: PageOwner) -> Buf {
        let mut fixed = Writer::with_room(Head::BYTES);
        Head { magic: MAGIC, owner, blocks: self.checksums.len() }.write(self.sequence, &mut fixed);
        // Written where it is sent from: a checkpoint has thousands of them.
        let parts = [fixed.as_slice(), self.checksums.as_bytes(), self.in_parity.as_bytes()];
        let mut page = BufMut::padded(&parts, BLOCK_BYTES);
        seal(&mut page, Head::CRC_AT);
        page.freeze()
    }

    /// Reads a page; `None` where there is none of this owner (never written, torn, an earlier owner's).
    pub(crate) fn decode(bytes: &[u8], owner: PageOwner, blocks: usize) -> Option<Self> {
        let (sequence, mut reader) = Head { magic: MAGIC, owner, blocks }.read(bytes)?;
        let checksums: Box<[U32]> = (0..blocks).map(|_| reader.u32().map(U32::new)).collect::<Result<_, _>>().ok()?;
        let written = checksums.iter().filter(|checksum| **checksum != U32::ZERO).count() as u32;
        let in_parity = Blocks::read(&mut reader, blocks)?;
        Some(Self { sequence, checksums, written, in_parity })
    }
}
