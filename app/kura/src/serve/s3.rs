//! The S3 door in front of a node: HTTP, signatures and hashes on the doors' threads, the object store on the thread of
//! the controller that owns its volume.

mod desk;
mod gate;

use desk::RestDesk;
use gate::Gate;

use crate::config::{self, Listen};
use crate::serve::data::{DataDir, remove_file, remove_unfinished, replace_secret};
use crate::tls;
use anyhow::{Context, Result};
use kura_block::{BLOCK_BYTES, Block, Error, Kind};
use kura_controller::{Controller, Layout, Node, VolumeSpec};
use kura_object::{Format, Options, Store};
use kura_s3::{Directory, Door, Job, Key, Listener, NewKey, Snapshots};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::{Mutex, mpsc, oneshot};
use uuid::Uuid;

/// The volume that has the object store; no client of NBD sees it.
pub const VOLUME: &str = "objects";
/// The access keys, with their secrets, from the begin of a rollback until they are in the store: in the data directory.
pub const KEYS: &str = "keys-of-rollback.json";
/// The bucket of a new data directory.
pub const DEMO: &str = "demo";
/// How often, and for how long at most, it is looked whether a snapshot's store is closed that was let go.
const CLOSE_LOOK: Duration = Duration::from_millis(10);
const CLOSE_LOOKS: usize = 100;
/// How often the store is tried to be opened, where a device gives no answer, and how long is waited between.
const OPEN_TRIES: u32 = 5;
const OPEN_AGAIN: Duration = Duration::from_millis(200);
/// The least size of that volume.
const SIZE_LEAST_BYTES: u64 = 64 << 20;

/// What S3 listens at, and its URL.
pub async fn listen(s3: &config::S3) -> Result<Option<(Listener, String)>> {
    let Listen::At(address) = *s3.listen.get_ref() else { return Ok(None) };
    let tcp = TcpListener::bind(address)
        .await
        .with_context(|| format!("S3 address {address}: cannot be listened at; choose another with --s3"))?;
    let at = tcp.local_addr()?;
    let tls = s3.tls.as_ref().map(|tls| tls::identity(tls.cert.get_ref(), tls.key.get_ref())).transpose()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    Ok(Some((Listener { tcp, tls }, format!("{scheme}://{at}"))))
}

/// True for the volume of the object store and for its snapshots: objects are not for those who read blocks, and no
/// more are the access keys' secrets.
pub fn is_ours(volume: &str) -> bool {
    volume.split('@').next() == Some(VOLUME)
}

/// The object store of a node, in service.
pub struct Objects {
    /// Its buckets and access keys.
    pub directory: Arc<Directory>,
    /// Where that goes on which is not to stop halfway: not on threads that serve HTTP, which end it when they panic.
    runtime: Handle,
    node: Node,
    store: Mutex<mpsc::UnboundedSender<Message>>,
    /// Why it could not be opened, or read, again after a rollback.
    failure: std::sync::Mutex<Option<String>>,
    options: Options,
    /// The access keys while the store is rolled back: also after a crash in the midst of it they stay what they are.
    keys_file: PathBuf,
}

enum Message {
    Job(Job),
    Close(oneshot::Sender<kura_block::Result<()>>),
}

/// The way onto the thread that has the store.
struct StoreDoor(mpsc::UnboundedSender<Message>);

impl Door for StoreDoor {
    fn send(&self, job: Job) {
        // A store that is closed has nothing to begin any more: whoever waits for the job's answer is told so.
        let _ = self.0.send(Message::Job(job));
    }
}

/// The snapshots of the store's volume.
struct Past(Node);

#[async_trait::async_trait]
impl Snapshots for Past {
    async fn name(&self, snapshot: &str) -> kura_block::Result<String> {
        if self.0.find(&format!("{VOLUME}@{snapshot}")).await.is_ok() {
            return Ok(snapshot.to_owned());
        }
        let volumes = self.0.volumes().await?.into_iter().map(|volume| volume.spec.name);
        let own = |name: &str| name.strip_prefix(VOLUME)?.strip_prefix('@').map(str::to_owned);
        let mut alike = volumes.filter_map(|name| own(&name)).filter(|one| one.eq_ignore_ascii_case(snapshot));
        let found = alike.next().filter(|_| alike.next().is_none());
        found.ok_or_else(|| Error::missing(format!("snapshot {VOLUME}@{snapshot}: no such snapshot")))
    }

