//! The old owner's part: a family comes to rest, and is another controller's.

use super::{Destination, KeptCold, OwnerRecord, PASSES, Ticket};
use crate::extent::Extent;
use crate::record::Record;
use crate::snapshot::{HeldWrites, Many, Tidying};
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_block::{ControllerId, Error, Progress, Result};
use kura_journal::Lsn;
use kura_snapshot::{Key, PoolTable, Pvol, Slot};
use std::iter;
use std::rc::Rc;
use std::sync::Arc;

/// A family whose writes wait and which nobody tidies up, until this is dropped.
pub struct Still {
    _writes: HeldWrites,
    _tidying: tokio::sync::OwnedMutexGuard<()>,
}

/// What came of letting a family go.
pub enum Departing {
    /// It is the other controller's.
    Gone(Departure),
    /// It is here still, and not as the image says: this is how it is.
    Differs(Vec<u8>),
    /// The journal failed in the middle: whose it is turns out at the next start.
    Unsure(Error),
}

/// What the new owner takes over in memory.
pub struct Departure {
    /// Every record of the family in the old log is below.
    pub(super) past: Lsn,
    pub(super) versions: Vec<(u64, Pvol)>,
    pub(super) table: Option<PoolTable>,
    pub(super) untidy: Vec<Untidy>,
}

/// Something to be tidied up, without what only one thread may have.
pub(super) enum Untidy {
    Versions(u64, Many<Key>),
    Slots(Many<Slot>),
    Holes(u64),
}

impl Store {
    /// Makes a family ready to go, while its I/O goes on, and says what there is to know of it.
    pub async fn offer(&self, name: &str) -> Result<(Vec<u8>, KeptCold)> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        inner.ready(&volume)?;
        let cold = KeptCold::new(inner.kin(&volume));
        inner.come_down(&cold, &Progress::default()).await?;
        Ok((inner.image(&inner.kin(&volume)), cold))
    }

    /// The numbers and names of a volume's family, the volume's own among them.
    pub fn family(&self, name: &str) -> Result<Vec<(u64, String)>> {
        let volume = self.inner.find(name)?;
        let kin = self.inner.kin(&volume);
        Ok(kin.iter().filter(|one| !one.is_hidden()).map(|one| (one.id, one.spec.borrow().name.clone())).collect())
    }

    /// Keeps a family still: waits until nothing is tidied up, and only then lets its writes wait.
    pub async fn keep_still(&self, name: &str) -> Result<Still> {
        let tidying = Arc::clone(&self.inner.tidy.turn).lock_owned().await;
        let names: Vec<String> = self.family(name)?.into_iter().map(|(_, name)| name).collect();
        Ok(Still { _writes: self.hold(&names)?, _tidying: tidying })
    }

    /// Lets a family go to the controller that has this ticket for this image, if `may_go` agrees when all is ready. `Busy` when
    /// it does not come to rest: it is still here then, and so it is after every error.
    pub async fn depart(
        &self,
        name: &str,
        (to, ticket): (ControllerId, Ticket),
        image: &[u8],
        _: &Still,
        may_go: &dyn Fn() -> Result<()>,
    ) -> Result<Departing> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        let mut tries = PASSES;
        let kin = loop {
            inner.pass_all().await?;
            inner.ready(&volume)?;
            let kin = inner.kin(&volume);
            let now = inner.image(&kin);
            if now != image {
                return Ok(Departing::Differs(now));
            }
            tries -= 1;
            match kin.iter().find_map(|member| inner.stirs(member)) {
                None => break kin,
                // What brought the tail forward has records of its own: those of stripes.
                Some(_) if tries > 0 => {}
                Some(why) => return Err(Error::busy(format!("volume {name}: {why}: try again later"))),
            }
        };
        may_go()?;
        let departure = inner.hand_over(&kin, (to, ticket));
        match inner.commit_all().await {
            Ok(()) => Ok(Departing::Gone(departure)),
            Err(error) => Ok(Departing::Unsure(error)),
        }
    }

    /// The new owner has it durably.
    pub fn forget(&self, to: ControllerId, ticket: Ticket) {
        let inner = &self.inner;
        inner.append(&Record::Owner(OwnerRecord::Forgotten { to, ticket: ticket.0 }));
        inner.owners.borrow_mut().departures.remove(&(to.0, ticket.0));
    }

    /// Departures that the new owners may not know of: to whom, the ticket, and where the log was.
    pub fn departures(&self) -> Vec<(ControllerId, Ticket, Lsn)> {
        let owners = self.inner.owners.borrow();
        owners.departures.iter().map(|((to, ticket), lsn)| (ControllerId(*to), Ticket(*ticket), *lsn)).collect()
    }
}

