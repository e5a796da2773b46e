//! Who may do what: signatures name a key, and the key's grants or the bucket's policy allow the operation.

use crate::body::document::Document;
use crate::bucket::Bucket;
use crate::bucket::policy::{Question, Verdict};
use crate::directory::Directory;
use crate::keys::Key;
use crate::meta::TAGGING;
use crate::past::{bucket_of, split};
use crate::problem::{problem, refusal};
use crate::query;
use crate::signed;
use hyper::HeaderMap;
use hyper::http::Extensions;
use kura_block::{Error, Kind};
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{Credentials, S3Auth, SecretKey};
use s3s::{S3Error, S3ErrorCode, S3Result};
use std::sync::Arc;

/// Before the names of an answer's headers, where a query says what they are to be.
const RESPONSE: &str = "response-";

/// The secrets of access keys.
pub(crate) struct Auth(pub Arc<Directory>);

#[async_trait::async_trait]
impl S3Auth for Auth {
    async fn get_secret_key(&self, id: &str) -> S3Result<SecretKey> {
        let refused = |error: Error| {
            let text = match error.kind() {
                Kind::Missing => {
                    "there is no such access key here: `kura key list` lists them, `kura key create` makes one"
                }
                _ => "this access key is closed, since its record cannot be read: whoever runs the server knows more",
            };
            problem(S3ErrorCode::InvalidAccessKeyId, text)
        };
        self.0.known_key(id).map(|key| SecretKey::from(key.secret.as_str())).map_err(refused)
    }
}

/// What an operation does to a bucket, for the grants of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// Reads objects, or lists them.
    Read,
    /// Stores or deletes objects.
    Write,
    /// Anything else: makes buckets, changes what is set on them.
    Own,
}

/// Operations: what each does, the action that policies know it as, and that of one which names a version, where it is another.
/// Those that are not here are [`Deed::Own`], and actions of the same name.
static OPERATIONS: [(&str, Deed, &str, Option<&str>); 32] = [
    ("HeadBucket", Deed::Read, "ListBucket", None),
    ("ListObjects", Deed::Read, "ListBucket", None),
    ("ListObjectsV2", Deed::Read, "ListBucket", None),
    ("ListObjectVersions", Deed::Read, "ListBucketVersions", None),
    ("ListMultipartUploads", Deed::Read, "ListBucketMultipartUploads", None),
    ("ListParts", Deed::Read, "ListMultipartUploadParts", None),
    ("GetBucketLocation", Deed::Read, "GetBucketLocation", None),
    ("GetBucketVersioning", Deed::Read, "GetBucketVersioning", None),
    ("GetObject", Deed::Read, "GetObject", Some("GetObjectVersion")),
    ("HeadObject", Deed::Read, "GetObject", Some("GetObjectVersion")),
    ("GetObjectAttributes", Deed::Read, "GetObjectAttributes", Some("GetObjectVersionAttributes")),
    ("GetObjectTagging", Deed::Read, "GetObjectTagging", Some("GetObjectVersionTagging")),
    ("GetObjectAcl", Deed::Read, "GetObjectAcl", Some("GetObjectVersionAcl")),
    ("PutObject", Deed::Write, "PutObject", None),
    ("CopyObject", Deed::Write, "PutObject", None),
    ("CreateMultipartUpload", Deed::Write, "PutObject", None),
    ("UploadPart", Deed::Write, "PutObject", None),
    ("UploadPartCopy", Deed::Write, "PutObject", None),
    ("CompleteMultipartUpload", Deed::Write, "PutObject", None),
    ("AbortMultipartUpload", Deed::Write, "AbortMultipartUpload", None),
    ("DeleteObject", Deed::Write, "DeleteObject", Some("DeleteObjectVersion")),
    ("DeleteObjects", Deed::Write, "DeleteObject", Some("DeleteObjectVersion")),
    ("PutObjectTagging", Deed::Write, "PutObjectTagging", Some("PutObjectVersionTagging")),
    ("DeleteObjectTagging", Deed::Write, "DeleteObjectTagging", Some("DeleteObjectVersionTagging")),
    ("PutObjectAcl", Deed::Own, "PutObjectAcl", Some("PutObjectVersionAcl")),
    ("GetBucketLifecycleConfiguration", Deed::Own, "GetLifecycleConfiguration", None),
    ("PutBucketLifecycleConfiguration", Deed::Own, "PutLifecycleConfiguration", None),
    ("DeleteBucketLifecycle", Deed::Own, "PutLifecycleConfiguration", None),
    ("GetBucketCors", Deed::Own, "GetBucketCORS", None),
    ("PutBucketCors", Deed::Own, "PutBucketCORS", None),
    ("DeleteBucketCors", Deed::Own, "PutBucketCORS", None),
    ("DeleteBucketTagging", Deed::Own, "PutBucketTagging", None),
];

