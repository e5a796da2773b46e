//! Rebuild: copies move off disks that are out of service or leaving, to free extents of the others.
//!
//! ```text
//!   an extent  [ failed disk | disk 3 ]        1. its blocks stay in the write buffer
//!                               |              2. what is at rest, read and held against checksums, goes to a free extent
//!                               v              3. the page too; both are flushed there
//!              [ disk 5      | disk 3 ]        4. the record: from now on the extent lies here
//! ```
//!
//! Only what is written is copied; with parity, what counts in it, reconstructed where its place is lost. What
//! must hold: when the record is in the log, the new place has every block of the page but those still in the write
//! buffer, which go to the places of that moment. No checkpoint runs meanwhile: the extents' pages leave for one set of
//! places only. Nothing is left out because a disk refused to read it: the move is put aside, and tried again.

use crate::disks::{Held, Moved};
use crate::extent::{Extent, Group};
use crate::policy::rebuild_rest;
use crate::record::Record;
use crate::store::{Freed, Inner};
use crate::tables::VolumeState;
use crate::write::PIECE_BLOCKS;
use futures::future::{Either, ready, select};
use futures::{StreamExt, stream};
use kura_array::{Array, Place, Site, Urgency};
use kura_block::{BLOCK_BYTES, Bufs, Checksum, DeviceId, Error, Kind, Result};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// How long to wait before trying again what the disks or a full pool refused.
const RETRY: Duration = Duration::from_secs(5);
/// How long to wait at least before what was put aside is tried again.
const BUSY: Duration = Duration::from_millis(10);
/// Moves for each of those under way at once that are made before a checkpoint has its turn, where none is due.
const ROUND: usize = 8;
/// Extents looked at before others have their turn.
const GLANCE: usize = 1 << 16;

/// A place of a group to be moved.
struct Errand {
    volume: Rc<VolumeState>,
    /// The group's first extent.
    index: u32,
    extents: Vec<Rc<Extent>>,
    group: Rc<Group>,
    /// Which of the group's places.
    at: usize,
}

/// A search through all groups for copies to move.
#[derive(Default)]
struct Pass {
    /// How far it has come: volume and extent.
    at: (u64, u32),
    /// Copies were moved since the last checkpoint.
    moved: bool,
    /// The disks that groups lie on for which no other disk has room, in order, and what they were told.
    full: BTreeMap<Vec<DeviceId>, Error>,
    /// Why something else has not moved that was not put aside either: it is left to another pass.
    failed: Option<Error>,
}

impl Pass {
    /// True where a group at these places found no room: the others on the same disks do not either.
    fn is_full(&self, places: &[Place]) -> bool {
        !self.full.is_empty() && self.full.contains_key(&disks_of(places))
    }
}

fn disks_of(places: &[Place]) -> Vec<DeviceId> {
    let mut disks: Vec<_> = places.iter().map(|place| place.device).collect();
    disks.sort_unstable();
    disks
}

/// Where the search ended.
enum Found {
    Errand(Errand),
    /// Nothing so far: look on from the cursor.
    NotYet,
    Nothing,
}

/// Ends a move, however it ends: the group's blocks may go to their places again.
pub(crate) struct Moving<'a>(&'a Inner, Rc<Group>);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.1.set_moving(false);
        self.0.destager.notify_one();
        self.0.room.notify_waiters();
    }
}

