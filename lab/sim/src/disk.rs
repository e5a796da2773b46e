//! Disks to be used: what they are like, the medium that lasts, and the device of one incarnation.

use crate::fault::{FaultKind, When};
use crate::medium::{Counters, Medium, Request};
use crate::model::{Constant, ServiceModel, Ssd, SsdSpec};
use crate::rotating::{Rotating, RotatingSpec};
use crate::world::World;
use kura_block::{Block, Bufs, Error, Geometry, Local, PAGE_BYTES, Result};
use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Whether acknowledged writes may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// A write is at rest when it is acknowledged.
    Off,
    /// Writes are acknowledged into a cache of so many bytes, above zero; the oldest go to rest when it is full.
    Volatile {
        /// Bytes of the cache.
        limit_bytes: u64,
    },
}

impl Cache {
    pub(crate) fn limit_bytes(self) -> u64 {
        match self {
            Self::Off => 0,
            Self::Volatile { limit_bytes } => limit_bytes,
        }
    }
}

/// What a discard does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Discard {
    /// Nothing, and the geometry says so.
    Unsupported,
    /// The range reads as zeroes.
    Zeroes,
    /// Each page of the range reads as zeroes or as before, by the seed.
    Unspecified,
}

/// What a disk is like. Begin from one of the constructors and change fields.
pub struct DiskSpec {
    /// Size in bytes, a multiple of `sector_bytes`.
    pub size_bytes: u64,
    /// Offsets and lengths must be multiples of it.
    pub sector_bytes: u32,
    /// A power cut and a torn write leave each unit of so many bytes old or new; divides `sector_bytes`. Smaller than
    /// it, the medium breaks its word.
    pub atom_bytes: u32,
    /// What the geometry tells as the best size of a request.
    pub optimal_bytes: u32,
    /// What the geometry tells.
    pub rotational: bool,
    /// Whether acknowledged writes may be lost.
    pub cache: Cache,
    /// What a discard does.
    pub discard: Discard,
    /// False keeps no bytes: reads return zeroes. For long replays of which only the times matter.
    pub keep_content: bool,
    /// Service times are multiplied by a random factor of 1 - jitter to 1 + jitter, so that seeds differ in order too.
    pub jitter: f64,
    /// How long operations take.
    pub model: Box<dyn ServiceModel>,
}

impl DiskSpec {
    /// A disk of sectors of 512 bytes with a volatile cache of 16 MiB whose discards are unspecified.
    pub fn new(size_bytes: u64, model: impl ServiceModel + 'static) -> Self {
        Self {
            size_bytes,
            sector_bytes: 512,
            atom_bytes: 512,
            optimal_bytes: PAGE_BYTES as u32,
            rotational: false,
            cache: Cache::Volatile { limit_bytes: 16 << 20 },
            discard: Discard::Unspecified,
            keep_content: true,
            jitter: 0.0,
            model: Box::new(model),
        }
    }

    /// A disk on which every operation takes `service`.
    pub fn constant(size_bytes: u64, service: Duration) -> Self {
        Self::new(size_bytes, Constant { service_ns: crate::world::nanos(service), channels: usize::MAX })
    }

    /// A data-centre `NVMe` device.
    pub fn nvme(size_bytes: u64) -> Self {
        Self::new(size_bytes, Ssd::new(SsdSpec::nvme()))
    }

    /// A disk that turns, of all its sectors, without a discard.
    pub fn rotating(spec: RotatingSpec) -> Self {
        Self {
            sector_bytes: spec.sector_bytes,
            atom_bytes: spec.sector_bytes,
            optimal_bytes: u32::try_from(spec.track_bytes()).unwrap_or(u32::MAX),
            rotational: true,
            discard: Discard::Unsupported,
            ..Self::new(spec.size_bytes(), Rotating::new(spec))
        }
    }

    fn assert_sound(&self, name: &str) {
        let Self { size_bytes, sector_bytes, atom_bytes, .. } = *self;
        assert!(sector_bytes > 0 && atom_bytes > 0, "disk {name}: a sector and an atom have bytes");
        assert!(sector_bytes.is_multiple_of(atom_bytes), "disk {name}: a sector is a number of atoms");
        assert!(size_bytes.is_multiple_of(u64::from(sector_bytes)), "disk {name}: its size is a number of sectors");
    }
}

/// A disk of the world: the medium, which lasts over crashes. Clones are the same disk.
#[derive(Clone)]
pub struct SimDisk {
    world: Rc<World>,
    medium: Rc<Medium>,
}

impl SimDisk {
    pub(crate) fn new(world: &Rc<World>, name: &str, spec: DiskSpec) -> Self {
        spec.assert_sound(name);
        let mut media = world.media.borrow_mut();
        assert!(media.iter().all(|medium| medium.name != name), "disk {name}: there is one already");
        let medium = Rc::new(Medium::new(world, media.len() as u32, name, spec));
        media.push(Rc::clone(&medium));
        Self { world: Rc::clone(world), medium }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.medium.name
    }

