//! Changing content in place: written at an offset, appended, cut off, cleared. What is not changed is not copied.

use crate::batch::Changed;
use crate::commit::ReadRecord;
use crate::content::Held;
use crate::housekeeping::clean::cut;
use crate::known::{Known, Piece};
use crate::log::submit::{Edit, Prepared, Ready, Refusal};
use crate::object::{PartitionId, Stat, Which, shown};
use crate::read::Looked;
use crate::space::extent;
use crate::store::{Inner, Store};
use crate::upload::Upload;
use kura_block::{Buf, Bufs, Error, Result};
use std::rc::Rc;

/// Pieces that an object may have besides one for each of these bytes: with more, it is written anew.
const PIECES_SPARE: u64 = 32;
const PIECE_BYTES: u64 = 256 << 10;

/// A part of content: of the device, or in memory.
enum Part {
    Piece(Piece),
    Bytes(Bufs),
}

/// What to do to a version's content.
#[derive(Clone)]
enum Change {
    Write { offset: u64, data: Bufs },
    Append { data: Bufs },
    Truncate { size_bytes: u64 },
    Clear { offset: u64, len: u64 },
}

impl Store {
    /// Writes at an offset of the newest version, which stays the same version; what lies between its end and the offset
    /// reads as zeroes. Its tag is emptied.
    pub async fn write(
        &self,
        partition: PartitionId,
        key: &[u8],
        offset: u64,
        data: Bufs,
        modified_ms: u64,
    ) -> Result<Stat> {
        self.edit(partition, key, Change::Write { offset, data }, modified_ms).await
    }

    /// Writes behind the end of the newest version.
    pub async fn append(&self, partition: PartitionId, key: &[u8], data: Bufs, modified_ms: u64) -> Result<Stat> {
        self.edit(partition, key, Change::Append { data }, modified_ms).await
    }

    /// Cuts the newest version off at a size, or lengthens it by zeroes.
    pub async fn truncate(
        &self,
        partition: PartitionId,
        key: &[u8],
        size_bytes: u64,
        modified_ms: u64,
    ) -> Result<Stat> {
        self.edit(partition, key, Change::Truncate { size_bytes }, modified_ms).await
    }

    /// Makes a range of the newest version read as zeroes and gives its space back; the size stays.
    pub async fn clear(
        &self,
        partition: PartitionId,
        key: &[u8],
        offset: u64,
        len: u64,
        modified_ms: u64,
    ) -> Result<Stat> {
        self.edit(partition, key, Change::Clear { offset, len }, modified_ms).await
    }

    async fn edit(&self, partition: PartitionId, key: &[u8], change: Change, modified_ms: u64) -> Result<Stat> {
        loop {
            // What is read and what stays must not be written over before the edit is in.
            let Looked { row, known, pins: _pins, .. } =
                self.inner.look_up_to_edit(partition, key, Which::Latest).await?;
            let record_at = known.place;
            let read = match self.inner.record_at(&row, known).await {
                Err(error) if self.inner.was_taken_back(&row, record_at, &error)? => continue,
                read => read.map_err(|error| error.at(shown(key)))?,
            };
            let edit = self.inner.edited(read, change.clone(), modified_ms).await?;
            let mut batch = Prepared {
                conditions: Vec::new(),
                changes: vec![(partition, key.to_vec(), Ready::Edit(edit))],
                durability: self.durability(),
            };
            match self.inner.submit(&mut batch).await {
                Ok((ticket, changed)) => {
                    self.inner.acknowledged(&ticket).await?;
                    let now = changed.into_iter().next().and_then(|Changed { now, .. }| now);
                    return now.ok_or_else(|| Error::corrupt("a change shows no version"));
                }
                Err(Refusal::Stale) => {}
                Err(Refusal::Error(error)) => return Err(error),
            }
        }
    }
}

/// The parts of a range of a version's content.
fn parts(read: &ReadRecord, range: std::ops::Range<u64>) -> Vec<Part> {
    let in_pieces = read.known.size_bytes() - read.inline.len() as u64;
    let mut parts: Vec<Part> = cut(&read.known.pieces, range.clone()).into_iter().map(Part::Piece).collect();
    let (from, end) = (range.start.max(in_pieces), range.end);
    if from < end {
        parts.push(Part::Bytes(read.inline.slice((from - in_pieces) as usize..(end - in_pieces) as usize)));
    }
    parts
}

