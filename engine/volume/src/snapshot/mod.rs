//! Snapshots: volumes that share versions of blocks.
//!
//! ```text
//!   write to a PVOL ── its newest snapshot sees what is there? ── no ──> in place
//!                                        │ yes
//!                     redirect: into a slot of the PoolVOL; the old version stays where it is
//!                     copy:     the old version into a slot; then in place
//! ```
//!
//! A PoolVOL is a volume like any other, so a write to a slot is a write of that volume, through the journal, with its
//! layout's redundancy; what a slot is comes in a record right behind it.
//!
//! What must hold:
//! 1. A slot's data precedes, in the log, the record that says whose it is: no replay finds a version without its data.
//! 2. A slot whose version is superseded is given up by a record, before the version that superseded it may be.
//! 3. A page of a pool table is in the log before the tail passes a record that it reflects.
//! 4. What a slot held is read by nobody once the record that gives it up is appended: readers look again when they come
//!    back from a disk.
//! 5. A home place is written only while no snapshot sees what it has.
//! 6. What is listed at home is older than every hole of its group; the newest slot of those older than it says when it was
//!    born, and no other one does.

mod change;
mod clear;
mod diff;
mod drop;
mod locate;
mod lost;
mod make;
mod order;
mod pages;
mod record;
mod rollback;
mod stops;
mod tidy;

pub(crate) use change::Change;
pub use diff::Changes;
pub(crate) use drop::Drops;
pub use drop::{Droppable, Others};
pub(crate) use locate::Place;
pub use make::{Held as HeldWrites, SnapshotSpec, SvolStatus};
use order::Look;
pub(crate) use pages::Replayed as ReplayedEntries;
pub(crate) use record::VersionRecord;
pub use stops::Stops;
pub(crate) use tidy::{Many, Tidy, Tidying};

use crate::tables::{Tables, VolumeState};
use kura_block::{Error, Reader, Result, Writer};
use kura_snapshot::{Entry, Epoch, Key, Location, Pair, PairTable, PoolTable, Pvol, Rolled, Slot, Svol};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Runs that one answer about a range lists.
pub(crate) const RUNS_LIMIT: usize = 4096;

/// Blocks of a volume at most: every block is below.
pub(crate) const BLOCKS_LIMIT: u64 = 1 << 38;

/// How what a snapshot sees is saved from a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Saving {
    /// The old version is copied to the PoolVOL, as in the paper.
    Copy,
    /// The new version goes to the PoolVOL.
    #[default]
    Redirect,
}

/// What happens when a write finds the pool full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused, and snapshots stay.
    #[default]
    Refuse,
    /// The oldest snapshot goes that nobody has open, nothing is made of and nobody spares, and then the next, until there is room.
    DropOldest,
}

/// What a family shares: one PVOL, or those whose first snapshots were made at one instant, with their snapshots and theirs.
pub(crate) struct PoolVol {
    /// The hidden volume of slots.
    pub volume: Rc<VolumeState>,
    /// Whose each slot is.
    pub table: RefCell<PoolTable>,
    /// Whether pages of the table have no place, and with how many disks failed and extents mapped that was found.
    doomed: Cell<((usize, u32), bool)>,
}

impl PoolVol {
    /// The family of a PoolVOL, whose table is yet to be read.
    pub fn new(volume: Rc<VolumeState>) -> Rc<Self> {
        Rc::new(Self { volume, table: RefCell::default(), doomed: Cell::default() })
    }

    /// The entry by which the slot that says what home has, which is this version, says so no more; if one does.
    fn silence(&self, pvol: &Pvol, at_home: Key) -> Option<(Slot, Option<Entry>)> {
        let (_, slot) = pvol.older_slot(at_home.block(), at_home.birth())?;
        let says = self.table.borrow().get(slot).filter(|entry| entry.home > Epoch::FIRST)?;
        Some((slot, Some(Entry { home: Epoch::FIRST, ..says })))
    }
}

