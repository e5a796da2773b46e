//! A batch at the desk: contents go to the store as they come, and nothing is seen of them before all is committed.
//!
//! ```text
//!   put, pieces, end ──┐
//!   delete             ├── channel ──> the store's thread: an Upload a put, one Batch
//!   require            │
//!   commit ────────────┘               without it all is dropped, and nothing is left
//! ```

use crate::bucket::Bucket;
use crate::delete::delete;
use crate::desk::{Desk, Head};
use crate::directory::now_ms;
use crate::door::Way;
use crate::meta::etag;
use crate::past::split;
use crate::problem::stopped;
use bytes::Bytes;
use kura_block::{Amount, Buf, Error, Kind, Result};
use kura_object::{Attributes, Batch, Condition, PartitionId, Put, Store, Upload, Which};
use s3s::crypto::{Checksum as _, Md5};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// Steps that wait for the store before the client waits, too.
const STEPS: usize = 4;
/// Content that a batch keeps in its entry of the log; what is beyond goes to extents at once.
const INLINE_BYTES: u64 = 1 << 20;

/// Names and attributes of a batch, all of which are in memory until it happens: more than a segment of the store has room for.
const NAMES_BYTES: usize = 8 << 20;

/// What must hold of an object that is there, for a batch to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Require {
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// There is one of this `ETag`.
    Tag(String),
}

/// A batch being gathered. Dropped, it leaves nothing behind.
pub struct DeskBatch {
    desk: Desk,
    way: Way,
    steps: mpsc::Sender<Step>,
    outcome: oneshot::Receiver<Result<()>>,
    /// Bytes to come of the object that was put last, and the hash of those that came.
    coming: Option<(u64, Md5)>,
}

struct Name {
    bucket: Arc<Bucket>,
    key: String,
}

enum Step {
    Require(Name, Require),
    Delete(Name),
    Put(Name, Attributes),
    Piece(Buf),
    /// With the MD5 of the pieces.
    End(Vec<u8>),
    Commit,
}

impl Step {
    /// Bytes of it that are kept until the batch happens, but for contents.
    fn names_bytes(&self) -> usize {
        match self {
            Self::Require(Name { key, .. }, _) | Self::Delete(Name { key, .. }) => key.len(),
            Self::Put(Name { key, .. }, attributes) => {
                key.len() + attributes.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            }
            Self::Piece(_) | Self::End(_) | Self::Commit => 0,
        }
    }
}

impl Desk {
    /// Begins a batch: objects stored and deleted together or not at all.
    pub fn batch(&self) -> DeskBatch {
        let (steps, mut coming) = mpsc::channel(STEPS);
        let way = self.directory.way();
        let outcome = way.begin(async move |store: Store| gather(&store, &mut coming).await);
        DeskBatch { desk: self.clone(), way, steps, outcome, coming: None }
    }
}

impl DeskBatch {
    /// The batch happens only if this holds of the object as it is before the batch.
    pub async fn require(&mut self, bucket: &str, key: &str, require: Require) -> Result<()> {
        let name = self.name(bucket, key).await?;
        self.send(Step::Require(name, require)).await
    }

    /// Deletes an object, as the bucket's versioning says; that there is none is no error.
    pub async fn delete(&mut self, bucket: &str, key: &str) -> Result<()> {
        let name = self.name(bucket, key).await?;
        self.send(Step::Delete(name)).await
    }

    /// Stores an object of `size_bytes`, which come next by [`DeskBatch::content`].
    pub async fn put(&mut self, bucket: &str, key: &str, head: Head, size_bytes: u64) -> Result<()> {
        if head.new {
            self.require(bucket, key, Require::Absent).await?;
        }
        let (name, attributes) = (self.name(bucket, key).await?, head.attributes()?);
        self.send(Step::Put(name, attributes)).await?;
        self.coming = Some((size_bytes, Md5::new()));
        self.content(Bytes::new()).await
    }

    /// The next bytes of the object that was put last; `Invalid` when they are more than was said.
    pub async fn content(&mut self, bytes: Bytes) -> Result<()> {
        let (left, mut md5) = self.coming.take().unwrap_or_else(|| (0, Md5::new()));
        let left = left.checked_sub(bytes.len() as u64);
        let left = left.ok_or_else(|| Error::invalid("an object's content is longer than it was said to be"))?;
        if !bytes.is_empty() {
            md5.update(&bytes);
            self.send(Step::Piece(Buf::copy_of(&bytes))).await?;
        }
        if left == 0 {
            return self.send(Step::End(md5.finalize().to_vec())).await;
        }
        self.coming = Some((left, md5));
        Ok(())
    }

    /// Does all of it, or nothing and says why.
    pub async fn commit(mut self) -> Result<()> {
        if self.coming.is_some() {
            return Err(Error::invalid("an object's content is shorter than it was said to be"));
        }
        self.send(Step::Commit).await?;
        self.outcome.await.map_err(|_| stopped())?
    }

