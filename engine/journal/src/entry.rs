//! The format of an entry: written here, read here, nowhere else.
//!
//! ```text
//!  0  magic u32   4  header CRC u32 (over the header and records, itself as zero)
//!  8  epoch u64  16  sequence u64  24  first LSN u64
//! 32  records u32  36  header bytes u32 (with records and padding)  40  data bytes u32  44  live copies u32
//! 48  durable sequence u64: when this was written, every entry below was durable
//! 56  records: body length u16, data blocks u16, CRC u32 of each data block, body
//!     zeroes to a multiple of 4096, then the data blocks of all records in order
//! ```

use crate::Lsn;
use crate::elsewhere::{Carried, Elsewhere};
use kura_block::{BLOCK_BYTES, BufMut, Bufs, Checksum, Error, Reader, Result, Writer, is_sealed, seal};
use tokio::sync::oneshot;

const MAGIC: u32 = 0x454a_754b; // "KuJE"
const CRC_AT: usize = 4;
const FIXED_BYTES: usize = 56;
/// Bytes that records may take in one entry: with the fixed part, 32 KiB.
const RECORDS_LIMIT_BYTES: usize = 32 * 1024 - FIXED_BYTES;
/// Bytes that a record takes at least.
const RECORD_LEAST_BYTES: usize = 4;
/// Data bytes in one entry at most.
const DATA_LIMIT_BYTES: usize = 1 << 20;
/// The largest entry, in bytes.
pub(crate) const ENTRY_LIMIT_BYTES: u64 = (RECORDS_LIMIT_BYTES + FIXED_BYTES + DATA_LIMIT_BYTES) as u64;

/// What names an entry's place in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub epoch: u64,
    pub sequence: u64,
    pub first_lsn: Lsn,
    /// Bit i is set while copy i of the journal is written.
    pub live_copies: u32,
    /// Every entry below this sequence number was durable when this one was written.
    pub durable_sequence: u64,
}

/// Records gathered for one entry.
#[derive(Default)]
pub(crate) struct Group {
    records: Writer,
    data: Bufs,
    pub count: u32,
    /// Numbers that no record has, before those of its own.
    pub skipped: u64,
    /// Data of some of the records that is on its way elsewhere, in their order.
    pub elsewhere: Vec<Elsewhere>,
    /// What that takes of the ring, at most, if it is carried.
    elsewhere_bytes: u64,
}

impl Group {
    /// A group before whose first record so many numbers are left out.
    pub fn behind_gap(skipped: u64) -> Self {
        Self { skipped, ..Self::default() }
    }

    /// True when a record of this size still fits.
    pub fn takes(&self, body_bytes: usize, data_blocks: usize) -> bool {
        self.count == 0 || self.has_room(body_bytes, data_blocks)
    }

    fn has_room(&self, body_bytes: usize, data_blocks: usize) -> bool {
        self.records.len() + RECORD_LEAST_BYTES + body_bytes + 4 * data_blocks <= RECORDS_LIMIT_BYTES
            && self.data.len() + data_blocks * BLOCK_BYTES <= DATA_LIMIT_BYTES
    }

    /// Adds a record; `data` is whole blocks, one checksum each.
    pub fn push(&mut self, body: &[u8], data: &Bufs, checksums: &[Checksum]) {
        assert_eq!(data.len(), checksums.len() * BLOCK_BYTES, "one checksum a data block");
        assert!(self.has_room(body.len(), checksums.len()), "a record fits an entry");
        self.records.u16(body.len() as u16).u16(checksums.len() as u16);
        for checksum in checksums {
            self.records.u32(checksum.stored());
        }
        self.records.bytes(body);
        self.data.append(data.clone());
        self.count += 1;
    }

    /// Adds a record whose data is on its way elsewhere.
    pub fn push_elsewhere(&mut self, body: &[u8], carried: Carried, arrival: oneshot::Receiver<()>) {
        // With a header of its own, if it comes to that.
        self.elsewhere_bytes += (carried.data.len() + BLOCK_BYTES) as u64;
        self.elsewhere.push(Elsewhere::new(self.records.len(), carried, arrival));
        self.push(body, &Bufs::new(), &[]);
    }

    /// The same records in as many entries as it takes, those of `carried`, in order, with their data.
    pub fn carrying(self, carried: Vec<Elsewhere>) -> Vec<Self> {
        let records = self.records.as_slice();
        let (mut groups, mut carried) = (vec![Self::behind_gap(self.skipped)], carried.into_iter().peekable());
        let (mut at, mut data_at) = (0, 0);
        while at < records.len() {
            let (bytes, blocks) = record_size(&records[at..]);
            let data = self.data.slice(data_at..data_at + blocks * BLOCK_BYTES);
            match carried.next_if(|one| one.begins == at) {
                Some(Elsewhere { carried: Carried { body, data, checksums }, .. }) => {
                    last_that_takes(&mut groups, body.len(), checksums.len()).push(&body, &data, &checksums);
                }
                None => {
                    let group = last_that_takes(&mut groups, bytes - RECORD_LEAST_BYTES - 4 * blocks, blocks);
                    group.records.bytes(&records[at..at + bytes]);
                    group.data.append(data);
                    group.count += 1;
                }
            }
            at += bytes;
            data_at += blocks * BLOCK_BYTES;
        }
        groups
    }

    /// Bytes the entry will take in the ring, and those besides that what is on its way elsewhere takes if it is carried.
    pub fn bytes(&self) -> (u64, u64) {
        (self.entry_bytes(), self.elsewhere_bytes)
    }

    /// Bytes the entry will take in the ring.
    pub fn entry_bytes(&self) -> u64 {
        ((FIXED_BYTES + self.records.len()).next_multiple_of(BLOCK_BYTES) + self.data.len()) as u64
    }

