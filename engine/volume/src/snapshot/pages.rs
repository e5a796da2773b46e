//! The pages of pool tables: into the log before a checkpoint, and read again after a restart.

use super::tidy::Tidying;
use super::{Branch, PoolVol};
use crate::extent::{Extent, Pins};
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::{StreamExt, stream};
use kura_block::{BLOCK_BYTES_U64, Buf, Bufs, Checksum, Error, Kind, Result};
use kura_journal::Lsn;
use kura_snapshot::{Entry, Epoch, Key, Location, PoolTable, Slot, Verdict};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Entries of slots that the log has, with the records they came in.
pub(crate) type Replayed = Vec<Told>;

/// A record's LSN, its PoolVOL, and what it says of slots.
type Told = (Lsn, u64, Vec<(Slot, Option<Entry>)>);

/// Extents of a PoolVOL whose pages are read at once.
const WIDTH: usize = 16;
/// Bytes of the journal that a page takes, with its record.
const PAGE_COST: u64 = BLOCK_BYTES_U64 + 128;

impl Inner {
    /// Puts the pages of pool tables that have changed into the log, as writes of their PoolVOLs, and returns where the log
    /// ends then: a checkpoint may move the tail there.
    pub async fn write_pool_pages(&self) -> Result<Lsn> {
        loop {
            self.journal().alive()?;
            let families = self.tables.borrow().families();
            // One without a place is given up on its way there, as all else is, and is known to be lost from then on: not what it was before.
            // Where nobody knows what its extent has, it is lost anyway.
            let is_known = |extent: &Rc<Extent>| extent.is_loaded() || self.keeps_page(extent);
            let dirty: Vec<_> = families
                .iter()
                .flat_map(|pool_vol| {
                    pool_vol.table.borrow().dirty().map(|page| (Rc::clone(pool_vol), page)).collect::<Vec<_>>()
                })
                .filter(|(pool_vol, page)| self.pool_extent(&pool_vol.volume, *page).as_ref().is_none_or(is_known))
                .collect();
            let extents: Vec<Rc<Extent>> =
                dirty.iter().filter_map(|(pool_vol, page)| self.pool_extent(&pool_vol.volume, *page)).collect();
            let pins = Pins::of(&extents);
            if let Some(unloaded) = pins.extents().iter().find(|extent| !extent.is_loaded()) {
                self.load(unloaded).await?;
                continue;
            }
            self.check_pages_fit(dirty.len() as u64)?;
            for (pool_vol, page) in &dirty {
                let stamp = self.journal().next_lsn().0;
                let bytes = Buf::copy_of(&pool_vol.table.borrow().encode(*page, stamp));
                let checksum = Checksum::of(&bytes);
                self.put_blocks(&pool_vol.volume, *page, &Bufs::from(bytes), &[checksum]);
            }
            for pool_vol in &families {
                pool_vol.table.borrow_mut().clean();
            }
            self.dirty_pool_pages.set(0);
            return Ok(self.journal().next_lsn());
        }
    }

    /// Refuses to append more pages than the journal takes: it could not be written, nor its tail move, and all would wait.
    fn check_pages_fit(&self, pages: u64) -> Result<()> {
        if pages == 0 || self.journal().fits(pages * PAGE_COST) {
            return Ok(());
        }
        Err(Error::full(format!(
            "the journal has no room for {pages} pages of pool tables, and grows shorter by nothing else"
        )))
    }

    fn pool_extent(&self, volume: &VolumeState, block: u64) -> Option<Rc<Extent>> {
        volume.extent(self.index_of(block))
    }

    /// Reads all pool tables, brings them up to what the log has, and lists the versions they speak of.
    pub async fn load_families(self: &Rc<Self>) -> Result<()> {
        let replayed = self.replayed_entries.take();
        self.remove_left();
        let families = self.tables.borrow().families();
        let pools: Vec<_> = self.tables.borrow().volumes.values().filter(|volume| volume.is_pool()).cloned().collect();
        for pool in pools {
            // The power went between two records.
            if !families.iter().any(|pool_vol| Rc::ptr_eq(&pool_vol.volume, &pool)) {
                self.remove(&pool);
            }
        }
        for pool_vol in families {
            self.load_family(&pool_vol, &replayed).await?;
        }
        Ok(())
    }

