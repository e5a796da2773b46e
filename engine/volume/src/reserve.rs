//! Taking free extents of the pool, and giving them back.

use crate::checkpoint::TABLES_FOR_GROUPS;
use crate::extent::Extent;
use crate::record::Record;
use crate::store::Inner;
use crate::tables::VolumeState;
use crate::tier::FastCopy;
use futures::{StreamExt, stream};
use kura_array::policy::{Candidate, choose_disks};
use kura_array::{Layout, Member, Place, Places, Shape};
use kura_block::{DeviceId, Error, Kind, Result};
use kura_journal::Lsn;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use tokio::sync::oneshot;

/// Groups of places given back at once.
const RETURNS: usize = 16;
/// The most of them that are taken together to be given back.
const AT_ONCE: usize = 4096;

/// Places given up, waiting to go back to the pool.
pub(crate) struct Freed {
    pub places: Places,
    /// The extents of a volume that lay there.
    pub extents: Vec<Rc<Extent>>,
    /// The fast copy that lay there.
    pub copy: Option<Rc<FastCopy>>,
    /// The record that gave it up is below this.
    pub until: Lsn,
    /// The log says that data of its records lies there: a recovery reads it.
    pub is_told: bool,
    /// Streams take such places again and again: its disk, which may have to look for space in its file, is not told that it is free.
    pub is_of_stream: bool,
}

impl Freed {
    /// A group of extents of a volume.
    pub fn group(extents: Vec<Rc<Extent>>, until: Lsn) -> Self {
        let places = extents.first().map(|extent| extent.group.places()).unwrap_or_default();
        Self { extents, ..Self::places(places, until) }
    }

    /// Places of which no extent of a volume knows.
    pub fn places(places: Places, until: Lsn) -> Self {
        Self { places, extents: Vec::new(), copy: None, until, is_told: false, is_of_stream: false }
    }
}

/// What goes back to the pool behind a checkpoint.
#[derive(Default)]
pub(crate) struct Returns {
    /// Some of it is on its way.
    is_under_way: Cell<bool>,
    /// Who waits until all is free that the tail has passed by now.
    waiting: RefCell<Vec<oneshot::Sender<Result<()>>>>,
}

/// Places taken while more are waited for. Whoever asked may be a client that leaves: then they go back to the pool.
struct Taking<'a> {
    inner: &'a Inner,
    places: Places,
}

impl Taking<'_> {
    fn done(mut self) -> Places {
        std::mem::take(&mut self.places)
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if !self.places.is_empty() {
            self.inner.freed.borrow_mut().push(Freed::places(std::mem::take(&mut self.places), Lsn(0)));
            self.inner.checkpointer.notify_one();
        }
    }
}

impl Inner {
    /// Disks that take data of volumes of any width, work and stay.
    pub fn data_disks(&self) -> Vec<DeviceId> {
        self.disks_for(1)
    }

    /// Disks that take data of volumes which lie on `width` disks, work and stay.
    pub fn disks_for(&self, width: usize) -> Vec<DeviceId> {
        let disks = self.members_for(width).into_iter();
        disks.filter(|member| member.works()).map(|member| member.id).collect()
    }

    /// Disks on which the widest of the volumes lies.
    pub fn widest(&self) -> usize {
        let tables = self.tables.borrow();
        tables.volumes.homes().values().map(|volume| volume.shape.width()).max().unwrap_or(1)
    }

    /// Disks that stay, whether they work or not, whose class takes data of volumes which lie on `width` disks.
    fn members_for(&self, width: usize) -> Vec<Rc<Member>> {
        let leaving = &self.tables.borrow().leaving;
        let mut members = self.array.members();
        members.retain(|member| !member.is_gone() && !leaving.contains(&member.id));
        let classes: Vec<_> = members.iter().map(|member| member.class).collect();
        members.retain(|member| member.class.takes_data(width, classes.iter().copied()));
        members
    }

    fn has_disks_for(&self, shape: Shape) -> bool {
        self.disks_for(shape.width()).len() >= shape.width()
    }

