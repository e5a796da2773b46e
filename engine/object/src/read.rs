//! Reading: what is known, attributes, and content in verified pieces.

use crate::commit::ReadRecord;
use crate::housekeeping::clean::cut;
use crate::known::{Known, Piece};
use crate::log::record::{Record, crc_of};
use crate::object::{Attributes, PartitionId, Row, Stat, Which, name_of, shown};
use crate::recent::{STEP_BYTES, Said};
use crate::space::extent::{self, Checksums};
use crate::store::{Inner, Store};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs, Error, Kind, Local, Result};
use std::ops::Range;
use std::rc::Rc;
use std::task::Poll;

impl Store {
    /// What is known of a version. `Missing` when there is none, or when the newest is a delete marker.
    pub async fn stat(&self, partition: PartitionId, key: &[u8], which: Which) -> Result<Stat> {
        self.inner.look_up(partition, key, which, |_, known, latest| known.stat(latest)).await
    }

    /// A version's attributes, with what is known of it.
    pub async fn attributes(&self, partition: PartitionId, key: &[u8], which: Which) -> Result<(Stat, Attributes)> {
        let reader = self.read_range(partition, key, which, 0..0).await?;
        Ok((reader.stat.clone(), reader.attributes.clone()))
    }

    /// Opens a version for reading. It stays readable as it is now, whatever is changed meanwhile, until the reader is
    /// dropped: so drop it.
    pub async fn read(&self, partition: PartitionId, key: &[u8], which: Which) -> Result<Reader> {
        self.read_chosen(partition, key, which, |stat| 0..stat.size_bytes).await
    }

    /// As [`Store::read`], of a range of the content only; `Invalid` when the range leaves it.
    pub async fn read_range(
        &self,
        partition: PartitionId,
        key: &[u8],
        which: Which,
        range: Range<u64>,
    ) -> Result<Reader> {
        self.read_chosen(partition, key, which, |_| range.clone()).await
    }

    /// The same where the range depends on what the version is: it is asked of the device at once, beside the record.
    pub async fn read_chosen(
        &self,
        partition: PartitionId,
        key: &[u8],
        which: Which,
        choose: impl Fn(&Stat) -> Range<u64>,
    ) -> Result<Reader> {
        self.inner.open_reader(partition, key, which, &choose).await
    }
}

/// A version being read.
pub struct Reader {
    /// What is known of it.
    pub stat: Stat,
    /// Its attributes.
    pub attributes: Attributes,
    inner: Rc<Inner>,
    pieces: Vec<Piece>,
    inline: Bufs,
    /// What it was opened for: nothing else stays in its place.
    opened: Range<u64>,
    /// What is left to be read of the content.
    range: Range<u64>,
    /// The piece to go on in and where it begins in the content.
    at: (usize, u64),
    checksums: Option<Checksums>,
    /// The next step, asked of the device while the caller is busy with the last one.
    ahead: Option<Local<'static, Step>>,
    row: Row,
    fetched: Fetched,
    _extents: Pins,
}

/// Where what was read came from: the record with what it says of the object and holds of small content, and pieces of at most
/// 1 MiB each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// From memory.
    pub from_memory: u64,
    /// From the device, though there is memory to keep some in.
    pub from_device: u64,
}

/// What a step of a read gives, and the checksums of the extent that it was in.
type Step = Result<(Bufs, Option<Checksums>)>;

impl Reader {
    /// Narrows what is read to this range of the content; `Invalid` when it leaves what the reader was opened for. What was
    /// read ahead is read for nothing then: who knows the range before says so when opening.
    pub fn range(&mut self, range: Range<u64>) -> Result<()> {
        check_range(&range, &self.opened)?;
        if range == self.range {
            return Ok(());
        }
        self.range = range;
        self.at = (0, 0);
        self.ahead = None;
        Ok(())
    }