    /// Reads a pool table, brings it up to what the log has, and lists the versions it speaks of.
    pub async fn load_family(self: &Rc<Self>, pool_vol: &Rc<PoolVol>, replayed: &[Told]) -> Result<()> {
        if pool_vol.is_lost() {
            self.forget_lost(&pool_vol.volume);
            return Ok(());
        }
        let Some(stamps) = self.load_table(pool_vol).await? else {
            self.lose_family(pool_vol);
            return Ok(());
        };
        for (lsn, pool, entries) in replayed.iter().filter(|(_, pool, _)| *pool == pool_vol.volume.id) {
            debug_assert_eq!(*pool, pool_vol.volume.id);
            let newer = |slot: Slot| stamps.get(&slot.page()).is_none_or(|stamp| *stamp <= lsn.0);
            let mut table = pool_vol.table.borrow_mut();
            for (slot, entry) in entries.iter().filter(|(slot, _)| newer(*slot)) {
                table.put(*slot, *entry);
            }
        }
        // Pages whose places the log gave up speak of nothing.
        let gone = |page: &u64| self.pool_extent(&pool_vol.volume, *page).is_none();
        let gone: Vec<u64> = pool_vol.table.borrow().dirty().filter(gone).collect();
        for page in gone {
            pool_vol.table.borrow_mut().forget(page, page + 1);
        }
        self.list_versions(pool_vol);
        let dirty = self.dirty_pool_pages.get() + pool_vol.table.borrow().dirty().len() as u64;
        self.dirty_pool_pages.set(dirty);
        Ok(())
    }

    /// Reads the pages of a pool table; their stamps, or `None` where some of them are lost with their disks.
    async fn load_table(&self, pool_vol: &PoolVol) -> Result<Option<BTreeMap<u64, u64>>> {
        let mut stamps = BTreeMap::new();
        let pool = &pool_vol.volume;
        let name = || format!("the pool table of volume {}", pool.spec.borrow().name);
        let extents = stream::iter(pool.mapped_from(0));
        let mut read = extents.map(|extent| self.read_pages(pool, extent.owner.index)).buffered(WIDTH);
        while let Some(pages) = read.next().await {
            let Some(pages) = pages.map_err(|error| error.at(name()))? else { return Ok(None) };
            for (page, bytes) in pages {
                let stamp = pool_vol.table.borrow_mut().load(page, &bytes.contiguous());
                stamps.insert(page, stamp.map_err(|error| error.at(name()))?);
            }
        }
        Ok(Some(stamps))
    }

    /// The pages of a pool table in an extent, by block; `None` where one of them is lost with its disks.
    async fn read_pages(&self, pool: &Rc<VolumeState>, index: u32) -> Result<Option<Vec<(u64, Bufs)>>> {
        let blocks = self.array.extent_blocks() as u64;
        let first = u64::from(index) * blocks;
        let mut found = Vec::new();
        for page in (first..first + blocks).filter(|block| PoolTable::is_page(*block)) {
            let mut read = self.read_page(pool, page).await;
            if read.as_ref().is_err_and(|error| error.kind() == Kind::Corrupt) {
                // Much hangs on it.
                read = self.read_page(pool, page).await;
            }
            match read {
                Ok(bytes) => found.extend(bytes.map(|bytes| (page, bytes))),
                Err(error) => return self.unless_lost(pool, page, error).map(|()| None),
            }
        }
        Ok(Some(found))
    }

    /// A page of a pool table, where it was ever written.
    async fn read_page(&self, pool: &Rc<VolumeState>, page: u64) -> Result<Option<Bufs>> {
        if let Some(extent) = self.unloaded(pool, page) {
            self.load(&extent).await?;
        }
        if self.checksum(pool, page).is_none() {
            return Ok(None);
        }
        self.read_blocks(pool, page, page + 1).await.map(Some)
    }

