//! Opening a store: checkpoint plus replay.

use crate::changes::TableChanges;
use crate::disks::Refused;
use crate::extent::{Dirty, Extent};
use crate::hot::HotArea;
use crate::life::Life;
use crate::record::{Record, Spec};
use crate::reserve::Returns;
use crate::settings::Settings;
use crate::share::Share;
use crate::snapshot::{Drops, Tidy};
use crate::store::{Inner, Store};
use crate::straight::{Straight, Successors};
use crate::stripe::{Resync, Stripes, Told};
use crate::tables::{Decoded, Tables, VolumeState};
use crate::tier::FastTier;
use kura_array::hot::HotTable;
use kura_array::{Array, Place, Places};
use kura_block::{BLOCK_BYTES, Checksum, ControllerId, DeviceId, Error, Kind, Result, Runtime};
use kura_journal::{Identity, JournalCopy, Limits, Lsn, Scan, Shape};
use kura_snapshot::method::SharedPool;
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// One copy of the journal, and the disk it lies on.
pub struct JournalPlace {
    /// The copy's number.
    pub index: usize,
    /// The disk.
    pub disk: DeviceId,
    /// The copy; `None` when the disk is away.
    pub copy: Option<JournalCopy>,
}

/// What a store is made of.
pub struct Parts {
    /// The controller.
    pub id: ControllerId,
    /// Its clock and tasks.
    pub runtime: Rc<dyn Runtime>,
    /// Control information shared with the other controllers.
    pub shared: Arc<dyn SharedPool>,
    /// The pool's disks.
    pub array: Array,
    /// The journal's copies.
    pub journal: Vec<JournalPlace>,
    /// Sizes of the journal's parts.
    pub shape: Shape,
    /// UUID of the pool.
    pub pool: [u8; 16],
    /// When the journal is written.
    pub limits: Limits,
    /// What the store may take.
    pub settings: Settings,
    /// Controllers of the pool.
    pub controllers: u16,
    /// Goes on although disks are away that may hold newer journal entries, or the only copy of something.
    pub degraded: bool,
}

/// What recovery read again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Entries of the journal.
    pub entries: u64,
    /// Bytes of data in them.
    pub bytes: u64,
}

/// A controller's volumes as its tables and its log tell them. Nothing has been written yet, and disks that are away may
/// still come back.
pub struct Recovered {
    inner: Rc<Inner>,
    resync: Resync,
    replayed: Replayed,
}

impl Store {
    /// Reads the tables, and replays the journal into the write buffer. Refused, unless `degraded`, while disks are away
    /// that may hold newer journal entries, or the only copy of something.
    pub async fn recover(parts: Parts) -> Result<Recovered> {
        let identity = Identity { pool: parts.pool, controller: parts.id.0 };
        let mut rings = vec![None; parts.journal.iter().map(|place| place.index + 1).max().unwrap_or(0)];
        for place in &parts.journal {
            rings[place.index].clone_from(&place.copy);
        }
        let mut scan = Scan::open(rings, parts.shape, identity).await?;
        let (bytes, changes, tables_lsn) = scan.tables().await?;
        let extent_bytes = parts.array.extent_bytes();
        let mut decoded = Tables::decode(&bytes, extent_bytes)?;
        decoded.change(&changes, extent_bytes)?;
        let Decoded { tables, hot, copies, owners } = decoded;
        for device in &tables.failed {
            parts.array.fail(*device);
        }
        let (limits, degraded) = (parts.limits, parts.degraded);
        let inner = Rc::new_cyclic(|me| Inner::recovering(parts, tables, me.clone()));
        inner.owners.replace(owners);
        inner.load_hot(hot).await?;
        inner.load_copies(copies).await?;
        let mut replayed = Replayed::default();
        let mut resync = Resync::after(scan.settled());
        while let Some(entry) = scan.next().await? {
            replayed.entries += 1;
            for record in entry.records {
                replayed.bytes += record.data.len() as u64;
                inner.replay(record, tables_lsn, &mut resync).await?;
            }
        }
        inner.do_without_away(degraded)?;
        inner.read_successors(degraded).await?;
        let journal = scan.finish(limits, Rc::clone(&inner.runtime), degraded)?;
        if inner.journal.set(journal).is_err() {
            unreachable!("the journal of a store that recovers is not set yet");
        }
        inner.begin_straight();
        inner.settle_hot();
        Ok(Recovered { inner, resync, replayed })
    }
}

