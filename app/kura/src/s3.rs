//! The S3 door in front of a node: HTTP, signatures and hashes on the main thread, the object store on the thread of the
//! controller that owns its volume.

mod desk;

pub use desk::RestDesk;

use crate::config::{self, Listen};
use crate::tls;
use anyhow::{Context, Result};
use kura_block::{BLOCK_BYTES, Block, Error, Kind};
use kura_controller::{Controller, Layout, Node, VolumeInfo, VolumeSpec};
use kura_object::{Format, Options, Store};
use kura_s3::{Directory, Door, Job, Key, Listener, NewKey};
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

/// The volume that has the object store; no client of NBD sees it.
pub const VOLUME: &str = "objects";
/// The bucket of a new data directory.
pub const DEMO: &str = "demo";
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

/// The object store of a node, in service.
pub struct Objects {
    /// Its buckets and access keys.
    pub directory: Arc<Directory>,
    store: mpsc::UnboundedSender<Message>,
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

impl Objects {
    /// Opens the object store of `node`, on a volume that is made if there is none.
    pub async fn open(node: &Node) -> Result<Self> {
        let volume = volume(node).await.context("the volume of the object store")?;
        let (door, _) = node.find(VOLUME).await?;
        let (store, inbox) = mpsc::unbounded_channel();
        let fresh_bytes = node.pool().await?.extent_bytes;
        door.call(move |controller| Box::pin(begin(controller, volume, fresh_bytes, inbox))).await??;
        let directory = Directory::open(Arc::new(StoreDoor(store.clone()))).await?;
        Ok(Self { directory, store })
    }

    /// The store as the REST door has it.
    pub fn desk(&self) -> Arc<dyn kura_admin::Objects> {
        Arc::new(RestDesk::new(Arc::clone(&self.directory)))
    }

    /// Makes the bucket `demo`, and a key for it.
    pub async fn make_demo(&self) -> Result<Arc<Key>> {
        if self.directory.find(DEMO).is_none() {
            self.directory.create_bucket(DEMO).await?;
        }
        Ok(self.directory.create_key(NewKey { name: DEMO.to_owned(), ..NewKey::default() }).await?)
    }

    /// Writes a checkpoint and ends the store; what is asked of it from now on is refused.
    pub async fn close(&self) -> Result<()> {
        let (answer, answered) = oneshot::channel();
        if self.store.send(Message::Close(answer)).is_err() {
            return Ok(());
        }
        Ok(answered.await.context("the object store ended by itself")??)
    }
}

/// The volume of the object store: as large as the pool, thin.
async fn volume(node: &Node) -> Result<VolumeInfo> {
    match node.find(VOLUME).await {
        Ok((_, volume)) => return Ok(volume),
        Err(error) if error.kind() == Kind::Missing => {}
        Err(error) => return Err(error.into()),
    }
    let pool = node.pool().await?;
    let disks = pool.disks.iter().filter(|disk| disk.takes_data).count();
    let (layout, copies) = if disks > 1 { (Layout::Mirror, 2) } else { (Layout::None, 1) };
    let data_bytes = pool.data_bytes / copies;
    let size_bytes = (data_bytes / pool.extent_bytes * pool.extent_bytes).max(SIZE_LEAST_BYTES);
    let spec = VolumeSpec { name: VOLUME.to_owned(), size_bytes, layout, thick: false, read_only: false };
    Ok(node.create_volume(spec).await?)
}

/// Opens the store on its volume, and serves it on this thread.
async fn begin(
    controller: Rc<Controller>,
    volume: VolumeInfo,
    fresh_bytes: u64,
    inbox: mpsc::UnboundedReceiver<Message>,
) -> kura_block::Result<()> {
    let device = controller.open_volume(VOLUME)?;
    if volume.allocated_bytes <= fresh_bytes && is_blank(&*device).await? {
        Store::format(&*device, Format { id: *Uuid::new_v4().as_bytes(), segment_bytes: None }).await?;
    }
    let runtime = Rc::clone(controller.runtime());
    let store =
        Store::open(device, Rc::clone(&runtime), Options::default()).await.map_err(|error| match error.kind() {
            Kind::Missing => Error::exists(format!(
                "volume {VOLUME} holds something else than the object store: S3 needs this name; or start with --s3 off"
            )),
            _ => error.at(format_args!("the object store on volume {VOLUME}")),
        })?;
    let serving = Rc::clone(&runtime);
    runtime.spawn(Box::pin(async move { attend(&*serving, store, inbox).await }));
    Ok(())
}

/// Begins the jobs that come in, until the store is to be closed.
async fn attend(runtime: &dyn kura_block::Runtime, store: Store, mut inbox: mpsc::UnboundedReceiver<Message>) {
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Job(job) => runtime.spawn(job(store.clone())),
            Message::Close(answer) => {
                drop(inbox);
                // Whoever asked may be gone.
                let _ = answer.send(store.close().await);
                return;
            }
        }
    }
}

/// True when a store was never made on the device: where its roots would be, there is nothing.
async fn is_blank(device: &dyn Block) -> kura_block::Result<bool> {
    let head = device.read(0, 2 * BLOCK_BYTES).await?;
    Ok(head.parts().iter().all(|part| part.iter().all(|byte| *byte == 0)))
}