    /// Lists the versions that a pool table speaks of with the volumes that own them. Slots of volumes that are gone are
    /// free soon, and so is what nobody sees: all at once, their pages could be more than the journal takes.
    fn list_versions(self: &Rc<Self>, pool_vol: &Rc<PoolVol>) {
        let members: BTreeMap<u32, Rc<VolumeState>> = {
            let tables = self.tables.borrow();
            let of_family = |volume: &&Rc<VolumeState>| {
                volume.branch().is_some_and(|branch| Rc::ptr_eq(&branch.pool_vol, pool_vol))
            };
            tables.volumes.values().filter(of_family).map(|volume| (volume.number(), Rc::clone(volume))).collect()
        };
        let entries: Vec<_> = pool_vol.table.borrow().entries().collect();
        let mut homes: BTreeMap<(u32, u64), (Epoch, Slot)> = BTreeMap::new();
        let (mut slots, mut highest) = (Vec::new(), 0);
        for (slot, Entry { owner, key, home }) in entries {
            let Some(branch) = members.get(&owner).and_then(|volume| volume.branch()) else {
                slots.push(slot);
                highest = highest.max(u64::from(owner));
                continue;
            };
            branch.pvol.borrow_mut().index.insert(key, Location::Slot(slot));
            if home > Epoch::FIRST {
                let newest = homes.entry((owner, key.block())).or_insert((home, slot));
                *newest = (*newest).max((home, slot));
            }
        }
        for ((owner, block), (birth, slot)) in homes {
            let Some(volume) = members.get(&owner) else { continue };
            let Some(branch) = volume.branch() else { continue };
            let key = Key::new(block, birth);
            let group = (block / self.group_blocks(volume)) as u32;
            let pvol = &mut *branch.pvol.borrow_mut();
            if pvol.index.oldest_hole(group).is_some_and(|hole| hole <= birth) {
                // The power went between the hole and the record that silences the slot.
                let mut table = pool_vol.table.borrow_mut();
                let silent = table.get(slot).map(|entry| Entry { home: Epoch::FIRST, ..entry });
                table.put(slot, silent);
            } else if pvol.index.get(key).is_none() {
                pvol.index.insert(key, Location::Home);
            }
        }
        // Nothing made here has the number of one that is gone, whose slots would be taken for its own.
        let next_volume = self.tables.borrow().next_volume.max(highest);
        self.tables.borrow_mut().next_volume = next_volume;
        if !slots.is_empty() {
            self.tidy.add(Tidying::Slots { pool_vol: Rc::clone(pool_vol), slots: Box::new(slots.into_iter()) });
        }
        for volume in members.into_values() {
            let Some(branch) = volume.branch() else { continue };
            let listed: Vec<Key> =
                branch.pvol.borrow().index.listed(0, super::BLOCKS_LIMIT).map(|(key, _)| key).collect();
            self.tidy.add(Tidying::Versions { volume: Rc::clone(&volume), keys: Box::new(listed.into_iter()) });
            self.tidy.add(Tidying::holes(&volume));
        }
    }

    /// Decides on a version of a volume that may be seen by nobody; what that changes in the pool table, all of which
    /// belongs into one record.
    pub fn judge(&self, volume: &VolumeState, branch: &Branch, key: Key) -> Vec<(Slot, Option<Entry>)> {
        let group = (key.block() / self.group_blocks(volume)) as u32;
        let mut pvol = branch.pvol.borrow_mut();
        let Verdict::Goes(at) = pvol.judge(key, group) else { return Vec::new() };
        let Location::Slot(slot) = at else {
            // What home has counts for nothing.
            return branch.pool_vol.silence(&pvol, key).into_iter().collect();
        };
        let table = branch.pool_vol.table.borrow();
        let older = pvol.older_slot(key.block(), key.birth());
        let says = |home: Epoch| older.and_then(|(_, slot)| Some((slot, Some(Entry { home, ..table.get(slot)? }))));
        // Where this one says what home has, an older one says so from now on; else home is the oldest version there is.
        let home = table.get(slot).map_or(Epoch::FIRST, |entry| entry.home);
        let at_home = Key::new(key.block(), home);
        let tells = home > Epoch::FIRST && pvol.index.get(at_home) == Some(Location::Home);
        let carried = if tells { says(home) } else { None };
        if tells && older.is_none() {
            pvol.index.remove(at_home);
        }
        [(slot, None)].into_iter().chain(carried).collect()
    }
}
