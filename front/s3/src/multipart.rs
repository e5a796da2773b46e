//! Uploads in parts: begun, gathered, completed or aborted.
//!
//! ```text
//!   .parts             ID            the upload: bucket, key, headers; while it is there, parts are taken
//!                      ID/00001      a part: content, and its MD5 as the tag
//!   .uploads/BUCKET    KEY           a version an upload, whose tag is its ID: what lists show
//! ```
//! Completing is one batch: the object, made of the parts' content without a copy, comes, and all of the above goes.

pub(crate) mod parts;
pub(crate) mod sizes;
pub(crate) mod turns;

use crate::body::digest::{Digest, Said};
use crate::body::take_in::{Incoming, length_of, refuse_framed, take_in};
use crate::bucket::sweep::{PARTS, remove_lost};
use crate::bucket::{Bucket, Home};
use crate::checksums::{said_checksums, show_checksums};
use crate::directory::{Directory, now_ms};
use crate::meta::{self, etag, kept_headers};
use crate::problem::{problem, refusal};
use crate::put::{Guard, Stored, Target, committed, of_commit};
use crate::service::Service;
use crate::tags;
use futures::{StreamExt, stream};
use kura_block::{Kind, Result};
use kura_object::{
    ATTRIBUTES_LIMIT_BYTES, After, Attributes, Batch, Condition, Content, Item, PartitionId, Put, Query, Stat, Store,
    Version, Which,
};
use parts::{Part, Stated, Sums, assemble, part_key, parts_of, tag_of_named};
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};
use std::collections::BTreeSet;
use std::sync::Arc;
use uuid::Uuid;

type Answer<T> = S3Result<S3Response<T>>;

/// Parts have numbers from 1 to this.
const PARTS_LIMIT: i32 = 10_000;
/// Of what is done with many, so much at once.
pub(crate) const AT_ONCE: usize = 64;
/// Attributes of an upload that are not its object's.
const BUCKET: &str = "upload-bucket";
const KEY: &str = "upload-key";
const ALGORITHM: &str = "upload-algorithm";
const TYPE: &str = "upload-checksum-type";

/// How the names of attributes begin that uploads leave with their objects and nobody is shown.
pub(crate) const OF_UPLOAD: &str = "upload-";
/// Of an object, the upload that it was made by.
const UPLOAD: &str = "upload-id";

/// An upload under way, as lists show it.
pub(crate) struct UploadEntry {
    pub id: Vec<u8>,
    pub key: Vec<u8>,
    pub begun_ms: u64,
    stat: Stat,
    partition: PartitionId,
}

/// The partition of a bucket's uploads.
fn partition_name(bucket: &str) -> Vec<u8> {
    [b".uploads/", bucket.as_bytes()].concat()
}

async fn partition(store: &Store, bucket: &str) -> Result<Option<PartitionId>> {
    match store.partition(&partition_name(bucket)).await {
        Ok(partition) => Ok(Some(partition.id)),
        Err(error) if error.kind() == Kind::Missing => Ok(None),
        Err(error) => Err(error),
    }
}

async fn partition_made(store: &Store, bucket: &str) -> Result<PartitionId> {
    if let Some(partition) = partition(store, bucket).await? {
        return Ok(partition);
    }
    match store.create_partition(&partition_name(bucket), Attributes::new(), now_ms()).await {
        Ok(partition) => Ok(partition.id),
        // Another upload was quicker.
        Err(error) if error.kind() == Kind::Exists => Ok(store.partition(&partition_name(bucket)).await?.id),
        Err(error) => Err(error),
    }
}

/// Between the pages of a walk over many: each is in memory already, and waits for nothing by itself.
async fn others_go_on() {
    tokio::task::yield_now().await;
}

/// Goes through a bucket's uploads under way, a page at a time.
pub(crate) async fn each_page(
    store: &Store,
    bucket: &str,
    mut see: impl AsyncFnMut(Vec<UploadEntry>) -> Result<()>,
) -> Result<()> {
    let Some(partition) = partition(store, bucket).await? else { return Ok(()) };
    let mut query = Query { versions: true, ..Query::default() };
    loop {
        let page = store.list(partition, &query).await?;
        let uploads = page.items.into_iter().filter_map(|item| match item {
            Item::Object { key, stat } => {
                Some(UploadEntry { id: stat.tag.clone(), key, begun_ms: stat.modified_ms, stat, partition })
            }
            Item::Prefix(_) => None,
        });
        see(uploads.collect()).await?;
        match page.next {
            Some(after) => query.after = after,
            None => return Ok(()),
        }
        others_go_on().await;
    }
}

