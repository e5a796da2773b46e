//! Deleting objects: for good, or, with versioning, by a delete marker.

use crate::bucket::Versioning;
use crate::directory::now_ms;
use crate::meta::{version_id, which};
use crate::problem::{problem, refusal, unsupported};
use crate::service::Service;
use kura_object::{Batch, Changed, PartitionId, Store, Which};
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, Error,
    ObjectIdentifier,
};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

/// Keys that one request may delete, as in S3.
const KEYS_LIMIT: usize = 1000;

/// Adds what deleting means to a batch: of one version for good, else as [`crate::bucket::Bucket::versioning_now`] says.
pub(crate) fn delete(batch: &mut Batch, bucket: PartitionId, versioning: Versioning, key: &[u8], version: Which) {
    match (version, versioning) {
        (Which::Latest, Versioning::Never) => batch.remove(bucket, key, Which::Unversioned),
        (Which::Latest, versioning) => batch.mark(bucket, key, now_ms(), versioning.adds()),
        (version, _) => batch.remove(bucket, key, version),
    };
}

fn refuse_if(is_conditional: bool) -> S3Result<()> {
    if is_conditional { Err(unsupported("deleting under a condition")) } else { Ok(()) }
}

/// What a client is told of a deletion: the version, and whether that is a delete marker.
fn outcome(changed: &Changed) -> (Option<String>, Option<bool>) {
    let stat = changed.now.as_ref().or(changed.before.as_ref());
    let marker = stat.is_some_and(|stat| stat.marker);
    (stat.map(version_id), marker.then_some(true))
}

impl Service {
    pub(crate) async fn delete(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = request.input;
        let is_conditional =
            input.if_match.is_some() || input.if_match_size.is_some() || input.if_match_last_modified_time.is_some();
        refuse_if(is_conditional)?;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let version = which(input.version_id.as_deref())?;
        let way = bucket.way().clone();
        let remove = async move |store: Store| {
            let versioning = bucket.versioning_now().await;
            let mut batch = Batch::new();
            delete(&mut batch, bucket.id, *versioning, input.key.as_bytes(), version);
            let changed = store.commit(batch).await.map_err(refusal)?;
            Ok::<_, S3Error>((changed, versioning.is_known()))
        };
        let (changed, is_known) = way.ask(remove).await?;
        let mut output = DeleteObjectOutput::default();
        if let Some(changed) = changed.first().filter(|_| is_known) {
            (output.version_id, output.delete_marker) = outcome(changed);
        }
        Ok(S3Response::new(output))
    }

    pub(crate) async fn delete_many(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let input = request.input;
        let bucket = self.directory.bucket(&input.bucket).await?;
        let asked = input.delete.objects;
        if asked.is_empty() || asked.len() > KEYS_LIMIT {
            return Err(problem(
                S3ErrorCode::MalformedXML,
                format!("a request deletes 1 to {KEYS_LIMIT} keys, not {}", asked.len()),
            ));
        }
        let mut output = DeleteObjectsOutput::default();
        let mut errors = Vec::new();
        let mut wanted = Vec::new();
        for object in asked {
            let asked = (object.key.as_str(), object.version_id.is_some());
            let may = self.directory.check(request.credentials.as_ref(), &bucket.name, "DeleteObject", asked);
            let is_conditional = object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some();
            let may = may.and_then(|()| refuse_if(is_conditional));
            match may.and_then(|()| which(object.version_id.as_deref())) {
                Ok(version) => wanted.push((object, version)),
                Err(error) => errors.push(told(&object, &error)),
            }
        }
        let way = bucket.way().clone();
        let remove = async move |store: Store| {
            let mut done = Vec::new();
            let versioning = bucket.versioning_now().await;
            // One batch a key: that one cannot be deleted must not keep the others. They go into the log together.
            let commits = wanted.iter().map(|(object, version)| {
                let mut batch = Batch::new();
                delete(&mut batch, bucket.id, *versioning, object.key.as_bytes(), *version);
                store.commit(batch)
            });
            let results = futures::future::join_all(commits).await;
            for ((object, _), result) in wanted.into_iter().zip(results) {
                done.push((object, result.map_err(refusal)));
            }
            Ok::<_, S3Error>((done, versioning.is_known()))
        };
        let (done, is_known) = way.ask(remove).await?;
        let mut deleted = Vec::new();
        for (object, result) in done {
            match result {
                Err(error) => errors.push(told(&object, &error)),
                Ok(changed) => deleted.push(tell(object, changed.first().filter(|_| is_known))),
            }
        }
        if input.delete.quiet != Some(true) {
            output.deleted = Some(deleted);
        }
        output.errors = Some(errors);
        Ok(S3Response::new(output))
    }
}

fn tell(object: ObjectIdentifier, changed: Option<&Changed>) -> DeletedObject {
    let (version, marker) = changed.map(outcome).unwrap_or_default();
    let is_new_marker = changed.is_some_and(|changed| changed.now.is_some());
    DeletedObject {
        key: Some(object.key),
        delete_marker: marker,
        delete_marker_version_id: marker.and(version),
        version_id: object.version_id.filter(|_| !is_new_marker),
    }
}

fn told(object: &ObjectIdentifier, error: &S3Error) -> Error {
    Error {
        code: Some(error.code().as_str().to_owned()),
        key: Some(object.key.clone()),
        message: error.message().map(str::to_owned),
        version_id: object.version_id.clone(),
    }
}
