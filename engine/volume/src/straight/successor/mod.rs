//! Streams of large writes over what is there already: to another place, which becomes the extent's once it has all of it.
//!
//! ```text
//!  write ─> write buffer, record that waits ─> reply
//!              └─> the successor ─> flush ─> the record is written: "this lies there"      where the data got there
//!                     │                 └──> the record is written with its data           where it did not
//!                     ├ has all of the extent ─> "succeed": the successor is the extent's place, the buffer is empty,
//!                     │                           and the old place goes back to the pool
//!                     └ whatever else happens ─> it is given up: what is in the buffer goes home
//! ```
//!
//! So each byte of a stream is written once, as where nothing was before ([`crate::straight`]). For the log a successor is where the
//! data of a record lies; only when it succeeds does it become a place of the volume.
//!
//! What must hold besides what holds of every write:
//! 1. Until it succeeds, home has what it had, and every block that the successor has is in the write buffer, where reads find it.
//! 2. It succeeds only with all blocks of its extent, none of which was changed by anything else since it began.
//! 3. A record says that data lies there only once all copies have it, durably. As long as the log has such a record, before a
//!    "succeed" or without one, nobody else is given the successor's place: a recovery reads it.
//! 4. It lies on the disks of its extent: a disk that fails takes no more with it than it had.

mod recover;
mod streams;

pub(crate) use recover::Told;
pub(crate) use streams::Streams;

use crate::extent::{Extent, Pins};
use crate::record::Record;
use crate::store::{Freed, Inner};
use crate::tables::VolumeState;
use kura_array::{Berth, Blocks, Places, Urgency};
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs, DeviceId, Error, Result};
use kura_journal::Lsn;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A stream has stopped when it has not gone on for so long.
pub(crate) const STOPPED: Duration = Duration::from_secs(1);
/// Successors may hold one part in so many of the write buffer.
const BUFFER_SHARE: u64 = 3;
/// Streams leave one extent in so many of a disk free: who writes to where nothing is has no other place.
const LEFT_FREE: u32 = 32;

/// The place that an extent is to have once all of it lies there.
pub(crate) struct Successor {
    places: Places,
    /// Blocks that came, or are on their way.
    taken: RefCell<Blocks>,
    /// How many have come.
    landed: Cell<usize>,
    /// Writes on their way.
    flying: Cell<usize>,
    /// When the last one began.
    last: Cell<Duration>,
    /// The records that say that data lies there are below this.
    until: Cell<Lsn>,
    given_up: Cell<bool>,
}

/// Extents that have a successor.
#[derive(Default)]
pub(crate) struct Successors {
    open: RefCell<Vec<Open>>,
    /// Bytes of theirs in the write buffer.
    bytes: Cell<u64>,
    /// A stream has found too little room.
    lacks: Cell<bool>,
    /// While the log is replayed: what it says of successors.
    told: RefCell<Vec<Told>>,
}

/// One of them.
pub(crate) struct Open {
    volume: Rc<VolumeState>,
    successor: Rc<Successor>,
    /// Its extent, whose page stays in memory.
    pins: Pins,
}

impl Successors {
    /// Bytes in the write buffer that are to leave it all at once.
    pub fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// True when a stream has found too little room since somebody asked.
    pub fn lack_room(&self) -> bool {
        self.lacks.take()
    }

    /// True when one has a place on one of these disks.
    pub fn are_on(&self, disks: &[DeviceId]) -> bool {
        self.open.borrow().iter().any(|open| open.is_on(disks))
    }

    /// True when there are any.
    pub fn are_there(&self) -> bool {
        !self.open.borrow().is_empty()
    }

    /// The places of all.
    pub fn places(&self) -> Vec<Places> {
        self.open.borrow().iter().map(|open| open.successor.places.clone()).collect()
    }
}

impl Open {
    /// True when it has a place on one of these disks.
    pub fn is_on(&self, disks: &[DeviceId]) -> bool {
        self.successor.places.iter().any(|place| disks.contains(&place.device))
    }
}

/// Where some blocks of an extent go ahead of it.
pub(crate) struct Ahead {
    extent: Rc<Extent>,
    successor: Rc<Successor>,
    blocks: Range<u64>,
}

