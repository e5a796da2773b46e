//! The root: the one block that says where everything begins. Written and read here.
//!
//! Generation g lies at block g mod 2 of the device; the valid one with the higher generation counts. It is written
//! with FUA, after all it speaks of is durable; then once more as the next generation, over the one before it. Only what is free by
//! both is used for something else: whichever of the two rots, the other one is right.
//!
//! ```text
//!   0  magic "kura-obj"   8  CRC u32 over the block with itself as zero  12  version u32
//!  16  id, 16 bytes      32  generation u64                             40  segment bytes u32   44  segments u32
//!  48  opening u64       56  first sequence of this opening u64
//!  64  checkpoint: number u64, first segment u32 (0: none), leaves u32
//!  80  replay from: sequence u64, revision u64, segment u32, offset in it u32, next segment u32
//! 108  inline limit u32                        112  durable u64: every entry below was when this was written
//! ```

use crate::log::entry::Head;
use crate::open::{SEGMENTS_LEAST, SEGMENTS_MOST, is_segment_bytes};
use crate::space::extent;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, Error, Reader, Result, Writer, is_sealed};

const MAGIC: [u8; 8] = *b"kura-obj";
const VERSION: u32 = 1;
const CRC_AT: usize = 8;

/// Where the log is read from after a crash: the first entry that the checkpoint may not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    pub sequence: u64,
    pub revision: u64,
    pub segment: u32,
    pub offset: u32,
    pub next_segment: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointRef {
    pub number: u64,
    /// 0: there is none, the index begins empty.
    pub first_segment: u32,
    pub leaves: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub id: [u8; 16],
    pub generation: u64,
    pub segment_bytes: u32,
    pub segments: u32,
    /// Counts up with each start; entries from `opening_sequence` on are of it or later ones.
    pub opening: u64,
    pub opening_sequence: u64,
    pub checkpoint: CheckpointRef,
    pub start: Start,
    /// Content up to this many bytes lies behind its record.
    pub inline_limit_bytes: u32,
    /// Every entry below was durable when this was written; 0 in roots of earlier programs.
    pub durable_sequence: u64,
}

/// Only where roots were not written twice: what the one that counts now names may have been given away since.
pub(crate) fn newest_is_lost() -> Error {
    Error::corrupt("the object store's newest root is lost: restore the store from a copy")
}

/// What lies where a root is to be.
enum Found {
    /// No root, or none yet.
    Nothing,
    /// One that is not whole.
    Damaged,
    Root(Root),
}

impl Root {
    /// The store's number in heads of entries: half its id.
    pub fn store(&self) -> u64 {
        let mut half = [0; 8];
        half.copy_from_slice(&self.id[..8]);
        u64::from_le_bytes(half)
    }

    fn encode(&self) -> Buf {
        let mut out = Writer::with_room(BLOCK_BYTES);
        out.bytes(&MAGIC).u32(0).u32(VERSION).bytes(&self.id).u64(self.generation);
        out.u32(self.segment_bytes).u32(self.segments).u64(self.opening).u64(self.opening_sequence);
        out.u64(self.checkpoint.number).u32(self.checkpoint.first_segment).u32(self.checkpoint.leaves);
        let start = self.start;
        out.u64(start.sequence).u64(start.revision).u32(start.segment).u32(start.offset).u32(start.next_segment);
        out.u32(self.inline_limit_bytes).u64(self.durable_sequence);
        out.pad_to(BLOCK_BYTES);
        out.seal(CRC_AT);
        Buf::copy_of(out.as_slice())
    }

    fn decode(block: &[u8]) -> Result<Found> {
        let mut reader = Reader::new(block);
        if reader.array::<8>()? != MAGIC {
            return Ok(Found::Nothing);
        }
        if !is_sealed(block, CRC_AT) {
            return Ok(Found::Damaged);
        }
        reader.u32()?;
        let version = reader.u32()?;
        if version != VERSION {
            return Err(Error::invalid(format!(
                "the object store is of version {version}, this program reads {VERSION}"
            )));
        }
        let root = Self {
            id: reader.array()?,
            generation: reader.u64()?,
            segment_bytes: reader.u32()?,
            segments: reader.u32()?,
            opening: reader.u64()?,
            opening_sequence: reader.u64()?,
            checkpoint: CheckpointRef { number: reader.u64()?, first_segment: reader.u32()?, leaves: reader.u32()? },
            start: Start {
                sequence: reader.u64()?,
                revision: reader.u64()?,
                segment: reader.u32()?,
                offset: reader.u32()?,
                next_segment: reader.u32()?,
            },
            inline_limit_bytes: reader.u32()?,
            durable_sequence: reader.u64()?,
        };
        if !root.can_be() {
            return Err(Error::corrupt("a root of the object store says what no store can be: restore it from a copy"));
        }
        Ok(Found::Root(root))
    }

