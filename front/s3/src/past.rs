//! Buckets as snapshots of the store's volume have them: opened when they are asked for, to be read only, and let go
//! when nobody asks any more.

use crate::bucket::Bucket;
use crate::directory;
use crate::door::{Door, Job, Stopped, Way};
use kura_block::{Error, Result};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tracing::Instrument;

/// A snapshot's store that nobody asked for so long is closed: its index takes memory.
const IDLE: Duration = Duration::from_mins(1);
/// Snapshots whose stores are open at a time.
const PLACES: usize = 4;

/// Opens the object store as snapshots have it.
#[async_trait::async_trait]
pub trait Snapshots: Send + Sync + 'static {
    /// The name of the snapshot that is meant: a bucket's name has only small letters, and a snapshot's any. `Missing` when there
    /// is no such snapshot.
    async fn name(&self, snapshot: &str) -> Result<String>;

    /// The door of the store as the snapshot of this name has it, to be read only; it is closed when the door is
    /// dropped. `Missing` when there is no such snapshot.
    async fn open(&self, snapshot: &str) -> Result<Arc<dyn Door>>;
}

/// What stands between a bucket and a snapshot where a client holds names to S3's rules; no bucket's own name has it.
const AT: &str = ".at.";

/// A bucket and a snapshot, where a name is both: `BUCKET@SNAPSHOT`, or `BUCKET.at.SNAPSHOT`.
pub(crate) fn split(name: &str) -> Option<(&str, &str)> {
    let (bucket, snapshot) = name.split_once('@').or_else(|| name.split_once(AT))?;
    (!bucket.is_empty() && !snapshot.is_empty()).then_some((bucket, snapshot))
}

/// The bucket of such a name, and of any other.
pub(crate) fn bucket_of(name: &str) -> &str {
    split(name).map_or(name, |(bucket, _)| bucket)
}

/// The snapshots that are open. Clones are the same ones.
#[derive(Clone)]
pub(crate) struct Past {
    snapshots: Arc<dyn Snapshots>,
    open: Arc<Open>,
    places: Arc<Semaphore>,
    /// How often one was asked for.
    asked: Arc<AtomicU64>,
    /// Those that are being opened.
    opening: Arc<Mutex<JoinSet<()>>>,
}

/// A snapshot that was asked for.
#[derive(Default)]
struct Opened {
    buckets: OnceCell<BTreeMap<String, Arc<Bucket>>>,
    /// When it was asked for last, as [`Past::asked`] counts.
    asked: AtomicU64,
}

/// The door of a store that has one of the places until nobody uses it any more.
struct Placed {
    door: Arc<dyn Door>,
    _place: OwnedSemaphorePermit,
}

impl Door for Placed {
    fn send(&self, job: Job) {
        self.door.send(job);
    }
}

impl Opened {
    /// True when it is open, and nobody has one of its buckets, or reads there.
    fn is_idle(self: &Arc<Self>) -> bool {
        let is_asked_for = Arc::strong_count(self) > 1;
        !is_asked_for
            && self.buckets.get().is_some_and(|buckets| {
                // Each bucket has the way.
                let users = buckets.values().next().map_or(0, |bucket| bucket.way().users());
                users == buckets.len() && buckets.values().all(|bucket| Arc::strong_count(bucket) == 1)
            })
    }
}

type Open = Mutex<BTreeMap<String, Arc<Opened>>>;

