//! Making snapshots, looking at them, and deleting them.

use super::{Branch, PoolVol};
use crate::checkpoint::TABLES_FOR_VOLUMES;
use crate::record::{Record, Spec};
use crate::snapshot::VersionRecord;
use crate::snapshot::record::Snapshot;
use crate::snapshot::{Stops, Tidying};
use crate::status::VolumeStatus;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_array::hot::Owner;
use kura_block::{Error, Result};
use kura_journal::Lsn;
use kura_snapshot::{Epoch, Pair, Svol};
use std::rc::Rc;
use std::time::Duration;

/// A snapshot to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSpec {
    /// The volume, or snapshot, it is made of.
    pub of: String,
    /// Its own name.
    pub name: String,
    /// True refuses writes to it.
    pub read_only: bool,
}

/// What a snapshot or clone is besides a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SvolStatus {
    /// The volume it was made of.
    pub pvol: String,
    /// Its number among that one's snapshots.
    pub epoch: u32,
    /// When it was made: seconds since 1970.
    pub made_unix_s: u64,
    /// Bytes that are given back when it is deleted, as far as that is known without a look at every block.
    pub unique_bytes: u64,
}

/// What a snapshot takes of the tables at most, besides its name, and as much again the PoolVOL that a first one has.
const TABLE_BYTES: usize = 256;
/// The longest name of a snapshot with its volume's, in bytes.
const NAME_BYTES: usize = 255;

impl SnapshotSpec {
    /// Refuses names that cannot be.
    fn check(&self) -> Result<()> {
        let name = &self.name;
        let bad = |letter: char| letter.is_control() || letter == '/';
        if name.len() > NAME_BYTES || name.split('@').any(|part| part.is_empty() || part.contains(bad)) {
            return Err(Error::invalid(format!(
                "snapshot name {name:?}: give VOLUME@NAME, or a name of its own for a clone, of 1 to 255 bytes without / \
                 and control characters"
            )));
        }
        Ok(())
    }
}

impl Store {
    /// Makes snapshots of volumes at one instant, each with a name of its own; durable after the next [`Store::flush`]. No I/O
    /// waits for a disk, and it takes as long for a large volume as for a small one.
    pub async fn snapshot(&self, wanted: &[SnapshotSpec], made_unix_s: u64) -> Result<Vec<VolumeStatus>> {
        let inner = &self.inner;
        for (number, spec) in wanted.iter().enumerate() {
            spec.check()?;
            inner.find(&spec.of)?;
            if wanted[..number].iter().any(|other| other.name == spec.name) {
                return Err(Error::invalid(format!(
                    "snapshot {}: named twice: give each a name of its own",
                    spec.name
                )));
            }
        }
        let mut named = 0;
        let tables_bytes = |spec: &SnapshotSpec| 2 * (TABLE_BYTES + spec.name.len()) as u64;
        inner.room_in_tables(wanted.iter().map(tables_bytes).sum(), TABLES_FOR_VOLUMES)?;
        inner.room_in_journal().await?;
        let mut made = Ok(());
        for spec in wanted {
            made = inner.share.names().await?.take(&spec.name).await;
            if made.is_err() {
                break;
            }
            named += 1;
        }
        let made = made.and_then(|()| inner.make_counted(wanted, made_unix_s));
        if made.is_err() {
            for spec in &wanted[..named] {
                inner.share.names().await?.release(&spec.name).await?;
            }
        }
        Ok(made?.iter().map(|svol| inner.status_of(svol)).collect())
    }
}

impl Store {
    /// Waits until the journal takes snapshots.
    pub async fn room_for_snapshots(&self) -> Result<()> {
        self.inner.room_in_journal().await
    }

    /// True when making snapshots waits for no room in the journal.
    pub fn has_room_for_snapshots(&self) -> bool {
        self.inner.journal_has_room(0)
    }

    /// How long writes stood still while snapshots were made.
    pub fn snapshot_stops(&self) -> Stops {
        self.inner.stops.get()
    }

    /// A volume or snapshot by name, also one that is being made: quick however many there are.
    pub fn status_by_name(&self, name: &str) -> Result<VolumeStatus> {
        let volume = self.inner.known(name)?;
        Ok(self.inner.status_of(&volume))
    }
}

/// Volumes whose writes wait until this is dropped.
pub struct Held {
    store: Store,
    volumes: Vec<Rc<VolumeState>>,
    since: Duration,
}

impl Held {
    /// Lets the writes go on when snapshots were made meanwhile, and counts how long they waited.
    pub fn made(self) {
        let inner = &self.store.inner;
        let waited = inner.runtime.now().saturating_sub(self.since);
        inner.count_stop(|stops| stops.add(waited));
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for volume in &self.volumes {
            volume.held.set(false);
        }
        self.store.inner.room.notify_waiters();
    }
}

