//! Disks that join the pool, disks that leave it, and the journals they carry.
//!
//! ```text
//!   join    label it ─> label the others ─> every controller uses it
//!   leave   every controller notes it (durably) ─> copies move away ─> journals move away ─> labels without it
//! ```
//!
//! Labels say who belongs; the controllers' tables say who is failed or leaving. Nothing else remembers a change that is
//! under way: [`Node::tend`] looks at what is so, and does the next step, after a restart too. A journal's new copy
//! counts before the old one is dropped, so that redundancy never falls below what it was.

use crate::info::{DiskInfo, DiskState};
use crate::pool::JOURNAL_COPIES;
use crate::{Controller, Node};
use futures::future::join_all;
use kura_array::{Class, Label, LabelMember, Member, Plan, read_label, wipe_label, write_label};
use kura_block::{Amount, Block, DeviceId, Error, Kind, Local, Result};
use kura_journal::{JournalCopy, Shape};
use kura_volume::JournalPlace;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// What one look at the disks leaves to the next.
#[derive(Default)]
pub(crate) struct Tended {
    /// What was last said of each disk that waits, and of the journals: it is said again when it is something else.
    told: BTreeMap<Option<u16>, String>,
    /// Which disk is to carry the journals instead of another one, by the number of that. A restart goes by how many do.
    instead: BTreeMap<u16, u16>,
}

impl Tended {
    fn tell(&mut self, of: Option<u16>, done: Result<()>, what: &str) {
        let Err(error) = done else { return drop(self.told.remove(&of)) };
        let text = error.to_string();
        if self.told.get(&of) != Some(&text) {
            tracing::warn!(disk = of, %error, "{what}");
            self.told.insert(of, text);
        }
    }
}

/// The task that gives a controller's journal its copies: one at a time, for to fill a copy's place may take minutes.
#[derive(Default)]
pub(crate) struct Joining {
    is_under_way: Cell<bool>,
    /// Why the last one did not.
    refused: RefCell<Option<Error>>,
}

/// Numbers of journal copies are below this: live copies are told as bits of a word.
const COPIES_LIMIT: u8 = 32;

impl Controller {
    fn shape(label: &Label) -> Shape {
        Shape { tables_bytes: label.journal.tables_bytes, ring_bytes: label.journal.ring_bytes }
    }

    /// Bytes of all journals on a disk that carries them.
    fn journals_bytes(label: &Label) -> u64 {
        Self::shape(label).region_bytes() * u64::from(label.controllers)
    }

    /// What is to lie where on a new disk of the pool. One of a class that carries journals has room for them.
    fn plan(label: &Label, path: &str, class: Class, size_bytes: u64) -> Result<Plan> {
        Label::check_members(label.members.len() + 1).map_err(|error| error.at(path))?;
        let carries = label.members.iter().any(|member| member.class == class && member.journal.is_some());
        let journals_bytes = if carries { Self::journals_bytes(label) } else { 0 };
        let plan = Plan::of(size_bytes, label.plan.extent_bytes, journals_bytes, label.plan.spare_blocks)?;
        if plan.extents == 0 {
            return Err(Error::invalid(format!(
                "{path}: too small for an extent of {} beside {} of journals: give a larger disk",
                Amount(plan.extent_bytes),
                Amount(journals_bytes)
            )));
        }
        Ok(plan)
    }

    /// Writes the labels of a pool that grows by a disk: the new one first, so that every label names labelled disks.
    /// Returns the new disk's own.
    pub(crate) async fn label_new_disk(&self, path: &str, class: Class, uuid: [u8; 16]) -> Result<Label> {
        let device = (self.opener)(path)?;
        if read_label(&*device).await?.is_some() {
            return Err(Error::invalid(format!(
                "{path}: carries a kura label already: wipe it first if its pool is gone"
            )));
        }
        let mut label = self.pool.borrow().label.clone();
        let plan = Self::plan(&label, path, class, device.geometry().size_bytes)?;
        let id = DeviceId(label.members.len() as u16);
        label.members.push(LabelMember { uuid, class, journal: None, gone: false, extents: plan.extents });
        label.generation = self.next_generation();
        let region_bytes = Self::shape(&label).region_bytes();
        if plan.pages_at >= Label::journal_at(label.controllers, region_bytes) {
            for controller in 0..label.controllers {
                let offset = Label::journal_at(controller, region_bytes);
                kura_journal::blank(&JournalCopy { device: Rc::clone(&device), offset }).await?;
            }
        }
        let own = Label { id, plan, ..label.clone() };
        write_label(&*device, &own).await?;
        self.write_labels(&label).await?;
        Ok(own)
    }

