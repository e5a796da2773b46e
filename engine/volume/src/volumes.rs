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
    /// The numbers of all by their names: a schedule asks for one of thousands each time.
    names: BTreeMap<String, u64>,
}

impl Volumes {
    pub fn insert(&mut self, id: u64, volume: Rc<VolumeState>) {
        if volume.extents() > 0 {
            self.homes.insert(id, Rc::clone(&volume));
        }
        self.names.insert(volume.spec.borrow().name.clone(), id);
        self.all.insert(id, volume);
    }

    pub fn remove(&mut self, id: u64) -> Option<Rc<VolumeState>> {
        self.homes.remove(&id);
        let removed = self.all.remove(&id)?;
        self.forget_name(&removed.spec.borrow().name, id);
        Some(removed)
    }

    /// A volume has another name from now on.
    pub fn rename(&mut self, id: u64, name: String) {
        if let Some(volume) = self.all.get(&id) {
            let before = std::mem::replace(&mut volume.spec.borrow_mut().name, name.clone());
            self.forget_name(&before, id);
            self.names.insert(name, id);
        }
    }

    fn forget_name(&mut self, name: &str, id: u64) {
        if self.names.get(name) == Some(&id) {
            self.names.remove(name);
        }
    }

    /// The volume of this name.
    pub fn named(&self, name: &str) -> Option<&Rc<VolumeState>> {
        self.all.get(self.names.get(name)?)
    }

    pub fn extend(&mut self, others: Self) {
        self.homes.extend(others.homes);
        self.all.extend(others.all);
        self.names.extend(others.names);
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
