//! Snapshots of a node's volumes, on whichever controllers they are.

use crate::info::VolumeInfo;
use crate::moving::Place;
use crate::{Controller, Node};
use futures::future::join_all;
use kura_block::{Error, Kind, Local, Result};
use kura_volume::{Changes, HeldWrites, SnapshotSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// How often volumes of several controllers are held while a journal has no room, before it is waited for with them held.
const HOLDS: usize = 8;

impl Controller {
    /// Makes snapshots of this controller's volumes at one instant; durable after the next flush.
    async fn snapshot(self: Rc<Self>, wanted: Vec<SnapshotSpec>, made_unix_s: u64) -> Result<Vec<VolumeInfo>> {
        let made = self.store().snapshot(&wanted, made_unix_s).await?;
        Ok(made.into_iter().map(|volume| self.describe(volume)).collect())
    }

    /// In which blocks of a range of bytes `later` differs from `earlier`: both of one volume, and this controller's now or before.
    pub async fn changed(&self, earlier: &str, later: &str, within: Range<u64>) -> Result<Changes> {
        let error = match self.store().changed(earlier, later, within.clone()).await {
            // It is not here, or left meanwhile.
            Err(error) if matches!(error.kind(), Kind::Missing | Kind::Retry) && self.volume(later).is_none() => error,
            done => return done,
        };
        let Some(id) = self.harbour.number(later) else { return Err(error) };
        let Place::There(door) = self.harbour.locate(self.store(), id).await? else { return Err(error) };
        let (earlier, later) = (earlier.to_owned(), later.to_owned());
        door.call(move |controller| -> Local<'static, Result<Changes>> {
            Box::pin(async move { controller.changed(&earlier, &later, within).await })
        })
        .await?
    }

    fn check_roll_back(&self, snapshot: &str, force: bool) -> Result<()> {
        let of = self.store().status_by_name(snapshot)?.svol;
        let of = of.ok_or_else(|| Error::invalid(format!("{snapshot}: is no snapshot: give VOLUME@NAME")))?;
        self.check_unopened(&of.pvol, force, "unmount it and disconnect them")?;
        self.store().check_roll_back(snapshot)
    }

    async fn roll_back(&self, snapshot: &str, force: bool) -> Result<VolumeInfo> {
        self.check_roll_back(snapshot, force)?;
        // Nobody opens the volume in between: it is rolled back before anything is waited for.
        Ok(self.describe(self.store().roll_back(snapshot).await?))
    }
}

