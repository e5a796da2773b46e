//! What the index keeps of a version, and its packed form.

use crate::object::{Stat, Version};
use crate::space::extent::DATA_BLOCKS_LIMIT;
use kura_block::{Error, Result};

/// Data blocks and, behind them, one block with their checksums; block 0 is no extent but a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Extent {
    /// Where it begins, in blocks of the device.
    pub block: u32,
    /// Data blocks; the block with their checksums comes behind.
    pub blocks: u32,
    /// CRC-32C of the block with the checksums.
    pub crc: u32,
}

impl Extent {
    /// Blocks that it takes.
    pub fn all_blocks(self) -> u32 {
        self.blocks + 1
    }
}

/// A run of an object's content: bytes of an extent, or zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// None for zeroes.
    pub extent: Option<Extent>,
    /// Where in the extent the run begins, in bytes.
    pub from: u32,
    /// Bytes of the run, above zero.
    pub len: u64,
}

pub(crate) const MARKER: u8 = 1;
pub(crate) const UNVERSIONED: u8 = 2;

/// A version as the index knows it: its content is the pieces, then the bytes inline behind its record.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Known {
    pub version: u64,
    pub revision: u64,
    pub flags: u8,
    pub modified_ms: u64,
    pub tag: Vec<u8>,
    /// Where its record begins, in bytes of the device.
    pub place: u64,
    /// Bytes of the record without the content behind it.
    pub record_bytes: u32,
    pub inline_bytes: u32,
    pub pieces: Vec<Piece>,
}

impl Known {
    pub fn size_bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum::<u64>() + u64::from(self.inline_bytes)
    }

    pub fn is_marker(&self) -> bool {
        self.flags & MARKER != 0
    }

    pub fn is_unversioned(&self) -> bool {
        self.flags & UNVERSIONED != 0
    }

    /// Bytes of log that the record keeps alive.
    pub fn log_bytes(&self) -> u32 {
        self.record_bytes + self.inline_bytes
    }

    /// The extents it keeps alive, each once.
    pub fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = self.pieces.iter().filter_map(|piece| piece.extent).collect();
        // Pieces of one extent are neighbours mostly, but an overwrite may have come between them.
        extents.sort_unstable();
        extents.dedup();
        extents
    }

    pub fn stat(&self, latest: bool) -> Stat {
        Stat {
            version: Version(self.version),
            revision: self.revision,
            size_bytes: self.size_bytes(),
            modified_ms: self.modified_ms,
            tag: self.tag.clone(),
            unversioned: self.is_unversioned(),
            marker: self.is_marker(),
            latest,
        }
    }

    /// The packed form; the version is not in it, as it is part of the row.
    pub fn pack(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        out.push(self.flags);
        put(&mut out, self.revision - self.version);
        put(&mut out, self.modified_ms);
        out.push(self.tag.len() as u8);
        out.extend_from_slice(&self.tag);
        put(&mut out, self.place);
        put(&mut out, u64::from(self.record_bytes));
        put(&mut out, u64::from(self.inline_bytes));
        pack_pieces(&mut out, &self.pieces);
        out
    }

    pub fn unpack(version: u64, packed: &[u8]) -> Result<Self> {
        let mut known = Self::default();
        known.refill(version, packed)?;
        Ok(known)
    }

    /// As [`Known::unpack`], into memory that is there.
    pub fn refill(&mut self, version: u64, packed: &[u8]) -> Result<()> {
        let mut reader = Unpack { bytes: packed };
        self.version = version;
        self.flags = reader.byte()?;
        self.revision = version.wrapping_add(reader.number()?);
        self.modified_ms = reader.number()?;
        let tag_bytes = usize::from(reader.byte()?);
        self.tag.clear();
        self.tag.extend_from_slice(reader.take(tag_bytes)?);
        self.place = reader.number()?;
        (self.record_bytes, self.inline_bytes) = (reader.number32()?, reader.number32()?);
        self.pieces.clear();
        reader.pieces(&mut self.pieces)
    }
}

/// Pieces, packed: used by the index and by records.
pub(crate) fn pack_pieces(out: &mut Vec<u8>, pieces: &[Piece]) {
    put(out, pieces.len() as u64);
    for piece in pieces {
        put(out, piece.len);
        let Some(extent) = piece.extent else {
            out.push(0);
            continue;
        };
        put(out, u64::from(extent.block));
        put(out, u64::from(extent.blocks));
        put(out, u64::from(piece.from));
        out.extend_from_slice(&extent.crc.to_le_bytes());
    }
}

/// Appends a number in seven bits a byte, the lowest first.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Takes packed fields apart; running out of bytes is `Corrupt`.
pub(crate) struct Unpack<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Unpack<'a> {
    #[inline]
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) =
            self.bytes.split_at_checked(len).ok_or_else(|| Error::corrupt("packed fields end before the last one"))?;
        self.bytes = rest;
        Ok(taken)
    }

    #[inline]
    pub fn number(&mut self) -> Result<u64> {
        // Mostly one byte.
        let byte = self.byte()?;
        if byte < 0x80 { Ok(u64::from(byte)) } else { self.long_number(byte) }
    }

    fn long_number(&mut self, first: u8) -> Result<u64> {
        let mut number = u64::from(first & 0x7f);
        for shift in (7..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Error::corrupt("a packed number does not end"))
    }

    pub fn number32(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| Error::corrupt("a packed number is too large"))
    }

    /// Appends the pieces.
    pub fn pieces(&mut self, pieces: &mut Vec<Piece>) -> Result<()> {
        let count = self.number()? as usize;
        // At least two bytes each: what claims more than there is reserves no memory.
        pieces.reserve(count.min(self.bytes.len() / 2));
        for _ in 0..count {
            let len = self.number()?;
            let block = self.number32()?;
            if block == 0 {
                pieces.push(Piece { extent: None, from: 0, len });
                continue;
            }
            let (blocks, from) = (self.number32()?, self.number32()?);
            if blocks > DATA_BLOCKS_LIMIT {
                return Err(Error::corrupt("a packed extent is larger than any can be"));
            }
            let mut crc = [0; 4];
            crc.copy_from_slice(self.take(4)?);
            let extent = Extent { block, blocks, crc: u32::from_le_bytes(crc) };
            pieces.push(Piece { extent: Some(extent), from, len });
        }
        Ok(())
    }
}