impl Recovered {
    /// What recovery read again.
    pub fn replayed(&self) -> Replayed {
        self.replayed
    }

    /// The disks of the pool that were not found.
    pub fn away(&self) -> BTreeSet<DeviceId> {
        self.inner.away()
    }

    /// Begins to serve where the log ended; every controller of the pool has recovered. What was in the buffer goes to its
    /// place as always.
    pub async fn begin(self) -> Result<Store> {
        let Self { inner, resync, .. } = self;
        inner.begin(resync).await?;
        inner.live_on_to(Life::Serving);
        inner.runtime.spawn(Box::pin(Rc::clone(&inner).destage_for_ever()));
        inner.runtime.spawn(Box::pin(Rc::clone(&inner).checkpoint_for_ever()));
        Ok(Store { inner })
    }
}

impl Inner {
    fn recovering(parts: Parts, tables: Tables, me: Weak<Self>) -> Self {
        Self {
            me,
            id: parts.id,
            share: Share::new(parts.id, parts.controllers, parts.settings.sharing, parts.shared, &parts.runtime),
            runtime: parts.runtime,
            settings: parts.settings,
            degraded: parts.degraded,
            hot: HotArea::new(HotTable::new(parts.id.0, parts.settings.hot, parts.array.extent_blocks())),
            controllers: parts.controllers,
            tidy: Tidy::new(),
            last_records: RefCell::default(),
            drops: Drops::default(),
            filling: Cell::default(),
            dirty_pool_pages: Cell::new(0),
            replayed_entries: RefCell::default(),
            array: parts.array,
            journal_disks: RefCell::new(parts.journal.iter().map(|place| (place.index, place.disk)).collect()),
            journal_refused: RefCell::default(),
            journal: OnceCell::new(),
            life: Cell::new(Life::Recovering),
            tables: RefCell::new(tables),
            tier: FastTier::default(),
            owners: RefCell::default(),
            changes: TableChanges::default(),
            tables_bytes: Cell::default(),
            freed: RefCell::default(),
            returns: Returns::default(),
            dirty_bytes: Cell::new(0),
            dirty_in_stripes: Cell::new(0),
            last_write: Cell::new(Duration::ZERO),
            last_read: Cell::new(Duration::ZERO),
            last_checkpoint: Cell::new(Duration::ZERO),
            loaded: RefCell::new(VecDeque::new()),
            dirty_pages: RefCell::default(),
            uneven: RefCell::default(),
            stripes: Stripes::default(),
            drain: Cell::new((Lsn(0), 0)),
            straight: Straight::default(),
            successors: Successors::default(),
            disk_failed: Cell::new(Lsn(0)),
            checkpointing: tokio::sync::Mutex::new(()),
            asked: RefCell::default(),
            stalled: RefCell::new(None),
            emptying: Cell::new(None),
            destager: Notify::new(),
            checkpointer: Notify::new(),
            rebuilder: Notify::new(),
            refused: Refused::default(),
            rebuild_stalled: RefCell::new(None),
            checkpoint_wanted: Cell::new(false),
            room: Notify::new(),
            turn: tokio::sync::Mutex::new(()),
            counts: Cell::default(),
            stops: Cell::default(),
        }
    }