/// A volume that has snapshots, or is one.
pub(crate) struct Branch {
    pub pool_vol: Rc<PoolVol>,
    /// The volume it was made of, and its number there.
    pub parent: Option<(Rc<VolumeState>, Epoch)>,
    pub pvol: RefCell<Pvol>,
    /// The look for blocks that are to be put in order.
    disorder: Look,
    /// The look for those of them whose homes no snapshot sees: bringing them there frees their slots.
    free_homes: Look,
    /// How far a roll-back is, if there is one.
    rolling: Rolling,
}

/// How far a roll-back is. Nothing of it is kept: after a start it looks at everything again.
#[derive(Default)]
struct Rolling {
    /// The block where it goes on giving up what it has superseded.
    over: Cell<u64>,
    /// The block where it goes on, after that, writing what differs.
    back: Cell<u64>,
    /// Why the last try to go on with it failed, if it did.
    waits: RefCell<Option<Error>>,
}

impl Branch {
    pub fn new(pool_vol: Rc<PoolVol>, parent: Option<(Rc<VolumeState>, Epoch)>) -> Rc<Self> {
        Self::of(pool_vol, parent, Pvol::default())
    }

    fn of(pool_vol: Rc<PoolVol>, parent: Option<(Rc<VolumeState>, Epoch)>, pvol: Pvol) -> Rc<Self> {
        let (disorder, free_homes, rolling) = (Look::default(), Look::default(), Rolling::default());
        Rc::new(Self { pool_vol, parent, pvol: RefCell::new(pvol), disorder, free_homes, rolling })
    }

    /// Writes what the tables have of it.
    pub fn encode(branch: Option<&Self>, out: &mut Writer) {
        let Some(branch) = branch else {
            out.u8(0);
            return;
        };
        let (pvol, epoch) = branch.parent.as_ref().map_or((0, Epoch::FIRST), |(pvol, epoch)| (pvol.id, *epoch));
        let versions = branch.pvol.borrow();
        out.u8(1).u64(branch.pool_vol.volume.id).u64(pvol).u32(epoch.0).u32(versions.pairs.last_given());
        let rolled = versions.rolled.unwrap_or(Rolled { svol: 0, since: Epoch::FIRST });
        out.u64(rolled.svol).u32(rolled.since.0).u32(versions.pairs.live().len() as u32);
        for (epoch, pair) in versions.pairs.live() {
            out.u32(epoch.0).u64(pair.svol).u64(pair.lsn).u64(pair.made_unix_s);
        }
        out.u32(versions.index.holes().len() as u32);
        for (group, birth) in versions.index.holes() {
            out.u32(group).u32(birth.0);
        }
    }
}

/// A branch as the tables have it.
pub(crate) struct BranchFacts {
    pool: u64,
    parent: Option<Svol>,
    pvol: Pvol,
}

impl BranchFacts {
    /// True where some of the volume lies in extents of its own, not all in slots.
    pub fn has_home(&self) -> bool {
        self.parent.is_none()
    }

    pub fn decode(reader: &mut Reader<'_>) -> Result<Option<Self>> {
        if reader.u8()? == 0 {
            return Ok(None);
        }
        let (pool, parent) = (reader.u64()?, Svol { pvol: reader.u64()?, epoch: Epoch(reader.u32()?) });
        let last = reader.u32()?;
        let rolled = Rolled { svol: reader.u64()?, since: Epoch(reader.u32()?) };
        let mut live = Vec::new();
        for _ in 0..reader.u32()? {
            let epoch = Epoch(reader.u32()?);
            live.push((epoch, Pair { svol: reader.u64()?, lsn: reader.u64()?, made_unix_s: reader.u64()? }));
        }
        let rolled = Some(rolled).filter(|rolled| rolled.svol != 0);
        let mut pvol = Pvol { pairs: PairTable::restore(last, live), rolled, ..Pvol::default() };
        for _ in 0..reader.u32()? {
            pvol.index.dig(reader.u32()?, Epoch(reader.u32()?));
        }
        Ok(Some(Self { pool, parent: Some(parent).filter(|parent| parent.pvol != 0), pvol }))
    }
}

