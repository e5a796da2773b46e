//! One controller: one thread's volumes and the layers under them.
//!
//! What starts a controller returns a boxed future: a bare one is built in every crate that awaits it, and nearly all of the engine
//! with it.

use crate::info::{ControllerInfo, DiskInfo, DiskState, PoolInfo, VolumeInfo};
use crate::membership::Joining;
use crate::moving::{Ferry, Harbour};
use crate::patient::Patient;
use crate::pool::{Found, assemble, is_member, newest};
use crate::recording::{Recorder, Ring, Tap};
use crate::room::Drops;
use futures::future::join_all;
use kura_array::{Array, Label, Member, read_label};
use kura_block::{Block, Clients, ControllerId, DeviceId, Error, Local, Result, Runtime};
use kura_journal::Limits;
use kura_volume::{Held, HeldWrites, Parts, Replayed, Settings, SharedPool, Store, Volume, VolumeStatus};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Opens a disk by its path, for this controller's thread.
pub type Opener = Box<dyn Fn(&str) -> Result<Rc<dyn Block>>>;

/// What a controller may do and take.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// What its volumes may take.
    pub settings: Settings,
    /// When its journal is written.
    pub journal: Limits,
    /// Starts although disks are away that may hold newer writes than the others, or the only copy of something.
    pub degraded: bool,
    /// After this long without an answer a disk counts as failed; zero waits for ever.
    pub disk_timeout: Duration,
}

/// One controller of a pool.
pub struct Controller {
    id: ControllerId,
    runtime: Rc<dyn Runtime>,
    pub(crate) shared: Arc<dyn SharedPool>,
    store: Store,
    pub(crate) opener: Opener,
    replayed: Replayed,
    pub(crate) pool: RefCell<PoolFacts>,
    /// Volumes whose writes wait for snapshots of one instant.
    pub(crate) held_writes: RefCell<Vec<HeldWrites>>,
    /// Where the clients of a volume find its recording, by the volume's name.
    taps: RefCell<BTreeMap<String, Rc<Tap>>>,
    /// The tiering policy at work.
    pub(crate) tiering: RefCell<Option<kura_tier::Settings>>,
    /// Volumes that went elsewhere, and clients from there.
    pub(crate) harbour: Rc<Harbour>,
    /// Snapshots that a full pool has dropped, where this controller is the first.
    pub(crate) drops: Drops,
    /// What gives its journal its copies.
    pub(crate) joining: Joining,
}

/// What the labels say, and where the disks are.
pub(crate) struct PoolFacts {
    pub label: Label,
    pub found: Vec<Option<Found>>,
}

/// Opens disks that are not waited for longer than `limit`.
fn watched(opener: Opener, runtime: &Rc<dyn Runtime>, limit: Duration) -> Opener {
    let runtime = Rc::clone(runtime);
    Box::new(move |path| Ok(Rc::new(Patient::new(opener(path)?, path, limit, &runtime)) as Rc<dyn Block>))
}

/// A controller that knows its volumes and has written nothing yet.
pub struct Recovered {
    id: ControllerId,
    runtime: Rc<dyn Runtime>,
    shared: Arc<dyn SharedPool>,
    store: kura_volume::Recovered,
    opener: Opener,
    pool: PoolFacts,
}

/// The disks of a pool, as a controller has found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDisks {
    /// How often the pool's membership has changed, by the newest label that was read.
    generation: u64,
    /// Those that were not found.
    away: BTreeSet<DeviceId>,
}

impl Recovered {
    /// Refuses a start whose controllers have not found the same disks: one that some have not found, and others have, would go
    /// out of service for all of them.
    pub fn check_same_disks(found: &[FoundDisks]) -> Result<()> {
        let Some((first, others)) = found.split_first() else { return Ok(()) };
        let Some(other) = others.iter().find(|other| *other != first) else { return Ok(()) };
        let which = match first.away.symmetric_difference(&other.away).next() {
            Some(disk) => format!("disk {}", disk.0),
            None => "a disk that joined lately".to_owned(),
        };
        Err(Error::retry(format!(
            "{which} was there for some controllers and not for others: is it just being switched on? Start again"
        )))
    }

    /// The disks of the pool.
    pub fn disks(&self) -> FoundDisks {
        FoundDisks { generation: self.pool.label.generation, away: self.store.away() }
    }

    /// Begins, when all controllers of the pool have recovered: one that may not begin keeps the others from writing
    /// anything without the disks that it misses. All must have begun before any of them serves: what they hold is known to
    /// the others from then on.
    pub fn begin(self) -> Local<'static, Result<Rc<Controller>>> {
        Box::pin(async move {
            let replayed = self.store.replayed();
            Ok(Rc::new(Controller {
                id: self.id,
                runtime: self.runtime,
                shared: self.shared,
                store: self.store.begin().await?,
                opener: self.opener,
                replayed,
                pool: RefCell::new(self.pool),
                held_writes: RefCell::default(),
                taps: RefCell::default(),
                tiering: RefCell::default(),
                harbour: Rc::default(),
                drops: Drops::default(),
                joining: Joining::default(),
            }))
        })
    }
}

