//! Disks that are back: they were out of service, and take part again.
//!
//! ```text
//!   here, idle ─> every controller lets go of it ─> one label: its number retires, a new one joins ─> all use the new one
//! ```
//!
//! What must hold: nothing that lies on such a disk is ever read as good again, for others were written without it. So it does
//! not get its old places back. Its old number stays out of service, what lay there is copied from the others, and then the
//! number is forgotten; under its new number the disk has nothing but free extents, and is rebuilt onto like any other. Both are
//! said by one label, the one with the highest generation: after a crash the disk is either out of service as it was, or a new
//! member. A disk that has the only copy of something does not join: there would be none to copy it from.

use crate::info::{DiskInfo, DiskState};
use crate::{Controller, Node};
use kura_array::{LabelMember, Past, read_label};
use kura_block::{DeviceId, Error, Local, Result};
use std::rc::Rc;
use std::time::Duration;

/// How often, and how many times at most, it is looked whether requests from before are done.
const IDLE_LOOK: Duration = Duration::from_millis(10);
const IDLE_LOOKS: u32 = 500;

impl Controller {
    /// Waits until nothing is under way to a disk that is out of service; refuses one that does not come to rest, or does not
    /// answer.
    async fn wait_until_idle(&self, disk: DeviceId) -> Result<()> {
        let found = self.pool.borrow().found[usize::from(disk.0)].clone();
        let (path, device) = found.ok_or_else(|| not_here(disk))?;
        let mut looks = 0;
        while self.store().array().queue(disk) > 0 {
            if looks == IDLE_LOOKS {
                return Err(Error::busy(format!("disk {} ({path}): requests are still under way: try again", disk.0)));
            }
            looks += 1;
            self.runtime().sleep(IDLE_LOOK).await;
        }
        // What was given up may still be under way, and says so.
        read_label(&*device).await.map(drop).map_err(|error| error.at(path))
    }

    /// Closes a disk that is out of service.
    fn close_disk(&self, disk: DeviceId) {
        self.pool.borrow_mut().found[usize::from(disk.0)].take();
        if let Some(member) = self.store().array().member(disk) {
            member.close();
        }
    }

    /// Writes the labels of a pool in which the disk at `path` retires its number and joins under a new one.
    async fn label_again(&self, disk: DeviceId, path: &str, uuid: [u8; 16]) -> Result<()> {
        let device = (self.opener)(path)?;
        let (pool, own) = {
            let label = &self.pool.borrow().label;
            (label.pool, label.members[usize::from(disk.0)])
        };
        let found = read_label(&*device).await?;
        if !found.is_some_and(|found| found.pool == pool && found.id == disk && found.own().uuid == own.uuid) {
            return Err(Error::invalid(format!("{path}: is not disk {} any more: `kura disk add` takes it", disk.0)));
        }
        let retire = |members: &mut [LabelMember]| members[usize::from(disk.0)].past = Past::Retired;
        self.label_member((path, device), own.class, uuid, retire).await.map(drop)
    }
}

fn not_here(disk: DeviceId) -> Error {
    Error::missing(format!("disk {}: is missing: connect it and start the server again, which takes it back", disk.0))
}

impl Node {
    /// Refuses what [`Node::rejoin_disk`] refuses; the disk's path.
    pub async fn check_rejoin_disk(&self, disk: DeviceId) -> Result<String> {
        let named = self.pool().await?.disks.into_iter().find(|info| info.id == disk.0);
        let named = named.ok_or_else(|| Error::missing(format!("disk {}: no such disk", disk.0)))?;
        let (id, lost_bytes) = (named.id, named.lost_bytes);
        match named.state {
            DiskState::Failed if lost_bytes > 0 => Err(Error::invalid(format!(
                "disk {id}: has the only copy of {lost_bytes} bytes, and nothing on a disk that joins is kept: delete the \
                 volumes that lay on it first"
            ))),
            DiskState::Failed => Ok(named.path),
            DiskState::Missing => Err(not_here(disk)),
            DiskState::Healthy => Err(Error::invalid(format!("disk {id}: is in service already"))),
            DiskState::Leaving => {
                Err(Error::invalid(format!("disk {id}: leaves the pool: when it has left, `kura disk add` takes it")))
            }
        }
    }

    /// Takes a disk that is out of service and works back into the pool, as a new member; `uuid` is a fresh one. What it
    /// held is copied anew from the others. The disk as it is now.
    pub async fn rejoin_disk(&self, disk: DeviceId, uuid: [u8; 16]) -> Result<DiskInfo> {
        let _alone = self.membership.lock().await;
        let path = self.check_rejoin_disk(disk).await?;
        // One controller may have seen it fail, and the others not: all know it, durably, before it is another disk.
        self.fail_disk(disk).await?;
        self.ask_all(move |controller| Box::pin(async move { controller.wait_until_idle(disk).await })).await?;
        self.ask_all(move |controller| {
            controller.close_disk(disk);
            Box::pin(std::future::ready(Ok(())))
        })
        .await?;
        let at = path.clone();
        self.first(move |controller| Box::pin(async move { controller.label_again(disk, &at, uuid).await })).await?;
        let joined = self.ask_all(move |controller| {
            let path = path.clone();
            Box::pin(async move { controller.join_disk(&path).await })
        });
        joined.await?.pop().ok_or_else(|| Error::retry("no controller serves"))
    }

    /// Disks that are to join again by themselves: those that were missing at an earlier start, and are here.
    pub async fn back_again(&self) -> Result<Vec<DiskInfo>> {
        let disks = self.pool().await?.disks.into_iter();
        Ok(disks.filter(|disk| disk.is_back && disk.lost_bytes == 0).collect())
    }

    /// Gives every working disk the newest label, and notes there which disks were not found at this start: before anything is
    /// written that an older label would not know of.
    pub(crate) async fn renew_labels(&self) -> Result<()> {
        let look = |controller: Rc<Controller>| -> Local<'static, Result<(Vec<DeviceId>, bool)>> {
            let array = controller.store().array();
            let works = |disk: &DeviceId| array.member(*disk).is_some_and(|member| member.works());
            let behind = controller.pool.borrow().behind.iter().any(works);
            Box::pin(std::future::ready(Ok((controller.store().missed_disks(), behind))))
        };
        let looks = self.ask_all(look).await?;
        let missed: Vec<_> = looks.iter().flat_map(|(missed, _)| missed.iter().copied()).collect();
        if missed.is_empty() && !looks.iter().any(|(_, behind)| *behind) {
            return Ok(());
        }
        let note = move |members: &mut [LabelMember]| {
            for disk in missed {
                let member = &mut members[usize::from(disk.0)];
                if member.past == Past::None {
                    member.past = Past::Missed;
                }
            }
        };
        // A disk that takes no label fails soon enough by itself: the others need not wait for that.
        if let Err(error) = self.relabel(note).await {
            tracing::warn!(%error, "labels could not be brought up to date");
        }
        Ok(())
    }
}
