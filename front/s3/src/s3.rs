//! S3's operations, by name: each is done in the module of its kind.

use crate::access::Lists;
use crate::bucket::Setting;
use crate::bucket::settings::private;
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
        let name = input.bucket;
        self.directory.create_bucket(&name).await.map_err(|error| match error.kind() {
            Kind::Exists => problem(S3ErrorCode::BucketAlreadyOwnedByYou, error.to_string()),
            Kind::Invalid => problem(S3ErrorCode::InvalidBucketName, error.to_string()),
            _ => refusal(error),
        })?;
        Ok(S3Response::new(CreateBucketOutput { location: Some(format!("/{name}")) }))
    }

    async fn head_bucket(&self, request: S3Request<HeadBucketInput>) -> Answer<HeadBucketOutput> {
        self.directory.bucket(&request.input.bucket).await?;
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
        self.directory.bucket(&request.input.bucket).await?;
        // None stands for us-east-1.
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn put_object(&self, request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        self.put(request).await
    }

    async fn get_object(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        let lists = Lists::of(&request.extensions);
        self.get(request).await.map_err(|error| lists.told(error))
    }

    async fn head_object(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        let lists = Lists::of(&request.extensions);
        self.head(request).await.map_err(|error| lists.told(error))
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

    async fn copy_object(&self, request: S3Request<CopyObjectInput>) -> Answer<CopyObjectOutput> {
        let own = self.clone();
        self.copied(Box::pin(async move { own.copy(request).await })).await
    }

    async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> Answer<GetObjectAttributesOutput> {
        let lists = Lists::of(&request.extensions);
        self.attributes(request).await.map_err(|error| lists.told(error))
    }

    async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        self.begin_upload(request).await
    }

    async fn upload_part(&self, request: S3Request<UploadPartInput>) -> Answer<UploadPartOutput> {
        self.put_part(request).await
    }

    async fn upload_part_copy(&self, request: S3Request<UploadPartCopyInput>) -> Answer<UploadPartCopyOutput> {
        let own = self.clone();
        self.copied(Box::pin(async move { own.copy_part(request).await })).await
    }

    async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        self.complete_upload(request).await
    }

    async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        self.abort(request).await
    }

    async fn list_parts(&self, request: S3Request<ListPartsInput>) -> Answer<ListPartsOutput> {
        self.parts_page(request).await
    }

    async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        self.list_uploads(request).await
    }

    async fn put_object_tagging(&self, request: S3Request<PutObjectTaggingInput>) -> Answer<PutObjectTaggingOutput> {
        self.put_tags(request).await
    }

    async fn get_object_tagging(&self, request: S3Request<GetObjectTaggingInput>) -> Answer<GetObjectTaggingOutput> {
        self.get_tags(request).await
    }

    async fn delete_object_tagging(
        &self,
        request: S3Request<DeleteObjectTaggingInput>,
    ) -> Answer<DeleteObjectTaggingOutput> {
        self.delete_tags(request).await
    }

    async fn put_bucket_tagging(&self, request: S3Request<PutBucketTaggingInput>) -> Answer<PutBucketTaggingOutput> {
        self.put_bucket_tags(request).await
    }

    async fn get_bucket_tagging(&self, request: S3Request<GetBucketTaggingInput>) -> Answer<GetBucketTaggingOutput> {
        self.get_bucket_tags(request).await
    }

    async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> Answer<PutBucketVersioningOutput> {
        self.put_versioning(request).await
    }

    async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> Answer<GetBucketVersioningOutput> {
        self.get_versioning(request).await
    }

    async fn put_bucket_policy(&self, request: S3Request<PutBucketPolicyInput>) -> Answer<PutBucketPolicyOutput> {
        self.put_policy(request).await
    }

    async fn get_bucket_policy(&self, request: S3Request<GetBucketPolicyInput>) -> Answer<GetBucketPolicyOutput> {
        self.get_policy(request).await
    }

    async fn get_bucket_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> Answer<GetBucketPolicyStatusOutput> {
        self.get_policy_status(request).await
    }

    async fn put_bucket_cors(&self, request: S3Request<PutBucketCorsInput>) -> Answer<PutBucketCorsOutput> {
        self.put_cors(request).await
    }

    async fn get_bucket_cors(&self, request: S3Request<GetBucketCorsInput>) -> Answer<GetBucketCorsOutput> {
        self.get_cors(request).await
    }

    async fn put_bucket_lifecycle_configuration(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> Answer<PutBucketLifecycleConfigurationOutput> {
        self.put_lifecycle(request).await
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> Answer<GetBucketLifecycleConfigurationOutput> {
        self.get_lifecycle(request).await
    }

    async fn delete_bucket_tagging(
        &self,
        request: S3Request<DeleteBucketTaggingInput>,
    ) -> Answer<DeleteBucketTaggingOutput> {
        self.directory.set(&request.input.bucket, Setting::Tags, None).await?;
        Ok(S3Response::new(DeleteBucketTaggingOutput {}))
    }

    async fn delete_bucket_policy(
        &self,
        request: S3Request<DeleteBucketPolicyInput>,
    ) -> Answer<DeleteBucketPolicyOutput> {
        self.directory.set(&request.input.bucket, Setting::Policy, None).await?;
        Ok(S3Response::new(DeleteBucketPolicyOutput {}))
    }

    async fn delete_bucket_cors(&self, request: S3Request<DeleteBucketCorsInput>) -> Answer<DeleteBucketCorsOutput> {
        self.directory.set(&request.input.bucket, Setting::Cors, None).await?;
        Ok(S3Response::new(DeleteBucketCorsOutput {}))
    }

    async fn delete_bucket_lifecycle(
        &self,
        request: S3Request<DeleteBucketLifecycleInput>,
    ) -> Answer<DeleteBucketLifecycleOutput> {
        self.directory.set(&request.input.bucket, Setting::Lifecycle, None).await?;
        Ok(S3Response::new(DeleteBucketLifecycleOutput {}))
    }

    async fn get_bucket_acl(&self, request: S3Request<GetBucketAclInput>) -> Answer<GetBucketAclOutput> {
        self.directory.bucket(&request.input.bucket).await?;
        Ok(S3Response::new(GetBucketAclOutput { grants: Some(private()), owner: Some(owner()) }))
    }

    async fn put_bucket_acl(&self, request: S3Request<PutBucketAclInput>) -> Answer<PutBucketAclOutput> {
        let input = request.input;
        self.directory.bucket(&input.bucket).await?;
        match input.acl.as_ref().map(BucketCannedACL::as_str) {
            Some("private") => Ok(S3Response::new(PutBucketAclOutput {})),
            _ => Err(unsupported("an ACL other than private")),
        }
    }

    async fn get_object_acl(&self, request: S3Request<GetObjectAclInput>) -> Answer<GetObjectAclOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        self.known(&bucket, input.key, input.version_id).await?;
        Ok(S3Response::new(GetObjectAclOutput {
            grants: Some(private()),
            owner: Some(owner()),
            ..GetObjectAclOutput::default()
        }))
    }

    async fn put_object_acl(&self, request: S3Request<PutObjectAclInput>) -> Answer<PutObjectAclOutput> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        self.known(&bucket, input.key, input.version_id).await?;
        match input.acl.as_ref().map(ObjectCannedACL::as_str) {
            Some("private") => Ok(S3Response::new(PutObjectAclOutput::default())),
            _ => Err(unsupported("an ACL other than private")),
        }
    }

    async fn post_object(&self, _: S3Request<PostObjectInput>) -> Answer<PostObjectOutput> {
        Err(unsupported("storing by an HTML form"))
    }
}