/// What the labels of disks tell before any of them is used.
pub struct Sight {
    /// Controllers of the pool that they make up.
    pub controllers: u16,
    /// Bytes in an extent of it.
    pub extent_bytes: u64,
    /// The paths of those that are its members.
    pub members: Vec<String>,
}

impl Controller {
    /// Recovers the volumes of a controller of the pool on the disks at `paths`.
    pub fn recover(
        id: ControllerId,
        paths: &[String],
        opener: Opener,
        runtime: Rc<dyn Runtime>,
        shared: Arc<dyn SharedPool>,
        config: Config,
    ) -> Local<'_, Result<Recovered>> {
        Box::pin(async move {
            let opener = watched(opener, &runtime, config.disk_timeout);
            let mut found = Vec::new();
            for path in paths {
                match opener(path) {
                    Ok(device) => found.push((path.clone(), device)),
                    // It is away; whether the pool can do without it is decided below.
                    Err(error) if id.0 == 0 => tracing::warn!(%error, "a disk cannot be opened"),
                    Err(_) => {}
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
                array: Array::new(members, pool.label.plan.extent_bytes, Rc::clone(&runtime))
                    .with_queues(config.settings.disk_queue)
                    .with_maps(config.settings.pages),
                journal: pool.journal(id.0),
                shape: pool.shape(),
                pool: pool.label.pool,
                limits: config.journal,
                settings: config.settings,
                controllers: pool.label.controllers,
                degraded: config.degraded,
            };
            let store = Store::recover(parts).await?;
            let pool = PoolFacts { label: pool.label, found: pool.found };
            Ok(Recovered { id, runtime, shared, store, opener, pool })
        })
    }

