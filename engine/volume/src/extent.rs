//! An extent of a volume in memory: where it lies and, while cached, its checksum page.

use crate::straight::Successor;
use crate::tier::FastCopy;
use kura_array::{Afloat, Page, PageOwner, Places, Rows, Shape, Site};
use kura_block::{Buf, Checksum};
use kura_journal::Lsn;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Extents of a volume that were allocated together, as many as the volume's shape has columns.
pub(crate) struct Group {
    shape: Shape,
    /// The volume, and the group's birth.
    owner: (u64, u64),
    places: RefCell<Places>,
    /// The rows of each place, where they float.
    afloat: RefCell<Afloat>,
    /// One of its places is being moved: blocks wait in the write buffer.
    moving: Cell<bool>,
    /// Recovery left out a record of its blocks, for it could not read their page anywhere.
    missed: Cell<bool>,
}

impl Group {
    /// A group of a volume, born then.
    pub fn new(shape: Shape, places: Places, owner: (u64, u64)) -> Rc<Self> {
        let afloat = RefCell::new(Rows::of(shape, &places, owner));
        let (moving, missed) = (Cell::new(false), Cell::new(false));
        Rc::new(Self { shape, owner, places: RefCell::new(places), afloat, moving, missed })
    }

    /// Where it lies now.
    pub fn places(&self) -> Places {
        self.places.borrow().clone()
    }

    /// Where it lies now, and how.
    pub fn site(&self) -> Site {
        Site { shape: self.shape, places: self.places(), afloat: self.afloat.borrow().clone() }
    }

    /// One of its places has moved.
    pub fn move_to(&self, site: Site) {
        self.places.replace(site.places);
        self.afloat.replace(site.afloat);
    }

    /// The log says that it lies elsewhere: nobody has looked at its rows yet.
    pub fn found_at(&self, places: Places) {
        self.afloat.replace(Rows::of(self.shape, &places, self.owner));
        self.places.replace(places);
    }

    /// True when the disks have the maps of its rows as they are.
    pub fn is_settled(&self) -> bool {
        self.afloat.borrow().iter().flat_map(|rows| rows.iter()).all(|rows| rows.is_settled())
    }

    /// True while a map of its rows is looked for, and perhaps written again where it lies.
    pub fn is_sought(&self) -> bool {
        self.afloat.borrow().iter().flat_map(|rows| rows.iter()).any(|rows| rows.is_sought())
    }

    /// True while one of its places is being moved.
    pub fn is_moving(&self) -> bool {
        self.moving.get()
    }

    /// Recovery leaves out a record of its blocks: they are lost with the disks it lies on.
    pub fn set_missed(&self) {
        self.missed.set(true);
    }

    /// True when recovery has left out a record of its blocks.
    pub fn was_missed(&self) -> bool {
        self.missed.get()
    }

    /// Says that one of its places is being moved, or no more.
    pub fn set_moving(&self, moving: bool) {
        self.moving.set(moving);
    }
}

pub(crate) struct Extent {
    pub owner: PageOwner,
    pub group: Rc<Group>,
    /// Shared with who writes it out: a change meanwhile is made to a copy.
    page: RefCell<Option<Rc<Page>>>,
    /// The page differs from the one on the disks.
    dirty: Cell<bool>,
    /// The page is being written out: until it is there the disks have an older one.
    leaving: Cell<bool>,
    /// Who needs the page to stay in memory.
    pins: Cell<u32>,
    /// Set by use, cleared by the hand of the cache's clock.
    used: Cell<bool>,
    /// The last record that cleared blocks of it.
    cleared: Cell<Lsn>,
    /// Its copy in the fast tier.
    fast: RefCell<Option<Rc<FastCopy>>>,
    /// The place that takes this one over when a stream has written all of it there.
    successor: RefCell<Option<Rc<Successor>>>,
    /// Counts up whenever the page comes, goes or is written out: a page read meanwhile is out of date.
    turns: Cell<u64>,
}

impl Extent {
    /// An extent whose page is on the disks.
    pub fn stored(owner: PageOwner, group: Rc<Group>) -> Self {
        Self {
            owner,
            group,
            page: RefCell::new(None),
            dirty: Cell::new(false),
            leaving: Cell::new(false),
            pins: Cell::new(0),
            used: Cell::new(false),
            cleared: Cell::new(Lsn(0)),
            fast: RefCell::new(None),
            successor: RefCell::new(None),
            turns: Cell::new(0),
        }
    }

