//! How much a controller leases, and what it has leased.

use super::EntryId;

/// The most that a batch is worth: from there on an access to shared memory hardly counts.
const MOST: u32 = 256;
/// Of so many entries of the pool one may be in reserve.
const STRANDED_ONE_IN: u32 = 1000;

/// Entries leased at once, and the most that are kept when entries are freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub batch: u32,
    pub most: u32,
}

/// Sizes with which the reserves of all controllers are at most a thousandth of the pool. In a pool too small for that
/// nothing is kept: an entry is leased when it is needed.
pub(super) fn sizes(entries: u32, controllers: u16) -> Sizes {
    let most = (entries / STRANDED_ONE_IN / u32::from(controllers.max(1))).min(2 * MOST);
    Sizes { batch: (most / 2).max(1), most }
}

/// Entries of this controller that hold nothing.
#[derive(Debug, Default)]
pub(super) struct Reserve {
    /// The next one to be taken stands last.
    entries: Vec<EntryId>,
}

impl Reserve {
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    pub fn take(&mut self) -> Option<EntryId> {
        self.entries.pop()
    }

    /// Puts a batch in, lowest first.
    pub fn put(&mut self, batch: Vec<EntryId>) {
        self.entries.extend(batch.into_iter().rev());
    }

    pub fn put_one(&mut self, entry: EntryId) {
        self.entries.push(entry);
    }

    /// What is beyond `sizes.most` goes, and a half of that with it, so that the next ones freed find room.
    pub fn excess(&mut self, sizes: Sizes) -> Vec<EntryId> {
        if self.len() <= sizes.most {
            return Vec::new();
        }
        // The oldest go: those freed last may be warm in some cache.
        let keep = (sizes.most / 2) as usize;
        self.entries.drain(..self.entries.len() - keep).collect()
    }

    /// All of it.
    pub fn empty(&mut self) -> Vec<EntryId> {
        std::mem::take(&mut self.entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_are_a_thousandth_of_the_pool_or_nothing() {
        for entries in [0, 1, 999, 4096, 65_536, 1 << 20, u32::MAX] {
            for controllers in [1, 2, 8, 64, u16::MAX] {
                let Sizes { batch, most } = sizes(entries, controllers);
                assert!(most as u64 * controllers as u64 <= u64::from(entries) / 1000, "{entries} {controllers}");
                assert!(batch >= 1 && (batch == 1 || batch <= most), "{entries} {controllers}");
            }
        }
        assert_eq!(sizes(1 << 20, 4), Sizes { batch: 131, most: 262 });
        assert_eq!(sizes(1 << 30, 4), Sizes { batch: MOST, most: 2 * MOST });
        assert_eq!(sizes(100, 2), Sizes { batch: 1, most: 0 });
    }

    #[test]
    fn what_is_freed_stays_up_to_the_most() {
        let sizes = Sizes { batch: 4, most: 8 };
        let mut reserve = Reserve::default();
        reserve.put((0..8).map(EntryId).collect());
        assert!(reserve.excess(sizes).is_empty());
        assert_eq!(reserve.take(), Some(EntryId(0)), "lowest first");
        reserve.put_one(EntryId(20));
        reserve.put_one(EntryId(21));
        let gone = reserve.excess(sizes);
        assert_eq!((gone.len(), reserve.len()), (5, 4));
        assert_eq!(reserve.take(), Some(EntryId(21)));
        assert_eq!(reserve.empty().len(), 3);
        assert_eq!(reserve.take(), None);
    }
}