    /// What the labels of the disks at `paths` tell; one that does not answer within `disk_timeout` tells nothing. An error where
    /// none tells which pool they make up.
    pub fn look<'a>(
        paths: &'a [String],
        opener: Opener,
        runtime: &'a Rc<dyn Runtime>,
        disk_timeout: Duration,
    ) -> Local<'a, Result<Sight>> {
        Box::pin(async move {
            let opener = watched(opener, runtime, disk_timeout);
            let label = async |path: &String| read_label(&*opener(path)?).await.map_err(|error| error.at(path));
            let mut labelled = Vec::new();
            let mut why = Error::invalid("a pool without disks: give at least one");
            for (path, label) in paths.iter().zip(join_all(paths.iter().map(label)).await) {
                match label {
                    Ok(Some(label)) => labelled.push((path, label)),
                    Ok(None) => why = Error::invalid(format!("{path}: no kura label: it is not a disk of a pool")),
                    Err(error) => {
                        tracing::warn!(%error, "a disk's label cannot be read");
                        why = error;
                    }
                }
            }
            let newest = newest(labelled.iter().map(|(_, label)| label)).ok_or(why)?;
            let members = labelled.iter().filter(|(_, label)| is_member(newest, label));
            Ok(Sight {
                controllers: newest.controllers,
                extent_bytes: newest.plan.extent_bytes,
                members: members.map(|(path, _)| (*path).clone()).collect(),
            })
        })
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

    /// Opens a volume this controller owns, to be served to a client: `Missing` when it owns none of that name. It stays open
    /// when the volume moves to another controller.
    pub fn open_volume(&self, name: &str) -> Result<Rc<dyn Block>> {
        Ok(self.opened(self.store.open(name)?))
    }

    pub(crate) fn opened(&self, volume: Volume) -> Rc<dyn Block> {
        let tap = self.tap(&volume.name());
        Rc::new(Recorder::new(Ferry::new(&self.store, &self.harbour, volume), tap))
    }

    /// Refuses what would take a volume away under clients that have it open, unless with `force`; `remedy` says what to do first.
    pub(crate) fn check_unopened(&self, name: &str, force: bool, remedy: &str) -> Result<()> {
        match self.store.status_by_name(name)?.open {
            open if open > 0 && !force => {
                Err(Error::busy(format!("volume {name}: {}: {remedy}, or say --force", Clients(open))))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what [`Controller::delete_volume`] refuses.
    pub(crate) fn check_delete_volume(&self, name: &str, force: bool) -> Result<()> {
        self.check_unopened(name, force, "disconnect them")?;
        self.store.check_delete(name)
    }

    /// Deletes a volume and its recording, whose memory is the caller's to give back.
    pub(crate) async fn delete_volume(&self, name: &str, force: bool) -> Result<Option<Ring>> {
        self.check_delete_volume(name, force)?;
        // Nobody opens it in between: it is gone before anything is waited for.
        self.store.delete(name).await?;
        let ring = self.drop_recording(name);
        self.taps.borrow_mut().remove(name);
        Ok(ring)
    }

    /// Where the clients of a volume find its recording.
    pub(crate) fn tap(&self, volume: &str) -> Rc<Tap> {
        Rc::clone(self.taps.borrow_mut().entry(volume.to_owned()).or_default())
    }

    pub(crate) fn taps(&self) -> &RefCell<BTreeMap<String, Rc<Tap>>> {
        &self.taps
    }

    /// All its volumes, by number.
    pub fn volumes(&self) -> Vec<VolumeInfo> {
        self.store.volumes().into_iter().map(|volume| self.describe(volume)).collect()
    }

    /// A volume by name; none where it is not this controller's.
    pub(crate) fn volume(&self, name: &str) -> Option<VolumeInfo> {
        self.store.status_by_name(name).ok().map(|volume| self.describe(volume))
    }

    pub(crate) fn describe(&self, volume: VolumeStatus) -> VolumeInfo {
        let (width, columns) = volume.shape.cost();
        VolumeInfo {
            raw_bytes: volume.allocated_bytes / columns * width,
            shape: volume.shape,
            spec: volume.spec,
            id: volume.id,
            controller: self.id.0,
            allocated_bytes: volume.allocated_bytes,
            open: volume.open,
            family: volume.family,
            work: volume.work,
            snapshots: volume.snapshots,
            lost: volume.lost,
            doomed: volume.doomed,
            svol: volume.svol,
        }
    }

    /// The controller as it is.
    pub fn info(&self) -> ControllerInfo {
        let status = self.store.status();
        ControllerInfo {
            id: self.id.0,
            volumes: self.store.volumes_count() as u32,
            drained: self.store.is_drained(),
            failure: self.store.failure().map(|error| error.to_string()),
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
            straight_bytes: status.straight_bytes,
            array: status.array,
            ordered_blocks: status.ordered_blocks,
            method: self.store.sharing().0,
            sharing: self.store.sharing().1,
            carried: self.harbour.carried(),
            snapshot_stops: self.store.snapshot_stops(),
        }
    }

    /// The pool as this controller sees it: free is what nobody leased, and what this controller leased in advance.
    pub async fn pool(&self) -> Result<PoolInfo> {
        let mut disks = Vec::new();
        let unwanted = self.store.unwanted();
        for member in self.store.array().members() {
            if self.pool.borrow().label.members[usize::from(member.id.0)].gone {
                continue;
            }
            let free = self.shared.free(member.id).await? + self.store.leased(member.id);
            disks.push(self.describe_disk(&member, free, unwanted.get(&member.id).copied()));
        }
        let taking = disks.iter().filter(|disk| disk.takes_data);
        let (data_bytes, free_bytes) =
            taking.fold((0, 0), |(data, free), disk| (data + disk.data_bytes, free + disk.free_bytes));
        let pool = self.pool.borrow();
        let (uuid, extent_bytes) = (pool.label.pool, pool.label.plan.extent_bytes);
        Ok(PoolInfo { uuid, extent_bytes, data_bytes, free_bytes, disks })
    }

    /// Bytes leased in advance on a disk.
    pub(crate) fn leased_bytes(&self, disk: DeviceId) -> u64 {
        u64::from(self.store.leased(disk)) * self.store.array().extent_bytes()
    }

    pub(crate) fn describe_disk(&self, member: &Member, free: u32, unwanted: Option<Held>) -> DiskInfo {
        let pool = self.pool.borrow();
        let at = usize::from(member.id.0);
        let (label, found) = (&pool.label.members[at], pool.found[at].as_ref());
        let leaving = self.store.leaving_disks().contains(&member.id);
        let state = match (member.is_away(), member.works()) {
            _ if leaving => DiskState::Leaving,
            (true, _) => DiskState::Missing,
            (false, true) => DiskState::Healthy,
            (false, false) => DiskState::Failed,
        };
        let counters = member.counters();
        let (has_journal, has_only_journal) = self.store.journal_on(member.id);
        let is_to_have_journal = label.journal.is_some() && self.store.failure().is_none();
        let stalled = unwanted.and_then(|_| self.store.rebuild_stalled());
        let keeps = || (state == DiskState::Leaving).then(|| self.keeps_journals(member.id)).flatten();
        DiskInfo {
            id: member.id.0,
            uuid: label.uuid,
            path: found.map_or_else(|| "away".into(), |(path, _)| path.clone()),
            class: member.class,
            state,
            size_bytes: found.map_or(0, |(_, device)| device.geometry().size_bytes),
            data_bytes: u64::from(member.plan.extents) * member.plan.extent_bytes,
            free_bytes: u64::from(free) * member.plan.extent_bytes,
            unwanted_bytes: unwanted.map_or(0, |held| held.copies * member.plan.extent_bytes),
            lost_bytes: unwanted.map_or(0, |held| held.lost * member.plan.extent_bytes),
            stalled: stalled
                .or_else(|| self.store.journal_refused(member.id))
                .or_else(keeps)
                .map(|error| error.to_string()),
            takes_data: self.store.data_disks().contains(&member.id),
            journals: u16::from(has_journal),
            journals_due: u16::from(is_to_have_journal),
            only_journals: u16::from(has_only_journal),
            io_errors: counters.io_errors,
            checksum_errors: counters.checksum_errors,
        }
    }
}
