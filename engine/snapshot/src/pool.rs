//! The pool table of a PoolVOL: whose each slot is.
//!
//! ```text
//!  PoolVOL, in parts of 1024 blocks:  | page | page | page | page | slot 4 ... slot 1023 |
//!  page: "KPTP" u32, version u32, stamp u64, then 255 entries: owner u32, home u32, key u64
//!        owner: the volume's number, 0 free; key: block << 26 | birth; home: birth of what the block's home has, 0 none
//!        stamp: every record of the log before it is in the page
//! ```

use crate::index::{Epoch, Key};
use kura_block::{BLOCK_BYTES, Error, Reader, Result, Writer};
use std::collections::{BTreeMap, BTreeSet};

/// Entries of a page.
pub const ENTRIES: usize = 255;
const PAGES: u64 = 4;
const PART_BLOCKS: u64 = PAGES + PAGES * ENTRIES as u64;
const MAGIC: u32 = u32::from_le_bytes(*b"KPTP");
const VERSION: u32 = 1;

/// A slot: a block of the PoolVOL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(pub u64);

impl Slot {
    /// The block of the PoolVOL that says whose the slot is, and the entry there; `None` when the block is no slot.
    fn place(self) -> Option<(u64, usize)> {
        let (part, inside) = (self.0 / PART_BLOCKS, self.0 % PART_BLOCKS);
        let number = inside.checked_sub(PAGES)?;
        Some((part * PART_BLOCKS + number / ENTRIES as u64, (number % ENTRIES as u64) as usize))
    }

    fn of(page: u64, at: usize) -> Self {
        let (part, number) = (page / PART_BLOCKS, page % PART_BLOCKS);
        Self(part * PART_BLOCKS + PAGES + number * ENTRIES as u64 + at as u64)
    }

    /// The block that says whose it is.
    pub fn page(self) -> u64 {
        self.place().map_or(self.0, |(page, _)| page)
    }
}

/// Whose a slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The number of the volume, above zero.
    pub owner: u32,
    /// The version.
    pub key: Key,
    /// When what the block's home has was born, where this says so; else [`Epoch::FIRST`].
    pub home: Epoch,
}

/// Taken, and nobody's yet.
const TAKEN: u32 = u32::MAX;
const FREE: Entry = Entry { owner: 0, key: Key::ZERO, home: Epoch::FIRST };

struct Page {
    entries: Box<[Entry; ENTRIES]>,
    /// Entries that are not free.
    used: usize,
}

impl Page {
    fn new() -> Self {
        Self { entries: Box::new([FREE; ENTRIES]), used: 0 }
    }
}

/// Pages that are tried where those there are do not do.
const NEW_PAGES: usize = 1024;

/// Whose the slots of a PoolVOL are.
#[derive(Default)]
pub struct PoolTable {
    pages: BTreeMap<u64, Page>,
    /// Pages with a free entry.
    open: BTreeSet<u64>,
    dirty: BTreeSet<u64>,
    owned: u64,
    /// Every page before this one is there.
    whole_below: u64,
}

