//! The format of a hot extent's page: written here, read here.
//!
//! ```text
//!  0  magic u32   4  CRC u32 (over the page, itself as zero)   8  born u64   16  sequence u64   24  slots u32   28  controller u16
//! 30  zero u16
//! 32  for each slot u64: 0 where it is free, else (volume >> 16 + 1) << 38 | block; u16: the volume's lower bits;
//!     zeroes to the end
//! ```

use crate::hot::table::Owner;
use kura_block::{BLOCK_BYTES, Buf, Reader, Writer, is_sealed};

const MAGIC: u32 = 0x5048_754b; // "KuHP"
const CRC_AT: usize = 4;
const HEADER_BYTES: usize = 32;

/// Who has the slots of a hot extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPage {
    /// The controller whose hot area the extent is in. What an extent of another one has left at the same place may have the same
    /// `born`: each counts its own log.
    pub controller: u16,
    /// LSN of the record that put the extent there.
    pub born: u64,
    /// Counts up with each time it is written.
    pub sequence: u64,
    /// For each slot its block, where it has one.
    pub slots: Vec<Option<Owner>>,
}

impl HotPage {
    /// Bytes of the page of so many slots, in whole blocks.
    pub fn bytes(slots: usize) -> usize {
        (HEADER_BYTES + Owner::BYTES * slots).next_multiple_of(BLOCK_BYTES)
    }

    /// The page as it goes to a disk.
    pub fn encode(&self) -> Buf {
        let mut out = Writer::with_room(Self::bytes(self.slots.len()));
        out.u32(MAGIC).u32(0).u64(self.born).u64(self.sequence).u32(self.slots.len() as u32);
        out.u16(self.controller).u16(0);
        for slot in &self.slots {
            Owner::encode(*slot, &mut out);
        }
        out.pad_to(BLOCK_BYTES);
        out.seal(CRC_AT);
        Buf::copy_of(out.as_slice())
    }

    /// Reads a page; `None` where there is none of the controller's extent born then.
    pub fn decode(bytes: &[u8], (controller, born): (u16, u64), slots: usize) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u32().ok()? != MAGIC || !is_sealed(bytes, CRC_AT) {
            return None;
        }
        reader.u32().ok()?;
        let (found, sequence) = (reader.u64().ok()?, reader.u64().ok()?);
        if found != born || reader.u32().ok()? as usize != slots || reader.u16().ok()? != controller {
            return None;
        }
        reader.u16().ok()?;
        let slots = (0..slots).map(|_| Owner::decode(&mut reader).ok()).collect::<Option<_>>()?;
        Some(Self { controller, born, sequence, slots })
    }
}
