//! Who may do what: signatures name a key, and the key or the bucket's policy allows the operation.

use crate::directory::Directory;
use crate::keys::Key;
use crate::problem::problem;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3ErrorCode, S3Result};
use std::sync::Arc;

/// The secrets of access keys.
pub(crate) struct Auth(pub Arc<Directory>);

#[async_trait::async_trait]
impl S3Auth for Auth {
    async fn get_secret_key(&self, id: &str) -> S3Result<SecretKey> {
        let key = self.0.key(id);
        key.map(|key| SecretKey::from(key.secret.as_str())).ok_or_else(|| S3ErrorCode::InvalidAccessKeyId.into())
    }
}

/// What an operation does to a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Reads objects, or lists them.
    Read,
    /// Stores or deletes objects.
    Write,
    /// Anything else: makes buckets, changes what is set on them.
    Own,
}

/// What an operation is called in policies, and what it does.
pub(crate) fn deed(operation: &str) -> Deed {
    match operation {
        "HeadBucket"
        | "ListObjects"
        | "ListObjectsV2"
        | "ListObjectVersions"
        | "ListMultipartUploads"
        | "ListParts"
        | "GetBucketLocation"
        | "GetBucketVersioning"
        | "GetObject"
        | "HeadObject"
        | "GetObjectAttributes"
        | "GetObjectTagging"
        | "GetObjectAcl" => Deed::Read,
        "PutObject"
        | "CopyObject"
        | "CreateMultipartUpload"
        | "UploadPart"
        | "UploadPartCopy"
        | "CompleteMultipartUpload"
        | "AbortMultipartUpload"
        | "DeleteObject"
        | "DeleteObjects"
        | "PutObjectTagging"
        | "DeleteObjectTagging" => Deed::Write,
        _ => Deed::Own,
    }
}

/// True when the key's own grants allow it.
pub(crate) fn granted(key: &Key, bucket: &str, deed: Deed) -> bool {
    let grant = key.buckets.get(bucket);
    key.owns_all()
        || grant.is_some_and(|grant| match deed {
            Deed::Read => grant.reads(),
            Deed::Write => grant.writes(),
            Deed::Own => false,
        })
}

/// Who may do what.
pub(crate) struct Access(pub Arc<Directory>);

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let key = context.credentials().and_then(|credentials| self.0.key(&credentials.access_key));
        let operation = context.s3_op().name();
        let allowed = match (key, context.s3_path().get_bucket_name()) {
            // Everybody with a key sees the buckets that it reaches.
            (Some(_), None) => true,
            (Some(key), Some(bucket)) => granted(&key, bucket, deed(operation)),
            (None, _) => false,
        };
        if allowed { Ok(()) } else { Err(denied()) }
    }
}

pub(crate) fn denied() -> s3s::S3Error {
    problem(S3ErrorCode::AccessDenied, "neither the key nor the bucket's policy allows this")
}
