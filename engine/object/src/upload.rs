//! Content that comes in pieces, written to extents as it comes.

use crate::content::{Content, Held};
use crate::housekeeping::Hope;
use crate::housekeeping::clean::too_many_pieces;
use crate::known::{Extent, Piece};
use crate::policy::For;
use crate::space::extent::{self, DATA_BLOCKS_LIMIT};
use crate::store::{Inner, State};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs, Error, Kind, Result};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tokio::sync::Notify;

/// Bytes of an extent of an object that is not large yet.
const CHUNK_BYTES: usize = 1 << 20;
/// From this many bytes on, extents are as large as segments let them be.
const LARGE_BYTES: u64 = 32 << 20;
/// Bytes of one upload that may be on their way to the device.
const WINDOW_BYTES: usize = 8 << 20;

/// Places that are tried at most for bytes that the device has no room for: it may have some where something lay before.
const PLACES_TRIED: u32 = 4;

/// An object's content on its way in. Write pieces of any size, then [`Upload::finish`] and commit what it gives.
/// Dropped, it leaves nothing behind.
pub struct Upload {
    /// Also the smallest content goes to extents.
    only_extents: bool,
    gathered: Bufs,
    sent_bytes: u64,
    /// What is held for bytes that are gathered: up to which one.
    permits: VecDeque<(u64, Box<dyn Any>)>,
    flights: Rc<Flights>,
}

/// Writes under way. They end even when the upload is dropped, and only then is their space free.
struct Flights {
    inner: Rc<Inner>,
    /// The cleaner takes of the segments kept for it, and does not wait for itself.
    for_cleaner: bool,
    /// In more it must not come to lie.
    most_pieces: usize,
    bytes: Cell<usize>,
    /// Extents that were taken and not left again.
    taken: Cell<usize>,
    /// What is on the device, by the first byte of each.
    pieces: RefCell<BTreeMap<u64, Piece>>,
    held: RefCell<Held>,
    failed: RefCell<Option<Error>>,
    landed: Notify,
}

impl Upload {
    pub(crate) fn new(inner: &Rc<Inner>, only_extents: bool) -> Self {
        Self::of(inner, only_extents, false, usize::MAX)
    }

    /// For the cleaner, whose bytes are to come into so many pieces at most: else `Invalid`.
    pub(crate) fn for_cleaner(inner: &Rc<Inner>, most_pieces: usize) -> Self {
        Self::of(inner, true, true, most_pieces)
    }

    fn of(inner: &Rc<Inner>, only_extents: bool, for_cleaner: bool, most_pieces: usize) -> Self {
        let flights = Flights {
            inner: Rc::clone(inner),
            for_cleaner,
            most_pieces,
            bytes: Cell::new(0),
            taken: Cell::new(0),
            pieces: RefCell::default(),
            held: RefCell::new(Held::new(inner)),
            failed: RefCell::new(None),
            landed: Notify::new(),
        };
        Self { only_extents, gathered: Bufs::new(), sent_bytes: 0, permits: VecDeque::new(), flights: Rc::new(flights) }
    }

    /// Bytes so far.
    pub fn len(&self) -> u64 {
        self.sent_bytes + self.gathered.len() as u64
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
        let is_small = self.sent_bytes == 0 && self.gathered.len() <= self.flights.inner.inline_limit();
        if is_small && !self.only_extents {
            return Ok(Content { inline: self.gathered, ..Content::default() });
        }
        self.push().await?;
        let flights = self.flights;
        flights.wait_for_room(0).await?;
        let pieces = flights.pieces.take().into_values().collect();
        let held = flights.held.replace(Held::new(&flights.inner));
        Ok(Content { pieces, inline: Bufs::new(), held: Some(held) })
    }

    fn chunk_bytes(&self) -> usize {
        let whole =
            (self.flights.inner.segment_bytes as usize - BLOCK_BYTES).min(DATA_BLOCKS_LIMIT as usize * BLOCK_BYTES);
        // A part is of a large object, and what the cleaner moves is there as a whole.
        let is_large = self.only_extents || self.sent_bytes >= LARGE_BYTES;
        if is_large { whole } else { CHUNK_BYTES.min(whole) }
    }

