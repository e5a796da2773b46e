//! One controller: one thread's volumes and the layers under them.

use crate::info::{ControllerInfo, DiskInfo, DiskState, PoolInfo, VolumeInfo};
use crate::pool::{Found, assemble};
use kura_array::{Array, Class, Label, LabelMember, Member, Plan, read_label, write_label};
use kura_block::{Block, ControllerId, DeviceId, Error, Result, Runtime, Shared};
use kura_journal::Limits;
use kura_volume::{Parts, Replayed, Settings, Store, VolumeStatus};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Opens a disk by its path, for this controller's thread.
pub type Opener = Box<dyn Fn(&str) -> Result<Rc<dyn Block>>>;

/// What a controller may do and take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// What its volumes may take.
    pub settings: Settings,
    /// When its journal is written.
    pub journal: Limits,
    /// Starts although a disk is away that may hold newer writes than the others.
    pub degraded: bool,
}

/// One controller of a pool.
pub struct Controller {
    id: ControllerId,
    runtime: Rc<dyn Runtime>,
    shared: Arc<dyn Shared>,
    store: Store,
    opener: Opener,
    replayed: Replayed,
    pool: RefCell<PoolFacts>,
}

/// What the labels say, and where the disks are.
struct PoolFacts {
    label: Label,
    found: Vec<Option<Found>>,
}

impl Controller {
    /// Opens a controller of the pool on the disks at `paths`, recovering its volumes. All controllers of a pool must
    /// be open before any of them serves: what they hold is known to the others from then on.
    pub async fn open(
        id: ControllerId,
        paths: &[String],
        opener: Opener,
        runtime: Rc<dyn Runtime>,
        shared: Arc<dyn Shared>,
        config: Config,
    ) -> Result<Rc<Self>> {
        let mut found = Vec::new();
        for path in paths {
            // A disk that cannot be opened is away; whether the pool can do without it is decided below.
            if let Ok(device) = opener(path) {
                found.push((path.clone(), device));
            }
        }
        if found.is_empty()
            && let Some(path) = paths.first()
        {
            opener(path)?;
        }
        let pool = assemble(found).await?;
        if id.0 >= pool.label.controllers {
            return Err(Error::invalid(format!("controller {} of a pool of {}", id.0, pool.label.controllers)));
        }
        let members = pool.members();
        for member in &members {
            shared.add_device(member.id, member.plan.extents).await?;
        }
        let parts = Parts {
            id,
            runtime: Rc::clone(&runtime),
            shared: Arc::clone(&shared),
            array: Array::new(members, pool.label.plan.extent_bytes),
            journal: pool.journal(id.0),
            shape: pool.shape(),
            pool: pool.label.pool,
            limits: config.journal,
            settings: config.settings,
            degraded: config.degraded,
        };
        let (store, replayed) = Store::recover(parts).await?;
        let pool = RefCell::new(PoolFacts { label: pool.label, found: pool.found });
        Ok(Rc::new(Self { id, runtime, shared, store, opener, replayed, pool }))
    }