    /// An extent in which nothing is written yet; its page must be written out.
    pub fn empty(owner: PageOwner, group: Rc<Group>, blocks: usize) -> Self {
        let extent = Self::stored(owner, group);
        extent.reset(blocks);
        extent
    }

    /// Forgets every block: the page is empty and must be written out.
    pub fn reset(&self, blocks: usize) {
        let sequence = self.page.borrow().as_ref().map_or(0, |page| page.sequence);
        let mut page = Page::empty(blocks);
        page.sequence = sequence;
        *self.page.borrow_mut() = Some(Rc::new(page));
        self.dirty.set(true);
        self.turns.set(self.turns.get() + 1);
    }

    /// The last record since the start that cleared blocks of it: what was cleared before is durable.
    pub fn cleared(&self) -> Lsn {
        self.cleared.get()
    }

    /// A record clears blocks of it.
    pub fn set_cleared(&self, lsn: Lsn) {
        self.cleared.set(lsn);
    }

    /// Its number among the extents of its group.
    pub fn member(&self) -> usize {
        (self.owner.index % self.group.shape.extents()) as usize
    }

    /// Its copy in the fast tier, if it has one.
    pub fn fast(&self) -> Option<Rc<FastCopy>> {
        self.fast.borrow().clone()
    }

    /// True when its places have an older version of a block than its fast copy, or may have it after a power cut.
    pub fn is_stale(&self, block: usize) -> bool {
        self.fast.borrow().as_ref().is_some_and(|copy| copy.bits().stale.has(block))
    }

    /// True when its places have an older version of a block than its fast copy.
    pub fn is_older(&self, block: usize) -> bool {
        self.fast.borrow().as_ref().is_some_and(|copy| copy.bits().is_older(block))
    }

    /// Gives it a copy in the fast tier, or takes it away.
    pub fn set_fast(&self, copy: Option<Rc<FastCopy>>) {
        *self.fast.borrow_mut() = copy;
    }

    /// The place that a stream writes all of it to.
    pub fn successor(&self) -> Option<Rc<Successor>> {
        self.successor.borrow().clone()
    }

    /// Gives it a successor, or takes it away; returns the one it had.
    pub fn set_successor(&self, successor: Option<Rc<Successor>>) -> Option<Rc<Successor>> {
        self.successor.replace(successor)
    }

    /// The page as it is in memory, if it is.
    pub fn page(&self) -> Option<Rc<Page>> {
        self.page.borrow().clone()
    }

    /// True when the page is in memory, where it stays until the hand of the cache's clock has come by once more.
    pub fn is_loaded(&self) -> bool {
        self.used.set(true);
        self.page.borrow().is_some()
    }

    /// A mark to give back to [`Extent::install`].
    pub fn turn(&self) -> u64 {
        self.turns.get()
    }

    /// Takes a page read from the disks, unless the extent has moved on since `turn`; true when it took it.
    pub fn install(&self, page: Page, turn: u64) -> bool {
        let takes = self.turns.get() == turn;
        if takes {
            *self.page.borrow_mut() = Some(Rc::new(page));
            self.turns.set(turn + 1);
        }
        takes
    }

    /// Looks at the page, which must be loaded.
    pub fn with_page<T>(&self, look: impl FnOnce(&Page) -> T) -> T {
        let page = self.page.borrow();
        look(page.as_ref().unwrap_or_else(|| unreachable!("the caller has loaded the page")))
    }

    /// Changes the page, which must be loaded.
    fn change_page<T>(&self, change: impl FnOnce(&mut Page) -> T) -> T {
        let mut page = self.page.borrow_mut();
        change(Rc::make_mut(page.as_mut().unwrap_or_else(|| unreachable!("the caller has loaded the page"))))
    }

    /// Sets or clears the checksum of a block; the page must be loaded. True when the page was clean before.
    pub fn set(&self, block: usize, checksum: Option<Checksum>) -> bool {
        self.change_page(|page| page.set(block, checksum));
        !self.dirty.replace(true)
    }

