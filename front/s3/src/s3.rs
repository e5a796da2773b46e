//! S3's operations, by name: each is done in the module of its kind.

use crate::list::owner;
use crate::meta::timestamp;
use crate::problem::{problem, refusal, unsupported};
use crate::service::Service;
use kura_block::Kind;
use s3s::dto::*;
use s3s::{S3, S3ErrorCode, S3Request, S3Response, S3Result};

type Answer<T> = S3Result<S3Response<T>>;

/// Where all buckets are.
const REGION: &str = "us-east-1";

#[async_trait::async_trait]
impl S3 for Service {
    async fn list_buckets(&self, request: S3Request<ListBucketsInput>) -> Answer<ListBucketsOutput> {
        let key = request.credentials.and_then(|credentials| self.directory.key(&credentials.access_key));
        let reached = |name: &str| key.as_ref().is_some_and(|key| key.owns_all() || key.buckets.contains_key(name));
        let prefix = request.input.prefix.unwrap_or_default();
        let buckets = self.directory.buckets().into_iter();
        let shown =
            buckets.filter(|bucket| bucket.name.starts_with(&prefix) && reached(&bucket.name)).map(|bucket| Bucket {
                bucket_region: Some(REGION.to_owned()),
                creation_date: Some(timestamp(bucket.created_ms)),
                name: Some(bucket.name.clone()),
            });
        Ok(S3Response::new(ListBucketsOutput {
            buckets: Some(shown.collect()),
            owner: Some(owner()),
            ..ListBucketsOutput::default()
        }))
    }

    async fn create_bucket(&self, request: S3Request<CreateBucketInput>) -> Answer<CreateBucketOutput> {
        let input = request.input;
        if input.object_lock_enabled_for_bucket == Some(true) {
            return Err(unsupported("object lock"));
        }
        if input.acl.as_ref().is_some_and(|acl| acl.as_str() != "private") || input.grant_read.is_some() {
            return Err(unsupported("an ACL other than private"));
        }
        let name = input.bucket;
        self.directory.create_bucket(&name).await.map_err(|error| match error.kind() {
            Kind::Exists => problem(S3ErrorCode::BucketAlreadyOwnedByYou, error.to_string()),
            Kind::Invalid => problem(S3ErrorCode::InvalidBucketName, error.to_string()),
            _ => refusal(error),
        })?;
        Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{name}")) }))
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.directory.bucket(&request.input.bucket)?;
        Ok(S3Response::new(HeadBucketOutput { bucket_region: Some(REGION.to_owned()), ..HeadBucketOutput::default() }))
    }

    async fn delete_bucket(&self, request: S3Request<DeleteBucketInput>) -> Answer<DeleteBucketOutput> {
        self.directory.delete_bucket(&request.input.bucket).await.map_err(|error| match error.kind() {
            Kind::Missing => problem(S3ErrorCode::NoSuchBucket, error.to_string()),
            Kind::Busy => problem(S3ErrorCode::BucketNotEmpty, error.to_string()),
            _ => refusal(error),
        })?;
        Ok(S3Response::new(DeleteBucketOutput {}))
    }

    async fn get_bucket_location(&self, request: S3Request<GetBucketLocationInput>) -> Answer<GetBucketLocationOutput> {
        self.directory.bucket(&request.input.bucket)?;
        // None stands for us-east-1.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.put(request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.get(request).await
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        self.head(request).await
    }

    async fn delete_object(&self, request: S3Request<DeleteObjectInput>) -> Answer<DeleteObjectOutput> {
        self.delete(request).await
    }

    async fn delete_objects(&self, request: S3Request<DeleteObjectsInput>) -> Answer<DeleteObjectsOutput> {
        self.delete_many(request).await
    }

    async fn list_objects(&self, request: S3Request<ListObjectsInput>) -> Answer<ListObjectsOutput> {
        self.list(request).await
    }

    async fn list_objects_v2(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        self.list_v2(request).await
    }

    async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> Answer<ListObjectVersionsOutput> {
        self.list_versions(request).await
    }

    async fn post_object(&self, _: S3Request<PostObjectInput>) -> Answer<PostObjectOutput> {
        Err(unsupported("storing by an HTML form"))
    }
}
