//! The way onto the thread that has the object store.

use crate::body::memory::Memory;
use crate::meters;
use crate::problem::stopped;
use kura_block::Local;
use kura_object::Store;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Work for the store's thread.
pub type Job = Box<dyn FnOnce(Store) -> Local<'static, ()> + Send>;

/// Leads onto the thread that has the object store.
pub trait Door: Send + Sync + 'static {
    /// Begins `job` there, beside everything else; a store that is closed drops it.
    fn send(&self, job: Job);
}

/// A door, and asking through it.
#[derive(Clone)]
pub(crate) struct Way {
    door: Arc<dyn Door>,
    /// What bodies that go through it may take.
    pub memory: Memory,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Way")
    }
}

impl Way {
    pub fn new(door: Arc<dyn Door>) -> Self {
        Self { door, memory: Memory::default() }
    }

    /// True when both lead to one store.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.door, &other.door)
    }

    /// How many have it, work that is not done included.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.door)
    }

    /// Begins `work` on the store's thread; it ends even when nobody waits for what it resolves to.
    pub fn begin<T, F, W>(&self, work: W) -> oneshot::Receiver<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
        W: FnOnce(Store) -> F + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let own = self.clone();
        self.door.send(Box::new(move |store| {
            Box::pin(async move {
                let _way = own;
                let worked = work(store.clone()).await;
                meters::cached(&store);
                // A client that went away no longer wants the answer.
                let _ = answer.send(worked);
            })
        }));
        answered
    }

    /// Does `work` on the store's thread.
    pub async fn ask<T, E, F, W>(&self, work: W) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Stopped> + Send + 'static,
        F: Future<Output = Result<T, E>> + 'static,
        W: FnOnce(Store) -> F + Send + 'static,
    {
        self.begin(work).await.map_err(|_| E::from(Stopped))?
    }
}

/// The store is closed.
pub(crate) struct Stopped;

impl From<Stopped> for kura_block::Error {
    fn from(_: Stopped) -> Self {
        stopped()
    }
}

impl From<Stopped> for s3s::S3Error {
    fn from(_: Stopped) -> Self {
        crate::problem::refusal(stopped())
    }
}
