//! Floating data and parity: rows of a place that have no fixed position on their disk.
//!
//! ```text
//!   rows       0   1   2   3   4   5 ...             a place has room for more blocks than it has rows; its map says where
//!   map        |   |    \__________                  each row lies. A row that is written over goes to the free position
//!   positions [0] [1] [ ] [3] [4] [2'] [5] [ ] ...   that comes under the head next, and leaves its old one free
//! ```
//!
//! Everything above speaks of rows: stripes, partial parity, resync, rebuild and scrub are those of RAID5. The map in memory is
//! ahead of the one on the disk, of which two are written in turn, each in two copies, on the place's own disk.
//!
//! What must hold:
//! 1. A map found on the disk, whichever of those that may be there, has for every row that was not announced as written since
//!    the last word of the log that it is at rest (a checkpoint, a *settled*, a move of a place of its group) the position at which
//!    it was then, and that position has what it had then. So maps are written, and durable, before that word is; and a position
//!    that any of them may have is not written as another row's.
//! 2. Of a row that was announced since, a crash may leave anything: so it is with any stripe. What was written has its data in the
//!    log, and parity is made anew from what is found.
//! 3. What is not announced, a block that a scrub mends, parity that a resync makes, is written where the row lies.
//! 4. What counts is the newest map that is found, in whichever copy. Both have it, durably, before anything goes by it: no copy of the
//!    other turn, which is written over next, is needed any more.
//! 5. Of two maps the later one is found: a map is written over the older one, and only when the newer one is durable. What an earlier
//!    time of the group at a place has left there is told by where the log was when the place was taken.
//! 6. A position is not written as another row's while somebody may be reading the row that has left it.
//!
//! Where the head is not known to be near, or no free position is, or there are several rows to write, a row is written over where it
//! lies: the map makes writes fast, it is not what makes them safe. A map of which no copy is read is as if
//! the disk refused all rows of that place.

mod map;

use crate::array::{Array, Failure, Found, Member, Site, out_of_service};
use crate::blocks::Blocks;
use crate::layout::{Place, Places, Shape};
use crate::pages::Lacking;
use crate::queue::Urgency;
use futures::channel::oneshot;
use futures::future::join_all;
use futures::lock::Mutex;
use futures::{StreamExt, stream};
use kura_block::{BLOCK_BYTES, Buf, Bufs, Checksum, DeviceId, Error, Kind, Result};
pub(crate) use map::MAP_COPIES;
pub use map::RowsOwner;
pub(crate) use map::map_bytes;
use map::{Map, Version};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// Maps written at once on a disk.
const WIDTH: usize = 16;
/// How often who writes asks a disk that refuses a map, and how long apart, before it is refused itself.
const TIMES: u32 = 8;
const APART: Duration = Duration::from_secs(10);

/// The rows of a place, and where they lie.
pub struct Rows {
    place: Place,
    owner: RowsOwner,
    /// `None` while it is not in memory.
    map: RefCell<Option<Map>>,
    /// Held while it is looked for on the disk.
    finding: Arc<Mutex<()>>,
    /// Of the newest map that may be on the disk.
    version: Cell<Version>,
    /// The map differs from the newest one on the disk.
    dirty: Cell<bool>,
    /// It is being written out.
    leaving: Cell<bool>,
    /// The newest map on the disk that counts is durable.
    durable: Cell<bool>,
    /// Who looks at the map, and may be reading where it says.
    guests: Cell<u32>,
    /// Set by use, cleared by the hand of the clock.
    used: Cell<bool>,
}

impl fmt::Debug for Rows {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "rows of {} for {:?}", Array::name(&[self.place]), self.owner)
    }
}

/// The rows of each of a group's places, where they float.
pub type Afloat = Option<Rc<[Rc<Rows>]>>;

/// What an array knows of the maps in memory.
#[derive(Default)]
pub(crate) struct Maps {
    dirty: RefCell<Vec<Weak<Rows>>>,
    loaded: RefCell<VecDeque<Weak<Rows>>>,
}

impl Rows {
    fn at(place: Place, owner: RowsOwner) -> Self {
        Self {
            place,
            owner,
            map: RefCell::default(),
            finding: Arc::default(),
            version: Cell::new(Version { taken: owner.born, sequence: 0 }),
            dirty: Cell::new(false),
            leaving: Cell::new(false),
            durable: Cell::new(false),
            guests: Cell::new(0),
            used: Cell::new(true),
        }
    }