/// Removes what is left of a bucket's uploads, when the bucket is gone or new.
pub(crate) async fn forget_uploads(store: &Store, bucket: &str, home: &Home) -> Result<()> {
    if partition(store, bucket).await?.is_none() {
        return Ok(());
    }
    let forget = async |uploads: Vec<UploadEntry>| {
        // They go into the log together.
        let aborts = stream::iter(&uploads).map(|upload| abort_upload(store, home, upload));
        let done: Vec<Result<()>> = aborts.buffer_unordered(AT_ONCE).collect().await;
        done.into_iter().collect()
    };
    each_page(store, bucket, forget).await?;
    store.remove_partition(&partition_name(bucket)).await
}

/// Removes an upload and its parts: where these are many, some of them later than the upload.
pub(crate) async fn abort_upload(store: &Store, home: &Home, upload: &UploadEntry) -> Result<()> {
    let _turn = home.turns.alone(&upload.id).await;
    let parts = home.parts;
    let mut batch = Batch::new();
    batch.remove(parts, &upload.id, Which::Latest);
    batch.remove(upload.partition, &upload.key, upload.stat.which());
    let stored = parts_of(store, parts, &upload.id).await?;
    for part in stored.iter().take(PARTS) {
        batch.remove(parts, &part.key, Which::Latest);
    }
    store.commit(batch).await?;
    if stored.len() > PARTS {
        remove_lost(store, parts, &upload.id).await?;
    }
    Ok(())
}

/// An upload that a client names, with its attributes.
pub(crate) struct Found {
    pub entry: UploadEntry,
    pub attributes: Attributes,
}

/// The upload of this identifier, if it is one of this bucket and key.
pub(crate) async fn find(store: &Store, parts: PartitionId, bucket: &Bucket, key: &[u8], id: &str) -> S3Result<Found> {
    let gone = || problem(S3ErrorCode::NoSuchUpload, "there is no such upload: it was completed or aborted");
    let is_id = id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let known = if is_id { store.attributes(parts, id.as_bytes(), Which::Latest).await } else { return Err(gone()) };
    let (stat, attributes) = match known {
        Ok(known) => known,
        Err(error) if error.kind() == Kind::Missing => return Err(gone()),
        Err(error) => return Err(refusal(error)),
    };
    let is_meant = attributes.get(BUCKET).is_some_and(|name| name == bucket.name.as_bytes())
        && attributes.get(KEY).is_some_and(|name| name == key);
    let partition = partition(store, &bucket.name).await.map_err(refusal)?.filter(|_| is_meant).ok_or_else(gone)?;
    let entry = entry_of(store, partition, key, id.as_bytes(), &stat).await?.ok_or_else(gone)?;
    Ok(Found { entry, attributes })
}

/// The entry of an upload of this key, if it is there: put right behind the upload, in one batch, it has the number behind its.
async fn entry_of(
    store: &Store,
    partition: PartitionId,
    key: &[u8],
    id: &[u8],
    upload: &Stat,
) -> S3Result<Option<UploadEntry>> {
    let which = Which::Version { number: Version(upload.version.0 + 1), modified_ms: upload.modified_ms };
    match store.stat(partition, key, which).await {
        Ok(stat) => Ok((stat.tag == id).then(|| UploadEntry {
            id: id.to_vec(),
            key: key.to_vec(),
            begun_ms: stat.modified_ms,
            stat,
            partition,
        })),
        Err(error) if error.kind() == Kind::Missing => Ok(None),
        Err(error) => Err(refusal(error)),
    }
}

impl Found {
    pub(crate) fn sums(&self) -> Option<Sums> {
        let whole = meta::text(&self.attributes, TYPE).as_deref() == Some(ChecksumType::FULL_OBJECT);
        Some(Sums { algorithm: meta::text(&self.attributes, ALGORITHM)?, whole })
    }