    async fn open(&self, snapshot: &str) -> kura_block::Result<Arc<dyn Door>> {
        let name = format!("{VOLUME}@{snapshot}");
        let options = Options { read_only: true, ..Options::default() };
        Ok(Arc::new(StoreDoor(open(&self.0, name, options).await?)))
    }
}

impl Objects {
    /// As [`Objects::open`], tried some times where that may pass; why not, which the log tells too, where the pool has no
    /// room for the store, or its disks do not have it. Volumes are served all the same.
    pub async fn open_if_possible(node: &Node, data: &DataDir, options: Options) -> Result<Result<Arc<Self>, String>> {
        let mut tries = OPEN_TRIES;
        loop {
            let error = match Self::open(node, data, options).await {
                Ok(objects) => return Ok(Ok(objects)),
                Err(error) => error,
            };
            tries -= 1;
            let kind = error.chain().find_map(|cause| cause.downcast_ref::<Error>()).map(Error::kind);
            match kind.and_then(remedy) {
                None => return Err(error),
                Some(_) if tries > 0 && matches!(kind, Some(Kind::Retry | Kind::Device)) => {
                    tracing::warn!("the object store cannot be opened, trying again: {error:#}");
                    tokio::time::sleep(OPEN_AGAIN).await;
                }
                Some(remedy) => {
                    let why = format!("S3 is not served: {error:#}; {remedy}, then start the server again");
                    tracing::error!("{why}");
                    return Ok(Err(why));
                }
            }
        }
    }

    /// Opens the object store of `node`, on a volume that is made if there is none.
    async fn open(node: &Node, data: &DataDir, options: Options) -> Result<Arc<Self>> {
        prepare(node).await.context("the volume of the object store")?;
        let keys_file = data.join(KEYS);
        remove_unfinished(&keys_file).with_context(|| keys_file.display().to_string())?;
        let keys = match std::fs::read(&keys_file) {
            Ok(text) => Some(serde_json::from_slice(&text).with_context(|| keys_file.display().to_string())?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).with_context(|| keys_file.display().to_string()),
        };
        let kept = keys_file.clone();
        let kept = move || remove_keys(&kept);
        let store = open(node, VOLUME.to_owned(), options).await?;
        let snapshots = Arc::new(Past(node.clone()));
        let opened = Directory::open(Arc::new(StoreDoor(store.clone())), snapshots, keys, kept).await;
        if opened.is_err() {
            // Before it is tried again: there is one store on a volume.
            close(&store).await.unwrap_or_else(|error| tracing::warn!(%error, "the object store was not closed"));
        }
        let directory = opened?;
        let runtime = Handle::current();
        let (node, store) = (node.clone(), Mutex::new(store));
        Ok(Arc::new(Self { directory, runtime, node, store, failure: std::sync::Mutex::default(), options, keys_file }))
    }

    /// The store as the REST door has it.
    pub fn desk(self: &Arc<Self>) -> Arc<dyn kura_admin::Objects> {
        Arc::new(RestDesk::new(Arc::clone(self)))
    }

    /// Makes the bucket `demo`, and a key for it.
    pub async fn make_demo(&self) -> Result<Arc<Key>> {
        if self.directory.find(DEMO).is_none() {
            self.directory.create_bucket(DEMO).await?;
        }
        Ok(self.directory.create_key(NewKey { name: DEMO.to_owned(), ..NewKey::default() }).await?)
    }

    /// Makes the store what the snapshot of its volume is, and goes on with that. Access keys stay what they are: one
    /// that was revoked since does not come back.
    pub async fn roll_back(self: &Arc<Self>, snapshot: &str) -> kura_block::Result<()> {
        let (objects, snapshot) = (Arc::clone(self), snapshot.to_owned());
        // It goes on although nobody waits for it any more: in the midst of it there is no store.
        let rolled = self.runtime.spawn(async move { objects.go_back(&snapshot).await });
        rolled.await.map_err(|error| Error::retry(format!("the rollback did not finish: {error}")))?
    }