    /// The rows of places that a group, born then, has.
    pub fn of(shape: Shape, places: &Places, (volume, born): (u64, u64)) -> Afloat {
        let rows = |(at, place): (u16, &Place)| Rc::new(Self::at(*place, RowsOwner { volume, born, place: at }));
        shape.floats.then(|| (0..).zip(places).map(rows).collect())
    }

    /// True when the disk has the map as it is, durably.
    pub fn is_settled(&self) -> bool {
        !self.dirty.get() && !self.leaving.get()
    }

    /// True while the map is looked for on the disk, and perhaps written again there.
    pub fn is_sought(&self) -> bool {
        self.finding.try_lock().is_none()
    }

    fn next_version(&self) {
        let Version { taken, sequence } = self.version.get();
        self.version.set(Version { taken, sequence: sequence + 1 });
    }

    /// Lets the map go, if nobody needs it; true when it is gone.
    fn evict(&self) -> bool {
        let stays = self.used.replace(false) || self.guests.get() > 0 || !self.is_settled();
        if !stays {
            self.map.take();
        }
        !stays
    }

    /// Looks at the map, which is in memory: there are guests.
    fn with<T>(&self, look: impl FnOnce(&mut Map) -> T) -> T {
        look(self.map.borrow_mut().as_mut().unwrap_or_else(|| unreachable!("a guest has the map in memory")))
    }
}

/// Somebody for whom the map stays in memory, and positions that rows have left stay as they are.
struct Guest(Rc<Rows>);

impl Guest {
    fn of(rows: &Rc<Rows>) -> Self {
        rows.guests.set(rows.guests.get() + 1);
        Self(Rc::clone(rows))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.guests.set(self.0.guests.get() - 1);
        if let (0, Some(map)) = (self.0.guests.get(), &mut *self.0.map.borrow_mut()) {
            map.forget_left();
        }
    }
}

/// A place, and the rows that float there, if they do: what is read and written of it is said in rows.
#[derive(Clone, Debug)]
pub struct Berth {
    /// The place.
    pub place: Place,
    rows: Option<Rc<Rows>>,
}

impl From<Place> for Berth {
    fn from(place: Place) -> Self {
        Self { place, rows: None }
    }
}

impl Berth {
    /// Where a row lies; `None` where that is not known, since it floats and the map is not in memory.
    pub(crate) fn position(&self, row: usize) -> Option<usize> {
        match &self.rows {
            Some(rows) => rows.map.borrow().as_ref().map(|map| map.position(row)),
            None => Some(row),
        }
    }

    /// True where a map says where rows lie.
    pub(crate) fn floats(&self) -> bool {
        self.rows.is_some()
    }
}

impl Site {
    /// A group whose rows lie where they belong.
    pub fn fixed(shape: Shape, places: Places) -> Self {
        Self { shape, places, afloat: None }
    }

    /// One of the places, with its rows.
    pub fn berth(&self, at: usize) -> Berth {
        Berth { place: self.places[at], rows: self.afloat.as_ref().map(|rows| Rc::clone(&rows[at])) }
    }

    /// The same with one of the places elsewhere.
    pub fn moved(&self, at: usize, to: &Berth) -> Self {
        let mut moved = self.clone();
        moved.places[at] = to.place;
        if let (Some(afloat), Some(rows)) = (&self.afloat, &to.rows) {
            let each = afloat.iter().enumerate().map(|(which, own)| if which == at { rows } else { own });
            moved.afloat = Some(each.cloned().collect());
        }
        moved
    }
}

/// Maps that are being written out. Where that does not come to its end, they are written again.
pub struct LeavingMaps {
    /// Whose they are, and the positions that they name.
    maps: Vec<(Guest, Blocks)>,
    known: Rc<Maps>,
    written: bool,
}

impl LeavingMaps {
    /// They are durable.
    pub fn written(mut self) {
        self.written = true;
    }
}

impl Drop for LeavingMaps {
    fn drop(&mut self) {
        for (Guest(rows), positions) in &self.maps {
            rows.leaving.set(false);
            if self.written {
                rows.durable.set(true);
                rows.with(|map| map.name_only(positions.clone()));
            } else {
                // To the same turn again: the other one is the map that counts.
                rows.next_version();
                self.known.changed(rows);
            }
        }
    }
}