impl Store {
    /// Makes writes of volumes wait until the answer is dropped: for snapshots of one instant with other controllers'.
    pub fn hold(&self, names: &[String]) -> Result<Held> {
        let mut held = Held { store: self.clone(), volumes: Vec::new(), since: self.inner.runtime.now() };
        for name in names {
            let volume = self.inner.find(name)?;
            if volume.held.replace(true) {
                return Err(Error::busy(format!("volume {name}: another snapshot is just being made of it")));
            }
            held.volumes.push(volume);
        }
        Ok(held)
    }
}

impl Inner {
    /// Waits until the writes of a volume may go on.
    pub async fn released(&self, volume: &VolumeState) {
        loop {
            let room = self.room.notified();
            if !volume.held.get() {
                return;
            }
            room.await;
        }
    }

    /// Makes snapshots, and counts what their volumes' I/O waits for. Where it was held before, that counts instead.
    fn make_counted(&self, wanted: &[SnapshotSpec], made_unix_s: u64) -> Result<Vec<Rc<VolumeState>>> {
        let (begun, first) = (self.runtime.now(), self.journal().next_lsn());
        let made = self.make_snapshots(wanted, made_unix_s)?;
        let stop = self.runtime.now().saturating_sub(begun);
        let held = wanted.iter().any(|spec| self.find(&spec.of).is_ok_and(|pvol| pvol.held.get()));
        self.count_stop(|stops| {
            stops.records += self.journal().next_lsn().0 - first.0;
            if !held {
                stops.add(stop);
            }
        });
        Ok(made)
    }

    fn count_stop(&self, count: impl FnOnce(&mut Stops)) {
        let mut stops = self.stops.get();
        count(&mut stops);
        self.stops.set(stops);
    }

    /// Makes all of them, or none, between two records of the log. A crash before these are durable may leave the first ones.
    fn make_snapshots(&self, wanted: &[SnapshotSpec], made_unix_s: u64) -> Result<Vec<Rc<VolumeState>>> {
        let pvols: Vec<_> = wanted.iter().map(|spec| self.find(&spec.of)).collect::<Result<_>>()?;
        for pvol in &pvols {
            self.ready(pvol)?;
            Self::refuse_rolling(pvol)?;
            if let Some(branch) = pvol.branch() {
                self.refuse_doomed(pvol, &branch.pool_vol)?;
            }
            Self::epochs_left(pvol)?;
        }
        // A snapshot's, and that of the PoolVOL which a first one may need.
        self.numbers_left(2 * wanted.len())?;
        let mut founded = Vec::new();
        let make = |(pvol, spec): (&Rc<VolumeState>, &SnapshotSpec)| {
            let branch = pvol.branch().unwrap_or_else(|| {
                let branch = Self::join_family(pvol, &founded).unwrap_or_else(|| self.found_family(pvol));
                founded.push(Rc::clone(pvol));
                branch
            });
            self.make_snapshot(pvol, &branch, spec, made_unix_s)
        };
        Ok(pvols.iter().zip(wanted).map(make).collect())
    }

    /// Volumes whose first snapshots are of one instant share a PoolVOL, where they lie on the disks in one way.
    ///
    /// A slot is known by its owner's number. Volumes that come from different controllers may have the same one; what is made
    /// of them later has numbers of its own. Nor may the number be that of a member that is gone: it may have slots yet.
    fn join_family(pvol: &VolumeState, founded: &[Rc<VolumeState>]) -> Option<Rc<Branch>> {
        if founded.iter().any(|other| other.number() == pvol.number()) {
            return None;
        }
        let layout = pvol.spec.borrow().layout;
        let fits = |pool: &VolumeState| pool.shape == pvol.shape && pool.spec.borrow().layout == layout;
        let found = founded.iter().filter_map(|other| other.branch()).find(|branch| fits(&branch.pool_vol.volume))?;
        let branch = Branch::new(Rc::clone(&found.pool_vol), None);
        pvol.branch.replace(Some(Rc::clone(&branch)));
        Some(branch)
    }

    fn make_snapshot(
        &self,
        pvol: &Rc<VolumeState>,
        branch: &Branch,
        wanted: &SnapshotSpec,
        made_unix_s: u64,
    ) -> Rc<VolumeState> {
        let spec =
            Spec { name: wanted.name.clone(), thick: false, read_only: wanted.read_only, ..pvol.spec.borrow().clone() };
        let of = Svol { pvol: pvol.id, epoch: branch.pvol.borrow().pairs.next() };
        let svol = self.next_volume_id();
        let pool = branch.pool_vol.volume.id;
        let record = Snapshot { svol, of, made_unix_s, pool, spec };
        let lsn = self.append(&Record::Versions(VersionRecord::Snapshot(record.clone())));
        self.put_snapshot(pvol, branch, record, lsn)
    }

