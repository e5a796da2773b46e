//! One controller's volumes, and what they share.

use crate::changes::TableChanges;
use crate::disks::Held;
use crate::disks::Refused;
use crate::extent::Extent;
use crate::hot::HotArea;
use crate::life::Life;
use crate::owner::Owners;
use crate::pages::Uneven;
use crate::policy;
use crate::record::{Effect, Record};
pub(crate) use crate::reserve::Freed;
use crate::reserve::Returns;
use crate::settings::Settings;
use crate::share::Share;
use crate::snapshot::{Drops, ReplayedEntries, Stops, Tidy};
use crate::status::{Status, VolumeStatus};
use crate::straight::{Straight, Successors};
use crate::stripe::Stripes;
use crate::tables::{Tables, VolumeState};
use crate::tier::FastTier;
use kura_array::Array;
use kura_block::{BLOCK_BYTES_U64, Bufs, Checksum, ControllerId, DeviceId, Error, Kind, Result, Runtime};
use kura_journal::{Journal, Lsn};
use kura_snapshot::method::{Counters, Kind as Sharing};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// Checkpoints that a stop makes, at most, until nothing is left to be replayed.
const LAST_CHECKPOINTS: usize = 4;

pub(crate) struct Inner {
    /// Itself, for work that goes on when whoever asked for it is gone.
    pub me: Weak<Self>,
    pub id: ControllerId,
    pub runtime: Rc<dyn Runtime>,
    pub settings: Settings,
    /// What lies nowhere any more is given up, although that was not known before.
    pub degraded: bool,
    pub array: Array,
    /// The disks that hold the journal's copies, by the copies' numbers.
    pub journal_disks: RefCell<BTreeMap<usize, DeviceId>>,
    /// Disks that had no space for a copy of the journal: when they were asked, and what they said.
    pub journal_refused: RefCell<BTreeMap<DeviceId, (Duration, Error)>>,
    /// Set when recovery has read the log to its end.
    pub journal: OnceCell<Journal>,
    pub life: Cell<Life>,
    pub tables: RefCell<Tables>,
    /// What has changed in them since the last checkpoint.
    pub changes: TableChanges,
    /// Bytes of the tables when they were encoded last, and of the records that changed them since.
    pub tables_bytes: Cell<(u64, u64)>,
    /// Free extents and names, which all controllers share.
    pub share: Share,
    pub freed: RefCell<Vec<Freed>>,
    pub returns: Returns,
    pub dirty_bytes: Cell<u64>,
    /// Of these, bytes of volumes with parity.
    pub dirty_in_stripes: Cell<u64>,
    pub last_write: Cell<Duration>,
    /// When a client last read from a volume.
    pub last_read: Cell<Duration>,
    pub last_checkpoint: Cell<Duration>,
    /// Extents whose page is in memory, in the order of the cache's clock.
    pub loaded: RefCell<VecDeque<Weak<Extent>>>,
    pub dirty_pages: RefCell<Vec<Rc<Extent>>>,
    /// Found when it opened, to be brought to all of their disks before the next version of any page.
    pub uneven: RefCell<Vec<Uneven>>,
    pub hot: HotArea,
    /// Controllers of the pool: each has its share of the hot area.
    pub controllers: u16,
    pub tidy: Tidy,
    /// Snapshots that go because the pool is full.
    pub drops: Drops,
    /// Thick volumes that lack space are being filled.
    pub filling: Cell<bool>,
    /// Pages of pool tables that the next checkpoint writes.
    pub dirty_pool_pages: Cell<u64>,
    /// What the log said of slots, until their tables are read.
    pub replayed_entries: RefCell<ReplayedEntries>,
    /// Families on their way to or from other controllers.
    pub owners: RefCell<Owners>,
    /// The last record of each volume that the journal's tail may not have passed, by the volume's number.
    pub last_records: RefCell<BTreeMap<u64, Lsn>>,
    /// The fast tier.
    pub tier: FastTier,
    pub stripes: Stripes,
    /// Blocks with a record below `.0` that a checkpoint waits for: `.1` of them.
    pub drain: Cell<(Lsn, u64)>,
    /// Writes that pass the journal by.
    pub straight: Straight,
    /// Extents that are written over by streams.
    pub successors: Successors,
    /// The last record of a disk that went out of service.
    pub disk_failed: Cell<Lsn>,
    pub checkpointing: tokio::sync::Mutex<()>,
    /// Who waits for a checkpoint that has not begun.
    pub asked: RefCell<Vec<oneshot::Sender<Result<()>>>>,
    /// Why the disks take nothing just now, while that is so.
    pub stalled: RefCell<Option<Error>>,
    /// How wide the destager is, and what was durable when it looked for blocks: without more of either it finds none until
    /// one of its writes, or the time it sleeps, ends. None when it waits to be woken.
    pub emptying: Cell<Option<(usize, Lsn)>>,
    /// The destager has something to look at.
    pub destager: Notify,
    /// The checkpointer has something to look at.
    pub checkpointer: Notify,
    /// The rebuilder has something to look at.
    pub rebuilder: Notify,
    /// What disks refused to read.
    pub refused: Refused,
    /// Why the last move of a rebuild did not succeed, while that is so.
    pub rebuild_stalled: RefCell<Option<Error>>,
    /// A checkpoint is wanted, due or not: a writer lacks room, hot blocks lack tracks, or what only one disk has is to be written anew.
    pub checkpoint_wanted: Cell<bool>,
    /// The write buffer has room again, or never will.
    pub room: Notify,
    /// Held by the writer that is the next to get room: those behind it are not woken in vain.
    pub turn: tokio::sync::Mutex<()>,
    pub counts: Cell<Status>,
    /// What making snapshots has kept waiting.
    pub stops: Cell<Stops>,
}