    /// The disks that a label names and this controller can write.
    fn labelled(&self, label: &Label) -> Vec<(Rc<Member>, Rc<dyn Block>)> {
        let pool = self.pool.borrow();
        let there = pool.found.iter().zip(&label.members).enumerate().filter(|(_, (_, member))| !member.gone);
        let there = there.filter_map(|(id, (found, _))| {
            let member = self.store().array().member(DeviceId(id as u16)).filter(|member| member.works())?;
            Some((member, Rc::clone(&found.as_ref()?.1)))
        });
        there.collect()
    }

    /// Writes a label to every disk that works, each with what is its own: to all of them, whichever refuses. As with every write,
    /// one that does so goes out of service, but for want of space, and the change goes on without it.
    async fn write_labels(&self, label: &Label) -> Result<()> {
        let mut all = Ok(());
        for (member, device) in self.labelled(label) {
            let own = Label { id: member.id, plan: member.plan, ..label.clone() };
            let Err(error) = write_label(&*device, &own).await else { continue };
            if error.kind() == Kind::Full {
                all = all.and(Err(error));
                continue;
            }
            tracing::error!(disk = member.id.0, %error, "a disk refuses its label");
            let noted = self.store().fail_disk(member.id).await;
            // A journal that has failed notes nothing any more.
            if self.store().failure().is_none() {
                all = all.and(noted);
            }
        }
        all
    }

    /// Takes a disk into service whose label [`Controller::label_new_disk`] wrote: every controller does, since others may put there
    /// what is this one's tomorrow. One that cannot open it has a disk that failed.
    pub(crate) async fn join_disk(&self, path: &str, label: Label) -> Result<DiskInfo> {
        let (id, own) = (label.id, label.own());
        self.shared.add_device(id, label.plan.extents).await?;
        let (device, refused) = match (self.opener)(path) {
            Ok(device) => (Some(device), None),
            Err(error) => (None, Some(error)),
        };
        self.store().add_disk(Member::new(id, own.class, label.plan, device.clone()));
        {
            let pool = &mut *self.pool.borrow_mut();
            pool.found.push(device.map(|device| (path.into(), device)));
            pool.label = Label { id: pool.label.id, plan: pool.label.plan, ..label };
        }
        if let Some(error) = refused {
            tracing::error!(disk = id.0, controller = self.id().0, %error, "a new disk cannot be opened");
            self.store().fail_disk(id).await?;
        }
        let member = self.store().array().member(id).ok_or_else(|| Error::missing(format!("disk {}", id.0)))?;
        let free = self.shared.free(id).await?;
        Ok(self.describe_disk(&member, free, None))
    }

    /// Writes the labels anew where a disk that works has another one than this controller goes by: a change of members that a
    /// crash cut off, or one that a disk was away for. Else those that know of it might be missed one day, with what lies there.
    pub(crate) async fn level_labels(&self) -> Result<()> {
        let label = self.pool.borrow().label.clone();
        let disks = self.labelled(&label);
        let own = join_all(disks.iter().map(|(_, device)| read_label(&**device))).await;
        let differs = |own: Label| (own.generation, &own.members) != (label.generation, &label.members);
        if own.into_iter().flatten().flatten().any(differs) { self.relabel(|_| {}).await.map(drop) } else { Ok(()) }
    }

    /// A generation that no label has: counted up before anything is written, so that a try that fails midway and the
    /// next one do not share theirs.
    fn next_generation(&self) -> u64 {
        let label = &mut self.pool.borrow_mut().label;
        label.generation += 1;
        label.generation
    }

    /// Changes the labels' members; only one controller does so.
    async fn relabel(&self, change: impl FnOnce(&mut [LabelMember])) -> Result<Label> {
        let mut label = self.pool.borrow().label.clone();
        label.generation = self.next_generation();
        change(&mut label.members);
        self.write_labels(&label).await?;
        Ok(label)
    }

    /// Takes over what another controller wrote to the labels.
    pub(crate) fn relabelled(&self, to: &Label) {
        let label = &mut self.pool.borrow_mut().label;
        label.members.clone_from(&to.members);
        label.generation = to.generation;
    }