    /// The next bytes, at most 1 MiB, verified; `None` at the end. `Corrupt` when what is stored is not what was put.
    pub async fn next(&mut self) -> Result<Option<Bufs>> {
        if self.range.is_empty() {
            return Ok(None);
        }
        let step = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.step(),
        };
        let (data, checksums) = step.await.map_err(|error| error.at(&self.row))?;
        self.checksums = checksums;
        self.range.start += data.len() as u64;
        self.look_ahead().await;
        Ok(Some(data))
    }

    /// Where what was read came from since this was asked last, ahead of the caller included.
    pub fn fetched(&mut self) -> Fetched {
        std::mem::take(&mut self.fetched)
    }

    /// Asks the device for the next step, without waiting for it.
    async fn look_ahead(&mut self) {
        if self.range.is_empty() {
            return;
        }
        let mut step = self.step();
        // What is asked of a device goes on by itself; the answer is taken by the next call.
        self.ahead = match futures::poll!(&mut step) {
            Poll::Pending => Some(step),
            Poll::Ready(done) => Some(Box::pin(std::future::ready(done))),
        };
    }

    /// The read of the next step.
    fn step(&mut self) -> Local<'static, Step> {
        let (mut number, mut begin) = self.at;
        while let Some(piece) = self.pieces.get(number) {
            if self.range.start < begin + piece.len {
                break;
            }
            begin += piece.len;
            number += 1;
        }
        self.at = (number, begin);
        let skip = self.range.start - begin;
        let left = self.range.end - self.range.start;
        let Some(piece) = self.pieces.get(number).copied() else {
            let end = (skip + left).min(self.inline.len() as u64);
            let data = self.inline.slice(skip as usize..end as usize);
            return Box::pin(std::future::ready(Ok((data, None))));
        };
        let from = u64::from(piece.from) + skip;
        let len = left.min(piece.len - skip).min(STEP_BYTES - from % STEP_BYTES) as usize;
        let Some(extent) = piece.extent else {
            return Box::pin(std::future::ready(Ok((Bufs::zeroes(len), None))));
        };
        let mut checksums = self.checksums.take();
        if let Some(data) = self.inner.recent.get(extent, from..from + len as u64) {
            self.fetched.from_memory += 1;
            return Box::pin(std::future::ready(Ok((data, checksums))));
        }
        self.fetched.from_device += u64::from(self.inner.recent.keeps());
        let inner = Rc::clone(&self.inner);
        Box::pin(async move {
            let data = extent::read(&*inner.device, extent, from, len, &mut checksums).await?;
            inner.recent.keep(extent, from, &data);
            Ok((data, checksums))
        })
    }

    /// All that is left to be read, in memory.
    pub async fn rest(&mut self) -> Result<Bufs> {
        let mut all = Bufs::new();
        while let Some(data) = self.next().await? {
            all.append(data);
        }
        Ok(all)
    }
}

fn check_range(range: &Range<u64>, all: &Range<u64>) -> Result<()> {
    if range.start > range.end || range.start < all.start || range.end > all.end {
        return Err(Error::invalid(format!("range {range:?} leaves {all:?}, all that is there to be read")));
    }
    Ok(())
}

/// Extents, and a record, that are not written over while this lives.
pub(crate) struct Pins {
    inner: Rc<Inner>,
    blocks: Vec<u32>,
}

impl Pins {
    /// All of a version.
    pub fn of(inner: &Rc<Inner>, known: &Known) -> Self {
        let record = Self::block_of_record(inner, known);
        Self::new(inner, known.extents().into_iter().map(|extent| extent.block).chain([record]))
    }

    /// A version's record alone.
    pub fn of_record(inner: &Rc<Inner>, known: &Known) -> Self {
        Self::new(inner, [Self::block_of_record(inner, known)])
    }

    /// What these pieces lie in.
    pub fn of_pieces(inner: &Rc<Inner>, pieces: &[Piece]) -> Self {
        Self::new(inner, pieces.iter().filter_map(|piece| piece.extent).map(|extent| extent.block))
    }

    fn new(inner: &Rc<Inner>, blocks: impl IntoIterator<Item = u32>) -> Self {
        let blocks: Vec<u32> = blocks.into_iter().collect();
        let space = &mut inner.state.borrow_mut().space;
        for block in &blocks {
            space.pin(*block);
        }
        Self { inner: Rc::clone(inner), blocks }
    }

    fn block_of_record(inner: &Inner, known: &Known) -> u32 {
        let space = &inner.state.borrow().space;
        space.first_block(space.segment_of_place(known.place))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        let space = &mut self.inner.state.borrow_mut().space;
        for block in &self.blocks {
            space.unpin(*block);
        }
    }
}

/// A version as it was when it was looked up; what it names stays in its place.
pub(crate) struct Looked {
    pub row: Row,
    pub known: Known,
    pub pins: Pins,
}

impl Inner {
    /// What `take` makes of the version that is meant, as it is now, as soon as it may be seen: told whether there is no later one
    /// of its key. What is to stay in its place is to be pinned there.
    pub async fn look_up<T>(
        &self,
        partition: PartitionId,
        key: &[u8],
        which: Which,
        take: impl Fn(Row, Known, bool) -> T,
    ) -> Result<T> {
        let name = name_of(partition, key);
        let found = self.seen(|log| log.pending(&name), || self.look(&name, which, &take)).await?;
        found.ok_or_else(|| Error::missing(format!("{partition}, key {}: no such object", shown(key))))
    }

    /// The version that an edit begins from: also one that may not be seen yet, as the edit comes behind it in the log.
    pub async fn look_up_to_edit(self: &Rc<Self>, partition: PartitionId, key: &[u8], which: Which) -> Result<Looked> {
        let take = |row, known, _| Looked { pins: Pins::of(self, &known), row, known };
        match self.look(&name_of(partition, key), which, take)? {
            Some(found) => Ok(found),
            None => self.look_up(partition, key, which, take).await,
        }
    }

