//! An entry of the log: the batches that became durable together. Written and read here.
//!
//! ```text
//!  0  magic u32   4  CRC u32 over the head with itself as zero   8  store u64
//! 16  opening u64: which start of the store wrote it            24  sequence u64
//! 32  revision u64 of the first record    40  durable sequence u64: every entry below was durable when this was written
//! 48  entry bytes u32, a multiple of 4096  52  records u32   56  next segment u32: where the log goes on when it does
//! 60  bytes with records u32                                     not fit behind this entry any more
//! 64  records, each with its bytes inline behind it; zeroes to the next multiple of 4096
//! ```

use crate::log::record::{FIXED_BYTES, Record};
use kura_block::{BLOCK_BYTES, BufMut, Error, Reader, Result, Writer, is_sealed};

const MAGIC: u32 = 0x456f_754b; // "KuoE"
const CRC_AT: usize = 4;
/// Bytes of an entry before its first record.
pub(crate) const HEAD_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub store: u64,
    pub opening: u64,
    pub sequence: u64,
    pub first_revision: u64,
    pub durable_sequence: u64,
    pub entry_bytes: u32,
    pub records: u32,
    pub next_segment: u32,
    pub used_bytes: u32,
}

impl Head {
    pub fn write(&self, out: &mut BufMut) {
        let mut head = Writer::with_room(HEAD_BYTES);
        head.u32(MAGIC).u32(0).u64(self.store).u64(self.opening).u64(self.sequence);
        head.u64(self.first_revision).u64(self.durable_sequence);
        head.u32(self.entry_bytes).u32(self.records).u32(self.next_segment).u32(self.used_bytes);
        head.seal(CRC_AT);
        out[..HEAD_BYTES].copy_from_slice(head.as_slice());
    }

    /// The head that `bytes` begin with; `None` where no entry begins.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEAD_BYTES)?;
        let mut reader = Reader::new(bytes);
        if reader.u32().ok()? != MAGIC || !is_sealed(bytes, CRC_AT) {
            return None;
        }
        reader.u32().ok()?;
        let mut fields = || -> Result<Self> {
            Ok(Self {
                store: reader.u64()?,
                opening: reader.u64()?,
                sequence: reader.u64()?,
                first_revision: reader.u64()?,
                durable_sequence: reader.u64()?,
                entry_bytes: reader.u32()?,
                records: reader.u32()?,
                next_segment: reader.u32()?,
                used_bytes: reader.u32()?,
            })
        };
        let head = fields().ok()?;
        let sane = (head.entry_bytes as usize).is_multiple_of(BLOCK_BYTES)
            && head.used_bytes <= head.entry_bytes
            && head.used_bytes as usize >= HEAD_BYTES;
        sane.then_some(head)
    }
}

/// The records of an entry, each with its offset from the entry's beginning.
pub(crate) struct Records {
    pub records: Vec<(u32, Record)>,
    /// False when bytes inline fail their checksum: right in an entry that was durable, where a read will say so; in
    /// one that was not, the entry was never whole.
    pub inline_holds: bool,
}

/// Takes an entry apart; an error when a record fails its checksum.
pub(crate) fn records(head: &Head, entry: &[u8]) -> Result<Records> {
    let used = head.used_bytes as usize;
    let mut at = HEAD_BYTES;
    // What claims more records than it has room for reserves no memory for them.
    let count = (head.records as usize).min(used / FIXED_BYTES);
    let mut all = Records { records: Vec::with_capacity(count), inline_holds: true };
    for _ in 0..head.records {
        let record = Record::decode(entry.get(at..used).unwrap_or_default())?;
        let inline_at = at + record.head_bytes as usize;
        let end = inline_at + record.inline_bytes as usize;
        if end > used {
            return Err(Error::corrupt("an entry of the log ends before its last record"));
        }
        all.inline_holds &= crc32c::crc32c(&entry[inline_at..end]) == record.inline_crc;
        all.records.push((at as u32, record));
        at = end;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::record::Draft;
    use crate::object::Row;

    #[test]
    fn an_entry_that_claims_what_it_does_not_have_is_corrupt() {
        let record = Draft { row: Row::new(vec![0; 8], 1), set: None }.encode(7);
        let used = HEAD_BYTES + record.len();
        let mut entry = BufMut::zeroed(BLOCK_BYTES);
        entry[HEAD_BYTES..used].copy_from_slice(&record);
        let head = Head {
            store: 1,
            opening: 1,
            sequence: 1,
            first_revision: 7,
            durable_sequence: 1,
            entry_bytes: BLOCK_BYTES as u32,
            records: 1,
            next_segment: 2,
            used_bytes: used as u32,
        };
        assert_eq!(records(&head, &entry).unwrap().records.len(), 1);
        for claimed in [2, u32::MAX] {
            assert!(records(&Head { records: claimed, ..head }, &entry).is_err(), "{claimed} records");
        }
    }
}