    /// Sends up to `limit` of the gathered bytes to an extent: as many as there is room for in one place.
    async fn send(&mut self, limit: usize) -> Result<()> {
        let wanted = self.gathered.len().min(limit);
        self.flights.wait_for_room(WINDOW_BYTES.saturating_sub(wanted)).await?;
        let place = self.flights.take(wanted).await?;
        let data = self.gathered.slice(0..wanted.min(place.1));
        self.gathered = self.gathered.slice(data.len()..self.gathered.len());
        let (at, len) = (self.sent_bytes, data.len());
        let end = at + len as u64;
        self.sent_bytes = end;
        let permits: Vec<_> = std::iter::from_fn(|| self.permits.pop_front_if(|(until, _)| *until <= end)).collect();
        let flights = Rc::clone(&self.flights);
        flights.bytes.set(flights.bytes.get() + len);
        self.flights.inner.runtime.spawn(Box::pin(async move {
            let landed = flights.land(place, at, data).await;
            flights.bytes.set(flights.bytes.get() - len);
            drop(permits);
            if let Err(error) = landed {
                flights.failed.borrow_mut().get_or_insert(error);
            }
            flights.landed.notify_waiters();
        }));
        Ok(())
    }
}

impl Flights {
    /// Takes an extent for up to `len` bytes: its first block, and bytes that it has room for.
    async fn take(&self, len: usize) -> Result<(u32, usize)> {
        if self.taken.get() >= self.most_pieces {
            return Err(too_many_pieces());
        }
        self.taken.set(self.taken.get() + 1);
        let (block, blocks) = self.inner.allocate(len.div_ceil(BLOCK_BYTES) as u32, self.for_cleaner).await?;
        self.held.borrow_mut().add(block);
        Ok((block, blocks as usize * BLOCK_BYTES))
    }

    /// Writes the content's bytes from `at` on to the extent taken for them; elsewhere, where the device has no room there.
    async fn land(&self, mut place: (u32, usize), mut at: u64, mut data: Bufs) -> Result<()> {
        let mut left = PLACES_TRIED;
        loop {
            let (block, room) = place;
            let part = data.slice(0..data.len().min(room));
            match self.write(block, at, &part).await {
                Err(error) if error.kind() == Kind::Full && self.inner.is_thin() => {
                    self.leave(block, &error);
                    left -= 1;
                    if left == 0 {
                        return Err(error);
                    }
                }
                written => {
                    written?;
                    at += part.len() as u64;
                    data = data.slice(part.len()..data.len());
                }
            }
            if data.is_empty() {
                return Ok(());
            }
            place = self.take(data.len()).await?;
        }
    }

    async fn write(&self, block: u32, at: u64, data: &Bufs) -> Result<()> {
        let (bytes, crc) = extent::encode(data);
        let extent = Extent { block, blocks: data.len().div_ceil(BLOCK_BYTES) as u32, crc };
        self.inner.count(|counters| counters.extent_bytes += bytes.len() as u64);
        let content = bytes.slice(0..data.len());
        self.inner.device.write(u64::from(block) * BLOCK_BYTES_U64, bytes, false).await?;
        // What the cleaner moves is what nobody asked for.
        if !self.for_cleaner {
            self.inner.recent.keep(extent, 0, &content);
        }
        self.pieces.borrow_mut().insert(at, Piece { extent: Some(extent), from: 0, len: data.len() as u64 });
        Ok(())
    }

    /// The device has no room for an extent: nothing more goes to its segment for now.
    fn leave(&self, block: u32, error: &Error) {
        self.inner.note_full(error);
        self.inner.state.borrow_mut().space.note_short(block);
        self.held.borrow_mut().give_back(block);
        self.taken.set(self.taken.get() - 1);
    }

    /// Resolves when at most `bytes` are on their way.
    async fn wait_for_room(&self, bytes: usize) -> Result<()> {
        loop {
            let landed = self.landed.notified();
            if let Some(error) = &*self.failed.borrow() {
                return Err(error.clone());
            }
            if self.bytes.get() <= bytes {
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