impl Maps {
    fn changed(&self, rows: &Rc<Rows>) {
        if !rows.dirty.replace(true) {
            self.dirty.borrow_mut().push(Rc::downgrade(rows));
        }
    }

    /// Notes that a map is in memory, and lets others go when they are too many: one turn of the clock at most.
    fn came(&self, rows: &Rc<Rows>, limit: usize) {
        let loaded = &mut *self.loaded.borrow_mut();
        let mut steps = loaded.len();
        while loaded.len() >= limit && steps > 0 {
            steps -= 1;
            let Some(oldest) = loaded.pop_front() else { break };
            if oldest.upgrade().is_some_and(|oldest| !oldest.evict()) {
                loaded.push_back(oldest);
            }
        }
        loaded.push_back(Rc::downgrade(rows));
    }
}

impl Array {
    /// True when each of the pool's extents has room for rows to float.
    pub fn floats(&self) -> bool {
        self.members().first().is_some_and(|member| member.plan.spare_blocks > 0)
    }

    /// Reads blocks of one place, from block `first` of its extent on; nothing is verified.
    pub async fn read_place(&self, berth: &Berth, first: usize, blocks: usize, urgency: Urgency) -> Result<Bufs> {
        let member = self.member(berth.place.device).ok_or_else(|| Error::device("no such disk"))?;
        let Some(rows) = &berth.rows else {
            return self.read_copy(&member, berth.place, first, blocks, urgency).await;
        };
        let guest = self.visit(rows).await?;
        let spans = guest.0.with(|map| map.spans(first..first + blocks));
        let reads = spans.into_iter().map(|(span, has)| {
            let member = &member;
            async move {
                let read = self.read_copy(member, berth.place, span.start, span.len(), urgency).await?;
                let mut wanted = Bufs::new();
                for run in has.chunk_by(|one, next| one + 1 == *next) {
                    wanted.append(read.slice(run[0] * BLOCK_BYTES..(run[0] + run.len()) * BLOCK_BYTES));
                }
                Ok::<_, Error>(wanted)
            }
        });
        let mut whole = Bufs::new();
        for read in join_all(reads).await {
            whole.append(read?);
        }
        Ok(whole)
    }

    /// Reads blocks of one place, one for each expected checksum.
    pub async fn read_verified(&self, berth: &Berth, first: usize, expected: &[Checksum], urgency: Urgency) -> Found {
        let Some(member) = self.member(berth.place.device).filter(|member| member.works()) else {
            return Found::Some(vec![None; expected.len()]);
        };
        let Ok(data) = self.read_place(berth, first, expected.len(), urgency).await else {
            return if member.works() { Found::Refused } else { Found::Some(vec![None; expected.len()]) };
        };
        member.held_against(data, expected)
    }

    /// Writes blocks of one place where they lie, from block `first` of its extent on; where the disk works and refuses, says so.
    pub async fn write_place(&self, berth: &Berth, first: usize, data: Bufs, urgency: Urgency) -> Option<Failure> {
        let place = berth.place;
        let write = |position: usize, data: Bufs| {
            let inside = (position * BLOCK_BYTES) as u64;
            self.write_disk(place.device, data, urgency, move |plan| plan.extent_at(place.extent) + inside)
        };
        let Some(rows) = &berth.rows else { return write(first, data).await };
        self.member(place.device)?.device()?;
        let guest = match self.visit_to_write(rows).await {
            Ok(guest) => guest,
            Err(failure) => return Some(failure),
        };
        let runs = guest.0.with(|map| map.runs(first..first + data.len() / BLOCK_BYTES));
        let mut at = 0;
        let writes = runs.into_iter().map(|(position, len)| {
            let part = data.slice(at * BLOCK_BYTES..(at + len) * BLOCK_BYTES);
            at += len;
            write(position, part)
        });
        join_all(writes).await.into_iter().flatten().next()
    }

