//! Pages of extents, of the hot area and of fast copies: found on the disks, kept in memory, and written again where a disk lacks them.
//! Maps of floating rows, too, in the last.
//!
//! What must hold: the newest page is known, or none is (but where it has rotted on one disk while the other one refuses it: then the one
//! before counts). One that a disk refuses is asked for again; one that is lost is replaced by a page that knows of nothing, and is
//! newer than any that may still come to light.

use crate::check::Report;
use crate::checkpoint::WIDTH;
use crate::disks::{APART, TIMES};
use crate::extent::{Extent, Group, Pins};
use crate::life::Life;
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::{StreamExt, stream};
use kura_array::hot::HotPage;
use kura_array::{Array, Blocks, FastPage, LOST_STEP, Lacking, Page, PageOwner, Place, Places, Sought};
use kura_block::{Error, Progress, Result};
use std::rc::Rc;

/// A page that a crash left behind with its newest version on one of its disks only.
#[derive(Clone)]
pub(crate) enum Uneven {
    Extent(Rc<Extent>),
    Hot(Places, u64),
    Fast(Places, PageOwner),
}

impl Inner {
    /// Notes that an extent's page differs from the one on the disks.
    pub fn page_changed(&self, extent: &Rc<Extent>, was_clean: bool) {
        if was_clean {
            self.dirty_pages.borrow_mut().push(Rc::clone(extent));
        }
    }

    /// Brings an extent's page into memory.
    pub async fn load(&self, extent: &Rc<Extent>) -> Result<()> {
        let turn = extent.turn();
        let (page, lost) = self.find_page(extent, true).await?;
        if lost && !self.is_mapped(extent) {
            return Err(Error::retry("an extent was given up, or is another controller's by now"));
        }
        if extent.install(page, turn) {
            if lost {
                let was_clean = extent.make_dirty();
                self.page_changed(extent, was_clean);
                let first = u64::from(extent.owner.index) * self.array.extent_blocks() as u64;
                self.write_table_again(extent.owner.volume, first..first + self.array.extent_blocks() as u64);
            }
            self.note_loaded(extent);
        }
        Ok(())
    }

    /// True while the tables name an extent.
    fn is_mapped(&self, extent: &Rc<Extent>) -> bool {
        let tables = self.tables.borrow();
        let now = tables.volumes.get(&extent.owner.volume).and_then(|volume| volume.extent(extent.owner.index));
        now.is_some_and(|now| Rc::ptr_eq(&now, extent))
    }

    /// Notes that an extent's page is in memory, and lets others go when they are too many. One turn of the clock at
    /// most: a page that was looked at since the last turn stays, so that whoever needs several has them all in the end.
    pub fn note_loaded(&self, extent: &Rc<Extent>) {
        let loaded = &mut *self.loaded.borrow_mut();
        let mut steps = loaded.len();
        while loaded.len() >= self.settings.pages && steps > 0 {
            steps -= 1;
            let Some(oldest) = loaded.pop_front() else { break };
            if oldest.upgrade().is_some_and(|oldest| !oldest.evict()) {
                loaded.push_back(oldest);
            }
        }
        loaded.push_back(Rc::downgrade(extent));
    }

    /// Looks for a page until it is sure which is the newest, or that it is lost: then something was refused for good, or it was
    /// `written` and nothing that was read is it. For one that may never have been written nobody waits where none is seen. Before the
    /// store has begun this waits; later the caller hears of it, and may come again.
    async fn insist<P>(&self, seek: impl AsyncFn() -> Sought<P>, written: bool) -> Result<Sought<P>> {
        let mut tries = 0;
        loop {
            let mut sought = seek().await;
            if written && sought.is_rotten() {
                // A disk may have misread it.
                sought = seek().await;
            }
            if sought.refused.is_empty() || !written && sought.is_blank() {
                return Ok(sought);
            }
            let Some(error) = self.weigh(&sought.refused).await else { return Ok(sought) };
            tries += 1;
            if self.life.get() > Life::Recovering || tries > TIMES {
                return Err(error);
            }
            tracing::warn!(controller = self.id.0, %error, "recovery waits");
            self.runtime.sleep(APART).await;
        }
    }

    fn note_uneven<P>(&self, sought: &Sought<P>, page: impl FnOnce() -> Uneven) {
        if sought.uneven && self.life.get() == Life::Recovering {
            self.uneven.borrow_mut().push(page());
        }
    }

