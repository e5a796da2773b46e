//! The disks in service: what is asked of them, and writes to all copies.

use crate::copies::{block_of, mismatches};
use crate::floating::{Afloat, Maps};
use crate::hot::Pair;
use crate::label::Class;
use crate::layout::{Place, Places, Shape};
use crate::load::{Load, Work};
use crate::plan::Plan;
use crate::queue::{Queue, Urgency};
use futures::future::join_all;
use kura_block::{BLOCK_BYTES, Block, Bufs, Checksum, DeviceId, Error, Result, Runtime};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

/// Errors met on a disk since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Reads, writes and flushes that failed.
    pub io_errors: u64,
    /// Blocks that failed their checksum.
    pub checksum_errors: u64,
}

/// A disk in service.
pub struct Member {
    /// Its place in the pool.
    pub id: DeviceId,
    /// What it is used for.
    pub class: Class,
    /// What lies where on it.
    pub plan: Plan,
    pub(crate) rotates: bool,
    device: RefCell<Option<Rc<dyn Block>>>,
    failed: Cell<bool>,
    gone: Cell<bool>,
    pub(crate) load: Load,
    pub(crate) queue: Queue,
    /// Where the last request ended, in bytes.
    pub(crate) head: Cell<u64>,
    counters: Cell<Counters>,
}

impl Member {
    /// A disk; `device` is `None` when it is away.
    pub fn new(id: DeviceId, class: Class, plan: Plan, device: Option<Rc<dyn Block>>) -> Self {
        let failed = Cell::new(device.is_none());
        let rotates = device.as_ref().is_some_and(|device| device.geometry().rotational);
        let device = RefCell::new(device);
        let (gone, load, queue, counters) = (Cell::new(false), Load::default(), Queue::default(), Cell::default());
        Self { id, class, plan, rotates, device, failed, gone, load, queue, head: Cell::default(), counters }
    }

    /// True when it is used.
    pub fn works(&self) -> bool {
        !self.failed.get()
    }

    /// True when it was not found.
    pub fn is_away(&self) -> bool {
        self.device.borrow().is_none()
    }

    /// Errors met on it.
    pub fn counters(&self) -> Counters {
        self.counters.get()
    }

    /// True when it has left the pool: nothing lies on it, and nobody looks for it.
    pub fn is_gone(&self) -> bool {
        self.gone.get()
    }

    /// Closes it: it has left the pool.
    pub fn close(&self) {
        self.gone.set(true);
        self.failed.set(true);
        self.device.borrow_mut().take();
    }

    pub(crate) fn device(&self) -> Option<Rc<dyn Block>> {
        self.device.borrow().clone().filter(|_| self.works())
    }

    fn count_io_error(&self) {
        let counters = self.counters.get();
        self.counters.set(Counters { io_errors: counters.io_errors + 1, ..counters });
    }

    pub(crate) fn count_checksum_errors(&self, blocks: usize) {
        let counters = self.counters.get();
        self.counters.set(Counters { checksum_errors: counters.checksum_errors + blocks as u64, ..counters });
    }

    /// Does I/O on the disk when it is its turn, keeping the queue's length and counting a failure.
    pub(crate) async fn io<T>(&self, turn: Asked<'_>, work: impl Future<Output = Result<T>>) -> Result<T> {
        let _queued = self.load.begin(turn.clock);
        let mut _turn = None;
        if turn.depth > 0 && self.rotates {
            _turn = Some(self.queue.turn(turn.depth, turn.urgency, turn.bytes.clone()).await?);
            // What waited while the disk went out of service is not asked of it.
            if !self.works() {
                return Err(out_of_service());
            }
        }
        let end = turn.bytes.end;
        let done = work.await;
        if done.is_err() {
            self.count_io_error();
        }
        self.head.set(end);
        done
    }

    /// What was read, held against its checksums.
    pub(crate) fn held_against(&self, data: Bufs, expected: &[Checksum]) -> Found {
        let bad = mismatches(&data, expected);
        if bad.is_empty() {
            return Found::All(data);
        }
        self.count_checksum_errors(bad.len());
        Found::Some((0..expected.len()).map(|at| (!bad.contains(&at)).then(|| block_of(&data, at))).collect())
    }
}

/// A request as a disk's queue sees it.
#[derive(Clone)]
pub(crate) struct Asked<'a> {
    /// Requests under way at once; 0 passes all on.
    depth: usize,
    urgency: Urgency,
    /// Which of the disk's.
    bytes: Range<u64>,
    clock: &'a dyn Runtime,
}

pub(crate) fn out_of_service() -> Error {
    Error::device("the disk is out of service")
}

/// A disk that did not take a write.
#[derive(Debug)]
pub struct Failure {
    /// The disk.
    pub device: DeviceId,
    /// Why.
    pub error: Error,
}