impl Node {
    /// Makes snapshots of volumes at one instant, wherever they are; durable when the future resolves. With volumes of
    /// several controllers their writes wait, a few milliseconds at the most, until all are made.
    pub async fn snapshot(&self, wanted: Vec<SnapshotSpec>, made_unix_s: u64) -> Result<Vec<VolumeInfo>> {
        let first = self.doors.first().filter(|_| !wanted.is_empty());
        let first = first.ok_or_else(|| Error::invalid("no snapshot is named: give VOLUME@NAME"))?;
        let node = self.clone();
        // It goes on although nobody waits for it any more: writes are held in the midst of it.
        let make = move |_| -> Local<'static, Result<Vec<VolumeInfo>>> {
            Box::pin(async move { node.snapshot_each(wanted, made_unix_s).await })
        };
        first.call(make).await?
    }

    async fn snapshot_each(&self, wanted: Vec<SnapshotSpec>, made_unix_s: u64) -> Result<Vec<VolumeInfo>> {
        let _one = self.instant.lock().await;
        let mut shares: BTreeMap<u16, Vec<SnapshotSpec>> = BTreeMap::new();
        for spec in wanted {
            let (_, volume) = self.find(&spec.of).await?;
            shares.entry(volume.controller).or_default().push(spec);
        }
        // Writes wait until all are made; until they are durable, only who asked for them does.
        let several = shares.len() > 1;
        if several {
            let held = self.hold_with_room(&shares).await;
            if held.is_err() {
                self.release(false).await?;
                held?;
            }
        }
        let made = shares.iter().map(|(controller, wanted)| {
            let (door, wanted) = (self.doors[usize::from(*controller)].clone(), wanted.clone());
            async move {
                door.call(move |controller| -> Local<'static, Result<Vec<VolumeInfo>>> {
                    Box::pin(controller.snapshot(wanted, made_unix_s))
                })
                .await?
            }
        });
        let made: Vec<Result<Vec<VolumeInfo>>> = join_all(made).await;
        if several {
            self.release(true).await?;
        }
        let mut all = Vec::new();
        let mut failed = None;
        for made in made {
            match made {
                Ok(made) => all.extend(made),
                Err(error) => failed = Some(error),
            }
        }
        let flushed = shares.keys().map(|controller| {
            self.doors[usize::from(*controller)].call(|controller: Rc<Controller>| -> Local<'static, Result<()>> {
                Box::pin(async move { controller.store().flush().await })
            })
        });
        let failed = failed.or(join_all(flushed).await.into_iter().find_map(|flushed| flushed.flatten().err()));
        let Some(error) = failed else { return Ok(all) };
        for made in all {
            // Where a journal failed, nothing is deleted either; what failed first is what is told.
            let _ = self.delete_volume(&made.spec.name, true).await;
        }
        Err(error)
    }

    /// Lets the writes of all volumes wait, where every controller's journal has room for what is to be made: that is waited for
    /// before. What is written between may take it, and then it is waited for again.
    async fn hold_with_room(&self, shares: &BTreeMap<u16, Vec<SnapshotSpec>>) -> Result<()> {
        for _ in 0..HOLDS {
            let rooms = shares.keys().map(|controller| {
                let make = |controller: Rc<Controller>| -> Local<'static, Result<()>> {
                    Box::pin(async move { controller.store().room_for_snapshots().await })
                };
                self.doors[usize::from(*controller)].call(make)
            });
            for made in join_all(rooms).await {
                made??;
            }
            if self.hold(shares).await? {
                return Ok(());
            }
            self.release(false).await?;
        }
        self.hold(shares).await.map(drop)
    }

    /// Lets the writes of all volumes wait; whether every journal has room then.
    async fn hold(&self, shares: &BTreeMap<u16, Vec<SnapshotSpec>>) -> Result<bool> {
        let mut all_have_room = true;
        for (controller, wanted) in shares {
            let names: BTreeSet<String> = wanted.iter().map(|spec| spec.of.clone()).collect();
            let names: Vec<String> = names.into_iter().collect();
            let hold = move |controller: &Rc<Controller>| -> Result<bool> {
                controller.held_writes.borrow_mut().push(controller.store().hold(&names)?);
                Ok(controller.store().has_room_for_snapshots())
            };
            all_have_room &= self.doors[usize::from(*controller)].ask(hold).await??;
        }
        Ok(all_have_room)
    }

    /// Lets the writes go on, whether snapshots were made or not.
    async fn release(&self, are_made: bool) -> Result<()> {
        let release = move |controller: &Rc<Controller>| {
            let held = controller.held_writes.take();
            if are_made {
                held.into_iter().for_each(HeldWrites::made);
            }
        };
        self.ask_each(release).await.map(drop)
    }

    /// Refuses what [`Node::roll_back`] refuses.
    pub async fn check_roll_back(&self, snapshot: &str, force: bool) -> Result<()> {
        self.ask_owner(snapshot, move |controller, snapshot| controller.check_roll_back(snapshot, force)).await
    }

    /// Makes a volume what one of its snapshots is, at once; the data follows in the background. `Busy` while a client has
    /// the volume open and not `force`.
    pub async fn roll_back(&self, snapshot: &str, force: bool) -> Result<VolumeInfo> {
        let roll_back = move |controller: Rc<Controller>, snapshot: String| -> Local<'static, Result<VolumeInfo>> {
            Box::pin(async move { controller.roll_back(&snapshot, force).await })
        };
        self.at_owner(snapshot, roll_back).await
    }

    /// Where `later` differs from `earlier`, from `offset` on: two snapshots of one volume, or a snapshot and its volume.
    pub async fn changed(&self, earlier: &str, later: &str, offset: u64) -> Result<Changes> {
        let ((door, one), (_, other)) = (self.find(earlier).await?, self.find(later).await?);
        if one.family != other.family {
            return Err(Error::invalid(format!(
                "{earlier} and {later}: give two snapshots of one volume, or one and the volume"
            )));
        }
        let (earlier, later) = (earlier.to_owned(), later.to_owned());
        door.call(move |controller| -> Local<'static, Result<Changes>> {
            Box::pin(async move { controller.changed(&earlier, &later, offset..u64::MAX).await })
        })
        .await?
    }
}
