//! Families whose pool table is lost with its disks.
//!
//! Without the table nobody knows which versions of blocks their volumes and snapshots see. None of them is read or written any more,
//! rather than wrongly; they can be deleted. The PoolVOL, which nothing can be found in, is given up: it has no size from then on, in
//! the log and in the tables, and that is how such a family is known.

use super::PoolVol;
use crate::extent::Extent;
use crate::store::Inner;
use crate::tables::VolumeState;
use kura_block::{Error, Kind, Result};
use kura_journal::Lsn;
use kura_snapshot::PoolTable;
use std::ops::Range;

impl PoolVol {
    /// True when the table is lost.
    pub fn is_lost(&self) -> bool {
        self.volume.size_bytes() == 0
    }
}

impl VolumeState {
    /// Refuses work on a volume or snapshot of a family whose table is lost.
    pub(crate) fn check_family(&self) -> Result<()> {
        if !self.is_lost() {
            return Ok(());
        }
        Err(Error::device(format!(
            "volume {}: lost: what tells its blocks from those of its snapshots lay on disks that are out of service: delete it, and \
             restore it from a copy",
            self.spec.borrow().name
        )))
    }

    /// True for a volume or snapshot of a family whose table is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.branch.borrow().as_ref().is_some_and(|branch| branch.pool_vol.is_lost())
    }
}

impl Inner {
    /// Refuses to change a volume or snapshot whose table has pages without a place: it is known as long as this server runs, and the
    /// next one gives the family up, with all that would be acknowledged until then.
    pub(super) fn refuse_doomed(&self, volume: &VolumeState, pool_vol: &PoolVol) -> Result<()> {
        if !self.is_doomed(pool_vol) {
            return Ok(());
        }
        let name = volume.spec.borrow().name.clone();
        Err(Error::device(format!(
            "volume {name}: what tells its blocks from those of its snapshots lay on disks that are out of service: copy it to another \
             volume before the next start, which gives it and its snapshots up"
        )))
    }

    /// True for a family whose table has pages without a place.
    pub(crate) fn is_doomed(&self, pool_vol: &PoolVol) -> bool {
        let failed = self.tables.borrow().failed.len();
        if failed == 0 {
            return false;
        }
        let now = (failed, pool_vol.volume.mapped());
        let (known, was) = pool_vol.doomed.get();
        if known == now {
            return was;
        }
        let doomed = self.lacks_pages(pool_vol);
        pool_vol.doomed.set((now, doomed));
        if doomed && !was {
            tracing::error!(
                pool = pool_vol.volume.spec.borrow().name,
                "what tells a volume's blocks from those of its snapshots is in memory alone: the next start gives them up"
            );
        }
        doomed
    }

    /// Has the pages of pool tables written again that lay in the hot area, or a fast copy, on disks which are out of service by now: they
    /// have another place yet.
    pub fn write_lost_pages_again(&self) {
        for pool_vol in self.tables.borrow().families() {
            let pool = &pool_vol.volume;
            let is_lost = |page: u64| {
                let (index, inside) = self.split(page);
                let Some(extent) = pool.extent(index) else { return false };
                let above = extent.is_older(inside).then(|| extent.fast()).flatten();
                let hot = self.hot.table.borrow();
                let hot = pool.slot(page).and_then(|id| hot.extent(id.born));
                above.is_some_and(|copy| !self.serves(&copy))
                    || hot.is_some_and(|hot| !hot.places.iter().any(|place| self.array.works(*place)))
            };
            self.write_pages_again(&pool_vol, is_lost);
        }
    }

    /// Blocks of a volume are lost, or may be. Pages of a pool table among them are written again, for it is all in memory: a start
    /// without them would give up the family.
    pub fn write_table_again(&self, volume: u64, blocks: Range<u64>) {
        let families = self.tables.borrow().families();
        if let Some(pool_vol) = families.iter().find(|pool_vol| pool_vol.volume.id == volume) {
            self.write_pages_again(pool_vol, |page| blocks.contains(&page));
        }
    }

