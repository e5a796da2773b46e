//! The controllers of a pool, joined.

use crate::info::{CheckReport, ControllerInfo, DiskInfo, DiskState, PoolInfo, VolumeInfo};
use crate::membership::{Noted, Tended};
use crate::recording::Ring;
use crate::{Config, Controller, Door, Recovered, door};
use futures::future::try_join_all;
use kura_block::{Amount, Block, ControllerId, DeviceId, Error, Kind, Local, Progress, Result, Runtime};
use kura_volume::{Check, OnlyCopies, SharedPool, Space, Spec};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::{Mutex, RwLock};

/// The controllers of a pool, joined. Usable from any thread; clones are the same node.
#[derive(Clone)]
pub struct Node {
    pub(crate) doors: Arc<[Door]>,
    /// Held by whoever changes the pool's membership.
    pub(crate) membership: Arc<Mutex<Tended>>,
    /// Held by whoever makes snapshots of several controllers' volumes at one instant, or moves a volume.
    pub(crate) instant: Arc<Mutex<()>>,
    /// Written while a volume that moves to another controller is nobody's: who looks for volumes reads it.
    pub(crate) moving: Arc<RwLock<()>>,
}

impl Node {
    /// A node of these controllers, in the order of their numbers. All are open; [`Node::begin`] comes next.
    pub fn new(doors: Vec<Door>) -> Self {
        Self { doors: doors.into(), membership: Arc::default(), instant: Arc::default(), moving: Arc::default() }
    }

    /// Starts all controllers of the pool on the disks at `paths` on this one thread, and joins them: in virtual time there
    /// is no other.
    pub async fn start(
        paths: &[String],
        opener: impl Fn(&str) -> Result<Rc<dyn Block>> + Clone + 'static,
        runtime: &Rc<dyn Runtime>,
        shared: &Arc<dyn SharedPool>,
        config: Config,
    ) -> Result<(Self, Vec<Rc<Controller>>)> {
        let recover = |id| {
            let (runtime, shared) = (Rc::clone(runtime), Arc::clone(shared));
            Controller::recover(ControllerId(id), paths, Box::new(opener.clone()), runtime, shared, config)
        };
        let mut recovered = Vec::new();
        let sight = Controller::look(paths, Box::new(opener.clone()), runtime, config.disk_timeout).await?;
        for id in 0..sight.controllers {
            recovered.push(recover(id).await?);
        }
        Recovered::check_same_disks(&recovered.iter().map(Recovered::disks).collect::<Vec<_>>())?;
        let (mut doors, mut controllers) = (Vec::new(), Vec::new());
        for recovered in recovered {
            let controller = recovered.begin().await?;
            let (entrance, inbox) = door();
            runtime.spawn(Box::pin(inbox.serve(Rc::clone(&controller))));
            doors.push(entrance);
            controllers.push(controller);
        }
        let node = Self::new(doors);
        node.begin().await?;
        Ok((node, controllers))
    }

