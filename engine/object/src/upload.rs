//! Content that comes in pieces, written to extents as it comes.

use crate::content::{Content, Held};
use crate::housekeeping::Hope;
use crate::housekeeping::clean::too_many_pieces;
use crate::known::{Extent, Piece};
use crate::policy::For;
use crate::space::extent::{self, DATA_BLOCKS_LIMIT};
use crate::store::{Inner, State};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs, Error, Result};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use tokio::sync::Notify;

/// Bytes of an extent of an object that is not large yet.
const CHUNK_BYTES: usize = 1 << 20;
/// From this many bytes on, extents are as large as segments let them be.
const LARGE_BYTES: u64 = 32 << 20;
/// Bytes of one upload that may be on their way to the device.
const WINDOW_BYTES: usize = 8 << 20;

/// An object's content on its way in. Write pieces of any size, then [`Upload::finish`] and commit what it gives.
/// Dropped, it leaves nothing behind.
pub struct Upload {
    inner: Rc<Inner>,
    /// Also the smallest content goes to extents.
    only_extents: bool,
    /// The cleaner takes of the segments kept for it, and does not wait for itself.
    for_cleaner: bool,
    /// In more it must not come to lie.
    most_pieces: usize,
    gathered: Bufs,
    pieces: Vec<Piece>,
    written_bytes: u64,
    /// What is held for bytes that are gathered: up to which one.
    permits: VecDeque<(u64, Box<dyn Any>)>,
    flights: Rc<Flights>,
}

/// Writes under way. They end even when the upload is dropped, and only then is their space free.
struct Flights {
    bytes: Cell<usize>,
    failed: RefCell<Option<Error>>,
    landed: Notify,
    held: RefCell<Held>,
}

impl Upload {
    pub(crate) fn new(inner: &Rc<Inner>, only_extents: bool) -> Self {
        let flights = Flights {
            bytes: Cell::new(0),
            failed: RefCell::new(None),
            landed: Notify::new(),
            held: RefCell::new(Held::new(inner)),
        };
        Self {
            inner: Rc::clone(inner),
            only_extents,
            for_cleaner: false,
            most_pieces: usize::MAX,
            gathered: Bufs::new(),
            pieces: Vec::new(),
            written_bytes: 0,
            permits: VecDeque::new(),
            flights: Rc::new(flights),
        }
    }

    /// For the cleaner, whose bytes are to come into so many pieces at most: else `Invalid`.
    pub(crate) fn for_cleaner(inner: &Rc<Inner>, most_pieces: usize) -> Self {
        Self { for_cleaner: true, most_pieces, ..Self::new(inner, true) }
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.written_bytes + self.gathered.len() as u64
    }

    /// True before the first byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes the next bytes; resolves when there is room for more. `Full` when the device has no room for them.
    pub async fn write(&mut self, data: Bufs) -> Result<()> {
        self.gathered.append(data);
        while self.gathered.len() >= self.chunk_bytes() {
            self.send(self.chunk_bytes()).await?;
        }
        Ok(())
    }

    /// As [`Upload::write`]; `permit`, by which the bytes are in memory, is dropped when they are on the device.
    pub async fn write_by(&mut self, data: Bufs, permit: impl Any) -> Result<()> {
        self.permits.push_back((self.len() + data.len() as u64, Box::new(permit)));
        self.write(data).await
    }

    /// Sends all bytes so far on their way to the device, also where they fill no extent of the usual size.
    pub async fn push(&mut self) -> Result<()> {
        while !self.gathered.is_empty() {
            self.send(self.chunk_bytes()).await?;
        }
        Ok(())
    }

    /// Resolves when all bytes are on the device, though not flushed yet: a durable commit does that.
    pub async fn finish(mut self) -> Result<Content> {
        let is_small = self.pieces.is_empty() && self.gathered.len() <= self.inner.inline_limit();
        if is_small && !self.only_extents {
            return Ok(Content { inline: self.gathered, ..Content::default() });
        }
        self.push().await?;
        self.wait_for_room(0).await?;
        let held = self.flights.held.replace(Held::new(&self.inner));
        Ok(Content { pieces: self.pieces, inline: Bufs::new(), held: Some(held) })
    }

