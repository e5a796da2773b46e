//! What deleted snapshots leave behind: versions that nobody sees any more.

use super::order::{BREATH, Progress, QUIET};
use super::{Branch, PoolVol};
use crate::record::Record;
use crate::snapshot::VersionRecord;
use crate::store::Inner;
use crate::tables::VolumeState;
use futures::future::select;
use kura_block::Result;
use kura_snapshot::{Epoch, Key, Location, Slot};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Versions looked at between two looks at what else goes on.
pub(super) const STEP: usize = 256;
/// Such steps in a row, as long as the journal has room: with what they look at they are short of a millisecond, as a rule.
const STEPS: usize = 8;
/// How long to wait before trying again what did not succeed.
const AGAIN: Duration = Duration::from_secs(1);

/// Things that are taken one after the other: to go through millions of them at once would hold up all clients.
pub(crate) type Many<T> = Box<dyn Iterator<Item = T> + Send>;

/// Something to be tidied up.
pub(crate) enum Tidying {
    /// Versions of a volume that perhaps nobody sees.
    Versions { volume: Rc<VolumeState>, keys: Many<Key> },
    /// Slots of a volume that is gone.
    Slots { pool_vol: Rc<PoolVol>, slots: Many<Slot> },
    /// Holes of a volume, from a group on, that perhaps hide nothing any more.
    Holes { volume: Rc<VolumeState>, from: u32 },
    /// Whatever a family may be rid of, from an extent of its PoolVOL on.
    PoolVol { pool_vol: Rc<PoolVol>, from: u32 },
}

impl Tidying {
    /// All holes of a volume.
    pub fn holes(volume: &Rc<VolumeState>) -> Self {
        Self::Holes { volume: Rc::clone(volume), from: 0 }
    }

    /// True where the table of the family is lost.
    fn is_of_lost(&self) -> bool {
        match self {
            Self::Versions { volume, .. } | Self::Holes { volume, .. } => volume.is_lost(),
            Self::Slots { pool_vol, .. } | Self::PoolVol { pool_vol, .. } => pool_vol.is_lost(),
        }
    }

    /// All that a family may be rid of.
    pub fn pool_vol(pool_vol: &Rc<PoolVol>) -> Self {
        Self::PoolVol { pool_vol: Rc::clone(pool_vol), from: 0 }
    }
}

/// What deleted snapshots left behind.
pub(crate) struct Tidy {
    /// What is to be tidied up, one after the other.
    pub queue: RefCell<VecDeque<Tidying>>,
    /// Held by whoever gives up groups that only deleted snapshots saw.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// There is something to tidy up.
    pub tidier: Notify,
    /// Disks that had extents to spare when this was looked at last, and when that was.
    pub roomy_disks: Cell<(usize, Duration)>,
}

impl Tidy {
    pub fn new() -> Self {
        Self {
            queue: RefCell::default(),
            turn: Arc::default(),
            tidier: Notify::new(),
            roomy_disks: Cell::new((usize::MAX, Duration::ZERO)),
        }
    }

    /// Hands something to the task that tidies up.
    pub fn add(&self, what: Tidying) {
        self.queue.borrow_mut().push_back(what);
        self.tidier.notify_one();
    }

    /// Has slots that nobody uses any more given back to the pool; asked for often, it is done once.
    pub fn add_family(&self, pool_vol: &Rc<PoolVol>) {
        let asked = |what: &Tidying| matches!(what, Tidying::PoolVol { pool_vol: asked, from: 0 } if Rc::ptr_eq(asked, pool_vol));
        if !self.queue.borrow().back().is_some_and(asked) {
            self.add(Tidying::pool_vol(pool_vol));
        }
    }

    /// Hands versions of a volume, if any, to the task that tidies up.
    pub fn add_versions(&self, volume: &Rc<VolumeState>, keys: Vec<Key>) {
        if !keys.is_empty() {
            self.add(Tidying::Versions { volume: Rc::clone(volume), keys: Box::new(keys.into_iter()) });
        }
    }
}

