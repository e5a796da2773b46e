//! Pages of extents, of the hot area and of fast copies: found on the disks, kept in memory.
//!
//! What must hold: the newest page is known, or none is. One that a disk refuses is asked for again; one that is lost is replaced by
//! a page that knows of nothing, and is newer than any that may still come to light.

use crate::extent::Extent;
use crate::refused::{APART, TIMES};
use crate::store::Inner;
use kura_array::hot::HotPage;
use kura_array::{Array, Blocks, FastPage, LOST_STEP, Page, PageOwner, Place, Sought};
use kura_block::{Error, Result};
use std::rc::Rc;

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
        let (page, lost) = self.find_page(extent).await?;
        if extent.install(page, turn) {
            if lost {
                let was_clean = extent.make_dirty();
                self.page_changed(extent, was_clean);
            }
            self.note_loaded(extent);
        }
        Ok(())
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

    /// Looks for a page until it is sure which is the newest, or that it is lost: then something was refused for good. Before
    /// the store has begun this waits; later the caller hears of it, and may come again.
    async fn insist<P>(&self, seek: impl AsyncFn() -> Sought<P>) -> Result<Sought<P>> {
        let mut tries = 0;
        loop {
            let sought = seek().await;
            if sought.refused.is_empty() {
                return Ok(sought);
            }
            let Some(error) = self.weigh(&sought.refused).await else { return Ok(sought) };
            tries += 1;
            if self.begun.get() || tries > TIMES {
                return Err(error);
            }
            tracing::warn!(controller = self.id.0, %error, "recovery waits");
            self.runtime.sleep(APART).await;
        }
    }

    /// The page of an extent, and whether it stands for one that is lost; `Corrupt` when there is none, `Device` when it cannot
    /// be read now.
    pub async fn find_page(&self, extent: &Extent) -> Result<(Page, bool)> {
        let seek = async || self.array.read_page(&extent.group.site(), extent.member(), extent.owner).await;
        let sought = self.insist(seek).await?;
        if sought.refused.is_empty() {
            let name = Array::name(&extent.group.places());
            let page = sought.newest.ok_or_else(|| {
                if sought.reachable {
                    Error::corrupt(format!("no checksum page of {name} is good"))
                } else {
                    Error::device(format!("no working disk holds {name}"))
                }
            });
            return page.map(|page| (page, false));
        }
        let PageOwner { volume, index, .. } = extent.owner;
        tracing::error!(volume, extent = index, "the checksums of an extent are lost, and with them its blocks");
        let known = sought.newest.map_or(0, |page| page.sequence);
        Ok((Page::lost(self.array.extent_blocks(), known), true))
    }

    /// The page of a hot extent, if there is one. One that is lost has no slot in use: a read of what it spoke of finds an
    /// older version at the block's place, and fails.
    pub async fn find_hot_page(&self, places: &[Place], born: u64) -> Result<Option<HotPage>> {
        let sought = self.insist(async || self.array.read_hot_page(places, (self.id.0, born)).await).await?;
        if sought.refused.is_empty() {
            return Ok(sought.newest);
        }
        tracing::error!(extent = born, "the page of an extent of the hot area is lost, and with it its blocks");
        let sequence = sought.newest.map_or(0, |page| page.sequence) + LOST_STEP;
        let slots = vec![None; self.array.extent_blocks()];
        Ok(Some(HotPage { controller: self.id.0, born, sequence, slots }))
    }

    /// The page of a fast copy, if there is one; one that is lost says that nothing lies there.
    pub async fn find_fast_page(&self, places: &[Place], owner: PageOwner) -> Result<Option<FastPage>> {
        if places.len() == 1 {
            // Home has all that lies on one disk, and whatever an older page says of it is held against checksums.
            return Ok(self.array.read_fast_page(places, owner).await.newest);
        }
        let sought = self.insist(async || self.array.read_fast_page(places, owner).await).await?;
        if sought.refused.is_empty() {
            return Ok(sought.newest);
        }
        let PageOwner { volume, index, .. } = owner;
        tracing::error!(volume, extent = index, "the page of a fast copy is lost, and with it what is newer there");
        let none = || Blocks::none(self.array.extent_blocks());
        let sequence = sought.newest.map_or(0, |page| page.sequence) + LOST_STEP;
        Ok(Some(FastPage { owner, sequence, valid: none(), stale: none() }))
    }
}