    fn chunk_bytes(&self) -> usize {
        let whole = (self.inner.segment_bytes as usize - BLOCK_BYTES).min(DATA_BLOCKS_LIMIT as usize * BLOCK_BYTES);
        // A part is of a large object, and what the cleaner moves is there as a whole.
        let is_large = self.only_extents || self.written_bytes >= LARGE_BYTES;
        if is_large { whole } else { CHUNK_BYTES.min(whole) }
    }

    /// Sends up to `limit` of the gathered bytes to an extent: as many as there is room for in one place.
    async fn send(&mut self, limit: usize) -> Result<()> {
        if self.pieces.len() >= self.most_pieces {
            return Err(too_many_pieces());
        }
        let wanted = self.gathered.len().min(limit);
        self.wait_for_room(WINDOW_BYTES.saturating_sub(wanted)).await?;
        let (block, blocks) = self.inner.allocate(wanted.div_ceil(BLOCK_BYTES) as u32, self.for_cleaner).await?;
        self.flights.held.borrow_mut().add(block);
        let len = wanted.min(blocks as usize * BLOCK_BYTES);
        let data = self.gathered.slice(0..len);
        self.gathered = self.gathered.slice(len..self.gathered.len());
        let blocks = len.div_ceil(BLOCK_BYTES) as u32;
        let (bytes, crc) = extent::encode(&data);
        let extent = Extent { block, blocks, crc };
        self.inner.count(|counters| counters.extent_bytes += bytes.len() as u64);
        self.pieces.push(Piece { extent: Some(extent), from: 0, len: len as u64 });
        self.written_bytes += len as u64;
        let written_bytes = self.written_bytes;
        let own = std::iter::from_fn(|| self.permits.pop_front_if(|(end, _)| *end <= written_bytes));
        let permits: Vec<_> = own.collect();
        let (inner, flights) = (Rc::clone(&self.inner), Rc::clone(&self.flights));
        // What the cleaner moves is what nobody asked for.
        let content = (!self.for_cleaner).then(|| bytes.slice(0..len));
        flights.bytes.set(flights.bytes.get() + len);
        self.inner.runtime.spawn(Box::pin(async move {
            let result = inner.device.write(u64::from(block) * BLOCK_BYTES_U64, bytes, false).await;
            flights.bytes.set(flights.bytes.get() - len);
            drop(permits);
            match result {
                Ok(()) => content.iter().for_each(|content| inner.recent.keep(extent, 0, content)),
                Err(error) => {
                    inner.note_full(&error);
                    flights.failed.borrow_mut().get_or_insert(error);
                }
            }
            flights.landed.notify_waiters();
        }));
        Ok(())
    }

    /// Resolves when at most `bytes` are on their way.
    async fn wait_for_room(&self, bytes: usize) -> Result<()> {
        loop {
            let landed = self.flights.landed.notified();
            if let Some(error) = &*self.flights.failed.borrow() {
                return Err(error.clone());
            }
            if self.flights.bytes.get() <= bytes {
                return Ok(());
            }
            landed.await;
        }
    }
}

impl Inner {
    /// Takes an extent for up to `blocks` data blocks: its first block and its data blocks.
    async fn allocate(&self, blocks: u32, for_cleaner: bool) -> Result<(u32, u32)> {
        self.state.borrow().alive()?;
        // What is free may be what a replay looks at.
        self.begin_opening().await?;
        let mut hope = Hope::default();
        loop {
            let take = |state: &mut State| {
                state.alive()?;
                let floor = state.floor(if for_cleaner { For::Cleaner } else { For::Users });
                Ok(state.space.allocate(blocks, floor))
            };
            let found = if for_cleaner { take(&mut self.state.borrow_mut()) } else { self.use_room(take) }?;
            if let Some(found) = found {
                self.recent.forget(found.0);
                return Ok(found);
            }
            if for_cleaner || !self.make_room(&mut hope).await {
                return Err(Error::full("the object store is full: remove objects or give it a larger device"));
            }
        }
    }
}

impl crate::Store {
    /// Begins an object whose content comes in pieces.
    pub fn upload(&self) -> Upload {
        Upload::new(&self.inner, false)
    }

    /// Begins a part: its content can be joined to others' by [`crate::Batch::join`] without being copied.
    pub fn upload_part(&self) -> Upload {
        Upload::new(&self.inner, true)
    }
}