    /// Applies a record again. Those below `tables_lsn` are in the tables already: of them only the blocks matter, and
    /// only where the extent that lies there now was there then.
    async fn replay(&self, record: kura_journal::Record, tables_lsn: Lsn, resync: &mut Resync) -> Result<()> {
        let known = record.lsn < tables_lsn;
        match Record::decode(&record.body)? {
            Record::Create { volume, spec, shape } if !known => self.replay_create(volume, spec, shape),
            Record::Delete { volume } if !known => self.replay_delete(volume, record.lsn)?,
            Record::Size { volume, bytes } if !known => {
                let state = self.replayed_volume(volume).ok_or_else(|| unknown(volume))?;
                if state.is_pool() && bytes == 0 {
                    self.replay_give_up_all(&state, record.lsn);
                }
                state.spec.borrow_mut().size_bytes = bytes;
                state.fit_map(self.array.extent_bytes());
            }
            Record::DiskFailed { device } if !known => {
                self.tables.borrow_mut().failed.insert(device);
                self.array.fail(device);
            }
            Record::DiskLeaving { device } if !known => {
                self.tables.borrow_mut().leaving.insert(device);
            }
            Record::Versions(change) => self.replay_versions(change, record.lsn, known)?,
            Record::Owner(change) if !known => self.replay_owner(change, &record)?,
            Record::HotExtentGone { born } if !known => self.replay_hot_gone(born, record.lsn),
            Record::Move { volume, index, places } => self.replay_move((volume, index), places, known, resync)?,
            Record::Owner(_)
            | Record::Create { .. }
            | Record::Delete { .. }
            | Record::Size { .. }
            | Record::DiskFailed { .. }
            | Record::DiskLeaving { .. }
            | Record::HotExtentGone { .. } => {}
            Record::HotExtent { places } => self.replay_hot_extent(places, record.lsn, known).await?,
            Record::Settled => resync.settle(record.lsn),
            tier @ (Record::Promote { .. } | Record::Demote { .. } | Record::TierRules { .. }) => {
                self.replay_tier(tier, record.lsn, known).await?;
            }
            Record::HotBlocks { blocks } => self.replay_hot_blocks(&blocks, record.lsn),
            Record::HotGivenUp { slots } => self.replay_hot_given_up(&slots, record.lsn),
            Record::Parity { volume, stripe, born, ref rows } => {
                // It may have been on its way when its extents were given up.
                if let Some(state) = self.replayed_volume(volume) {
                    self.replay_parity(&state, Told { stripe, born, rows, record: &record }, resync).await?;
                }
            }
            Record::Map { volume, index, places } => self.replay_map(volume, index, places, record.lsn, known).await?,
            Record::Unmap { volume, index } => {
                let Some(state) = self.replayed_volume(volume) else { return missing(volume, known) };
                self.drop_group(&state, index);
                let (start, end) = self.group_range(&state, index);
                self.forget_hot(&state, start, end, record.lsn);
                if !known {
                    self.replay_give_up(state.take_group(index), record.lsn);
                }
            }
            Record::Succeed { volume, index, places } => {
                self.replay_succeed((volume, index), places, record.lsn, known).await?;
            }
            of_blocks
            @ (Record::Write { .. } | Record::Placed { .. } | Record::Ahead { .. } | Record::Clear { .. }) => {
                self.replay_blocks(of_blocks, &record, known).await?;
            }
        }
        Ok(())
    }

    async fn replay_blocks(&self, of_blocks: Record, record: &kura_journal::Record, known: bool) -> Result<()> {
        let volume = of_blocks.volume().unwrap_or_default();
        let Some(state) = self.replayed_volume(volume) else { return missing(volume, known) };
        match of_blocks {
            Record::Write { first, .. } => self.replay_write(&state, first, record).await,
            Record::Placed { first, checksums, in_parity, .. } => {
                self.replay_placed(&state, (first, &checksums, in_parity), record.lsn).await
            }
            Record::Ahead { first, places, checksums, .. } => {
                self.replay_ahead(&state, first, places, &checksums, record.lsn).await
            }
            Record::Clear { first, blocks, .. } => self.replay_clear(&state, first, first + blocks, record.lsn).await,
            _ => Ok(()),
        }
    }

    async fn replay_clear(&self, volume: &VolumeState, first: u64, end: u64, lsn: Lsn) -> Result<()> {
        self.forget_hot(volume, first, end, lsn);
        self.drop_dirty(volume, first, end);
        for block in first..end {
            if self.replayed_extent(volume, block, lsn).await?.is_some() {
                self.set_checksum(volume, block, None);
            }
        }
        Ok(())
    }