    /// As [`Array::write_place`], where a durable record says that these rows may be found old or new: a single one goes to where the
    /// head is, if that is known to be near.
    pub async fn write_afloat(&self, berth: &Berth, row: usize, data: Bufs, urgency: Urgency) -> Option<Failure> {
        let Some(rows) = berth.rows.as_ref().filter(|_| data.len() == BLOCK_BYTES) else {
            return self.write_place(berth, row, data, urgency).await;
        };
        let device = berth.place.device;
        let member = self.member(device)?;
        member.device()?;
        let guest = match self.visit_to_write(rows).await {
            Ok(guest) => guest,
            Err(failure) => return Some(failure),
        };
        let written = self.write_row(&member, &guest, row, data, urgency).await;
        written.err().filter(|_| member.works()).map(|error| Failure { device, error })
    }

    /// Writes a row to the free position that comes next when it is its turn, or else where it lies: rows that are near each other
    /// are read together, and only what the head saves is worth taking one away.
    async fn write_row(&self, member: &Member, guest: &Guest, row: usize, block: Bufs, urgency: Urgency) -> Result<()> {
        let rows = &guest.0;
        let device = member.device().ok_or_else(out_of_service)?;
        let begin = member.plan.extent_at(rows.place.extent);
        let lies = rows.with(|map| map.position(row));
        let offset = |position: usize| begin + (position * BLOCK_BYTES) as u64;
        let write_there = async |block| device.write(offset(lies), block, false).await.map(|()| offset(lies));
        let work = async {
            let head = self.head_of(member, begin);
            let Some(position) = head.and_then(|head| rows.with(|map| map.take_near(head))) else {
                return write_there(block).await;
            };
            if let Err(error) = device.write(offset(position), block.clone(), false).await {
                rows.with(|map| map.give_back(position));
                // A disk without room for more has it for what it has.
                let has_room = error.kind() != Kind::Full;
                return if has_room { Err(error) } else { write_there(block).await };
            }
            rows.with(|map| map.put(row, position));
            self.maps.changed(rows);
            Ok(offset(position))
        };
        let asked = self.asked(urgency, offset(lies)..offset(lies + 1));
        let written = member.io(asked, work).await?;
        member.head.set(written + BLOCK_BYTES as u64);
        Ok(())
    }

    /// The position that the head of a disk has come to, of the place that begins there: known where nothing else is under way.
    fn head_of(&self, member: &Member, begin: u64) -> Option<usize> {
        let alone = self.queue_depth == 1 && member.rotates || member.load.queue() == 1;
        let inside = member.head.get().checked_sub(begin).filter(|_| alone)?;
        Some(inside as usize / BLOCK_BYTES).filter(|position| *position < member.plan.positions())
    }

    /// Brings a map into memory, where it stays as long as there is a guest. What is written on the way is written to its end: who asks
    /// may be a client that leaves, and a write that is dropped may still land, over a later map.
    async fn visit(&self, rows: &Rc<Rows>) -> Result<Guest> {
        let guest = Guest::of(rows);
        let finding = Arc::clone(&rows.finding).lock_owned().await;
        if rows.map.borrow().is_none() {
            let (array, rows) = (self.clone(), Rc::clone(rows));
            let (answer, answered) = oneshot::channel();
            self.clock.spawn(Box::pin(async move {
                let _finding = finding;
                // One that is gone wants no answer.
                let _ = answer.send(array.bring(&rows).await);
            }));
            answered.await.unwrap_or_else(|_| Err(Error::retry("the server is shutting down")))?;
        }
        rows.used.set(true);
        Ok(guest)
    }

    /// Brings a map into memory that is not there.
    async fn bring(&self, rows: &Rc<Rows>) -> Result<()> {
        let (map, version) = self.find_map(rows).await?;
        let known = rows.version.get();
        if known.sequence > 0 && version.is_none_or(|found| found < known) {
            let name = Self::name(&[rows.place]);
            return Err(Error::device(format!("the map of {name} is older than the one that was written")));
        }
        rows.durable.set(version.is_none());
        rows.version.set(version.unwrap_or(known));
        rows.map.replace(Some(map));
        self.maps.came(rows, self.map_limit);
        Ok(())
    }