fn locked(open: &Open) -> MutexGuard<'_, BTreeMap<String, Arc<Opened>>> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Past {
    pub fn new(snapshots: Arc<dyn Snapshots>) -> Self {
        let (open, asked) = (Arc::default(), Arc::default());
        tokio::spawn(tidy(Arc::downgrade(&open), Arc::clone(&asked)));
        Self { snapshots, open, places: Arc::new(Semaphore::new(PLACES)), asked, opening: Arc::default() }
    }

    /// A bucket as a snapshot has it.
    pub async fn bucket(&self, bucket: &str, snapshot: &str) -> Result<Arc<Bucket>> {
        let buckets = self.buckets(snapshot).await?;
        let missing = || Error::missing(format!("snapshot {snapshot}: there was no bucket {bucket} then"));
        buckets.get(bucket).cloned().ok_or_else(missing)
    }

    /// All buckets of a snapshot.
    pub async fn buckets(&self, snapshot: &str) -> Result<BTreeMap<String, Arc<Bucket>>> {
        // In whatever letters it is asked for, it is opened once.
        let snapshot = self.snapshots.name(snapshot).await?;
        let opened = Arc::clone(locked(&self.open).entry(snapshot.clone()).or_default());
        opened.asked.store(self.asked.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        if let Some(buckets) = opened.buckets.get() {
            return Ok(buckets.clone());
        }
        let own = self.clone();
        let (answer, answered) = oneshot::channel();
        // Also when the client goes away meanwhile: what is read of the index goes on, and the next one is to find it.
        let opening = async move {
            let buckets = opened.buckets.get_or_try_init(|| own.open(snapshot)).await;
            if buckets.is_err() {
                // Not another's, who began anew meanwhile.
                locked(&own.open).retain(|_, open| !Arc::ptr_eq(open, &opened));
            }
            // Whoever asked may be gone.
            let _ = answer.send(buckets.cloned());
        };
        self.opening_now(|tasks| drop(tasks.spawn(opening.in_current_span())));
        answered.await.map_err(|_| Error::from(Stopped))?
    }

    /// Lets all of them go, also those that are being opened: who waits for one is told so.
    pub fn close(&self) {
        self.opening_now(JoinSet::abort_all);
        locked(&self.open).clear();
    }

    fn opening_now(&self, act: impl FnOnce(&mut JoinSet<()>)) {
        let mut tasks = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that have ended are no longer of interest.
        while tasks.try_join_next().is_some() {}
        act(&mut tasks);
    }

    /// Opens a snapshot's store, where there is a place, and reads its buckets.
    async fn open(&self, snapshot: String) -> Result<BTreeMap<String, Arc<Bucket>>> {
        let place = self.place()?;
        let door = self.snapshots.open(&snapshot).await?;
        let way = Way::new(Arc::new(Placed { door, _place: place }));
        Ok(directory::read(way).await?.buckets)
    }

    /// A place for a store: where all are taken, that of the one that was not asked for longest, and `Retry` where all are in
    /// use.
    fn place(&self) -> Result<OwnedSemaphorePermit> {
        loop {
            if let Ok(place) = Arc::clone(&self.places).try_acquire_owned() {
                return Ok(place);
            }
            let mut open = locked(&self.open);
            let idle = open.iter().filter(|(_, opened)| opened.is_idle());
            let longest = idle.min_by_key(|(_, opened)| opened.asked.load(Ordering::Relaxed));
            let longest = longest.map(|(snapshot, _)| snapshot.clone()).ok_or_else(|| {
                Error::retry(format!("{PLACES} snapshots are being read: no more at a time, so try again later"))
            })?;
            open.remove(&longest);
        }
    }

    /// Closes a snapshot's store as soon as those have done who use it.
    pub fn close_snapshot(&self, snapshot: &str) {
        locked(&self.open).retain(|open, _| !open.eq_ignore_ascii_case(snapshot));
    }
}

/// Lets those go, each while nobody reads it, that nobody has asked for since it looked last. It ends with [`Past`].
async fn tidy(open: Weak<Open>, asked: Arc<AtomicU64>) {
    let mut before = 0;
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(open) = open.upgrade() else { return };
        let mut open = locked(&open);
        // One that is read still would hold its place beside the next opening of the same snapshot.
        open.retain(|_, opened| opened.asked.load(Ordering::Relaxed) >= before || !opened.is_idle());
        before = asked.load(Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots whose index is read for ever.
    struct Slow;

    #[async_trait::async_trait]
    impl Snapshots for Slow {
        async fn name(&self, snapshot: &str) -> Result<String> {
            Ok(snapshot.to_owned())
        }

        async fn open(&self, _snapshot: &str) -> Result<Arc<dyn Door>> {
            std::future::pending().await
        }
    }

    #[tokio::test]
    async fn one_that_is_being_opened_is_let_go_at_the_end() {
        let snapshots = Arc::new(Slow);
        let past = Past::new(Arc::<Slow>::clone(&snapshots));
        let asked = tokio::spawn({
            let past = past.clone();
            async move { past.bucket("photos", "v1").await }
        });
        while past.opening.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
        past.close();
        let refused = asked.await.unwrap().expect_err("it cannot be opened");
        assert_eq!(refused.kind(), kura_block::Kind::Retry, "{refused}");
        drop(past);
        assert_eq!(Arc::strong_count(&snapshots), 1, "nobody has them any more");
    }

    #[test]
    fn a_name_is_a_buckets_or_a_buckets_in_a_snapshot() {
        assert_eq!(split("demo@v1"), Some(("demo", "v1")));
        assert_eq!(split("demo.at.v1"), Some(("demo", "v1")));
        assert_eq!(split("demo@a.at.b@c"), Some(("demo", "a.at.b@c")));
        for name in ["demo", "demo@", "@v1", ".at.v1", "at.home", ""] {
            assert_eq!(split(name), None, "{name}");
        }
    }
}