    /// Takes so many places for a group of `width`, none on the disks of `beside`.
    pub async fn allocate(&self, width: usize, copies: usize, beside: &[Place]) -> Result<Places> {
        let beside = |device: &DeviceId| beside.iter().any(|place| place.device == *device);
        let (others, disks): (Vec<_>, Vec<_>) = self.disks_for(width).into_iter().partition(beside);
        if disks.len() < copies {
            let (needed, working) = (others.len() + copies, others.len() + disks.len());
            return Err(Error::full(format!(
                "too few disks of data: {needed} are needed and {working} work; replace the one that failed, or add one"
            )));
        }
        self.allocate_from(copies, &disks).await
    }

    /// Takes places for so many copies on some of these disks; where they have none, of what this controller can give back itself.
    pub async fn allocate_from(&self, copies: usize, disks: &[DeviceId]) -> Result<Places> {
        let is_full = |taken: &Result<Places>| matches!(taken, Err(error) if error.kind() == Kind::Full);
        let mut taken = self.allocate_free(copies, disks).await;
        if is_full(&taken) && (self.successors.are_on(disks) || self.is_to_return()) {
            self.give_up_successors(|open| open.is_on(disks));
            self.reclaim().await?;
            taken = self.allocate_free(copies, disks).await;
        }
        while is_full(&taken) && self.call_loan(disks).await {
            taken = self.allocate_free(copies, disks).await;
        }
        taken
    }

    async fn allocate_free(&self, copies: usize, disks: &[DeviceId]) -> Result<Places> {
        let mut candidates = Vec::new();
        for device in disks.iter().copied() {
            let free = self.share.available(device).await?;
            candidates.push(Candidate { device, free, taken: self.share.taken(device) });
        }
        let mut taking = Taking { inner: self, places: Places::new() };
        while taking.places.len() < copies {
            let lacks = copies - taking.places.len();
            let devices = choose_disks(lacks, &candidates, self.settings.scatter).or_else(|| {
                // Others may have leased extents that they do not use: taking one has them given back.
                for candidate in &mut candidates {
                    candidate.free = candidate.free.max(1);
                }
                choose_disks(lacks, &candidates, self.settings.scatter)
            });
            let Some(devices) = devices else {
                self.put_back(&taking.done()).await?;
                return Err(Error::full(format!(
                    "the pool is full: {copies} disks with a free extent are needed; delete or trim something, or add a disk"
                )));
            };
            for device in devices {
                // Where another controller was quicker, the next turn chooses without this disk.
                match self.share.take(device).await {
                    Ok(taken) => taking.places.extend(taken.map(|extent| Place { device, extent })),
                    Err(error) => return self.take_back(&taking.done(), error).await,
                }
                candidates.retain(|candidate| candidate.device != device);
            }
        }
        Ok(taking.done())
    }

    /// Takes an extent on each of these disks, or none.
    pub async fn allocate_on(&self, disks: &[DeviceId]) -> Result<Places> {
        let mut taking = Taking { inner: self, places: Places::new() };
        for device in disks {
            match self.share.take(*device).await {
                Ok(Some(extent)) => taking.places.push(Place { device: *device, extent }),
                Ok(None) => {
                    let full = Error::full(format!("disk {} has no free extent", device.0));
                    return self.take_back(&taking.done(), full).await;
                }
                Err(error) => return self.take_back(&taking.done(), error).await,
            }
        }
        Ok(taking.done())
    }

    /// Gives places up that hold nothing.
    pub async fn put_back(&self, places: &[Place]) -> Result<()> {
        for place in places {
            self.share.free(place.device, vec![place.extent]).await?;
        }
        Ok(())
    }

