//! Reading: from the write buffer, from the disks held against checksums, or nothing at all.

use crate::extent::{Dirty, Extent};
use crate::record::Record;
use crate::store::Inner;
use crate::stripe::Slot;
use crate::tables::VolumeState;
use crate::tier::Source;
use futures::future::join_all;
use kura_array::{Found, Piece, Urgency, Verified};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Buf, Bufs, Checksum, Error, Kind, Result, Run, RunKind};
use smallvec::SmallVec;
use std::rc::Rc;

/// What comes next in a range of blocks.
enum Segment {
    /// Blocks that read as zeroes.
    Zeroes(u64),
    /// A block in the write buffer.
    Buffered(Buf),
    /// Blocks on the disks, and where.
    Stored(Rc<Extent>, SmallVec<[Checksum; 32]>, Source),
    /// An extent whose page must be loaded first.
    Unloaded(Rc<Extent>),
}

/// Blocks read from the disks at once.
const RUN_BLOCKS: usize = 256;
/// Runs that one answer about a range lists.
const RUNS_LIMIT: usize = 4096;

impl Inner {
    /// Reads whole blocks.
    pub async fn read_blocks(&self, volume: &Rc<VolumeState>, first: u64, end: u64) -> Result<Bufs> {
        let mut out = Bufs::new();
        let mut at = first;
        while at < end {
            match self.segment(volume, at, end) {
                Segment::Zeroes(blocks) => {
                    out.append(Bufs::zeroes(Self::bytes_of(blocks) as usize));
                    at += blocks;
                }
                Segment::Buffered(block) => {
                    out.push(block);
                    at += 1;
                }
                Segment::Unloaded(extent) => self.load(&extent).await?,
                Segment::Stored(extent, checksums, source) => {
                    if let Some(data) = self.read_stored(volume, &extent, at, &checksums, &source).await? {
                        at += checksums.len() as u64;
                        out.append(data);
                    }
                }
            }
        }
        Ok(out)
    }

    fn segment(&self, volume: &VolumeState, at: u64, end: u64) -> Segment {
        let (index, inside) = self.split(at);
        let span = (end - at).min((self.array.extent_blocks() - inside) as u64);
        let Some(extent) = volume.extent(index) else { return Segment::Zeroes(span) };
        if !extent.is_loaded() {
            return Segment::Unloaded(extent);
        }
        let dirty = volume.dirty.borrow();
        let mut buffered = dirty.range(at..at + span).filter(|(_, dirty)| dirty.data.is_some());
        let mut clean = span;
        if let Some((block, dirty)) = buffered.next() {
            match &dirty.data {
                Some(data) if *block == at => return Segment::Buffered(data.clone()),
                _ => clean = block - at,
            }
        }
        extent.with_page(|page| {
            let inside = inside..inside + clean as usize;
            let stored: SmallVec<[Checksum; 32]> =
                inside.clone().map_while(|block| page.get(block)).take(RUN_BLOCKS).collect();
            if stored.is_empty() {
                return Segment::Zeroes(inside.take_while(|block| page.get(*block).is_none()).count() as u64);
            }
            let (source, blocks) = self.source_run(volume, &extent, at, at + stored.len() as u64);
            Segment::Stored(Rc::clone(&extent), stored[..blocks as usize].into(), source)
        })
    }