    fn replay_create(&self, volume: u64, spec: Spec, shape: kura_array::Shape) {
        let state = VolumeState::new(volume, spec, shape, self.array.extent_bytes());
        let tables = &mut *self.tables.borrow_mut();
        tables.next_volume = tables.next_volume.max(volume >> 16);
        tables.volumes.insert(volume, Rc::new(state));
    }

    fn replay_delete(&self, volume: u64, lsn: Lsn) -> Result<()> {
        let removed = self.tables.borrow_mut().volumes.remove(volume);
        let removed = removed.ok_or_else(|| unknown(volume))?;
        self.forget_hot(&removed, 0, u64::MAX, lsn);
        self.drop_dirty(&removed, 0, u64::MAX);
        self.replay_leave_family(&removed);
        self.replay_give_up_all(&removed, lsn);
        Ok(())
    }

    async fn replay_write(&self, volume: &VolumeState, first: u64, record: &kura_journal::Record) -> Result<()> {
        for (at, checksum) in record.checksums.iter().enumerate() {
            let block = first + at as u64;
            if self.replayed_extent(volume, block, record.lsn).await?.is_some() {
                let data = record.data.slice(at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES).contiguous();
                self.set_checksum(volume, block, Some(*checksum));
                // What lies at its place is not known: its page may be newer.
                self.buffer(volume, block, Dirty::new(data, *checksum, record.lsn, None));
            }
        }
        Ok(())
    }

    async fn replay_placed(
        &self,
        volume: &VolumeState,
        (first, checksums, in_parity): (u64, &[Checksum], bool),
        lsn: Lsn,
    ) -> Result<()> {
        for (block, checksum) in (first..).zip(checksums) {
            let Some(extent) = self.replayed_extent(volume, block, lsn).await? else { continue };
            self.set_checksum(volume, block, Some(*checksum));
            if in_parity {
                self.put_in_parity(&[extent], block);
            }
        }
        Ok(())
    }

    pub fn replayed_volume(&self, volume: u64) -> Option<Rc<VolumeState>> {
        self.tables.borrow().volumes.get(&volume).cloned()
    }

    /// The extent that held a block when the record was written, its page loaded; `None` when it is gone since, or so many of
    /// its disks that the block is lost.
    pub async fn replayed_extent(&self, volume: &VolumeState, block: u64, lsn: Lsn) -> Result<Option<Rc<Extent>>> {
        let Some(extent) = volume.extent(self.index_of(block)) else { return Ok(None) };
        if extent.owner.born > lsn.0 {
            return Ok(None);
        }
        if !extent.is_loaded()
            && let Err(error) = self.load(&extent).await
        {
            if self.array.holds(&extent.group.site()) {
                return Err(error);
            }
            extent.group.set_missed();
            return Ok(None);
        }
        Ok(Some(extent))
    }

    /// A group begins empty; every later record of it is replayed too. Its pages may have been written since: the next
    /// ones must have higher sequence numbers.
    async fn replay_map(&self, volume: u64, index: u32, places: Places, lsn: Lsn, known: bool) -> Result<()> {
        let Some(state) = self.replayed_volume(volume) else { return missing(volume, known) };
        let places = match state.extent(index) {
            // It may have moved since.
            Some(extent) if known && extent.owner.born == lsn.0 => extent.group.places(),
            _ if known => return Ok(()),
            _ => places,
        };
        for extent in state.put_group(index, lsn.0, places, Extent::stored)? {
            self.renew_page(&extent).await?;
            // What it was given since, the tables may know already.
            extent.set_fast(self.tier.copy((volume, extent.owner.index)));
        }
        self.drop_group(&state, index);
        Ok(())
    }

    /// Gives an extent that the log makes a page that knows of nothing. Whatever there is on the disks is older.
    pub async fn renew_page(&self, extent: &Rc<Extent>) -> Result<()> {
        match self.find_page(extent, false).await {
            Ok((page, _)) => {
                extent.install(page, extent.turn());
            }
            // There is none yet.
            Err(error) if error.kind() == Kind::Corrupt => {}
            // Nor one that is in anybody's way.
            Err(_) if !self.array.holds(&extent.group.site()) => {}
            Err(error) => return Err(error),
        }
        extent.reset(self.array.extent_blocks());
        self.page_changed(extent, true);
        self.note_loaded(extent);
        Ok(())
    }

