//! Extents whose home is on fast disks: a pool that began with these alone has some, and so has one with fewer slow disks than
//! volumes lie on. They take space of the fast tier, and would gain nothing by a copy there.

use crate::extent::Extent;
use crate::store::Inner;
use crate::tables::{MappedRuns, VolumeState, runs_of};
use kura_array::{Class, Place};
use kura_block::DeviceId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// What is known of them.
#[derive(Default)]
pub(crate) struct FastHomes {
    /// The fast disks.
    disks: Vec<DeviceId>,
    volumes: BTreeMap<u64, Home>,
}

/// Of a volume.
struct Home {
    /// What was mapped when it was looked at, and extents in a region.
    mapped: MappedRuns,
    of: u32,
    /// Extents with a place on fast disks, in order.
    fast: Vec<u32>,
    /// By disk: places there.
    held: BTreeMap<DeviceId, u64>,
    /// Of what is mapped, regions with something on slow disks.
    slow: MappedRuns,
}

impl FastHomes {
    fn is_on_fast(&self, extent: &Extent) -> bool {
        extent.group.places().iter().any(|place| self.disks.contains(&place.device))
    }

    /// True for an extent that has no place on a slow disk.
    fn is_all_fast(&self, extent: &Extent) -> bool {
        let known = self.volumes.get(&extent.owner.volume);
        known.is_some_and(|known| known.fast.binary_search(&extent.owner.index).is_ok())
            && extent.group.places().iter().all(|place| self.disks.contains(&place.device))
    }

    /// Looks at a volume again if its map has changed. None has come to fast disks: see [`Inner::note_home`].
    fn look_at(&mut self, volume: &VolumeState, of: u32) {
        let mapped = volume.mapped_runs(of);
        let before = self.volumes.get(&volume.id);
        if before.is_some_and(|known| Rc::ptr_eq(&known.mapped, &mapped) && known.of == of) {
            return;
        }
        let fast = match before {
            Some(known) => {
                let still = |index: &u32| volume.extent(*index).is_some_and(|extent| self.is_on_fast(&extent));
                known.fast.iter().copied().filter(still).collect()
            }
            None => self.find(volume),
        };
        let mut held: BTreeMap<DeviceId, u64> = BTreeMap::new();
        let mut last = None;
        for extent in fast.iter().filter_map(|index| volume.extent(*index)) {
            // The extents of a group share its places.
            if last.as_ref().is_none_or(|last| !Rc::ptr_eq(last, &extent.group)) {
                for place in extent.group.places() {
                    *held.entry(place.device).or_default() += 1;
                }
            }
            last = Some(Rc::clone(&extent.group));
        }
        let known = Home { slow: Rc::clone(&mapped), mapped, of, fast, held };
        self.volumes.insert(volume.id, known);
        let slow = self.slow_runs(volume, of);
        if let Some(known) = self.volumes.get_mut(&volume.id) {
            known.slow = slow;
        }
    }

    fn find(&self, volume: &VolumeState) -> Vec<u32> {
        let mut found = Vec::new();
        volume.any_mapped(|extent| {
            if self.is_on_fast(extent) {
                found.push(extent.owner.index);
            }
            false
        });
        found
    }

    fn slow_runs(&self, volume: &VolumeState, of: u32) -> MappedRuns {
        let mapped = volume.mapped_runs(of);
        if self.volumes.get(&volume.id).is_none_or(|known| known.fast.is_empty()) {
            return mapped;
        }
        let is_slow = |region: &u32| {
            let mut extents = (region * of..(region + 1) * of).filter_map(|index| volume.extent(index));
            extents.any(|extent| !self.is_all_fast(&extent))
        };
        runs_of(mapped.iter().cloned().flatten().filter(is_slow))
    }
}

impl Inner {
    /// Looks again what lies on fast disks, where that may have changed.
    pub fn see_fast_homes(&self) {
        let (disks, of) = (self.fast_disks(), self.region_extents());
        let homes = &mut *self.tier.fast_homes.borrow_mut();
        if homes.disks != disks {
            *homes = FastHomes { disks, ..FastHomes::default() };
        }
        let tables = self.tables.borrow();
        let volumes = tables.volumes.homes();
        homes.volumes.retain(|id, _| volumes.contains_key(id));
        if !homes.disks.is_empty() {
            for volume in volumes.values() {
                homes.look_at(volume, of);
            }
        }
    }

    /// A group of a volume lies here from now on: on fast disks, all of the volume is looked at anew.
    pub fn note_home(&self, volume: u64, places: &[Place]) {
        if places.iter().any(|place| self.array.member(place.device).is_some_and(|disk| disk.class == Class::Fast)) {
            self.tier.fast_homes.borrow_mut().volumes.remove(&volume);
        }
    }

    /// Extents of a fast disk that volumes hold.
    pub fn homes_on(&self, disk: DeviceId) -> u64 {
        self.tier.fast_homes.borrow().volumes.values().filter_map(|known| known.held.get(&disk)).sum()
    }

    /// True for an extent that has no place on a slow disk.
    pub fn is_home_fast(&self, extent: &Extent) -> bool {
        self.tier.fast_homes.borrow().is_all_fast(extent)
    }

    /// Of what is mapped of a volume, the runs of regions that can be brought up.
    pub fn runs_below(&self, volume: &VolumeState) -> MappedRuns {
        let homes = self.tier.fast_homes.borrow();
        let known = homes.volumes.get(&volume.id).map(|known| Rc::clone(&known.slow));
        known.unwrap_or_else(|| volume.mapped_runs(self.region_extents()))
    }
}
