//! Dropping snapshots, where a pool is full and its policy is so.
//!
//! ```text
//!   writes that find no room      who drops for this controller      the snapshot's owner
//!   want room ─────────────────>  one at a time: the pool's oldest,
//!                                 or this controller's own ───────>  gone, durably; then its space is given back
//!   look again  <───────────────  one drop for all who wait
//! ```
//!
//! What must hold:
//! 1. Who drops a snapshot waits for its own journal and disks, and for nobody who waits for room: so whoever asks for a drop, and
//!    however many do at once, it comes to an end.
//! 2. A drop goes on to its end although who wanted it leaves: half a snapshot is nobody's.
//! 3. A snapshot that is durably gone was dropped, whatever comes after: an error would have others dropped for the same want. So
//!    none goes while the disks take nothing, which its space would not be given back by.

use crate::snapshot::WhenFull;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_block::{Error, Local, Result};
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What a controller knows of the snapshots that a full pool drops.
#[derive(Default)]
pub(crate) struct Drops {
    /// The pool's controllers, where what one gives up is of use to another.
    others: OnceCell<Rc<dyn Others>>,
    /// Held by who drops one.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// How often one was dropped, or what the last one held came free, since the start.
    count: Cell<u64>,
    /// The names of those that are not, wherever they are.
    spared: RefCell<BTreeSet<String>>,
    /// Why the last one gave nothing back yet: until a checkpoint does, another one would go for nothing.
    kept: RefCell<Option<Error>>,
}

impl Drops {
    /// What was given up is free.
    pub fn note_given_back(&self) {
        self.kept.take();
    }
}

/// What the controllers of a full pool do for each other. It comes from above, for none knows another one.
pub trait Others {
    /// Has each of them give back to the pool what it does not need, as [`Store::give_back`] does; where one cannot, that is no error.
    fn give_back(&self) -> Local<'static, bool>;

    /// Has the pool's oldest snapshot dropped that may go, whichever controller has it; false when none may.
    fn drop_oldest(&self) -> Local<'static, Result<bool>>;
}

/// A snapshot that a full pool may drop; of several the least one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Droppable {
    /// When it was made: seconds since 1970.
    pub made_unix_s: u64,
    /// Its controller's number.
    pub controller: u16,
    /// Its own.
    pub id: u64,
}

impl Store {
    /// From now on the others make room in a full pool, too: before, only this controller's own snapshots go.
    pub fn join(&self, others: Rc<dyn Others>) {
        // Those it has joined already stay.
        let _ = self.inner.drops.others.set(others);
    }

    /// From now on these snapshots are not dropped, whether they are here or come later, and all others may be.
    pub fn spare(&self, names: BTreeSet<String>) {
        self.inner.drops.spared.replace(names);
    }

    /// Gives back to the pool what deleted snapshots leave behind, what else was given up, and some of what the hot area has borrowed;
    /// true where there may be more of that.
    pub async fn give_back(&self) -> Result<bool> {
        self.inner.tidy_all().await?;
        self.inner.give_up_successors(|_| true);
        let returned = self.inner.call_loan(&self.inner.data_disks()).await;
        if self.inner.is_to_return() {
            self.inner.reclaim().await?;
        }
        Ok(returned)
    }

    /// The oldest snapshot of this controller's that may go; none where nothing is written any more.
    pub fn droppable(&self) -> Option<Droppable> {
        self.inner.droppable()
    }

    /// Drops a snapshot of this controller's, if it may go still, and gives back what it held. To be polled to its end.
    pub async fn drop_snapshot(&self, dropped: Droppable) -> Result<bool> {
        self.inner.drop_snapshot(dropped).await
    }
}

impl Inner {
    /// Has the other controllers give back what they do not need, before a snapshot goes, or a write is refused, for what is free in a
    /// moment; true when there may be more of it.
    pub async fn others_give_back(&self) -> bool {
        match self.drops.others.get() {
            Some(others) => others.give_back().await,
            None => false,
        }
    }

