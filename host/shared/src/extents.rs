//! The extents of one device.

use kura_block::{ControllerId, ExtentId};
use std::collections::BTreeMap;

/// How it stands with an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Free,
    Held(ControllerId),
    /// The device has no such extent.
    Beyond,
}

/// Who holds each extent, and the free ones as runs.
///
/// What must hold: an extent is in a run exactly when nobody holds it; runs do not touch each other.
#[derive(Debug, Default)]
pub(crate) struct Extents {
    count: u32,
    /// Of extents up to the last that anybody has held: a large pool that is not used takes no memory.
    holders: Vec<Option<ControllerId>>,
    /// Runs of free extents: the first, and how many.
    runs: BTreeMap<u32, u32>,
    free: u32,
    /// How often extents were taken or made free.
    changes: u64,
}

impl Extents {
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    pub(crate) fn state(&self, extent: ExtentId) -> State {
        match self.holders.get(extent.0 as usize) {
            Some(Some(owner)) => State::Held(*owner),
            _ if extent.0 < self.count => State::Free,
            _ => State::Beyond,
        }
    }

    fn holder(&mut self, extent: ExtentId) -> &mut Option<ControllerId> {
        let at = extent.0 as usize;
        if at >= self.holders.len() {
            self.holders.resize(at + 1, None);
        }
        &mut self.holders[at]
    }

    /// Adds free extents at the end, up to `count` in all.
    pub(crate) fn grow(&mut self, count: u32) {
        let Some(added) = count.checked_sub(self.count()).filter(|added| *added > 0) else { return };
        let end = self.count();
        match self.runs.last_entry() {
            Some(mut last) if last.key() + last.get() == end => *last.get_mut() += added,
            _ => {
                self.runs.insert(end, added);
            }
        }
        self.count = count;
        self.free += added;
        self.changes += 1;
    }

    /// Gives at most `count` free extents to `owner`, lowest first.
    pub(crate) fn take_lowest(&mut self, owner: ControllerId, count: u32) -> Vec<ExtentId> {
        let mut taken = Vec::with_capacity(count.min(self.free) as usize);
        while (taken.len() as u32) < count
            && let Some((first, len)) = self.runs.pop_first()
        {
            let now = len.min(count - taken.len() as u32);
            if now < len {
                self.runs.insert(first + now, len - now);
            }
            self.free -= now;
            taken.extend((first..first + now).map(ExtentId));
        }
        self.changes += u64::from(!taken.is_empty());
        for extent in &taken {
            *self.holder(*extent) = Some(owner);
        }
        taken
    }

    /// Gives `extent`, which must be free, to `owner`.
    pub(crate) fn take(&mut self, owner: ControllerId, extent: ExtentId) {
        let holder = self.holder(extent).replace(owner);
        assert_eq!(holder, None, "extent {} is held already", extent.0);
        let run = self.runs.range_mut(..=extent.0).next_back();
        let Some((&first, len)) = run.filter(|(first, len)| extent.0 - **first < **len) else {
            panic!("extent {} is held by nobody and not free", extent.0);
        };
        let rest = first + *len - extent.0 - 1;
        *len = extent.0 - first;
        if *len == 0 {
            self.runs.remove(&first);
        }
        if rest > 0 {
            self.runs.insert(extent.0 + 1, rest);
        }
        self.free -= 1;
        self.changes += 1;
    }

    /// Makes `extent`, which must be held, free.
    pub(crate) fn release(&mut self, extent: ExtentId) {
        let holder = self.holder(extent).take();
        assert!(holder.is_some(), "extent {} is free already", extent.0);
        self.insert(extent.0);
    }

    /// Puts `extent` among the runs, joined to its neighbours.
    fn insert(&mut self, extent: u32) {
        let after = self.runs.remove(&(extent + 1)).unwrap_or(0);
        match self.runs.range_mut(..extent).next_back() {
            Some((first, len)) if first + *len == extent => *len += 1 + after,
            _ => {
                self.runs.insert(extent, 1 + after);
            }
        }
        self.free += 1;
        self.changes += 1;
    }
}
