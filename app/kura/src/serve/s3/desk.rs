//! The object store as the REST door has it: the door's words turned into the S3 room's, and back.

use super::Objects as OwnObjects;
use async_trait::async_trait;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use kura_admin as rest;
use kura_admin::{BatchStep, Content, NewBucket, ObjectBatch, ObjectHead, ObjectPage, ObjectQuery, Objects, Timestamp};
use kura_block::{Error, Progress, Result};
use kura_object::Durability;
use kura_s3::{Asked, Bucket, Desk, DeskBatch, Entry, Grant, Head, Key, NewKey, Require, Versioning};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The desk behind the REST door.
pub struct RestDesk {
    own: Arc<OwnObjects>,
    desk: Desk,
}

impl RestDesk {
    pub fn new(own: Arc<OwnObjects>) -> Self {
        Self { desk: Desk::new(Arc::clone(&own.directory)), own }
    }
}

#[async_trait]
impl Objects for RestDesk {
    fn acknowledge(&self) -> rest::Acknowledge {
        match self.own.options.durability {
            Durability::Durable => rest::Acknowledge::Durable,
            Durability::Memory => rest::Acknowledge::Memory,
        }
    }

    async fn close_snapshot(&self, snapshot: &str) -> Result<()> {
        self.own.close_snapshot(snapshot).await
    }

    async fn roll_back(&self, snapshot: &str) -> Result<()> {
        self.own.roll_back(snapshot).await
    }

    async fn check(&self, scrub: Option<&Progress>) -> Vec<String> {
        self.desk.check(scrub).await
    }

    fn failure(&self) -> Option<String> {
        self.own.failure().clone()
    }

    fn buckets(&self) -> Vec<rest::Bucket> {
        self.own.directory.buckets().iter().map(|known| bucket(known)).collect()
    }

    async fn create_bucket(&self, new: NewBucket) -> Result<rest::Bucket> {
        Ok(bucket(&*self.own.directory.create_bucket(&new.name).await?))
    }

    async fn delete_bucket(&self, name: &str) -> Result<()> {
        self.own.directory.delete_bucket(name).await
    }

    async fn check_delete_bucket(&self, name: &str) -> Result<()> {
        self.desk.check_delete_bucket(name).await
    }

    fn keys(&self) -> Vec<rest::AccessKey> {
        self.own.directory.keys().iter().map(|known| key(known)).collect()
    }

    async fn create_key(&self, new: rest::NewKey) -> Result<rest::AccessKey> {
        let buckets = new.buckets.into_iter().map(|(bucket, grant)| (bucket, of_grant(grant))).collect();
        let made = self.own.directory.create_key(NewKey { name: new.name, buckets }).await?;
        Ok(rest::AccessKey { secret: Some(made.secret.clone()), ..key(&made) })
    }

    async fn revoke_key(&self, id: &str) -> Result<()> {
        self.own.directory.revoke_key(id).await
    }

    fn check_revoke_key(&self, id: &str) -> Result<()> {
        self.own.directory.check_revoke_key(id)
    }

    async fn list(&self, bucket: &str, query: ObjectQuery) -> Result<ObjectPage> {
        let ObjectQuery { prefix, delimiter, after, limit, versions } = query;
        let listed = self.desk.list(bucket, Asked { prefix, delimiter, after, limit, versions }).await?;
        let objects = listed.entries.into_iter().map(|entry| object(bucket, entry)).collect();
        Ok(ObjectPage { objects, prefixes: listed.prefixes, next: listed.next })
    }

    async fn stat(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<rest::Object> {
        let (entry, attributes) = self.desk.stat(bucket, key, version).await?;
        Ok(rest::Object { attributes, ..object(bucket, entry) })
    }

    async fn read(
        &self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<(rest::Object, Content)> {
        let (entry, bytes) = self.desk.read(bucket, key, version, range).await?;
        let bytes = bytes.map_err(|error| Error::device(error.to_string()));
        Ok((object(bucket, entry), bytes.boxed()))
    }

    async fn write(
        &self,
        bucket: &str,
        key: &str,
        head: ObjectHead,
        size_bytes: Option<u64>,
        content: Content,
    ) -> Result<rest::Object> {
        Ok(object(bucket, self.desk.write(bucket, key, of_head(head), size_bytes, content).await?))
    }

    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        self.desk.delete(bucket, key, version).await
    }

    async fn check_delete(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()> {
        self.desk.check_delete(bucket, key, version).await
    }

    fn batch(&self) -> Box<dyn ObjectBatch> {
        Box::new(RestBatch(self.desk.batch()))
    }
}

/// A batch that came through the REST door.
struct RestBatch(DeskBatch);

#[async_trait]
impl ObjectBatch for RestBatch {
    async fn step(&mut self, step: BatchStep) -> Result<()> {
        match step {
            BatchStep::Put { bucket, key, size_bytes, head } => {
                self.0.put(&bucket, &key, of_head(head), size_bytes).await
            }
            BatchStep::Delete { bucket, key } => self.0.delete(&bucket, &key).await,
            BatchStep::Require { bucket, key, is } => {
                let require = match is {
                    rest::Condition::Absent => Require::Absent,
                    rest::Condition::Present => Require::Present,
                    rest::Condition::Etag(etag) => Require::Tag(etag),
                };
                self.0.require(&bucket, &key, require).await
            }
            BatchStep::Commit => Ok(()),
        }
    }

    async fn content(&mut self, bytes: Bytes) -> Result<()> {
        self.0.content(bytes).await
    }

    async fn commit(self: Box<Self>) -> Result<()> {
        self.0.commit().await
    }
}

fn at(ms: u64) -> Timestamp {
    Timestamp(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

fn bucket(known: &Bucket) -> rest::Bucket {
    let versioning = match known.versioning {
        Versioning::Never => rest::Versioning::Never,
        Versioning::Enabled => rest::Versioning::Enabled,
        Versioning::Suspended => rest::Versioning::Suspended,
    };
    rest::Bucket { name: known.name.clone(), created_at: at(known.created_ms), versioning }
}

fn key(known: &Key) -> rest::AccessKey {
    let grant = |grant: &Grant| match grant {
        Grant::Read => rest::Grant::Read,
        Grant::Write => rest::Grant::Write,
        Grant::ReadWrite => rest::Grant::ReadWrite,
    };
    rest::AccessKey {
        id: known.id.clone(),
        name: known.name.clone(),
        buckets: known.buckets.iter().map(|(bucket, known)| (bucket.clone(), grant(known))).collect(),
        created_at: at(known.created_ms),
        secret: None,
    }
}

fn of_grant(grant: rest::Grant) -> Grant {
    match grant {
        rest::Grant::Read => Grant::Read,
        rest::Grant::Write => Grant::Write,
        rest::Grant::ReadWrite => Grant::ReadWrite,
    }
}

fn of_head(head: ObjectHead) -> Head {
    let ObjectHead { content_type, metadata, new } = head;
    Head { content_type, metadata, new }
}

fn object(bucket: &str, entry: Entry) -> rest::Object {
    rest::Object {
        bucket: bucket.to_owned(),
        key: entry.key,
        version: entry.version,
        revision: entry.revision,
        size_bytes: entry.size_bytes,
        etag: entry.etag,
        modified_at: at(entry.modified_ms),
        latest: entry.latest,
        delete_marker: entry.marker,
        attributes: std::collections::BTreeMap::new(),
    }
}
