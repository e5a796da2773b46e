//! The desk: buckets, keys and objects for whoever runs the node, without signatures. What is stored here is what S3's
//! clients see, and the other way round.

mod batch;

pub use batch::{DeskBatch, Require};

use crate::body::digest::{Digest, Said};
use crate::body::take_in::{Incoming, take_in};
use crate::bucket::Bucket;
use crate::delete::delete;
use crate::directory::{Directory, no_such_bucket, not_empty};
use crate::get::{Opened, open};
use crate::list::{of_token, token};
use crate::meta::{etag, keep, version_id, which};
use crate::multipart::OF_UPLOAD;
use crate::past::split;
use crate::problem::from_s3;
use crate::put::{Guard, Target, commit};
use bytes::Bytes;
use futures::Stream;
use hyper::header::{HeaderName, HeaderValue};
use kura_block::{Error, Kind, Progress, Result};
use kura_object::{Attributes, Batch, Changed, Item, Query, Stat, Store, Which};
use s3s::dto::{ETagCondition, Metadata, StreamingBlob};
use std::collections::BTreeMap;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Bytes that one step of a check reads.
const SCRUB_BYTES: u64 = 8 << 20;
/// How often one that the device refuses for now is tried again, and after how long.
const SCRUB_TRIES: u32 = 10;
const SCRUB_AGAIN: Duration = Duration::from_secs(1);

/// What is known of a version of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Its version, as S3's clients name it: `null` for one that was put without versioning.
    pub version: String,
    /// Another one after every change of its content, its headers or its tags.
    pub revision: u64,
    /// Bytes of content.
    pub size_bytes: u64,
    /// What its content hashes to.
    pub etag: String,
    /// When it was put: milliseconds since 1970.
    pub modified_ms: u64,
    /// True for a delete marker.
    pub marker: bool,
    /// True when the key has no later version.
    pub latest: bool,
}

/// What an object is to have besides its content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its `Content-Type`.
    pub content_type: Option<String>,
    /// The user's own words on it.
    pub metadata: BTreeMap<String, String>,
    /// It is stored only where there is none.
    pub new: bool,
}

/// What to list of a bucket.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys that have this behind the prefix give one line, up to and with it.
    pub delimiter: Option<String>,
    /// Where the page before ended: its [`Listed::next`].
    pub after: Option<String>,
    /// Items of the page at most.
    pub limit: Option<usize>,
    /// All versions and delete markers of each key, the newest first, in place of the newest versions alone.
    pub versions: bool,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// In key order.
    pub entries: Vec<Entry>,
    /// What the delimiter rolled up, in order.
    pub prefixes: Vec<String>,
    /// Where the next page begins; `None` when this is the last one.
    pub next: Option<String>,
}

/// What is done at the desk. Clones are the same desk.
#[derive(Clone)]
pub struct Desk {
    pub(crate) directory: Arc<Directory>,
}

impl Desk {
    /// The desk of what `directory` knows.
    pub fn new(directory: Arc<Directory>) -> Self {
        Self { directory }
    }

    /// The bucket of this name, as it is today or, as `BUCKET@SNAPSHOT`, as a snapshot has it; or `Missing`.
    pub async fn bucket(&self, name: &str) -> Result<Arc<Bucket>> {
        self.directory.bucket_or_missing(name).await.map_err(|error| match (error.kind(), split(name)) {
            (Kind::Missing, None) => no_such_bucket(name),
            (Kind::Missing, Some(_)) => error.at(format_args!("bucket {name}")),
            _ => error,
        })
    }

    /// What is known of an object, and the attributes that it was given: S3's headers, by their names in lower case.
    pub async fn stat(
        &self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
    ) -> Result<(Entry, BTreeMap<String, String>)> {
        let (known, which) = (self.bucket(bucket).await?, which(version).map_err(from_s3)?);
        let (id, name) = (known.id, key.as_bytes().to_vec());
        let look = async move |store: Store| store.attributes(id, &name, which).await;
        let found = known.way().ask(look).await;
        let (stat, attributes) = found.map_err(|error: Error| of_object(error, bucket, key, version))?;
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        let shown = attributes.into_iter().filter(|(name, _)| !name.starts_with(OF_UPLOAD));
        Ok((entry(key, &stat), shown.map(|(name, value)| (name, text(value))).collect()))
    }

    /// A page of a bucket's keys, in byte order.
    pub async fn list(&self, bucket: &str, asked: Asked) -> Result<Listed> {
        let known = self.bucket(bucket).await?;
        let id = known.id;
        let query = Query {
            prefix: asked.prefix.into_bytes(),
            delimiter: asked.delimiter.map(String::into_bytes),
            after: asked.after.as_deref().map(of_token).transpose().map_err(from_s3)?.unwrap_or_default(),
            limit: asked.limit,
            versions: asked.versions,
        };
        let page = known.way().ask(async move |store: Store| store.list(id, &query).await).await?;
        let mut listed = Listed { entries: Vec::new(), prefixes: Vec::new(), next: page.next.as_ref().map(token) };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        for item in &page.items {
            match item {
                Item::Prefix(prefix) => listed.prefixes.push(text(prefix)),
                Item::Object { key, stat } => listed.entries.push(entry(&text(key), stat)),
            }
        }
        Ok(listed)
    }