    /// Writes to all of its disks what a crash left on one of them only. The next version goes over the one before, which the
    /// others have still: with the power going again in the midst of that, they would have none.
    pub async fn level_pages(&self) -> Result<()> {
        // What is given up meanwhile goes back to the pool only after this checkpoint.
        self.uneven.borrow_mut().retain(|page| self.is_kept(page));
        let uneven = self.uneven.borrow().clone();
        if uneven.is_empty() {
            return Ok(());
        }
        let writes = stream::iter(&uneven).map(|page| async move {
            match self.lacks(page).await {
                Some(Some(lacking)) => (self.array.write_lacking(&lacking).await, None),
                Some(None) => (Vec::new(), None),
                None => (Vec::new(), Some(page.clone())),
            }
        });
        let (failures, unsure): (Vec<_>, Vec<_>) =
            writes.buffer_unordered(WIDTH).collect::<Vec<_>>().await.into_iter().unzip();
        self.heed(failures.into_iter().flatten()).await?;
        self.flush_disks().await?;
        self.uneven.replace(unsure.into_iter().flatten().collect());
        Ok(())
    }

    /// True where a volume has a page of which the newest version may be on one of its disks only.
    pub fn is_uneven(&self, volume: &VolumeState) -> bool {
        let is_its = |page: &Uneven| match page {
            Uneven::Extent(extent) => volume.extent(extent.owner.index).is_some_and(|now| Rc::ptr_eq(&now, extent)),
            _ => false,
        };
        self.uneven.borrow().iter().any(is_its)
    }

    /// True while a page's places are its own. Those of an extent are held with it.
    fn is_kept(&self, page: &Uneven) -> bool {
        match page {
            Uneven::Extent(_) => true,
            Uneven::Hot(places, born) => self.hot.places_of(*born).is_some_and(|now| now == *places),
            Uneven::Fast(places, owner) => self
                .tier
                .copy((owner.volume, owner.index))
                .is_some_and(|copy| copy.owner == *owner && copy.places == *places),
        }
    }

    /// Where the newest version of a page that is on the disks is not; `None` where a disk refuses to say which that is.
    async fn lacks(&self, page: &Uneven) -> Option<Option<Lacking>> {
        Some(match page {
            Uneven::Extent(extent) => {
                let (site, member, owner) = (extent.group.site(), extent.member(), extent.owner);
                let newest = sure(self.array.read_page(&site, member, owner).await)?;
                self.array.page_lacks(&site, member, owner, &newest).await
            }
            Uneven::Hot(places, born) => {
                let newest = sure(self.array.read_hot_page(places, (self.id.0, *born)).await)?;
                self.array.hot_page_lacks(places, &newest).await
            }
            Uneven::Fast(places, owner) => {
                let newest = sure(self.array.read_fast_page(places, *owner).await)?;
                self.array.fast_page_lacks(places, &newest).await
            }
        })
    }

    /// The page of an extent, and whether it stands for one that is lost; `Corrupt` when there is none, `Device` when it cannot
    /// be read now. One that was `written` is lost when nothing that was read is it.
    pub async fn find_page(&self, extent: &Rc<Extent>, written: bool) -> Result<(Page, bool)> {
        let seek = async || self.array.read_page(&extent.group.site(), extent.member(), extent.owner).await;
        let sought = self.insist(seek, written).await?;
        self.note_uneven(&sought, || Uneven::Extent(Rc::clone(extent)));
        let PageOwner { volume, index, .. } = extent.owner;
        let blocks = self.array.extent_blocks();
        if is_lost(&sought, written) {
            tracing::error!(volume, extent = index, "the checksums of an extent are lost, and with them its blocks");
            let known = sought.newest.map_or(0, |page| page.sequence);
            return Ok((Page::lost(blocks, known), true));
        }
        if let Some(page) = sought.newest {
            return Ok((page, false));
        }
        if !sought.refused.is_empty() {
            // None that anybody knows of; the next one is newer than what may come to light.
            let mut page = Page::empty(blocks);
            page.sequence = LOST_STEP;
            return Ok((page, false));
        }
        let name = Array::name(&extent.group.places());
        Err(if sought.reachable {
            Error::corrupt(format!("no checksum page of {name} is good"))
        } else {
            Error::device(format!("no working disk holds {name}"))
        })
    }

    /// The page of a hot extent, if there is one; one that was `written` is lost when nothing that was read is it. One that is lost
    /// has no slot in use: a read of what it spoke of finds an older version at the block's place, and fails.
    pub async fn find_hot_page(&self, places: &[Place], born: u64, written: bool) -> Result<Option<HotPage>> {
        let seek = async || self.array.read_hot_page(places, (self.id.0, born)).await;
        let sought = self.insist(seek, written).await?;
        self.note_uneven(&sought, || Uneven::Hot(places.into(), born));
        let lost = is_lost(&sought, written);
        if !lost && sought.refused.is_empty() {
            return Ok(sought.newest);
        }
        if lost {
            tracing::error!(extent = born, "the page of an extent of the hot area is lost, and with it its blocks");
        }
        let sequence = sought.newest.map_or(0, |page| page.sequence) + LOST_STEP;
        let slots = vec![None; self.array.extent_blocks()];
        Ok(Some(HotPage { controller: self.id.0, born, sequence, slots }))
    }

