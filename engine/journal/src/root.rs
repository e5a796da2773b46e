//! The root of a journal: where the log begins and which tables stand before it. Written here, read here.
//!
//! ```text
//!   0  magic u32  4  CRC u32 (over the 4096 bytes, itself as zero)  8  version u32  12  controller u16  14  zero u16
//!  16  pool UUID  32  generation u64  40  epoch u64
//!  48  tail position u64  56  tail sequence u64  64  tail LSN u64
//!  72  tables area u32 (0 or 1)  76  tables CRC u32  80  tables bytes u64  88  tables LSN u64  96  live copies u32
//! 100  epoch sequence u64: entries from this one on are of the epoch, those before of earlier ones
//! 108  settled LSN u64: writes spoken of below it were complete and durable when the root was written
//! 116  told sequence u64: only entries from this one on know better than the root which copies live
//! 124  bytes u64 of the changes behind the tables, from the next whole block on  132  CRC u32 of these
//! 136  closed u32: 1 where the log ends at the told sequence, durably, and no entry of the epoch was written behind
//! ```

use crate::Lsn;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Buf, Error, Reader, Result, Writer, is_sealed};

const MAGIC: u32 = 0x524a_754b; // "KuJR"
const VERSION: u32 = 3;
const CRC_AT: usize = 4;
/// No journal counts so far.
const COUNT_LIMIT: u64 = 1 << 63;
/// Bytes of a root.
pub(crate) const ROOT_BYTES: u64 = BLOCK_BYTES_U64;

/// Whose journal it is: a region of another pool or controller is never taken for this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// UUID of the pool.
    pub pool: [u8; 16],
    /// Number of the controller.
    pub controller: u16,
}

/// Sizes of a journal's parts, in bytes; the same on each copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Of each of the two areas for tables; a multiple of 4096.
    pub tables_bytes: u64,
    /// Of the ring; a multiple of 4096, at least four of the largest entries (about 4.2 MiB).
    pub ring_bytes: u64,
}

impl Shape {
    /// The smallest ring.
    pub const RING_MIN_BYTES: u64 = 4 * crate::entry::ENTRY_LIMIT_BYTES;

    /// Refuses sizes that no journal has.
    pub(crate) fn check(&self) -> Result<()> {
        if self.ring_bytes < Self::RING_MIN_BYTES || !self.ring_bytes.is_multiple_of(BLOCK_BYTES_U64) {
            return Err(Error::invalid(format!(
                "a journal of {} bytes: give it a multiple of 4096, at least {} bytes",
                self.ring_bytes,
                Self::RING_MIN_BYTES
            )));
        }
        Ok(())
    }

    /// Bytes of the whole region.
    pub fn region_bytes(&self) -> u64 {
        self.ring_at() + self.ring_bytes
    }

    /// Where the tables area lies in the region.
    pub(crate) fn tables_at(&self, area: u32) -> u64 {
        2 * ROOT_BYTES + u64::from(area) * self.tables_bytes
    }

    /// Where the ring lies in the region.
    pub(crate) fn ring_at(&self) -> u64 {
        2 * ROOT_BYTES + 2 * self.tables_bytes
    }

    /// Where a position of the log lies in the region.
    pub(crate) fn place(&self, position: u64) -> u64 {
        self.ring_at() + position % self.ring_bytes
    }

    /// Where an entry of `bytes` goes when the log stands at `position`: an entry never runs over the ring's end.
    pub(crate) fn fit(&self, position: u64, bytes: u64) -> u64 {
        if position % self.ring_bytes + bytes <= self.ring_bytes { position } else { self.wrap(position) }
    }

    /// The next position at the ring's start.
    pub(crate) fn wrap(&self, position: u64) -> u64 {
        position.next_multiple_of(self.ring_bytes)
    }
}

/// A table area's content, as a root names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TablesRef {
    pub area: u32,
    pub crc: u32,
    pub bytes: u64,
    /// Of the changes behind the tables, in whole blocks.
    pub changes_bytes: u64,
    pub changes_crc: u32,
    /// Tables and changes hold every record below this one.
    pub lsn: Lsn,
}

impl TablesRef {
    /// Where the changes begin in the area.
    pub fn changes_at(&self) -> u64 {
        self.bytes.next_multiple_of(ROOT_BYTES)
    }

    /// Bytes of the area that are taken.
    pub fn end(&self) -> u64 {
        self.changes_at() + self.changes_bytes
    }
}

