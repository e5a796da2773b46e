//! Emptying the write buffer: blocks go to their places, in order of place, neighbours joined.

use crate::extent::{Dirty, Extent};
use crate::hot::HotFlight;
use crate::policy::{Pressure, destage_width};
use crate::store::Inner;
use crate::straight::STOPPED;
use crate::stripe::stripe_id;
use crate::tables::VolumeState;
use crate::tier::FastCopy;
use crate::write::PIECE_BLOCKS;
use futures::StreamExt;
use futures::future::select;
use futures::stream::FuturesUnordered;
use kura_array::hot::MirrorId;
use kura_array::{Berth, Failure, Place, Urgency};
use kura_block::{Bufs, Checksum, Error, Result};
use kura_journal::Lsn;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Clients are quiet when no write came for this long.
const QUIET: Duration = Duration::from_millis(100);
/// How long to wait before asking disks again that took nothing.
pub(crate) const STALLED: Duration = Duration::from_secs(1);

/// Blocks on their way to their places: neighbours, or some of a stripe.
pub(crate) struct Flight {
    pub volume: Rc<VolumeState>,
    /// Their extents, or all of the stripe's group: held, so that their space is not given back meanwhile.
    pub extents: Vec<Rc<Extent>>,
    /// The blocks, in order, the records that hold them, and their checksums.
    pub blocks: Vec<(u64, Lsn, Checksum)>,
    pub data: Bufs,
    pub to: Destination,
}

/// Where blocks go.
pub(crate) enum Destination {
    /// All copies of neighbouring places.
    Copies,
    /// Their places in a stripe, with its parity.
    Stripe(u64),
    /// Free slots of the hot area.
    Hot(Vec<MirrorId>),
    /// The fast copy of their extent.
    Fast(Rc<FastCopy>),
}

impl Flight {
    /// True while an extent of its volume is the one it goes to: its group may have been given up, and be another one by now.
    pub fn is_for(&self, index: u32) -> bool {
        let now = self.volume.extent(index);
        now.is_some_and(|now| self.extents.iter().any(|extent| Rc::ptr_eq(extent, &now)))
    }