    /// Puts a snapshot into the tables.
    fn put_snapshot(&self, pvol: &Rc<VolumeState>, branch: &Branch, made: Snapshot, lsn: Lsn) -> Rc<VolumeState> {
        let Snapshot { svol: id, of, made_unix_s, spec, .. } = made;
        let svol = Rc::new(VolumeState::unmapped(id, spec, pvol.shape));
        let parent = Some((Rc::clone(pvol), of.epoch));
        svol.branch.replace(Some(Branch::new(Rc::clone(&branch.pool_vol), parent)));
        branch.pvol.borrow_mut().pairs.add(of.epoch, Pair { svol: id, lsn: lsn.0, made_unix_s });
        let tables = &mut *self.tables.borrow_mut();
        tables.next_volume = tables.next_volume.max(id >> 16);
        tables.volumes.insert(id, Rc::clone(&svol));
        svol
    }

    /// Makes the PoolVOL of a volume that gets its first snapshot.
    fn found_family(&self, pvol: &Rc<VolumeState>) -> Rc<Branch> {
        let id = self.next_volume_id();
        let spec = Spec {
            name: Spec::pool_name(pvol.id),
            size_bytes: Self::bytes_of(self.group_blocks(pvol)),
            layout: pvol.spec.borrow().layout,
            thick: false,
            read_only: false,
        };
        self.append(&Record::Create { volume: id, spec: spec.clone(), shape: pvol.shape });
        let pool = Rc::new(VolumeState::new(id, spec, pvol.shape, self.array.extent_bytes()));
        self.tables.borrow_mut().volumes.insert(id, Rc::clone(&pool));
        let branch = Branch::new(PoolVol::new(pool), None);
        pvol.branch.replace(Some(Rc::clone(&branch)));
        branch
    }

    /// Refuses another snapshot, or a roll-back, of a volume that has had as many as can be numbered.
    pub fn epochs_left(pvol: &VolumeState) -> Result<()> {
        if pvol.branch().is_none_or(|branch| branch.pvol.borrow().pairs.last_given() + 1 < Epoch::NOW.0) {
            return Ok(());
        }
        let name = pvol.spec.borrow().name.clone();
        Err(Error::full(format!("volume {name}: had 67 million snapshots: copy it to a new volume")))
    }

    /// Refuses so many more numbers of volumes and snapshots where the hot area could not name them.
    pub fn numbers_left(&self, wanted: usize) -> Result<()> {
        if self.tables.borrow().next_volume + wanted as u64 <= Owner::NUMBERS_LIMIT {
            return Ok(());
        }
        Err(Error::full(format!(
            "controller {} has made 67 million volumes and snapshots: copy its volumes to a new pool",
            self.id.0
        )))
    }

    /// The number of a new volume, for which [`Inner::numbers_left`] said that there is one.
    pub fn next_volume_id(&self) -> u64 {
        let mut tables = self.tables.borrow_mut();
        tables.next_volume += 1;
        tables.next_volume << 16 | u64::from(self.id.0)
    }

    /// Replays what happened to versions.
    pub fn replay_versions(&self, change: VersionRecord, lsn: Lsn, known: bool) -> Result<()> {
        match change {
            VersionRecord::PoolEntries { pool, entries } => {
                self.replayed_entries.borrow_mut().push((lsn, pool, entries));
            }
            _ if known => {}
            VersionRecord::Snapshot(made) => self.replay_snapshot(made, lsn)?,
            VersionRecord::Hole { volume, group, birth } => self.replay_hole(volume, group, Some(birth)),
            VersionRecord::NoHoles { volume, group } => self.replay_hole(volume, group, None),
            VersionRecord::RollBack { volume, rolled } => self.replay_roll_back(volume, Some(rolled)),
            VersionRecord::RolledBack { volume } => self.replay_roll_back(volume, None),
            VersionRecord::Left { svol } => self.hide(svol),
        }
        Ok(())
    }

    /// Replays that a snapshot was made.
    fn replay_snapshot(&self, made: Snapshot, lsn: Lsn) -> Result<()> {
        let unknown =
            |volume: u64| Error::corrupt(format!("the journal speaks of volume {volume}, which does not exist"));
        let found = |volume: u64| self.tables.borrow().volumes.get(&volume).cloned().ok_or_else(|| unknown(volume));
        let pvol = found(made.of.pvol)?;
        let branch = match pvol.branch() {
            Some(branch) => branch,
            None => Branch::new(self.tables.borrow().pool_vol(made.pool)?, None),
        };
        pvol.branch.replace(Some(Rc::clone(&branch)));
        self.put_snapshot(&pvol, &branch, made, lsn);
        Ok(())
    }

