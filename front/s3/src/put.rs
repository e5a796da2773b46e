//! Storing an object.

use crate::body::digest::{Digest, Digested, Said};
use crate::body::take_in::{Incoming, length_of, refuse_framed, take_in};
use crate::bucket::{Bucket, Versioning};
use crate::checksums::show_checksums;
use crate::directory::now_ms;
use crate::meta::{etag, kept_headers, of_checksum, version_id};
use crate::problem::{custom, of_object, problem, refusal, unsupported};
use crate::service::Service;
use crate::tags;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderName};
use kura_block::Kind;
use kura_object::{Attributes, Batch, Condition, Content, Put, Stat, Store, Which};
use s3s::dto::{ETagCondition, PutObjectInput, PutObjectOutput};
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

/// What must hold of the object that is there already.
#[derive(Clone, Default)]
pub(crate) struct Guard {
    pub if_match: Option<ETagCondition>,
    pub if_none_match: Option<ETagCondition>,
}

/// Where an object goes.
pub(crate) struct Target {
    pub bucket: std::sync::Arc<Bucket>,
    pub key: Vec<u8>,
    pub guard: Guard,
}

impl Guard {
    /// What a copy's headers say: S3's input of it has no place for them.
    pub(crate) fn of_headers(headers: &HeaderMap) -> S3Result<Self> {
        let condition = |name: HeaderName| {
            let bad = || problem(S3ErrorCode::InvalidArgument, format!("{name} is one ETag, or *"));
            let mut values = headers.get_all(&name).iter();
            let Some(value) = values.next() else { return Ok(None) };
            let one = ETagCondition::parse_http_header(value.as_bytes()).ok().filter(|_| values.next().is_none());
            one.map(Some).ok_or_else(bad)
        };
        Ok(Self { if_match: condition(header::IF_MATCH)?, if_none_match: condition(header::IF_NONE_MATCH)? })
    }

    /// Adds the condition under which the batch holds, decided on what is there now.
    pub(crate) async fn require(&self, store: &Store, target: &Target, batch: &mut Batch) -> S3Result<()> {
        let (partition, key) = (target.bucket.id, target.key.as_slice());
        match (&self.if_match, &self.if_none_match) {
            (None, None) => Ok(()),
            (None, Some(ETagCondition::Any)) => {
                batch.require(partition, key, Condition::Absent);
                Ok(())
            }
            (None, Some(ETagCondition::ETag(_))) => Err(unsupported("If-None-Match other than * in a put")),
            (Some(_), Some(_)) => Err(unsupported("If-Match together with If-None-Match in a put")),
            (Some(condition), None) => {
                let stat = store.stat(partition, key, Which::Latest).await.map_err(of_object)?;
                let holds = condition.as_etag().is_none_or(|wanted| wanted.value() == etag(&stat.tag).value());
                if !holds {
                    return Err(precondition_failed("If-Match"));
                }
                batch.require(partition, key, Condition::Revision(stat.revision));
                Ok(())
            }
        }
    }
}

pub(crate) fn precondition_failed(which: &str) -> s3s::S3Error {
    problem(
        S3ErrorCode::PreconditionFailed,
        format!("{which} does not hold: look at the object again, and decide anew"),
    )
}

/// What a commit's error means where it stores an object; `guarded` where that was held against the one that is there (`If-Match`).
pub(crate) fn of_commit(error: kura_block::Error, guarded: bool) -> s3s::S3Error {
    match error.kind() {
        // What If-Match was held against has changed meanwhile.
        Kind::Exists if guarded => {
            custom("ConditionalRequestConflict", StatusCode::CONFLICT, "another request was quicker: try again")
        }
        Kind::Exists => precondition_failed("If-None-Match"),
        // So is the object.
        Kind::Missing if guarded => problem(S3ErrorCode::NoSuchKey, "what If-Match was held against is gone"),
        Kind::Missing => problem(S3ErrorCode::NoSuchBucket, "the bucket is gone"),
        _ => refusal(error),
    }
}

