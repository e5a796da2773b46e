//! What lies on disks that are failed or leaving, and how much of it is lost.
//!
//! Who waits for a rebuild asks again and again, and a map may have millions of groups. So nobody walks it for that: each volume counts its
//! places where its map changes, and those that are lost when somebody asks for the first time after a disk went out of service.

use crate::store::{Freed, Inner};
use kura_array::Place;
use kura_block::DeviceId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What lies on a disk that is failed or leaving.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Copies of extents.
    pub copies: u64,
    /// Of these, copies of extents of which no copy on a working disk is left.
    pub lost: u64,
}

/// Places of groups, by disk.
pub(crate) type Places = BTreeMap<DeviceId, u64>;

/// Where the groups of a volume lie.
#[derive(Default)]
pub(crate) struct Spread {
    places: Places,
    /// Of these, places of groups that are lost, and with how many disks out of service.
    lost: Option<(usize, Rc<Places>)>,
}

impl Spread {
    /// A group lies at these places from now on; it is not lost.
    pub fn join(&mut self, places: &[Place]) {
        for place in places {
            *self.places.entry(place.device).or_default() += 1;
        }
    }

    /// No group lies at these places any more.
    pub fn leave(&mut self, places: &[Place]) {
        for place in places {
            let count = self.places.entry(place.device).or_default();
            *count -= 1;
            if *count == 0 {
                self.places.remove(&place.device);
            }
        }
    }

    /// A group that may have been lost is not there any more, or can be read again.
    pub fn review_lost(&mut self) {
        self.lost.take_if(|(_, lost)| !lost.is_empty());
    }

    /// Places on each disk.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Of these, those of groups that are lost while so many disks are out of service: as `look` finds, or as it is known.
    fn lost(&mut self, failed: usize, look: impl FnOnce() -> Places) -> Rc<Places> {
        let known = self.lost.take().filter(|(with, _)| *with == failed).map(|(_, lost)| lost);
        let lost = known.unwrap_or_else(|| Rc::new(look()));
        self.lost = Some((failed, Rc::clone(&lost)));
        lost
    }
}

/// Counts places on disks of which that is asked.
fn count(on: &mut BTreeMap<DeviceId, Held>, places: &[Place], is_lost: impl Fn() -> bool) {
    for place in places {
        if let Some(held) = on.get_mut(&place.device) {
            held.copies += 1;
            held.lost += u64::from(is_lost());
        }
    }
}

impl Inner {
    /// What still lies on disks that are failed or leaving.
    pub fn unwanted(&self) -> BTreeMap<DeviceId, Held> {
        let tables = self.tables.borrow();
        let here = |disk: &DeviceId| self.array.member(*disk).is_some_and(|member| !member.is_gone());
        let disks = tables.failed.union(&tables.leaving).copied().filter(here);
        let mut unwanted: BTreeMap<_, _> = disks.map(|disk| (disk, Held::default())).collect();
        if unwanted.is_empty() {
            return unwanted;
        }
        for (_, extent) in self.hot.table.borrow().extents() {
            let works = |place: &Place| self.array.works(*place);
            count(&mut unwanted, &extent.places, || !extent.places.iter().any(works) && !extent.is_empty());
        }
        for copy in self.tier.copies() {
            count(&mut unwanted, &copy.places, || !self.serves(&copy) && !copy.is_clean());
        }
        let told = |freed: &Freed| freed.is_told.then(|| freed.places.clone());
        for places in self.freed.borrow().iter().filter_map(told).chain(self.successors.places()) {
            count(&mut unwanted, &places, || false);
        }
        for volume in tables.volumes.homes().values() {
            let look = || {
                let mut lost = Places::new();
                for extent in volume.groups() {
                    let site = extent.group.site();
                    for place in site.places.iter().filter(|_| !self.array.holds(&site)) {
                        *lost.entry(place.device).or_default() += 1;
                    }
                }
                lost
            };
            let spread = &mut *volume.spread.borrow_mut();
            let lost = spread.lost(tables.failed.len(), look);
            for (disk, held) in &mut unwanted {
                held.copies += spread.places().get(disk).copied().unwrap_or_default();
                held.lost += lost.get(disk).copied().unwrap_or_default();
            }
        }
        unwanted
    }
}
