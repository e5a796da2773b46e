//! The service: what all of S3's operations have at hand.

use crate::access::{Access, Auth};
use crate::directory::Directory;
use crate::past::split;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::validation::{AwsNameValidation, NameValidation};
use std::sync::Arc;

/// S3 on an object store. Clones are the same service.
#[derive(Clone)]
pub struct Service {
    pub(crate) directory: Arc<Directory>,
}

impl Service {
    /// S3 on what `directory` knows.
    pub fn new(directory: Arc<Directory>) -> Self {
        Self { directory }
    }

    /// The same behind signatures and access rules.
    pub(crate) fn guarded(self) -> S3Service {
        let directory = Arc::clone(&self.directory);
        let mut builder = S3ServiceBuilder::new(self);
        builder.set_auth(Auth(Arc::clone(&directory)));
        builder.set_access(Access(directory));
        builder.set_validation(Names);
        builder.build()
    }
}

/// The names that requests may name: buckets', and buckets' in a snapshot.
struct Names;

impl NameValidation for Names {
    fn validate_bucket_name(&self, name: &str) -> bool {
        AwsNameValidation::new().validate_bucket_name(split(name).map_or(name, |(bucket, _)| bucket))
    }
}