    /// The page of a fast copy, if there is one; one that was `written` is lost when nothing that was read is it. One that is lost
    /// says that nothing lies there.
    pub async fn find_fast_page(&self, places: &[Place], owner: PageOwner, written: bool) -> Result<Option<FastPage>> {
        if places.len() == 1 {
            // Home has all that lies on one disk, and whatever an older page says of it is held against checksums.
            return Ok(self.array.read_fast_page(places, owner).await.newest);
        }
        let sought = self.insist(async || self.array.read_fast_page(places, owner).await, written).await?;
        self.note_uneven(&sought, || Uneven::Fast(places.into(), owner));
        let lost = is_lost(&sought, written);
        if !lost && sought.refused.is_empty() {
            return Ok(sought.newest);
        }
        if lost {
            let PageOwner { volume, index, .. } = owner;
            tracing::error!(volume, extent = index, "the page of a fast copy is lost, and with it what is newer there");
        }
        let none = || Blocks::none(self.array.extent_blocks());
        let sequence = sought.newest.map_or(0, |page| page.sequence) + LOST_STEP;
        Ok(Some(FastPage { owner, sequence, valid: none(), stale: none() }))
    }

    /// Holds the copies of an extent's page against what it is, and writes it again where it is not.
    pub async fn check_page(&self, volume: &VolumeState, extent: &Rc<Extent>, report: &mut Report) {
        let _pins = Pins::of([extent]);
        let lacks = async || {
            let here = volume.extent(extent.owner.index).is_some_and(|now| Rc::ptr_eq(&now, extent));
            // One that is not settled goes to all of its places by itself.
            let page = extent.page().filter(|_| here && extent.is_settled())?;
            self.array.page_lacks(&extent.group.site(), extent.member(), extent.owner, &page).await
        };
        let of = format!("extent {} of volume {}", extent.owner.index, extent.owner.volume);
        self.mend_page(&format!("the page of {of}"), lacks, report).await;
        let lacks = async || {
            let copy = extent.fast()?;
            let newest = sure(self.array.read_fast_page(&copy.places, copy.owner).await)?;
            self.array.fast_page_lacks(&copy.places, &newest).await
        };
        self.mend_page(&format!("the page of the fast copy of {of}"), lacks, report).await;
    }

    /// The same for the maps of a group's rows, where they float.
    pub async fn check_maps(&self, volume: &VolumeState, group: &Group, report: &mut Report) {
        if !volume.shape.floats {
            return;
        }
        for at in 0..group.places().len() {
            let lacks = async || {
                let site = group.site();
                self.array.map_lacks(&site.berth(at)).await.filter(|_| !volume.deleted.get())
            };
            let of = format!("the map of {} of volume {}", Array::name(&[group.places()[at]]), volume.id);
            self.mend_page(&of, lacks, report).await;
        }
    }

    /// The same for the pages of the hot area.
    pub async fn check_hot_pages(&self, report: &mut Report, progress: &Progress) {
        let extents: Vec<u64> = self.hot.table.borrow().extents().map(|(born, _)| born).collect();
        for born in extents {
            if self.is_stopping() || progress.is_cancelled() {
                return;
            }
            let lacks = async || {
                let now = self.hot.table.borrow().page(born);
                let (places, page) = now?;
                self.array.hot_page_lacks(&places, &page).await
            };
            self.mend_page(&format!("the page of extent {born} of the hot area"), lacks, report).await;
        }
    }

    /// Writes a page, or a map, again where `lacks` says that it is not as it is now.
    async fn mend_page(&self, name: &str, lacks: impl AsyncFn() -> Option<Lacking>, report: &mut Report) {
        if lacks().await.is_none() {
            return;
        }
        // It may be on its way there, or to another disk: nobody writes it while this is held.
        let _no_checkpoint = self.checkpointing.lock().await;
        let Some(lacking) = lacks().await else { return };
        report.repaired += lacking.disks().count() as u64;
        if report.dry_run {
            return;
        }
        for disk in lacking.disks() {
            tracing::warn!(disk = disk.0, "writing {name} again, which the disk lacks");
        }
        if let Err(error) = self.heed(self.array.write_lacking(&lacking).await).await {
            report.note(format!("{name}: a copy is bad and stays so: {error}: run `kura check` again"));
        }
    }
}

/// The newest version of a page, where there is one: where a disk refuses there may be a newer one.
fn sure<P>(sought: Sought<P>) -> Option<P> {
    sought.newest.filter(|_| sought.refused.is_empty())
}

/// True for a page that is lost: what disks do not read, however often they are asked, may be newer than all that was read, or nothing
/// of one that was `written` is good.
fn is_lost<P>(sought: &Sought<P>, written: bool) -> bool {
    let unsure = !sought.refused.is_empty() && !sought.told;
    unsure || written && sought.reachable && sought.newest.is_none()
}
