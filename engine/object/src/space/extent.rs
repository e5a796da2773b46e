//! An extent: data blocks, then one block with a CRC-32C of each. Written and read here.
//!
//! ```text
//!  | data block 0 | 1 | ... | the last one, zeroes at its end | CRC u32 of each data block, zeroes |
//! ```
//!
//! The CRC of the last block stands in the object's record and in the index: an extent that was lost, or that another
//! one took the place of, does not pass for the right one.

use crate::known::Extent;
use crate::recent::STEP_BYTES;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Block, Buf, BufMut, Bufs, Checksum, Error, Kind, Result};

/// Data blocks of an extent at most: as many as one block has room for checksums of.
pub(crate) const DATA_BLOCKS_LIMIT: u32 = (BLOCK_BYTES / 4) as u32;

/// Data up to this many bytes is read together with the checksums behind it; beyond, in two requests side by side, as
/// memory of a round size is at hand and a little more is not.
const TOGETHER_BYTES: usize = 128 << 10;

/// The extent as it goes to the device, and the CRC of its last block.
pub(crate) fn encode(data: &Bufs) -> (Bufs, u32) {
    let is_aligned = |part: &Buf| {
        part.as_ptr().addr().is_multiple_of(kura_block::PAGE_BYTES) && part.len().is_multiple_of(BLOCK_BYTES)
    };
    let mut checksums = BufMut::zeroed(BLOCK_BYTES);
    let mut all = Bufs::new();
    let mut at = 0;
    let mut note = |part: &Buf| {
        for checksum in Checksum::of_blocks(part) {
            checksums[at..at + 4].copy_from_slice(&checksum.stored().to_le_bytes());
            at += 4;
        }
    };
    if data.parts().iter().all(is_aligned) {
        data.parts().iter().for_each(&mut note);
        all.append(data.clone());
    } else {
        // In buffers of the size that is kept in memory, or dropped, as one.
        for begin in (0..data.len()).step_by(STEP_BYTES as usize) {
            let part = data.slice(begin..data.len().min(begin + STEP_BYTES as usize));
            let mut copy = BufMut::room(part.len().next_multiple_of(BLOCK_BYTES));
            part.copy_to(&mut copy[..part.len()]);
            copy[part.len()..].fill(0);
            let copy = copy.freeze();
            note(&copy);
            all.push(copy);
        }
    }
    let checksums = checksums.freeze();
    let crc = crc32c::crc32c(&checksums);
    all.push(checksums);
    (all, crc)
}

/// The verified checksums of an extent, kept while it is read in steps.
pub(crate) struct Checksums {
    pub extent: Extent,
    block: Buf,
}

impl Checksums {
    fn of(extent: Extent, block: Buf) -> Result<Self> {
        if crc32c::crc32c(&block) != extent.crc {
            return Err(Error::corrupt(format!(
                "the checksums of the extent at block {} are not its own",
                extent.block
            )));
        }
        Ok(Self { extent, block })
    }

    /// Holds data blocks, from number `first` on, against their checksums.
    fn verify(&self, first: usize, data: &Bufs) -> Result<()> {
        let mut number = first;
        for part in data.parts() {
            for checksum in Checksum::of_blocks(part) {
                let at = number * 4;
                let stored = u32::from_le_bytes([0, 1, 2, 3].map(|byte| self.block[at + byte]));
                if checksum.stored() != stored {
                    let block = self.extent.block as usize + number;
                    return Err(Error::corrupt(format!("block {block} of the device fails its checksum")));
                }
                number += 1;
            }
        }
        Ok(())
    }
}

/// Reads bytes of the device. `Corrupt` is what this store finds out by its own checksums; where the layer below says that
/// it has lost a block, it is the device that does not do its work: `Device`.
pub(crate) async fn read_device(device: &dyn Block, place: u64, len: usize) -> Result<Bufs> {
    device.read(place, len).await.map_err(|error| match error.kind() {
        Kind::Corrupt => Error::device(error.to_string()),
        _ => error,
    })
}

/// Reads `len` bytes at `from` of an extent, verified. `known` are its checksums from an earlier step; those that were
/// read now are left there.
pub(crate) async fn read(
    device: &dyn Block,
    extent: Extent,
    from: u64,
    len: usize,
    known: &mut Option<Checksums>,
) -> Result<Bufs> {
    let block_bytes = BLOCK_BYTES_U64;
    let first = from / block_bytes;
    let end = (from + len as u64).div_ceil(block_bytes);
    if end > u64::from(extent.blocks) || extent.blocks > DATA_BLOCKS_LIMIT {
        return Err(Error::corrupt(format!("a piece leaves the extent at block {}", extent.block)));
    }
    let place = (u64::from(extent.block) + first) * block_bytes;
    let data_bytes = ((end - first) * block_bytes) as usize;
    let checksums_at = (u64::from(extent.block) + u64::from(extent.blocks)) * block_bytes;
    let is_known = known.as_ref().is_some_and(|known| known.extent == extent);
    let data = if is_known {
        read_device(device, place, data_bytes).await?
    } else if end == u64::from(extent.blocks) && data_bytes <= TOGETHER_BYTES {
        let all = read_device(device, place, data_bytes + BLOCK_BYTES).await?;
        let block = all.slice(data_bytes..data_bytes + BLOCK_BYTES).contiguous();
        *known = Some(Checksums::of(extent, block)?);
        all.slice(0..data_bytes)
    } else {
        let (data, block) = futures::future::join(
            read_device(device, place, data_bytes),
            read_device(device, checksums_at, BLOCK_BYTES),
        )
        .await;
        *known = Some(Checksums::of(extent, block?.contiguous())?);
        data?
    };
    // Parts may cut blocks where a layer below put them together.
    let whole = data.parts().iter().all(|part| part.len().is_multiple_of(BLOCK_BYTES));
    let data = if whole { data } else { data.contiguous().into() };
    if let Some(checksums) = known {
        checksums.verify(first as usize, &data)?;
    }
    let skip = (from % block_bytes) as usize;
    Ok(data.slice(skip..skip + len))
}