impl PoolTable {
    /// Takes free slots, lowest first, so that they lie together; they are nobody's until [`PoolTable::put`].
    pub fn take(&mut self, count: usize) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(count);
        while slots.len() < count {
            let number = match self.open.first() {
                Some(number) => *number,
                None => self.add_page(),
            };
            let Some(page) = self.pages.get_mut(&number) else { break };
            for (at, entry) in page.entries.iter_mut().enumerate().filter(|(_, entry)| entry.owner == 0) {
                if slots.len() == count {
                    break;
                }
                entry.owner = TAKEN;
                page.used += 1;
                slots.push(Slot::of(number, at));
            }
            if page.used == ENTRIES {
                self.open.remove(&number);
            }
        }
        slots
    }

    /// Takes slots as [`PoolTable::take`] does, where `fits` says that a block can be written: a slot and its page. Takes none
    /// where there are fewer.
    pub fn take_where(&mut self, count: usize, fits: impl Fn(u64) -> bool) -> Vec<Slot> {
        let mut slots = Vec::with_capacity(count);
        for number in self.open.iter().filter(|number| fits(**number)) {
            let entries = self.pages.get(number).into_iter().flat_map(|page| page.entries.iter().enumerate());
            let free = entries.filter(|(_, entry)| entry.owner == 0).map(|(at, _)| Slot::of(*number, at));
            slots.extend(free.filter(|slot| fits(slot.0)).take(count - slots.len()));
            if slots.len() == count {
                break;
            }
        }
        if slots.len() < count {
            return Vec::new();
        }
        for slot in &slots {
            self.set(*slot, Entry { owner: TAKEN, ..FREE });
        }
        slots
    }

    /// The same, with new pages where those there are do not do; none where so many new ones do not do either.
    pub fn take_fitting(&mut self, count: usize, fits: impl Fn(u64) -> bool) -> Vec<Slot> {
        for _ in 0..NEW_PAGES {
            let slots = self.take_where(count, &fits);
            if slots.len() == count {
                return slots;
            }
            self.add_page();
        }
        Vec::new()
    }

    /// The lowest page that is not there yet.
    fn add_page(&mut self) -> u64 {
        let mut number = self.whole_below;
        while self.pages.contains_key(&number) {
            number = next_page(number);
        }
        self.pages.insert(number, Page::new());
        self.open.insert(number);
        self.whole_below = next_page(number);
        number
    }

    /// Slots taken are free again.
    pub fn put_back(&mut self, slots: &[Slot]) {
        for slot in slots {
            if self.raw(*slot).is_some_and(|entry| entry.owner == TAKEN) {
                self.set(*slot, FREE);
            }
        }
    }

    /// All slots that are taken and nobody's are free again.
    pub fn put_back_taken(&mut self) {
        let taken = |(number, page): (&u64, &Page)| {
            let slots = page.entries.iter().enumerate().filter(|(_, entry)| entry.owner == TAKEN);
            slots.map(|(at, _)| Slot::of(*number, at)).collect::<Vec<_>>()
        };
        let taken: Vec<Slot> = self.pages.iter().flat_map(taken).collect();
        self.put_back(&taken);
    }

    /// Whose a slot is; `None` when it is free.
    pub fn get(&self, slot: Slot) -> Option<Entry> {
        self.raw(slot).filter(|entry| entry.owner != 0 && entry.owner != TAKEN)
    }

    fn raw(&self, slot: Slot) -> Option<Entry> {
        let (page, at) = slot.place()?;
        self.pages.get(&page).map(|page| page.entries[at])
    }

    /// Says whose a slot is, or with `None` that it is free; its page must be written out.
    pub fn put(&mut self, slot: Slot, entry: Option<Entry>) {
        self.set(slot, entry.unwrap_or(FREE));
        if let Some((page, _)) = slot.place() {
            self.dirty.insert(page);
        }
    }

    fn set(&mut self, slot: Slot, entry: Entry) {
        let Some((number, at)) = slot.place() else { return };
        let page = self.pages.entry(number).or_insert_with(Page::new);
        let before = std::mem::replace(&mut page.entries[at], entry);
        let counts = |entry: Entry| u64::from(entry.owner != 0 && entry.owner != TAKEN);
        self.owned = self.owned + counts(entry) - counts(before);
        page.used = page.used + usize::from(entry.owner != 0) - usize::from(before.owner != 0);
        if page.used == ENTRIES {
            self.open.remove(&number);
        } else {
            self.open.insert(number);
        }
    }

    /// Slots that have an owner.
    pub fn owned(&self) -> u64 {
        self.owned
    }

    /// All slots that have an owner, by slot.
    pub fn entries(&self) -> impl Iterator<Item = (Slot, Entry)> {
        let pages = self.pages.iter();
        pages.flat_map(|(number, page)| {
            let owned = page.entries.iter().enumerate().filter(|(_, entry)| entry.owner != 0 && entry.owner != TAKEN);
            owned.map(|(at, entry)| (Slot::of(*number, at), *entry))
        })
    }

    /// True when no block of `first..end` is in use: no slot there is taken, and no page speaks of one that is.
    pub fn is_unused(&self, first: u64, end: u64) -> bool {
        let mut block = first;
        while block < end {
            let (number, slot) = Slot(block).place().map_or((block, None), |(number, at)| (number, Some(at)));
            match (self.pages.get(&number).filter(|page| page.used > 0), slot) {
                // All its slots are as this one.
                (None, Some(at)) => block += (ENTRIES - at) as u64,
                (Some(page), Some(at)) if page.entries[at].owner == 0 => block += 1,
                (None, None) => block += 1,
                (Some(_), _) => return false,
            }
        }
        true
    }

    /// The blocks `first..end` are given up: pages there are forgotten, and nothing is said of them any more.
    pub fn forget(&mut self, first: u64, end: u64) {
        let gone: Vec<u64> = self.pages.range(first..end).map(|(page, _)| *page).collect();
        for page in gone {
            self.pages.remove(&page);
            self.open.remove(&page);
            self.dirty.remove(&page);
            self.whole_below = self.whole_below.min(page);
        }
    }

    /// True for a page, by its block, that has ever said of a slot whose it is.
    pub fn has_page(&self, page: u64) -> bool {
        self.pages.contains_key(&page)
    }

    /// Pages that differ from those on the disks.
    pub fn dirty(&self) -> impl ExactSizeIterator<Item = u64> {
        self.dirty.iter().copied()
    }

    /// The pages, by their blocks, that are not on the disks any more must be written again; how many more those are.
    pub fn write_again(&mut self, is_lost: impl Fn(u64) -> bool) -> usize {
        let before = self.dirty.len();
        self.dirty.extend(self.pages.keys().filter(|page| is_lost(**page)));
        self.dirty.len() - before
    }

    /// All pages are on their way to the disks.
    pub fn clean(&mut self) {
        self.dirty.clear();
    }

    /// A page, by its block, to be written: every record before `stamp` is in it.
    pub fn encode(&self, page: u64, stamp: u64) -> Vec<u8> {
        let mut out = Writer::with_room(BLOCK_BYTES);
        out.u32(MAGIC).u32(VERSION).u64(stamp);
        if let Some(page) = self.pages.get(&page) {
            for entry in &*page.entries {
                let entry = if entry.owner == TAKEN { &FREE } else { entry };
                out.u32(entry.owner).u32(entry.home.0).u64(entry.key.stored());
            }
        }
        out.pad_to(BLOCK_BYTES);
        out.finish()
    }

    /// Takes over a page as it was read; returns its stamp.
    pub fn load(&mut self, page: u64, bytes: &[u8]) -> Result<u64> {
        let mut reader = Reader::new(bytes);
        let (magic, version, stamp) = (reader.u32()?, reader.u32()?, reader.u64()?);
        if magic != MAGIC || version != VERSION {
            return Err(Error::corrupt(format!("block {page} of a PoolVOL is no page of a pool table")));
        }
        for at in 0..ENTRIES {
            let (owner, home, key) = (reader.u32()?, Epoch(reader.u32()?), Key::of_stored(reader.u64()?));
            if owner != 0 {
                self.set(Slot::of(page, at), Entry { owner, key, home });
            }
        }
        Ok(stamp)
    }

    /// True for the blocks of a PoolVOL that are pages.
    pub fn is_page(block: u64) -> bool {
        Slot(block).place().is_none()
    }
}

fn next_page(page: u64) -> u64 {
    if page % PART_BLOCKS + 1 < PAGES { page + 1 } else { (page / PART_BLOCKS + 1) * PART_BLOCKS }
}