    /// Controllers of the pool that the disks at `paths` make up.
    pub async fn count(paths: &[String], opener: &Opener) -> Result<u16> {
        let mut why = Error::invalid("a pool without disks: give at least one");
        for path in paths {
            match opener(path) {
                Ok(device) => match read_label(&*device).await {
                    Ok(Some(label)) => return Ok(label.controllers),
                    Ok(None) => why = Error::invalid(format!("{path}: no kura label: it is not a disk of a pool")),
                    Err(error) => why = error.at(path),
                },
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// The clock and task spawner of this controller's thread.
    pub fn runtime(&self) -> &Rc<dyn Runtime> {
        &self.runtime
    }

    /// Its number.
    pub fn id(&self) -> ControllerId {
        self.id
    }

    /// Its volumes.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What recovery read again.
    pub fn replayed(&self) -> Replayed {
        self.replayed
    }

    /// Opens a volume this controller owns, to be served to a client: `Missing` when it owns none of that name.
    pub fn open_volume(&self, name: &str) -> Result<Rc<dyn Block>> {
        Ok(Rc::new(self.store.open(name)?))
    }

    /// All its volumes, by number.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.store.volumes().into_iter().map(|volume| self.describe(volume)).collect()
    }

    pub(crate) fn describe(&self, volume: VolumeStatus) -> VolumeInfo {
        let copies = volume.spec.layout.copies() as u64;
        VolumeInfo {
            raw_bytes: volume.allocated_bytes * copies,
            spec: volume.spec,
            id: volume.id,
            controller: self.id.0,
            allocated_bytes: volume.allocated_bytes,
            open: volume.open,
        }
    }

    /// The controller as it is.
    pub fn info(&self) -> ControllerInfo {
        let status = self.store.status();
        ControllerInfo {
            id: self.id.0,
            volumes: self.store.volumes().len() as u32,
            journal_bytes: status.journal_bytes,
            journal_used_bytes: status.journal_used_bytes,
            dirty_bytes: status.dirty_bytes,
            dirty_limit_bytes: status.dirty_limit_bytes,
            replayed_entries: self.replayed.entries,
            replayed_bytes: self.replayed.bytes,
            reads: status.reads,
            writes: status.writes,
            read_bytes: status.read_bytes,
            written_bytes: status.written_bytes,
        }
    }

    /// The pool as this controller sees it: free is what nobody leased, and what this controller leased in advance.
    pub async fn pool(&self) -> Result<PoolInfo> {
        let mut disks = Vec::new();
        for member in self.store.array().members() {
            let free = self.shared.free(member.id).await?;
            disks.push(self.describe_disk(&member, free + self.store.leased(member.id)));
        }
        let taking = disks.iter().filter(|disk| disk.takes_data);
        let (data_bytes, free_bytes) =
            taking.fold((0, 0), |(data, free), disk| (data + disk.data_bytes, free + disk.free_bytes));
        let pool = self.pool.borrow();
        let (uuid, extent_bytes) = (pool.label.pool, pool.label.plan.extent_bytes);
        Ok(PoolInfo { uuid, extent_bytes, data_bytes, free_bytes, disks })
    }

    /// Bytes leased in advance on each disk, by id.
    pub(crate) fn leased_bytes(&self) -> Vec<u64> {
        let members = self.store.array().members();
        members.iter().map(|member| u64::from(self.store.leased(member.id)) * member.plan.extent_bytes).collect()
    }

    fn describe_disk(&self, member: &Member, free: u32) -> DiskInfo {
        let pool = self.pool.borrow();
        let at = usize::from(member.id.0);
        let (label, found) = (&pool.label.members[at], pool.found[at].as_ref());
        let state = match (member.is_away(), member.works()) {
            (true, _) => DiskState::Missing,
            (false, true) => DiskState::Healthy,
            (false, false) => DiskState::Failed,
        };
        let counters = member.counters();
        DiskInfo {
            id: member.id.0,
            uuid: label.uuid,
            path: found.map_or_else(|| "away".into(), |(path, _)| path.clone()),
            class: member.class,
            state,
            size_bytes: found.map_or(0, |(_, device)| device.geometry().size_bytes),
            data_bytes: u64::from(member.plan.extents) * member.plan.extent_bytes,
            free_bytes: u64::from(free) * member.plan.extent_bytes,
            takes_data: self.store.data_disks().contains(&member.id),
            journals: if label.journal { pool.label.controllers } else { 0 },
            io_errors: counters.io_errors,
            checksum_errors: counters.checksum_errors,
        }
    }

    /// Writes the labels of a pool that grows by a disk: the new one first, so that every label names labelled disks.
    /// Returns the new disk's number.
    pub(crate) async fn label_new_disk(&self, path: &str, class: Class, uuid: [u8; 16]) -> Result<DeviceId> {
        let device = (self.opener)(path)?;
        if read_label(&*device).await?.is_some() {
            return Err(Error::invalid(format!(
                "{path}: carries a kura label already: wipe it first if its pool is gone"
            )));
        }
        let (mut label, found) = {
            let pool = self.pool.borrow();
            (pool.label.clone(), pool.found.clone())
        };
        let plan = Plan::of(device.geometry().size_bytes, label.plan.extent_bytes, 0)?;
        if plan.extents == 0 {
            return Err(Error::invalid(format!("{path}: too small for an extent of {} bytes", plan.extent_bytes)));
        }
        let id = DeviceId(label.members.len() as u16);
        label.members.push(LabelMember { uuid, class, journal: false, extents: plan.extents });
        label.generation += 1;
        write_label(&*device, &Label { id, plan, ..label.clone() }).await?;
        for (_, device) in found.into_iter().flatten() {
            if let Some(own) = read_label(&*device).await? {
                let renewed = Label { id: own.id, plan: own.plan, journal: own.journal, ..label.clone() };
                write_label(&*device, &renewed).await?;
            }
        }
        Ok(id)
    }

    /// Takes a disk into service whose label [`Controller::label_new_disk`] wrote.
    pub(crate) async fn join_disk(&self, path: &str) -> Result<DiskInfo> {
        let device = (self.opener)(path)?;
        let label = read_label(&*device).await?.ok_or_else(|| Error::corrupt(format!("{path}: its label is gone")))?;
        let (id, own) = (label.id, label.own());
        self.shared.add_device(id, label.plan.extents).await?;
        self.store.add_disk(Member::new(id, own.class, label.plan, Some(Rc::clone(&device))));
        {
            let pool = &mut *self.pool.borrow_mut();
            pool.found.push(Some((path.into(), device)));
            let plan = pool.label.plan;
            pool.label = Label { plan, ..label };
        }
        let member = self.store.array().member(id).ok_or_else(|| Error::missing(format!("disk {}", id.0)))?;
        let free = self.shared.free(id).await?;
        Ok(self.describe_disk(&member, free))
    }
}