fn hole(len: u64) -> Option<Part> {
    (len > 0).then_some(Part::Piece(Piece { extent: None, from: 0, len }))
}

/// The content behind a change, in parts.
fn changed(read: &ReadRecord, change: Change) -> Result<Vec<Part>> {
    let size = read.known.size_bytes();
    let end_of = |offset: u64, len: u64| {
        let end = offset.checked_add(len).filter(|end| *end <= i64::MAX.cast_unsigned());
        end.ok_or_else(|| Error::invalid(format!("{len} bytes at {offset} are behind the end of any object")))
    };
    let (offset, len, middle) = match change {
        Change::Append { data } => (size, data.len() as u64, Some(Part::Bytes(data))),
        Change::Write { offset, data } => (offset, data.len() as u64, Some(Part::Bytes(data))),
        Change::Truncate { size_bytes } => {
            let mut all = parts(read, 0..size.min(size_bytes));
            all.extend(hole(end_of(size_bytes, 0)?.saturating_sub(size)));
            return Ok(all);
        }
        Change::Clear { offset, len } => {
            let len = len.min(size.saturating_sub(offset));
            (offset.min(size), len, hole(len))
        }
    };
    let end = end_of(offset, len)?;
    let mut all = parts(read, 0..offset.min(size));
    all.extend(hole(offset.saturating_sub(size)));
    all.extend(middle);
    all.extend(parts(read, end.min(size)..size));
    Ok(all)
}

impl Inner {
    /// The edit that a change amounts to, its new bytes written where they go to extents.
    async fn edited(self: &Rc<Self>, read: ReadRecord, change: Change, modified_ms: u64) -> Result<Edit> {
        let mut parts = changed(&read, change)?;
        let size: u64 = parts.iter().map(Part::len).sum();
        let limit = self.inline_limit() as u64;
        let pieces = parts.iter().filter(|part| matches!(part, Part::Piece(_))).count() as u64;
        // What became small lies behind its record, and what is in too many pieces is put together.
        if (size <= limit && pieces > 0) || pieces > PIECES_SPARE + size / PIECE_BYTES {
            parts = vec![Part::Bytes(self.read_parts(parts).await?)];
        }
        let mut held = Held::new(self);
        let mut placed: Vec<Piece> = Vec::new();
        let mut gathered = Bufs::new();
        for part in parts {
            match part {
                Part::Bytes(bytes) => gathered.append(bytes),
                Part::Piece(piece) => {
                    self.place(&mut gathered, &mut placed, &mut held).await?;
                    placed.push(piece);
                }
            }
        }
        if gathered.len() as u64 > limit {
            self.place(&mut gathered, &mut placed, &mut held).await?;
        }
        let known = Known { pieces: placed, modified_ms, tag: Vec::new(), ..read.known };
        Ok(Edit { known, attributes: read.attributes, inline: gathered, held: Some(held), is_move: false })
    }

    /// Writes gathered bytes to extents.
    async fn place(self: &Rc<Self>, gathered: &mut Bufs, placed: &mut Vec<Piece>, held: &mut Held) -> Result<()> {
        if gathered.is_empty() {
            return Ok(());
        }
        let mut upload = Upload::new(self, true);
        upload.write(std::mem::take(gathered)).await?;
        let content = upload.finish().await?;
        placed.extend_from_slice(&content.pieces);
        held.adopt(content.held);
        Ok(())
    }

    async fn read_parts(&self, parts: Vec<Part>) -> Result<Bufs> {
        let mut all = Bufs::new();
        for part in parts {
            match part {
                Part::Bytes(bytes) => all.append(bytes),
                Part::Piece(Piece { extent: None, len, .. }) => all.append(Bufs::zeroes(len as usize)),
                Part::Piece(Piece { extent: Some(extent), from, len }) => {
                    let data = extent::read(&*self.device, extent, u64::from(from), len as usize, &mut None).await?;
                    // Small pieces of large buffers would hold all of those.
                    all.append(Buf::copy_of(&data.contiguous()).into());
                }
            }
        }
        Ok(all)
    }
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Self::Piece(piece) => piece.len,
            Self::Bytes(bytes) => bytes.len() as u64,
        }
    }
}