    fn write_pages_again(&self, pool_vol: &PoolVol, is_lost: impl Fn(u64) -> bool) {
        let more = pool_vol.table.borrow_mut().write_again(is_lost);
        self.dirty_pool_pages.set(self.dirty_pool_pages.get() + more as u64);
        if more > 0 {
            // Until then they are in memory only.
            self.checkpoint_wanted.set(true);
            self.checkpointer.notify_one();
        }
    }

    /// True where pages of a pool table have no place. Those that say nothing need none: no slot is taken that they would tell of.
    fn lacks_pages(&self, pool_vol: &PoolVol) -> bool {
        let (pool, table) = (&pool_vol.volume, pool_vol.table.borrow());
        let groups = pool.groups();
        let mut broken = groups.iter().filter(|extent| !self.array.holds(&extent.group.site()));
        broken.any(|extent| {
            let (start, end) = self.group_range(pool, extent.owner.index);
            (start..end).any(|block| PoolTable::is_page(block) && table.has_page(block) && !self.has_place(pool, block))
        })
    }

    /// What reading a page of a pool table failed with, unless the page is lost: all that had it is out of service, or it is bad wherever
    /// it lies, and disks are out of service, or the user says to give up what is lost. A disk that refused may yet have it.
    pub(super) fn unless_lost(&self, pool: &VolumeState, page: u64, error: Error) -> Result<()> {
        let gone =
            pool.extent(self.index_of(page)).is_some_and(|extent| self.is_page_gone(pool, page, &extent, &error));
        let out_of_service = self.array.members().iter().any(|member| !member.works() && !member.is_gone());
        match error.kind() {
            _ if gone => Ok(()),
            // What disks out of service had of it may have been given up before.
            Kind::Corrupt if self.degraded || out_of_service => Ok(()),
            Kind::Corrupt => Err(Error::corrupt(format!(
                "{error}: restore the disk that has it, or start with --degraded to give up that volume and its snapshots"
            ))),
            _ => Err(error),
        }
    }

    /// True where no working disk has a page of a pool table.
    fn is_page_gone(&self, pool: &VolumeState, page: u64, extent: &Extent, error: &Error) -> bool {
        let site = extent.group.site();
        if !extent.is_loaded() {
            return !self.keeps_page(extent);
        }
        let (_, inside) = self.split(page);
        if extent.is_older(inside) {
            return extent.fast().is_none_or(|copy| !self.serves(&copy));
        }
        let slot = pool.slot(page);
        if let Some(hot) = slot.and_then(|id| self.hot.table.borrow().extent(id.born).map(|hot| hot.places.clone())) {
            return !hot.iter().any(|place| self.array.works(*place));
        }
        // Where a stripe cannot be reconstructed, a disk that works may only have refused to read.
        !self.array.holds(&site) && (error.kind() == Kind::Corrupt || !site.shape.parity)
    }

    /// Gives up the PoolVOL of a family whose table is lost.
    pub(super) fn lose_family(&self, pool_vol: &PoolVol) {
        let pool = &pool_vol.volume;
        tracing::error!(
            pool = pool.spec.borrow().name,
            "the table of a volume's snapshots is lost with its disks, and the volume and its snapshots with it"
        );
        let groups = pool.take_groups();
        let until = Lsn(self.set_size(pool, 0).0 + 1);
        for extents in groups {
            self.give_up_group(extents, until);
        }
        // Its fast copies are gone, too.
        self.changes.want_whole();
        self.forget_lost(pool);
        pool_vol.table.take();
    }

    /// Forgets what the log had for a PoolVOL that was given up before: it has no places for that.
    pub(super) fn forget_lost(&self, pool: &VolumeState) {
        self.leave_hot(pool, 0, u64::MAX);
        self.drop_dirty(pool, 0, u64::MAX);
    }
}