    /// Reads blocks from the disks; `None` when a write overtook the read, which must then look again.
    async fn read_stored(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        first: u64,
        checksums: &[Checksum],
        source: &Source,
    ) -> Result<Option<Bufs>> {
        match self.read_source(volume, extent, first, checksums, (source, Urgency::Client)).await {
            Ok(verified) => {
                for at in verified.damaged {
                    let block = verified.data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES);
                    self.repair(volume, extent, first + at as u64, block, checksums[at]);
                }
                Ok(Some(verified.data))
            }
            Err(error)
                if self.is_elsewhere(volume, extent, first..first + checksums.len() as u64, source)
                    || matches!(error.kind(), Kind::Corrupt | Kind::Device)
                        && self.overtaken(volume, extent, first, checksums) =>
            {
                Ok(None)
            }
            Err(error) => Err(error.at(format!("volume {} block {first}", volume.spec.borrow().name))),
        }
    }

    /// Reads blocks that lie in stripes; those that are lost or bad are reconstructed from the others of their rows.
    pub async fn read_stripes(
        &self,
        volume: &VolumeState,
        extent: &Rc<Extent>,
        first: u64,
        checksums: &[Checksum],
        urgency: Urgency,
    ) -> Result<Verified> {
        let shape = volume.shape;
        let mut at = 0;
        let pieces = shape.pieces(first..first + checksums.len() as u64).map(|piece| {
            let expected = &checksums[at..at + piece.rows.len()];
            at += piece.rows.len();
            self.read_piece(volume, extent, piece, expected, urgency)
        });
        let mut whole = Verified { data: Bufs::new(), damaged: Vec::new() };
        let mut at = 0;
        for piece in join_all(pieces).await {
            let piece = piece?;
            let blocks = piece.data.len() / BLOCK_BYTES;
            whole.damaged.extend(piece.damaged.into_iter().map(|damaged| at + damaged));
            whole.data.append(piece.data);
            at += blocks;
        }
        Ok(whole)
    }

    async fn read_piece(
        &self,
        volume: &VolumeState,
        extent: &Rc<Extent>,
        piece: Piece,
        expected: &[Checksum],
        urgency: Urgency,
    ) -> Result<Verified> {
        let at = self.stripe_of(extent, piece.stripe);
        let berth = at.berth(Slot::Column(piece.column));
        let place = berth.place;
        let mut refused = None;
        let mut blocks = match self.array.read_verified(&berth, at.at(piece.rows.start), expected, urgency).await {
            Found::All(data) => return Ok(Verified { data, damaged: Vec::new() }),
            Found::Some(blocks) => blocks,
            Found::Refused => {
                // What was not read with its neighbours may be read by itself.
                let read = self.read_each(&berth, at.at(piece.rows.start), expected.len(), urgency).await;
                let good = read.into_iter().zip(expected).map(|(read, expected)| {
                    let good = read.good(*expected);
                    good.unwrap_or_else(|error| {
                        refused = Some(error);
                        None
                    })
                });
                good.map(|block| block.map(Bufs::from)).collect()
            }
        };
        let missing: Vec<_> = (0..blocks.len()).filter(|block| blocks[*block].is_none()).collect();
        let wanted: Vec<_> = missing.iter().map(|block| (piece.rows.start + block, expected[*block])).collect();
        let extents = volume.group_of(extent.owner.index);
        let found = self.reconstruct(volume, &extents, (piece.stripe, piece.column), &wanted, urgency).await?;
        for (block, found) in missing.iter().zip(found) {
            blocks[*block] = found.map(Bufs::from);
        }
        let mut whole = Verified { data: Bufs::new(), damaged: missing };
        for (number, block) in blocks.into_iter().enumerate() {
            whole.data.append(block.ok_or_else(|| {
                let row = piece.rows.start + number;
                refused.clone().unwrap_or_else(|| Error::corrupt(format!(
                    "row {row} of stripe {} is lost: block {} of extent {} of disk {} and another one of the row are bad or away",
                    piece.stripe,
                    at.at(row),
                    place.extent.0,
                    place.device.0
                )))
            })?);
        }
        if !self.array.works(place) {
            // Nothing could be written again there.
            whole.damaged.clear();
        }
        Ok(whole)
    }

    /// True when a block was written, cleared or given up since its checksum was looked up.
    pub fn overtaken(&self, volume: &VolumeState, extent: &Rc<Extent>, first: u64, checksums: &[Checksum]) -> bool {
        let (index, inside) = self.split(first);
        let here = volume.extent(index).is_some_and(|now| Rc::ptr_eq(&now, extent));
        let dirty = volume.dirty.borrow().range(first..first + checksums.len() as u64).next().is_some();
        !here
            || dirty
            || !extent.is_loaded()
            || extent.with_page(|page| (0..checksums.len()).any(|at| page.get(inside + at) != Some(checksums[at])))
    }

    /// Writes a block again whose bytes are good and of which some copy is bad. It goes the way of every write, so that
    /// it never overtakes one; with no room just now the next read or scrub tries again. True when it was written.
    pub fn repair(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        block: u64,
        data: Bufs,
        checksum: Checksum,
    ) -> bool {
        let written = self.write_again(volume, extent, block, data, checksum);
        if written {
            tracing::warn!(volume = volume.id, block, "writing a damaged block again from a good copy");
        }
        written
    }

    /// Writes a block again as it is, as if a client had; true when it was written.
    pub fn write_again(
        &self,
        volume: &Rc<VolumeState>,
        extent: &Rc<Extent>,
        block: u64,
        data: Bufs,
        checksum: Checksum,
    ) -> bool {
        if self.overtaken(volume, extent, block, &[checksum])
            || self.ready(volume).is_err()
            || !self.journal_has_room(BLOCK_BYTES_U64)
        {
            return false;
        }
        let lsn = self.append_data(&Record::Write { volume: volume.id, first: block }, &data, &[checksum]);
        self.buffer(volume, block, Dirty::new(data.contiguous(), checksum, lsn, Some(checksum)));
        self.stir();
        true
    }

    /// What lies at a range of bytes, from its start on.
    pub async fn runs(&self, volume: &Rc<VolumeState>, offset: u64, len: u64) -> Result<Vec<Run>> {
        let unit = BLOCK_BYTES_U64;
        let (mut at, end) = (offset, offset + len);
        let mut runs: Vec<Run> = Vec::new();
        while at < end && runs.len() < RUNS_LIMIT {
            let blocks = self.array.extent_blocks() as u64;
            let (block, extent_end) = (at / unit, (at / unit / blocks + 1) * blocks * unit);
            let mut add = |until: u64, kind: RunKind| {
                let len_bytes = until.min(end) - at;
                match runs.last_mut() {
                    Some(last) if last.kind == kind => last.len_bytes += len_bytes,
                    _ => runs.push(Run { len_bytes, kind }),
                }
                until.min(end)
            };
            let (index, inside) = self.split(block);
            let Some(extent) = volume.extent(index) else {
                let next = volume.next_mapped(index).map_or(end, |next| u64::from(next) * blocks * unit);
                at = add(next.max(extent_end), RunKind::Hole);
                continue;
            };
            if !extent.is_loaded() {
                self.load(&extent).await?;
                continue;
            }
            let (written, count) = extent.with_page(|page| {
                let written = page.get(inside).is_some();
                let alike = (inside..page.blocks()).take_while(|block| page.get(*block).is_some() == written).count();
                (written, alike as u64)
            });
            at = add((block + count) * unit, if written { RunKind::Data } else { RunKind::Zero });
        }
        Ok(runs)
    }
}