    /// Places for a group. Where too few disks work, one with parity takes the place of a disk that failed for one of its
    /// own: it is rebuilt with the others when there is a disk for it.
    async fn allocate_group(&self, shape: Shape) -> Result<Places> {
        let full = match self.allocate(shape.width(), shape.width(), &[]).await {
            Err(error) if error.kind() == Kind::Full && shape.parity => error,
            done => return done,
        };
        if self.has_disks_for(shape) {
            // They have no room, as without the one that failed: what is written now is worth a whole group.
            return Err(full);
        }
        let failed = self.members_for(shape.width()).into_iter().find(|member| !member.works());
        let Some(failed) = failed else { return Err(full) };
        let places = self.allocate(shape.width(), shape.width() - 1, &[]).await.map_err(|_| full.clone())?;
        let mut taking = Taking { inner: self, places };
        match self.share.take(failed.id).await {
            Ok(Some(extent)) => taking.places.push(Place { device: failed.id, extent }),
            Ok(None) => return self.take_back(&taking.done(), full).await,
            Err(error) => return self.take_back(&taking.done(), error).await,
        }
        Ok(taking.done())
    }

    /// Gives up what was taken before an error, which it returns: left alone it would be nobody's until a restart.
    async fn take_back(&self, places: &[Place], error: Error) -> Result<Places> {
        self.put_back(places).await?;
        Err(error)
    }

    /// Allocates the group of an extent of a volume, unless it has been meanwhile; where the pool is full, a snapshot may
    /// have made room instead, and the caller asks again.
    pub async fn map(&self, volume: &Rc<VolumeState>, index: u32) -> Result<()> {
        match self.map_into_free(volume, index).await {
            Err(error) if error.kind() == Kind::Full => self.drop_oldest_or(volume, index, error).await,
            done => done,
        }
    }

    /// The pool is full for the group of an extent: it is allocated in what other controllers give back, or else a snapshot goes, where one
    /// may, or the error stays.
    pub async fn drop_oldest_or(&self, volume: &Rc<VolumeState>, index: u32, full: Error) -> Result<()> {
        self.note_full();
        self.tidy_all().await?;
        // What others give back is room on disks: tables that are full stay so.
        let may_help = self.has_disks_for(volume.shape) && self.room_in_tables(0, TABLES_FOR_GROUPS).is_ok();
        let mut more = true;
        while more {
            more = may_help && self.others_give_back().await;
            match self.map_into_free(volume, index).await {
                Err(error) if error.kind() == Kind::Full => {}
                done => return done,
            }
        }
        if may_help && self.drop_oldest().await? { Ok(()) } else { Err(full) }
    }

    /// As [`Inner::map`], into what is free.
    pub async fn map_into_free(&self, volume: &Rc<VolumeState>, index: u32) -> Result<()> {
        self.room_in_tables(0, TABLES_FOR_GROUPS)?;
        let places = self.allocate_group(volume.shape).await?;
        self.map_at(volume, index, places).await
    }

    /// As [`Inner::map`], at these places.
    async fn map_at(&self, volume: &Rc<VolumeState>, index: u32, places: Places) -> Result<()> {
        let first = volume.first_of(index);
        let open = volume.lacks(first);
        let leaving = |place: &Place| self.tables.borrow().leaving.contains(&place.device);
        // A disk may have gone while the places were leased: the caller asks again, unless the group can do without.
        let broken = places.iter().filter(|place| !self.array.works(**place)).count();
        let gone = broken > usize::from(volume.shape.parity) || places.iter().any(leaving);
        if broken > 0 {
            self.rebuilder.notify_one();
        }
        if !open || gone || volume.deleted.get() {
            return self.put_back(&places).await;
        }
        self.note_home(volume.id, &places);
        let born = self.append(&Record::Map { volume: volume.id, index: first, places: places.clone() });
        let blocks = self.array.extent_blocks();
        let made = volume.put_group(first, born.0, places, |owner, group| Extent::empty(owner, group, blocks))?;
        if volume.has_hot_area() {
            self.hot.migrator.notify_one();
        }
        for extent in made {
            self.page_changed(&extent, true);
            self.note_loaded(&extent);
        }
        Ok(())
    }

    /// How a new volume's groups lie.
    pub fn shape_of(&self, layout: Layout) -> Result<Shape> {
        if layout == Layout::Floating && !self.array.floats() {
            return Err(Error::invalid(
                "layout floating needs free room in every extent, and this pool was made without: make a pool with \
                 pool.floating_percent, or choose another layout",
            ));
        }
        let chunk_blocks = self.settings.chunk_blocks.min(self.array.extent_blocks() as u16);
        layout.shape(self.disks_for(layout.least_disks()).len(), self.settings.raid_width, chunk_blocks)
    }