/// What a place has of some blocks.
#[derive(Debug)]
pub enum Found {
    /// All of them, each agreeing with its checksum.
    All(Bufs),
    /// Some: `None` where a block does not agree, or the disk does not read.
    Some(Vec<Option<Bufs>>),
    /// None: the disk works and refused.
    Refused,
}

/// Where a group of extents of a volume lies.
#[derive(Clone, Debug)]
pub struct Site {
    /// How it is laid out.
    pub shape: Shape,
    /// Its places, as many as the shape is wide.
    pub places: Places,
    /// The rows of each, where they float.
    pub afloat: Afloat,
}

impl Site {
    /// True when every block of the group can be read, or reconstructed from the others, where these places can be read.
    pub fn is_held(&self, works: impl Fn(&Place) -> bool) -> bool {
        let lost = self.places.iter().filter(|place| !works(place)).count();
        if self.shape.parity { lost <= 1 } else { lost < self.places.len() }
    }
}

/// The disks of a pool as one controller sees them; clones are the same array.
#[derive(Clone)]
pub struct Array {
    members: Rc<RefCell<Vec<Rc<Member>>>>,
    extent_bytes: u64,
    pub(crate) queue_depth: usize,
    pub(crate) clock: Rc<dyn Runtime>,
    pub(crate) maps: Rc<Maps>,
    pub(crate) map_limit: usize,
}

/// Maps of floating rows kept in memory, where nobody says how many.
const MAPS: usize = 4096;

impl Array {
    /// An array of `members`, in the order of their ids, all with extents of `extent_bytes`.
    pub fn new(members: Vec<Member>, extent_bytes: u64, clock: Rc<dyn Runtime>) -> Self {
        let members = Rc::new(RefCell::new(members.into_iter().map(Rc::new).collect()));
        Self { members, extent_bytes, queue_depth: 0, clock, maps: Rc::default(), map_limit: MAPS }
    }

    /// The same with so many maps of floating rows in memory, beside those in use.
    pub fn with_maps(self, map_limit: usize) -> Self {
        Self { map_limit, ..self }
    }

    /// The same, giving each disk that turns at most so many requests at once, in the order of who waits for them; 0 gives
    /// each all that is asked of it.
    pub fn with_queues(self, queue_depth: usize) -> Self {
        Self { queue_depth, ..self }
    }

    /// True when each of these disks puts what nobody waits for behind all else.
    pub fn has_queues(&self, disks: &[DeviceId]) -> bool {
        let rotates = |disk: &DeviceId| self.member(*disk).is_some_and(|member| member.rotates);
        self.queue_depth > 0 && disks.iter().all(rotates)
    }