impl Tables {
    /// Joins a volume to its family, as the tables have it.
    pub fn join(&mut self, volume: u64, facts: BranchFacts) -> Result<()> {
        let BranchFacts { pool, parent, pvol } = facts;
        let pool_vol = self.pool_vol(pool)?;
        let parent = parent.map(|Svol { pvol, epoch }| Ok((self.known(pvol)?, epoch))).transpose()?;
        let state = self.known(volume)?;
        if pvol.rolled.is_some() {
            self.rolling.insert(volume);
        }
        state.branch.replace(Some(Branch::of(pool_vol, parent, pvol)));
        Ok(())
    }

    fn known(&self, volume: u64) -> Result<Rc<VolumeState>> {
        let found = self.volumes.get(&volume).cloned();
        found.ok_or_else(|| Error::corrupt(format!("the tables speak of volume {volume}, which does not exist")))
    }

    /// The family of a PoolVOL.
    pub fn pool_vol(&self, pool: u64) -> Result<Rc<PoolVol>> {
        let of_pool = |branch: &Rc<Branch>| branch.pool_vol.volume.id == pool;
        let mut branches = self.volumes.values().filter_map(|volume| volume.branch());
        if let Some(branch) = branches.find(of_pool) {
            return Ok(Rc::clone(&branch.pool_vol));
        }
        Ok(PoolVol::new(self.known(pool)?))
    }

    /// Every slot's version is listed by the volume that owns it, every listed version has its slot, and what a slot says that
    /// home has is there.
    pub fn check_versions(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for pool_vol in self.families() {
            let table = pool_vol.table.borrow();
            let pool = pool_vol.volume.spec.borrow().name.clone();
            let mut members = BTreeMap::new();
            let mut listed = 0;
            for volume in self.volumes.values() {
                let Some(branch) = volume.branch().filter(|branch| Rc::ptr_eq(&branch.pool_vol, &pool_vol)) else {
                    continue;
                };
                let name = volume.spec.borrow().name.clone();
                for (key, at) in branch.pvol.borrow().index.listed(0, BLOCKS_LIMIT) {
                    let Location::Slot(slot) = at else { continue };
                    listed += 1;
                    let entry = table.get(slot);
                    if entry.is_none_or(|entry| entry.owner != volume.number() || entry.key != key) {
                        violations.push(format!(
                            "volume {name} block {} born {}: slot {} of {pool} is {entry:?}",
                            key.block(),
                            key.birth().0,
                            slot.0
                        ));
                    }
                }
                if let Some((parent, epoch)) = &branch.parent {
                    let pair = parent.branch().and_then(|branch| branch.pvol.borrow().pairs.get(*epoch));
                    if pair.is_none_or(|pair| pair.svol != volume.id) {
                        violations.push(format!("volume {name}: its volume does not know it: {pair:?}"));
                    }
                }
                members.insert(volume.number(), branch);
            }
            if listed > table.owned() {
                violations.push(format!("{pool}: {listed} versions in {} slots", table.owned()));
            }
            for (slot, entry) in table.entries().filter(|(_, entry)| entry.home > Epoch::FIRST) {
                let Some(branch) = members.get(&entry.owner) else { continue };
                let at = branch.pvol.borrow().index.get(Key::new(entry.key.block(), entry.home));
                if at != Some(Location::Home) {
                    violations.push(format!("{pool} slot {}: {entry:?} says what home has, which is {at:?}", slot.0));
                }
            }
        }
        violations
    }

    /// All families, by PoolVOL.
    pub fn families(&self) -> Vec<Rc<PoolVol>> {
        let mut families: Vec<Rc<PoolVol>> = self
            .volumes
            .values()
            .filter_map(|volume| volume.branch())
            .map(|branch| Rc::clone(&branch.pool_vol))
            .collect();
        families.sort_by_key(|pool_vol| pool_vol.volume.id);
        families.dedup_by_key(|pool_vol| pool_vol.volume.id);
        families
    }
}