/// One controller's volumes; clones are the same store.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Rc<Inner>,
}

impl Store {
    /// All volumes, by number.
    pub fn volumes(&self) -> Vec<VolumeStatus> {
        let tables = self.inner.tables.borrow();
        let seen = tables.volumes.values().filter(|volume| !volume.is_hidden());
        seen.map(|volume| self.inner.status_of(volume)).collect()
    }

    /// How many volumes, snapshots and clones there are.
    pub fn volumes_count(&self) -> usize {
        self.inner.tables.borrow().volumes.values().filter(|volume| !volume.is_hidden()).count()
    }

    /// The disks as this controller sees them.
    pub fn array(&self) -> &Array {
        &self.inner.array
    }

    /// The store as it is.
    pub fn status(&self) -> Status {
        let usage = self.inner.journal().usage();
        Status {
            dirty_bytes: self.inner.dirty_bytes.get(),
            dirty_limit_bytes: self.inner.settings.write_buffer_bytes,
            journal_bytes: usage.ring_bytes,
            journal_used_bytes: usage.used_bytes,
            hot_bytes: self.inner.hot.table.borrow().occupied() as u64 * BLOCK_BYTES_U64,
            hot_limit_bytes: self.inner.hot.table.borrow().count() as u64 * self.inner.array.extent_bytes(),
            ..self.inner.counts.get()
        }
    }

    /// Takes a disk out of service; durable when the future resolves.
    pub async fn fail_disk(&self, device: DeviceId) -> Result<()> {
        self.inner.fail_disk(device).await
    }

    /// What would be lost if a disk failed now.
    pub fn only_on_disk(&self, device: DeviceId) -> Result<crate::OnlyCopies> {
        self.inner.only_on_disk(device)
    }

    /// Disks that take volumes' data, work and stay.
    pub fn data_disks(&self) -> Vec<DeviceId> {
        self.inner.disks_for(self.inner.widest())
    }

    /// Extents of a disk that this controller leased and does not use yet, or has lent to the hot area.
    pub fn leased(&self, device: DeviceId) -> u32 {
        self.inner.share.reserved(device) + self.inner.loan_on(device)
    }

    /// How the pool is shared, and what that has cost since the start.
    pub fn sharing(&self) -> (Sharing, Counters) {
        (self.inner.settings.sharing, self.inner.share.counters())
    }

    /// A disk gives what it holds to the others and takes nothing new; durable when the future resolves.
    pub async fn leave_disk(&self, device: DeviceId) -> Result<()> {
        self.inner.leave_disk(device).await
    }

    /// What still lies on disks that are failed or leaving, which are all listed.
    pub fn unwanted(&self) -> BTreeMap<DeviceId, Held> {
        self.inner.unwanted()
    }

    /// Why a rebuild does not go on, while that is so.
    pub fn rebuild_stalled(&self) -> Option<Error> {
        let stalled = self.inner.rebuild_stalled.borrow().clone();
        stalled.or_else(|| self.inner.refused.why_aside())
    }

