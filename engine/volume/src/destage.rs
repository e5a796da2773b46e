//! Emptying the write buffer: blocks go to their places, in order of place, neighbours joined.

use crate::extent::{DIRTY_BYTES, Extent};
use crate::policy::{Pressure, destage_width};
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::write::PIECE_BLOCKS;
use futures::StreamExt;
use futures::future::select;
use futures::stream::FuturesUnordered;
use kura_block::{Bufs, Kind};
use kura_journal::Lsn;
use std::rc::Rc;
use std::time::Duration;

/// Clients are quiet when no write came for this long.
const QUIET: Duration = Duration::from_millis(100);
/// How long to wait before asking disks again that took nothing.
const STALLED: Duration = Duration::from_secs(1);

/// Neighbouring blocks on their way to their places.
pub(crate) struct Flight {
    volume: Rc<VolumeState>,
    extent: Rc<Extent>,
    first: u64,
    versions: Vec<Lsn>,
    data: Bufs,
}

/// Where the next flight is looked for: volume and block.
pub(crate) type Cursor = (u64, u64);

impl Inner {
    /// The task that empties the buffer, until the store stops.
    pub async fn destage_for_ever(self: Rc<Self>) {
        let mut cursor = Cursor::default();
        let mut flying = FuturesUnordered::new();
        loop {
            let width = destage_width(self.pressure());
            while flying.len() < width {
                let Some(flight) = self.next_flight(&mut cursor, self.journal().durable()) else { break };
                flying.push(self.destage(flight));
            }
            let empty = self.dirty_bytes.get() == 0;
            self.emptying.set(!empty);
            if flying.is_empty() && (self.stopping.get() && empty || self.journal().alive().is_err()) {
                return;
            }
            let news = std::pin::pin!(self.destager.notified());
            if !flying.is_empty() {
                select(flying.next(), news).await;
            } else if empty {
                news.await;
            } else if width == 0 {
                select(news, self.runtime.sleep(QUIET)).await;
            } else if self.journal().durable() == self.journal().next_lsn() {
                // All that is left lies in an extent that moves, and the end of the move is news.
                news.await;
            } else if self.commit_all().await.is_err() {
                return;
            }
        }
    }

    fn pressure(&self) -> Pressure {
        Pressure {
            dirty_bytes: self.dirty_bytes.get(),
            limit_bytes: self.settings.write_buffer_bytes,
            urgent: self.drain.get().1 > 0 || self.stopping.get(),
            idle: self.runtime.now().saturating_sub(self.last_write.get()) >= QUIET,
        }
    }

    /// The next neighbouring blocks to write, from the cursor on and around: durable, and none on its way already.
    pub fn next_flight(&self, cursor: &mut Cursor, durable: Lsn) -> Option<Flight> {
        let tables = self.tables.borrow();
        let here =
            tables.volumes.range(cursor.0..).map(|(id, volume)| (volume, if *id == cursor.0 { cursor.1 } else { 0 }));
        let around = tables.volumes.range(..=cursor.0).map(|(_, volume)| (volume, 0));
        for (volume, from) in here.chain(around) {
            if let Some(flight) = self.flight_in(volume, from, durable) {
                *cursor = (volume.id, flight.first + flight.versions.len() as u64);
                return Some(flight);
            }
        }
        None
    }

    fn flight_in(&self, volume: &Rc<VolumeState>, from: u64, durable: Lsn) -> Option<Flight> {
        let blocks = self.array.extent_blocks() as u64;
        let mut dirty = volume.dirty.borrow_mut();
        let fit = |entry: &crate::extent::Dirty| !entry.in_flight && entry.lsn < durable && entry.data.is_some();
        let mut from = from;
        let (first, extent) = loop {
            let first = *dirty.range(from..).find(|(_, entry)| fit(entry))?.0;
            let extent = volume.extent((first / blocks) as u32)?;
            if !extent.is_moving() {
                break (first, extent);
            }
            from = (first / blocks + 1) * blocks;
        };
        let end = ((first / blocks + 1) * blocks).min(first + PIECE_BLOCKS as u64);
        let (mut data, mut versions) = (Bufs::new(), Vec::new());
        for (block, entry) in dirty.range_mut(first..end) {
            if *block != first + versions.len() as u64 || !fit(entry) {
                break;
            }
            entry.in_flight = true;
            versions.push(entry.lsn);
            if let Some(bytes) = &entry.data {
                data.push(bytes.clone());
            }
        }
        Some(Flight { volume: Rc::clone(volume), extent, first, versions, data })
    }

    /// Writes neighbouring blocks to their places. A disk that refuses goes out of service, unless it is only full: then
    /// the blocks stay and are tried again.
    pub async fn destage(&self, flight: Flight) {
        let inside = (flight.first % self.array.extent_blocks() as u64) as usize;
        let mut full = None;
        for failure in self.array.write(&flight.extent.places(), inside, &flight.data).await {
            if failure.error.kind() == Kind::Full {
                full = Some(failure.error);
            } else {
                // A journal that fails here ends the store's writes by itself.
                let _ = self.fail_disk(failure.device).await;
            }
        }
        let there = full.is_none();
        {
            let mut dirty = flight.volume.dirty.borrow_mut();
            for (at, version) in flight.versions.iter().enumerate() {
                let block = flight.first + at as u64;
                let Some(entry) = dirty.get_mut(&block) else { continue };
                entry.in_flight = false;
                if entry.data.is_none() {
                    dirty.remove(&block);
                } else if there && entry.lsn == *version {
                    dirty.remove(&block);
                    self.dirty_bytes.set(self.dirty_bytes.get() - DIRTY_BYTES);
                    self.drained(*version);
                }
            }
        }
        self.stalled.replace(full);
        self.room.notify_waiters();
        if !there {
            self.runtime.sleep(STALLED).await;
        }
    }

    /// Counts a block off that a checkpoint waits for.
    pub fn drained(&self, lsn: Lsn) {
        let (target, left) = self.drain.get();
        if lsn < target {
            self.drain.set((target, left - 1));
        }
    }
}