    /// A disk that could carry what `from` carries: it works, carries no journal, and has room; one of its class first.
    fn successor(&self, from: DeviceId) -> Option<DeviceId> {
        let pool = self.pool.borrow();
        let unwanted = [self.store().failed_disks(), self.store().leaving_disks()].concat();
        let needed = Label::journal_at(0, 0) + Self::journals_bytes(&pool.label);
        let class = pool.label.members[usize::from(from.0)].class;
        let fits = |member: &Rc<Member>| {
            let label = pool.label.members[usize::from(member.id.0)];
            label.journal.is_none()
                && !unwanted.contains(&member.id)
                && member.works()
                && member.plan.pages_at >= needed
        };
        let mut fitting: Vec<_> = self.store().array().members().into_iter().filter(fits).collect();
        fitting.sort_by_key(|member| (member.class != class, member.id));
        fitting.first().map(|member| member.id)
    }

    /// Why a disk that leaves keeps the journals: none carries them in its place, and none can.
    pub(crate) fn keeps_journals(&self, leaves: DeviceId) -> Option<Error> {
        let others = {
            let members = &self.pool.borrow().label.members;
            let unwanted = [self.store().failed_disks(), self.store().leaving_disks()].concat();
            let carries = |id: usize| members[id].journal.is_some() && !unwanted.contains(&DeviceId(id as u16));
            members[usize::from(leaves.0)].journal?;
            (0..members.len()).filter(|id| carries(*id)).count()
        };
        let stays = others < JOURNAL_COPIES && self.successor(leaves).is_none();
        stays.then(|| {
            Error::full(format!(
                "disk {} carries journals and no other disk has room for them: add one of its class",
                leaves.0
            ))
        })
    }

    /// Begins to give this controller's journal the copies that are due, unless that is under way; why it has fewer, as far as that
    /// is known.
    fn begin_joining(self: &Rc<Self>) -> Result<()> {
        let due = self.due_journals();
        if due.is_empty() {
            self.joining.refused.take();
        } else if !self.joining.is_under_way.replace(true) {
            let this = Rc::clone(self);
            self.runtime().spawn(Box::pin(async move {
                let mut all = Ok(());
                for place in due {
                    all = all.and(this.store().join_journal(place).await);
                }
                this.joining.refused.replace(all.err());
                this.joining.is_under_way.set(false);
            }));
        }
        self.joining.refused.borrow().clone().map_or(Ok(()), Err)
    }

    /// The copies of this controller's journal that the labels name on a working disk and that it does not have.
    fn due_journals(&self) -> Vec<JournalPlace> {
        if self.store().failure().is_some() {
            // No copy joins a journal that has failed.
            return Vec::new();
        }
        let pool = self.pool.borrow();
        let offset = Label::journal_at(self.id().0, Self::shape(&pool.label).region_bytes());
        let go: BTreeSet<_> = self.noted().into_iter().map(|(disk, _)| disk).collect();
        let carriers = pool.label.members.iter().zip(&pool.found).enumerate();
        let due = carriers.filter_map(|(id, (member, found))| {
            let (disk, (_, device)) = (DeviceId(id as u16), found.as_ref()?);
            let copy = Some(JournalCopy { device: Rc::clone(device), offset });
            let place = JournalPlace { index: usize::from(member.journal?), disk, copy };
            (!go.contains(&disk) && !self.store().journal_on(disk).0).then_some(place)
        });
        due.collect()
    }

    /// What is next for a disk that is failed or leaving; `disks` are all of the pool, and `instead` is the one that is to carry its
    /// journals, if that is known.
    fn next_step(&self, disk: &DiskInfo, disks: &[DiskInfo], instead: Option<u16>) -> Option<Step> {
        let pool = self.pool.borrow();
        let members = &pool.label.members;
        let id = DeviceId(disk.id);
        if members[usize::from(id.0)].journal.is_none() {
            let empty = disk.state == DiskState::Leaving && disk.unwanted_bytes == 0;
            return empty.then_some(Step::Forget(id));
        }
        let carrying = || disks.iter().filter(|other| other.id != disk.id && other.carries_journals());
        if carrying().count() >= JOURNAL_COPIES || carrying().any(|other| Some(other.id) == instead) {
            return Some(Step::LeaveJournals(id));
        }
        // One that is to carry them and does not yet will, unless it has no space.
        let joins =
            |other: &DiskInfo| other.state == DiskState::Healthy && other.lacks_journals() && other.stalled.is_none();
        if disks.iter().any(|other| other.id != disk.id && joins(other)) {
            return None;
        }
        let taken = |index: u8| members.iter().any(|member| member.journal == Some(index));
        let index = (0..COPIES_LIMIT).find(|index| !taken(*index))?;
        Some(Step::CarryJournals { disk: self.successor(id)?, index })
    }