    /// Replays that a group of a volume reads as zeroes since `birth`, or has no holes any more.
    fn replay_hole(&self, volume: u64, group: u32, birth: Option<Epoch>) {
        let state = self.tables.borrow().volumes.get(&volume).cloned();
        let Some(branch) = state.and_then(|state| state.branch()) else { return };
        let pvol = &mut *branch.pvol.borrow_mut();
        match birth {
            Some(birth) => {
                // It may have a number of its own.
                pvol.pairs.skip(birth);
                pvol.open_hole(group, birth);
            }
            None => pvol.index.fill(group),
        }
    }

    /// A volume is gone: what it had in common with others is theirs, or nobody's.
    pub fn leave_family(&self, volume: &Rc<VolumeState>) {
        let Some(branch) = volume.branch.take() else { return };
        let is_kin =
            |one: &Rc<VolumeState>| one.branch().is_some_and(|one| Rc::ptr_eq(&one.pool_vol, &branch.pool_vol));
        if branch.parent.is_none() && !self.tables.borrow().volumes.values().any(is_kin) {
            self.dirty_pool_pages
                .set(self.dirty_pool_pages.get().saturating_sub(branch.pool_vol.table.borrow().dirty().len() as u64));
            self.remove(&branch.pool_vol.volume);
            return;
        }
        if let Some((parent, epoch)) = &branch.parent
            && let Some(pvol) = parent.branch()
        {
            let keys = pvol.pvol.borrow_mut().pairs.remove(*epoch);
            // A roll-back may give up what only this one saw.
            pvol.rolling.over.set(0);
            self.tidy.add(Tidying::Versions { volume: Rc::clone(parent), keys: Box::new(keys.into_iter()) });
            self.tidy.add(Tidying::holes(parent));
        }
        let slots = Box::new(branch.pvol.take().index.into_slots());
        self.tidy.add(Tidying::Slots { pool_vol: Rc::clone(&branch.pool_vol), slots });
    }

    /// Replays that a volume is gone; what nobody sees any more is found when the pool tables are read.
    pub fn replay_leave_family(&self, volume: &VolumeState) {
        let tables = self.tables.borrow();
        match volume.branch.take() {
            Some(branch) => {
                if let Some((parent, epoch)) = &branch.parent
                    && let Some(pvol) = parent.branch()
                {
                    pvol.pvol.borrow_mut().pairs.remove(*epoch);
                }
            }
            None if volume.is_pool() => {
                let members = tables
                    .volumes
                    .values()
                    .filter(|member| member.branch().is_some_and(|branch| branch.pool_vol.volume.id == volume.id));
                for member in members {
                    member.branch.replace(None);
                }
            }
            None => {}
        }
    }

    /// The snapshots and clones that are made of a volume, oldest first; not one that is left to a roll-back.
    pub fn children(&self, volume: &VolumeState) -> Vec<Rc<VolumeState>> {
        let Some(branch) = volume.branch() else { return Vec::new() };
        let (pvol, tables) = (branch.pvol.borrow(), self.tables.borrow());
        let live = pvol.pairs.live().filter_map(|(_, pair)| tables.volumes.get(&pair.svol));
        live.filter(|svol| !svol.is_hidden()).cloned().collect()
    }

    /// How many [`Inner::children`] there are.
    pub fn count_children(&self, volume: &VolumeState) -> usize {
        let pairs = volume.branch().map_or(0, |branch| branch.pvol.borrow().pairs.live().len());
        pairs.saturating_sub(usize::from(self.left_to(volume).is_some()))
    }

    /// Refuses to delete a volume that others are made of.
    pub fn check_childless(&self, volume: &VolumeState) -> Result<()> {
        let count = self.count_children(volume);
        if count == 0 {
            return Ok(());
        }
        let children = self.children(volume);
        let Some(newest) = children.last() else { return Ok(()) };
        let (name, child) = (&volume.spec.borrow().name, &newest.spec.borrow().name);
        Err(Error::invalid(format!(
            "volume {name}: {count} snapshots or clones are made of it ({child} is the newest): delete them first"
        )))
    }

    /// What a snapshot or clone is besides a volume.
    pub fn svol_status(volume: &VolumeState) -> Option<SvolStatus> {
        let branch = volume.branch()?;
        let (parent, epoch) = branch.parent.clone()?;
        let of = parent.branch()?;
        let pvol = of.pvol.borrow();
        let pair = pvol.pairs.get(epoch)?;
        let own = branch.pvol.borrow().index.slots() as u64;
        // Held by this one, and born since the one before it.
        let before = pvol.pairs.sees(Epoch::FIRST, Epoch(epoch.0 - 1)).unwrap_or_default();
        let unique_bytes = Self::bytes_of(own + pvol.pairs.held_since(epoch, before));
        let pvol = parent.spec.borrow().name.clone();
        Some(SvolStatus { pvol, epoch: epoch.0, made_unix_s: pair.made_unix_s, unique_bytes })
    }
}