    async fn name(&self, bucket: &str, key: &str) -> Result<Name> {
        let known = self.desk.bucket(bucket).await?;
        if split(bucket).is_some() {
            return Err(Error::read_only(format!(
                "bucket {bucket}: a snapshot's buckets can be read and nothing else"
            )));
        }
        if !known.way().is(&self.way) {
            return Err(Error::retry(format!(
                "bucket {bucket}: was rolled back meanwhile: nothing happened, try again"
            )));
        }
        Ok(Name { bucket: known, key: key.to_owned() })
    }

    async fn send(&mut self, step: Step) -> Result<()> {
        if self.steps.send(step).await.is_ok() {
            return Ok(());
        }
        // The store has given the batch up, and says why.
        let outcome = (&mut self.outcome).await.map_err(|_| stopped())?;
        Err(outcome.err().unwrap_or_else(stopped))
    }
}

/// Takes the steps as they come, and does them all at the end.
async fn gather(store: &Store, steps: &mut mpsc::Receiver<Step>) -> Result<()> {
    let (mut requires, mut changes) = (Vec::new(), Vec::new());
    let mut open: Option<(Name, Attributes, Upload)> = None;
    let (mut inline_bytes, mut names_bytes) = (0, 0);
    while let Some(step) = steps.recv().await {
        names_bytes += step.names_bytes();
        if names_bytes > NAMES_BYTES {
            let text = format!("a batch names at most {}: send several", Amount(NAMES_BYTES as u64));
            return Err(Error::invalid(text));
        }
        match step {
            Step::Require(name, require) => requires.push((name, require)),
            Step::Delete(name) => changes.push((name, None)),
            Step::Put(name, attributes) => {
                let upload = if inline_bytes < INLINE_BYTES { store.upload() } else { store.upload_part() };
                open = Some((name, attributes, upload));
            }
            Step::Piece(piece) => {
                if let Some((_, _, upload)) = &mut open {
                    upload.write(piece.into()).await?;
                }
            }
            Step::End(tag) => {
                let Some((name, attributes, upload)) = open.take() else { continue };
                inline_bytes += upload.len();
                let content = upload.finish().await?;
                changes.push((name, Some(Put { content, attributes, tag, modified_ms: now_ms(), versioned: false })));
            }
            Step::Commit => return commit(store, &requires, changes).await,
        }
    }
    Err(Error::retry("the batch broke off before its end: nothing of it happened"))
}

/// Does all of it: puts, and deletes where there is none, as the buckets' versioning is by now.
async fn commit(store: &Store, requires: &[(Name, Require)], changes: Vec<(Name, Option<Put>)>) -> Result<()> {
    let mut batch = Batch::new();
    for (name, require) in requires {
        hold(store, &mut batch, name, require).await?;
    }
    let of_name = |(name, _): &(Name, Option<Put>)| (name.bucket.id, Arc::clone(&name.bucket));
    // Each once: behind who waits to switch its versioning, a second turn would wait for the first to end.
    let buckets: BTreeMap<PartitionId, Arc<Bucket>> = changes.iter().map(of_name).collect();
    let mut turns = BTreeMap::new();
    for (id, bucket) in &buckets {
        turns.insert(*id, bucket.versioning_now().await);
    }
    for (Name { bucket, key }, put) in changes {
        let (id, key, versioning) = (bucket.id, key.as_bytes(), *turns[&bucket.id]);
        match put {
            Some(put) => drop(batch.put(id, key, Put { versioned: versioning.adds(), ..put })),
            None => delete(&mut batch, id, versioning, key, Which::Latest),
        }
    }
    store.commit(batch).await.map(drop)
}

/// Holds a condition against what is there now, and lets the batch hold it against what is there then.
async fn hold(store: &Store, batch: &mut Batch, name: &Name, require: &Require) -> Result<()> {
    let (id, key) = (name.bucket.id, name.key.as_bytes());
    let at = || format!("{}/{}", name.bucket.name, name.key);
    let stat = match store.stat(id, key, Which::Latest).await {
        Ok(stat) => Some(stat),
        Err(error) if error.kind() == Kind::Missing => None,
        Err(error) => return Err(error.at(at())),
    };
    let condition = match (require, stat) {
        (Require::Absent, None) => Condition::Absent,
        (Require::Absent, Some(_)) => return Err(Error::exists(format!("{}: exists already", at()))),
        (Require::Present, Some(_)) => Condition::Present,
        (Require::Tag(wanted), Some(stat)) => {
            let found = etag(&stat.tag).value().to_owned();
            if found != *wanted {
                return Err(Error::exists(format!("{}: its ETag is {found}, not {wanted}", at())));
            }
            Condition::Revision(stat.revision)
        }
        (_, None) => return Err(Error::missing(format!("{}: no such object", at()))),
    };
    batch.require(id, key, condition);
    Ok(())
}
