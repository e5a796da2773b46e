//! A database's buffer cache: least recently used first, dirty pages written when they must leave.

use kura_trace::Op;
use std::collections::VecDeque;

/// One access to the disk, of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) op: Op,
    pub(crate) page: u32,
}

/// What is done to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    /// It is looked at.
    Read,
    /// It is looked at and changed.
    Modify,
    /// It is new: changed, and nothing to be read.
    Create,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Slot {
    page: u32,
    newer: u32,
    older: u32,
    dirty: bool,
}

/// The cache. Slots form a list from the newest to the oldest.
pub(crate) struct Cache {
    /// By page, its slot's number plus one; 0 for a page that is not here.
    slot_of: Vec<u32>,
    slots: Vec<Slot>,
    room: usize,
    newest: u32,
    oldest: u32,
}

impl Cache {
    /// An empty cache of `room` pages over a disk of `pages`.
    pub(crate) fn new(pages: u32, room: u32) -> Self {
        let room = room.clamp(1, pages) as usize;
        Self { slot_of: vec![0; pages as usize], slots: Vec::with_capacity(room), room, newest: NONE, oldest: NONE }
    }

    /// Touches a page, and adds to `due` what that asks of the disk.
    pub(crate) fn touch(&mut self, page: u32, touch: Touch, due: &mut VecDeque<Access>) {
        let slot = match self.slot_of[page as usize] {
            0 => {
                let slot = self.free_slot(due);
                if touch != Touch::Create {
                    due.push_back(Access { op: Op::Read, page });
                }
                self.slots[slot as usize].page = page;
                self.slots[slot as usize].dirty = false;
                self.slot_of[page as usize] = slot + 1;
                slot
            }
            found if found - 1 == self.newest => found - 1,
            found => {
                self.unlink(found - 1);
                found - 1
            }
        };
        if slot != self.newest {
            self.link(slot);
        }
        self.slots[slot as usize].dirty |= touch != Touch::Read;
    }

    /// The dirty pages, in order of place.
    pub(crate) fn dirty(&self) -> Vec<u32> {
        let mut pages: Vec<u32> = self.slots.iter().filter(|slot| slot.dirty).map(|slot| slot.page).collect();
        pages.sort_unstable();
        pages
    }

    /// Marks a page as written; false when there was nothing to write.
    pub(crate) fn clean(&mut self, page: u32) -> bool {
        match self.slot_of[page as usize] {
            0 => false,
            found => std::mem::take(&mut self.slots[found as usize - 1].dirty),
        }
    }

    /// A slot that is in no list: a new one, or the oldest, whose page is written first if it must be.
    fn free_slot(&mut self, due: &mut VecDeque<Access>) -> u32 {
        if self.slots.len() < self.room {
            self.slots.push(Slot { page: 0, newer: NONE, older: NONE, dirty: false });
            return self.slots.len() as u32 - 1;
        }
        let slot = self.oldest;
        let Slot { page, dirty, .. } = self.slots[slot as usize];
        if dirty {
            due.push_back(Access { op: Op::Write, page });
        }
        self.slot_of[page as usize] = 0;
        self.unlink(slot);
        slot
    }

    fn link(&mut self, slot: u32) {
        let older = self.newest;
        self.slots[slot as usize].newer = NONE;
        self.slots[slot as usize].older = older;
        match older {
            NONE => self.oldest = slot,
            older => self.slots[older as usize].newer = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { newer, older, .. } = self.slots[slot as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(cache: &mut Cache, page: u32, touch: Touch) -> Vec<(Op, u32)> {
        let mut due = VecDeque::new();
        cache.touch(page, touch, &mut due);
        due.into_iter().map(|access| (access.op, access.page)).collect()
    }

    #[test]
    fn the_oldest_leaves_and_is_written_if_dirty() {
        let mut cache = Cache::new(100, 3);
        assert_eq!(touch(&mut cache, 1, Touch::Read), [(Op::Read, 1)]);
        assert_eq!(touch(&mut cache, 2, Touch::Modify), [(Op::Read, 2)]);
        assert_eq!(touch(&mut cache, 3, Touch::Create), []);
        assert_eq!(touch(&mut cache, 1, Touch::Read), []);
        // 2 is the oldest now, then 3, then 1.
        assert_eq!(touch(&mut cache, 4, Touch::Read), [(Op::Write, 2), (Op::Read, 4)]);
        assert_eq!(cache.dirty(), [3]);
        assert!(cache.clean(3) && !cache.clean(3) && !cache.clean(2));
        assert_eq!(touch(&mut cache, 5, Touch::Read), [(Op::Read, 5)]);
        assert_eq!(touch(&mut cache, 5, Touch::Modify), []);
        assert_eq!(touch(&mut cache, 4, Touch::Modify), []);
        assert_eq!(touch(&mut cache, 6, Touch::Create), []);
        assert_eq!(cache.dirty(), [4, 5, 6]);
        assert_eq!(touch(&mut cache, 7, Touch::Read), [(Op::Write, 5), (Op::Read, 7)]);
    }

    #[test]
    fn it_does_what_a_plain_list_would() {
        let (mut cache, mut plain) = (Cache::new(50, 8), VecDeque::<(u32, bool)>::new());
        let mut number = 1u32;
        for _ in 0..20_000 {
            number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (page, kind) =
                ((number >> 20) % 50, [Touch::Read, Touch::Modify, Touch::Create][number as usize / 7 % 3]);
            let mut expected = Vec::new();
            let found = plain.iter().position(|(other, _)| *other == page);
            let dirty = if let Some(at) = found {
                plain.remove(at).is_some_and(|(_, dirty)| dirty)
            } else {
                if plain.len() == 8 {
                    let (page, dirty) = plain.pop_back().unwrap();
                    expected.extend(dirty.then_some((Op::Write, page)));
                }
                expected.extend((kind != Touch::Create).then_some((Op::Read, page)));
                false
            };
            plain.push_front((page, dirty || kind != Touch::Read));
            assert_eq!(touch(&mut cache, page, kind), expected);
        }
    }
}
