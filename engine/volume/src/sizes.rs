//! Making and deleting volumes, and changing their sizes.
//!
//! What must hold of a thick volume: it is larger than what is allocated only after a crash or a disk that went in the midst of its growth,
//! until the pool has room. So the places of all that it lacks are taken before its new size is recorded, or given back, and
//! nothing has happened.

use crate::checkpoint::TABLES_FOR_VOLUMES;
use crate::policy::groups_that_fit;
use crate::record::{Record, Spec};
use crate::snapshot::WhenFull;
use crate::status::VolumeStatus;
use crate::store::{Inner, Store};
use crate::tables::VolumeState;
use kura_block::{Amount, DeviceId, Error, Result};
use kura_journal::Lsn;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long to wait before a thick volume that lacks space is filled again.
const FILL_AGAIN: Duration = Duration::from_mins(1);

impl Store {
    /// Makes a volume; durable when the future resolves. `Exists` when the pool has one of that name.
    pub async fn create(&self, spec: Spec) -> Result<VolumeStatus> {
        spec.check()?;
        let inner = &self.inner;
        inner.journal().alive()?;
        inner.share.names().await?.take(&spec.name).await?;
        let made = self.create_named(&spec).await;
        // Of a journal that has failed nobody knows what it has: the next start tells whether there is such a volume.
        if made.is_err() && inner.journal().alive().is_ok() {
            inner.share.names().await?.release(&spec.name).await?;
        }
        made
    }

    async fn create_named(&self, spec: &Spec) -> Result<VolumeStatus> {
        let inner = &self.inner;
        inner.check_extents(spec.size_bytes)?;
        inner.room_in_tables(0, TABLES_FOR_VOLUMES)?;
        inner.room_in_journal().await?;
        inner.numbers_left(1)?;
        let id = inner.next_volume_id();
        let shape = inner.shape_of(spec.layout)?;
        let volume = Rc::new(VolumeState::new(id, spec.clone(), shape, inner.array.extent_bytes()));
        // Should it fail, nobody has anything made of it.
        let making = volume.make();
        inner.append(&Record::Create { volume: id, spec: spec.clone(), shape });
        inner.tables.borrow_mut().volumes.insert(id, Rc::clone(&volume));
        inner.hot.migrator.notify_one();
        let mut made = Ok(());
        if spec.thick {
            let _stays = volume.stay();
            // The hot area, which is told of the volume now, has its share before the data.
            made = match inner.reserve_groups(&volume, spec.size_bytes, true).await {
                Ok(room) => inner.fill(&volume, 0, room).await,
                Err(error) => Err(error),
            };
        }
        if made.is_err() {
            inner.remove(&volume);
        }
        drop(making);
        inner.commit_all().await?;
        made.map(|()| inner.status_of(&volume))
    }

    /// Deletes a volume before anything is waited for; durable when the future resolves, its space back soon after. A snapshot that its volume is being rolled
    /// back to is nobody else's from then on, and gives its space back when that is done, or with the volume.
    pub async fn delete(&self, name: &str) -> Result<()> {
        let inner = &self.inner;
        let volume = inner.find(name)?;
        inner.check_childless(&volume)?;
        if inner.is_rolled_to(&volume) {
            inner.leave_to_roll_back(&volume);
        } else {
            inner.remove(&volume);
        }
        inner.commit_all().await?;
        inner.share.names().await?.release(name).await?;
        inner.checkpointer.notify_one();
        Ok(())
    }

    /// Refuses what [`Store::delete`] refuses.
    pub fn check_delete(&self, name: &str) -> Result<()> {
        let volume = self.inner.find(name)?;
        self.inner.check_childless(&volume)
    }

    /// Refuses what [`Store::resize`] refuses before it begins.
    pub fn check_resize(&self, name: &str, size_bytes: u64) -> Result<()> {
        Spec::check_size(size_bytes)?;
        self.inner.check_extents(size_bytes)?;
        let volume = self.inner.find(name)?;
        if volume.spec.borrow().read_only {
            return Err(Error::read_only(format!("volume {name} is read-only: its size stays, too")));
        }
        if size_bytes < volume.size_bytes() && volume.branch.borrow().is_some() {
            return Err(Error::invalid(format!(
                "volume {name}: it has snapshots or is one, or what they left is being put in order: it can grow but not \
                 shrink"
            )));
        }
        Ok(())
    }

    /// Changes a volume's size; what is beyond a smaller one is gone. Durable when the future resolves.
    pub async fn resize(&self, name: &str, size_bytes: u64) -> Result<VolumeStatus> {
        self.check_resize(name, size_bytes)?;
        let inner = &self.inner;
        let volume = inner.find(name)?;
        let before = volume.size_bytes();
        let _stays = volume.stay();
        let resized = if size_bytes < before {
            inner.shrink(&volume, size_bytes).await
        } else {
            inner.grow(&volume, size_bytes).await
        };
        // Also what an error leaves.
        inner.commit_all().await?;
        let now = volume.size_bytes();
        let told = |error: Error| {
            if now == before { error } else { error.at(format_args!("volume {name}, which has {} now", Amount(now))) }
        };
        resized.map(|()| inner.status_of(&volume)).map_err(told)
    }