    /// The same for who writes: a disk that refuses a map may read it a moment later, unless it does nothing at all.
    async fn visit_to_write(&self, rows: &Rc<Rows>) -> std::result::Result<Guest, Failure> {
        let device = rows.place.device;
        let mut tries = 1;
        loop {
            match self.visit(rows).await {
                Ok(guest) => return Ok(guest),
                Err(error) if tries == TIMES || !self.works(rows.place) => return Err(Failure { device, error }),
                Err(_) => {}
            }
            if let Some(failure) = self.flush_disks(&[device]).await.pop() {
                return Err(failure);
            }
            self.clock.sleep(APART).await;
            tries += 1;
        }
    }

    /// The map that counts, of those that the disk has, and its version, unless it has none. A copy that is not read is written again
    /// from the other one, and so is one that lacks the map that counts: the next map goes over the other turn's.
    async fn find_map(&self, rows: &Rows) -> Result<(Map, Option<Version>)> {
        let Place { device, extent } = rows.place;
        let plan = self.member(device).ok_or_else(|| Error::device("no such disk"))?.plan;
        let (blocks, spare) = (self.extent_blocks(), plan.spare_blocks as usize);
        let at = |error: Error| error.at(format!("the map of {}", Self::name(&[rows.place])));
        let (mut found, mut lacking) = (Vec::new(), Vec::new());
        for turn in 0..2 {
            let offset = |copy| plan.map_at(extent, turn, copy);
            let reads = (0..MAP_COPIES)
                .map(|copy| self.read_disk(device, offset(copy), map_bytes(blocks) as usize, Urgency::Client));
            let reads = join_all(reads).await;
            let read = reads.iter().filter_map(|read| read.as_ref().ok());
            let told = read.map(Bufs::contiguous).find(|read| Map::is_whole(read));
            for (copy, read) in (0..).zip(reads) {
                let bytes = match read {
                    Ok(read) => read.contiguous(),
                    // Where the copies are not alike, what a crash left behind was not durable: what is not read need not be known,
                    // if the other one has not rotted.
                    Err(refused) => {
                        let told = told.clone().ok_or_else(|| at(refused))?;
                        lacking.push((offset(copy), told.clone()));
                        told
                    }
                };
                found.push((turn, offset(copy), Map::decode(&bytes, rows.owner, blocks, spare)));
            }
        }
        let maps = || found.iter().filter_map(|(.., found)| found.as_ref());
        let initial = Map::initial(blocks, spare);
        let newest = maps().max_by_key(|(_, version)| *version);
        if let Some((map, version)) = newest {
            let is_behind = |(turn, _, found): &&(u64, u64, Option<(Map, Version)>)| {
                *turn == version.sequence % 2 && found.as_ref().is_none_or(|(_, found)| found != version)
            };
            let behind = found.iter().filter(is_behind);
            lacking.extend(behind.map(|(_, offset, _)| (*offset, map.encode(rows.owner, *version))));
        }
        self.write_again(device, lacking).await.map_err(at)?;
        let version = newest.map(|(_, version)| *version);
        let mut map = newest.map_or(&initial, |(map, _)| map).clone();
        // A crash may yet leave an older one, or none at all.
        let is_older = |(_, found): &&(Map, Version)| {
            version.is_some_and(|newest| found.taken == newest.taken && *found != newest)
        };
        let older: Vec<_> = maps().filter(is_older).map(|(map, _)| map).collect();
        for named in older.iter().copied().chain(older.is_empty().then_some(&initial)) {
            map.name(&named.rows());
        }
        Ok((map, version))
    }

    /// Writes bytes to a disk, each at its offset, durably.
    async fn write_again(&self, device: DeviceId, writes: Vec<(u64, Buf)>) -> Result<()> {
        if writes.is_empty() {
            return Ok(());
        }
        let writes = writes.into_iter();
        let writes =
            writes.map(|(offset, bytes)| self.write_disk(device, bytes.into(), Urgency::Client, move |_| offset));
        let refused = join_all(writes).await.into_iter().flatten().next();
        let failed = match refused {
            None => self.flush_disks(&[device]).await.pop(),
            refused => refused,
        };
        failed.map_or(Ok(()), |failure| Err(failure.error))
    }