    /// Takes the places that a volume of `size_bytes` lacks to be allocated as a whole; all or, with an error, none. They are
    /// nobody's after a crash. Snapshots go for it where the pool says so and `may_drop`.
    pub async fn reserve_groups(&self, volume: &VolumeState, size_bytes: u64, may_drop: bool) -> Result<Vec<Places>> {
        let group_bytes = Self::bytes_of(self.group_blocks(volume));
        let has = u64::from(volume.mapped() / volume.shape.extents());
        let lacks = size_bytes.div_ceil(group_bytes).saturating_sub(has);
        let (mut room, mut asked) = (Vec::new(), false);
        while (room.len() as u64) < lacks {
            if let Err(gone) = volume.check_there() {
                self.put_back_all(room).await?;
                return Err(gone);
            }
            let refused = match self.allocate_group(volume.shape).await {
                Ok(places) => {
                    room.push(places);
                    asked = false;
                    continue;
                }
                Err(error) => error,
            };
            let is_full = refused.kind() == Kind::Full && self.has_disks_for(volume.shape);
            if is_full && (self.others_give_back().await || !std::mem::replace(&mut asked, true)) {
                continue;
            }
            let dropped = if is_full && may_drop { self.drop_oldest().await } else { Ok(false) };
            if !matches!(dropped, Ok(true)) {
                self.put_back_all(room).await?;
                return Err(dropped.err().unwrap_or(refused));
            }
        }
        Ok(room)
    }

    /// Gives up what [`Inner::reserve_groups`] took.
    pub async fn put_back_all(&self, room: Vec<Places>) -> Result<()> {
        for places in room {
            self.put_back(&places).await?;
        }
        Ok(())
    }

    /// Allocates every extent of a volume from `first` on, in `room` as far as that goes; what is left of it goes back.
    pub async fn fill(&self, volume: &Rc<VolumeState>, first: u32, mut room: Vec<Places>) -> Result<()> {
        let mut filled = Ok(());
        room.reverse();
        let mut index = volume.first_of(first);
        // Another resize may have made the volume smaller meanwhile.
        while filled.is_ok() && index < volume.extents() && !volume.deleted.get() {
            filled = self.make_room(0).await.and_then(|()| self.room_in_tables(0, TABLES_FOR_GROUPS));
            if filled.is_err() {
                break;
            }
            if !volume.lacks(index) {
                index += volume.shape.extents();
                continue;
            }
            filled = match room.pop() {
                Some(places) => self.map_at(volume, index, places).await,
                None => self.map(volume, index).await,
            };
            self.stir();
        }
        self.put_back_all(room).await?;
        filled
    }

    /// Gives the group of an extent of a volume up; its space goes back to the pool at the next checkpoint.
    pub fn unmap(&self, volume: &Rc<VolumeState>, index: u32) {
        let extents = volume.take_group(index);
        let Some(first) = extents.first().map(|extent| extent.owner.index) else { return };
        let lsn = self.append(&Record::Unmap { volume: volume.id, index: first });
        let (start, end) = self.group_range(volume, first);
        self.forget_hot(volume, start, end, lsn);
        self.drop_dirty(volume, start, end);
        self.give_up_group(extents, Lsn(lsn.0 + 1));
        self.checkpointer.notify_one();
    }

    /// The blocks of the group of an extent of a volume: the first, and the first one after.
    pub fn group_range(&self, volume: &VolumeState, index: u32) -> (u64, u64) {
        let (blocks, group) = (self.group_blocks(volume), u64::from(index / volume.shape.extents()));
        (group * blocks, (group + 1) * blocks)
    }

    /// Blocks in a group of a volume's extents.
    pub fn group_blocks(&self, volume: &VolumeState) -> u64 {
        self.array.extent_blocks() as u64 * u64::from(volume.shape.extents())
    }