    /// Takes another disk into service; what waits for room goes on.
    pub fn add_disk(&self, member: kura_array::Member) {
        self.inner.array.add(member);
        self.inner.rebuilder.notify_one();
    }

    /// Begins what goes on by itself and leases extents: rebuilding, whenever there is a need, and keeping the hot area.
    /// Only once every controller has told what it holds.
    pub fn begin_upkeep(&self) {
        self.inner.runtime.spawn(Box::pin(Rc::clone(&self.inner).migrate_for_ever()));
        self.inner.runtime.spawn(Box::pin(Rc::clone(&self.inner).return_for_ever()));
        self.inner.runtime.spawn(Box::pin(Rc::clone(&self.inner).rebuild_for_ever()));
        self.inner.runtime.spawn(Box::pin(Rc::clone(&self.inner).tidy_for_ever()));
        self.inner.runtime.spawn(Box::pin(Rc::clone(&self.inner).tier_for_ever()));
        self.inner.runtime.spawn(Box::pin(Rc::clone(&self.inner).fill_thick()));
    }

    /// Disks that are being emptied.
    pub fn leaving_disks(&self) -> Vec<DeviceId> {
        self.inner.tables.borrow().leaving.iter().copied().collect()
    }

    /// Disks out of service.
    pub fn failed_disks(&self) -> Vec<DeviceId> {
        self.inner.tables.borrow().failed.iter().copied().collect()
    }

    /// Moves the journal's tail to its head: recovery would find everything at its place, and what was given up is free.
    pub async fn checkpoint(&self) -> Result<()> {
        self.inner.reclaim().await
    }

    /// Why nothing can be written any more: its journal has failed.
    pub fn failure(&self) -> Option<Error> {
        self.inner.journal().alive().err()
    }

    /// Makes everything acknowledged so far durable.
    pub async fn flush(&self) -> Result<()> {
        self.inner.commit_all().await
    }

    /// Writes everything to its place, makes the journal empty, and ends the store's tasks. Further writes fail.
    pub async fn stop(&self) -> Result<()> {
        self.inner.live_on_to(Life::Stopping);
        let mut done = self.inner.reclaim().await;
        for _ in 1..LAST_CHECKPOINTS {
            // What a checkpoint brings home has records of its own.
            if done.is_err() || self.inner.journal().tail() >= self.inner.journal().next_lsn() {
                break;
            }
            done = self.inner.reclaim().await;
        }
        self.inner.live_on_to(Life::Stopped);
        self.inner.wake_all();
        let closed = self.inner.journal().close().await;
        done.and(closed)
    }
}

impl Inner {
    pub fn journal(&self) -> &Journal {
        self.journal.get().unwrap_or_else(|| unreachable!("a store is handed out after its recovery"))
    }

    /// Appends a record without data.
    pub fn append(&self, record: &Record) -> Lsn {
        self.append_data(record, &Bufs::new(), &[])
    }

    /// Appends a record, and notes it where a checkpoint's tables are to say it.
    pub fn append_data(&self, record: &Record, data: &Bufs, checksums: &[Checksum]) -> Lsn {
        let (body, effect) = (record.encode(), record.effect());
        if effect != Effect::Pages {
            // In the tables it takes no more than the bytes of the record and of what comes with it.
            let (known, since) = self.tables_bytes.get();
            self.tables_bytes.set((known, since + (body.len() + data.len()) as u64));
        }
        let lsn = self.journal().append(&body, data, checksums);
        if effect != Effect::Pages {
            self.changes.note(effect, lsn.0, &body);
            self.shorten_if_due();
        }
        if let Some(volume) = record.volume() {
            self.last_records.borrow_mut().insert(volume, lsn);
        }
        lsn
    }

    /// Resolves when all records appended so far are durable.
    pub async fn commit_all(&self) -> Result<()> {
        let journal = self.journal();
        journal.commit(journal.next_lsn()).await
    }

    /// A volume by name.
    pub fn find(&self, name: &str) -> Result<Rc<VolumeState>> {
        let found = self.known(name)?;
        if found.is_made.get() {
            return Ok(found);
        }
        Err(Error::busy(format!("volume {name}: it is being made: wait until that is done")))
    }

    /// The same, also of one that is being made.
    pub fn known(&self, name: &str) -> Result<Rc<VolumeState>> {
        let tables = self.tables.borrow();
        let found = tables.volumes.named(name).filter(|volume| !volume.is_hidden());
        found.cloned().ok_or_else(|| Error::missing(format!("volume {name}: no such volume: see `kura volume list`")))
    }

