//! Emptying the write buffer: blocks go to their places, in order of place, neighbours joined.

use crate::extent::{DIRTY_BYTES, Dirty, Extent};
use crate::policy::{Pressure, destage_width};
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::write::PIECE_BLOCKS;
use futures::StreamExt;
use futures::future::select;
use futures::stream::FuturesUnordered;
use kura_array::Failure;
use kura_block::{Bufs, Error, Kind, Result};
use kura_journal::Lsn;
use std::rc::Rc;
use std::time::Duration;

/// Clients are quiet when no write came for this long.
const QUIET: Duration = Duration::from_millis(100);
/// How long to wait before asking disks again that took nothing.
const STALLED: Duration = Duration::from_secs(1);

/// Blocks on their way to their places: neighbours, or some of a stripe.
pub(crate) struct Flight {
    pub volume: Rc<VolumeState>,
    /// Their extents, or all of the stripe's group: held, so that their space is not given back meanwhile.
    pub extents: Vec<Rc<Extent>>,
    /// The blocks, in order, and the records that hold them.
    pub blocks: Vec<(u64, Lsn)>,
    pub data: Bufs,
    /// The stripe, where there is parity.
    pub stripe: Option<u64>,
}

impl Flight {
    fn of<'a>(
        volume: &Rc<VolumeState>,
        extents: Vec<Rc<Extent>>,
        stripe: Option<u64>,
        entries: impl Iterator<Item = (&'a u64, &'a mut Dirty)>,
    ) -> Self {
        let (mut blocks, mut data) = (Vec::new(), Bufs::new());
        for (block, entry) in entries {
            entry.in_flight = true;
            blocks.push((*block, entry.lsn));
            if let Some(bytes) = &entry.data {
                data.push(bytes.clone());
            }
        }
        Self { volume: Rc::clone(volume), extents, blocks, data, stripe }
    }
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
                *cursor = (volume.id, flight.blocks.last().map_or(0, |(block, _)| block + 1));
                return Some(flight);
            }
        }
        None
    }

    fn flight_in(&self, volume: &Rc<VolumeState>, from: u64, durable: Lsn) -> Option<Flight> {
        let blocks = self.array.extent_blocks() as u64;
        let below = self.parity_below.get().filter(|_| volume.shape.parity).map_or(durable, |below| below.min(durable));
        let mut dirty = volume.dirty.borrow_mut();
        let fit = |entry: &Dirty| !entry.in_flight && entry.lsn < below && entry.data.is_some();
        let mut from = from;
        loop {
            let first = *dirty.range(from..).find(|(_, entry)| fit(entry))?.0;
            let extent = volume.extent((first / blocks) as u32)?;
            if extent.group.is_moving() {
                let group_blocks = self.group_blocks(volume);
                from = (first / group_blocks + 1) * group_blocks;
                continue;
            }
            if !volume.shape.parity {
                let end = ((first / blocks + 1) * blocks).min(first + PIECE_BLOCKS as u64);
                let neighbours = dirty.range_mut(first..end).zip(first..);
                let neighbours = neighbours.take_while(|((block, entry), next)| *block == next && fit(entry));
                return Some(Flight::of(volume, vec![extent], None, neighbours.map(|(entry, _)| entry)));
            }
            let stripe_blocks = volume.shape.stripe_blocks();
            let stripe = first / stripe_blocks;
            if self.stripes.borrow_mut().insert((volume.id, stripe)) {
                self.flying_stripes.set(self.flying_stripes.get() + 1);
                let extents = volume.group_of(extent.owner.index);
                let range = dirty.range_mut(stripe * stripe_blocks..(stripe + 1) * stripe_blocks);
                return Some(Flight::of(volume, extents, Some(stripe), range.filter(|(_, entry)| fit(entry))));
            }
            from = (stripe + 1) * stripe_blocks;
        }
    }

    /// Writes blocks to their places.
    pub async fn destage(&self, flight: Flight) {
        let done = match flight.stripe {
            None => self.write_copies(&flight).await,
            Some(stripe) => self.write_stripe(&flight, stripe).await,
        };
        {
            let mut dirty = flight.volume.dirty.borrow_mut();
            for (block, version) in &flight.blocks {
                let Some(entry) = dirty.get_mut(block) else { continue };
                entry.in_flight = false;
                if entry.data.is_none() {
                    dirty.remove(block);
                } else if done.is_ok() && entry.lsn == *version {
                    dirty.remove(block);
                    self.dirty_bytes.set(self.dirty_bytes.get() - DIRTY_BYTES);
                    self.drained(*version);
                }
            }
        }
        let there = done.is_ok();
        self.stalled.replace(done.err());
        self.room.notify_waiters();
        if !there {
            self.runtime.sleep(STALLED).await;
        }
    }

    /// Writes neighbouring blocks to all copies. A disk that refuses goes out of service, unless it is only full: then
    /// the blocks stay and are tried again.
    async fn write_copies(&self, flight: &Flight) -> Result<()> {
        let (Some(extent), Some((first, _))) = (flight.extents.first(), flight.blocks.first()) else { return Ok(()) };
        let inside = (first % self.array.extent_blocks() as u64) as usize;
        let failures = self.array.write(&extent.group.places(), inside, &flight.data).await;
        let full = self.dismiss(failures).await;
        full.map_or(Ok(()), Err)
    }

    /// Disks that refused go out of service, but for one that is only full, which is told.
    pub async fn dismiss(&self, failures: Vec<Failure>) -> Option<Error> {
        let mut full = None;
        for failure in failures {
            if failure.error.kind() == Kind::Full {
                full = Some(failure.error);
            } else {
                // A journal that fails here ends the store's writes by itself.
                let _ = self.fail_disk(failure.device).await;
            }
        }
        full
    }

    /// Counts a block off that a checkpoint waits for.
    pub fn drained(&self, lsn: Lsn) {
        let (target, left) = self.drain.get();
        if lsn < target {
            self.drain.set((target, left - 1));
        }
    }
}
