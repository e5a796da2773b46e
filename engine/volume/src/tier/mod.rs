//! The fast tier: copies of extents on disks of the fast class.
//!
//! ```text
//!   extent of a volume    home: slow disks, whatever layout        [ 0  1  2' 3  4' 5  .. ]
//!                         fast copy: mirrored on two fast disks    [ -  1  2  -  4  -  .. ]
//!                                             valid                      x  x     x          lies here
//!                                             stale                         x     x          and home is older
//! ```
//!
//! A promoted extent keeps its home. Reads of valid blocks go to the fast copy, held against the same checksums; what
//! leaves the write buffer goes there, and is valid and stale from then on. Moving up copies blocks that are in use;
//! moving down writes the stale ones home and drops the rest without a copy. While blocks are copied, writes of their
//! group wait in the write buffer: it is the paper's temporary buffer, and the journal makes it durable.
//!
//! What must hold:
//! 1. A block that is not in the write buffer is read from its fast copy where it is valid there, from home otherwise;
//!    stale blocks are valid.
//! 2. A bit on the disks tells of what is durable, or of blocks whose records a recovery replays: a block copied up is
//!    valid only after the fast disks were flushed; one written home is no longer stale only when a checkpoint has flushed
//!    it, and said so ([`crate::record::Record::Settled`]) where stripes are concerned.
//! 3. A copy is dropped when none of its blocks is stale; its space goes back when the journal's tail has passed that
//!    record, and when no read or write of it is under way.
//! 4. Only a copy whose two disks work takes writes. One on a single disk (which the user must ask for) serves reads:
//!    writes go home, and then there too.
//! 5. A group is moved by one at a time: by a rebuild, or up, or down.
//!
//! The table of copies is a fold of the journal; a page beside each says which blocks it has.

mod check;
mod copy;
mod data;
mod engine;
mod fast_homes;
mod heat;
mod line;
mod mover;
mod moves;
mod recover;
mod rules;
mod status;

pub(crate) use copy::{Bits, FastCopy, Key};
pub(crate) use data::Source;
pub use engine::TierSetup;
pub(crate) use heat::HeatMap;
pub use heat::Hits;
pub use line::TierMove;
pub(crate) use recover::Known;
pub use rules::{Pin, TierChange, TierRules};
pub use status::{RegionUse, TierStatus, TierWhy};

use crate::extent::Extent;
use crate::store::{Freed, Inner};
use crate::tables::VolumeState;
use kura_array::{Class, FastPage, Place, Places};
use kura_block::{DeviceId, Result};
use kura_journal::Lsn;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::sync::Notify;

/// Blocks of fast copies that have been written home.
pub(crate) type Returned = Vec<(Rc<FastCopy>, usize)>;

/// A controller's fast copies.
#[derive(Default)]
pub(crate) struct FastTier {
    copies: RefCell<BTreeMap<Key, Rc<FastCopy>>>,
    /// Copies whose page differs from the one on the disks.
    dirty: RefCell<BTreeSet<Key>>,
    /// Blocks written home and not settled yet: at the next checkpoint they are no longer stale.
    returned: RefCell<Returned>,
    /// Copies that go down.
    leaving: RefCell<BTreeSet<Key>>,
    /// Blocks in a region; 0 while nothing is counted.
    region_blocks: Cell<u64>,
    hits: Cell<Hits>,
    engine: RefCell<engine::Engine>,
    fast_homes: RefCell<fast_homes::FastHomes>,
    /// Fast disks that take no copies, of which none is left that does not go down, and below which width none is.
    seen_unwanted: RefCell<Option<(Vec<DeviceId>, usize)>>,
    /// Disks that a copy lies on, at least.
    width: Cell<usize>,
    /// Nothing is asked for, and the policy has nothing to decide until something is.
    rests: Cell<bool>,
    /// The mover has something to look at.
    pub wake: Notify,
}

impl FastTier {
    /// All copies, by volume and extent.
    pub fn copies(&self) -> Vec<Rc<FastCopy>> {
        self.copies.borrow().values().cloned().collect()
    }

    /// Those of a volume from an extent on, in order.
    pub fn copies_of(&self, volume: u64, from: u32) -> Vec<Rc<FastCopy>> {
        self.copies.borrow().range((volume, from)..=(volume, u32::MAX)).map(|(_, copy)| Rc::clone(copy)).collect()
    }

    /// The copy of an extent.
    pub fn copy(&self, key: Key) -> Option<Rc<FastCopy>> {
        self.copies.borrow().get(&key).cloned()
    }

    /// True when blocks wait for a checkpoint.
    pub fn waits(&self) -> bool {
        !self.returned.borrow().is_empty()
    }
}

impl Inner {
    /// An extent has a fast copy from now on.
    pub fn put_copy(&self, extent: &Extent, copy: Rc<FastCopy>) {
        self.tier.copies.borrow_mut().insert(copy.key(), Rc::clone(&copy));
        self.tier.dirty.borrow_mut().insert(copy.key());
        if !self.is_wanted(&copy) {
            self.tier.seen_unwanted.take();
        }
        extent.set_fast(Some(copy));
        self.tier.wake.notify_one();
    }