impl Inner {
    /// The task that moves copies off unwanted disks, until the store stops or its journal fails.
    pub async fn rebuild_for_ever(self: Rc<Self>) {
        // What the log has replayed may have moved too.
        let mut pass = Pass { moved: true, ..Pass::default() };
        while self.goes_on() {
            let news = std::pin::pin!(self.rebuilder.notified());
            // What is hot comes first. Where it cannot be brought elsewhere now, the others do not wait for that: it may be one of them that
            // keeps every checkpoint waiting.
            self.forget_aside();
            let mut hot = self.unwanted_hot();
            hot.retain(|born| !self.refused.rests(Moved::Hot(*born), self.runtime.now()));
            if !hot.is_empty() {
                let stuck = self.evacuate(&hot).await;
                self.hot_is_stuck(&hot, stuck);
                continue;
            }
            match self.next_errand(&mut pass) {
                Found::Errand(errand) => {
                    let errands = self.more_errands(errand, &mut pass);
                    let begun = self.begin_rebuild();
                    let done = self.run_errands(&errands, &mut pass).await;
                    let rest = done.as_ref().ok().map(|bytes| self.rest_of_rebuild(begun, *bytes));
                    let failed = done.err();
                    pass.failed = failed.clone().or(pass.failed.take());
                    self.rebuild_stalled.replace(failed.or_else(|| pass.full.values().next().cloned()));
                    let news = match rest {
                        Some(rest) => self.rest(rest).await,
                        None => matches!(select(self.runtime.sleep(RETRY), news).await, Either::Right(_)),
                    };
                    if news {
                        // It may be of what lies behind.
                        pass = Pass { moved: pass.moved, ..Pass::default() };
                    }
                }
                Found::NotYet => self.runtime.sleep(Duration::ZERO).await,
                Found::Nothing if pass.moved => {
                    // Until the tail has passed the moves, recovery reads from where the copies were. What came while
                    // this pass went on is found by another one.
                    pass = Pass { moved: self.checkpoint().await.is_err(), ..Pass::default() };
                    if pass.moved {
                        select(self.runtime.sleep(RETRY), news).await;
                    }
                }
                Found::Nothing => {
                    let Pass { full, failed, .. } = std::mem::take(&mut pass);
                    let (why, now) = (failed.or_else(|| full.into_values().next()), self.runtime.now());
                    let again = why.as_ref().map(|_| now + RETRY);
                    self.rebuild_stalled.replace(why);
                    match again.into_iter().chain(self.refused.next_try()).min() {
                        Some(then) => {
                            select(self.runtime.sleep(then.saturating_sub(now).max(BUSY)), news).await;
                        }
                        None => news.await,
                    }
                }
            }
        }
    }

    /// Forgets what was put aside and need not be moved any more.
    fn forget_aside(&self) {
        let tables = self.tables.borrow();
        self.review_aside(|disk| tables.is_unwanted(disk));
    }

    /// Puts extents of the hot area aside, of those that were to be brought elsewhere: the ones of which nothing is left but blocks that
    /// cannot be, or all.
    fn hot_is_stuck(&self, all: &[u64], stuck: Result<Vec<u64>>) {
        for born in all {
            self.refused.forget(Moved::Hot(*born));
        }
        let (stuck, error) = match &stuck {
            Ok(stuck) => (&stuck[..], None),
            Err(error) => (all, Some(error)),
        };
        for born in stuck {
            let places = self.hot.places_of(*born).unwrap_or_default();
            let why = error.cloned().unwrap_or_else(|| {
                Error::device(format!(
                    "blocks of the hot area cannot be read from {}, or are of a volume that is lost",
                    Array::name(&places)
                ))
            });
            self.refused.put_aside(Moved::Hot(*born), why, self.runtime.now());
        }
    }

    /// The time, and reads and writes of volumes so far.
    pub fn begin_rebuild(&self) -> (Duration, u64) {
        (self.runtime.now(), self.uses())
    }

    /// True where the queues of disks put a rebuild behind all else.
    fn gives_way(&self) -> bool {
        self.array.has_queues(&self.data_disks())
    }

    /// How long to rest after so much was rebuilt since it began.
    pub fn rest_of_rebuild(&self, (begun, uses): (Duration, u64), bytes: u64) -> Duration {
        let took = self.runtime.now().saturating_sub(begun);
        let busy = self.uses() > uses && !self.gives_way();
        rebuild_rest(took, bytes, busy, self.settings.rebuild_bytes_per_s)
    }

