//! Large writes of blocks that hold nothing yet: straight to their places, with only a record of it in the journal.
//!
//! ```text
//!  write ─> write buffer, record that waits ─> reply         the record's place in the log is that of any other write's
//!              └─> places ─> flush ─> the record is written: "this lies there"      where the data got there
//!                                  └> the record is written with its data           where it did not
//! ```
//!
//! What must hold besides what holds of every write:
//! 1. The places hold nothing that a recovery may ask for: no version of these blocks is in the write buffer or on its way, and
//!    that they hold nothing is durable.
//! 2. The record says so only once all copies have the data, durably, and no disk went out of service that a restart would
//!    find in service.
//! 3. Of a volume with parity only whole stripes go so, of which nothing counts in parity. So there is nothing that a crash could
//!    tear apart: nothing of them counts before all of it is there, and then the log says so, or has their data. A checkpoint
//!    waits for those whose record its tail passes, and for no others: it could wait for ever, for a stream has always some.

mod successor;

pub(crate) use successor::{Ahead, STOPPED, Streams, Successor, Successors};

use crate::destage::{Destination, Flight};
use crate::extent::Extent;
use crate::record::Record;
use crate::store::Inner;
use crate::stripe::stripe_id;
use crate::tables::VolumeState;
use futures::future::{join, join_all, try_join_all};
use kura_array::Place;
use kura_block::{Bufs, Checksum, DeviceId};
use kura_journal::{Carried, Lsn, PATIENCE, Settle};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

/// So many bytes of such writes may be on their way or wait for their records, all of them in memory; further writes wait.
const LIMIT_BYTES: u64 = 12 << 20;

/// What goes straight to its place: how far it is.
#[derive(Default)]
pub(crate) struct Straight(RefCell<State>);

#[derive(Default)]
struct State {
    /// Writes and flushes so far; each has a number.
    count: u64,
    /// When those that are under way began, and bytes of the writes.
    under_way: BTreeMap<u64, (Duration, u64)>,
    bytes: u64,
    /// Stripes under way, by the record and the number of their write, and their bytes.
    stripes: BTreeMap<(Lsn, u64), u64>,
    /// Disks with something that is not known to be durable, and the number of the last write there.
    volatile: BTreeMap<DeviceId, u64>,
}

/// Where blocks that hold nothing yet are to lie.
pub(crate) enum Home {
    /// In their extent.
    Extent(Rc<Extent>),
    /// In stripes of which they are all: these of their volume.
    Stripes(Range<u64>),
}

impl Straight {
    /// Something begins: a flush, or a write of so many bytes that leave the buffer when it ends. Returns its number.
    pub fn begin(&self, now: Duration, bytes: u64) -> u64 {
        let state = &mut *self.0.borrow_mut();
        state.count += 1;
        state.bytes += bytes;
        state.under_way.insert(state.count, (now, bytes));
        state.count
    }

    /// It has ended.
    pub fn end(&self, number: u64) {
        let state = &mut *self.0.borrow_mut();
        state.bytes -= state.under_way.remove(&number).map_or(0, |(_, bytes)| bytes);
    }

    /// Bytes of writes under way.
    pub fn bytes(&self) -> u64 {
        self.0.borrow().bytes
    }

    /// Stripes begin, by the record and the number of their write.
    fn begin_stripes(&self, stripes: (Lsn, u64), bytes: u64) {
        self.0.borrow_mut().stripes.insert(stripes, bytes);
    }

    /// They are where they belong, or the destager's.
    fn end_stripes(&self, stripes: (Lsn, u64)) {
        self.0.borrow_mut().stripes.remove(&stripes);
    }

    /// Bytes of stripes under way, which need nothing of the journal to get to their places; or hardly more than that, where some are
    /// written over meanwhile.
    pub fn bytes_in_stripes(&self) -> u64 {
        self.0.borrow().stripes.values().sum()
    }

    /// True while stripes are under way whose record is below this.
    pub fn has_stripes_below(&self, tail: Lsn) -> bool {
        self.0.borrow().stripes.first_key_value().is_some_and(|((lsn, _), _)| *lsn < tail)
    }

    /// True while something is under way for longer than the journal waits for it: a disk hangs.
    pub fn hangs(&self, now: Duration) -> bool {
        let state = self.0.borrow();
        state.under_way.first_key_value().is_some_and(|(_, (began, _))| now.saturating_sub(*began) >= PATIENCE)
    }

    /// A write has come to these places.
    pub fn arrived(&self, places: &[Place]) {
        let state = &mut *self.0.borrow_mut();
        state.count += 1;
        state.volatile.extend(places.iter().map(|place| (place.device, state.count)));
    }

    /// Which disks to flush for all that has come to its places by now.
    fn volatile(&self) -> BTreeMap<DeviceId, u64> {
        self.0.borrow().volatile.clone()
    }