    pub(crate) fn asked(&self, urgency: Urgency, bytes: Range<u64>) -> Asked<'_> {
        Asked { depth: self.queue_depth, urgency, bytes, clock: &*self.clock }
    }

    /// Adds a disk; its id is the next one.
    pub fn add(&self, member: Member) {
        let members = &mut *self.members.borrow_mut();
        assert_eq!(usize::from(member.id.0), members.len(), "a new disk takes the next number");
        members.push(Rc::new(member));
    }

    /// Bytes in an extent.
    pub fn extent_bytes(&self) -> u64 {
        self.extent_bytes
    }

    /// Blocks in an extent.
    pub fn extent_blocks(&self) -> usize {
        self.extent_bytes as usize / BLOCK_BYTES
    }

    /// The disks, by id.
    pub fn members(&self) -> Vec<Rc<Member>> {
        self.members.borrow().clone()
    }

    /// A disk.
    pub fn member(&self, device: DeviceId) -> Option<Rc<Member>> {
        self.members.borrow().get(usize::from(device.0)).cloned()
    }

    /// Takes a disk out of service; true when it was in service.
    pub fn fail(&self, device: DeviceId) -> bool {
        self.member(device).is_some_and(|member| !member.failed.replace(true))
    }

    /// True when the disk of a place works.
    pub fn works(&self, place: Place) -> bool {
        self.is_in_service(place.device)
    }

    /// True when a disk is used.
    pub fn is_in_service(&self, device: DeviceId) -> bool {
        self.member(device).is_some_and(|member| member.works())
    }

    /// True when every block of a group can be read, or reconstructed from the others.
    pub fn holds(&self, site: &Site) -> bool {
        site.is_held(|place| self.works(*place))
    }

    pub(crate) fn working(&self, places: &[Place]) -> impl Iterator<Item = (Rc<Member>, Place)> {
        let found = places.iter().filter_map(|place| Some((self.member(place.device)?, *place)));
        found.filter(|(member, _)| member.works()).collect::<Vec<_>>().into_iter()
    }

    /// Reads bytes of a disk at an offset.
    pub(crate) async fn read_disk(&self, disk: DeviceId, offset: u64, bytes: usize, urgency: Urgency) -> Result<Bufs> {
        let member = self.member(disk).ok_or_else(|| Error::device("no such disk"))?;
        let device = member.device().ok_or_else(out_of_service)?;
        member.io(self.asked(urgency, offset..offset + bytes as u64), device.read(offset, bytes)).await
    }

    pub(crate) async fn read_copy(
        &self,
        member: &Member,
        place: Place,
        first: usize,
        blocks: usize,
        urgency: Urgency,
    ) -> Result<Bufs> {
        let device = member.device().ok_or_else(out_of_service)?;
        let offset = member.plan.extent_at(place.extent) + (first * BLOCK_BYTES) as u64;
        let bytes = blocks * BLOCK_BYTES;
        member.io(self.asked(urgency, offset..offset + bytes as u64), device.read(offset, bytes)).await
    }

    /// Writes blocks of an extent, from its block `first` on, to every working copy; returns the disks that refused.
    pub async fn write(&self, places: &[Place], first: usize, data: &Bufs, urgency: Urgency) -> Vec<Failure> {
        let offset = (first * BLOCK_BYTES) as u64;
        self.write_copies(places, data.clone(), urgency, |plan, place| plan.extent_at(place.extent) + offset).await
    }

    pub(crate) async fn write_disk(
        &self,
        disk: DeviceId,
        data: Bufs,
        urgency: Urgency,
        at: impl Fn(&Plan) -> u64,
    ) -> Option<Failure> {
        let member = self.member(disk)?;
        let device = member.device()?;
        let offset = at(&member.plan);
        let bytes = offset..offset + data.len() as u64;
        let refused = member.io(self.asked(urgency, bytes), device.write(offset, data, false)).await.err();
        refused.map(|error| Failure { device: disk, error })
    }

    /// Does a write on every working copy at once.
    pub(crate) async fn write_copies(
        &self,
        places: &[Place],
        data: Bufs,
        urgency: Urgency,
        at: impl Fn(&Plan, Place) -> u64,
    ) -> Vec<Failure> {
        let copies =
            places.iter().map(|place| self.write_disk(place.device, data.clone(), urgency, |plan| at(plan, *place)));
        join_all(copies).await.into_iter().flatten().collect()
    }

    /// Requests that a disk has to do.
    pub fn queue(&self, disk: DeviceId) -> u32 {
        self.member(disk).map_or(0, |member| member.load.queue())
    }

    /// What a disk had to do since this was asked last.
    pub fn take_work(&self, disk: DeviceId) -> Work {
        self.member(disk).map_or_else(Work::default, |member| member.load.take(self.clock.now()))
    }

    /// Requests that the disk of a pair with the more of them has to do.
    pub fn queue_of(&self, pair: Pair) -> u32 {
        self.queue(pair.0).max(self.queue(pair.1))
    }

    /// Makes everything written so far durable on every working disk; returns the disks that refused.
    pub async fn flush(&self) -> Vec<Failure> {
        let disks: Vec<_> = self.members().iter().map(|member| member.id).collect();
        self.flush_disks(&disks).await
    }

    /// Makes everything written so far durable on those of `disks` that work; returns the disks that refused. Whatever the
    /// reason, they are broken: a flush that is refused may have dropped what it was for, and the next one says nothing of it.
    pub async fn flush_disks(&self, disks: &[DeviceId]) -> Vec<Failure> {
        let flushes = disks.iter().filter_map(|disk| self.member(*disk)).map(|member| async move {
            let device = member.device()?;
            member
                .io(Asked { depth: 0, ..self.asked(Urgency::Buffer, 0..0) }, device.flush())
                .await
                .err()
                .map(|error| Failure { device: member.id, error: Error::device(error.to_string()) })
        });
        join_all(flushes).await.into_iter().flatten().collect()
    }

    /// Gives the space of an extent back to every disk that can take it.
    pub async fn discard(&self, places: &[Place]) {
        for (member, place) in self.working(places) {
            if let Some(device) = member.device().filter(|device| device.geometry().discards) {
                // A discard is a hint: a disk that refuses it keeps the space, and nothing is lost. Who lacks room waits for it, so that it
                // passes the queue, as a flush does.
                let offset = member.plan.extent_at(place.extent);
                let work = device.discard(offset, member.plan.room_bytes());
                let _ = member.io(Asked { depth: 0, ..self.asked(Urgency::Buffer, offset..offset) }, work).await;
            }
        }
    }

    /// Places, as messages name them.
    pub fn name(places: &[Place]) -> String {
        let names: Vec<_> =
            places.iter().map(|place| format!("extent {} of disk {}", place.extent.0, place.device.0)).collect();
        names.join(" and ")
    }
}