    /// An extent has no fast copy any more; its space waits for the journal's tail to reach `until`.
    pub fn take_copy(&self, extent: &Extent, until: Lsn) {
        let Some(copy) = extent.fast() else { return };
        extent.set_fast(None);
        self.tier.copies.borrow_mut().remove(&copy.key());
        self.tier.dirty.borrow_mut().remove(&copy.key());
        self.tier.leaving.borrow_mut().remove(&copy.key());
        self.tier.engine.borrow_mut().left_out(copy.key(), self.runtime.now());
        let freed = Freed { copy: Some(Rc::clone(&copy)), ..Freed::places(copy.places.clone(), until) };
        self.freed.borrow_mut().push(freed);
    }

    /// Gives up a group of extents that is no longer in its volume's map, with its fast copies.
    pub fn give_up_group(&self, extents: Vec<Rc<Extent>>, until: Lsn) {
        for extent in &extents {
            self.take_copy(extent, until);
            self.give_up_successor(extent);
        }
        self.freed.borrow_mut().push(Freed::group(extents, until));
    }

    /// The extent of a copy, while it is that copy's.
    pub fn extent_of(&self, copy: &Rc<FastCopy>) -> Option<(Rc<VolumeState>, Rc<Extent>)> {
        let (volume, index) = copy.key();
        let volume = self.tables.borrow().volumes.get(&volume).cloned()?;
        let extent = volume.extent(index)?;
        let here = extent.fast().is_some_and(|now| Rc::ptr_eq(&now, copy));
        here.then_some((volume, extent))
    }

    /// Disks that take fast copies: those that work, stay, and take the data of no volume.
    pub fn fast_disks(&self) -> Vec<DeviceId> {
        let take_data = self.disks_for(self.widest());
        let mut disks = self.disks_for(usize::MAX);
        disks.retain(|disk| !take_data.contains(disk));
        disks
    }

    /// Disks of the fast class that take no copies: they failed, leave, or are wanted for data.
    fn unwanted_fast_disks(&self) -> Vec<DeviceId> {
        let takes_copies = self.fast_disks();
        let members = self.array.members().into_iter();
        let unwanted = members.filter(|member| member.class == Class::Fast && !takes_copies.contains(&member.id));
        unwanted.map(|member| member.id).collect()
    }

    /// True when a copy has two disks, and both work and stay.
    pub fn is_redundant(&self, copy: &FastCopy) -> bool {
        copy.places.len() > 1 && self.is_wanted(copy)
    }

    /// True when every disk of a copy works and stays, and there are enough of them.
    pub fn is_wanted(&self, copy: &FastCopy) -> bool {
        let leaving = &self.tables.borrow().leaving;
        let stays = |place: &Place| self.array.works(*place) && !leaving.contains(&place.device);
        copy.places.len() >= self.tier.width.get() && copy.places.iter().all(stays)
    }

    /// True when a copy can be read.
    pub fn serves(&self, copy: &FastCopy) -> bool {
        copy.places.iter().any(|place| self.array.works(*place))
    }

    /// Takes places for a fast copy on so many disks.
    pub async fn allocate_fast(&self, disks: usize) -> Result<Places> {
        let fast = self.fast_disks();
        self.allocate_from(disks, &fast).await
    }

    /// The copy to which what leaves the write buffer of an extent goes. One on its way down takes it, too, where its home is lost:
    /// it cannot go there.
    pub fn takes_writes(&self, extent: &Extent) -> Option<Rc<FastCopy>> {
        let stays = |copy: &FastCopy| !copy.is_leaving() || !self.array.holds(&extent.group.site());
        extent.fast().filter(|copy| self.is_redundant(copy) && stays(copy))
    }

    /// The places of all fast copies.
    pub fn fast_places_held(&self) -> Vec<Place> {
        self.tier.copies.borrow().values().flat_map(|copy| copy.places.clone()).collect()
    }

    /// The pages of fast copies to write out now; clean from here on.
    pub fn take_fast_pages(&self) -> Vec<(Places, FastPage)> {
        let dirty = self.tier.dirty.take();
        let copies = self.tier.copies.borrow();
        dirty.iter().filter_map(|key| copies.get(key)).map(|copy| (copy.places.clone(), copy.next_page())).collect()
    }

    /// Writes the pages of fast copies, on all their disks.
    pub async fn write_fast_pages(&self, pages: &[(Places, FastPage)]) -> Result<()> {
        let writes = pages.iter().map(|(places, page)| self.array.write_fast_page(places, page));
        self.heed(futures::future::join_all(writes).await.into_iter().flatten()).await
    }

    /// Pages taken last did not all get to the disks.
    pub fn fast_pages_again(&self, pages: &[(Places, FastPage)]) {
        let copies = self.tier.copies.borrow();
        for key in pages.iter().map(|(_, page)| (page.owner.volume, page.owner.index)) {
            if let Some(copy) = copies.get(&key) {
                copy.skip_page();
                self.tier.dirty.borrow_mut().insert(key);
            }
        }
    }

    /// Changes which blocks a copy has.
    pub fn change_copy<T>(&self, copy: &FastCopy, change: impl FnOnce(&mut Bits) -> T) -> T {
        // One that was dropped has no page any more.
        if self.tier.copies.borrow().get(&copy.key()).is_some_and(|now| std::ptr::eq(&raw const **now, copy)) {
            self.tier.dirty.borrow_mut().insert(copy.key());
        }
        copy.change(change)
    }
}