    async fn go_back(&self, snapshot: &str) -> kura_block::Result<()> {
        let failed = |error| no_keys_file(&self.keys_file, &error);
        let (mut rolled, mut is_closed) = (Ok(()), false);
        let change = async {
            let mut store = self.store.lock().await;
            let keys: Vec<Key> = self.directory.keys().iter().map(|key| Key::clone(key)).collect();
            let text = serde_json::to_vec(&keys).map_err(|error| failed(error.into()))?;
            replace_secret(&self.keys_file, &text).map_err(failed)?;
            is_closed = true;
            // A store that has failed is what a rollback may be the remedy for.
            if let Err(error) = close(&store).await {
                tracing::warn!(%error, "the object store was not closed as it should be before it was rolled back");
            }
            rolled = self.node.roll_back(snapshot, false).await.map(drop);
            *store = open(&self.node, VOLUME.to_owned(), self.options).await?;
            Ok(Arc::new(StoreDoor(store.clone())) as Arc<dyn Door>)
        };
        let kept = self.keys_file.clone();
        let gone = self.directory.go_over(change, move || remove_keys(&kept)).await;
        if is_closed {
            *self.failure() = gone.as_ref().err().map(|error| {
                format!(
                    "S3 is not served: {error}; roll back to another snapshot of {VOLUME}, or start the server again"
                )
            });
        }
        gone??;
        rolled
    }

    /// Why nothing of it is served, where that is so.
    pub fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes a snapshot's store, as soon as those have done who read it.
    pub async fn close_snapshot(&self, snapshot: &str) -> kura_block::Result<()> {
        let own = snapshot.strip_prefix(VOLUME).and_then(|own| own.strip_prefix('@')).unwrap_or(snapshot);
        self.directory.close_snapshot(own);
        // Mostly nobody reads it any more, and the thread that has it is about to close it.
        for _ in 0..CLOSE_LOOKS {
            if self.node.find(snapshot).await?.1.open == 0 {
                break;
            }
            tokio::time::sleep(CLOSE_LOOK).await;
        }
        Ok(())
    }

    /// Writes a checkpoint and ends the store; what is asked of it from now on is refused.
    pub async fn close(&self) -> Result<()> {
        self.directory.close_snapshots();
        Ok(close(&*self.store.lock().await).await?)
    }
}

/// What to do when the store cannot be opened for this reason; none where that keeps the server from starting.
fn remedy(kind: Kind) -> Option<&'static str> {
    match kind {
        Kind::Full => Some("make room (delete something, or add a disk)"),
        Kind::Device | Kind::Corrupt => Some("bring back the missing disks, or restore the store's volume"),
        Kind::Retry => Some("see why its volume does not answer (`kura status`)"),
        _ => None,
    }
}

/// Forgets the access keys that a rollback kept: they are in the store.
fn remove_keys(file: &Path) -> kura_block::Result<()> {
    remove_file(file).map_err(|error| no_keys_file(file, &error))
}

fn no_keys_file(file: &Path, error: &std::io::Error) -> Error {
    Error::device(format!("{}: {error}", file.display()))
}

async fn close(store: &mpsc::UnboundedSender<Message>) -> kura_block::Result<()> {
    let (answer, answered) = oneshot::channel();
    if store.send(Message::Close(answer)).is_err() {
        return Ok(());
    }
    answered.await.map_err(|_| Error::retry("the object store ended by itself"))?
}

/// Makes the volume of the object store, unless there is one: as large as the pool, thin. One that is there grows with the pool,
/// and the store with it.
async fn prepare(node: &Node) -> Result<()> {
    let pool = node.pool().await?;
    let size_for = |layout| {
        let data_bytes = if layout == Layout::None { pool.data_bytes } else { pool.data_bytes / 2 };
        (data_bytes / pool.extent_bytes * pool.extent_bytes).max(SIZE_LEAST_BYTES)
    };
    match node.find(VOLUME).await {
        Ok((_, volume)) => {
            let (before, size_bytes) = (volume.spec.size_bytes, size_for(volume.spec.layout));
            if size_bytes > before && !volume.spec.thick {
                // Without the new room it does its work all the same.
                match node.resize_volume(VOLUME, size_bytes, false).await {
                    Ok(_) => tracing::info!(before, size_bytes, "the object store's volume grows with the pool"),
                    Err(error) => tracing::warn!(%error, "the object store's volume cannot grow with the pool"),
                }
            }
            return Ok(());
        }
        Err(error) if error.kind() == Kind::Missing => {}
        Err(error) => return Err(error.into()),
    }
    let disks = pool.disks.iter().filter(|disk| disk.takes_data).count();
    let layout = if disks > 1 { Layout::Mirror } else { Layout::None };
    let size_bytes = size_for(layout);
    let spec = VolumeSpec { name: VOLUME.to_owned(), size_bytes, layout, thick: false, read_only: false };
    node.create_volume(spec).await?;
    Ok(())
}

