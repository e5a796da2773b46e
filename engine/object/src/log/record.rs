//! A record: the state of one version of one key from now on, or that it is gone. Written and read here.
//!
//! ```text
//!  0  CRC u32 over all that follows in the record    4  record bytes u32
//!  8  inline bytes u32, which follow the record     12  their CRC u32
//! 16  kind u8 (1 set, 2 gone)  17  flags u8 (1 marker, 2 unversioned)  18  name bytes u16
//! 20  version u64   28  revision u64   36  modified u64, milliseconds since 1970
//! 44  name: partition u64 big-endian, key
//!     then, of kind set, numbers in 7 bits a byte, the lowest first:
//!     tag bytes u8, tag; pieces; attributes: count, each: name bytes, name, value bytes, value
//!     a piece: bytes, extent's block; unless that is 0 (zeroes): data blocks, first byte, CRC u32 of its checksum block
//! ```

use crate::known::{Known, Unpack, pack_pieces, put};
use crate::object::{Attributes, PARTITION_BYTES, Row};
use kura_block::{Bufs, Error, Reader, Result, Writer};

const SET: u8 = 1;
const GONE: u8 = 2;
/// Bytes of the fields before the name.
pub(crate) const FIXED_BYTES: usize = 44;

/// A record to be written.
pub(crate) struct Draft {
    pub row: Row,
    /// None: this version is gone.
    pub set: Option<Set>,
}

/// What a record sets.
pub(crate) struct Set {
    /// Its place and sizes are known when it has been written.
    pub known: Known,
    pub attributes: Attributes,
    pub inline: Bufs,
}

/// A record read back, and verified but for the bytes inline.
pub(crate) struct Record {
    pub row: Row,
    pub revision: u64,
    /// Without its place. None: this version is gone.
    pub set: Option<(Known, Attributes)>,
    pub head_bytes: u32,
    pub inline_bytes: u32,
    pub inline_crc: u32,
}

/// CRC-32C of bytes in parts.
pub(crate) fn crc_of(bytes: &Bufs) -> u32 {
    bytes.parts().iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part))
}

impl Draft {
    /// The record as it goes to the log, without the bytes inline; `revision` where it sets none.
    pub fn encode(&self, revision: u64) -> Vec<u8> {
        let revision = self.set.as_ref().map_or(revision, |set| set.known.revision);
        let mut out = Writer::with_room(256);
        let (inline_bytes, inline_crc) =
            self.set.as_ref().map_or((0, 0), |set| (set.inline.len(), crc_of(&set.inline)));
        out.u32(0).u32(0).u32(inline_bytes as u32).u32(inline_crc);
        let (kind, flags, modified_ms) =
            self.set.as_ref().map_or((GONE, 0, 0), |set| (SET, set.known.flags, set.known.modified_ms));
        out.u8(kind).u8(flags).u16(self.row.name.len() as u16);
        out.u64(self.row.version.0).u64(revision).u64(modified_ms).bytes(&self.row.name);
        if let Some(set) = &self.set {
            out.u8(set.known.tag.len() as u8).bytes(&set.known.tag);
            let mut packed = Vec::new();
            pack_pieces(&mut packed, &set.known.pieces);
            put(&mut packed, set.attributes.len() as u64);
            for (name, value) in &set.attributes {
                put(&mut packed, name.len() as u64);
                packed.extend_from_slice(name.as_bytes());
                put(&mut packed, value.len() as u64);
                packed.extend_from_slice(value);
            }
            out.bytes(&packed);
        }
        out.patch_u32(4, out.len() as u32);
        out.patch_u32(0, crc32c::crc32c(&out.as_slice()[4..]));
        out.finish()
    }
}

