//! Copies of volumes: kept here for kuras elsewhere, and what they are made of.
//!
//! ```text
//!   keep    the copies of this node: begin, apply, complete, promote
//!   record  what is known of each, durably: which point it is, or what is on its way to it
//!   read    frames and checksums of snapshots here
//! ```
//! What must hold is said in `kura_replicate::volume`.

mod keep;
mod read;
mod record;

use crate::replicate::schedule::ReplicationJobs;
use crate::serve::data::DataDir;
use crate::serve::s3;
use async_trait::async_trait;
use bytes::Bytes;
use keep::Copies;
use kura_admin::{Follow, NewTransfer, PartHash, Replica, Replicas, ReplicationJob};
use kura_block::{Error, Result};
use kura_controller::Node;
use kura_replicate::volume::Frame;
use record::Records;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::RwLock;

/// What the REST door asks.
#[derive(Clone)]
pub struct Keeper {
    /// Where that goes on which is not to stop halfway: not on threads that serve HTTP, which end it when they panic.
    runtime: Handle,
    node: Node,
    copies: Arc<Copies>,
    jobs: ReplicationJobs,
    /// Held, together, by all that goes on.
    work: Arc<RwLock<()>>,
}

impl Keeper {
    /// The copies of a data directory.
    pub fn open(data: &DataDir, node: Node) -> anyhow::Result<Self> {
        let copies = Arc::new(Copies::open(data, node.clone())?);
        Ok(Self { runtime: Handle::current(), node, copies, jobs: ReplicationJobs::of(data), work: Arc::default() })
    }

    /// What this node copies to others.
    pub fn jobs(&self) -> ReplicationJobs {
        self.jobs.clone()
    }

    /// Waits until nothing goes on any more. Nobody may ask for anything meanwhile.
    pub async fn rest(&self) {
        self.copies.stop();
        drop(self.work.write().await);
    }

    /// Does what was asked to its end, even if whoever asked goes away.
    async fn undisturbed<T, F>(&self, volume: &str, work: impl FnOnce(Arc<Copies>, String) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (turn, work) = (Arc::clone(&self.work), work(Arc::clone(&self.copies), volume.to_owned()));
        let work = self.runtime.spawn(async move {
            let _turn = turn.read().await;
            work.await
        });
        work.await.map_err(|error| Error::retry(format!("volume {volume}: {error}")))?
    }
}

/// The snapshots that the copies of a data directory cannot do without, for a full pool to spare.
pub fn needed(data: &DataDir) -> anyhow::Result<BTreeSet<String>> {
    Ok(Records::open(data)?.needed())
}

/// Refuses the object store's volume: its access keys' secrets go nowhere.
pub fn refuse_object_store(volume: &str) -> Result<()> {
    if s3::is_ours(volume) {
        return Err(Error::invalid(format!("volume {volume} has the object store, and is not copied as a volume")));
    }
    Ok(())
}

#[async_trait]
impl Replicas for Keeper {
    async fn jobs(&self) -> Result<Vec<ReplicationJob>> {
        let jobs = self.jobs.clone();
        // Looking reads files.
        let told = tokio::task::spawn_blocking(move || jobs.told());
        told.await.map_err(|error| Error::retry(format!("replication jobs: {error}")))
    }

    async fn list(&self) -> Result<Vec<Replica>> {
        self.copies.list().await
    }

    async fn follow(&self, volume: &str, how: Follow) -> Result<Replica> {
        refuse_object_store(volume)?;
        self.undisturbed(volume, |copies, volume| async move { copies.follow(&volume, how).await }).await
    }

    async fn begin(&self, volume: &str, new: NewTransfer) -> Result<Replica> {
        refuse_object_store(volume)?;
        self.undisturbed(volume, |copies, volume| async move { copies.begin(&volume, new).await }).await
    }

    async fn apply(&self, volume: &str, frame: Bytes) -> Result<()> {
        // Where HTTP is served: it comes from elsewhere.
        let unpack = tokio::task::spawn_blocking(move || Frame::unpack(&frame));
        let frame = unpack.await.map_err(|error| Error::retry(format!("a frame: {error}")))?;
        let frame = frame.map_err(|why| Error::invalid(format!("volume {volume}: {why}")))?;
        self.undisturbed(volume, |copies, volume| async move { copies.apply(&volume, frame).await }).await
    }

    async fn complete(&self, volume: &str, to: &str) -> Result<Replica> {
        let to = to.to_owned();
        self.undisturbed(volume, |copies, volume| async move { copies.complete(&volume, &to).await }).await
    }

    async fn promote(&self, volume: &str) -> Result<Replica> {
        self.undisturbed(volume, |copies, volume| async move { copies.promote(&volume).await }).await
    }

    async fn check_free(&self, volume: &str) -> Result<()> {
        self.copies.check_free(volume).await
    }

    fn follows(&self, volume: &str, id: u64) -> bool {
        self.copies.follows(volume, id)
    }

    async fn check_unneeded(&self, name: &str) -> Result<()> {
        self.copies.check_unneeded(name).await
    }

    async fn frame(&self, snapshot: &str, since: Option<&str>, offset: u64) -> Result<Bytes> {
        refuse_object_store(snapshot)?;
        read::frame(&self.node, snapshot, since, offset).await
    }

    async fn hash(&self, snapshot: &str, offset: u64) -> Result<PartHash> {
        refuse_object_store(snapshot)?;
        read::hash(&self.node, snapshot, offset).await
    }
}