    /// Opens a version: what is known of it, and its bytes, or a range of them, as they are read.
    pub async fn read(
        &self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<(Entry, impl Stream<Item = std::result::Result<Bytes, s3s::StdError>> + Send + 'static)> {
        let (known, which) = (self.bucket(bucket).await?, which(version).map_err(from_s3)?);
        let choose = move |stat: &Stat, _: Option<&Attributes>| Ok(range.clone().unwrap_or(0..stat.size_bytes));
        let opened = open(&known, key.as_bytes().to_vec(), which, choose).await.map_err(from_s3);
        let opened: Opened = opened.map_err(|error| of_object(error, bucket, key, version))?;
        Ok((entry(key, &opened.stat), opened.into_body()))
    }

    /// Stores an object of `size_bytes`, where that is known, as `content` comes: whole, or nothing of it. `Exists`
    /// when it is to be new and is there.
    pub async fn write<E>(
        &self,
        bucket: &str,
        key: &str,
        head: Head,
        size_bytes: Option<u64>,
        content: impl Stream<Item = std::result::Result<Bytes, E>> + Send + Unpin + 'static,
    ) -> Result<Entry>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        let known = self.bucket(bucket).await?;
        let if_none_match = head.new.then_some(ETagCondition::Any);
        let attributes = head.attributes()?;
        let guard = Guard { if_none_match, ..Guard::default() };
        let way = known.way().clone();
        let target = Target { bucket: known, key: key.as_bytes().to_vec(), guard };
        let body = incoming(content, size_bytes)?;
        let store_it = move |store, content, digested| commit(store, target, content, digested, attributes);
        let stored = take_in(&way, body, false, store_it).await;
        let (stored, _) = stored.map_err(from_s3).map_err(|error| match error.kind() {
            Kind::Exists => Error::exists(format!("{bucket}/{key}: exists already; without --new it is replaced")),
            _ => error.at(format_args!("{bucket}/{key}")),
        })?;
        Ok(entry(key, &stored.stat))
    }

    /// Refuses what deleting a bucket refuses: `Missing` when there is none, `Busy` while it holds anything.
    pub async fn check_delete_bucket(&self, name: &str) -> Result<()> {
        let known = self.directory.find(name).ok_or_else(|| no_such_bucket(name))?;
        let id = known.id;
        let look = async move |store: Store| {
            store.list(id, &Query { limit: Some(1), versions: true, ..Query::default() }).await
        };
        if known.way().ask(look).await?.items.is_empty() {
            return Ok(());
        }
        Err(not_empty(name))
    }

    /// Refuses what [`Desk::delete`] refuses.
    pub async fn check_delete(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        if split(bucket).is_some() {
            return Err(Error::read_only(format!(
                "bucket {bucket}: a snapshot's buckets can be read and nothing else"
            )));
        }
        self.stat(bucket, key, version).await.map(drop)
    }

    /// Deletes an object as the bucket's versioning says, or this version for good. `Missing` when there is none.
    pub async fn delete(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        let (known, wanted) = (self.bucket(bucket).await?, which(version).map_err(from_s3)?);
        let (name, way) = (key.as_bytes().to_vec(), known.way().clone());
        let remove = async move |store: Store| {
            let mut batch = Batch::new();
            if wanted == Which::Latest {
                // So that a slip of the pen is told.
                store.stat(known.id, &name, wanted).await?;
            }
            let versioning = known.versioning_now().await;
            delete(&mut batch, known.id, *versioning, &name, wanted);
            store.commit(batch).await
        };
        let done = way.ask(remove).await;
        let done = done.map_err(|error: Error| of_object(error, bucket, key, version))?;
        let is_done = |changed: &Changed| changed.now.is_some() || changed.before.is_some();
        if done.iter().any(is_done) { Ok(()) } else { Err(of_object(Error::missing(""), bucket, key, version)) }
    }

    /// What does not hold of the store's tables and, where there is a progress to tell of it, of what it stored: one line each,
    /// none when all is well. It is told of bytes, and may cancel it. A store that is closed is one such line.
    pub async fn check(&self, scrub: Option<&Progress>) -> Vec<String> {
        let tables = async |store: Store| Ok::<_, Error>(store.check().await);
        let found = match self.directory.way().ask(tables).await {
            Ok(found) => found,
            Err(error) => return vec![format!("object store: {error}: it was not looked at")],
        };
        let mut lines: Vec<String> = found.iter().map(|violation| format!("object store: {violation}")).collect();
        let unreadable = self.directory.buckets().into_iter().filter_map(|bucket| bucket.unreadable.clone());
        lines.extend(unreadable.chain(self.directory.closed_keys()).map(|error| format!("object store: {error}")));
        if let Some(progress) = scrub {
            self.scrub(&mut lines, progress).await;
        }
        lines
    }

