//! [`InProcess`].

use crate::extents::{Extents, State};
use kura_block::{ControllerId, DeviceId, Error, ExtentId, Local, NameEntry, Result, Shared};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The shared tables of the controllers of one process: put it behind an `Arc` and give each controller a clone.
#[derive(Debug, Default)]
pub struct InProcess {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    devices: BTreeMap<DeviceId, Extents>,
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
    fn device(&mut self, device: DeviceId) -> Result<&mut Extents> {
        let missing = || Error::missing(format!("device {}: not in the table of free extents: add it first", device.0));
        self.devices.get_mut(&device).ok_or_else(missing)
    }

    fn adopt(&mut self, owner: ControllerId, device: DeviceId, extents: &[ExtentId]) -> Result<()> {
        let table = self.device(device)?;
        for (at, &extent) in extents.iter().enumerate() {
            let claim = format!("device {}, extent {}: controller {} holds it", device.0, extent.0, owner.0);
            let refused = match table.state(extent) {
                State::Free => {
                    table.take(owner, extent);
                    continue;
                }
                State::Held(other) => format!("{claim} and so does controller {}: check the pool", other.0),
                State::Beyond => format!("{claim} but the device has only {} extents: check the pool", table.count()),
            };
            for &adopted in &extents[..at] {
                table.release(adopted);
            }
            return Err(Error::corrupt(refused));
        }
        Ok(())
    }

    fn give_back(&mut self, owner: ControllerId, device: DeviceId, extents: &[ExtentId]) -> Result<()> {
        let table = self.device(device)?;
        for (at, &extent) in extents.iter().enumerate() {
            if table.state(extent) == State::Held(owner) {
                table.release(extent);
                continue;
            }
            for &given in &extents[..at] {
                table.take(owner, given);
            }
            let (device, extent, owner) = (device.0, extent.0, owner.0);
            let what = format!("device {device}, extent {extent}: controller {owner} gives back what it does not hold");
            return Err(Error::invalid(what));
        }
        Ok(())
    }

    fn pass(&mut self, from: ControllerId, to: ControllerId, device: DeviceId, extents: &[ExtentId]) -> Result<()> {
        let table = self.device(device)?;
        if let Some(other) = extents.iter().find(|extent| table.state(**extent) != State::Held(from)) {
            let (device, extent, from) = (device.0, other.0, from.0);
            let what = format!("device {device}, extent {extent}: controller {from} passes on what it does not hold");
            return Err(Error::invalid(what));
        }
        for extent in extents {
            table.pass(to, *extent);
        }
        Ok(())
    }

    fn add_device(&mut self, device: DeviceId, extents: u32) -> Result<()> {
        let table = self.devices.entry(device).or_default();
        if extents < table.count() {
            let (device, count) = (device.0, table.count());
            return Err(Error::invalid(format!("device {device}: cannot shrink from {count} to {extents} extents")));
        }
        table.grow(extents);
        Ok(())
    }
}

impl Shared for InProcess {
    fn adopt(&self, owner: ControllerId, device: DeviceId, extents: &[ExtentId]) -> Local<'_, Result<()>> {
        ready(self.tables().adopt(owner, device, extents))
    }

    fn lease(&self, owner: ControllerId, device: DeviceId, count: u32) -> Local<'_, Result<Vec<ExtentId>>> {
        ready(self.tables().device(device).map(|table| table.take_lowest(owner, count)))
    }

    fn give_back(&self, owner: ControllerId, device: DeviceId, extents: &[ExtentId]) -> Local<'_, Result<()>> {
        ready(self.tables().give_back(owner, device, extents))
    }

    fn pass(
        &self,
        from: ControllerId,
        to: ControllerId,
        device: DeviceId,
        extents: &[ExtentId],
    ) -> Local<'_, Result<()>> {
        ready(self.tables().pass(from, to, device, extents))
    }

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