    fn look<T>(&self, name: &[u8], which: Which, take: impl Fn(Row, Known, bool) -> T) -> Result<Option<T>> {
        let found = {
            let state = self.state.borrow();
            match state.find(name, which)? {
                Some((row, known)) => Some((which == Which::Latest || state.is_latest(&row)?, row, known)),
                None => None,
            }
        };
        Ok(found.map(|(latest, row, known)| take(row, known, latest)))
    }

    async fn open_reader(
        self: &Rc<Self>,
        partition: PartitionId,
        key: &[u8],
        which: Which,
        choose: &impl Fn(&Stat) -> Range<u64>,
    ) -> Result<Reader> {
        let take = |row: Row, known: Known, latest| {
            let stat = known.stat(latest);
            let range = choose(&stat);
            let extents = Pins::of_pieces(self, &cut(&known.pieces, range.clone()));
            let record = Pins::of_record(self, &known);
            (row, known, stat, range, extents, record)
        };
        let (row, known, stat, range, extents, _record) = self.look_up(partition, key, which, take).await?;
        check_range(&range, &(0..stat.size_bytes))?;
        let mut reader = Reader {
            stat,
            attributes: Attributes::new(),
            inner: Rc::clone(self),
            pieces: known.pieces.clone(),
            inline: Bufs::new(),
            opened: range.clone(),
            range,
            at: (0, 0),
            checksums: None,
            ahead: None,
            row,
            fetched: Fetched::default(),
            _extents: extents,
        };
        if known.inline_bytes == 0 {
            // The first bytes are on their way while the record is read.
            reader.look_ahead().await;
        }
        let (record_at, revision) = (known.place, known.revision);
        if let Some(said) = self.recent.said(revision) {
            reader.fetched.from_memory += 1;
            (reader.attributes, reader.inline) = (said.attributes.clone(), said.inline.clone());
            return Ok(reader);
        }
        let read = match self.record_at(&reader.row, known).await {
            Err(error) if self.was_taken_back(&reader.row, record_at, &error)? => {
                drop(reader);
                return Box::pin(self.open_reader(partition, key, which, choose)).await;
            }
            read => read.map_err(|error| error.at(&reader.row))?,
        };
        if self.recent.keeps() {
            reader.fetched.from_device += 1;
            let said = Said { attributes: read.attributes.clone(), inline: read.inline.clone() };
            self.recent.keep_said(revision, said);
        }
        (reader.attributes, reader.inline) = (read.attributes, read.inline);
        Ok(reader)
    }

    /// A version's record as it is now, to be edited.
    pub async fn read_record(self: &Rc<Self>, partition: PartitionId, key: &[u8], which: Which) -> Result<ReadRecord> {
        loop {
            let Looked { row, known, pins: _pins, .. } = self.look_up_to_edit(partition, key, which).await?;
            let record_at = known.place;
            match self.record_at(&row, known).await {
                Err(error) if self.was_taken_back(&row, record_at, &error)? => {}
                read => return read.map_err(|error| error.at(&row)),
            }
        }
    }

    /// True when reading a version's record failed because the version was taken back: it is to be looked up anew. A device
    /// that says `Retry` is not asked again and again.
    pub fn was_taken_back(&self, row: &Row, place: u64, error: &Error) -> Result<bool> {
        Ok(error.kind() == Kind::Retry && self.alive_at(row, place)?.is_none())
    }

    /// Reads the record of a version whose segment is pinned, and verifies that it is its own. `Retry` when the device
    /// had no room for it: the version was taken back.
    pub async fn record_at(&self, row: &Row, known: Known) -> Result<ReadRecord> {
        let ticket = self.state.borrow().log.ticket_of(known.place);
        if let Some(ticket) = ticket {
            match self.written(&ticket).await {
                Err(_) if ticket.fate.get().is_some() => return Err(Error::retry("it was taken back: look again")),
                done => done?,
            }
        }
        let block_bytes = BLOCK_BYTES_U64;
        let first = known.place / block_bytes * block_bytes;
        let skip = (known.place - first) as usize;
        let len = skip + known.log_bytes() as usize;
        let bytes = extent::read_device(&*self.device, first, len.next_multiple_of(BLOCK_BYTES)).await?;
        let inline_at = skip + known.record_bytes as usize;
        let record = Record::decode(&bytes.slice(skip..inline_at).contiguous())?;
        let is_its_own = record.row == *row && record.revision == known.revision;
        let Some((_, attributes)) = record.set.filter(|_| is_its_own) else {
            return Err(Error::corrupt("another record lies where this object's was written"));
        };
        let inline = bytes.slice(inline_at..len);
        if crc_of(&inline) != record.inline_crc {
            return Err(Error::corrupt("the object's content fails its checksum"));
        }
        Ok(ReadRecord { known, attributes, inline })
    }
}