impl Ahead {
    pub fn places(&self) -> Places {
        self.successor.places.clone()
    }
}

impl Inner {
    /// Gives an extent a successor, where a stream begins to write over it.
    pub async fn begin_successor(&self, volume: &Rc<VolumeState>, first: u64, end: u64) {
        let blocks = (end - first) as usize;
        let in_stream = blocks <= self.array.extent_blocks()
            && !volume.shape.parity
            && self.goes_to_places(blocks)
            && volume.streams.borrow_mut().goes_on(first, end);
        if !in_stream {
            return;
        }
        let begins = |extent: &Rc<Extent>| self.may_begin(volume, first).is_some_and(|now| Rc::ptr_eq(&now, extent));
        let Some(extent) = self.may_begin(volume, first) else { return };
        // Where it cannot be read, the write itself says why.
        if !extent.is_loaded() && self.load(&extent).await.is_err() || !begins(&extent) {
            return;
        }
        let disks: Vec<DeviceId> = extent.group.places().iter().map(|place| place.device).collect();
        let Ok(places) = self.allocate_to_spare(&disks).await else { return };
        let there = extent.group.places().iter().map(|place| place.device).eq(disks);
        if !there || !extent.is_loaded() || !begins(&extent) {
            return self.free_successor(places, Lsn(0));
        }
        let successor = Rc::new(Successor {
            places,
            taken: RefCell::new(Blocks::none(self.array.extent_blocks())),
            landed: Cell::new(0),
            flying: Cell::new(0),
            last: Cell::new(self.runtime.now()),
            until: Cell::new(Lsn(0)),
            given_up: Cell::new(false),
        });
        extent.set_successor(Some(Rc::clone(&successor)));
        let open = Open { volume: Rc::clone(volume), successor, pins: Pins::of([&extent]) };
        self.successors.open.borrow_mut().push(open);
    }

    /// Takes an extent on each of these disks, where more than a few are free.
    async fn allocate_to_spare(&self, disks: &[DeviceId]) -> Result<Places> {
        for disk in disks {
            let extents = self.array.member(*disk).map_or(0, |member| member.plan.extents);
            if self.share.available(*disk).await? <= extents / LEFT_FREE {
                // The places that this stream has left may be free in a moment.
                self.successors.lacks.set(true);
                self.checkpointer.notify_one();
                return Err(Error::full(format!("disk {} has few free extents", disk.0)));
            }
        }
        self.allocate_on(disks).await
    }

    /// The extent, where a stream that has come to its beginning is to have a successor for it.
    fn may_begin(&self, volume: &VolumeState, first: u64) -> Option<Rc<Extent>> {
        let (index, inside) = self.split(first);
        let blocks = self.array.extent_blocks() as u64;
        let should = inside == 0
            && volume.shape.extents() == 1
            && (first + blocks) * BLOCK_BYTES_U64 <= volume.size_bytes()
            && !self.pressure().urgent
            && (self.successors.open.borrow().len() as u64 + 1) * Self::bytes_of(blocks)
                <= self.settings.write_buffer_bytes / BUFFER_SHARE;
        let extent = volume.extent(index).filter(|_| should)?;
        let empty = extent.is_loaded() && extent.with_page(|page| page.written() == 0);
        let may = !empty
            && extent.successor().is_none()
            && self.may_go_on(volume, &extent)
            && self.is_beside_journal(&extent)
            && volume.dirty.borrow().range(first..first + blocks).next().is_none();
        may.then_some(extent)
    }

    /// True while nothing else concerns an extent of a volume whose blocks go ahead of it.
    fn may_go_on(&self, volume: &VolumeState, extent: &Rc<Extent>) -> bool {
        let unwanted = |disk| self.tables.borrow().is_unwanted(disk);
        let places = extent.group.places();
        let disks = |places: &Places| places.iter().map(|place| place.device).collect::<Vec<_>>();
        volume.extent(extent.owner.index).is_some_and(|now| Rc::ptr_eq(&now, extent))
            && !volume.deleted.get()
            && !volume.held.get()
            && volume.branch.borrow().is_none()
            && extent.fast().is_none()
            && !extent.group.is_moving()
            && extent.successor().is_none_or(|successor| disks(&successor.places) == disks(&places))
            && places.iter().all(|place| self.array.works(*place) && !unwanted(place.device))
    }

