//! The service: what all of S3's operations have at hand.

use crate::access::{Access, Auth};
use crate::body::document::DOCUMENT_BYTES;
use crate::directory::Directory;
use crate::door::Stopped;
use crate::past::bucket_of;
use futures::future::BoxFuture;
use s3s::config::{S3Config, StaticConfigProvider};
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::validation::{AwsNameValidation, NameValidation};
use s3s::{S3Error, S3Result};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tracing::Instrument;

/// S3 on an object store. Clones are the same service.
#[derive(Clone)]
pub struct Service {
    pub(crate) directory: Arc<Directory>,
    /// Places of copies that go on without their clients.
    copies: Arc<Semaphore>,
}

/// Copies that go on although their clients may be gone.
const COPIES: usize = 64;

impl Service {
    /// S3 on what `directory` knows.
    pub fn new(directory: Arc<Directory>) -> Self {
        Self { directory, copies: Arc::new(Semaphore::new(COPIES)) }
    }

    /// Does a copy to its end, also when its client gives up meanwhile: else all that was copied would be in vain, and so it would
    /// each time that it is tried again. Beyond [`COPIES`] at a time, one ends when its client goes.
    pub(crate) async fn copied<T: Send + 'static>(&self, copy: BoxFuture<'static, S3Result<T>>) -> S3Result<T> {
        let Ok(place) = Arc::clone(&self.copies).try_acquire_owned() else { return copy.await };
        // On a thread that serves HTTP: it reads what the client sent, and half of a copy is nothing.
        let copied = async move {
            let _place = place;
            copy.await
        };
        tokio::spawn(copied.in_current_span()).await.map_err(|_| S3Error::from(Stopped))?
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
        AwsNameValidation::new().validate_bucket_name(bucket_of(name))
    }
}
