//! What a controller has in common with the others of its pool: free extents, by the method of the pool, and names.
//!
//! The method says how free extents are reached (`kura_snapshot::method`), device by device; this side of it, an extent that
//! was taken is this controller's, and so is all that the tables say of it. Whatever the method, a volume has one owner: a
//! look-up of where a block lies is answered from the owner's own tables.

use kura_array::Place;
use kura_block::{ControllerId, DeviceId, ExtentId, Kind, Names, Result, Runtime};
use kura_snapshot::method::{self, ControlMemory, Counters, EntryId, Method, Region, SharedPool};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Mutex, OnceCell};

/// A controller's way to what it shares.
pub(crate) struct Share {
    me: ControllerId,
    controllers: u16,
    kind: method::Kind,
    pool: Arc<dyn SharedPool>,
    runtime: Rc<dyn Runtime>,
    devices: RefCell<BTreeMap<DeviceId, Rc<Device>>>,
    /// Held by who makes the way to a device.
    joining: Mutex<()>,
    names: OnceCell<Rc<dyn Names>>,
    /// Look-ups in the tables of volumes.
    lookups: Cell<u64>,
}

/// A device's extents, as the method shares them.
struct Device {
    memory: Rc<dyn ControlMemory>,
    method: Rc<dyn Method>,
    /// Extents that nobody had leased when this was looked at last.
    free: Cell<u32>,
    /// How often that was.
    looks: Cell<u64>,
    /// Extents taken since the start.
    taken: Cell<u32>,
}

fn entries(extents: impl IntoIterator<Item = ExtentId>) -> Vec<EntryId> {
    extents.into_iter().map(|extent| EntryId(extent.0)).collect()
}

/// An entry and what it stands for: the extents of a device are regions and entries at once, as each has one owner.
fn itself(device: DeviceId, entry: EntryId) -> (Region, EntryId) {
    (Region { volume: device.0.into(), number: entry.0.into() }, entry)
}

impl Share {
    pub fn new(
        me: ControllerId,
        controllers: u16,
        kind: method::Kind,
        pool: Arc<dyn SharedPool>,
        runtime: &Rc<dyn Runtime>,
    ) -> Self {
        let (joining, names) = (Mutex::default(), OnceCell::new());
        let (runtime, devices, lookups) = (Rc::clone(runtime), RefCell::default(), Cell::new(0));
        Self { me, controllers, kind, pool, runtime, devices, joining, names, lookups }
    }

    /// Beginning with the first use of a device the others are answered as long as the controller lives.
    async fn device(&self, device: DeviceId) -> Result<Rc<Device>> {
        let known = || self.devices.borrow().get(&device).cloned();
        if let Some(known) = known() {
            return Ok(known);
        }
        // Of two ways of one controller the first one would be refused.
        let _one = self.joining.lock().await;
        if let Some(known) = known() {
            return Ok(known);
        }
        let memory = self.pool.memory(self.me, device).await?;
        let method = self.kind.method(Rc::clone(&memory), self.controllers);
        let (asked, answers) = (Rc::clone(&memory), Rc::clone(&method));
        self.runtime.spawn(Box::pin(async move {
            while asked.arrived().await.is_ok() && answers.attend().done().await.is_ok() {}
        }));
        let made = Device { memory, method, free: Cell::new(0), looks: Cell::new(0), taken: Cell::new(0) };
        let made = Rc::new(made);
        self.devices.borrow_mut().insert(device, Rc::clone(&made));
        Ok(made)
    }

    /// These extents are this controller's, by its tables; those of a volume that comes from another one were `from` it.
    pub async fn adopt(&self, from: Option<ControllerId>, device: DeviceId, extents: Vec<ExtentId>) -> Result<()> {
        let (known, adopted) = (self.device(device).await?, entries(extents));
        let done = known.memory.adopt(from, adopted.clone()).await;
        done.map_err(|error| error.at(format!("device {}", device.0)))?;
        known.method.adopt(&adopted);
        Ok(())
    }

    /// Another controller has adopted these places.
    pub fn part_with(&self, places: impl IntoIterator<Item = Place>) {
        for Place { device, extent } in places {
            if let Some(known) = self.devices.borrow().get(&device) {
                known.method.part_with(&[EntryId(extent.0)]);
            }
        }
    }

    /// Takes a free extent of a device; `None` when there is none, also with any other controller that may not need it.
    pub async fn take(&self, device: DeviceId) -> Result<Option<ExtentId>> {
        let known = self.device(device).await?;
        let entry = match known.method.take().done().await {
            Err(error) if error.kind() == Kind::Full => return Ok(None),
            taken => taken?,
        };
        let (region, entry) = itself(device, entry);
        known.method.saved(region, entry).done().await?;
        known.taken.set(known.taken.get() + 1);
        Ok(Some(ExtentId(entry.0)))
    }

    /// Gives up extents of a device that hold nothing.
    pub async fn free(&self, device: DeviceId, extents: Vec<ExtentId>) -> Result<()> {
        let freed: Vec<_> = entries(extents).into_iter().map(|entry| itself(device, entry)).collect();
        self.device(device).await?.method.free(&freed).done().await
    }

    /// Extents that this controller may take: looked at again only when the method has none at hand.
    pub async fn available(&self, device: DeviceId) -> Result<u32> {
        let known = self.device(device).await?;
        if known.method.reserved() == 0 {
            return self.look(device).await;
        }
        Ok(known.free.get() + known.method.reserved())
    }

    /// The same as it is now, whatever is at hand.
    pub async fn look(&self, device: DeviceId) -> Result<u32> {
        let known = self.device(device).await?;
        known.looks.set(known.looks.get() + 1);
        known.free.set(self.pool.free(device).await?);
        Ok(known.free.get() + known.method.reserved())
    }

    /// Extents of a device that are this controller's and hold nothing.
    pub fn reserved(&self, device: DeviceId) -> u32 {
        self.devices.borrow().get(&device).map_or(0, |known| known.method.reserved())
    }

    /// Extents taken from a device since the start.
    pub fn taken(&self, device: DeviceId) -> u32 {
        self.devices.borrow().get(&device).map_or(0, |known| known.taken.get())
    }

    /// So many look-ups were answered from this controller's own tables.
    pub fn looked_up(&self, lookups: u64) {
        self.lookups.set(self.lookups.get() + lookups);
    }

    /// What sharing has cost since the start.
    pub fn counters(&self) -> Counters {
        let mut all = Counters { hits: self.lookups.get(), ..Counters::default() };
        for device in self.devices.borrow().values() {
            all += device.method.counters();
            all.shared_reads += device.looks.get();
        }
        all
    }

    /// This controller's way to the names of the pool.
    pub async fn names(&self) -> Result<&Rc<dyn Names>> {
        self.names.get_or_try_init(|| self.pool.names(self.me)).await
    }
}
