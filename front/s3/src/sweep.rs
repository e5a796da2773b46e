//! The task that does what lifecycle rules say: at most an hour late, and soon after rules were set.

use crate::bucket::Bucket;
use crate::delete::delete;
use crate::directory::{Directory, now_ms};
use crate::lifecycle::{Facts, Fate, aborts, asks_for_tags, fate};
use crate::multipart::{abort_upload, uploads_under_way};
use crate::tags;
use kura_block::{Kind, Result};
use kura_object::{After, Batch, Condition, Item, Page, Query, Stat, Store, Which};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Rules are looked at this often.
const EVERY: Duration = Duration::from_hours(1);
/// Versions that one step looks at before it lets others go on.
const PAGE: usize = 500;

/// Does what the buckets' rules say until `stop` says true.
pub async fn sweep(directory: Arc<Directory>, mut stop: watch::Receiver<bool>) {
    loop {
        for bucket in directory.buckets() {
            if bucket.lifecycle.is_none() {
                continue;
            }
            let name = bucket.name.clone();
            if let Err(error) = sweep_bucket(bucket).await {
                tracing::warn!(bucket = name, %error, "lifecycle rules could not be followed; trying again later");
            }
        }
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = directory.sweep_is_wanted() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
    }
}

async fn sweep_bucket(bucket: Arc<Bucket>) -> Result<()> {
    let parts = bucket.home.parts;
    let uploads = Arc::clone(&bucket);
    bucket.way().ask(async move |store: Store| sweep_uploads(&store, &uploads, parts).await).await?;
    let mut place = Place::default();
    while !place.over {
        let (bucket, way) = (Arc::clone(&bucket), bucket.way().clone());
        let sweep = async move |store: Store| sweep_page(&store, &bucket, place).await;
        place = way.ask(sweep).await?;
    }
    Ok(())
}

async fn sweep_uploads(store: &Store, bucket: &Bucket, parts: kura_object::PartitionId) -> Result<()> {
    let Some(rules) = &bucket.lifecycle else { return Ok(()) };
    for upload in uploads_under_way(store, &bucket.name).await? {
        if aborts(rules, &String::from_utf8_lossy(&upload.key), upload.begun_ms, now_ms()) {
            abort_upload(store, parts, &upload).await?;
        }
    }
    Ok(())
}

/// How far a sweep is, and what it carries from page to page.
#[derive(Default)]
struct Place {
    after: After,
    /// The key met last, when its version met last came, and how many of its noncurrent ones were met.
    last: Option<(Vec<u8>, u64, u32)>,
    over: bool,
}

async fn sweep_page(store: &Store, bucket: &Bucket, mut place: Place) -> Result<Place> {
    let Some(rules) = &bucket.lifecycle else { return Ok(Place { over: true, ..place }) };
    let query = Query { after: place.after.clone(), limit: Some(PAGE), versions: true, ..Query::default() };
    let Page { items, next } = store.list(bucket.id, &query).await?;
    for at in 0..items.len() {
        let Item::Object { key, stat } = &items[at] else { continue };
        let before = place.last.take().filter(|(last, ..)| last == key);
        let noncurrent = before.as_ref().map(|(_, since_ms, newer)| (*since_ms, *newer));
        let has_older = match items.get(at + 1) {
            Some(Item::Object { key: next, .. }) => next == key,
            _ => next.is_some(),
        };
        let text = String::from_utf8_lossy(key);
        let facts = Facts {
            key: &text,
            size_bytes: stat.size_bytes,
            modified_ms: stat.modified_ms,
            marker: stat.marker,
            noncurrent,
            only: noncurrent.is_none() && !has_older,
        };
        let tags =
            if asks_for_tags(rules) && !stat.marker { tags_of(store, bucket, key, stat).await? } else { Vec::new() };
        match fate(rules, &facts, &tags, now_ms()) {
            Fate::Stay => {}
            decided => end(store, bucket, key, stat, decided).await?,
        }
        let newer = noncurrent.map_or(0, |(_, newer)| newer + 1);
        place.last = Some((key.clone(), stat.modified_ms, newer));
    }
    place.over = next.is_none();
    place.after = next.unwrap_or_default();
    Ok(place)
}

async fn tags_of(store: &Store, bucket: &Bucket, key: &[u8], stat: &Stat) -> Result<Vec<(String, String)>> {
    match store.attributes(bucket.id, key, Which::Version(stat.version)).await {
        Ok((_, attributes)) => Ok(tags::of_object(&attributes)),
        // Gone meanwhile.
        Err(error) if error.kind() == Kind::Missing => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Ends a version as was decided, unless it changed meanwhile.
async fn end(store: &Store, bucket: &Bucket, key: &[u8], stat: &Stat, decided: Fate) -> Result<()> {
    let mut batch = Batch::new();
    if decided == Fate::Expire {
        batch.require(bucket.id, key, Condition::Revision(stat.revision));
        delete(&mut batch, bucket, key, Which::Latest);
    } else {
        batch.remove(bucket.id, key, Which::Version(stat.version));
    }
    match store.commit(batch).await {
        Err(error) if !matches!(error.kind(), Kind::Retry | Kind::Missing) => Err(error),
        _ => Ok(()),
    }
}
