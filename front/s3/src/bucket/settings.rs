//! What is set on a bucket: versioning, its policy, CORS and lifecycle rules; and its one access list.

use crate::bucket::lifecycle;
use crate::bucket::policy::{Policy, Refused};
use crate::bucket::{Setting, Versioning, to_xml};
use crate::list::owner;
use crate::problem::{problem, unsupported};
use crate::service::Service;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Request, S3Response, S3Result};

type Answer<T> = S3Result<S3Response<T>>;

/// CORS rules at most, as in S3.
const CORS_RULES: usize = 100;
const CORS_METHODS: [&str; 5] = ["GET", "PUT", "HEAD", "POST", "DELETE"];

impl Service {
    pub(crate) async fn put_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> Answer<PutBucketVersioningOutput> {
        let PutBucketVersioningInput { bucket, versioning_configuration: set, .. } = request.input;
        if set.mfa_delete.is_some_and(|mfa| mfa.as_str() == MFADelete::ENABLED) {
            return Err(unsupported("deleting by a second factor"));
        }
        let status = set.status.as_ref().map(BucketVersioningStatus::as_str);
        let Some("Enabled" | "Suspended") = status else {
            return Err(problem(
                S3ErrorCode::IllegalVersioningConfigurationException,
                "Status is Enabled or Suspended",
            ));
        };
        self.directory.set(&bucket, Setting::Versioning, status.map(|status| status.as_bytes().to_vec())).await?;
        Ok(S3Response::new(PutBucketVersioningOutput {}))
    }

    pub(crate) async fn get_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> Answer<GetBucketVersioningOutput> {
        let status = match self.directory.bucket(&request.input.bucket).await?.versioning {
            Versioning::Never => None,
            Versioning::Enabled => Some(BucketVersioningStatus::ENABLED),
            Versioning::Suspended => Some(BucketVersioningStatus::SUSPENDED),
        };
        let status = status.map(BucketVersioningStatus::from_static);
        Ok(S3Response::new(GetBucketVersioningOutput { status, ..GetBucketVersioningOutput::default() }))
    }

    pub(crate) async fn put_policy(&self, request: S3Request<PutBucketPolicyInput>) -> Answer<PutBucketPolicyOutput> {
        let PutBucketPolicyInput { bucket, policy, .. } = request.input;
        Policy::new(&policy, &bucket).map_err(|refused| match refused {
            Refused::Malformed(text) => problem(S3ErrorCode::MalformedPolicy, text),
            Refused::Unsupported(what) => unsupported(what),
        })?;
        self.directory.set(&bucket, Setting::Policy, Some(policy.into_bytes())).await?;
        // As S3 answers: there is nothing to say.
        Ok(S3Response::with_status(PutBucketPolicyOutput {}, hyper::StatusCode::NO_CONTENT))
    }

    pub(crate) async fn get_policy(&self, request: S3Request<GetBucketPolicyInput>) -> Answer<GetBucketPolicyOutput> {
        let bucket = self.directory.bucket(&request.input.bucket).await?;
        let policy = bucket.policy.as_ref().ok_or(S3ErrorCode::NoSuchBucketPolicy)?;
        Ok(S3Response::new(GetBucketPolicyOutput { policy: Some(policy.text.clone()) }))
    }

    pub(crate) async fn get_policy_status(
        &self,
        request: S3Request<GetBucketPolicyStatusInput>,
    ) -> Answer<GetBucketPolicyStatusOutput> {
        let bucket = self.directory.bucket(&request.input.bucket).await?;
        let policy = bucket.policy.as_ref().ok_or(S3ErrorCode::NoSuchBucketPolicy)?;
        let policy_status = Some(PolicyStatus { is_public: Some(policy.is_public()) });
        Ok(S3Response::new(GetBucketPolicyStatusOutput { policy_status }))
    }

    pub(crate) async fn put_cors(&self, request: S3Request<PutBucketCorsInput>) -> Answer<PutBucketCorsOutput> {
        let PutBucketCorsInput { bucket, cors_configuration, .. } = request.input;
        let rules = &cors_configuration.cors_rules;
        let known = |method: &String| CORS_METHODS.contains(&method.as_str());
        if rules.is_empty() || rules.len() > CORS_RULES {
            return Err(problem(S3ErrorCode::MalformedXML, format!("there are 1 to {CORS_RULES} CORS rules")));
        }
        if !rules.iter().all(|rule| rule.allowed_methods.iter().all(known)) {
            let text = format!("a method is one of {}", CORS_METHODS.join(", "));
            return Err(problem(S3ErrorCode::InvalidRequest, text));
        }
        self.directory.set(&bucket, Setting::Cors, Some(to_xml(&cors_configuration)?)).await?;
        Ok(S3Response::new(PutBucketCorsOutput {}))
    }

    pub(crate) async fn get_cors(&self, request: S3Request<GetBucketCorsInput>) -> Answer<GetBucketCorsOutput> {
        let bucket = self.directory.bucket(&request.input.bucket).await?;
        let cors = bucket.cors.clone().ok_or(S3ErrorCode::NoSuchCORSConfiguration)?;
        Ok(S3Response::new(GetBucketCorsOutput { cors_rules: Some(cors.cors_rules) }))
    }

    pub(crate) async fn put_lifecycle(
        &self,
        request: S3Request<PutBucketLifecycleConfigurationInput>,
    ) -> Answer<PutBucketLifecycleConfigurationOutput> {
        let input = request.input;
        let missing = || problem(S3ErrorCode::MalformedXML, "there are no rules");
        let configuration = input.lifecycle_configuration.ok_or_else(missing)?;
        lifecycle::check(&configuration)?;
        self.directory.set(&input.bucket, Setting::Lifecycle, Some(to_xml(&configuration)?)).await?;
        Ok(S3Response::new(PutBucketLifecycleConfigurationOutput::default()))
    }

    pub(crate) async fn get_lifecycle(
        &self,
        request: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> Answer<GetBucketLifecycleConfigurationOutput> {
        let bucket = self.directory.bucket(&request.input.bucket).await?;
        let lifecycle = bucket.lifecycle.clone().ok_or(S3ErrorCode::NoSuchLifecycleConfiguration)?;
        Ok(S3Response::new(GetBucketLifecycleConfigurationOutput {
            rules: Some(lifecycle.rules),
            ..GetBucketLifecycleConfigurationOutput::default()
        }))
    }
}

/// The access list of everything: its owner may do everything, and nobody else anything.
pub(crate) fn private() -> Vec<Grant> {
    let owner = owner();
    let grantee = Grantee {
        display_name: owner.display_name,
        email_address: None,
        id: owner.id,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    vec![Grant { grantee: Some(grantee), permission: Some(Permission::from_static(Permission::FULL_CONTROL)) }]
}