    /// True where a store can be laid out so, and its log stands in it.
    fn can_be(&self) -> bool {
        let Start { sequence, segment, offset, next_segment, .. } = self.start;
        let segments = 1..self.segments;
        is_segment_bytes(self.segment_bytes)
            && (u64::from(SEGMENTS_LEAST)..=SEGMENTS_MOST).contains(&u64::from(self.segments))
            && segments.contains(&segment)
            && segments.contains(&next_segment)
            && offset <= self.segment_bytes
            && (offset as usize).is_multiple_of(BLOCK_BYTES)
            && sequence < u64::MAX
    }

    /// The newest root of a device; `None` where there is no store. An error where a root cannot be read: it may be the
    /// newest one, and with the one before, what came since would be lost. `Corrupt` where there is a store and no root of
    /// it is whole.
    pub async fn read(device: &dyn Block) -> Result<Option<Self>> {
        let found = Self::found(device).await?;
        match &found {
            // Of two, one may be torn: a crash came while it was written, and the other one counts.
            [Found::Root(one), Found::Root(other)] => {
                Ok(Some(if one.generation > other.generation { *one } else { *other }))
            }
            [Found::Root(root), _] | [_, Found::Root(root)] => root.alone(device).await.map(Some),
            // The first root goes to the second place: a crash came while the store was made.
            [Found::Nothing, _] => Ok(None),
            _ => Err(Error::corrupt("both roots of the object store are damaged: restore it from a copy")),
        }
    }

    /// `Corrupt` where one of the two is damaged: a start has the other one alone then.
    pub async fn verify(device: &dyn Block) -> Result<()> {
        if Self::found(device).await?.iter().all(|found| matches!(found, Found::Root(_))) {
            return Ok(());
        }
        Err(Error::corrupt("one of the object store's two roots is damaged"))
    }

    /// What lies in the two places.
    async fn found(device: &dyn Block) -> Result<[Found; 2]> {
        let found = async |slot: u64| {
            let block = extent::read_device(device, slot * BLOCK_BYTES_U64, BLOCK_BYTES).await;
            Self::decode(&block.map_err(|error| error.at("the object store's roots"))?.contiguous())
        };
        Ok([found(0).await?, found(1).await?])
    }

    /// It, where no other one is whole; `Corrupt` where that was certainly a newer one, as programs may have left it that wrote each
    /// root once. As long as this is the newest, the log goes on behind what came earlier, in the segment of its start; or that was
    /// full, and it goes on at the beginning of the next one, and the first may hold anything by now.
    pub(crate) async fn alone(self, device: &dyn Block) -> Result<Self> {
        let Start { sequence, segment, offset, next_segment, .. } = self.start;
        if offset > 0 {
            let goes_on = self.head_at(device, segment).await?.is_some_and(|first| first < sequence)
                || self.head_at(device, next_segment).await? == Some(sequence);
            if !goes_on {
                return Err(newest_is_lost());
            }
        }
        // A new store has one.
        if self.generation > 1 {
            tracing::warn!(
                "one of the object store's two roots is damaged, by a crash or by the device: the other one counts"
            );
        }
        Ok(self)
    }

    /// The number of the entry that a segment begins with; none where it begins with something else.
    async fn head_at(&self, device: &dyn Block, segment: u32) -> Result<Option<u64>> {
        let place = u64::from(segment) * u64::from(self.segment_bytes);
        let block = extent::read_device(device, place, BLOCK_BYTES).await;
        let block = block.map_err(|error| error.at(format_args!("the log in segment {segment}")))?;
        let head = Head::read(&block.contiguous());
        Ok(head.filter(|head| head.store == self.store()).map(|head| head.sequence))
    }

    /// Writes it durably, in the place of its generation.
    pub async fn write(&self, device: &dyn Block) -> Result<()> {
        device.write(self.generation % 2 * BLOCK_BYTES_U64, self.encode().into(), true).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_that_says_what_cannot_be_is_corrupt() {
        let start = Start { sequence: 9, revision: 9, segment: 3, offset: 4096, next_segment: 4 };
        let root = Root {
            id: [7; 16],
            generation: 2,
            segment_bytes: 64 << 10,
            segments: 16,
            opening: 1,
            opening_sequence: 1,
            checkpoint: CheckpointRef { number: 0, first_segment: 0, leaves: 0 },
            start,
            inline_limit_bytes: 4096,
            durable_sequence: 9,
        };
        assert!(matches!(Root::decode(&root.encode()), Ok(Found::Root(found)) if found == root));
        let wrong = [
            Root { segment_bytes: 0, ..root },
            Root { segment_bytes: 65 << 10, ..root },
            Root { segments: 0, ..root },
            Root { segments: u32::MAX, ..root },
            Root { start: Start { segment: 16, ..start }, ..root },
            Root { start: Start { next_segment: 0, ..start }, ..root },
            Root { start: Start { offset: u32::MAX, ..start }, ..root },
            Root { start: Start { offset: 68 << 10, ..start }, ..root },
            Root { start: Start { offset: 5, ..start }, ..root },
        ];
        for root in wrong {
            assert!(Root::decode(&root.encode()).is_err(), "{root:?}");
        }
    }
}