impl Inner {
    /// The task that tidies up, until the store stops or its journal fails.
    pub async fn tidy_for_ever(self: Rc<Self>) {
        while self.goes_on() {
            let waits = !self.tidy.queue.borrow().is_empty();
            let began = self.runtime.now();
            let done = if waits { self.tidy_next().await.map(|_| Progress::Moved) } else { self.put_in_order().await };
            let rest = match done {
                Ok(Progress::Beside) => {
                    // As long as it took, at least: half of the disks' time is the clients'.
                    let took = self.runtime.now().saturating_sub(began);
                    self.runtime.sleep(took.max(BREATH)).await;
                    None
                }
                Ok(Progress::Moved) | Err(_) => None,
                Ok(Progress::Looked) => Some(BREATH),
                Ok(Progress::Nothing) => Some(QUIET),
            };
            if let Some(rest) = rest {
                let news = std::pin::pin!(self.tidy.tidier.notified());
                if self.families_wait() {
                    select(news, self.runtime.sleep(rest)).await;
                } else {
                    news.await;
                }
            }
            if let Err(error) = done {
                tracing::debug!(controller = self.id.0, %error, "tidying up waits");
                self.runtime.sleep(AGAIN).await;
            }
        }
    }

    /// Tidies up what there is now.
    pub async fn tidy_all(&self) -> Result<()> {
        while self.tidy_next().await? {}
        Ok(())
    }

    /// Tidies up some of the next thing; false when there is none. It leaves the queue only while nobody is waited for: who asks for
    /// this may be a client that leaves, and what moves away goes from the queue.
    pub(super) async fn tidy_next(&self) -> Result<bool> {
        if self.tidy.queue.borrow().is_empty() {
            return Ok(false);
        }
        {
            let _one = self.tidy.turn.lock().await;
            self.make_room(0).await?;
            let next = self.tidy.queue.borrow_mut().pop_front();
            let rest = next.and_then(|what| self.tidy_some(what));
            self.stir();
            let Some(rest) = rest else { return Ok(true) };
            let holes =
                if let Tidying::Holes { volume, from } = &rest { Some((Rc::clone(volume), *from)) } else { None };
            self.tidy.queue.borrow_mut().push_front(rest);
            if let Some((volume, from)) = holes {
                self.load_to_empty(volume, from).await;
            }
        }
        // Clients have their turn.
        self.runtime.sleep(BREATH / 10).await;
        Ok(true)
    }

    /// Loads what the holes at the queue's front wait for; those whose pages cannot be read are passed over.
    async fn load_to_empty(&self, volume: Rc<VolumeState>, from: u32) {
        while let Some(unloaded) = Self::unloaded_to_empty(&volume, from * volume.shape.extents()) {
            if self.load(&unloaded).await.is_err() {
                let mut untidy = self.tidy.queue.borrow_mut();
                untidy.pop_front();
                untidy.push_front(Tidying::Holes { volume, from: from + 1 });
                return;
            }
        }
    }

    /// Tidies something up as far as the journal has room, or for a while; what is left of it.
    fn tidy_some(&self, what: Tidying) -> Option<Tidying> {
        if what.is_of_lost() {
            return None;
        }
        match what {
            Tidying::Versions { volume, mut keys } => {
                if let Some(branch) = volume.branch().filter(|_| !volume.deleted.get()) {
                    if self.in_parts(&mut keys, |part| self.judge_all(&volume, &branch, part)) {
                        return Some(Tidying::Versions { volume, keys });
                    }
                    branch.look_again();
                    self.tidy.add(Tidying::pool_vol(&branch.pool_vol));
                }
                None
            }
            // Its new owner tidies up, or there is nothing left.
            Tidying::Slots { pool_vol, .. } | Tidying::PoolVol { pool_vol, .. } if pool_vol.volume.deleted.get() => {
                None
            }
            Tidying::Slots { pool_vol, mut slots } => {
                let free = |part: Vec<Slot>| part.into_iter().map(|slot| (slot, None)).collect::<Vec<_>>();
                if self.in_parts(&mut slots, |part| self.put_entries(&pool_vol, &free(part))) {
                    return Some(Tidying::Slots { pool_vol, slots });
                }
                self.tidy.add(Tidying::pool_vol(&pool_vol));
                None
            }
            Tidying::Holes { volume, from } => {
                let from = self.fill_holes(&volume, from)?;
                Some(Tidying::Holes { volume, from })
            }
            Tidying::PoolVol { pool_vol, from } => {
                if let Some(from) = self.give_back_slots(&pool_vol, from) {
                    return Some(Tidying::PoolVol { pool_vol, from });
                }
                self.end_family(&pool_vol);
                None
            }
        }
    }

    /// Sees to the next ones of many, in parts, each of which the journal takes; whether there may be more.
    fn in_parts<T>(&self, all: &mut Many<T>, mut see_to: impl FnMut(Vec<T>)) -> bool {
        for _ in 0..STEPS {
            if !self.journal_has_room(0) {
                return true;
            }
            let part: Vec<T> = all.take(STEP).collect();
            if part.is_empty() {
                return false;
            }
            see_to(part);
        }
        true
    }

