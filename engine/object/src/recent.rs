//! What was written or read lately, in memory: what clients ask for again needs no device.
//!
//! What must hold:
//! 1. An extent's bytes are given only for that very extent. A block's bytes change only when an extent begins anew there, and
//!    then [`Recent::forget`] comes first.
//! 2. A record's attributes and the bytes behind it are found by its revision, which no other record has that says
//!    something else: a move of bytes keeps both. Revisions of what was taken back are given again, so a record comes in only
//!    when it is written: it is not taken back any more.
//!
//! Only readers look here. The cleaner and the scrub read the device: what rots there is found.

use crate::known::Extent;
use crate::object::Attributes;
use crate::space::extent::DATA_BLOCKS_LIMIT;
use kura_block::{BLOCK_BYTES, BLOCK_BYTES_U64, Bufs};
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use std::cell::RefCell;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;
use std::rc::Rc;

/// Bytes that are kept and dropped as one: extents are cut at multiples of it.
pub(crate) const STEP_BYTES: u64 = 1 << 20;
/// What an entry takes at least, for the cache's own tables.
const ENTRY_BYTES: u64 = 256;
/// Bytes of an entry as they are mostly: for the tables' first size.
const MOSTLY_BYTES: u64 = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    /// Where the extent begins, and the step's number in it.
    Step(u32, u32),
    /// The revision of a record.
    Record(u64),
}

#[derive(Clone)]
enum Kept {
    Step(Extent, Bufs),
    Record(Rc<Said>),
}

/// What a record says besides what the index knows.
pub(crate) struct Said {
    pub attributes: Attributes,
    pub inline: Bufs,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Kept> for Bytes {
    fn weight(&self, _: &Key, kept: &Kept) -> u64 {
        let bytes = match kept {
            Kept::Step(_, data) => data.len(),
            Kept::Record(said) => {
                let attributes: usize = said.attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
                // Whole blocks were read for the bytes, or taken.
                let blocks = if said.inline.is_empty() { 0 } else { said.inline.len() / BLOCK_BYTES + 2 };
                attributes + blocks * BLOCK_BYTES
            }
        };
        ENTRY_BYTES + bytes as u64
    }
}

/// With a hasher of fixed keys: the same requests find the same here, in every run.
type Entries = Cache<Key, Kept, Bytes, BuildHasherDefault<DefaultHasher>>;

/// What is kept, the bytes of all together bounded.
pub(crate) struct Recent {
    kept: Option<RefCell<Entries>>,
}

impl Recent {
    /// Keeps so many bytes at most; none with 0.
    pub fn new(bytes: u64) -> Self {
        let entries = usize::try_from(bytes / MOSTLY_BYTES).unwrap_or(usize::MAX);
        let kept = || Cache::with(entries, bytes, Bytes, BuildHasherDefault::default(), DefaultLifecycle::default());
        Self { kept: (bytes > 0).then(|| RefCell::new(kept())) }
    }

    /// True when there is memory to keep something in.
    pub fn keeps(&self) -> bool {
        self.kept.is_some()
    }

    /// Bytes that are kept, with what the tables take, and how many may be; none where nothing is kept.
    pub fn bytes(&self) -> Option<(u64, u64)> {
        let kept = self.kept.as_ref()?.borrow();
        Some((kept.weight(), kept.capacity()))
    }

    /// The bytes of `range`, which lies in one step of the extent.
    pub fn get(&self, extent: Extent, range: Range<u64>) -> Option<Bufs> {
        let kept = self.kept.as_ref()?.borrow();
        let number = range.start / STEP_BYTES;
        let Kept::Step(own, data) = kept.get(&Key::Step(extent.block, number as u32))? else { return None };
        let begin = number * STEP_BYTES;
        let (from, to) = ((range.start - begin) as usize, (range.end - begin) as usize);
        (*own == extent && to <= data.len()).then(|| data.slice(from..to))
    }

    /// Keeps what an extent holds from byte `from` on, as far as whole steps of it are there; the last one may end where the
    /// extent's blocks do.
    pub fn keep(&self, extent: Extent, from: u64, data: &Bufs) {
        let Some(kept) = &self.kept else { return };
        let size = u64::from(extent.blocks) * BLOCK_BYTES_U64;
        let end = from + data.len() as u64;
        let mut begin = from.next_multiple_of(STEP_BYTES);
        while begin < end {
            let until = size.min(begin + STEP_BYTES);
            // Bytes that fill no block are followed by zeroes on the device.
            if end + BLOCK_BYTES_U64 <= until {
                break;
            }
            let data = data.slice((begin - from) as usize..(until.min(end) - from) as usize);
            kept.borrow_mut().insert(Key::Step(extent.block, (begin / STEP_BYTES) as u32), Kept::Step(extent, data));
            begin = until;
        }
    }

    /// What began at this block is dead, or another extent is about to begin there.
    pub fn forget(&self, block: u32) {
        let Some(kept) = &self.kept else { return };
        let most = u64::from(DATA_BLOCKS_LIMIT) * BLOCK_BYTES_U64;
        for number in 0..most.div_ceil(STEP_BYTES) as u32 {
            kept.borrow_mut().remove(&Key::Step(block, number));
        }
    }

    /// What the record of this revision says.
    pub fn said(&self, revision: u64) -> Option<Rc<Said>> {
        match self.kept.as_ref()?.borrow().get(&Key::Record(revision))? {
            Kept::Record(said) => Some(Rc::clone(said)),
            Kept::Step(..) => None,
        }
    }

    /// The record of this revision is dead.
    pub fn forget_said(&self, revision: u64) {
        if let Some(kept) = &self.kept {
            kept.borrow_mut().remove(&Key::Record(revision));
        }
    }

    /// Keeps what the record of this revision says, which is written.
    pub fn keep_said(&self, revision: u64, said: Said) {
        if let Some(kept) = &self.kept {
            kept.borrow_mut().insert(Key::Record(revision), Kept::Record(Rc::new(said)));
        }
    }
}
