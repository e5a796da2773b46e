//! Moving volumes of a node.

use crate::info::{ControllerInfo, VolumeInfo};
use crate::{Controller, Node};
use kura_block::{ControllerId, Error, Local, Progress, Result};
use kura_volume::Ticket;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// A volume that moved.
#[derive(Clone, Debug)]
pub struct Moved {
    /// As it is now.
    pub volume: VolumeInfo,
    /// The controller that owned it.
    pub from: u16,
    /// How long its writes waited; none where it was there already.
    pub waited: Duration,
}

/// What came of draining a controller.
#[derive(Clone, Debug, Default)]
pub struct Drained {
    /// What moved, each named by one of its family.
    pub moved: Vec<Moved>,
    /// Volumes that stay, and why.
    pub stays: Vec<(String, Error)>,
}

impl Node {
    /// Lets the controllers begin: families that were moving when they stopped are one's or the other's from here on, and
    /// extents are leased. Before this nothing is served.
    pub async fn begin(&self) -> Result<()> {
        if let Err(error) = self.first(|controller| Box::pin(async move { controller.level_labels().await })).await {
            tracing::warn!(%error, "not every disk knows which disks the pool has");
        }
        for (number, door) in self.doors.iter().enumerate() {
            let me = ControllerId(number as u16);
            for (from, ticket) in door.ask(|controller| controller.store().arrivals()).await? {
                self.settle(from, me, ticket).await?;
            }
        }
        self.share_drops();
        for door in self.doors.iter() {
            door.send(|controller| {
                let store = controller.store();
                // All that departed has arrived, durably.
                for (to, ticket, _) in store.departures() {
                    store.forget(to, ticket);
                }
                store.begin_upkeep();
            });
        }
        Ok(())
    }