impl Inner {
    /// What of a volume is not at rest.
    fn stirs(&self, volume: &Rc<VolumeState>) -> Option<&'static str> {
        if volume.stays() {
            return Some("it is being made or resized");
        }
        let restless = |extent: &Rc<Extent>| {
            // The new owner reads pages and maps from the disks.
            let group = &extent.group;
            !extent.is_settled() || !group.is_settled() || group.is_sought() || group.is_moving()
        };
        if volume.any_mapped(|extent| extent.fast().is_some()) {
            return Some("some of it lies in the fast tier");
        }
        if !volume.hot.borrow().is_empty() {
            return Some("some of it lies in the hot area");
        }
        if self.is_uneven(volume) {
            return Some("a disk does not read a page of it, which `kura check` writes again");
        }
        let dirty_table = volume.branch().is_some_and(|branch| branch.pool_vol.table.borrow().dirty().len() > 0);
        let in_stripes = self.stripes.busy.borrow().keys().any(|(id, ..)| *id == volume.id);
        let not_passed = self.last_records.borrow().get(&volume.id).is_some_and(|last| *last >= self.journal().tail());
        let stirs =
            not_passed || dirty_table || in_stripes || !volume.dirty.borrow().is_empty() || volume.any_mapped(restless);
        stirs.then_some("it does not come to rest")
    }

    /// A family is another controller's from here on.
    fn hand_over(&self, kin: &[Rc<VolumeState>], (to, ticket): Destination) -> Departure {
        let departed = OwnerRecord::Departed { volume: kin[0].id, to, ticket: ticket.0 };
        let lsn = self.append(&Record::Owner(departed));
        {
            let mut owners = self.owners.borrow_mut();
            owners.departures.insert((to.0, ticket.0), lsn);
            owners.last = lsn;
        }
        let mut departure =
            Departure { past: Lsn(lsn.0 + 1), versions: Vec::new(), table: None, untidy: self.take_untidy(kin) };
        for member in kin {
            self.tables.borrow_mut().volumes.remove(member.id);
            member.deleted.set(true);
            member.departed.set(true);
            for group in member.take_groups() {
                self.share.part_with(group.first().map(|extent| extent.group.places()).into_iter().flatten());
            }
            if let Some(branch) = member.branch.take() {
                departure.versions.push((member.id, branch.pvol.take()));
                let table = branch.pool_vol.table.take();
                departure.table.get_or_insert(table);
            }
        }
        self.room.notify_waiters();
        departure
    }

    /// What is to be tidied up of a family.
    fn take_untidy(&self, kin: &[Rc<VolumeState>]) -> Vec<Untidy> {
        let is_kin = |volume: &Rc<VolumeState>| kin.iter().any(|member| Rc::ptr_eq(member, volume));
        let mut taken = Vec::new();
        let mut queue = self.tidy.queue.borrow_mut();
        for what in std::mem::take(&mut *queue) {
            match what {
                Tidying::Versions { volume, keys } if is_kin(&volume) => taken.push(Untidy::Versions(volume.id, keys)),
                Tidying::Slots { pool_vol, slots } if is_kin(&pool_vol.volume) => taken.push(Untidy::Slots(slots)),
                Tidying::Holes { volume, .. } if is_kin(&volume) => taken.push(Untidy::Holes(volume.id)),
                Tidying::PoolVol { pool_vol, .. } if is_kin(&pool_vol.volume) => {
                    taken.push(Untidy::Slots(Box::new(iter::empty())));
                }
                other => queue.push_back(other),
            }
        }
        taken
    }
}
