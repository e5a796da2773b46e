//! Copies: an object of this store on its way out and in again, and so hashed as any other.

use crate::body::digest::{Digest, Said};
use crate::body::take_in::{Incoming, take_in};
use crate::bucket::Bucket;
use crate::checksums::{ALGORITHMS, show_checksums};
use crate::get::{Conditions, Opened};
use crate::meta::{EXPIRES, REDIRECT, TAGGING, etag, kept_headers, timestamp, version_id, which};
use crate::multipart::store_part;
use crate::past::bucket_of;
use crate::problem::{problem, unsupported};
use crate::put::{Guard, Target, commit};
use crate::service::Service;
use crate::tags;
use kura_object::{Attributes, Stat};
use s3s::auth::Credentials;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};
use std::sync::Arc;

type Answer<T> = S3Result<S3Response<T>>;

/// The most that one copy takes, as in S3.
const COPY_LIMIT_BYTES: u64 = 5 << 30;

/// What is to be copied.
struct Source {
    bucket: Arc<Bucket>,
    key: String,
    version: Option<String>,
}

impl Service {
    /// What a request names as its source, if its sender may read that.
    async fn source(&self, named: CopySource, credentials: Option<&Credentials>) -> S3Result<Source> {
        let CopySource::Bucket { bucket, key, version_id } = named else {
            return Err(unsupported("a copy from an access point"));
        };
        // Before a snapshot is opened for it.
        self.directory.check(credentials, bucket_of(&bucket), "GetObject", (&key, version_id.is_some()))?;
        let bucket = self.directory.bucket(&bucket).await?;
        Ok(Source { bucket, key: key.into(), version: version_id.map(Into::into) })
    }

    async fn open_source(&self, source: &Source, conditions: Conditions, range: Option<Range>) -> S3Result<Opened> {
        let which = which(source.version.as_deref())?;
        let choose = move |stat: &Stat, attributes: Option<&Attributes>| {
            // A copy is no browser's question: what is not modified is a condition that does not hold.
            conditions.check(stat, attributes).map_err(|error| match error.code() {
                S3ErrorCode::NotModified => crate::put::precondition_failed("a condition on the source"),
                _ => error,
            })?;
            let range = match range {
                None => 0..stat.size_bytes,
                Some(range @ Range::Int { last: Some(last), .. }) if last < stat.size_bytes => {
                    range.check(stat.size_bytes)?
                }
                Some(_) => return Err(problem(S3ErrorCode::InvalidRange, "the range leaves the source")),
            };
            if range.end - range.start > COPY_LIMIT_BYTES {
                return Err(problem(
                    S3ErrorCode::InvalidRequest,
                    "the source is too large for one copy: copy it in parts",
                ));
            }
            Ok(range)
        };
        crate::get::open(&source.bucket, source.key.clone().into_bytes(), which, choose).await
    }

