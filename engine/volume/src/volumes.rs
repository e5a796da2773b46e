//! A controller's volumes by number, and those among them that have blocks at home.

use crate::tables::VolumeState;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

type ByNumber = BTreeMap<u64, Rc<VolumeState>>;

/// All volumes, PoolVOLs and SVOLs among them.
#[derive(Default)]
pub(crate) struct Volumes {
    all: ByNumber,
    /// Those with a map, which they have for as long as they are there.
    homes: ByNumber,
}

impl Volumes {
    pub fn insert(&mut self, id: u64, volume: Rc<VolumeState>) {
        if volume.extents() > 0 {
            self.homes.insert(id, Rc::clone(&volume));
        }
        self.all.insert(id, volume);
    }

    pub fn remove(&mut self, id: u64) -> Option<Rc<VolumeState>> {
        self.homes.remove(&id);
        self.all.remove(&id)
    }

    pub fn extend(&mut self, others: Self) {
        self.homes.extend(others.homes);
        self.all.extend(others.all);
    }

    /// Volumes with blocks at home: all but SVOLs, of which there may be thousands for each of the others, and whose
    /// blocks lie in their PoolVOL.
    pub fn homes(&self) -> &ByNumber {
        &self.homes
    }
}

impl FromIterator<(u64, Rc<VolumeState>)> for Volumes {
    fn from_iter<I: IntoIterator<Item = (u64, Rc<VolumeState>)>>(volumes: I) -> Self {
        let mut some = Self::default();
        volumes.into_iter().for_each(|(id, volume)| some.insert(id, volume));
        some
    }
}

impl Deref for Volumes {
    type Target = ByNumber;

    fn deref(&self) -> &ByNumber {
        &self.all
    }
}