    /// Blocks of a volume, on their way from now on.
    pub fn of<'a>(
        volume: &Rc<VolumeState>,
        extents: Vec<Rc<Extent>>,
        to: Destination,
        entries: impl Iterator<Item = (&'a u64, &'a mut Dirty)>,
    ) -> Self {
        let (mut blocks, mut data) = (Vec::new(), Bufs::new());
        for (block, entry) in entries {
            entry.in_flight = true;
            blocks.push((*block, entry.lsn, entry.checksum));
            if let Some(bytes) = &entry.data {
                data.push(bytes.clone());
            }
        }
        Self { volume: Rc::clone(volume), extents, blocks, data, to }
    }

    /// From its first block to behind its last; not all between are its own.
    fn span(&self) -> Range<u64> {
        self.blocks.first().zip(self.blocks.last()).map_or(0..0, |((first, ..), (last, ..))| *first..last + 1)
    }

    /// The record and the checksum of a block that it carries, for blocks asked for in order.
    fn carried(&self) -> impl FnMut(u64) -> Option<(Lsn, Checksum)> {
        let mut ahead = self.blocks.iter().peekable();
        move |block| {
            while ahead.next_if(|(carried, ..)| *carried < block).is_some() {}
            ahead.next_if(|(carried, ..)| *carried == block).map(|(_, lsn, checksum)| (*lsn, *checksum))
        }
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
            self.review_successors();
            let (width, durable) = (destage_width(self.pressure()), self.journal().durable());
            while flying.len() < width {
                let Some(flight) = self.next_flight(&mut cursor, durable) else { break };
                flying.push(self.destage(flight, None));
            }
            let empty = self.dirty_bytes.get() == 0;
            let comes_back = !flying.is_empty() || width == 0 && !empty;
            self.emptying.set(comes_back.then_some((width, durable)));
            if flying.is_empty() && (self.has_stopped() && empty || self.journal().alive().is_err()) {
                return;
            }
            let news = std::pin::pin!(self.destager.notified());
            let stops = self.successors.are_there().then_some(STOPPED);
            if !flying.is_empty() {
                select(flying.next(), news).await;
            } else if empty {
                self.within(stops, news).await;
            } else if width == 0 {
                select(news, self.runtime.sleep(QUIET)).await;
            } else if self.journal().durable() == self.journal().next_lsn() {
                // What is left lies in a group that moves or a stripe that is in use, or waits for a checkpoint: the end
                // of that is news.
                self.within(stops, news).await;
            } else if self.commit_all().await.is_err() {
                return;
            }
        }
    }

    /// Waits for news, for so long at most where there is a limit.
    async fn within(&self, limit: Option<Duration>, news: impl Future<Output = ()> + Unpin) {
        match limit {
            Some(limit) => drop(select(news, self.runtime.sleep(limit)).await),
            None => news.await,
        }
    }

    pub fn pressure(&self) -> Pressure {
        Pressure {
            // What goes past the journal is on its way without the destager.
            dirty_bytes: self.dirty_bytes.get().saturating_sub(self.straight.bytes() + self.successors.bytes()),
            limit_bytes: self.settings.write_buffer_bytes,
            urgent: self.drain.get().1 > 0 || self.is_stopping(),
            idle: self.runtime.now().saturating_sub(self.last_write.get()) >= QUIET,
        }
    }

    /// The next neighbouring blocks to write, from the cursor on and around: durable, and none on its way already.
    pub fn next_flight(&self, cursor: &mut Cursor, durable: Lsn) -> Option<Flight> {
        let tables = self.tables.borrow();
        let homes = tables.volumes.homes();
        let (at, block) = *cursor;
        let here = homes.range(at..).map(|(id, volume)| (volume, if *id == at { block } else { 0 }..u64::MAX));
        let around = homes.range(..=at).map(|(id, volume)| (volume, 0..if *id == at { block } else { u64::MAX }));
        // Within a checkpoint, only what it waits for goes where records are needed; else the journal must have room.
        let may_fly = self.stripes.parity_below.get().is_some() || self.may_fly();
        if !may_fly {
            self.checkpointer.notify_one();
        }
        for (volume, within) in here.chain(around).filter(|(volume, _)| may_fly || !volume.shape.parity) {
            if let Some(flight) = self.flight_in(volume, within, durable) {
                *cursor = (volume.id, flight.blocks.last().map_or(0, |(block, ..)| block + 1));
                return Some(flight);
            }
        }
        None
    }

    /// A flight whose first block is one of these.
    fn flight_in(&self, volume: &Rc<VolumeState>, within: Range<u64>, durable: Lsn) -> Option<Flight> {
        match self.hot_flight(volume, within.clone(), durable) {
            HotFlight::Begins(flight) => return Some(flight),
            HotFlight::Soon => return None,
            HotFlight::None => {}
        }
        let blocks = self.array.extent_blocks() as u64;
        let below =
            self.stripes.parity_below.get().filter(|_| volume.shape.parity).map_or(durable, |below| below.min(durable));
        let mut dirty = volume.dirty.borrow_mut();
        let fit = |entry: &Dirty| !entry.in_flight && entry.lsn < below && entry.data.is_some();
        let mut from = within.start;
        loop {
            let first = *dirty.range(from..within.end.max(from)).find(|(_, entry)| fit(entry))?.0;
            let extent = volume.extent(self.index_of(first))?;
            if extent.group.is_moving() || extent.successor().is_some() {
                let group_blocks = self.group_blocks(volume);
                from = (first / group_blocks + 1) * group_blocks;
                continue;
            }
            let fast = self.takes_writes(&extent);
            if fast.is_some() || !volume.shape.parity {
                let end = ((first / blocks + 1) * blocks).min(first + PIECE_BLOCKS as u64);
                let neighbours = dirty.range_mut(first..end).zip(first..);
                let neighbours = neighbours.take_while(|((block, entry), next)| *block == next && fit(entry));
                let to = fast.map_or(Destination::Copies, Destination::Fast);
                return Some(Flight::of(volume, vec![extent], to, neighbours.map(|(entry, _)| entry)));
            }
            let stripe_blocks = volume.shape.stripe_blocks();
            let stripe = first / stripe_blocks;
            let extents = volume.group_of(extent.owner.index);
            if self.stripes.take(stripe_id(volume, &extents, stripe)) {
                let range = dirty.range_mut(stripe * stripe_blocks..(stripe + 1) * stripe_blocks);
                let goes_fast = |block: &u64| {
                    let extent = volume.extent(self.index_of(*block));
                    extent.is_some_and(|extent| self.takes_writes(&extent).is_some())
                };
                return Some(Flight::of(
                    volume,
                    extents,
                    Destination::Stripe(stripe),
                    range.filter(|(block, entry)| fit(entry) && !goes_fast(block)),
                ));
            }
            from = (stripe + 1) * stripe_blocks;
        }
    }

    /// Writes blocks to their places; how many of them are not gone from the buffer then. `arrives` is for the journal: it is sent
    /// when they are at all of their places, and gone when not.
    pub async fn destage(&self, flight: Flight, arrives: Option<oneshot::Sender<()>>) -> usize {
        let done = match &flight.to {
            Destination::Copies => self.write_copies(&flight, arrives).await,
            Destination::Stripe(stripe) => match arrives {
                Some(arrives) => self.write_fresh_stripe(&flight, *stripe, arrives).await,
                None => self.write_stripe(&flight, *stripe, Urgency::Buffer).await,
            },
            Destination::Hot(slots) => self.write_hot(&flight, slots).await,
            Destination::Fast(copy) => self.write_fast(&flight, copy).await,
        };
        if done.is_ok() && matches!(flight.to, Destination::Stripe(_)) {
            self.count(|counts| counts.array.cold_blocks += flight.blocks.len() as u64);
            self.leave_hot_behind(&flight);
        }
        if done.is_ok() && !matches!(flight.to, Destination::Hot(_)) {
            // At once: who takes the stripe next must not take what lies there now for good unread.
            let mut carried = flight.carried();
            for (block, entry) in flight.volume.dirty.borrow_mut().range_mut(flight.span()) {
                if let Some((_, checksum)) = carried(*block).filter(|_| flight.is_for(self.index_of(*block))) {
                    entry.at_rest = Some(checksum);
                }
            }
        }
        if done.is_ok() && !matches!(flight.to, Destination::Fast(_)) {
            self.came_home(&flight).await;
        }
        let lost = done.as_ref().err().map_or_else(BTreeSet::new, |error| self.without_place(&flight, error));
        let left = {
            let (mut dirty, mut carried) = (flight.volume.dirty.borrow_mut(), flight.carried());
            let leaves = |block: &u64, now: &mut Dirty| {
                let Some((version, _)) = carried(*block) else { return false };
                now.in_flight = false;
                let landed = done.is_ok() && now.lsn == version;
                let leaves = now.data.is_some() && (landed || lost.contains(block));
                if leaves {
                    self.count_dirty(&flight.volume, -1);
                    self.drained(now.lsn);
                }
                leaves || now.data.is_none()
            };
            flight.blocks.len() - dirty.extract_if(flight.span(), leaves).count()
        };
        // What is left of a flight that lost some may go now, and what was to go to the hot area goes elsewhere.
        let there = done.is_ok() || !lost.is_empty() || matches!(flight.to, Destination::Hot(_));
        self.stalled.replace(done.err().filter(|_| !there));
        self.room.notify_waiters();
        if !there {
            self.runtime.sleep(STALLED).await;
        }
        left
    }

    /// Writes neighbouring blocks to all copies. A disk that refuses goes out of service, unless it is only full: then
    /// the blocks stay and are tried again.
    async fn write_copies(&self, flight: &Flight, arrives: Option<oneshot::Sender<()>>) -> Result<()> {
        let (Some(extent), Some((first, ..))) = (flight.extents.first(), flight.blocks.first()) else { return Ok(()) };
        let (_, inside) = self.split(*first);
        let places = extent.group.places();
        let failures = self.array.write(&places, inside, &flight.data, Urgency::Buffer).await;
        // A disk that failed meanwhile goes out of service.
        places.iter().for_each(|place| self.wrote(&Berth::from(*place), inside, flight.blocks.len()));
        let arrived = failures.is_empty() && places.iter().any(|place| self.array.works(*place));
        // Sent or gone before anything else: the journal waits for it, and a disk that goes out of service waits for the journal.
        if let Some(arrives) = arrives.filter(|_| arrived) {
            self.straight.arrived(&places);
            // A journal that has failed, or carries the data by now, waits for nothing.
            let _ = arrives.send(());
        }
        self.landed_on(&places, failures).await
    }

    /// What came of a write to copies: an error unless one has it.
    pub async fn landed_on(&self, places: &[Place], failures: Vec<Failure>) -> Result<()> {
        match self.dismiss(failures).await {
            Some(full) => Err(full),
            None if places.iter().any(|place| self.array.works(*place)) => Ok(()),
            None => Err(Error::device("the disks of an extent are out of service")),
        }
    }

    /// Counts a block off that a checkpoint waits for.
    pub fn drained(&self, lsn: Lsn) {
        let (target, left) = self.drain.get();
        if lsn < target {
            self.drain.set((target, left - 1));
            if left == 1 {
                self.room.notify_waiters();
            }
        }
    }
}