    /// What this controller knows of disks that the pool has.
    fn noted(&self) -> BTreeSet<(DeviceId, Noted)> {
        let (failed, leaving) = (self.store().failed_disks(), self.store().leaving_disks());
        let all = failed.into_iter().map(|disk| (disk, Noted::Failed));
        let all = all.chain(leaving.into_iter().map(|disk| (disk, Noted::Leaves)));
        let members = &self.pool.borrow().label.members;
        all.filter(|(disk, _)| !members[usize::from(disk.0)].gone).collect()
    }

    /// Closes a disk that has left, and makes it blank where it works.
    async fn retire_disk(&self, disk: DeviceId) -> Result<()> {
        let found = self.pool.borrow_mut().found[usize::from(disk.0)].take();
        let Some(member) = self.store().array().member(disk) else { return Ok(()) };
        let works = member.works();
        member.close();
        match found {
            Some((_, device)) if works => wipe_label(&*device).await,
            _ => Ok(()),
        }
    }
}

/// Refuses to let a disk leave whose data does not fit into what is free on those that stay. What moves there already, off disks
/// that leave or have failed, takes its part of that; one that takes nothing any more is among these, and leaves in its turn.
/// Volumes lie on `width` disks at most.
fn check_fits_elsewhere(named: &DiskInfo, disks: &[DiskInfo], width: usize, free_bytes: u64) -> Result<()> {
    let takes_data = |disk: &DiskInfo| disk.class.takes_data(width, disks.iter().map(|info| info.class));
    let moves = disks.iter().filter(|disk| disk.id != named.id && disk.state != DiskState::Healthy && takes_data(disk));
    let (held_bytes, moving_bytes) = if named.state == DiskState::Healthy && takes_data(named) {
        let moving_bytes = moves.map(|disk| disk.unwanted_bytes.saturating_sub(disk.lost_bytes)).sum();
        (named.used_bytes(), moving_bytes)
    } else {
        // What is lost moves nowhere.
        (named.unwanted_bytes.saturating_sub(named.lost_bytes), 0)
    };
    if held_bytes + moving_bytes <= free_bytes {
        return Ok(());
    }
    let (id, held, free) = (named.id, Amount(held_bytes), Amount(free_bytes));
    Err(Error::full(if moving_bytes > 0 {
        let moving = Amount(moving_bytes);
        format!(
            "disk {id} holds {held}, and the others have {free} free, to which {moving} of disks that leave or have failed are to \
             move: wait until they have, or add a disk first"
        )
    } else {
        format!("disk {id} holds {held} and the others have {free} free: add a disk first")
    }))
}

/// What controllers note of a disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Noted {
    Leaves,
    Failed,
}

/// A step of a disk that is failed or leaving.
enum Step {
    /// Another disk is to carry the journals too, as copy `index`.
    CarryJournals { disk: DeviceId, index: u8 },
    /// It carries the journals no more: enough others do, or the one that was to do so instead.
    LeaveJournals(DeviceId),
    /// It has nothing left: the pool forgets it.
    Forget(DeviceId),
}

impl Node {
    /// Adds a disk to the pool; everything on it is lost.
    pub async fn add_disk(&self, path: String, class: Class, uuid: [u8; 16]) -> Result<DiskInfo> {
        let _alone = self.membership.lock().await;
        let label_at = path.clone();
        let label = self
            .first(move |controller| Box::pin(async move { controller.label_new_disk(&label_at, class, uuid).await }))
            .await?;
        let joined = self.ask_all(move |controller| {
            let (path, label) = (path.clone(), label.clone());
            Box::pin(async move { controller.join_disk(&path, label).await })
        });
        joined.await?.pop().ok_or_else(|| Error::retry("no controller serves"))
    }