    /// The attributes of the object that is to be.
    fn of_object(&self) -> Attributes {
        let own = |name: &&String| ![BUCKET, KEY, ALGORITHM, TYPE].contains(&name.as_str());
        let kept = self.attributes.iter().filter(|(name, _)| own(name));
        kept.map(|(name, value)| (name.clone(), value.clone())).collect()
    }
}

/// Stores a part, if its upload is still there.
async fn commit_part(
    store: Store,
    home: Home,
    (id, number): (String, i32),
    content: Content,
    digested: crate::body::digest::Digested,
) -> S3Result<(Stat, Checksum)> {
    let _turn = home.turns.with_others(id.as_bytes()).await;
    let parts = home.parts;
    let mut batch = Batch::new();
    batch.require(parts, id.as_bytes(), Condition::Present);
    let put = Put {
        content,
        attributes: meta::of_checksum(&digested.checksum),
        tag: digested.md5.to_vec(),
        modified_ms: now_ms(),
        versioned: false,
    };
    batch.put(parts, &part_key(&id, number), put);
    let stored = committed(&store, batch, &Guard::default()).await;
    let stat = stored.map_err(|error| match error.code() {
        S3ErrorCode::NoSuchBucket => {
            problem(S3ErrorCode::NoSuchUpload, "the upload was completed or aborted meanwhile")
        }
        _ => error,
    })?;
    Ok((stat, digested.checksum))
}

pub(crate) fn check_number(number: i32) -> S3Result<()> {
    if (1..=PARTS_LIMIT).contains(&number) {
        return Ok(());
    }
    Err(problem(S3ErrorCode::InvalidArgument, format!("a part's number is 1 to {PARTS_LIMIT}, not {number}")))
}

impl Service {
    pub(crate) async fn begin_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let mut attributes = kept_headers!(input)?;
        attributes.extend(tags::of_header(input.tagging.as_ref())?);
        attributes.insert(BUCKET.to_owned(), input.bucket.clone().into_bytes());
        attributes.insert(KEY.to_owned(), input.key.clone().into_bytes());
        let algorithm = input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str().to_ascii_lowercase());
        let sums = Sums::of(algorithm.as_deref(), input.checksum_type.as_ref().map(ChecksumType::as_str))?;
        if let Some(Sums { algorithm, whole }) = &sums {
            attributes.insert(ALGORITHM.to_owned(), algorithm.clone().into_bytes());
            let kind = if *whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE };
            attributes.insert(TYPE.to_owned(), kind.as_bytes().to_vec());
        }
        let id = Uuid::new_v4().simple().to_string();
        let (upload, key, parts) = (id.clone().into_bytes(), input.key.clone().into_bytes(), bucket.home.parts);
        let way = bucket.way().clone();
        let begin = async move |store: Store| {
            let modified_ms = now_ms();
            let partition = partition_made(&store, &bucket.name).await.map_err(refusal)?;
            let mut batch = Batch::new();
            // Whoever deletes the bucket removes what it has of uploads: behind that, none begins.
            batch.require(bucket.id, &key, Condition::Partition);
            // In this order: `entry_of` counts on it.
            batch.put(parts, &upload, Put { attributes, modified_ms, ..Put::default() });
            batch.put(partition, &key, Put { tag: upload, modified_ms, versioned: true, ..Put::default() });
            store.commit(batch).await.map_err(|error| of_commit(error, false))
        };
        way.ask(begin).await.map(|_: Vec<_>| ())?;
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(id),
            checksum_algorithm: input.checksum_algorithm,
            checksum_type: sums.map(|sums| {
                ChecksumType::from_static(if sums.whole { ChecksumType::FULL_OBJECT } else { ChecksumType::COMPOSITE })
            }),
            ..CreateMultipartUploadOutput::default()
        }))
    }

    /// Finds an upload: bucket, key and identifier as a client names them.
    pub(crate) async fn upload(&self, bucket: &Arc<Bucket>, key: &str, id: &str) -> S3Result<Found> {
        let (of, key, id, parts) = (Arc::clone(bucket), key.as_bytes().to_vec(), id.to_owned(), bucket.home.parts);
        bucket.way().ask(async move |store: Store| find(&store, parts, &of, &key, &id).await).await
    }

    pub(crate) async fn put_part(&self, mut request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        check_number(request.input.part_number)?;
        refuse_framed(&request.headers, request.trailing_headers.as_ref())?;
        let mut said = Said::of_request(&request.headers, request.trailing_headers.take());
        let length = length_of(&request.headers, request.input.content_length);
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let found = self.upload(&bucket, &input.key, &input.upload_id).await?;
        // Of each part what its object's checksum wants, said or not.
        if let Some(Sums { algorithm, .. }) = found.sums() {
            if !said.is_only(&algorithm) {
                let text = format!("the upload was begun with checksums {algorithm}: send its parts with these");
                return Err(problem(S3ErrorCode::InvalidRequest, text));
            }
            said.algorithm = Some(algorithm);
        }
        let body = Incoming::new(input.body, length, Digest::new(said)?)?;
        let (stat, checksum) = store_part(&bucket.home, input.upload_id, input.part_number, body).await?;
        let mut output = UploadPartOutput { e_tag: Some(etag(&stat.tag)), ..UploadPartOutput::default() };
        show_checksums!(output, checksum);
        Ok(S3Response::new(output))
    }

    pub(crate) async fn complete_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let checksum = said_checksums!(input);
        let asked = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        let said = Stated { checksum, size_bytes: input.mpu_object_size };
        let guard = Guard { if_match: input.if_match, if_none_match: input.if_none_match };
        let home = bucket.home.clone();
        let way = home.way.clone();
        let target = Target { bucket, key: input.key.clone().into_bytes(), guard };
        let id = input.upload_id;
        let complete = async move |store: Store| complete(store, home, &id, target, &asked, &said).await;
        let (stored, checksum, kind) = way.ask(complete).await?;
        let mut output = CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(etag(&stored.stat.tag)),
            version_id: stored.version_id,
            checksum_type: kind,
            ..CompleteMultipartUploadOutput::default()
        };
        show_checksums!(output, checksum);
        Ok(S3Response::new(output))
    }

    pub(crate) async fn abort(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let found = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let home = bucket.home.clone();
        let abort = async move |store: Store| abort_upload(&store, &home, &found.entry).await.map_err(refusal);
        bucket.way().ask(abort).await?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }
}

