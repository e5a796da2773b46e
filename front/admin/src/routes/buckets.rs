//! Buckets and access keys.

use super::volumes::Name;
use super::{Door, IsTrial, Shared};
use crate::{AccessKey, Bucket, NewBucket, NewKey, Objects, Problem, ProblemKind};
use crate::{given::Given, paths};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;

impl Door {
    /// The object store, where this server has one.
    pub(super) fn objects(&self) -> Result<&dyn Objects, Problem> {
        let why =
            "this server has no object store: it was started with --s3 off, or could not open it, as its log says";
        let none = || Problem::new(ProblemKind::Missing, why);
        self.admin.objects.as_deref().ok_or_else(none)
    }
}

/// All buckets, by name.
#[utoipa::path(get, path = "/api/v1/buckets", tag = "objects", operation_id = "list_buckets", responses(
    (status = 200, description = "The buckets", body = [Bucket]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn list(State(door): Shared) -> Result<Json<Vec<Bucket>>, Problem> {
    Ok(Json(door.objects()?.buckets()))
}

/// Makes a bucket.
#[utoipa::path(post, path = "/api/v1/buckets", tag = "objects", operation_id = "create_bucket",
    request_body = NewBucket,
    responses(
        (status = 201, description = "The bucket, made; its address is in `Location`", body = Bucket),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn create(State(door): Shared, Given(new): Given<NewBucket>) -> Result<impl IntoResponse, Problem> {
    let bucket = door.objects()?.create_bucket(new).await?;
    tracing::info!(bucket = bucket.name, "bucket created");
    let address = paths::bucket(&bucket.name);
    Ok((StatusCode::CREATED, [(header::LOCATION, address)], Json(bucket)))
}

/// Deletes a bucket that holds nothing.
#[utoipa::path(delete, path = "/api/v1/buckets/{bucket}", tag = "objects", operation_id = "delete_bucket",
    params(
        ("bucket" = String, Path, description = "The bucket's name"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn delete(State(door): Shared, name: Name, trial: IsTrial) -> Result<StatusCode, Problem> {
    let name = name?.0;
    if trial?.dry_run {
        door.objects()?.check_delete_bucket(&name).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    door.objects()?.delete_bucket(&name).await?;
    tracing::info!(bucket = name, "bucket deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// All access keys, without their secrets.
#[utoipa::path(get, path = "/api/v1/keys", tag = "objects", operation_id = "list_keys", responses(
    (status = 200, description = "The access keys", body = [AccessKey]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn keys(State(door): Shared) -> Result<Json<Vec<AccessKey>>, Problem> {
    Ok(Json(door.objects()?.keys()))
}

/// Makes an access key. Its secret is told only now.
#[utoipa::path(post, path = "/api/v1/keys", tag = "objects", operation_id = "create_key", request_body = NewKey,
    responses(
        (status = 201, description = "The access key, with its secret", body = AccessKey),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn create_key(State(door): Shared, Given(new): Given<NewKey>) -> Result<impl IntoResponse, Problem> {
    let key = door.objects()?.create_key(new).await?;
    tracing::info!(key = key.id, name = key.name, "access key created");
    Ok((StatusCode::CREATED, [(header::LOCATION, format!("/api/v1/keys/{}", key.id))], Json(key)))
}

/// Revokes an access key: nothing that it signs is done any more.
#[utoipa::path(delete, path = "/api/v1/keys/{id}", tag = "objects", operation_id = "revoke_key",
    params(
        ("id" = String, Path, description = "What a request shows of the key"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 204, description = "It is revoked"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn revoke_key(State(door): Shared, id: Name, trial: IsTrial) -> Result<StatusCode, Problem> {
    let id = id?.0;
    if trial?.dry_run {
        door.objects()?.check_revoke_key(&id)?;
        return Ok(StatusCode::NO_CONTENT);
    }
    door.objects()?.revoke_key(&id).await?;
    tracing::info!(key = id, "access key revoked");
    Ok(StatusCode::NO_CONTENT)
}