    /// Refuses a thick volume of this size for which the pool has no room, or one that is to grow to it; `room` is what each
    /// disk has free, in extents, whichever controller leased it, and how many more it would have, at most, without snapshots. So none
    /// goes for what does not fit without any.
    pub fn check_room(&self, spec: &Spec, room: &BTreeMap<DeviceId, (u64, u64)>) -> Result<()> {
        let inner = &self.inner;
        let known = inner.find(&spec.name).ok();
        let shape = match &known {
            Some(volume) => volume.shape,
            None => inner.shape_of(spec.layout)?,
        };
        let disks = inner.disks_for(shape.width());
        // Where disks are missing some layouts go on with fewer.
        if !spec.thick || disks.len() < shape.width() {
            return Ok(());
        }
        let may_go = inner.settings.when_full == WhenFull::DropOldest;
        let group_bytes = inner.array.extent_bytes() * u64::from(shape.extents());
        let has = known.map_or(0, |volume| u64::from(volume.mapped() / shape.extents()));
        let lacks = spec.size_bytes.div_ceil(group_bytes).saturating_sub(has);
        let room_of = |disk| room.get(disk).map_or(0, |(free, more)| free + if may_go { *more } else { 0 });
        let room: Vec<u64> = disks.iter().map(room_of).collect();
        let fit = groups_that_fit(shape.width(), &room);
        if lacks <= fit {
            return Ok(());
        }
        let told = |groups: u64| Amount(groups * group_bytes);
        Err(Error::full(format!(
            "volume {}: {} more are wanted and the pool has room for {} laid out so: make it smaller or thin, delete something, or add a disk",
            spec.name,
            told(lacks),
            told(fit)
        )))
    }
}

impl Inner {
    /// Makes a volume larger. A thick one that cannot be filled after all is what it was before; where it has snapshots, whose volumes do not
    /// shrink, it keeps its size, and is filled later.
    async fn grow(&self, volume: &Rc<VolumeState>, size_bytes: u64) -> Result<()> {
        let before = volume.size_bytes();
        let fills = size_bytes > before && volume.spec.borrow().thick;
        let room = if fills { self.reserve_groups(volume, size_bytes, true).await? } else { Vec::new() };
        if let Err(error) = self.ready(volume).and_then(|()| volume.check_still(before)) {
            self.put_back_all(room).await?;
            return Err(error);
        }
        self.set_size(volume, size_bytes);
        if !fills {
            return Ok(());
        }
        let filled = self.fill(volume, (before / self.array.extent_bytes()) as u32, room).await;
        if filled.is_ok() {
            return filled;
        }
        // What has another size again is another's.
        let undone = match volume.check_still(size_bytes) {
            Ok(()) => self.shrink(volume, before).await,
            busy => busy,
        };
        if let (Err(_), Some(own)) = (undone, self.me.upgrade()) {
            self.runtime.spawn(Box::pin(own.fill_thick()));
        }
        filled
    }

    /// A volume has another size from now on; the LSN of the record that says so.
    pub fn set_size(&self, volume: &VolumeState, size_bytes: u64) -> Lsn {
        let lsn = self.append(&Record::Size { volume: volume.id, bytes: size_bytes });
        volume.spec.borrow_mut().size_bytes = size_bytes;
        volume.fit_map(self.array.extent_bytes());
        lsn
    }

    /// Allocates what thick volumes lack, because a crash came while they were made or grew, or a disk went. One task at a time does
    /// so, as long as any lacks something.
    pub async fn fill_thick(self: Rc<Self>) {
        if self.filling.replace(true) {
            return;
        }
        let lacks = |volume: &Rc<VolumeState>| volume.spec.borrow().thick && volume.mapped() < volume.extents();
        loop {
            let lacking: Vec<_> = {
                let tables = self.tables.borrow();
                tables.volumes.homes().values().filter(|volume| lacks(volume)).cloned().collect()
            };
            if lacking.is_empty() || self.is_stopping() {
                self.filling.set(false);
                return;
            }
            let mut all = true;
            for volume in lacking {
                if volume.stays() {
                    // Somebody else is at it.
                    all = false;
                    continue;
                }
                if let Err(error) = self.fill_one(&volume).await {
                    tracing::error!(volume = volume.id, %error, "a thick volume lacks some of its space; this will be tried again");
                    all = false;
                }
            }
            if !all {
                self.runtime.sleep(FILL_AGAIN).await;
            }
        }
    }

    async fn fill_one(&self, volume: &Rc<VolumeState>) -> Result<()> {
        let _stays = volume.stay();
        // Nobody waits for it: a write that does has snapshots go.
        let room = self.reserve_groups(volume, volume.size_bytes(), false).await?;
        self.fill(volume, 0, room).await?;
        self.commit_all().await
    }

    /// Refuses a size for which there are no numbers of extents, the hidden ones of its snapshots' slots among them.
    fn check_extents(&self, size_bytes: u64) -> Result<()> {
        let limit_bytes = u64::from(u32::MAX >> 1) * self.array.extent_bytes();
        if size_bytes > limit_bytes {
            return Err(Error::invalid(format!(
                "a volume of {}: with extents of {} it can have {}",
                Amount(size_bytes),
                Amount(self.array.extent_bytes()),
                Amount(limit_bytes)
            )));
        }
        Ok(())
    }
}
