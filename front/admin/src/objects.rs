//! Buckets, access keys and objects as they travel, and who has them.

use crate::resources::Timestamp;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use kura_block::{Progress, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use utoipa::ToSchema;

/// Whether a bucket's keys may have several versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Versioning {
    /// No, and never so far.
    Never,
    /// Every put adds one.
    Enabled,
    /// Those there are stay; a put replaces the version `null`.
    Suspended,
}

/// When what changes objects is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Acknowledge {
    /// When it is on the disks.
    Durable,
    /// When it is in memory: a crash may cost the newest changes.
    Memory,
}

/// A bucket: what S3's clients see under its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Whether its keys may have several versions.
    pub versioning: Versioning,
}

/// A bucket to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewBucket {
    /// Its name: 3 to 63 lower-case letters, digits, dots and hyphens.
    pub name: String,
}

/// What an access key may do in a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Grant {
    /// List it, and read its objects.
    Read,
    /// Store and delete objects.
    Write,
    /// Both.
    ReadWrite,
}

/// An access key of S3's clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessKey {
    /// What a request shows.
    pub id: String,
    /// A name for people.
    pub name: String,
    /// What it may do, by bucket; none stands for everything, in every bucket.
    pub buckets: BTreeMap<String, Grant>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// What it signs with: told when it is made, and never again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// An access key to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewKey {
    /// A name for people.
    #[serde(default)]
    pub name: String,
    /// What it may do, by bucket; none stands for everything, in every bucket.
    #[serde(default)]
    pub buckets: BTreeMap<String, Grant>,
}

/// A version of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Object {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// Its version; `null` for one that was put without versioning.
    pub version: String,
    /// Another one after every change of its content, its headers or its tags.
    #[serde(default)]
    pub revision: u64,
    /// Bytes of content.
    pub size_bytes: u64,
    /// What its content hashes to, as S3 tells it.
    pub etag: String,
    /// When it was put.
    #[schema(value_type = String, format = DateTime)]
    pub modified_at: Timestamp,
    /// True when the key has no later version.
    pub latest: bool,
    /// True for a delete marker: the key counts as absent.
    pub delete_marker: bool,
    /// What it was given: S3's headers, by their names in lower case. Left out of lists.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attributes: BTreeMap<String, String>,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectPage {
    /// Each key's newest version, or all versions of each, in the order of the keys' bytes and from new to old.
    pub objects: Vec<Object>,
    /// What the delimiter rolled up, in order.
    pub prefixes: Vec<String>,
    /// What to give as `after` for the next page; absent when this is the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// What to list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectQuery {
    /// Only keys that begin with this.
    #[serde(default)]
    pub prefix: String,
    /// Keys that have this after the prefix are rolled up to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<String>,
    /// What the previous page gave as `next`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// Items of the page: 1 to 1000, which it is unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// All versions and delete markers, not only each key's newest version.
    #[serde(default)]
    pub versions: bool,
}

/// What an object is to have besides its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectHead {
    /// Its `Content-Type`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The user's own words on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// True stores it only where there is none.
    #[serde(default)]
    pub new: bool,
}

/// What must hold of an object that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// There is none.
    Absent,
    /// There is one.
    Present,
    /// There is one of this `ETag`.
    Etag(String),
}

/// A step of a batch: a JSON object on a line. What a put stores follows its line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BatchStep {
    /// Nothing happens unless this holds of the object as it is before the batch.
    Require {
        /// The object's bucket.
        bucket: String,
        /// The object's key.
        key: String,
        /// What must hold.
        is: Condition,
    },
    /// Stores an object: its content is the next `size_bytes` bytes behind the line's end.
    Put {
        /// The object's bucket.
        bucket: String,
        /// The object's key.
        key: String,
        /// Bytes of content.
        size_bytes: u64,
        /// What it is to have besides.
        #[serde(default)]
        head: ObjectHead,
    },
    /// Deletes an object, as the bucket's versioning says; it is no error if there is none.
    Delete {
        /// The object's bucket.
        bucket: String,
        /// The object's key.
        key: String,
    },
    /// The last line: does all of it. A batch that ends without it does nothing.
    Commit,
}

/// What a batch did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BatchResult {
    /// Objects that were stored.
    pub stored: u64,
    /// Objects that were deleted, or were not there.
    pub deleted: u64,
}

/// An object's bytes as they come. An error ends them.
pub type Content = BoxStream<'static, Result<Bytes>>;

/// An object store: who has buckets, access keys and objects.
#[async_trait]
pub trait Objects: Send + Sync + 'static {
    /// When what changes objects is acknowledged.
    fn acknowledge(&self) -> Acknowledge;

    /// Closes the store as a snapshot of that volume has it, as soon as those have done who read it.
    async fn close_snapshot(&self, snapshot: &str) -> Result<()>;

    /// Makes the store what a snapshot of that volume is, and goes on with that.
    async fn roll_back(&self, snapshot: &str) -> Result<()>;

    /// What does not hold of its tables and, where there is a progress to tell of it, of what it stored: one line each. It is
    /// told of bytes, and may cancel it.
    async fn check(&self, scrub: Option<&Progress>) -> Vec<String>;

    /// Why nothing of it is served, where that is so: one line.
    fn failure(&self) -> Option<String>;

    /// All buckets, by name.
    fn buckets(&self) -> Vec<Bucket>;

    /// Makes a bucket.
    async fn create_bucket(&self, new: NewBucket) -> Result<Bucket>;

    /// Deletes a bucket; `Busy` while it holds anything.
    async fn delete_bucket(&self, name: &str) -> Result<()>;

    /// Refuses what [`Objects::delete_bucket`] refuses.
    async fn check_delete_bucket(&self, name: &str) -> Result<()>;

    /// All access keys, without their secrets.
    fn keys(&self) -> Vec<AccessKey>;

    /// Makes an access key, and tells its secret.
    async fn create_key(&self, new: NewKey) -> Result<AccessKey>;

    /// Revokes an access key.
    async fn revoke_key(&self, id: &str) -> Result<()>;

    /// Refuses what [`Objects::revoke_key`] refuses.
    fn check_revoke_key(&self, id: &str) -> Result<()>;

    /// A page of a bucket's keys.
    async fn list(&self, bucket: &str, query: ObjectQuery) -> Result<ObjectPage>;

    /// What is known of an object.
    async fn stat(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Object>;

    /// Opens an object, or a range of its bytes, to be read.
    async fn read(
        &self,
        bucket: &str,
        key: &str,
        version: Option<&str>,
        range: Option<Range<u64>>,
    ) -> Result<(Object, Content)>;

    /// Stores an object of `size_bytes`, where that is known: whole, or nothing of it.
    async fn write(
        &self,
        bucket: &str,
        key: &str,
        head: ObjectHead,
        size_bytes: Option<u64>,
        content: Content,
    ) -> Result<Object>;

    /// Deletes an object as the bucket's versioning says, or a version for good.
    async fn delete(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()>;

    /// Refuses what [`Objects::delete`] refuses.
    async fn check_delete(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<()>;

    /// Begins a batch.
    fn batch(&self) -> Box<dyn ObjectBatch>;
}

/// A batch under way: what is done together or not at all. Dropped, it leaves nothing behind.
#[async_trait]
pub trait ObjectBatch: Send {
    /// The next step but the last one; what a put stores comes by [`ObjectBatch::content`].
    async fn step(&mut self, step: BatchStep) -> Result<()>;

    /// The next bytes of the put that came last.
    async fn content(&mut self, bytes: Bytes) -> Result<()>;

    /// The last step: does all of it.
    async fn commit(self: Box<Self>) -> Result<()>;
}
