//! [`InProcess`].

use crate::ControlTables;
use kura_block::{ControllerId, DeviceId, Error, Local, NameEntry, Result, Shared};
use kura_snapshot::method::{ControlMemory, SharedPool};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The shared tables of the controllers of one process: put it behind an `Arc` and give each controller a clone.
#[derive(Default)]
pub struct InProcess {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    devices: BTreeMap<DeviceId, Arc<ControlTables>>,
    names: BTreeMap<String, ControllerId>,
}

impl InProcess {
    /// Tables without devices and names.
    pub fn new() -> Self {
        Self::default()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // A panic under the lock is a broken invariant, and stops its controller: the others go on with what stands.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn device(&self, device: DeviceId) -> Result<&Arc<ControlTables>> {
        let missing = || Error::missing(format!("device {}: not in the table of free extents: add it first", device.0));
        self.devices.get(&device).ok_or_else(missing)
    }

    fn add_device(&mut self, device: DeviceId, extents: u32) -> Result<()> {
        let table = self.devices.entry(device).or_insert_with(|| ControlTables::new(extents));
        let count = table.entries();
        if extents < count {
            let device = device.0;
            return Err(Error::invalid(format!("device {device}: cannot shrink from {count} to {extents} extents")));
        }
        table.grow(extents);
        Ok(())
    }
}

impl SharedPool for InProcess {
    fn memory(&self, me: ControllerId, device: DeviceId) -> Local<'_, Result<Rc<dyn ControlMemory>>> {
        ready(self.tables().device(device).map(|table| Rc::new(table.join(me)) as Rc<dyn ControlMemory>))
    }
}

impl Shared for InProcess {
    fn free(&self, device: DeviceId) -> Local<'_, Result<u32>> {
        ready(self.tables().device(device).map(|table| table.free()))
    }

    fn add_device(&self, device: DeviceId, extents: u32) -> Local<'_, Result<()>> {
        ready(self.tables().add_device(device, extents))
    }

    fn take_name(&self, owner: ControllerId, name: &str) -> Local<'_, Result<()>> {
        let taken = match self.tables().names.entry(name.to_owned()) {
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(owner);
                Ok(())
            }
            std::collections::btree_map::Entry::Occupied(taken) => {
                let holder = taken.get().0;
                Err(Error::exists(format!(
                    "volume {name}: exists already, on controller {holder}: choose another name"
                )))
            }
        };
        ready(taken)
    }

    fn pass_name(&self, to: ControllerId, name: &str) -> Local<'_, Result<()>> {
        let passed = self.tables().names.get_mut(name).map(|owner| *owner = to);
        ready(passed.ok_or_else(|| Error::missing(format!("volume {name}: no such volume"))))
    }

    fn drop_name(&self, name: &str) -> Local<'_, Result<()>> {
        let dropped = self.tables().names.remove(name).map(|_| ());
        ready(dropped.ok_or_else(|| Error::missing(format!("volume {name}: no such volume"))))
    }

    fn names(&self) -> Local<'_, Result<Vec<NameEntry>>> {
        let tables = self.tables();
        let entry = |(name, &owner): (&String, &ControllerId)| NameEntry { name: name.clone(), owner };
        ready(Ok(tables.names.iter().map(entry).collect()))
    }
}

fn ready<T: 'static>(value: T) -> Local<'static, T> {
    Box::pin(std::future::ready(value))
}

#[cfg(test)]
mod tests;
