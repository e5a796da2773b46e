//! The copies of a controller's journal, on the disks that carry them.

use crate::open::JournalPlace;
use crate::store::{Inner, Store};
use kura_block::{DeviceId, Error, Kind, Result};
use kura_journal::JournalCopy;
use std::time::Duration;

/// Between the checkpoints that bring a new copy of the journal up.
const JOIN_STEP: Duration = Duration::from_millis(5);
/// How long a disk that had no space for a copy of the journal is left alone.
const FILL_AGAIN: Duration = Duration::from_mins(1);

impl Store {
    /// Gives the journal another copy, on `place.disk`, unless it has that one; when the future resolves, it counts.
    pub async fn join_journal(&self, place: JournalPlace) -> Result<()> {
        let inner = &self.inner;
        let JournalPlace { index, disk, copy } = place;
        if inner.journal().is_live(index) {
            return Ok(());
        }
        let copy = copy.ok_or_else(|| Error::device(format!("disk {}: is away", disk.0)))?;
        // An earlier try may be on its way still.
        if !inner.journal().is_joining(index) {
            inner.fill_journal(disk, &copy).await?;
            // It may have failed meanwhile, or be about to leave, and nobody would drop what joins after that.
            if inner.tables.borrow().is_unwanted(disk) {
                return Err(Error::device(format!("disk {}: is to carry no journal any more", disk.0)));
            }
            inner.journal_disks.borrow_mut().insert(index, disk);
            inner.journal().join(index, copy);
        }
        while inner.journal().is_joining(index) {
            inner.changes.want_whole();
            inner.checkpoint().await?;
            inner.runtime.sleep(JOIN_STEP).await;
        }
        if inner.journal().is_live(index) {
            return Ok(());
        }
        Err(Error::device(format!("disk {}: took no journal", disk.0)))
    }

    /// True when a live copy of the journal lies on a disk, and whether it is the only one.
    pub fn journal_on(&self, disk: DeviceId) -> (bool, bool) {
        let here = self.inner.has_journal_on(disk);
        (here, here && !self.inner.has_journal_beside(disk))
    }

    /// What a disk said that had no space for a copy of the journal.
    pub fn journal_refused(&self, disk: DeviceId) -> Option<Error> {
        self.inner.journal_refused.borrow().get(&disk).map(|(_, error)| error.clone())
    }

    /// Takes disks out of service whose copy of the journal failed; a controller that nobody asks for anything would not see it.
    pub async fn note_lost_journals(&self) -> Result<()> {
        self.inner.note_lost_journals().await
    }

    /// The journal has no copy on a disk any more; durable when the future resolves. Another copy must be live.
    pub async fn leave_journal(&self, disk: DeviceId) -> Result<()> {
        let inner = &self.inner;
        if !inner.has_journal_beside(disk) {
            return Err(Error::device(format!("disk {}: carries the only copy of a journal", disk.0)));
        }
        inner.drop_journal_on(disk);
        inner.journal_disks.borrow_mut().retain(|_, carrier| *carrier != disk);
        inner.checkpoint().await
    }
}

impl Inner {
    /// A disk whose journal copy failed is out of service as a whole.
    pub async fn note_lost_journals(&self) -> Result<()> {
        if self.journal().alive().is_err() {
            // There is nowhere to note it.
            return Ok(());
        }
        let disks = self.journal_disks.borrow().clone();
        for (copy, disk) in disks {
            if self.journal().is_lost(copy) && !self.tables.borrow().failed.contains(&disk) {
                self.fail_disk(disk).await?;
            }
        }
        Ok(())
    }

    /// Fills the place of a copy of the journal that is to join. A disk that has no space for it now is asked again only after a while.
    async fn fill_journal(&self, disk: DeviceId, copy: &JournalCopy) -> Result<()> {
        let refused = self.journal_refused.borrow().get(&disk).cloned();
        if let Some((when, error)) = refused
            && self.runtime.now().saturating_sub(when) < FILL_AGAIN
        {
            return Err(error);
        }
        // What a journal that has failed wrote last is all there is of it.
        self.journal().alive()?;
        let filled = self.journal().fill(copy).await;
        self.journal_refused.borrow_mut().remove(&disk);
        match filled {
            // That it has no space is not the disk's fault.
            Err(error) if matches!(error.kind(), Kind::Full | Kind::Retry) => {
                self.journal_refused.borrow_mut().insert(disk, (self.runtime.now(), error.clone()));
                Err(error)
            }
            Err(error) => {
                // Nor is it that the journal failed meanwhile.
                self.journal().alive()?;
                self.fail_disk(disk).await?;
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// True when a live copy of the journal lies on another disk.
    pub fn has_journal_beside(&self, device: DeviceId) -> bool {
        let disks = self.journal_disks.borrow();
        disks.iter().any(|(copy, disk)| *disk != device && self.journal().is_live(*copy))
    }

    /// True when a live copy of the journal lies on a disk.
    pub fn has_journal_on(&self, device: DeviceId) -> bool {
        let disks = self.journal_disks.borrow();
        disks.iter().any(|(copy, disk)| *disk == device && self.journal().is_live(*copy))
    }

    /// Writes no copy of the journal on a disk any more.
    pub fn drop_journal_on(&self, device: DeviceId) {
        for (copy, _) in self.journal_disks.borrow().iter().filter(|(_, disk)| **disk == device) {
            self.journal().drop_copy(*copy);
        }
    }
}