/// Stores a part of the upload of this identifier.
pub(crate) async fn store_part(home: &Home, id: String, number: i32, body: Incoming) -> S3Result<(Stat, Checksum)> {
    check_number(number)?;
    let own = home.clone();
    let store_it = move |store, content, digested| commit_part(store, own, (id, number), content, digested);
    take_in(&home.way, body, true, store_it).await
}

/// Makes the object of its parts, all at once. Whoever asks again gets the same answer, as long as the object is there.
async fn complete(
    store: Store,
    home: Home,
    id: &str,
    target: Target,
    asked: &[CompletedPart],
    said: &Stated,
) -> S3Result<(Stored, Checksum, Option<ChecksumType>)> {
    let _turn = home.turns.alone(id.as_bytes()).await;
    let parts = home.parts;
    let found = match find(&store, parts, &target.bucket, &target.key, id).await {
        Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
            let done = completed(&store, &target, id, asked).await.ok_or(error)?;
            return said.hold(&done.1, done.0.stat.size_bytes).map(|()| done);
        }
        found => found?,
    };
    let stored = parts_of(&store, parts, id.as_bytes()).await.map_err(refusal)?;
    let sums = found.sums();
    let whole = assemble(&store, parts, &stored, asked, sums.as_ref()).await?;
    said.hold(&whole.checksum, whole.size_bytes)?;
    let mut batch = Batch::new();
    target.guard.require(&store, &target, &mut batch).await?;
    batch.require(parts, id.as_bytes(), Condition::Present);
    batch.remove(parts, id.as_bytes(), Which::Latest);
    batch.remove(found.entry.partition, &target.key, found.entry.stat.which());
    let joined: BTreeSet<&Vec<u8>> = whole.keys.iter().collect();
    for Part { key, .. } in stored.iter().filter(|part| !joined.contains(&part.key)) {
        batch.remove(parts, key, Which::Latest);
    }
    let versioning = target.bucket.versioning_now().await;
    let mut attributes = found.of_object();
    attributes.insert(UPLOAD.to_owned(), id.as_bytes().to_vec());
    attributes.extend(whole.attributes());
    let taken: usize = attributes.iter().map(|(name, value)| name.len() + value.len()).sum();
    // Tags that are set later want room, too.
    attributes.extend(sizes::kept(&whole.sizes, (ATTRIBUTES_LIMIT_BYTES / 2).saturating_sub(taken)));
    let put = Put {
        content: Content::default(),
        attributes,
        tag: whole.tag.clone(),
        modified_ms: now_ms(),
        versioned: versioning.adds(),
    };
    let keys = whole.keys.iter().map(|key| (parts, key.clone())).collect();
    batch.join(target.bucket.id, &target.key, keys, put);
    let stored = Stored::new(committed(&store, batch, &target.guard).await?, *versioning);
    Ok((stored, whole.checksum, sums.map(|sums| sums.kind())))
}