    /// Rests to the end, unless all ends; true where there is something new to look at by then.
    async fn rest(&self, rest: Duration) -> bool {
        let (begun, mut news) = (self.runtime.now(), false);
        loop {
            let left = rest.saturating_sub(self.runtime.now().saturating_sub(begun));
            if left.is_zero() || !self.goes_on() {
                return news;
            }
            let heard = std::pin::pin!(self.rebuilder.notified());
            news |= matches!(select(self.runtime.sleep(left), heard).await, Either::Right(_));
        }
    }

    /// How urgent a move is, or a mend during which no checkpoint is made either: one that is due waits for that, and before long every
    /// writer.
    pub fn move_urgency(&self) -> Urgency {
        if self.is_checkpoint_due() { Urgency::Buffer } else { Urgency::Idle }
    }

    /// Reads and writes of volumes so far.
    fn uses(&self) -> u64 {
        let counts = self.counts.get();
        counts.reads + counts.writes
    }

    /// What still lies on disks that are failed or leaving.
    pub fn unwanted(&self) -> BTreeMap<DeviceId, Held> {
        let tables = self.tables.borrow();
        let here = |disk: &DeviceId| self.array.member(*disk).is_some_and(|member| !member.is_gone());
        let disks = tables.failed.union(&tables.leaving).copied().filter(here);
        let mut unwanted: BTreeMap<_, _> = disks.map(|disk| (disk, Held::default())).collect();
        if unwanted.is_empty() {
            return unwanted;
        }
        for (_, extent) in self.hot.table.borrow().extents() {
            let lost = !extent.places.iter().any(|place| self.array.works(*place)) && !extent.is_empty();
            for place in &extent.places {
                if let Some(held) = unwanted.get_mut(&place.device) {
                    held.copies += 1;
                    held.lost += u64::from(lost);
                }
            }
        }
        for copy in self.tier.copies() {
            let lost = !self.serves(&copy) && !copy.is_clean();
            for place in &copy.places {
                if let Some(held) = unwanted.get_mut(&place.device) {
                    held.copies += 1;
                    held.lost += u64::from(lost);
                }
            }
        }
        let told = |freed: &Freed| freed.is_told.then(|| freed.places.clone());
        let read_again =
            self.freed.borrow().iter().filter_map(told).chain(self.successors.places()).collect::<Vec<_>>();
        for place in read_again.iter().flatten() {
            if let Some(held) = unwanted.get_mut(&place.device) {
                held.copies += 1;
            }
        }
        for volume in tables.volumes.values() {
            for extent in volume.groups() {
                let site = extent.group.site();
                for place in &site.places {
                    if let Some(held) = unwanted.get_mut(&place.device) {
                        held.copies += 1;
                        held.lost += u64::from(!self.array.holds(&site));
                    }
                }
            }
        }
        unwanted
    }

    /// A disk gives what it holds to the others and takes nothing new; durable when the future resolves.
    pub async fn leave_disk(&self, device: DeviceId) -> Result<()> {
        if self.array.member(device).is_none() {
            return Err(kura_block::Error::missing(format!("disk {}: no such disk", device.0)));
        }
        let fresh = self.tables.borrow_mut().leaving.insert(device);
        if fresh {
            self.append(&Record::DiskLeaving { device });
            self.rebuilder.notify_one();
            self.tier.wake.notify_one();
        }
        self.commit_all().await
    }

    /// The next copy on an unwanted disk that can be read somewhere, from where the pass has come to.
    fn next_errand(&self, pass: &mut Pass) -> Found {
        let tables = self.tables.borrow();
        let unwanted = |place: &Place| tables.is_unwanted(place.device);
        let (mut looked, now) = (0, self.runtime.now());
        if tables.failed.is_empty() && tables.leaving.is_empty() {
            return Found::Nothing;
        }
        let from = pass.at;
        for (id, volume) in tables.volumes.range(from.0..) {
            let mut at = if *id == from.0 { from.1 } else { 0 };
            while let Some(extent) = volume.next_mapped(at).and_then(|index| volume.extent(index)) {
                let index = volume.first_of(extent.owner.index);
                at = index + volume.shape.extents();
                pass.at = (*id, at);
                looked += 1;
                let site = extent.group.site();
                if let Some(at) = site.places.iter().position(unwanted)
                    && self.array.holds(&site)
                    && !self.refused.rests(Moved::Group(*id, index), now)
                    && !pass.is_full(&site.places)
                {
                    let (volume, group) = (Rc::clone(volume), Rc::clone(&extent.group));
                    let extents = volume.group_of(index);
                    return Found::Errand(Errand { volume, index, extents, group, at });
                }
                if looked >= GLANCE {
                    return Found::NotYet;
                }
            }
        }
        pass.at = (0, 0);
        Found::Nothing
    }