/// Where the log begins, and what stands before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Root {
    pub generation: u64,
    pub epoch: u64,
    /// Entries from this sequence number on are of the epoch; those before it are of earlier ones.
    pub epoch_sequence: u64,
    pub tail_position: u64,
    pub tail_sequence: u64,
    pub tail_lsn: Lsn,
    pub tables: TablesRef,
    pub live_copies: u32,
    /// What records below speak of was complete and durable.
    pub settled: Lsn,
    /// Only entries from this sequence number on tell something newer of live copies.
    pub told_sequence: u64,
    /// The log was closed: it ends there, and all of it is durable.
    pub closed: bool,
}

impl Root {
    /// True for what a journal of this shape writes, whatever else a checksum agrees with: what follows from a root is computed
    /// without looking again.
    pub fn is_sound(&self, shape: &Shape) -> bool {
        let counts = [
            self.generation,
            self.epoch,
            self.epoch_sequence,
            self.tail_position,
            self.tail_sequence,
            self.tail_lsn.0,
            self.tables.lsn.0,
            self.settled.0,
            self.told_sequence,
            self.tables.bytes,
            self.tables.changes_bytes,
        ];
        counts.iter().all(|count| *count < COUNT_LIMIT)
            && self.tail_position.is_multiple_of(BLOCK_BYTES_U64)
            && self.tables.changes_bytes.is_multiple_of(BLOCK_BYTES_U64)
            && self.tables.end() <= shape.tables_bytes
    }

    /// Every entry below was durable when the root was written, as far as it can tell.
    pub fn durable_sequence(&self) -> u64 {
        if self.closed { self.told_sequence } else { self.epoch_sequence }
    }

    /// Of two roots the one of the later epoch counts, of one epoch that of the higher generation: a copy that was away
    /// while the log went on may have the generations that came before.
    pub fn age(&self) -> (u64, u64) {
        (self.epoch, self.generation)
    }

    pub fn encode(&self, identity: Identity) -> Buf {
        let mut out = Writer::new();
        out.u32(MAGIC).u32(0).u32(VERSION).u16(identity.controller).u16(0).bytes(&identity.pool);
        out.u64(self.generation).u64(self.epoch);
        out.u64(self.tail_position).u64(self.tail_sequence).u64(self.tail_lsn.0);
        out.u32(self.tables.area).u32(self.tables.crc).u64(self.tables.bytes).u64(self.tables.lsn.0);
        out.u32(self.live_copies)
            .u64(self.epoch_sequence)
            .u64(self.settled.0)
            .u64(self.told_sequence)
            .u64(self.tables.changes_bytes)
            .u32(self.tables.changes_crc)
            .u32(u32::from(self.closed))
            .pad_to(BLOCK_BYTES);
        out.seal(CRC_AT);
        Buf::copy_of(out.as_slice())
    }

    /// Reads a root; `None` where there is none (never written, torn, of another journal), an error for one of this journal that
    /// another kura wrote.
    pub fn decode(block: &[u8], identity: Identity) -> Result<Option<Self>> {
        let mut reader = Reader::new(block);
        if reader.u32()? != MAGIC || !is_sealed(block, CRC_AT) {
            return Ok(None);
        }
        reader.u32()?;
        let (version, controller, _) = (reader.u32()?, reader.u16()?, reader.u16()?);
        // Whose it is stands at one place in all formats: what another pool has left, in whichever, is nothing here.
        if (Identity { pool: reader.array()?, controller }) != identity {
            return Ok(None);
        }
        if version != VERSION {
            return Err(Error::invalid(format!(
                "the journal has format {version} and this kura reads {VERSION}: use the kura that wrote it"
            )));
        }
        let mut root = Self {
            generation: reader.u64()?,
            epoch: reader.u64()?,
            epoch_sequence: 0,
            tail_position: reader.u64()?,
            tail_sequence: reader.u64()?,
            tail_lsn: Lsn(reader.u64()?),
            tables: TablesRef {
                area: reader.u32()? & 1,
                crc: reader.u32()?,
                bytes: reader.u64()?,
                lsn: Lsn(reader.u64()?),
                ..TablesRef::default()
            },
            live_copies: reader.u32()?,
            settled: Lsn(0),
            told_sequence: 0,
            closed: false,
        };
        (root.epoch_sequence, root.settled) = (reader.u64()?, Lsn(reader.u64()?));
        root.told_sequence = reader.u64()?;
        (root.tables.changes_bytes, root.tables.changes_crc) = (reader.u64()?, reader.u32()?);
        root.closed = reader.u32()? == 1;
        Ok(Some(root))
    }
}