    /// Deletes the oldest snapshot, where the pool's policy is so, and gives back what it held; false when none may go.
    pub async fn drop_oldest(&self) -> Result<bool> {
        if self.settings.when_full == WhenFull::Refuse {
            return Ok(false);
        }
        let before = self.drops.count.get();
        let one = Arc::clone(&self.drops.turn).lock_owned().await;
        if self.drops.count.get() != before {
            // What another one has dropped meanwhile may be enough.
            return Ok(true);
        }
        let ending = || Error::retry("the server is shutting down");
        let inner = self.me.upgrade().ok_or_else(ending)?;
        let (answer, answered) = oneshot::channel();
        self.runtime.spawn(Box::pin(async move {
            let dropped = inner.drop_oldest_now().await;
            drop(one);
            let _ = answer.send(dropped);
        }));
        answered.await.unwrap_or_else(|_| Err(ending()))
    }

    async fn drop_oldest_now(&self) -> Result<bool> {
        if let Some(others) = self.drops.others.get() {
            let dropped = others.drop_oldest().await?;
            self.drops.count.set(self.drops.count.get() + u64::from(dropped));
            return Ok(dropped);
        }
        while let Some(oldest) = self.droppable() {
            if self.drop_snapshot(oldest).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn droppable(&self) -> Option<Droppable> {
        if !self.goes_on() {
            return None;
        }
        let tables = self.tables.borrow();
        let found = tables.volumes.values().filter(|volume| self.may_go(volume));
        found.map(|volume| self.as_droppable(volume)).min()
    }

    fn as_droppable(&self, volume: &VolumeState) -> Droppable {
        let made = || {
            let branch = volume.branch()?;
            let (parent, epoch) = branch.parent.as_ref()?;
            let of = parent.branch()?;
            let pvol = of.pvol.borrow();
            Some(pvol.pairs.get(*epoch)?.made_unix_s)
        };
        Droppable { made_unix_s: made().unwrap_or_default(), controller: self.id.0, id: volume.id }
    }

    /// True for a snapshot that nobody has open, nothing is made of, no volume is being rolled back to and that is not spared. A clone
    /// is a volume of its own.
    fn may_go(&self, volume: &Rc<VolumeState>) -> bool {
        let spec = volume.spec.borrow();
        let snapshot =
            spec.name.contains('@') && volume.opened.get() == 0 && !self.drops.spared.borrow().contains(&spec.name);
        snapshot && self.check_childless(volume).is_ok() && !self.is_rolled_to(volume)
    }

    async fn drop_snapshot(&self, dropped: Droppable) -> Result<bool> {
        let found = self.tables.borrow().volumes.get(&dropped.id).cloned();
        let Some(snapshot) = found.filter(|volume| self.may_go(volume) && !self.is_stopping()) else {
            return Ok(false);
        };
        self.journal().alive()?;
        if let Some(error) = self.stalled.borrow().clone() {
            return Err(error);
        }
        if self.drops.kept.borrow().is_some() {
            // What the last one held may be enough.
            self.tidy_all().await?;
            self.reclaim().await?;
            self.drops.count.set(self.drops.count.get() + 1);
            return Ok(true);
        }
        let name = snapshot.spec.borrow().name.clone();
        tracing::warn!(snapshot = name, "the pool is full: the oldest snapshot is deleted");
        self.remove(&snapshot);
        self.commit_all().await?;
        self.drops.count.set(self.drops.count.get() + 1);
        if let Err(error) = self.give_back_dropped(&name).await {
            tracing::warn!(snapshot = name, %error, "what a deleted snapshot held is not free yet");
            self.drops.kept.replace(Some(error));
        }
        Ok(true)
    }

    async fn give_back_dropped(&self, name: &str) -> Result<()> {
        self.share.names().await?.release(name).await?;
        self.tidy_all().await?;
        self.reclaim().await
    }
}