    /// Where blocks of a write go ahead of their extent, if they do.
    pub fn goes_ahead(&self, volume: &VolumeState, first: u64, blocks: usize) -> Option<Ahead> {
        let (index, inside) = self.split(first);
        let range = first..first + blocks as u64;
        let extent = volume.extent(index)?;
        let successor = extent.successor()?;
        let goes = blocks >= self.settings.straight_blocks
            && !self.straight.hangs(self.runtime.now())
            && inside + blocks <= self.array.extent_blocks()
            && self.may_go_on(volume, &extent)
            && !(inside..inside + blocks).any(|block| successor.taken.borrow().has(block))
            && volume.dirty.borrow().range(range.clone()).next().is_none();
        goes.then_some(Ahead { extent, successor, blocks: range })
    }

    /// Gives up the successors of the extents of blocks.
    pub fn give_up_successors_of(&self, volume: &VolumeState, blocks: Range<u64>) {
        if !self.successors.are_there() {
            return;
        }
        for index in self.index_of(blocks.start)..=self.index_of(blocks.end - 1) {
            if let Some(extent) = volume.extent(index) {
                self.give_up_successor(&extent);
            }
        }
    }

    /// Sends blocks in the write buffer, which have a record, ahead of their extent.
    pub fn send_ahead(
        &self,
        volume: &Rc<VolumeState>,
        ahead: Ahead,
        data: Bufs,
        (lsn, arrives): (Lsn, oneshot::Sender<()>),
    ) {
        let Some(me) = self.me.upgrade() else { return };
        let volume = Rc::clone(volume);
        for (block, entry) in volume.dirty.borrow_mut().range_mut(ahead.blocks.clone()) {
            entry.in_flight = true;
            ahead.successor.taken.borrow_mut().add(self.split(*block).1);
        }
        ahead.successor.flying.set(ahead.successor.flying.get() + 1);
        ahead.successor.last.set(self.runtime.now());
        ahead.successor.until.set(Lsn(lsn.0 + 1));
        self.successors.bytes.set(self.successors.bytes.get() + data.len() as u64);
        let number = self.straight.begin(self.runtime.now(), 0);
        self.runtime.spawn(Box::pin(async move {
            let landed = me.write_ahead(&ahead, &data, arrives).await;
            me.straight.end(number);
            me.came_ahead(&volume, &ahead, landed).await;
        }));
    }

    /// Writes blocks to the successor; true when all of its copies have them.
    async fn write_ahead(&self, ahead: &Ahead, data: &Bufs, arrives: oneshot::Sender<()>) -> bool {
        let (inside, places) = (self.split(ahead.blocks.start).1, &ahead.successor.places);
        let failures = self.array.write(places, inside, data, Urgency::Buffer).await;
        places.iter().for_each(|place| self.wrote(&Berth::from(*place), inside, data.len() / BLOCK_BYTES));
        let landed = failures.is_empty() && places.iter().all(|place| self.array.works(*place));
        if landed {
            self.straight.arrived(places);
            self.count(|counts| counts.straight_bytes += data.len() as u64);
            // A journal that has failed, or carries the data by now, waits for nothing.
            let _ = arrives.send(());
        } else {
            // Gone before anything else: the journal waits for it, and a disk that goes out of service waits for the journal.
            drop(arrives);
        }
        self.dismiss(failures).await;
        landed
    }

    /// Blocks have come to the successor, or have not.
    async fn came_ahead(&self, volume: &Rc<VolumeState>, ahead: &Ahead, landed: bool) {
        let successor = &ahead.successor;
        let was_cleared = |_: &u64, entry: &mut crate::extent::Dirty| {
            entry.in_flight = false;
            entry.data.is_none()
        };
        volume.dirty.borrow_mut().extract_if(ahead.blocks.clone(), was_cleared).for_each(drop);
        self.room.notify_waiters();
        successor.flying.set(successor.flying.get() - 1);
        if successor.given_up.get() {
            self.let_go(successor);
        } else if !landed {
            self.give_up_successor(&ahead.extent);
        } else {
            successor.landed.set(successor.landed.get() + ahead.blocks.clone().count());
            if successor.landed.get() == self.array.extent_blocks() {
                self.succeed(volume, &ahead.extent, successor).await;
            }
        }
    }

