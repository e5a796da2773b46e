//! Families whose pool table is lost with its disks.
//!
//! Without the table nobody knows which versions of blocks their volumes and snapshots see. None of them is read or written any more,
//! rather than wrongly; they can be deleted. The PoolVOL, which nothing can be found in, is given up: it has no size from then on, in
//! the log and in the tables, and that is how such a family is known.

use super::PoolVol;
use crate::extent::Extent;
use crate::record::Record;
use crate::store::Inner;
use crate::tables::VolumeState;
use kura_block::{Error, Kind, Result};
use kura_journal::Lsn;

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
    /// What reading a page of a pool table failed with, unless the page is lost: all that had it is out of service, or it is bad wherever
    /// it lies, and disks are out of service, or the user says to give up what is lost. A disk that refused may yet have it.
    pub(super) fn unless_lost(&self, pool: &VolumeState, page: u64, error: Error) -> Result<()> {
        let gone =
            pool.extent(self.index_of(page)).is_some_and(|extent| self.is_page_gone(pool, page, &extent, &error));
        match error.kind() {
            _ if gone => Ok(()),
            // Where disks are out of service, what they had of it may have been given up before.
            Kind::Corrupt if self.degraded || !self.tables.borrow().failed.is_empty() => Ok(()),
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
        if let Some(copy) = extent.fast().filter(|copy| !copy.is_clean()) {
            return !self.serves(&copy);
        }
        let slot = pool.slot(page);
        if let Some(hot) = slot.and_then(|id| self.hot.borrow().extent(id.born).map(|hot| hot.places.clone())) {
            return !hot.iter().any(|place| self.array.works(*place));
        }
        // Of a stripe that is told by no others, one that works may have refused.
        !self.array.holds(&site) && (error.kind() == Kind::Corrupt || !site.shape.parity)
    }

    /// Gives up the PoolVOL of a family whose table is lost.
    pub(super) fn lose_family(&self, pool_vol: &PoolVol) {
        let pool = &pool_vol.volume;
        tracing::error!(
            pool = pool.spec.borrow().name,
            "the table of a volume's snapshots is lost with its disks, and the volume and its snapshots with it"
        );
        let lsn = self.append(&Record::Size { volume: pool.id, bytes: 0 });
        // Its fast copies go, too.
        self.changes.want_whole();
        self.forget_hot(pool, 0, u64::MAX, lsn);
        self.drop_dirty(pool, 0, u64::MAX);
        self.replay_lost(pool, lsn);
        pool_vol.table.take();
    }

    /// Gives up what a PoolVOL had; the log says of it that it has no size.
    pub fn replay_lost(&self, pool: &VolumeState, lsn: Lsn) {
        for extents in pool.take_groups() {
            self.give_up_group(extents, Lsn(lsn.0 + 1));
        }
        pool.spec.borrow_mut().size_bytes = 0;
        pool.fit_map(self.array.extent_bytes());
    }
}