    pub fn status_of(&self, volume: &VolumeState) -> VolumeStatus {
        let mapped = u64::from(volume.mapped());
        let slots = volume.branch().map_or(0, |branch| branch.pvol.borrow().index.slots() as u64);
        VolumeStatus {
            id: volume.id,
            spec: volume.spec.borrow().clone(),
            shape: volume.shape,
            allocated_bytes: mapped * self.array.extent_bytes() + Self::bytes_of(slots),
            open: volume.opened.get(),
            family: volume.branch().map_or(volume.id, |branch| branch.pool_vol.volume.id),
            work: volume.work.get(),
            snapshots: self.count_children(volume) as u32,
            lost: volume.is_lost(),
            doomed: volume
                .branch()
                .is_some_and(|branch| !branch.pool_vol.is_lost() && self.is_doomed(&branch.pool_vol)),
            svol: Self::svol_status(volume),
        }
    }

    /// Takes a volume out of the tables and gives up all it holds.
    pub fn remove(&self, volume: &Rc<VolumeState>) {
        if volume.deleted.get() {
            return;
        }
        let lsn = self.append(&Record::Delete { volume: volume.id });
        let until = Lsn(lsn.0 + 1);
        volume.deleted.set(true);
        self.forget_hot(volume, 0, u64::MAX, lsn);
        volume.take_groups().into_iter().for_each(|extents| self.give_up_group(extents, until));
        self.drop_dirty(volume, 0, u64::MAX);
        self.tables.borrow_mut().volumes.remove(volume.id);
        // What was deleted but for its roll-back has no other use.
        if let Some(left) = self.left_to(volume) {
            self.remove(&left);
        }
        self.leave_family(volume);
    }

    /// Refuses work on a volume that is gone, or by a store that stops or whose journal failed.
    pub fn ready(&self, volume: &VolumeState) -> Result<()> {
        volume.check_there()?;
        if self.is_stopping() {
            return Err(Error::retry("the server is shutting down"));
        }
        self.journal().alive()
    }

    /// True when the write buffer, the journal and the pages take a write of `bytes` now.
    pub fn has_room(&self, bytes: u64) -> bool {
        let buffered = self.dirty_bytes.get();
        (buffered == 0 || buffered + bytes <= self.settings.write_buffer_bytes)
            && self.journal_has_room(bytes)
            && self.dirty_pages.borrow().len() <= self.settings.pages
    }

    /// True when the journal takes a write of `bytes` now, and what the write buffer will need.
    pub fn journal_has_room(&self, bytes: u64) -> bool {
        // What the write itself will take fits the part that stays free: a checkpoint can go in steps.
        self.journal().has_room(bytes + self.debt())
    }

    /// Bytes of the journal that what is acknowledged will still take before the tail can pass it: of stripes, and of the
    /// pages of pool tables, which are written as blocks are.
    pub fn debt(&self) -> u64 {
        Self::debt_of(self.bytes_for_stripes()) + 4 * Self::bytes_of(self.dirty_pool_pages.get())
    }

    /// Bytes of the write buffer that go to stripes by way of records.
    pub fn bytes_for_stripes(&self) -> u64 {
        self.dirty_in_stripes.get().saturating_sub(self.straight.bytes_in_stripes())
    }

    /// Bytes of the journal that bringing so much of the write buffer to its place may take: for each block, its row's
    /// partial parity and the header of an entry.
    pub fn debt_of(dirty_bytes: u64) -> u64 {
        2 * dirty_bytes
    }

    /// True when the journal takes the records of a flight that is not part of a checkpoint: it leaves a quarter of the
    /// ring to those that are, without which the tail could not move.
    pub fn may_fly(&self) -> bool {
        let usage = self.journal().usage();
        usage.ring_bytes.saturating_sub(usage.used_bytes) > usage.ring_bytes / 4 + self.stripes.flying_debt.get()
    }