fn deed(operation: &str) -> Deed {
    OPERATIONS.iter().find(|row| row.0 == operation).map_or(Deed::Own, |row| row.1)
}

/// True for an operation that changes nothing.
fn reads(operation: &str) -> bool {
    ["Get", "Head", "List"].iter().any(|verb| operation.starts_with(verb))
}

/// The action that policies know an operation as.
fn action(operation: &str, of_version: bool) -> String {
    let name = match OPERATIONS.iter().find(|row| row.0 == operation) {
        Some((_, _, _, Some(action))) if of_version => action,
        Some((_, _, action, _)) => action,
        None => operation,
    };
    format!("s3:{name}")
}

/// What an operation does besides, and must be allowed as well: with true where the version counts that it names.
fn besides(operation: &str, headers: &HeaderMap) -> Option<(&'static str, bool)> {
    match operation {
        "GetObjectAttributes" => Some(("GetObject", true)),
        // What is put is the newest version, whatever the query says.
        "PutObject" | "CopyObject" | "CreateMultipartUpload" if headers.contains_key(TAGGING) => {
            Some(("PutObjectTagging", false))
        }
        _ => None,
    }
}

/// True when a query names a version, in whatever way it is encoded: as it is read where the version is looked up.
fn names_a_version(query: &str) -> bool {
    query::value(query, "versionId").is_some()
}

/// True when a key may do something with a bucket, or an object or a version in it.
fn allowed(
    key: Option<&Key>,
    bucket: &str,
    known: Option<&Bucket>,
    operation: &str,
    object: Option<(&str, bool)>,
) -> bool {
    let deed = deed(operation);
    let owns = key.is_some_and(Key::owns_all);
    // A policy that denies everything must not keep its owner from changing it.
    if owns && operation.ends_with("BucketPolicy") {
        return true;
    }
    let question = Question {
        key: key.map(|key| (key.id.as_str(), key.name.as_str())),
        action: &action(operation, object.is_some_and(|(_, of_version)| of_version)),
        bucket,
        object: object.map(|(object, _)| object),
    };
    let policy = known.and_then(|bucket| bucket.policy.as_ref());
    match policy.map_or(Verdict::Silent, |policy| policy.answer(&question)) {
        Verdict::Denied => false,
        Verdict::Allowed => true,
        Verdict::Silent => {
            let grant = key.and_then(|key| key.buckets.get(bucket));
            owns || grant.is_some_and(|grant| match deed {
                Deed::Read => grant.reads(),
                Deed::Write => grant.writes(),
                Deed::Own => false,
            })
        }
    }
}

impl Directory {
    /// Refuses what the credentials may not do with an object, beside what the request is about.
    pub(crate) fn check(
        &self,
        credentials: Option<&Credentials>,
        bucket: &str,
        operation: &str,
        object: (&str, bool),
    ) -> S3Result<()> {
        let key = credentials.and_then(|credentials| self.key(&credentials.access_key));
        // Also where it is a snapshot's, the policy of today counts.
        let today = self.find(bucket);
        let may = allowed(key.as_deref(), bucket, today.as_deref(), operation, Some(object));
        if !may {
            return Err(denied());
        }
        readable(today.as_deref(), operation)
    }
}

/// Whether a request's sender may list the bucket: one who may not is not told which keys there are.
#[derive(Clone, Copy)]
pub(crate) struct Lists(bool);

impl Lists {
    /// As it was found when access was checked.
    pub(crate) fn of(extensions: &Extensions) -> Self {
        extensions.get::<Self>().copied().unwrap_or(Self(true))
    }

    /// What the sender is told where this is what there is to tell.
    pub(crate) fn told(self, error: S3Error) -> S3Error {
        if self.0 || *error.code() != S3ErrorCode::NoSuchKey { error } else { denied() }
    }
}