    /// Decides whose a family is that was on its way from one controller to another.
    async fn settle(&self, from: ControllerId, to: ControllerId, ticket: Ticket) -> Result<()> {
        let old = self.doors.get(usize::from(from.0));
        let old =
            old.ok_or_else(|| Error::corrupt(format!("a volume comes from controller {}: there is none", from.0)))?;
        let departed = old
            .ask(move |controller| {
                let departures = controller.store().departures();
                let found = departures.into_iter().find(|(whose, which, _)| (*whose, *which) == (to, ticket));
                found.map(|(.., past)| past)
            })
            .await?;
        let settle = move |controller: Rc<Controller>| -> Local<'static, Result<()>> {
            Box::pin(async move {
                match departed {
                    Some(past) => controller.store().arrive_late(ticket, past).await,
                    None => {
                        controller.store().cancel(ticket);
                        Ok(())
                    }
                }
            })
        };
        self.doors[usize::from(to.0)].call(settle).await?
    }

    /// The controller with the fewest volumes, and of those the one whose volumes are smallest in sum, among those that take
    /// some: a thin volume's size says little of the work it makes, and snapshots make none.
    pub(crate) async fn least_loaded(&self) -> Result<u16> {
        let mut load = vec![(0, 0); self.doors.len()];
        for volume in self.volumes().await?.into_iter().filter(|volume| !volume.spec.name.contains('@')) {
            let (volumes, size_bytes) = &mut load[usize::from(volume.controller)];
            *volumes += 1;
            *size_bytes += volume.spec.size_bytes;
        }
        let least = self.takes_volumes().await?.into_iter().min_by_key(|controller| load[usize::from(*controller)]);
        least.ok_or_else(|| {
            Error::busy(
                "no controller takes volumes: let one that is drained (kura controller resume), or restart the server \
                 where one takes no writes",
            )
        })
    }

    /// Controllers that take volumes: those that are not drained, and whose journal can note one.
    pub(super) async fn takes_volumes(&self) -> Result<BTreeSet<u16>> {
        let takes = |controller: &ControllerInfo| !controller.drained && controller.failure.is_none();
        let controllers = self.controllers().await?.into_iter();
        Ok(controllers.filter(takes).map(|controller| controller.id).collect())
    }

    async fn set_drained(&self, controller: u16, drained: bool) -> Result<()> {
        let set = move |controller: Rc<Controller>| -> Local<'static, Result<()>> {
            Box::pin(async move { controller.store().set_drained(drained).await })
        };
        self.doors[usize::from(controller)].call(set).await?
    }

    /// Refuses the number of a controller that there is not.
    pub fn check_controller(&self, controller: u16) -> Result<()> {
        let count = self.doors.len();
        if usize::from(controller) < count {
            return Ok(());
        }
        let last = count.saturating_sub(1);
        Err(Error::invalid(format!("controller {controller}: there are {count}: give a number from 0 to {last}")))
    }

    /// Moves all volumes of a controller to the others, and gives it none until [`Node::resume`], also after a restart.
    pub async fn drain(&self, controller: u16) -> Result<Drained> {
        self.drain_along(controller, &Progress::default()).await
    }

    /// The same, while `progress` is told of volumes, snapshots and clones among them; where it is cancelled, no more of them
    /// move, and the controller takes none all the same.
    pub async fn drain_along(&self, controller: u16, progress: &Progress) -> Result<Drained> {
        self.check_controller(controller)?;
        {
            let _one = self.membership.lock().await;
            if self.takes_volumes().await?.iter().all(|other| *other == controller) {
                return Err(Error::invalid(format!("controller {controller}: no other one takes its volumes")));
            }
            self.set_drained(controller, true).await?;
        }
        let mut drained = Drained::default();
        let volumes: Vec<_> =
            self.volumes().await?.into_iter().filter(|volume| volume.controller == controller).collect();
        progress.expect(volumes.len() as u64);
        for VolumeInfo { spec, .. } in volumes {
            if progress.is_cancelled() {
                break;
            }
            let name = spec.name;
            let here = self.find(&name).await.is_ok_and(|(_, volume)| volume.controller == controller);
            progress.advance(1);
            if !here {
                continue;
            }
            let to = self.least_loaded().await?;
            match self.move_volume(&name, to).await {
                Ok(moved) => drained.moved.push(moved),
                Err(why) => drained.stays.push((name, why)),
            }
        }
        Ok(drained)
    }

    /// A controller that was drained takes volumes again.
    pub async fn resume(&self, controller: u16) -> Result<()> {
        self.check_controller(controller)?;
        self.set_drained(controller, false).await
    }

    /// Makes another controller the owner of a volume, of its snapshots and clones, and of what it was made of, while
    /// clients use them. `Busy` when it does not come to rest.
    pub async fn move_volume(&self, name: &str, to: u16) -> Result<Moved> {
        self.move_volume_along(name, to, &Progress::default()).await
    }

    /// The same, while `progress` is told of the bytes that leave the fast tier and the hot area first; where it is cancelled
    /// before they have, the volume stays.
    pub async fn move_volume_along(&self, name: &str, to: u16, progress: &Progress) -> Result<Moved> {
        self.check_controller(to)?;
        let target = &self.doors[usize::from(to)];
        if self.find(name).await?.1.controller != to {
            // The long part, while others may move too.
            let progress = progress.clone();
            let cool_down = move |controller: Rc<Controller>, name: String| -> Local<'static, Result<()>> {
                let progress = progress.clone();
                Box::pin(async move { controller.store().cool_down(&name, &progress).await })
            };
            self.at_owner(name, cool_down).await?;
        }
        let alone = Arc::clone(&self.instant).lock_owned().await;
        let (source, volume) = self.find(name).await?;
        let from = volume.controller;
        if from == to {
            return Ok(Moved { volume, from, waited: Duration::ZERO });
        }
        let (wanted, here, nobodys) = (name.to_owned(), target.downgrade(), Arc::clone(&self.moving));
        // It goes on although nobody waits for it any more.
        let fetch = move |controller: Rc<Controller>| -> Local<'static, Result<Duration>> {
            Box::pin(async move {
                let fetched = controller.fetch(wanted, (ControllerId(from), source), here, nobodys).await;
                drop(alone);
                fetched
            })
        };
        let waited = target.call(fetch).await??;
        let (_, volume) = self.find(name).await?;
        Ok(Moved { volume, from, waited })
    }
}