impl Record {
    /// Takes the record apart that `bytes` begin with.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(bytes);
        let (crc, record_bytes, inline_bytes, inline_crc) =
            (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let len = record_bytes as usize;
        if len < FIXED_BYTES || len > bytes.len() || crc32c::crc32c(&bytes[4..len]) != crc {
            return Err(Error::corrupt("a record fails its checksum"));
        }
        let (kind, flags, name_bytes) = (reader.u8()?, reader.u8()?, usize::from(reader.u16()?));
        let (version, revision, modified_ms) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let Some((name, rest)) = bytes[FIXED_BYTES..len].split_at_checked(name_bytes) else {
            return Err(Error::corrupt("a record ends before its name does"));
        };
        if name.len() < PARTITION_BYTES || !matches!(kind, SET | GONE) || (kind == SET && revision < version) {
            return Err(Error::corrupt("a record is of a kind that this program does not know"));
        }
        let name = name.to_vec();
        let set = if kind == SET {
            let mut known =
                Known { version, revision, flags, modified_ms, record_bytes, inline_bytes, ..Known::default() };
            let attributes = rest_of_set(rest, &mut known)?;
            Some((known, attributes))
        } else {
            None
        };
        Ok(Self { row: Row::new(name, version), revision, set, head_bytes: record_bytes, inline_bytes, inline_crc })
    }
}

fn rest_of_set(bytes: &[u8], known: &mut Known) -> Result<Attributes> {
    let mut reader = Unpack { bytes };
    let tag_bytes = usize::from(reader.byte()?);
    known.tag = reader.take(tag_bytes)?.to_vec();
    reader.pieces(&mut known.pieces)?;
    let size_bytes =
        known.pieces.iter().try_fold(u64::from(known.inline_bytes), |sum, piece| sum.checked_add(piece.len));
    if size_bytes.is_none_or(|size| size > i64::MAX.cast_unsigned()) {
        return Err(Error::corrupt("a record is of more bytes than an object can have"));
    }
    let mut attributes = Attributes::new();
    for _ in 0..reader.number()? {
        let len = reader.number()? as usize;
        let name = String::from_utf8(reader.take(len)?.to_vec());
        let name = name.map_err(|_| Error::corrupt("an attribute's name in a record is not UTF-8"))?;
        let len = reader.number()? as usize;
        attributes.insert(name, reader.take(len)?.to_vec());
    }
    Ok(attributes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::{Extent, Piece};

    /// As it is written after a change, sealed.
    fn changed(mut record: Vec<u8>, change: impl FnOnce(&mut Vec<u8>)) -> Result<Record> {
        change(&mut record);
        let crc = crc32c::crc32c(&record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        Record::decode(&record)
    }

    #[test]
    fn a_record_that_says_what_cannot_be_is_corrupt() {
        let row = Row::new(vec![0; PARTITION_BYTES], 5);
        let encode = |known: Known| {
            let set = Set { known: Known { version: 5, ..known }, attributes: Attributes::new(), inline: Bufs::new() };
            Draft { row: row.clone(), set: Some(set) }.encode(0)
        };
        let known = Known { revision: 6, ..Known::default() };
        assert!(changed(encode(known.clone()), |_| {}).is_ok());
        // It ends where its name begins.
        let mut short = encode(known.clone())[..FIXED_BYTES].to_vec();
        short[4..8].copy_from_slice(&(FIXED_BYTES as u32).to_le_bytes());
        let crc = crc32c::crc32c(&short[4..]);
        short[..4].copy_from_slice(&crc.to_le_bytes());
        short.extend([0; 100]);
        assert!(Record::decode(&short).is_err(), "bytes behind a record are not its name");
        assert!(changed(encode(Known { revision: 4, ..known.clone() }), |_| {}).is_err(), "older than its version");
        let piece = |blocks, len| Piece { extent: Some(Extent { block: 16, blocks, crc: 1 }), from: 0, len };
        for (pieces, is_sound) in [
            (vec![piece(2, 8192)], true),
            (vec![piece(u32::MAX, 8192)], false),
            (vec![piece(2, u64::MAX)], false),
            (vec![piece(2, u64::MAX), piece(2, 8192)], false),
        ] {
            assert_eq!(changed(encode(Known { pieces, ..known.clone() }), |_| {}).is_ok(), is_sound);
        }
    }
}