/// Refuses what a bucket's policy was to decide where what is set on it cannot be read; not what mends it.
fn readable(known: Option<&Bucket>, operation: &str) -> S3Result<()> {
    let mends = deed(operation) == Deed::Own && !reads(operation);
    known.filter(|_| !mends).map_or(Ok(()), Bucket::readable).map_err(refusal)
}

/// Who may do what.
pub(crate) struct Access(pub Arc<Directory>);

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let query = context.uri().query().unwrap_or_default();
        if context.credentials().is_some() {
            signed::check(context.headers(), context.uri())?;
        } else if query::pairs(query).any(|(name, _)| name.starts_with(RESPONSE)) {
            // A bucket that all may read would answer with whatever type anybody writes into a link.
            let text = "headers of the answer can be asked for in a signed request only";
            return Err(problem(S3ErrorCode::InvalidRequest, text));
        }
        let document = context.extensions_mut().get::<Document>().cloned();
        let key = context.credentials().and_then(|credentials| self.0.key(&credentials.access_key));
        let operation = context.s3_op().name();
        let (deletes_many, mut lists) = (operation == "DeleteObjects", Lists(true));
        let listed = context.s3_path().get_bucket_name().filter(|_| deletes_many).and_then(|name| self.0.find(name));
        let may = match context.s3_path().get_bucket_name() {
            // Everybody with a key sees the buckets that it reaches.
            None => key.is_some(),
            Some(bucket) if split(bucket).is_some() && !reads(operation) => {
                let text = format!("{bucket} is a bucket as a snapshot has it: it can be read and nothing else");
                return Err(problem(S3ErrorCode::AccessDenied, text));
            }
            // Of many keys each is asked about by itself, when their list is read: not where none can be allowed.
            Some(bucket) if listed.is_some() => {
                let writes = |key: &Key| key.owns_all() || key.buckets.get(bucket).is_some_and(|grant| grant.writes());
                let named = key.as_deref().map(|key| (key.id.as_str(), key.name.as_str()));
                let deletes = ["s3:DeleteObject", "s3:DeleteObjectVersion"];
                let policy = listed.as_ref().and_then(|known| known.policy.as_ref());
                key.as_deref().is_some_and(writes) || policy.is_some_and(|policy| policy.could_allow(named, &deletes))
            }
            Some(bucket) => {
                // Who reads a snapshot is who may read the bucket today.
                let bucket = bucket_of(bucket);
                let of_version = names_a_version(context.uri().query().unwrap_or_default());
                let object = context.s3_path().get_object_key().map(|object| (object, of_version));
                let known = self.0.find(bucket);
                let may = |operation, object| allowed(key.as_deref(), bucket, known.as_deref(), operation, object);
                let besides = besides(operation, context.headers()).is_none_or(|(besides, of_its_version)| {
                    may(besides, object.map(|(object, of_version)| (object, of_version && of_its_version)))
                });
                lists = Lists(may("ListObjects", None));
                let may = besides && may(operation, object);
                if may {
                    readable(known.as_deref(), operation)?;
                }
                may
            }
        };
        if !may {
            return Err(denied());
        }
        // Their bodies are objects' contents.
        if let Some(document) = document.filter(|_| !matches!(operation, "PutObject" | "UploadPart")) {
            document.expect(operation, context.headers())?;
        }
        context.extensions_mut().insert(lists);
        Ok(())
    }
}

fn denied() -> S3Error {
    problem(
        S3ErrorCode::AccessDenied,
        "neither the key nor the bucket's policy allows this: use another key, or make one with `kura key create --bucket \
         BUCKET=read-write`",
    )
}

#[cfg(test)]
mod tests {
    use super::{action, names_a_version};

    #[test]
    fn a_version_is_named_in_any_encoding() {
        for query in ["versionId=1", "a=b&versionId=1", "version%49d=1", "%76ersionId=null&x", "versionId"] {
            assert!(names_a_version(query), "{query}");
        }
        for query in ["", "versions", "prefix=versionId", "x=versionId=1", "versionid=1"] {
            assert!(!names_a_version(query), "{query}");
        }
        assert_eq!(action("GetObjectTagging", true), "s3:GetObjectVersionTagging");
        assert_eq!(action("GetObjectTagging", false), "s3:GetObjectTagging");
    }
}