    /// Decides on versions that perhaps nobody sees, each with what was decided before.
    pub(super) fn judge_all(&self, volume: &VolumeState, branch: &Branch, keys: Vec<Key>) {
        for key in keys {
            let changes = self.judge(volume, branch, key);
            self.put_entries(&branch.pool_vol, &changes);
        }
    }

    /// Groups of a PoolVOL, from an extent on, without a slot in use go back to the pool; where to go on, unless that was all.
    fn give_back_slots(&self, pool_vol: &PoolVol, from: u32) -> Option<u32> {
        let pool = &pool_vol.volume;
        let mut next = pool.next_mapped(from);
        for _ in 0..STEPS * STEP {
            let index = next?;
            if !self.journal_has_room(0) {
                break;
            }
            let (start, end) = self.group_range(pool, index);
            let unused = pool_vol.table.borrow().is_unused(start, end);
            if unused {
                self.unmap(pool, index);
                self.forget_pages(pool_vol, start, end);
            }
            next = pool.next_mapped(pool.first_of(index) + pool.shape.extents());
        }
        next
    }

    fn forget_pages(&self, pool_vol: &PoolVol, first: u64, end: u64) {
        let mut table = pool_vol.table.borrow_mut();
        let before = table.dirty().len();
        table.forget(first, end);
        let gone = (before - table.dirty().len()) as u64;
        self.dirty_pool_pages.set(self.dirty_pool_pages.get().saturating_sub(gone));
    }

    /// Holes of a volume, from a group on, that hide nothing any more are gone, and the groups behind them go back to the pool;
    /// where to go on, unless that was all.
    fn fill_holes(&self, volume: &Rc<VolumeState>, from: u32) -> Option<u32> {
        let branch = volume.branch().filter(|branch| branch.parent.is_none() && !volume.deleted.get())?;
        if branch.pvol.borrow().rolled.is_some() {
            return None;
        }
        let groups = branch.pvol.borrow().index.holed_from(from, STEP);
        for group in &groups {
            if self.hole_is_needed(volume, &branch, *group) {
                continue;
            }
            let index = group * volume.shape.extents();
            if !self.journal_has_room(0) || Self::unloaded_to_empty(volume, index).is_some() {
                return Some(*group);
            }
            self.empty(volume, index);
            self.append(&Record::Versions(VersionRecord::NoHoles { volume: volume.id, group: *group }));
            branch.pvol.borrow_mut().index.fill(*group);
            branch.look_again();
        }
        groups.last().map(|last| last + 1)
    }

    /// True when a hole hides something, or a snapshot sees what was there before it.
    fn hole_is_needed(&self, volume: &VolumeState, branch: &Branch, group: u32) -> bool {
        let group_blocks = self.group_blocks(volume);
        let (start, end) = (u64::from(group) * group_blocks, (u64::from(group) + 1) * group_blocks);
        let pvol = branch.pvol.borrow();
        let Some(newest) = pvol.index.hole(group, Epoch::NOW) else { return true };
        let oldest = pvol.index.oldest_hole(group).unwrap_or(newest);
        let hides = pvol.index.listed(start, end).any(|(key, at)| key.birth() < newest || at == Location::Home);
        let extent = volume.extent(group * volume.shape.extents());
        let base = extent.map(|extent| pvol.pairs.latest_at(extent.owner.born));
        hides || base.is_some_and(|base| pvol.pairs.sees(base, oldest).is_some())
    }

    /// A volume without snapshots whose blocks are all at home is a plain volume again, and its PoolVOL is gone.
    fn end_family(&self, pool_vol: &Rc<PoolVol>) {
        if pool_vol.table.borrow().owned() > 0 || pool_vol.volume.deleted.get() {
            return;
        }
        let of_family =
            |volume: &&Rc<VolumeState>| volume.branch().is_some_and(|branch| Rc::ptr_eq(&branch.pool_vol, pool_vol));
        // An SVOL is in the pairs of its PVOL.
        let members: Vec<_> = self.tables.borrow().volumes.homes().values().filter(of_family).cloned().collect();
        let plain = |volume: &Rc<VolumeState>| {
            volume.branch().is_some_and(|branch| {
                let pvol = branch.pvol.borrow();
                pvol.pairs.is_empty() && pvol.index.is_empty() && pvol.rolled.is_none()
            })
        };
        if !members.iter().all(plain) {
            return;
        }
        self.forget_pages(pool_vol, 0, pool_vol.volume.size_bytes() / kura_block::BLOCK_BYTES_U64);
        self.remove(&pool_vol.volume);
        for volume in members {
            volume.branch.replace(None);
        }
    }
}
