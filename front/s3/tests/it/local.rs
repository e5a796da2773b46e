//! A store in memory behind a door, on tokio's one thread.

use kura_block::{Block, Buf, Bufs, Error, Geometry, Local, Result, Runtime};
use kura_object::{Format, Options, Store};
use kura_s3::{Directory, Door, Job, Service, Snapshots};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, LocalSet, spawn_local};
use tokio::time::Instant;

const SIZE_BYTES: usize = 4 << 20;

pub struct Memory {
    bytes: RefCell<Vec<u8>>,
    /// Blocks that cannot be read.
    lost: RefCell<BTreeSet<usize>>,
    /// How long each read takes.
    slow: Cell<Duration>,
    /// It takes no write for now.
    stalls: Cell<bool>,
    flushes: Cell<usize>,
}

const BLOCK: usize = kura_block::BLOCK_BYTES;

impl Memory {
    pub fn new() -> Rc<Self> {
        Rc::new(Self {
            bytes: RefCell::new(vec![0; SIZE_BYTES]),
            lost: RefCell::default(),
            slow: Cell::default(),
            stalls: Cell::default(),
            flushes: Cell::default(),
        })
    }

    /// How often it was flushed.
    pub fn flushes(&self) -> usize {
        self.flushes.get()
    }

    /// Whether writes are refused for now.
    pub fn stall(&self, stalls: bool) {
        self.stalls.set(stalls);
    }

    /// Each read takes so long from now on.
    pub fn slow_down(&self, takes: Duration) {
        self.slow.set(takes);
    }

    /// The blocks in which this is found cannot be read from now on.
    pub fn lose(&self, what: &[u8]) {
        let bytes = self.bytes.borrow();
        let found = bytes.windows(what.len()).enumerate().filter(|(_, window)| *window == what);
        self.lost.borrow_mut().extend(found.map(|(at, _)| at / BLOCK));
        assert!(!self.lost.borrow().is_empty(), "{} is there", what.escape_ascii());
    }
}

impl Block for Memory {
    fn geometry(&self) -> Geometry {
        let size_bytes = SIZE_BYTES as u64;
        Geometry { size_bytes, align_bytes: 512, optimal_bytes: 4096, rotational: false, discards: false }
    }

    fn read(&self, offset: u64, len: usize) -> Local<'_, Result<Bufs>> {
        let (from, end) = (offset as usize, offset as usize + len);
        let is_lost = self.lost.borrow().range(from / BLOCK..end.div_ceil(BLOCK)).next().is_some();
        let bytes = Buf::copy_of(&self.bytes.borrow()[from..end]);
        let takes = self.slow.get();
        Box::pin(async move {
            if !takes.is_zero() {
                tokio::time::sleep(takes).await;
            }
            if is_lost { Err(Error::device("a bad sector")) } else { Ok(bytes.into()) }
        })
    }

    fn write(&self, offset: u64, data: Bufs, _fua: bool) -> Local<'_, Result<()>> {
        if self.stalls.get() {
            return Box::pin(async { Err(Error::retry("the system is short of memory")) });
        }
        data.copy_to(&mut self.bytes.borrow_mut()[offset as usize..offset as usize + data.len()]);
        Box::pin(async { Ok(()) })
    }

    fn flush(&self) -> Local<'_, Result<()>> {
        self.flushes.set(self.flushes.get() + 1);
        Box::pin(async { Ok(()) })
    }

    fn discard(&self, _offset: u64, _len: u64) -> Local<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn write_zeroes(&self, offset: u64, len: u64, _keep: bool) -> Local<'_, Result<()>> {
        self.write(offset, Bufs::zeroes(len as usize), false)
    }
}

struct Tokio(Instant);

impl Runtime for Tokio {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, delay: Duration) -> Local<'static, ()> {
        Box::pin(tokio::time::sleep(delay))
    }

    fn spawn(&self, task: Local<'static, ()>) {
        spawn_local(task);
    }
}

struct Jobs(mpsc::UnboundedSender<Job>);

impl Door for Jobs {
    fn send(&self, job: Job) {
        // A store that is closed drops it.
        let _ = self.0.send(job);
    }
}

/// The snapshots of a device that has none.
pub struct NoSnapshots;

#[async_trait::async_trait]
impl Snapshots for NoSnapshots {
    async fn name(&self, snapshot: &str) -> kura_block::Result<String> {
        Ok(snapshot.to_owned())
    }

    async fn open(&self, snapshot: &str) -> kura_block::Result<Arc<dyn Door>> {
        Err(Error::missing(format!("snapshot {snapshot}: no such snapshot")))
    }
}

/// A service on a new store.
pub async fn service() -> (Service, Store) {
    let (directory, store) = directory().await;
    (Service::new(directory), store)
}

/// The buckets of a new store, which has one.
pub async fn directory() -> (Arc<Directory>, Store) {
    directory_on(&Memory::new()).await
}

/// The same on this device.
pub async fn directory_on(device: &Rc<Memory>) -> (Arc<Directory>, Store) {
    Store::format(&**device, Format { id: [7; 16], segment_bytes: None }).await.expect("a store");
    let store = opened(device).await;
    let directory = reopened(&store).await;
    directory.create_bucket("demo").await.expect("a bucket");
    (directory, store)
}

/// The store on a device.
pub async fn opened(device: &Rc<Memory>) -> Store {
    let device = Rc::clone(device) as Rc<dyn Block>;
    Store::open(device, Rc::new(Tokio(Instant::now())), Options::default()).await.expect("the store")
}

/// The buckets of a store as a start finds them.
pub async fn reopened(store: &Store) -> Arc<Directory> {
    reopened_with(store, NoSnapshots).await
}

/// The same beside these snapshots.
pub async fn reopened_with(store: &Store, snapshots: impl Snapshots) -> Arc<Directory> {
    Directory::open(door(store), Arc::new(snapshots), None, || Ok(())).await.expect("a directory")
}

/// A door to a store.
pub fn door(store: &Store) -> Arc<dyn Door> {
    door_and_end(store).0
}

/// The same, and what closes the store behind it: whatever goes on there ends where it stands.
pub fn door_and_end(store: &Store) -> (Arc<dyn Door>, AbortHandle) {
    let (jobs, mut coming) = mpsc::unbounded_channel::<Job>();
    let serving = store.clone();
    let serves = spawn_local(async move {
        let mut going_on = JoinSet::new();
        while let Some(job) = coming.recv().await {
            going_on.spawn_local(job(serving.clone()));
        }
        // What was begun comes to its end although nobody begins more.
        going_on.detach_all();
    });
    (Arc::new(Jobs(jobs)), serves.abort_handle())
}

/// Runs a test in time that passes only when nobody works.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let test = async { tokio::time::timeout(Duration::from_hours(1), test).await.expect("the test hangs") };
    runtime.expect("a runtime").block_on(LocalSet::new().run_until(test))
}