    /// Refuses what [`Node::remove_disk`] refuses. `instead` is a disk of its class that joins before: its path
    /// and its size in bytes.
    pub async fn check_remove_disk(&self, disk: DeviceId, instead: Option<(String, u64)>) -> Result<()> {
        let pool = self.pool().await?;
        let named = pool.disks.iter().find(|info| info.id == disk.0);
        let named = named.ok_or_else(|| Error::missing(format!("disk {}: no such disk", disk.0)))?;
        let joins = instead.is_some();
        let joining_bytes = match instead {
            Some((path, size_bytes)) => self.data_bytes(path, named.class, size_bytes).await?,
            None => 0,
        };
        let width = self.volumes().await?.iter().map(|volume| volume.shape.width()).max().unwrap_or(1);
        let stay = || pool.disks.iter().filter(|info| info.id == disk.0 || info.state != DiskState::Leaving);
        let takes_data = |class: Class| class.takes_data(width, stay().map(|info| info.class));
        let others = || pool.disks.iter().filter(|info| info.id != disk.0 && info.state == DiskState::Healthy);
        // What lies on slow disks goes to fast ones only where no slow one is left.
        let is_last = !joins && others().all(|info| info.class == Class::Fast);
        let takes_now = |class: Class| takes_data(class) || is_last;
        let elsewhere: Vec<_> = others().filter(|info| takes_now(info.class)).collect();
        let joins_them = joins && takes_now(named.class);
        let free_bytes =
            elsewhere.iter().map(|info| info.free_bytes).sum::<u64>() + if joins_them { joining_bytes } else { 0 };
        let left = elsewhere.len() + usize::from(joins_them);
        // A disk that failed is missed by nobody, once what can be told of it is elsewhere.
        let holds_data = named.state == DiskState::Healthy && takes_data(named.class);
        if left < width && (holds_data || named.unwanted_bytes > named.lost_bytes) {
            return Err(Error::full(format!(
                "disk {}: {left} disks of data would be left, and volumes here lie on {width}: add a disk first",
                disk.0
            )));
        }
        check_fits_elsewhere(named, &pool.disks, width, free_bytes)?;
        let working = |info: &&DiskInfo| info.id != disk.0 && info.journals_due > 0 && info.state == DiskState::Healthy;
        if named.journals.max(named.journals_due) > 0
            && !joins
            && pool.disks.iter().filter(working).count() < JOURNAL_COPIES
        {
            let to = self.first(move |controller| Box::pin(async move { Ok(controller.successor(disk)) })).await?;
            if to.is_none() {
                return Err(Error::full(format!(
                    "disk {} carries journals and no other disk has room for them: add one of its class first",
                    disk.0
                )));
            }
        }
        Ok(())
    }

    /// Refuses a disk that is too small to join, or one too many, before anything of it is written.
    pub async fn check_add_disk(&self, path: String, class: Class, size_bytes: u64) -> Result<()> {
        self.data_bytes(path, class, size_bytes).await.map(drop)
    }