    /// Asks every controller at once.
    pub(crate) async fn ask_all<T: Send + 'static>(
        &self,
        ask: impl Fn(Rc<Controller>) -> Local<'static, Result<T>> + Clone + Send + 'static,
    ) -> Result<Vec<T>> {
        let answers = self.doors.iter().map(|door| {
            let ask = ask.clone();
            door.call(move |controller| ask(controller))
        });
        try_join_all(answers).await?.into_iter().collect()
    }

    /// The same for what each can say at once.
    pub(crate) async fn ask_each<T: Send + 'static>(
        &self,
        ask: impl Fn(&Rc<Controller>) -> T + Clone + Send + 'static,
    ) -> Result<Vec<T>> {
        self.ask_all(move |controller| Box::pin(std::future::ready(Ok(ask(&controller))))).await
    }

    /// The door of the controller that owns the volume, and the volume as it is.
    pub async fn find(&self, name: &str) -> Result<(Door, VolumeInfo)> {
        let _each_is_somebodys = self.moving.read().await;
        let sought = name.to_owned();
        let volume = self.ask_each(move |controller| controller.volume(&sought)).await?.into_iter().flatten().next();
        let volume =
            volume.ok_or_else(|| Error::missing(format!("volume {name}: no such volume: see `kura volume list`")))?;
        Ok((self.doors[usize::from(volume.controller)].clone(), volume))
    }

    /// Has the owner of a volume do `work`, which leaves everything as it is where it finds something `Missing`: then the
    /// volume may have moved since its owner was found, and the next owner is asked.
    pub(crate) async fn at_owner<T: Send + 'static>(
        &self,
        name: &str,
        work: impl Fn(Rc<Controller>, String) -> Local<'static, Result<T>> + Clone + Send + 'static,
    ) -> Result<T> {
        let mut asked = None;
        loop {
            let (door, volume) = self.find(name).await?;
            let (work, name) = (work.clone(), name.to_owned());
            let done = door.call(move |controller| work(controller, name)).await?;
            match done {
                Err(error) if error.kind() == Kind::Missing && asked != Some(volume.controller) => {
                    asked = Some(volume.controller);
                }
                done => return done,
            }
        }
    }

    /// The same for what its owner knows at once.
    pub(crate) async fn ask_owner<T: Send + 'static>(
        &self,
        name: &str,
        ask: impl Fn(&Controller, &str) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        self.at_owner(name, move |controller, name| Box::pin(std::future::ready(ask(&controller, &name)))).await
    }

    /// All volumes, by name.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let _each_is_somebodys = self.moving.read().await;
        let each = self.ask_each(|controller| controller.volumes()).await?;
        let mut volumes: Vec<_> = each.into_iter().flatten().collect();
        volumes.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
        Ok(volumes)
    }

    /// Makes a volume, on the controller with the fewest.
    pub async fn create_volume(&self, spec: Spec) -> Result<VolumeInfo> {
        let least = usize::from(self.least_loaded().await?);
        self.check_room(&self.doors[least], &spec).await?;
        let work = move |controller: Rc<Controller>| -> Local<'static, Result<VolumeInfo>> {
            Box::pin(async move { Ok(controller.describe(controller.store().create(spec).await?)) })
        };
        self.doors[least].call(work).await?
    }

    /// Refuses a thick volume, or its growth, that the pool has no room for.
    async fn check_room(&self, door: &Door, spec: &Spec) -> Result<()> {
        if !spec.thick {
            return Ok(());
        }
        for looked_again in [false, true] {
            let pool = self.pool().await?;
            let snapshots_bytes = self.space().await?.snapshot_bytes;
            let room_on = |disk: &DiskInfo| {
                let more_bytes = disk.used_bytes().min(snapshots_bytes);
                (disk.free_bytes / pool.extent_bytes, more_bytes.div_ceil(pool.extent_bytes))
            };
            let room: BTreeMap<_, _> = pool.disks.iter().map(|disk| (DeviceId(disk.id), room_on(disk))).collect();
            let spec = spec.clone();
            let checked = door.ask(move |controller| controller.store().check_room(&spec, &room)).await?;
            if checked.is_ok() || looked_again {
                return checked;
            }
            // What was given up lately is free after a checkpoint.
            let freed = self.ask_all(|controller| Box::pin(async move { controller.store().checkpoint().await })).await;
            if let Err(error) = freed {
                tracing::debug!(%error, "what was given up lately is not free yet");
            }
        }
        Ok(())
    }

    /// Refuses what [`Node::resize_volume`] refuses before it begins.
    pub async fn check_resize_volume(&self, name: &str, size_bytes: u64, shrink: bool) -> Result<()> {
        let (door, volume) = self.find(name).await?;
        if size_bytes < volume.spec.size_bytes && !shrink {
            return Err(Error::invalid(format!(
                "volume {name}: {} are fewer than its {}: what lies beyond would be lost; say --shrink to do so",
                Amount(size_bytes),
                Amount(volume.spec.size_bytes)
            )));
        }
        self.ask_owner(name, move |controller, name| controller.store().check_resize(name, size_bytes)).await?;
        if size_bytes > volume.spec.size_bytes {
            self.check_room(&door, &Spec { size_bytes, ..volume.spec }).await?;
        }
        Ok(())
    }

    /// Changes a volume's size; smaller only with `shrink`.
    pub async fn resize_volume(&self, name: &str, size_bytes: u64, shrink: bool) -> Result<VolumeInfo> {
        self.check_resize_volume(name, size_bytes, shrink).await?;
        let resize = move |controller: Rc<Controller>, name: String| -> Local<'static, Result<VolumeInfo>> {
            Box::pin(async move { Ok(controller.describe(controller.store().resize(&name, size_bytes).await?)) })
        };
        self.at_owner(name, resize).await
    }

    /// Refuses what [`Node::delete_volume`] refuses.
    pub async fn check_delete_volume(&self, name: &str, force: bool) -> Result<()> {
        self.ask_owner(name, move |controller, name| controller.check_delete_volume(name, force)).await
    }

    /// Deletes a volume; `Busy` when a client has it open and not `force`.
    pub async fn delete_volume(&self, name: &str, force: bool) -> Result<()> {
        let delete = move |controller: Rc<Controller>, name: String| -> Local<'static, Result<Option<Ring>>> {
            Box::pin(async move { controller.delete_volume(&name, force).await })
        };
        let recorded = self.at_owner(name, delete).await?;
        drop(recorded);
        Ok(())
    }

    /// The pool and its disks: errors and what they hold summed over the controllers, a disk failed when one of them
    /// says so.
    pub async fn pool(&self) -> Result<PoolInfo> {
        let _each_is_somebodys = self.moving.read().await;
        let ask = |controller: Rc<Controller>| -> Local<'static, Result<(PoolInfo, Vec<u64>)>> {
            Box::pin(async move {
                let pool = controller.pool().await?;
                let leased = pool.disks.iter().map(|disk| controller.leased_bytes(DeviceId(disk.id))).collect();
                Ok((pool, leased))
            })
        };
        let mut views = self.ask_all(ask).await?.into_iter();
        let (mut pool, _) = views.next().ok_or_else(|| Error::retry("no controller serves"))?;
        for (view, leased) in views {
            for (other, leased_bytes) in view.disks.into_iter().zip(leased) {
                // That a disk is gone, each learns at a moment of its own.
                let Some(disk) = pool.disks.iter_mut().find(|disk| disk.id == other.id) else { continue };
                disk.io_errors += other.io_errors;
                disk.checksum_errors += other.checksum_errors;
                disk.unwanted_bytes += other.unwanted_bytes;
                disk.lost_bytes += other.lost_bytes;
                disk.journals += other.journals;
                disk.journals_due += other.journals_due;
                disk.only_journals += other.only_journals;
                disk.stalled = disk.stalled.take().or(other.stalled);
                disk.free_bytes += leased_bytes;
                pool.free_bytes += if disk.takes_data { leased_bytes } else { 0 };
                // That a disk leaves, all are told in the end: a crash may come when only some have noted it.
                if other.state != DiskState::Healthy && disk.state != DiskState::Leaving {
                    disk.state = other.state;
                }
            }
        }
        Ok(pool)
    }

    /// What takes the pool's space.
    pub async fn space(&self) -> Result<Space> {
        let each = self.ask_each(|controller| controller.store().space()).await?;
        Ok(each.into_iter().fold(Space::default(), |sum, space| Space {
            volume_bytes: sum.volume_bytes + space.volume_bytes,
            hot_bytes: sum.hot_bytes + space.hot_bytes,
            borrowed_bytes: sum.borrowed_bytes + space.borrowed_bytes,
            snapshot_bytes: sum.snapshot_bytes + space.snapshot_bytes,
        }))
    }

    /// The controllers, by number.
    pub async fn controllers(&self) -> Result<Vec<ControllerInfo>> {
        self.ask_each(|controller| controller.info()).await
    }

    /// Refuses what [`Node::fail_disk`] refuses.
    pub async fn check_fail_disk(&self, disk: DeviceId, force: bool) -> Result<()> {
        let id = disk.0;
        let pool = self.pool().await?;
        if !pool.disks.iter().any(|info| info.id == id) {
            return Err(Error::missing(format!("disk {id}: no such disk; `kura disk list` lists them")));
        }
        let each = self.ask_each(move |controller| controller.store().only_on_disk(disk)).await?;
        let only = each.into_iter().try_fold(OnlyCopies::default(), |all, one| one.map(|one| all.join(one)))?;
        let what = only.tell(pool.extent_bytes);
        let refused = if only.has_journal {
            format!(
                "disk {id} carries the only copy of the journals, without which nothing is served: add a disk of its class first"
            )
        } else if only.extents > 0 && !force {
            format!(
                "disk {id} has the only copy of {what}: `kura disk remove {id}` moves it to the others first; say --force to lose it"
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid(refused))
    }

    /// Marks a disk as failed: it is not used until it is replaced. Refused where it has the only copy of something, unless
    /// `force`, and always where nothing could be served without it.
    pub async fn fail_disk(&self, disk: DeviceId, force: bool) -> Result<()> {
        // Of two that are failed at once, the second one is looked at when the first one has.
        let _alone = self.membership.lock().await;
        self.check_fail_disk(disk, force).await?;
        self.note(disk, Noted::Failed).await
    }

    /// Checks every table and, as far as is asked, every copy of every written block.
    pub async fn check(&self, check: Check) -> Result<CheckReport> {
        self.check_along(check, &Progress::default()).await
    }

    /// The same, while `progress` is told of the bytes of volumes; where it is cancelled, what is left is not looked at.
    pub async fn check_along(&self, check: Check, progress: &Progress) -> Result<CheckReport> {
        let progress = progress.clone();
        let ask = move |controller: Rc<Controller>| -> Local<'static, Result<CheckReport>> {
            let progress = progress.clone();
            Box::pin(async move { controller.store().check_along(check, &progress).await })
        };
        let reports = self.ask_all(ask).await?;
        reports.into_iter().reduce(CheckReport::join).ok_or_else(|| Error::retry("no controller serves"))
    }

    /// Writes everything to its place, checkpoints, and stops the controllers.
    pub async fn stop(&self) -> Result<()> {
        let _none_moves = self.instant.lock().await;
        self.ask_all(|controller| Box::pin(async move { controller.store().stop().await })).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DiskClass, NewDisk, PoolSpec, format};
    use kura_shared::InProcess;
    use kura_sim::{DiskSpec, Sim, SimDisk};

    /// A disk is gone for one controller, and not yet for the other: what they say of the disks behind it is not mixed up.
    #[test]
    fn a_disk_that_is_gone_for_some_changes_no_other() {
        for told in [0, 1] {
            let sim = Sim::new(1);
            let disks: Vec<_> = (0..5).map(|id| sim.disk(&format!("disk{id}"), DiskSpec::nvme(24 << 20))).collect();
            let new = disks.iter().zip(1..).map(|(disk, id)| NewDisk {
                path: disk.name().into(),
                device: disk.open(),
                class: DiskClass::Slow,
                uuid: [id; 16],
            });
            let (extent_bytes, journal_bytes) = (64 << 10, 5 << 20);
            let spec = PoolSpec { uuid: [9; 16], extent_bytes, controllers: 2, journal_bytes, floating_percent: 0 };
            sim.block_on(format(&new.collect::<Vec<_>>(), &spec)).unwrap();
            let paths: Vec<_> = disks.iter().map(|disk| disk.name().to_owned()).collect();
            let shared: Arc<dyn SharedPool> = Arc::new(InProcess::new());
            let runtime: Rc<dyn Runtime> = sim.runtime();
            sim.block_on(async {
                let opener = SimDisk::opener(&disks);
                let (node, all) = Node::start(&paths, opener, &runtime, &shared, Config::default()).await.unwrap();
                all[1].store().fail_disk(DeviceId(3)).await.unwrap();
                let mut before = node.pool().await.unwrap().disks;
                let mut label = all[told].pool.borrow().label.clone();
                label.members[2].gone = true;
                all[told].relabelled(&label);
                let mut after = node.pool().await.unwrap().disks;
                for disks in [&mut before, &mut after] {
                    disks.retain(|disk| disk.id != 2);
                }
                assert_eq!(after, before);
                assert_eq!(after[2].state, DiskState::Failed);
            });
        }
    }
}