    /// These disks were flushed; what came since is not durable.
    fn flushed(&self, disks: &BTreeMap<DeviceId, u64>) {
        self.0.borrow_mut().volatile.retain(|disk, last| disks.get(disk) != Some(last));
    }
}

impl Inner {
    /// Tells the journal how to make durable what went straight to its place.
    pub fn begin_straight(&self) {
        let me = Weak::clone(&self.me);
        let settle: Settle = Box::new(move || {
            let (tells, told) = oneshot::channel();
            if let Some(inner) = me.upgrade() {
                let runtime = Rc::clone(&inner.runtime);
                runtime.spawn(Box::pin(async move {
                    // Whoever asked may be gone, but not what a flush says of its disk.
                    let _ = tells.send(inner.settle_places().await);
                }));
            }
            Box::pin(async { told.await.unwrap_or(false) })
        });
        self.journal().settle_by(settle);
    }

    /// Makes durable what lies at its places by now; false where that is not so on all disks, or one went out of service and
    /// a restart would not know of it.
    async fn settle_places(&self) -> bool {
        let disks = self.straight.volatile();
        let flush = self.straight.begin(self.runtime.now(), 0);
        let failures = self.array.flush_disks(&disks.keys().copied().collect::<Vec<_>>()).await;
        self.straight.end(flush);
        for failure in &failures {
            self.put_out_of_service(failure.device);
        }
        if failures.is_empty() {
            self.straight.flushed(&disks);
        }
        failures.is_empty() && self.disk_failed.get() < self.journal().durable()
    }

    /// Waits until a write of these blocks, if it is to go past the journal, may go.
    pub async fn wait_to_go_straight(&self, volume: &VolumeState, first: u64, blocks: usize) {
        while !self.has_room_elsewhere()
            && self.journal().alive().is_ok()
            && (self.is_fresh(volume, first, blocks).is_some() || self.goes_ahead(volume, first, blocks).is_some())
        {
            self.journal().progress().await;
        }
    }

    fn has_room_elsewhere(&self) -> bool {
        self.journal().elsewhere_bytes() < LIMIT_BYTES
    }

    /// Where blocks are to go straight to now.
    pub fn goes_straight(&self, volume: &VolumeState, first: u64, blocks: usize) -> Option<Home> {
        self.is_fresh(volume, first, blocks).filter(|_| self.has_room_elsewhere())
    }

    /// Where blocks may be written straight to, and should be.
    fn is_fresh(&self, volume: &VolumeState, first: u64, blocks: usize) -> Option<Home> {
        if !self.goes_to_places(blocks) {
            return None;
        }
        let end = first + blocks as u64;
        let home = if volume.shape.parity {
            Home::Stripes(self.fresh_stripes(volume, first..end)?)
        } else {
            let extent = volume.extent(self.index_of(first))?;
            let fits = self.index_of(end - 1) == extent.owner.index && self.is_fresh_in(&extent, first..end);
            Home::Extent(Some(extent).filter(|_| fits)?)
        };
        volume.dirty.borrow().range(first..end).next().is_none().then_some(home)
    }

    /// True where whole stripes of a volume may go straight to their places.
    pub fn may_go_in_stripes(&self, volume: &VolumeState) -> bool {
        volume.shape.parity && !volume.shape.floats && (!volume.has_hot_area() || self.settings.hot.eager)
    }

    /// The stripes that blocks are all of, where nothing of them counts in parity.
    fn fresh_stripes(&self, volume: &VolumeState, blocks: Range<u64>) -> Option<Range<u64>> {
        let unit = volume.shape.stripe_blocks();
        let whole = blocks.start.is_multiple_of(unit) && blocks.end.is_multiple_of(unit);
        if !whole || !self.may_go_in_stripes(volume) {
            return None;
        }
        for index in self.index_of(blocks.start)..=self.index_of(blocks.end - 1) {
            let extent = volume.extent(index)?;
            let first = u64::from(index) * self.array.extent_blocks() as u64;
            let within = blocks.start.max(first)..blocks.end.min(first + self.array.extent_blocks() as u64);
            let inside = (within.start - first) as usize..(within.end - first) as usize;
            let counts = |page: &kura_array::Page| inside.clone().any(|block| page.is_in_parity(block));
            let all_work = extent.group.places().iter().all(|place| self.array.works(*place));
            if !all_work || !self.is_fresh_in(&extent, within) || extent.with_page(counts) {
                return None;
            }
        }
        let stripes = blocks.start / unit..blocks.end / unit;
        let is_busy = |stripe: u64| {
            let extents = volume.group_of(self.index_of(stripe * unit));
            self.stripes.busy.borrow().contains_key(&stripe_id(volume, &extents, stripe))
        };
        let hot = volume.hot.borrow().range(blocks).next().is_some();
        (!hot && !stripes.clone().any(is_busy)).then_some(stripes)
    }