    /// Takes a place for the rows of a group that moves there, when the log is at `lsn`: all in order, whatever an earlier time of
    /// the group left there. The map is written with all others that have changed.
    pub fn take_berth(&self, site: &Site, at: usize, place: Place, lsn: u64) -> Berth {
        let Some(now) = site.afloat.as_ref().map(|rows| &rows[at]) else { return place.into() };
        let rows = Rc::new(Rows::at(place, now.owner));
        let spare = self.member(place.device).map_or(0, |member| member.plan.spare_blocks as usize);
        rows.version.set(Version { taken: lsn, sequence: 0 });
        rows.durable.set(true);
        rows.map.replace(Some(Map::initial(self.extent_blocks(), spare)));
        self.maps.came(&rows, self.map_limit);
        self.maps.changed(&rows);
        Berth { place, rows: Some(rows) }
    }

    /// As [`Array::page_lacks`], of the map of the rows of a place; one that was never written lies nowhere.
    pub async fn map_lacks(&self, berth: &Berth) -> Option<Lacking> {
        let guest = self.visit(berth.rows.as_ref()?).await.ok()?;
        let rows = &guest.0;
        let (plan, version) = (self.member(rows.place.device)?.plan, rows.version.get());
        if !rows.is_settled() || version.sequence == 0 {
            return None;
        }
        let map = rows.with(|map| map.encode(rows.owner, version));
        let slots = |copy| [0, 1].map(|turn| plan.map_at(rows.place.extent, turn, copy));
        let kept = (0..MAP_COPIES).map(|copy| (rows.place.device, slots(copy), map.len()));
        self.lacks(kept.collect(), version.sequence, |found| **found == *map, || map.clone()).await
    }

    /// Takes the maps that differ from those on the disks, to be written out; of a group only, if one is given.
    pub fn leaving_maps(&self, of: Option<&Site>) -> LeavingMaps {
        let is_of = |rows: &Rc<Rows>| match of {
            None => true,
            Some(site) => site.afloat.iter().flat_map(|own| own.iter()).any(|own| Rc::ptr_eq(own, rows)),
        };
        let mut dirty = self.maps.dirty.borrow_mut();
        dirty.retain(|rows| rows.strong_count() > 0);
        let taken = dirty.extract_if(.., |rows| rows.upgrade().is_some_and(|rows| is_of(&rows)));
        let taken: Vec<_> = taken.filter_map(|rows| rows.upgrade()).collect();
        drop(dirty);
        let leave = |rows: Rc<Rows>| {
            rows.dirty.set(false);
            rows.leaving.set(true);
            rows.next_version();
            let positions = rows.with(|map| {
                let positions = map.rows();
                map.name(&positions);
                positions
            });
            (Guest::of(&rows), positions)
        };
        let maps = taken.into_iter().map(leave).collect();
        LeavingMaps { maps, known: Rc::clone(&self.maps), written: false }
    }

    /// Writes maps out; the caller makes them durable. Returns the disks that refused.
    pub async fn write_maps(&self, leaving: &LeavingMaps) -> Vec<Failure> {
        // What was found at a start may not be durable yet: then the other turn is what counts after a crash.
        let rows = || leaving.maps.iter().map(|(guest, _)| &guest.0);
        let unsure: BTreeSet<_> = rows().filter(|rows| !rows.durable.get()).map(|rows| rows.place.device).collect();
        let mut failures = self.flush_disks(&unsure.into_iter().collect::<Vec<_>>()).await;
        // On these nothing counts any more; what lies on the others is written all the same.
        let refused: BTreeSet<_> = failures.iter().map(|failure| failure.device).collect();
        let mut disks: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for rows in rows().filter(|rows| !refused.contains(&rows.place.device)) {
            disks.entry(rows.place.device).or_default().push(rows);
        }
        let writes = disks.into_values().map(|mut maps| async move {
            // In the order in which they lie, close to each other, so that the head goes over each copy of them once.
            maps.sort_by_key(|rows| rows.place.extent);
            let copies = (0..MAP_COPIES).flat_map(|copy| maps.iter().map(move |rows| (copy, rows)));
            let writes = stream::iter(copies).map(|(copy, rows)| {
                let (place, version) = (rows.place, rows.version.get());
                let map = rows.with(|map| map.encode(rows.owner, version));
                self.write_disk(place.device, map.into(), Urgency::Buffer, move |plan| {
                    plan.map_at(place.extent, version.sequence, copy)
                })
            });
            writes.buffered(WIDTH).filter_map(std::future::ready).collect::<Vec<_>>().await
        });
        failures.extend(join_all(writes).await.into_iter().flatten());
        failures
    }
}