/// An object that is stored.
pub(crate) struct Stored {
    pub stat: Stat,
    /// Its version, where clients are told of versions.
    pub version_id: Option<String>,
}

impl Stored {
    pub fn new(stat: Stat, versioning: Versioning) -> Self {
        Self { version_id: versioning.is_known().then(|| version_id(&stat)), stat }
    }
}

/// Stores what came, on the store's thread.
pub(crate) async fn commit(
    store: Store,
    target: Target,
    content: Content,
    digested: Digested,
    mut attributes: Attributes,
) -> S3Result<(Stored, Digested)> {
    attributes.extend(of_checksum(&digested.checksum));
    let mut batch = Batch::new();
    target.guard.require(&store, &target, &mut batch).await?;
    let versioning = target.bucket.versioning_now().await;
    let (tag, versioned) = (digested.md5.to_vec(), versioning.adds());
    let put = Put { content, attributes, tag, modified_ms: now_ms(), versioned };
    batch.put(target.bucket.id, &target.key, put);
    let stat = committed(&store, batch, &target.guard).await?;
    Ok((Stored::new(stat, *versioning), digested))
}

/// Commits a batch whose last change stores an object, under its guard, and tells what stands.
pub(crate) async fn committed(store: &Store, batch: Batch, guard: &Guard) -> S3Result<Stat> {
    let guarded = guard.if_match.is_some();
    let changed = store.commit(batch).await.map_err(|error| of_commit(error, guarded))?;
    let now = changed.into_iter().next_back().and_then(|changed| changed.now);
    now.ok_or_else(|| problem(S3ErrorCode::InternalError, "what was stored is not there"))
}

impl Service {
    pub(crate) async fn put(&self, mut request: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        refuse_framed(&request.headers, request.trailing_headers.as_ref())?;
        let said = Said::of_request(&request.headers, request.trailing_headers.take());
        let length = length_of(&request.headers, request.input.content_length);
        let input = request.input;
        let mut attributes = kept_headers!(input)?;
        attributes.extend(tags::of_header(input.tagging.as_ref())?);
        let bucket = self.directory.bucket(&input.bucket).await?;
        let guard = Guard { if_match: input.if_match, if_none_match: input.if_none_match };
        let way = bucket.way().clone();
        let target = Target { bucket, key: input.key.into_bytes(), guard };
        let body = Incoming::new(input.body, length, Digest::new(said)?)?;
        let store_it = move |store, content, digested| commit(store, target, content, digested, attributes);
        let (stored, digested) = take_in(&way, body, false, store_it).await?;
        let mut output = PutObjectOutput {
            e_tag: Some(etag(&stored.stat.tag)),
            version_id: stored.version_id,
            ..PutObjectOutput::default()
        };
        show_checksums!(output, digested.checksum);
        Ok(S3Response::new(output))
    }
}

#[cfg(test)]
mod tests {
    use super::{S3ErrorCode, of_commit};
    use kura_block::Error;

    #[test]
    fn an_object_that_is_gone_is_not_its_bucket() {
        for (guarded, code) in [(true, S3ErrorCode::NoSuchKey), (false, S3ErrorCode::NoSuchBucket)] {
            assert_eq!(*of_commit(Error::missing("gone"), guarded).code(), code);
        }
    }

    #[test]
    fn a_store_that_stalls_is_no_conflict() {
        for guarded in [true, false] {
            assert_eq!(*of_commit(Error::retry("short of memory"), guarded).code(), S3ErrorCode::ServiceUnavailable);
        }
        let conflict = of_commit(Error::exists("has changed"), true);
        assert_eq!(conflict.code().as_str(), "ConditionalRequestConflict");
        assert_eq!(*of_commit(Error::exists("is there"), false).code(), S3ErrorCode::PreconditionFailed);
    }
}
