//! The service: what all of S3's operations have at hand.

use crate::access::{Access, Auth};
use crate::directory::Directory;
use crate::document::DOCUMENT_BYTES;
use crate::past::split;
use s3s::config::{S3Config, StaticConfigProvider};
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
        builder.set_config(Arc::new(StaticConfigProvider::new(Arc::new(limits()))));
        builder.build()
    }
}

/// What s3s may have in memory of a body.
fn limits() -> S3Config {
    let mut limits = S3Config::default();
    limits.xml_max_body_size = DOCUMENT_BYTES;
    // Forms are refused before it sees them.
    limits.post_object_max_file_size = 0;
    limits.form_max_field_size = 0;
    limits.form_max_fields_size = 0;
    limits.form_max_parts = 0;
    limits
}

/// The names that requests may name: buckets', and buckets' in a snapshot.
struct Names;

impl NameValidation for Names {
    fn validate_bucket_name(&self, name: &str) -> bool {
        AwsNameValidation::new().validate_bucket_name(split(name).map_or(name, |(bucket, _)| bucket))
    }
}
