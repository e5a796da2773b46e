//! [`InProcess`].

use crate::ControlTables;
use crate::names::NameTable;
use kura_block::{ControllerId, DeviceId, Error, Local, Names, Result, Shared};
use kura_snapshot::method::{ControlMemory, SharedPool};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The shared tables of the controllers of one process: put it behind an `Arc` and give each controller a clone.
#[derive(Default)]
pub struct InProcess {
    devices: Mutex<Devices>,
    names: Arc<NameTable>,
}

#[derive(Default)]
struct Devices {
    tables: BTreeMap<DeviceId, Arc<ControlTables>>,
}

impl InProcess {
    /// Without devices and names.
    pub fn new() -> Self {
        Self::default()
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        // A panic under the lock is a broken invariant, and stops its controller: the others go on with what stands.
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Devices {
    fn get(&self, device: DeviceId) -> Result<&Arc<ControlTables>> {
        let missing = || Error::missing(format!("device {}: not in the table of free extents: add it first", device.0));
        self.tables.get(&device).ok_or_else(missing)
    }

    fn add(&mut self, device: DeviceId, extents: u32) -> Result<()> {
        let table = self.tables.entry(device).or_insert_with(|| ControlTables::new(extents));
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
        ready(self.devices().get(device).map(|table| Rc::new(table.join(me)) as Rc<dyn ControlMemory>))
    }
}

impl Shared for InProcess {
    fn free(&self, device: DeviceId) -> Local<'_, Result<u32>> {
        ready(self.devices().get(device).map(|table| table.free()))
    }

    fn add_device(&self, device: DeviceId, extents: u32) -> Local<'_, Result<()>> {
        ready(self.devices().add(device, extents))
    }

    fn names(&self, me: ControllerId) -> Local<'_, Result<Rc<dyn Names>>> {
        ready(Ok(Rc::new(self.names.join(me))))
    }
}

fn ready<T: 'static>(value: T) -> Local<'static, T> {
    Box::pin(std::future::ready(value))
}

#[cfg(test)]
mod tests;