    pub(crate) async fn copy(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        let guard = Guard::of_headers(&request.headers)?;
        let input = request.input;
        let replaces_head = replaces(input.metadata_directive.as_ref().map(MetadataDirective::as_str), "metadata")?;
        let replaces_tags = replaces(input.tagging_directive.as_ref().map(TaggingDirective::as_str), "tagging")?;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let replaced = if replaces_head { Some(kept_headers!(input)?) } else { None };
        let source = self.source(input.copy_source, request.credentials.as_ref()).await?;
        let changes = replaces_head
            || replaces_tags
            || input.storage_class.is_some()
            || input.website_redirect_location.is_some();
        let is_itself = source.bucket.id == bucket.id
            && source.bucket.way().is(bucket.way())
            && source.key == input.key
            && source.version.is_none();
        if is_itself && !changes {
            let text = "an object is copied to itself only to change its metadata, storage class or website redirect: say \
                        x-amz-metadata-directive: REPLACE";
            return Err(problem(S3ErrorCode::InvalidRequest, text));
        }
        let conditions = Conditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let opened = self.open_source(&source, conditions, None).await?;
        let redirect = input.website_redirect_location.map(String::into_bytes);
        let mut attributes = replaced.unwrap_or_else(|| kept_of(&opened.attributes));
        attributes.extend(redirect.map(|redirect| (REDIRECT.to_owned(), redirect)));
        if replaces_tags {
            attributes.extend(tags::of_header(input.tagging.as_ref())?);
        } else if let Some(tags) = opened.attributes.get(TAGGING) {
            // Who copies them reads them there and puts them here.
            let credentials = request.credentials.as_ref();
            let from = (source.key.as_str(), source.version.is_some());
            self.directory.check(credentials, &source.bucket.name, "GetObjectTagging", from)?;
            self.directory.check(credentials, &bucket.name, "PutObjectTagging", (&input.key, false))?;
            attributes.insert(TAGGING.to_owned(), tags.clone());
        }
        let algorithm = input.checksum_algorithm.map(|algorithm| algorithm.as_str().to_ascii_lowercase());
        let algorithm = algorithm.or_else(|| algorithm_of(&opened.attributes));
        let source_version = source.bucket.versioning.is_known().then(|| version_id(&opened.stat));
        let body = opened.into_body();
        let incoming = Incoming::new(Some(body), None, Digest::new(Said { algorithm, ..Said::default() })?)?;
        let way = bucket.way().clone();
        let target = Target { bucket, key: input.key.into_bytes(), guard };
        let store_it = move |store, content, digested| commit(store, target, content, digested, attributes);
        let (stored, digested) = take_in(&way, incoming, false, store_it).await?;
        let mut result = CopyObjectResult {
            e_tag: Some(etag(&stored.stat.tag)),
            last_modified: Some(timestamp(stored.stat.modified_ms)),
            ..CopyObjectResult::default()
        };
        show_checksums!(result, digested.checksum);
        Ok(S3Response::new(CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: source_version,
            version_id: stored.version_id,
            ..CopyObjectOutput::default()
        }))
    }

    pub(crate) async fn copy_part(&self, request: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let source = self.source(input.copy_source, request.credentials.as_ref()).await?;
        let found = self.upload(&bucket, &input.key, &input.upload_id).await?;
        let bad_range = |_| problem(S3ErrorCode::InvalidArgument, "x-amz-copy-source-range is as in bytes=0-99");
        let range = input.copy_source_range.as_deref().map(Range::parse).transpose().map_err(bad_range)?;
        let conditions = Conditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let opened = self.open_source(&source, conditions, range).await?;
        let source_version = source.bucket.versioning.is_known().then(|| version_id(&opened.stat));
        let said = Said { algorithm: found.sums().map(|sums| sums.algorithm), ..Said::default() };
        let body = Incoming::new(Some(opened.into_body()), None, Digest::new(said)?)?;
        let (stat, checksum) = store_part(&bucket.home, input.upload_id, input.part_number, body).await?;
        let mut result = CopyPartResult {
            e_tag: Some(etag(&stat.tag)),
            last_modified: Some(timestamp(stat.modified_ms)),
            ..CopyPartResult::default()
        };
        show_checksums!(result, checksum);
        Ok(S3Response::new(UploadPartCopyOutput {
            copy_part_result: Some(result),
            copy_source_version_id: source_version,
            ..UploadPartCopyOutput::default()
        }))
    }
}

/// Whether what a request says takes the place of what the source has.
fn replaces(directive: Option<&str>, what: &str) -> S3Result<bool> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(_) => Err(problem(S3ErrorCode::InvalidArgument, format!("Unknown {what} directive: COPY or REPLACE"))),
    }
}

/// The headers of the source, which the copy has as well.
fn kept_of(attributes: &Attributes) -> Attributes {
    let kept = attributes.iter().filter(|(name, _)| {
        name.starts_with("x-amz-meta-")
            || name.starts_with("content-")
            || ["cache-control", EXPIRES, REDIRECT].contains(&name.as_str())
    });
    kept.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// The algorithm of the source's checksum.
fn algorithm_of(attributes: &Attributes) -> Option<String> {
    let kept = ALGORITHMS.iter().find(|algorithm| attributes.contains_key(algorithm.header));
    kept.map(|algorithm| algorithm.name.to_owned())
}