    /// Sets the checksums of blocks from `first` on; the page must be loaded. Returns what they were, and whether the page was
    /// clean before.
    pub fn set_run(&self, first: usize, checksums: &[Checksum]) -> (Before, bool) {
        let before = self.change_page(|page| {
            let change = |(block, checksum): (usize, &Checksum)| {
                let before = page.get(block);
                page.set(block, Some(*checksum));
                before
            };
            (first..).zip(checksums).map(change).collect()
        });
        (before, !self.dirty.replace(true))
    }

    /// From now on the place of a block counts in parity; the page must be loaded. True when the page was clean before
    /// and is not now.
    pub fn put_in_parity(&self, block: usize) -> bool {
        if self.with_page(|page| page.is_in_parity(block)) {
            return false;
        }
        self.change_page(|page| page.put_in_parity(block)) && !self.dirty.replace(true)
    }

    /// Says that the page, which must be loaded, must be written out; true when it was clean before.
    pub fn make_dirty(&self) -> bool {
        !self.dirty.replace(true)
    }

    /// True when the page must be written out.
    pub fn is_dirty(&self) -> bool {
        self.dirty.get()
    }

    /// True when the disks have the page as it is.
    pub fn is_settled(&self) -> bool {
        !self.dirty.get() && !self.leaving.get()
    }

    /// The page to write out now, with its next sequence number. The caller says [`Extent::left`] when that is done.
    pub fn take_dirty(&self) -> Option<Rc<Page>> {
        if !self.dirty.replace(false) {
            return None;
        }
        self.leaving.set(true);
        self.turns.set(self.turns.get() + 1);
        let page = &mut *self.page.borrow_mut();
        let page = page.as_mut()?;
        Rc::make_mut(page).sequence += 1;
        Some(Rc::clone(page))
    }

    /// The page taken last is on the disks if it was `written`. If not, it must be written again, to the same slot: the other slot
    /// holds the version that counts. True when that makes it dirty.
    pub fn left(&self, written: bool) -> bool {
        self.leaving.set(false);
        if !written && let Some(page) = &mut *self.page.borrow_mut() {
            Rc::make_mut(page).sequence += 1;
        }
        !written && !self.dirty.replace(true)
    }

    /// Lets the page go if the disks have it and it was not used since the last call; true when it is gone.
    pub fn evict(&self) -> bool {
        if self.used.replace(false) || self.pins.get() > 0 || self.dirty.get() || self.leaving.get() {
            return false;
        }
        self.turns.set(self.turns.get() + 1);
        self.page.borrow_mut().take();
        true
    }
}

/// Keeps the pages of extents in memory, once they are there.
pub(crate) struct Pins(Vec<Rc<Extent>>);

impl Pins {
    /// Pins the pages of these extents.
    pub fn of<'a>(extents: impl IntoIterator<Item = &'a Rc<Extent>>) -> Self {
        let extents: Vec<_> = extents.into_iter().cloned().collect();
        for extent in &extents {
            extent.pins.set(extent.pins.get() + 1);
        }
        Self(extents)
    }

    /// The extents.
    pub fn extents(&self) -> &[Rc<Extent>] {
        &self.0
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for extent in &self.0 {
            extent.pins.set(extent.pins.get() - 1);
        }
    }
}

/// What the checksums of blocks were.
pub(crate) type Before = SmallVec<[Option<Checksum>; 32]>;

/// A block in the write buffer.
pub(crate) struct Dirty {
    /// Its bytes; `None` when it was cleared while on its way to its place, or recovery has not read yet what went ahead of its extent.
    pub data: Option<Buf>,
    /// The record that holds it.
    pub lsn: Lsn,
    pub checksum: Checksum,
    /// What its place holds meanwhile, where that is known.
    pub at_rest: Option<Checksum>,
    /// An earlier or this version is on its way to its place, or to its extent's successor.
    pub in_flight: bool,
}

impl Dirty {
    /// A block as a record has it; `at_rest` is what its place holds, if that is known.
    pub fn new(data: Buf, checksum: Checksum, lsn: Lsn, at_rest: Option<Checksum>) -> Self {
        Self { data: Some(data), lsn, checksum, at_rest, in_flight: false }
    }
}