    fn drop_group(&self, volume: &VolumeState, index: u32) {
        let (start, end) = self.group_range(volume, index);
        self.drop_dirty(volume, start, end);
    }

    /// A group moved. The place it moved to has what was at rest then; the rest was in the write buffer then, and is
    /// there again.
    fn replay_move(&self, (volume, index): (u64, u32), places: Places, known: bool, resync: &mut Resync) -> Result<()> {
        let state = self.replayed_volume(volume);
        if let Some(extent) = state.as_ref().and_then(|state| state.extent(index)) {
            resync.moved(volume, extent.owner.born);
        }
        if known {
            return Ok(());
        }
        let state = state.ok_or_else(|| unknown(volume))?;
        let extent = state.extent(index).ok_or_else(|| {
            Error::corrupt(format!("the journal moves extent {index} of volume {volume}, which is not there"))
        })?;
        if extent.group.was_missed() {
            // It can be read where it lies now, but not without what was in the buffer then.
            return Err(Error::device(format!(
                "extent {index} of volume {volume} moved off disks that are away or failed, and what was written to it before \
                 cannot be told without them: bring one of them back"
            )));
        }
        extent.group.found_at(places);
        Ok(())
    }

    fn replay_give_up_all(&self, volume: &VolumeState, lsn: Lsn) {
        for extents in volume.take_groups() {
            self.replay_give_up(extents, lsn);
        }
    }

    /// Extents that the log gives up keep their space until the tail has passed that.
    fn replay_give_up(&self, extents: Vec<Rc<Extent>>, lsn: Lsn) {
        if !extents.is_empty() {
            self.give_up_group(extents, Lsn(lsn.0 + 1));
        }
    }

    /// Ends recovery: the log goes on in a new epoch, disks that are away are out of service, and what is held is told
    /// to the others.
    async fn begin(self: &Rc<Self>, resync: Resync) -> Result<()> {
        let members = self.array.members();
        let away: Vec<_> = members.iter().filter(|member| !member.works() && !member.is_gone()).collect();
        for member in away.iter().filter(|member| self.has_journal_beside(member.id)) {
            self.drop_journal_on(member.id);
        }
        self.journal().begin().await?;
        self.changes.want_whole();
        self.encode_tables();
        // Only now: nothing is written to the disks before it is sure that the log may be used, and is durable.
        self.resync(resync).await?;
        for member in away {
            self.fail_disk(member.id).await?;
        }
        self.load_families().await?;
        self.tell().await
    }

    async fn tell(&self) -> Result<()> {
        let mut held: BTreeMap<DeviceId, Vec<kura_block::ExtentId>> = BTreeMap::new();
        let mut names = Vec::new();
        for volume in self.tables.borrow().volumes.values() {
            if !volume.is_hidden() {
                names.push(volume.spec.borrow().name.clone());
            }
            for Place { device, extent } in volume.groups().iter().flat_map(|extent| extent.group.places()) {
                held.entry(device).or_default().push(extent);
            }
        }
        for Place { device, extent } in
            self.freed.borrow().iter().flat_map(|freed| freed.places.clone()).chain(self.hot.places())
        {
            held.entry(device).or_default().push(extent);
        }
        for Place { device, extent } in self.fast_places_held() {
            held.entry(device).or_default().push(extent);
        }
        for (device, extents) in held {
            self.share.adopt(None, device, extents).await?;
        }
        for name in names {
            self.share.names().await?.take(&name).await?;
        }
        Ok(())
    }
}

pub(crate) fn unknown(volume: u64) -> Error {
    Error::corrupt(format!("the journal speaks of volume {volume}, which does not exist"))
}

/// A record of a volume that is gone: fine when the tables know, damage otherwise.
fn missing(volume: u64, known: bool) -> Result<()> {
    if known { Ok(()) } else { Err(unknown(volume)) }
}