    /// Bytes for volumes' data on a disk that joins.
    async fn data_bytes(&self, path: String, class: Class, size_bytes: u64) -> Result<u64> {
        let plan = move |controller: Rc<Controller>| -> Local<'static, Result<u64>> {
            let plan = Controller::plan(&controller.pool.borrow().label, &path, class, size_bytes);
            Box::pin(std::future::ready(plan.map(|plan| u64::from(plan.extents) * plan.extent_bytes)))
        };
        self.first(plan).await
    }

    /// Lets a disk leave the pool: from now on it takes nothing new, what it holds moves to the others, and then
    /// [`Node::tend`] makes the pool forget it. Refused when the others have no room.
    pub async fn remove_disk(&self, disk: DeviceId) -> Result<()> {
        let _alone = self.membership.lock().await;
        self.check_remove_disk(disk, None).await?;
        self.note(disk, Noted::Leaves).await
    }

    /// Has every controller note, durably, what becomes of a disk. One whose journal has failed goes by it too, until it starts
    /// again and is told anew; that one other has noted it is enough.
    pub(crate) async fn note(&self, disk: DeviceId, what: Noted) -> Result<()> {
        let noted = self.ask_all(move |controller| {
            Box::pin(async move {
                let store = controller.store();
                let noted = match what {
                    Noted::Leaves => store.leave_disk(disk).await,
                    Noted::Failed => store.fail_disk(disk).await,
                };
                if store.failure().is_some() { Ok(noted) } else { noted.map(Ok) }
            })
        });
        noted.await?.into_iter().reduce(Result::or).unwrap_or(Ok(()))
    }

    /// Does what is next for disks that are failed or leaving, if anything. To be called again and again. Returns the disks
    /// that the pool has forgotten: once nobody remembers them, [`Node::retire_disk`].
    pub async fn tend(&self) -> Result<Vec<DiskInfo>> {
        let mut tended = self.membership.lock().await;
        let mut forgotten = Vec::new();
        let ill = self.spread_the_word().await?;
        // It is not waited for, with what waits for this one to end: other disks may fail meanwhile. A crash, too, may have come when
        // a disk was to carry journals, and before it did.
        let joined = self.ask_each(Controller::begin_joining).await?.into_iter().collect();
        tended.tell(None, joined, "a journal has fewer copies than it should have");
        for DeviceId(id) in ill {
            let next = self.next_for(id, &mut tended.instead).await;
            tended.tell(Some(id), next.map(|gone| forgotten.extend(gone)), "what is next for this disk has to wait");
        }
        Ok(forgotten)
    }

    /// What one controller found or was told of a disk, all are told: a failure is seen by one first, of a disk that leaves too, and a
    /// crash may come when only some have noted that one leaves. Returns the disks that fail or leave.
    async fn spread_the_word(&self) -> Result<BTreeSet<DeviceId>> {
        self.ask_all(|controller| Box::pin(async move { controller.store().note_lost_journals().await })).await?;
        let noted: BTreeSet<_> = self.ask_each(|controller| controller.noted()).await?.into_iter().flatten().collect();
        for (disk, what) in &noted {
            self.note(*disk, *what).await?;
        }
        Ok(noted.into_iter().map(|(disk, _)| disk).collect())
    }

    /// The next step of a disk, where it is failed or leaving; the disk, if the pool has forgotten it.
    async fn next_for(&self, id: u16, instead: &mut BTreeMap<u16, u16>) -> Result<Option<DiskInfo>> {
        // Anew for each: the step of the one before may have moved journals.
        let disks = self.pool().await?.disks;
        let ill = disks.iter().find(|disk| disk.id == id && disk.state != DiskState::Healthy);
        let Some(disk) = ill.cloned() else { return Ok(None) };
        let (asked, successor) = (disk.clone(), instead.get(&id).copied());
        let next = move |controller: Rc<Controller>| -> Local<'static, Result<Option<Step>>> {
            Box::pin(std::future::ready(Ok(controller.next_step(&asked, &disks, successor))))
        };
        match self.first(next).await? {
            Some(Step::CarryJournals { disk, index }) => {
                self.relabel(move |members| members[usize::from(disk.0)].journal = Some(index)).await?;
                instead.insert(id, disk.0);
            }
            Some(Step::LeaveJournals(disk)) => {
                self.ask_all(move |controller| Box::pin(async move { controller.store().leave_journal(disk).await }))
                    .await?;
                self.relabel(move |members| members[usize::from(disk.0)].journal = None).await?;
                instead.remove(&id);
            }
            Some(Step::Forget(id)) => {
                // No recovery may look for anything there any more.
                self.ask_all(|controller| Box::pin(async move { controller.store().checkpoint().await })).await?;
                self.relabel(move |members| members[usize::from(id.0)].gone = true).await?;
                return Ok(Some(disk));
            }
            None => {}
        }
        Ok(None)
    }

    /// Closes a disk that the pool has forgotten, and makes it blank where it works.
    pub async fn retire_disk(&self, disk: DeviceId) -> Result<()> {
        self.ask_all(move |controller| Box::pin(async move { controller.retire_disk(disk).await })).await?;
        Ok(())
    }

    async fn relabel(&self, change: impl FnOnce(&mut [LabelMember]) + Send + 'static) -> Result<()> {
        let label = self.first(move |controller| Box::pin(async move { controller.relabel(change).await })).await?;
        self.ask_each(move |controller| controller.relabelled(&label)).await.map(drop)
    }

    /// Asks the first controller, which alone changes labels.
    pub(crate) async fn first<T: Send + 'static>(
        &self,
        ask: impl FnOnce(Rc<Controller>) -> Local<'static, Result<T>> + Send + 'static,
    ) -> Result<T> {
        let first = self.doors.first().ok_or_else(|| Error::retry("no controller serves"))?;
        first.call(ask).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_array::JournalPart;

    #[test]
    fn a_disk_too_many_is_refused_before_anything_is_written() {
        let member = LabelMember { uuid: [1; 16], class: Class::Slow, journal: None, gone: true, extents: 16 };
        let plan = |members: usize| {
            let label = Label {
                pool: [7; 16],
                generation: 1,
                id: DeviceId(0),
                controllers: 1,
                plan: Plan::of(8 << 20, 64 << 10, 0, 0).unwrap(),
                journal: JournalPart { tables_bytes: 1 << 20, ring_bytes: 1 << 20 },
                members: vec![member; members],
            };
            Controller::plan(&label, "new", Class::Slow, 8 << 20)
        };
        plan(127).unwrap();
        let refused = plan(128).unwrap_err();
        assert!(refused.kind() == Kind::Full && refused.to_string().contains("new: a pool takes 128"), "{refused}");
    }
}