    async fn scrub(&self, lines: &mut Vec<String>, progress: &Progress) {
        let (mut place, mut refusals) = (None, 0);
        while !progress.is_cancelled() {
            let from = place.clone();
            let step = async move |store: Store| store.scrub(from, SCRUB_BYTES).await;
            let done = match self.directory.way().ask(step).await {
                Ok(done) => done,
                Err(error) if error.kind() == Kind::Retry && refusals < SCRUB_TRIES => {
                    refusals += 1;
                    tokio::time::sleep(SCRUB_AGAIN).await;
                    continue;
                }
                // What was found before is told all the same.
                Err(error) => {
                    lines.push(format!("object store: {error}: what comes behind was not looked at"));
                    break;
                }
            };
            refusals = 0;
            progress.advance(done.bytes);
            for damage in done.damaged {
                let key = String::from_utf8_lossy(&damage.key).into_owned();
                let bucket = self.directory.buckets().into_iter().find(|bucket| bucket.id == damage.partition);
                let at = bucket.map_or_else(|| damage.partition.to_string(), |bucket| bucket.name.clone());
                lines.push(format!("object store: {at}/{key}: {}", damage.error));
            }
            lines.extend(done.restart.map(|error| format!("object store: {error}")));
            match done.next {
                Some(next) => place = Some(next),
                None => break,
            }
        }
    }
}

impl Head {
    /// What is stored of it; `Invalid` when it is too much, or when S3 cannot send it: it goes out in headers.
    pub(crate) fn attributes(self) -> Result<Attributes> {
        let is_value = |text: &str| HeaderValue::from_str(text).is_ok();
        if let Some(kind) = self.content_type.as_ref().filter(|kind| !is_value(kind)) {
            return Err(Error::invalid(format!("content type {kind:?}: cannot be sent in a header")));
        }
        for (name, value) in &self.metadata {
            let is_name = !name.is_empty() && name.parse::<HeaderName>().is_ok();
            if !is_name || !is_value(value) {
                return Err(Error::invalid(format!(
                    "metadata {name:?}: {value:?}: S3 sends it as a header: letters, digits and hyphens, and a value of one line"
                )));
            }
        }
        let metadata: Metadata = self.metadata.into_iter().map(|(name, value)| (name.to_lowercase(), value)).collect();
        keep(&[("content-type", &self.content_type)], None, Some(&metadata)).map_err(from_s3)
    }
}

/// A stream that one thread has at a time: s3s asks more of a body than comes from a socket.
struct Alone<S>(Mutex<S>);

impl<S: Stream + Unpin> Stream for Alone<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let stream = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        Pin::new(stream).poll_next(context)
    }
}

/// A body that is neither signed nor said to be anything.
fn incoming<E>(
    content: impl Stream<Item = std::result::Result<Bytes, E>> + Send + Unpin + 'static,
    size_bytes: Option<u64>,
) -> Result<Incoming>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let digest = Digest::new(Said::default()).map_err(from_s3)?;
    let length = size_bytes.map(u64::cast_signed);
    Incoming::new(Some(StreamingBlob::wrap(Alone(Mutex::new(content)))), length, digest).map_err(from_s3)
}

fn entry(key: &str, stat: &Stat) -> Entry {
    Entry {
        key: key.to_owned(),
        version: version_id(stat),
        revision: stat.revision,
        size_bytes: stat.size_bytes,
        etag: if stat.marker { String::new() } else { etag(&stat.tag).value().to_owned() },
        modified_ms: stat.modified_ms,
        marker: stat.marker,
        latest: stat.latest,
    }
}

/// An error in the words of whoever named the object.
fn of_object(error: Error, bucket: &str, key: &str, version: Option<&str>) -> Error {
    let at = version.map_or_else(String::new, |version| format!(", version {version}"));
    match error.kind() {
        Kind::Missing => {
            Error::missing(format!("{bucket}/{key}{at}: no such object; `kura object list {bucket}` lists them"))
        }
        _ => error.at(format_args!("{bucket}/{key}{at}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_header_can_have_is_not_stored() {
        let head = |name: &str, value: &str| Head {
            metadata: [(name.to_owned(), value.to_owned())].into(),
            ..Head::default()
        };
        for (name, value) in [("Of", "a cat"), ("a_b-c", "Müller"), ("a", "")] {
            assert!(head(name, value).attributes().is_ok(), "{name}: {value}");
        }
        for (name, value) in [("a b", "c"), ("", "c"), ("ü", "c"), ("a:b", "c"), ("a", "one\ntwo"), ("a", "b\0")] {
            let refused = head(name, value).attributes().unwrap_err().to_string();
            assert!(refused.contains(&format!("metadata {name:?}")) && refused.lines().count() == 1, "{refused}");
        }
        let kind = Head { content_type: Some("text/plain\r\nx: y".to_owned()), ..Head::default() };
        assert!(kind.attributes().is_err());
    }
}