    /// True where blocks of an extent hold nothing, durably, and nothing else concerns it.
    fn is_fresh_in(&self, extent: &Rc<Extent>, blocks: Range<u64>) -> bool {
        let inside = self.split(blocks.start).1;
        let mut inside = inside..inside + (blocks.end - blocks.start) as usize;
        extent.fast().is_none()
            && extent.successor().is_none()
            && !extent.group.is_moving()
            && extent.cleared() < self.journal().durable()
            && self.is_beside_journal(extent)
            && extent.is_loaded()
            && extent.with_page(|page| inside.all(|block| page.get(block).is_none()))
    }

    /// True when a write of so many blocks is to go past the journal, where it may.
    pub fn goes_to_places(&self, blocks: usize) -> bool {
        blocks >= self.settings.straight_blocks
            && !self.journal().is_asked_often()
            && self.stalled.borrow().is_none()
            && !self.straight.hangs(self.runtime.now())
    }

    /// True when an extent's disks are of the journal's class: with a faster journal, who waits for it should not wait for them.
    pub fn is_beside_journal(&self, extent: &Extent) -> bool {
        let class = |disk| self.array.member(disk).map(|member| member.class);
        let journal_disks = self.journal_disks.borrow();
        let places = extent.group.places();
        places.iter().all(|place| journal_disks.values().all(|disk| class(*disk) == class(place.device)))
    }

    /// Appends the record of blocks that are `placed` somewhere, once the sender says so.
    pub fn append_elsewhere(
        &self,
        volume: &VolumeState,
        first: u64,
        placed: &Record,
        data: &Bufs,
        checksums: &[Checksum],
    ) -> (Lsn, oneshot::Sender<()>) {
        let (arrives, arrival) = oneshot::channel();
        let written = Record::Write { volume: volume.id, first }.encode();
        let carried = Carried { body: written, data: data.clone(), checksums: checksums.to_vec() };
        let lsn = self.journal().append_elsewhere(&placed.encode(), carried, arrival);
        self.last_records.borrow_mut().insert(volume.id, lsn);
        (lsn, arrives)
    }

    /// Sends blocks in the write buffer straight to their places.
    pub fn send_straight(
        &self,
        volume: &Rc<VolumeState>,
        home: Home,
        blocks: Range<u64>,
        (lsn, arrives): (Lsn, oneshot::Sender<()>),
    ) {
        let Some(me) = self.me.upgrade() else { return };
        let bytes = Self::bytes_of(blocks.end - blocks.start);
        let mut dirty = volume.dirty.borrow_mut();
        let flights = match home {
            Home::Extent(extent) => {
                vec![Flight::of(volume, vec![extent], Destination::Copies, dirty.range_mut(blocks))]
            }
            Home::Stripes(stripes) => {
                let unit = volume.shape.stripe_blocks();
                let flight = |stripe: u64| {
                    let extents = volume.group_of(self.index_of(stripe * unit));
                    self.stripes.busy.borrow_mut().insert(stripe_id(volume, &extents, stripe), None);
                    let blocks = dirty.range_mut(stripe * unit..(stripe + 1) * unit);
                    Flight::of(volume, extents, Destination::Stripe(stripe), blocks)
                };
                stripes.map(flight).collect()
            }
        };
        drop(dirty);
        let number = self.straight.begin(self.runtime.now(), bytes);
        let stripes = volume.shape.parity.then_some((lsn, number));
        stripes.inspect(|stripes| self.straight.begin_stripes(*stripes, bytes));
        self.runtime.spawn(Box::pin(async move {
            let (each, arrivals): (Vec<_>, Vec<_>) = flights.iter().map(|_| oneshot::channel()).unzip();
            let all = async {
                // When one does not get there, the journal need not wait for the others.
                if try_join_all(arrivals).await.is_ok() {
                    me.count(|counts| counts.straight_bytes += bytes);
                    // A journal that has failed, or carries the data by now, waits for nothing.
                    let _ = arrives.send(());
                } else {
                    drop(arrives);
                }
                me.straight.end(number);
            };
            let flights = flights.into_iter().zip(each).map(|(flight, arrives)| me.destage(flight, Some(arrives)));
            let (left, ()) = join(join_all(flights), all).await;
            if let Some(stripes) = stripes {
                me.straight.end_stripes(stripes);
                // A checkpoint may have waited for them.
                me.room.notify_waiters();
            }
            if left.into_iter().any(|left| left > 0) {
                // What was refused, or written over meanwhile, is the destager's from now on.
                me.destager.notify_one();
            }
        }));
    }
}
