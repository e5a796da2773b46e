//! Content that was written or read lately, in memory: what clients ask for again needs no device.
//!
//! What must hold: an extent's bytes are given only for that very extent. A block's bytes change only when an extent begins
//! anew there, and then [`Recent::forget`] comes first.

use crate::extent::DATA_BLOCKS_LIMIT;
use crate::known::Extent;
use kura_block::{BLOCK_BYTES, Bufs};
use quick_cache::Weighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};
use std::cell::RefCell;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::ops::Range;

/// Bytes that are kept and dropped as one: extents are cut at multiples of it.
pub(crate) const STEP_BYTES: u64 = 1 << 20;
/// What a step of an extent takes at least, for the cache's own tables.
const ENTRY_BYTES: u64 = 256;

/// A step: where its extent begins, and its number in that.
type Key = (u32, u32);

struct Step {
    extent: Extent,
    data: Bufs,
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Step> for Bytes {
    fn weight(&self, _: &Key, step: &Step) -> u64 {
        ENTRY_BYTES + step.data.len() as u64
    }
}

/// With a hasher of fixed keys: the same requests find the same here, in every run.
type Steps = Cache<Key, Step, Bytes, BuildHasherDefault<DefaultHasher>>;

/// The steps that are kept, the bytes of all together bounded.
pub(crate) struct Recent {
    steps: Option<RefCell<Steps>>,
}

impl Recent {
    /// Keeps so many bytes at most; none with 0.
    pub fn new(bytes: u64) -> Self {
        let entries = usize::try_from(bytes / (STEP_BYTES / 4)).unwrap_or(usize::MAX);
        let steps = || Cache::with(entries, bytes, Bytes, BuildHasherDefault::default(), DefaultLifecycle::default());
        Self { steps: (bytes > 0).then(|| RefCell::new(steps())) }
    }

    /// The bytes of `range`, which lies in one step of the extent.
    pub fn get(&self, extent: Extent, range: Range<u64>) -> Option<Bufs> {
        let steps = self.steps.as_ref()?.borrow();
        let number = range.start / STEP_BYTES;
        let step = steps.get(&(extent.block, number as u32)).filter(|step| step.extent == extent)?;
        let begin = number * STEP_BYTES;
        let (from, to) = ((range.start - begin) as usize, (range.end - begin) as usize);
        (to <= step.data.len()).then(|| step.data.slice(from..to))
    }

    /// Keeps what an extent holds from byte `from` on, as far as whole steps of it are there; the last one may end where the
    /// extent's blocks do.
    pub fn keep(&self, extent: Extent, from: u64, data: &Bufs) {
        let Some(steps) = &self.steps else { return };
        let size = u64::from(extent.blocks) * BLOCK_BYTES as u64;
        let end = from + data.len() as u64;
        let mut begin = from.next_multiple_of(STEP_BYTES);
        while begin < end {
            let until = size.min(begin + STEP_BYTES);
            // Bytes that fill no block are followed by zeroes on the device.
            if end + BLOCK_BYTES as u64 <= until {
                break;
            }
            let data = data.slice((begin - from) as usize..(until.min(end) - from) as usize);
            steps.borrow_mut().insert((extent.block, (begin / STEP_BYTES) as u32), Step { extent, data });
            begin = until;
        }
    }

    /// Another extent is about to begin at this block.
    pub fn forget(&self, block: u32) {
        let Some(steps) = &self.steps else { return };
        let most = u64::from(DATA_BLOCKS_LIMIT) * BLOCK_BYTES as u64;
        for number in 0..most.div_ceil(STEP_BYTES) as u32 {
            steps.borrow_mut().remove(&(block, number));
        }
    }
}