    /// Waits until the write buffer, the journal and the pages take a write of `bytes`; an error when the disks take
    /// nothing, so that a client hears of it instead of hanging: `Full`, or else `Retry`, whatever the disks say. Nothing of what
    /// waits here has happened, and they may take it a moment later.
    ///
    /// Writers get room in the order in which they asked for it, one after the other: what is made room for one is not
    /// looked at by thousands.
    pub async fn make_room(&self, bytes: u64) -> Result<()> {
        let _turn = self.turn.lock().await;
        loop {
            let room = self.room.notified();
            let journal = self.journal();
            journal.alive()?;
            if self.has_room(bytes) {
                return Ok(());
            }
            if let Some(error) = self.stalled.borrow().clone() {
                return Err(if error.kind() == Kind::Full { error } else { Error::retry(error.to_string()) });
            }
            if self.is_stopping() {
                return Err(Error::retry("the server is shutting down"));
            }
            if !self.journal_has_room(bytes) {
                self.checkpoint_wanted.set(true);
            }
            self.destager.notify_one();
            self.checkpointer.notify_one();
            futures::future::select(std::pin::pin!(room), std::pin::pin!(journal.progress())).await;
        }
    }

    /// Counts what was done since the start.
    pub fn count(&self, add: impl FnOnce(&mut Status)) {
        let mut counts = self.counts.get();
        add(&mut counts);
        self.counts.set(counts);
    }

    /// Wakes the tasks that empty the buffer and shorten the journal, when there is work for them.
    pub fn stir(&self) {
        let width = policy::destage_width(self.pressure());
        let has_more = |(looked, durable)| width > looked || width > 0 && self.journal().durable() > durable;
        if self.emptying.get().is_none_or(has_more) {
            self.destager.notify_one();
        }
        self.shorten_if_due();
    }

    /// True when the journal is to be shortened, or pages to be written out.
    pub fn is_checkpoint_due(&self) -> bool {
        let (usage, pages) = (self.journal().usage(), self.dirty_pages.borrow().len());
        policy::checkpoint_due(usage.used_bytes + self.debt(), usage.ring_bytes, pages, self.settings.pages)
    }

    /// Wakes the task that shortens the journal, where that is due.
    fn shorten_if_due(&self) {
        if self.is_checkpoint_due() {
            self.checkpointer.notify_one();
        }
    }

    /// Waits until the journal takes a record; what is not of a client's data asks for nothing else.
    pub async fn room_in_journal(&self) -> Result<()> {
        if self.journal_has_room(0) { Ok(()) } else { self.make_room(0).await }
    }

    /// Takes a disk out of service, durably before anything is acknowledged without it.
    pub async fn fail_disk(&self, device: DeviceId) -> Result<()> {
        if self.array.member(device).is_none() {
            return Err(Error::missing(format!("disk {}: no such disk", device.0)));
        }
        self.put_out_of_service(device);
        let Some(journal) = self.journal.get() else { return Ok(()) };
        if journal.is_sealed() { Ok(()) } else { self.commit_all().await }
    }

    /// Takes a disk of the pool out of service; a restart knows when the record of that is durable.
    pub fn put_out_of_service(&self, device: DeviceId) {
        self.array.fail(device);
        let fresh = self.tables.borrow_mut().failed.insert(device);
        if fresh {
            self.rebuilder.notify_one();
            self.tier.wake.notify_one();
            self.write_lost_pages_again();
        }
        let Some(journal) = self.journal.get() else { return };
        // The last copy of the journal is written for as long as that works, whatever another controller met on its disk:
        // without a copy nothing is served, and it moves to another disk when there is one. Where no other disk works it ends
        // here: that the last disk failed is not remembered, and a restart tries it again.
        if self.has_journal_beside(device) || !self.array.members().iter().any(|member| member.works()) {
            self.drop_journal_on(device);
        }
        if fresh && self.journal_disks.borrow().values().any(|disk| *disk == device) {
            // Nobody has read since the start what the other copy has of the tables, which is all there is now: it is written anew.
            self.changes.want_whole();
            self.checkpoint_wanted.set(true);
            self.checkpointer.notify_one();
        }
        if fresh && !journal.is_sealed() {
            tracing::error!(disk = device.0, controller = self.id.0, "disk out of service");
            self.disk_failed.set(self.append(&Record::DiskFailed { device }));
        }
    }

    /// Bytes of `blocks` blocks.
    pub fn bytes_of(blocks: u64) -> u64 {
        blocks * BLOCK_BYTES_U64
    }

    /// The extent of a volume's block, by its index, and which block in there it is.
    pub fn split(&self, block: u64) -> (u32, usize) {
        let blocks = self.array.extent_blocks() as u64;
        ((block / blocks) as u32, (block % blocks) as usize)
    }

    /// The index of the extent that a volume's block lies in.
    pub fn index_of(&self, block: u64) -> u32 {
        self.split(block).0
    }
}