/// Opens the store on a volume, on the thread of the controller that owns it, and serves it there.
async fn open(node: &Node, volume: String, options: Options) -> kura_block::Result<mpsc::UnboundedSender<Message>> {
    let (door, info) = node.find(&volume).await?;
    let fresh_bytes = node.pool().await?.extent_bytes;
    let (store, inbox) = mpsc::unbounded_channel();
    let may_format = !options.read_only && info.allocated_bytes <= fresh_bytes;
    door.call(move |controller| Box::pin(begin(controller, volume, may_format, options, inbox))).await??;
    Ok(store)
}

/// Opens the store on its volume, made anew where there was never one, and serves it on this thread.
async fn begin(
    controller: Rc<Controller>,
    volume: String,
    may_format: bool,
    options: Options,
    inbox: mpsc::UnboundedReceiver<Message>,
) -> kura_block::Result<()> {
    let gate = Rc::new(Gate::new(controller.open_volume(&volume)?));
    if may_format && is_blank(&*gate).await? {
        Store::format(&*gate, Format { id: *Uuid::new_v4().as_bytes(), segment_bytes: None }).await?;
    }
    let runtime = Rc::clone(controller.runtime());
    let device: Rc<dyn Block> = Rc::clone(&gate) as Rc<dyn Block>;
    let store = Store::open(device, Rc::clone(&runtime), options).await.map_err(|error| match error.kind() {
        Kind::Missing => Error::exists(format!(
            "volume {volume} holds something other than the object store: S3 needs this name; or start with --s3 off"
        )),
        _ => error.at(format_args!("the object store on volume {volume}")),
    })?;
    let serving = Rc::clone(&runtime);
    runtime.spawn(Box::pin(async move { attend(&*serving, store, &gate, inbox).await }));
    Ok(())
}

/// Begins the jobs that come in, until the store is to be closed or nobody has a door to it any more.
async fn attend(
    runtime: &dyn kura_block::Runtime,
    store: Store,
    gate: &Gate,
    mut inbox: mpsc::UnboundedReceiver<Message>,
) {
    let asked = loop {
        match inbox.recv().await {
            Some(Message::Job(job)) => runtime.spawn(job(store.clone())),
            Some(Message::Close(answer)) => break Some(answer),
            None => break None,
        }
    };
    drop(inbox);
    // Its tasks live on else, and write beside the next store that is opened there.
    let closed = store.close().await;
    gate.shut().await;
    match (asked, closed) {
        // Whoever asked may be gone.
        (Some(answer), closed) => drop(answer.send(closed)),
        (None, Err(error)) => tracing::warn!(%error, "an object store that nobody has was not closed as it should be"),
        (None, Ok(())) => {}
    }
}

/// True when a store was never made on the device: where its roots would be, there is nothing.
async fn is_blank(device: &dyn Block) -> kura_block::Result<bool> {
    let head = device.read(0, 2 * BLOCK_BYTES).await?;
    Ok(head.parts().iter().all(|part| part.iter().all(|byte| *byte == 0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_object::{Attributes, Batch};
    use kura_sim::{DiskSpec, Sim};

    #[test]
    fn volumes_are_served_without_objects() {
        for kind in [Kind::Full, Kind::Device, Kind::Corrupt, Kind::Retry] {
            assert!(remedy(kind).is_some(), "{kind:?}");
        }
        // Another volume has the name: that is told before anything is served.
        assert!(remedy(Kind::Exists).is_none());
    }

    #[test]
    fn a_store_that_nobody_has_a_door_to_any_more_writes_no_more() {
        let sim = Sim::new(1);
        let disk = sim.disk("disk", DiskSpec::nvme(16 << 20));
        sim.block_on(async {
            Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: None }).await.unwrap();
            let gate = Rc::new(Gate::new(disk.open()));
            let device = Rc::clone(&gate) as Rc<dyn Block>;
            let store = Store::open(device, sim.runtime(), Options::default()).await.unwrap();
            store.create_partition(b"one", Attributes::new(), 0).await.unwrap();
            let (door, inbox) = mpsc::unbounded_channel();
            drop(door);
            attend(&*sim.runtime(), store.clone(), &gate, inbox).await;
            assert_eq!(store.commit(Batch::new()).await.unwrap_err().kind(), Kind::Retry);
            assert_eq!(gate.flush().await.unwrap_err().kind(), Kind::Retry, "nothing reaches the volume");
            // All of it was written: whoever opens it next has it.
            let next = Store::open(disk.open(), sim.runtime(), Options::default()).await.unwrap();
            assert!(next.partition(b"one").await.is_ok() && next.counters().replayed_records == 0);
        });
    }
}