    /// All of an extent lies in its successor.
    async fn succeed(&self, volume: &Rc<VolumeState>, extent: &Rc<Extent>, successor: &Rc<Successor>) {
        let room = self.room_in_journal().await;
        if successor.given_up.get() {
            return;
        }
        if room.is_err() || !self.may_go_on(volume, extent) {
            return self.give_up_successor(extent);
        }
        let (index, blocks) = (extent.owner.index, self.array.extent_blocks());
        let checksums: Vec<_> = extent.with_page(|page| (0..blocks).filter_map(|block| page.get(block)).collect());
        assert_eq!(checksums.len(), blocks, "every block of the extent was written");
        let places = successor.places.clone();
        let lsn = self.append(&Record::Succeed { volume: volume.id, index, places: places.clone() });
        let made = volume.put_group(index, lsn.0, places, |owner, group| Extent::empty(owner, group, blocks));
        for now in made.unwrap_or_else(|_| unreachable!("an extent that is there lies within its volume")) {
            now.set_run(0, &checksums);
            self.page_changed(&now, true);
            self.note_loaded(&now);
        }
        self.close_successor(extent);
        let (start, end) = self.group_range(volume, index);
        self.drop_dirty(volume, start, end);
        let before = Freed { is_of_stream: true, ..Freed::group(vec![Rc::clone(extent)], Lsn(lsn.0 + 1)) };
        self.freed.borrow_mut().push(before);
        self.checkpointer.notify_one();
    }

    /// An extent has a successor no more.
    fn close_successor(&self, extent: &Rc<Extent>) -> Option<Rc<Successor>> {
        let successor = extent.set_successor(None)?;
        let taken = Self::bytes_of(u64::from(successor.taken.borrow().count()));
        self.successors.bytes.set(self.successors.bytes.get() - taken);
        self.successors.open.borrow_mut().retain(|open| !Rc::ptr_eq(&open.successor, &successor));
        Some(successor)
    }

    /// What lies in the successor of an extent, if it has one, goes home from the write buffer.
    pub fn give_up_successor(&self, extent: &Rc<Extent>) {
        if let Some(successor) = self.close_successor(extent) {
            successor.given_up.set(true);
            self.let_go(&successor);
        }
    }

    /// Frees the place of a successor that was given up, once nothing is on its way there.
    fn let_go(&self, successor: &Successor) {
        if successor.flying.get() == 0 {
            self.free_successor(successor.places.clone(), successor.until.get());
        }
        self.destager.notify_one();
    }

    /// The place of a successor goes back to the pool when no record of it is replayed any more.
    fn free_successor(&self, places: Places, until: Lsn) {
        let freed = Freed { is_told: until > Lsn(0), is_of_stream: true, ..Freed::places(places, until) };
        self.freed.borrow_mut().push(freed);
        self.checkpointer.notify_one();
    }

    /// Gives up successors that are in the way of something, or wait for a stream that has stopped.
    pub fn review_successors(&self) {
        if !self.successors.are_there() {
            return;
        }
        let (now, urgent) = (self.runtime.now(), self.pressure().urgent);
        let is_over = |open: &&Open| {
            let stopped = now.saturating_sub(open.successor.last.get()) >= STOPPED;
            urgent || stopped || !open.pins.extents().iter().all(|extent| self.may_go_on(&open.volume, extent))
        };
        self.give_up_successors(is_over);
    }

    /// Gives up those successors of which this is so.
    pub fn give_up_successors(&self, are: impl Fn(&&Open) -> bool) {
        let extents: Vec<_> = {
            let open = self.successors.open.borrow();
            open.iter().filter(are).flat_map(|open| open.pins.extents().to_vec()).collect()
        };
        for extent in &extents {
            self.give_up_successor(extent);
        }
    }
}