    /// The entry as it goes to the ring.
    pub fn encode(&self, stamp: Stamp) -> Bufs {
        let header_bytes = (FIXED_BYTES + self.records.len()).next_multiple_of(BLOCK_BYTES);
        let mut fixed = Writer::with_room(FIXED_BYTES);
        fixed.u32(MAGIC).u32(0).u64(stamp.epoch).u64(stamp.sequence).u64(stamp.first_lsn.0);
        fixed.u32(self.count).u32(header_bytes as u32).u32(self.data.len() as u32).u32(stamp.live_copies);
        fixed.u64(stamp.durable_sequence);
        let mut header = BufMut::padded(&[fixed.as_slice(), self.records.as_slice()], BLOCK_BYTES);
        seal(&mut header, CRC_AT);
        let mut entry = Bufs::from(header.freeze());
        entry.append(self.data.clone());
        entry
    }
}

/// Bytes of the record that `records` begins with, and blocks of its data.
fn record_size(records: &[u8]) -> (usize, usize) {
    let field = |at: usize| usize::from(u16::from_le_bytes([records[at], records[at + 1]]));
    let (body_bytes, blocks) = (field(0), field(2));
    (RECORD_LEAST_BYTES + 4 * blocks + body_bytes, blocks)
}

/// The last of `groups`, or a new one behind it where that has no room for another record.
fn last_that_takes(groups: &mut Vec<Group>, body_bytes: usize, data_blocks: usize) -> &mut Group {
    if groups.last().is_some_and(|last| !last.takes(body_bytes, data_blocks)) {
        groups.push(Group::default());
    }
    let last = groups.len() - 1;
    &mut groups[last]
}

/// A record as it was appended.
#[derive(Debug)]
pub struct Record {
    /// Its number.
    pub lsn: Lsn,
    /// The bytes the layer above gave.
    pub body: Vec<u8>,
    /// Its data blocks.
    pub data: Bufs,
    /// One checksum a data block, verified.
    pub checksums: Vec<Checksum>,
}

/// An entry read back.
#[derive(Debug)]
pub struct Entry {
    pub(crate) stamp: Stamp,
    pub(crate) bytes: u64,
    /// Its records, in order.
    pub records: Vec<Record>,
}

/// The fixed part of an entry's header, not verified yet.
pub(crate) struct Head {
    pub stamp: Stamp,
    pub records: u32,
    pub header_bytes: usize,
    pub data_bytes: usize,
}

impl Head {
    /// Reads the fixed part; `None` where no entry begins.
    pub fn decode(block: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(block);
        let mut fields = || -> Result<Option<Self>> {
            if reader.u32()? != MAGIC {
                return Ok(None);
            }
            reader.u32()?;
            let (epoch, sequence, first_lsn) = (reader.u64()?, reader.u64()?, Lsn(reader.u64()?));
            let (records, header_bytes) = (reader.u32()?, reader.u32()? as usize);
            let (data_bytes, live_copies, durable_sequence) = (reader.u32()? as usize, reader.u32()?, reader.u64()?);
            let stamp = Stamp { epoch, sequence, first_lsn, live_copies, durable_sequence };
            Ok(Some(Self { stamp, records, header_bytes, data_bytes }))
        };
        let head = fields().ok()??;
        let sane = head.header_bytes.is_multiple_of(BLOCK_BYTES)
            && (BLOCK_BYTES..=FIXED_BYTES + RECORDS_LIMIT_BYTES).contains(&head.header_bytes)
            && head.data_bytes.is_multiple_of(BLOCK_BYTES)
            && head.data_bytes <= DATA_LIMIT_BYTES
            && head.stamp.first_lsn.0 <= u64::MAX / 2
            && head.records as usize <= RECORDS_LIMIT_BYTES / RECORD_LEAST_BYTES;
        sane.then_some(head)
    }

    /// Bytes of the whole entry.
    pub fn entry_bytes(&self) -> u64 {
        (self.header_bytes + self.data_bytes) as u64
    }

    /// True when `header`, all of the entry's header, agrees with its checksum: what it says can be believed.
    pub fn holds(header: &[u8]) -> bool {
        is_sealed(header, CRC_AT)
    }

    /// Verifies the whole entry and takes it apart; an error says what does not hold.
    pub fn verify(self, entry: &Bufs) -> Result<Entry> {
        let header = entry.slice(0..self.header_bytes).contiguous();
        if !Self::holds(&header) {
            return Err(Error::corrupt("the header of a journal entry fails its checksum"));
        }
        let mut reader = Reader::new(&header[FIXED_BYTES..]);
        let mut records = Vec::with_capacity(self.records as usize);
        let mut data_at = self.header_bytes;
        for number in 0..u64::from(self.records) {
            let (body_bytes, blocks) = (reader.u16()? as usize, reader.u16()? as usize);
            let data_end = data_at + blocks * BLOCK_BYTES;
            if data_end > self.header_bytes + self.data_bytes {
                return Err(Error::corrupt("a journal entry counts more data than it has"));
            }
            let data = entry.slice(data_at..data_end);
            let mut checksums = Vec::with_capacity(blocks);
            for block in 0..blocks {
                let checksum = Checksum::of(&data.slice(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES).contiguous());
                if checksum.stored() != reader.u32()? {
                    return Err(Error::corrupt("a data block of a journal entry fails its checksum"));
                }
                checksums.push(checksum);
            }
            let body = reader.bytes(body_bytes)?.to_vec();
            records.push(Record { lsn: Lsn(self.stamp.first_lsn.0 + number), body, data, checksums });
            data_at = data_end;
        }
        Ok(Entry { bytes: self.entry_bytes(), stamp: self.stamp, records })
    }
}
