//! Disks that come, go, and are out of service; and the journal's copies on them.

use crate::open::JournalPlace;
use crate::rebuild::Held;
use crate::record::Record;
use crate::store::{Inner, Store};
use kura_array::Member;
use kura_block::{DeviceId, Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between the checkpoints that bring a new copy of the journal up.
const JOIN_STEP: Duration = Duration::from_millis(5);

impl Store {
    /// Takes a disk out of service; durable when the future resolves.
    pub async fn fail_disk(&self, device: DeviceId) -> Result<()> {
        self.inner.fail_disk(device).await
    }

    /// A disk gives what it holds to the others and takes nothing new; durable when the future resolves.
    pub async fn leave_disk(&self, device: DeviceId) -> Result<()> {
        self.inner.leave_disk(device).await
    }

    /// What still lies on disks that are failed or leaving, which are all listed.
    pub fn unwanted(&self) -> BTreeMap<DeviceId, Held> {
        self.inner.unwanted()
    }

    /// Why a rebuild does not go on, while that is so.
    pub fn rebuild_stalled(&self) -> Option<Error> {
        self.inner.rebuild_stalled.borrow().clone()
    }

    /// Takes another disk into service; what waits for room goes on.
    pub fn add_disk(&self, member: Member) {
        self.inner.array.add(member);
        self.inner.rebuilder.notify_one();
    }

    /// Gives the journal another copy, on `place.disk`, unless it has that one; when the future resolves, it counts.
    pub async fn join_journal(&self, place: JournalPlace) -> Result<()> {
        let inner = &self.inner;
        let JournalPlace { index, disk, copy } = place;
        if inner.journal().is_live(index) {
            return Ok(());
        }
        let copy = copy.ok_or_else(|| Error::device(format!("disk {}: is away", disk.0)))?;
        inner.journal_disks.borrow_mut().insert(index, disk);
        inner.journal().join(index, copy);
        while inner.journal().is_joining(index) {
            inner.tables_changed.set(true);
            inner.checkpoint().await?;
            inner.runtime.sleep(JOIN_STEP).await;
        }
        if inner.journal().is_live(index) {
            return Ok(());
        }
        Err(Error::device(format!("disk {}: took no journal", disk.0)))
    }

    /// The journal has no copy on a disk any more; durable when the future resolves. Another copy must be live.
    pub async fn leave_journal(&self, disk: DeviceId) -> Result<()> {
        let inner = &self.inner;
        let disks = inner.journal_disks.borrow().clone();
        if !disks.iter().any(|(index, carrier)| *carrier != disk && inner.journal().is_live(*index)) {
            return Err(Error::device(format!("disk {}: carries the only copy of a journal", disk.0)));
        }
        if let Some((index, _)) = disks.iter().find(|(_, carrier)| **carrier == disk) {
            inner.journal_disks.borrow_mut().remove(index);
            inner.journal().drop_copy(*index);
        }
        inner.checkpoint().await
    }

    /// Disks that are being emptied.
    pub fn leaving_disks(&self) -> Vec<DeviceId> {
        self.inner.tables.borrow().leaving.iter().copied().collect()
    }

    /// Disks out of service.
    pub fn failed_disks(&self) -> Vec<DeviceId> {
        self.inner.tables.borrow().failed.iter().copied().collect()
    }

    /// Disks that went out of service because they were not there at this start.
    pub fn missed_disks(&self) -> Vec<DeviceId> {
        self.inner.missed.borrow().clone()
    }
}

impl Inner {
    /// Takes a disk out of service, durably before anything is acknowledged without it.
    pub async fn fail_disk(&self, device: DeviceId) -> Result<()> {
        if self.array.member(device).is_none() {
            return Err(Error::missing(format!("disk {}: no such disk", device.0)));
        }
        self.array.fail(device);
        let fresh = self.tables.borrow_mut().failed.insert(device);
        if fresh {
            self.rebuilder.notify_one();
        }
        let Some(journal) = self.journal.get() else { return Ok(()) };
        for (copy, _) in self.journal_disks.borrow().iter().filter(|(_, disk)| **disk == device) {
            journal.drop_copy(*copy);
        }
        if fresh && !journal.is_sealed() {
            tracing::error!(disk = device.0, controller = self.id.0, "disk out of service");
            self.append(&Record::DiskFailed { device });
        }
        if journal.is_sealed() { Ok(()) } else { self.commit_all().await }
    }
}