/// What completing this upload of these parts made of the object, if that is what it is.
async fn completed(
    store: &Store,
    target: &Target,
    id: &str,
    asked: &[CompletedPart],
) -> Option<(Stored, Checksum, Option<ChecksumType>)> {
    let (stat, attributes) = store.attributes(target.bucket.id, &target.key, Which::Latest).await.ok()?;
    let is_its_own = attributes.get(UPLOAD).is_some_and(|own| own == id.as_bytes())
        && tag_of_named(asked).is_none_or(|tag| tag == stat.tag);
    let stored = Stored::new(stat, target.bucket.versioning);
    is_its_own.then(|| (stored, meta::checksum(&attributes), meta::checksum_type(&attributes)))
}

impl Directory {
    /// A page of a bucket's uploads under way, a key's oldest first as in S3, and whether there are more. It goes on behind the
    /// upload `behind` of the key that `query` goes on behind, where one is named.
    pub(crate) async fn uploads_page(
        &self,
        bucket: &Bucket,
        mut query: Query,
        behind: Option<String>,
    ) -> S3Result<(Vec<Item>, bool)> {
        let name = bucket.name.clone();
        let limit = query.limit.unwrap_or_default();
        query.versions = true;
        let list = async move |store: Store| {
            let found = partition(&store, &name).await.map_err(refusal)?;
            let Some(partition) = found.filter(|_| limit > 0) else { return Ok((Vec::new(), false)) };
            // One more than there is room for.
            let most = limit + 1;
            let mut items = Vec::new();
            if let (After::Key(key), Some(id)) = (&query.after, &behind) {
                items = of_key(&store, partition, &query, key, id, most).await?;
            }
            query.limit = Some(most.saturating_sub(items.len()));
            let page = store.list(partition, &query).await.map_err(refusal)?;
            let last = page.items.last().filter(|_| page.next.is_some()).cloned();
            items.extend(page.items);
            if let Some(Item::Object { key, .. }) = last {
                // The oldest of it are not in the page.
                items.retain(|item| !is_of(item, &key));
                items.extend(of_key(&store, partition, &query, &key, "", most).await?);
            }
            for own in items.chunk_by_mut(|one, next| matches!(one, Item::Object { key, .. } if is_of(next, key))) {
                own.reverse();
            }
            let more = items.len() > limit || page.next.is_some();
            items.truncate(limit);
            Ok((items, more))
        };
        bucket.way().ask(list).await
    }
}

fn is_of(item: &Item, key: &[u8]) -> bool {
    matches!(item, Item::Object { key: own, .. } if own == key)
}

/// What a list shows of a key that was begun behind the upload `behind`: the oldest `most`, the newest of them first. Where that
/// upload is gone, or none, it is the oldest of all: better twice than never.
async fn of_key(
    store: &Store,
    partition: PartitionId,
    query: &Query,
    key: &[u8],
    behind: &str,
    most: usize,
) -> S3Result<Vec<Item>> {
    let after = After::Version(key.to_vec(), Version(u64::MAX));
    let mut query = Query { after, limit: None, ..query.clone() };
    let is_newer =
        |item: &Item| matches!(item, Item::Object { key: own, stat } if own == key && stat.tag != behind.as_bytes());
    let mut oldest = Vec::new();
    loop {
        let page = store.list(partition, &query).await.map_err(refusal)?;
        let is_whole = page.items.iter().all(is_newer);
        oldest.extend(page.items.into_iter().take_while(is_newer));
        oldest.drain(..oldest.len().saturating_sub(most));
        match page.next {
            Some(after) if is_whole => query.after = after,
            _ => return Ok(oldest),
        }
        others_go_on().await;
    }
}