    /// The disk as this incarnation's device. Using it after the next crash panics: open it again.
    pub fn open(&self) -> Rc<SimBlock> {
        Rc::new(SimBlock {
            world: Rc::clone(&self.world),
            medium: Rc::clone(&self.medium),
            incarnation: self.world.incarnation(),
            heard_of: Cell::new(self.medium.lost_flushes()),
        })
    }

    /// Opens disks by name; one that is not among `disks` is missing.
    pub fn opener(disks: &[Self]) -> impl Fn(&str) -> Result<Rc<dyn Block>> + Clone + use<> {
        let disks = disks.to_vec();
        move |name| {
            let disk = disks.iter().find(|disk| disk.name() == name);
            let disk = disk.ok_or_else(|| Error::missing(format!("{name}: no such disk")))?;
            Ok(disk.open())
        }
    }

    /// What it has done.
    pub fn counters(&self) -> Counters {
        self.medium.counters(&self.world)
    }

    /// A hash of the bytes at rest; what is only in the cache does not count. 0 where no content is kept.
    pub fn digest(&self) -> u64 {
        self.medium.with_content(crate::content::Content::digest).unwrap_or(0)
    }

    /// The bytes at rest at the range, seen without an operation; zeroes where no content is kept.
    pub fn at_rest(&self, offset: u64, len: usize) -> Vec<u8> {
        let bytes = self.medium.with_content(|content| content.read_at_rest(offset, len));
        bytes.map_or_else(|| vec![0; len], |bytes| bytes.contiguous().to_vec())
    }

    /// Bytes of acknowledged writes that a power cut now could take back.
    pub fn unflushed_bytes(&self) -> u64 {
        self.medium.with_content(crate::content::Content::unflushed_bytes).unwrap_or(0)
    }

    /// Lets a fault strike now; one that needs an operation takes the next one it can concern.
    pub fn inject(&self, what: FaultKind) {
        self.medium.arm(&self.world, When::After(Duration::ZERO), what);
    }

    /// Counts from now on: what was counted so far is forgotten, operations under way are not.
    pub fn reset_counters(&self) {
        self.medium.reset_counters(&self.world);
    }

    /// Ends being dead, stalled, slow or full; the disk comes back with what it held.
    pub fn revive(&self) {
        self.medium.revive(&self.world);
    }
}

/// A disk as the device of one incarnation.
pub struct SimBlock {
    world: Rc<World>,
    medium: Rc<Medium>,
    incarnation: u32,
    /// Of the flushes that failed, those it has told.
    heard_of: Cell<u32>,
}

enum State {
    New(Request),
    Issued(usize),
    Over,
}

/// An operation: issued at its first poll.
struct Operation<'a> {
    block: &'a SimBlock,
    state: State,
}

impl Future for Operation<'_> {
    type Output = Result<Bufs>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let SimBlock { world, medium, incarnation, .. } = self.block;
        if world.crash_is_due() {
            return Poll::Pending;
        }
        assert!(
            *incarnation == world.incarnation(),
            "disk {}: this device was opened before a crash: open the disk again",
            medium.name
        );
        match std::mem::replace(&mut self.state, State::Over) {
            State::New(request) => {
                self.state = State::Issued(medium.issue(world, request, context.waker()));
                Poll::Pending
            }
            State::Issued(slot) => match medium.poll(slot, context.waker()) {
                Some(answer) => Poll::Ready(answer),
                None => {
                    self.state = State::Issued(slot);
                    Poll::Pending
                }
            },
            State::Over => panic!("disk {}: an operation is polled after it has ended", medium.name),
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if let State::Issued(slot) = self.state
            && self.block.incarnation == self.block.world.incarnation()
        {
            self.block.medium.abandon(slot);
        }
    }
}

impl SimBlock {
    fn operation(&self, request: Request) -> Operation<'_> {
        Operation { block: self, state: State::New(request) }
    }

    fn done(&self, offset: u64, len: u64, request: Request) -> Local<'_, Result<()>> {
        if let Err(error) = self.medium.geometry.check(offset, len) {
            return Box::pin(std::future::ready(Err(error.at(format_args!("disk {}", self.medium.name)))));
        }
        let operation = self.operation(request);
        Box::pin(async move { operation.await.map(drop) })
    }
}

impl Block for SimBlock {
    fn geometry(&self) -> Geometry {
        self.medium.geometry
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        if let Err(error) = self.medium.geometry.check(offset, len as u64) {
            return Box::pin(std::future::ready(Err(error.at(format_args!("disk {}", self.medium.name)))));
        }
        Box::pin(self.operation(Request::Read { offset, len }))
    }

    fn write(&self, offset: u64, data: Bufs, fua: bool) -> Local<'_, Result<()>> {
        self.done(offset, data.len() as u64, Request::Write { offset, data, fua })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        Box::pin(async move {
            self.operation(Request::Flush).await?;
            let lost = self.medium.lost_flushes();
            if self.heard_of.replace(lost) == lost {
                return Ok(());
            }
            Err(Error::full(format!("disk {}: flush: no space left", self.medium.name)))
        })
    }

    fn discard(&self, offset: u64, len: u64) -> Local<'_, Result<()>> {
        self.done(offset, len, Request::Discard { offset, len })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _keep: bool) -> Local<'_, Result<()>> {
        self.done(offset, len, Request::WriteZeroes { offset, len })
    }
}