    /// Groups that are moved at once.
    pub fn rebuild_width(&self) -> usize {
        // A limit in bytes a second is kept by one at a time, which a rest follows.
        if self.settings.rebuild_bytes_per_s > 0 { 1 } else { self.settings.rebuild_width }
    }

    /// An errand and those behind it that are run with it: more than at once, where no rest follows.
    fn more_errands(&self, first: Errand, pass: &mut Pass) -> Vec<Errand> {
        let rests = self.settings.rebuild_bytes_per_s > 0 || !self.gives_way();
        let round = self.rebuild_width() * if rests { 1 } else { ROUND };
        let mut errands = vec![first];
        while errands.len() < round {
            match self.next_errand(pass) {
                Found::Errand(errand) => errands.push(errand),
                _ => break,
            }
        }
        errands
    }

    /// Places for groups to move to. Those for which no disk has room are left out, and keep no others waiting; so are those behind
    /// another error, which is returned too.
    async fn places_for<'a>(
        &self,
        errands: &'a [Errand],
        pass: &mut Pass,
    ) -> (Vec<(&'a Errand, Place)>, Option<Error>) {
        let mut moves = Vec::new();
        for errand in errands {
            let places = errand.group.places();
            // It waits for room now, not for a disk that refused to read: that is tried anew when there is some.
            let waits = || self.refused.forget(Moved::Group(errand.volume.id, errand.index));
            if pass.is_full(&places) {
                waits();
                continue;
            }
            match self.allocate(errand.volume.shape.width(), 1, &places).await {
                Ok(to) => moves.push((errand, to[0])),
                Err(full) if full.kind() == Kind::Full => {
                    waits();
                    pass.full.insert(disks_of(&places), full);
                }
                Err(error) => return (moves, Some(error)),
            }
        }
        (moves, None)
    }

    /// Moves copies of several groups, as many of them as come before the next checkpoint is due; bytes that were copied.
    async fn run_errands(&self, errands: &[Errand], pass: &mut Pass) -> Result<u64> {
        // Records without data count too: nothing else would make the journal shorter while nobody writes.
        self.make_room(0).await?;
        let (moves, mut failed) = self.places_for(errands, pass).await;
        if moves.is_empty() {
            return failed.map_or(Ok(0), Err);
        }
        let no_checkpoint = self.checkpointing.lock().await;
        let width = self.rebuild_width();
        let has_time = || self.goes_on() && !self.is_checkpoint_due();
        let ended: Vec<_> = stream::iter(moves.iter().enumerate())
            .take_while(|(at, _)| ready(*at < width || has_time()))
            .map(|(_, (errand, to))| async move { (errand, to, self.move_copy(errand, *to).await) })
            .buffer_unordered(width)
            .collect()
            .await;
        drop(no_checkpoint);
        for (errand, to) in moves[ended.len()..].iter().rev() {
            // For the next round.
            pass.at = (errand.volume.id, errand.index);
            let kept = self.put_back(&[*to]).await;
            failed = failed.or(kept.err());
        }
        let mut bytes = 0;
        for (errand, to, moved) in ended {
            match self.note_move(Moved::Group(errand.volume.id, errand.index), moved) {
                Ok(Some(Some(copied))) => {
                    bytes += copied;
                    pass.moved = true;
                }
                nothing => {
                    // The others go back to the pool all the same.
                    let kept = self.put_back(&[*to]).await;
                    failed = failed.or(nothing.err()).or(kept.err());
                }
            }
        }
        self.commit_all().await?;
        self.checkpointer.notify_one();
        failed.map_or(Ok(bytes), Err)
    }

    /// Moves a place while no checkpoint is made; bytes that were copied, or `None` where the group was given up meanwhile.
    async fn move_copy(&self, errand: &Errand, to: Place) -> Result<Option<u64>> {
        let Errand { volume, index, extents, group, at } = errand;
        let _moving = loop {
            let room = self.room.notified();
            if let Some(moving) = self.begin_move(group) {
                break moving;
            }
            room.await;
        };
        if volume.deleted.get() {
            // Or it is another controller's by now, whose stripes these are.
            return Ok(None);
        }
        self.landed(volume, *index).await?;
        // No crash has the log at where it is now a second time.
        let taken = self.journal().next_lsn();
        self.commit_all().await?;
        let berth = self.array.take_berth(&group.site(), *at, to, taken.0);
        let bytes = if volume.shape.parity {
            self.move_stripes(volume, extents, *at, &berth).await?
        } else {
            self.move_extent(volume, *index, &extents[0], to).await?
        };
        let site = group.site().moved(*at, &berth);
        self.move_pages(extents, &site, *at).await?;
        // From the record on all of its rows count as at rest, whichever place has moved.
        let maps = self.array.leaving_maps(Some(&site));
        self.heed(self.array.write_maps(&maps).await).await?;
        // All of the group is at rest, and durable: no crash finds one of its stripes torn.
        let disks: Vec<_> = site.places.iter().map(|place| place.device).collect();
        self.heed(self.array.flush_disks(&disks).await).await?;
        maps.written();
        let here = volume.extent(*index).is_some_and(|now| Rc::ptr_eq(&now.group, group));
        let leaves = self.tables.borrow().leaving.contains(&to.device);
        let refused = leaves || !self.array.works(to);
        if !here || volume.deleted.get() || refused || self.is_stopping() {
            return Ok(None);
        }
        self.append(&Record::Move { volume: volume.id, index: *index, places: site.places.clone() });
        self.note_home(volume.id, &site.places);
        group.move_to(site);
        // What was written home lately was left out: it is stale still.
        extents.iter().filter_map(|extent| extent.fast()).for_each(|copy| self.forget_returned(&copy));
        let born = extents[0].owner.born;
        self.stripes.announced.borrow_mut().retain(|((of, group, _), _), _| (*of, *group) != (volume.id, born));
        Ok(Some(bytes))
    }

    /// Writes the pages that belong to the place of a group that moved to where it is now.
    async fn move_pages(&self, extents: &[Rc<Extent>], site: &Site, at: usize) -> Result<()> {
        let mut pages = Vec::new();
        for (member, extent) in extents.iter().enumerate() {
            if !site.shape.page_places(member).iter().any(|(keeper, _)| *keeper == at) {
                continue;
            }
            while !extent.is_loaded() {
                self.load(extent).await?;
            }
            pages.extend(extent.page().map(|page| (member, extent.owner, page)));
        }
        // The pages go down only after all that they reflect.
        self.commit_all().await?;
        self.heed(self.array.move_pages(site, at, &pages).await).await
    }

    /// Copies what is at rest in an extent that lies in copies; bytes copied.
    async fn move_extent(&self, volume: &VolumeState, index: u32, extent: &Rc<Extent>, to: Place) -> Result<u64> {
        let (mut bytes, mut lost, mut refused) = (0, 0, Ok(()));
        let mut at = 0;
        while at < self.array.extent_blocks() {
            while !extent.is_loaded() {
                self.load(extent).await?;
            }
            let run = self.at_rest(volume, index, extent, at);
            if run.is_empty() {
                at += 1;
                continue;
            }
            // On to the end in any case: a try asks for every block that a disk refuses, not only for the first.
            match self.copy_run(volume, extent, at, &run, to).await {
                Ok(more) => lost += more,
                Err(error) if error.kind() == Kind::Device => refused = Err(error),
                Err(error) => return Err(error),
            }
            bytes += (run.len() * BLOCK_BYTES) as u64;
            at += run.len();
        }
        if lost > 0 {
            tracing::error!(volume = volume.id, extent = index, blocks = lost, "blocks are lost in a rebuild");
        }
        refused.map(|()| bytes)
    }

    /// Begins to move a group, or a part of it, unless somebody does: its blocks stay in the write buffer.
    pub fn begin_move(&self, group: &Rc<Group>) -> Option<Moving<'_>> {
        if group.is_moving() {
            return None;
        }
        group.set_moving(true);
        Some(Moving(self, Rc::clone(group)))
    }

    /// Waits until no block of a group is on its way to its places; an error while a disk is full.
    pub async fn landed(&self, volume: &VolumeState, index: u32) -> Result<()> {
        let blocks = self.group_blocks(volume);
        let group = u64::from(index / volume.shape.extents());
        let range = group * blocks..(group + 1) * blocks;
        loop {
            let room = self.room.notified();
            if !volume.dirty.borrow().range(range.clone()).any(|(_, entry)| entry.in_flight) {
                return Ok(());
            }
            if let Some(error) = self.stalled.borrow().clone() {
                return Err(error);
            }
            room.await;
        }
    }

    /// The checksums of the blocks from `at` on that are written and not in the write buffer.
    fn at_rest(&self, volume: &VolumeState, index: u32, extent: &Extent, at: usize) -> Vec<Checksum> {
        let blocks = self.array.extent_blocks();
        let first = u64::from(index) * blocks as u64;
        let dirty = volume.dirty.borrow();
        let rests = |block: &usize| !dirty.contains_key(&(first + *block as u64)) && !extent.is_stale(*block);
        let end = blocks.min(at + PIECE_BLOCKS);
        extent.with_page(|page| (at..end).take_while(rests).map_while(|block| page.get(block)).collect())
    }

    /// Copies blocks at rest. One of which no copy is good is left out: it stays lost, and a read goes on saying so.
    /// Returns how many are.
    async fn copy_run(
        &self,
        volume: &VolumeState,
        extent: &Extent,
        first: usize,
        checksums: &[Checksum],
        to: Place,
    ) -> Result<usize> {
        let places = extent.group.places();
        match self.array.read(&places, first, checksums, self.move_urgency()).await {
            Ok(verified) => {
                self.heed(self.array.write(&[to], first, &verified.data, self.move_urgency()).await).await.map(|()| 0)
            }
            Err(error)
                if !matches!(error.kind(), Kind::Corrupt | Kind::Device)
                    || !places.iter().any(|place| self.array.works(*place)) =>
            {
                Err(error)
            }
            Err(error) if checksums.len() == 1 => {
                let block = u64::from(extent.owner.index) * self.array.extent_blocks() as u64 + first as u64;
                let above = self.read_above(volume, block, checksums[0]).await;
                let good = match above {
                    Some(above) => Some(above),
                    None => self.last_copy(&places, first, checksums[0]).await?.map(Bufs::from),
                };
                if let Some(good) = good {
                    return self
                        .heed(self.array.write(&[to], first, &good, self.move_urgency()).await)
                        .await
                        .map(|()| 0);
                }
                tracing::error!(block = first, volume = extent.owner.volume, %error, "a block is lost");
                self.write_table_again(volume.id, block..block + 1);
                Ok(1)
            }
            Err(_) => {
                let (mut lost, mut refused) = (0, Ok(()));
                for (at, checksum) in checksums.iter().enumerate() {
                    match Box::pin(self.copy_run(volume, extent, first + at, &[*checksum], to)).await {
                        Ok(more) => lost += more,
                        Err(error) => refused = Err(error),
                    }
                }
                refused.map(|()| lost)
            }
        }
    }
}