    /// Makes a checkpoint; when the future resolves, what was given up before is free.
    pub async fn reclaim(&self) -> Result<()> {
        self.checkpoint().await?;
        let (answer, answered) = oneshot::channel();
        self.returns.waiting.borrow_mut().push(answer);
        self.give_back_ripe();
        answered.await.unwrap_or_else(|_| Err(Error::retry("the server is shutting down")))
    }

    /// True while something that was given up is not free.
    pub fn is_to_return(&self) -> bool {
        self.returns.is_under_way.get() || !self.freed.borrow().is_empty()
    }

    /// Gives back to the pool what was given up behind the journal's tail, so that no replay writes there any more, and
    /// is not in use by a read or write. A task does it, one at a time: nobody but who wants the room waits for disks to discard.
    pub fn give_back_ripe(&self) {
        let Some(inner) = self.me.upgrade().filter(|_| !self.returns.is_under_way.replace(true)) else { return };
        self.runtime.spawn(Box::pin(async move {
            let mut done = Ok(());
            while done.is_ok() {
                let (waiting, ripe) = (inner.returns.waiting.take(), inner.take_ripe(inner.journal().tail()));
                if waiting.is_empty() && ripe.is_empty() {
                    break;
                }
                done = inner.give_back(ripe).await;
                for who in waiting {
                    drop(who.send(done.clone()));
                }
            }
            inner.returns.is_under_way.set(false);
            // Some may have come since it failed.
            for who in inner.returns.waiting.take() {
                drop(who.send(done.clone()));
            }
            match done {
                Ok(()) => inner.drops.note_given_back(),
                Err(error) => tracing::debug!(%error, "what was given up goes back behind the next checkpoint"),
            }
        }));
    }

    async fn give_back(&self, ripe: Vec<(Places, bool)>) -> Result<()> {
        let mut returns = stream::iter(ripe)
            .map(|(places, is_of_stream)| async move {
                // A stop does not wait for what is only a hint.
                if !is_of_stream && !self.is_stopping() {
                    self.array.discard(&places).await;
                }
                for (at, place) in places.iter().enumerate() {
                    self.put_back(&[*place]).await.map_err(|error| (error, Places::from(&places[at..])))?;
                }
                Ok(())
            })
            .buffer_unordered(RETURNS);
        let mut failed = Ok(());
        while let Some(returned) = returns.next().await {
            if let Err((error, places)) = returned {
                // What the pool did not take waits for the next time.
                self.freed.borrow_mut().push(Freed::places(places, Lsn(0)));
                failed = failed.and(Err(error));
            }
        }
        failed
    }

    /// Takes what can be given back out of what was given up; not so much that who waits for some has to wait for all.
    fn take_ripe(&self, tail: Lsn) -> Vec<(Places, bool)> {
        let mut dirty_pages = self.dirty_pages.borrow_mut();
        dirty_pages.retain(|extent| extent.is_dirty());
        let mut listed: BTreeMap<*const Extent, usize> = BTreeMap::new();
        for extent in dirty_pages.iter() {
            *listed.entry(Rc::as_ptr(extent)).or_default() += 1;
        }
        let mut ripe = Vec::new();
        let mut given_back = BTreeSet::new();
        self.freed.borrow_mut().retain(|freed| {
            // The list of dirty pages and this one are the only holders of an extent that nothing uses.
            let unused = |extent: &Rc<Extent>| {
                Rc::strong_count(extent) == 1 + listed.get(&Rc::as_ptr(extent)).copied().unwrap_or_default()
                    && !extent.group.is_sought()
            };
            let free = ripe.len() < AT_ONCE
                && freed.until <= tail
                && freed.extents.iter().all(unused)
                && freed.copy.as_ref().is_none_or(|copy| Rc::strong_count(copy) == 1);
            if free {
                given_back.extend(freed.extents.iter().map(Rc::as_ptr));
                ripe.push((freed.places.clone(), freed.is_of_stream));
            }
            !free
        });
        dirty_pages.retain(|extent| !given_back.contains(&Rc::as_ptr(extent)));
        ripe
    }
}
