//! The task that does what lifecycle rules say: at most an hour late, and soon after rules were set. It gives back what
//! is left of uploads that are gone, too.

use crate::bucket::Bucket;
use crate::bucket::lifecycle::{Facts, Fate, aborts, asks_for_tags, fate};
use crate::delete::delete;
use crate::directory::{Directory, now_ms};
use crate::multipart::parts::parts_of;
use crate::multipart::{AT_ONCE, UploadEntry, abort_upload, each_page};
use crate::tags;
use futures::{StreamExt, stream};
use kura_block::{Error, Kind, Result};
use kura_object::{After, Batch, Condition, Item, Page, PartitionId, Query, Stat, Store, Which};
use s3s::dto::BucketLifecycleConfiguration;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Rules are looked at this often.
const EVERY: Duration = Duration::from_hours(1);
/// Versions that one step looks at before it lets others go on.
const PAGE: usize = 500;
/// Parts that are removed at once: fewer than the log of a small store takes.
pub(crate) const PARTS: usize = 200;

/// Does what the buckets' rules say until `stop` says true: it is looked at before every version is ended.
pub async fn sweep(directory: Arc<Directory>, mut stop: watch::Receiver<bool>) {
    loop {
        if let Err(error) = sweep_lost_parts(&directory, &stop).await {
            tracing::warn!(%error, "parts without an upload could not be looked for; trying again later");
        }
        for bucket in directory.buckets() {
            // What cannot be read may say that versions stay.
            if bucket.lifecycle.is_none() || bucket.unreadable.is_some() {
                continue;
            }
            if let Err(error) = sweep_bucket(&directory, &bucket.name, &stop).await {
                tracing::warn!(bucket = bucket.name, %error, "lifecycle rules could not be followed; trying again later");
            }
        }
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = directory.sweep_is_wanted() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

/// The bucket as it is by now is looked up for each step: a rule that was taken back since the sweep began counts. What cannot be
/// done of one thing, or is refused, keeps nothing else from being done.
async fn sweep_bucket(directory: &Directory, name: &str, stop: &watch::Receiver<bool>) -> Result<()> {
    let Some(bucket) = directory.find(name) else { return Ok(()) };
    let way = bucket.way().clone();
    let stopping = stop.clone();
    way.ask(async move |store: Store| sweep_uploads(&store, &bucket, &stopping).await).await?;
    let mut place = Place::default();
    while !place.over && !*stop.borrow() {
        let Some(bucket) = directory.find(name).filter(|bucket| bucket.unreadable.is_none()) else { return Ok(()) };
        let (way, stopping) = (bucket.way().clone(), stop.clone());
        place = way.ask(async move |store: Store| sweep_page(&store, &bucket, place, &stopping).await).await?;
    }
    Ok(())
}

async fn sweep_uploads(store: &Store, bucket: &Bucket, stop: &watch::Receiver<bool>) -> Result<()> {
    let Some(rules) = &bucket.lifecycle else { return Ok(()) };
    let mut left = Left::default();
    let see = async |mut uploads: Vec<UploadEntry>| {
        uploads.retain(|upload| aborts(rules, &String::from_utf8_lossy(&upload.key), upload.begun_ms, now_ms()));
        let ends = uploads.iter().map(async |upload| (&upload.key, abort_upload(store, &bucket.home, upload).await));
        left.note_all(ends, stop).await;
        Ok(())
    };
    each_page(store, &bucket.name, see).await?;
    left.tell(bucket);
    Ok(())
}

/// What a step has left for the next sweep: how much, and the first of it.
#[derive(Default)]
struct Left {
    count: usize,
    first: Option<(Vec<u8>, Error)>,
}

impl Left {
    /// Does all of this, what was done of each key being noted; what goes into the log goes there together. Where `stop` says true
    /// it begins no more.
    async fn note_all<'a>(
        &mut self,
        steps: impl Iterator<Item = impl Future<Output = (&'a Vec<u8>, Result<()>)>>,
        stop: &watch::Receiver<bool>,
    ) {
        let mut done = pin!(stream::iter(steps.take_while(|_| !*stop.borrow())).buffer_unordered(AT_ONCE));
        while let Some((key, done)) = done.next().await {
            if let Err(error) = done {
                self.count += 1;
                self.first.get_or_insert_with(|| (key.clone(), error));
            }
        }
    }

    /// One line a step: where all of it fails, not one for each.
    fn tell(&self, bucket: &Bucket) {
        if let Some((key, error)) = &self.first {
            let (key, left) = (String::from_utf8_lossy(key), self.count);
            let what = "lifecycle rules could not be followed everywhere; trying again later";
            tracing::warn!(bucket = bucket.name, left, %key, %error, "{what}");
        }
    }
}

/// Removes parts whose upload is gone: older builds left some, and so does a crash while one of many parts is aborted.
async fn sweep_lost_parts(directory: &Directory, stop: &watch::Receiver<bool>) -> Result<()> {
    let home = directory.home();
    let (parts, mut after) = (home.parts, After::default());
    while !*stop.borrow() {
        let query = Query { delimiter: Some(b"/".to_vec()), after, limit: Some(PAGE), ..Query::default() };
        let step = async move |store: Store| {
            let Page { items, next } = store.list(parts, &query).await?;
            let mut lost = 0;
            for (at, item) in items.iter().enumerate() {
                let Item::Prefix(prefix) = item else { continue };
                let id = &prefix[..prefix.len() - 1];
                // An upload stands right before its parts.
                let is_under_way = |before: &Item| matches!(before, Item::Object { key, .. } if key == id);
                if !at.checked_sub(1).is_some_and(|before| is_under_way(&items[before])) {
                    lost += remove_lost(&store, parts, id).await?;
                }
            }
            Ok::<_, Error>((lost, next))
        };
        let (lost, next) = home.way.ask(step).await?;
        if lost > 0 {
            tracing::info!(parts = lost, "parts whose upload is gone are given back");
        }
        match next {
            Some(next) => after = next,
            None => break,
        }
    }
    Ok(())
}

/// Removes what there is of an upload's parts, unless the upload is there: how many they were.
pub(crate) async fn remove_lost(store: &Store, parts: PartitionId, id: &[u8]) -> Result<usize> {
    let lost = parts_of(store, parts, id).await?;
    for some in lost.chunks(PARTS) {
        let mut batch = Batch::new();
        batch.require(parts, id, Condition::Absent);
        for part in some {
            batch.remove(parts, &part.key, Which::Latest);
        }
        match store.commit(batch).await {
            Err(error) if error.kind() == Kind::Exists => return Ok(0),
            done => done.map(drop)?,
        }
    }
    Ok(lost.len())
}

/// How far a sweep is, and what it carries from page to page.
#[derive(Default)]
struct Place {
    after: After,
    last: Option<Last>,
    over: bool,
}

/// The key met last.
#[derive(Clone)]
struct Last {
    key: Vec<u8>,
    /// When its version met last came.
    modified_ms: u64,
    /// How many of its noncurrent ones were met.
    newer: u32,
    /// Its newest version.
    newest: Stat,
}

/// A step. Where `stop` says true in the midst of it there is no next one, to which it would matter how far it came.
async fn sweep_page(store: &Store, bucket: &Bucket, mut place: Place, stop: &watch::Receiver<bool>) -> Result<Place> {
    let Some(rules) = &bucket.lifecycle else { return Ok(Place { over: true, ..place }) };
    let query = Query { after: place.after.clone(), limit: Some(PAGE), versions: true, ..Query::default() };
    let Page { items, next } = store.list(bucket.id, &query).await?;
    // Whether the last one of a page has older ones, the next page says.
    let whole = if next.is_some() && items.len() > 1 { items.len() - 1 } else { items.len() };
    let mut steps = Vec::new();
    for at in 0..whole {
        let Item::Object { key, stat } = &items[at] else { continue };
        let before = place.last.take().filter(|last| last.key == *key);
        let noncurrent = before.as_ref().map(|last| (last.modified_ms, last.newer));
        let has_older = matches!(items.get(at + 1), Some(Item::Object { key: next, .. }) if next == key);
        let newest = before.map_or_else(|| stat.clone(), |last| last.newest);
        let newer = noncurrent.map_or(0, |(_, newer)| newer + 1);
        place.last = Some(Last { key: key.clone(), modified_ms: stat.modified_ms, newer, newest: newest.clone() });
        steps.push(async move {
            let facts = Facts {
                key: &String::from_utf8_lossy(key),
                size_bytes: stat.size_bytes,
                modified_ms: stat.modified_ms,
                marker: stat.marker,
                noncurrent,
                only: noncurrent.is_none() && !has_older,
            };
            (key, follow(store, bucket, rules, &facts, (key, stat, &newest)).await)
        });
    }
    let mut left = Left::default();
    left.note_all(steps.into_iter(), stop).await;
    left.tell(bucket);
    place.over = next.is_none();
    place.after = match items.get(whole.wrapping_sub(1)) {
        Some(Item::Object { key, stat }) if !place.over => After::Version(key.clone(), stat.version),
        _ => next.unwrap_or_default(),
    };
    Ok(place)
}

/// Does what the rules say of a version.
async fn follow(
    store: &Store,
    bucket: &Bucket,
    rules: &BucketLifecycleConfiguration,
    facts: &Facts<'_>,
    (key, stat, newest): (&[u8], &Stat, &Stat),
) -> Result<()> {
    // Tags are in the version's record: read where they decide.
    if fate(rules, facts, None, now_ms()) == Fate::Stay {
        return Ok(());
    }
    let wants_tags = asks_for_tags(rules) && !stat.marker;
    let tags = if wants_tags { tags_of(store, bucket, key, stat).await? } else { Vec::new() };
    match fate(rules, facts, Some(&tags), now_ms()) {
        Fate::Stay => Ok(()),
        decided => end(store, bucket, key, stat, newest, decided).await,
    }
}

async fn tags_of(store: &Store, bucket: &Bucket, key: &[u8], stat: &Stat) -> Result<Vec<(String, String)>> {
    match store.attributes(bucket.id, key, stat.which()).await {
        Ok((_, attributes)) => Ok(tags::of_object(&attributes)),
        // Gone meanwhile.
        Err(error) if error.kind() == Kind::Missing => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Ends a version as was decided, unless another one is its key's newest by now: what was noncurrent may be what its
/// clients see.
async fn end(store: &Store, bucket: &Bucket, key: &[u8], stat: &Stat, newest: &Stat, decided: Fate) -> Result<()> {
    let mut batch = Batch::new();
    let condition = if newest.marker { Condition::Absent } else { Condition::Revision(newest.revision) };
    batch.require(bucket.id, key, condition);
    let versioning = bucket.versioning_now().await;
    if decided == Fate::Expire {
        delete(&mut batch, bucket.id, *versioning, key, Which::Latest);
    } else {
        batch.remove(bucket.id, key, stat.which());
    }
    match store.commit(batch).await {
        Err(error) if !matches!(error.kind(), Kind::Missing | Kind::Exists) => Err(error),
        _ => Ok(()),
    }
}
