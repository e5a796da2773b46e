//! Copies of volumes: what kuras elsewhere ask for and send.

use super::Shared;
use super::volumes::Name;
use crate::given::Given;
use crate::{Follow, NewPoint, NewTransfer, PartHash, Problem, ProblemKind, Replica, ReplicationJob};
use axum::Json;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use bytes::Bytes;
use serde::Deserialize;

/// A frame's bytes at most: what it aims at, twice, for what does not compress.
pub(super) const FRAME_BYTES: usize = 16 << 20;
/// Frames that are taken at once: each is in memory as a whole.
pub(super) const FRAMES: usize = 16;

/// All volumes that are, or were, copies.
#[utoipa::path(get, path = "/api/v1/replicas", tag = "replicas", operation_id = "list_replicas", responses(
    (status = 200, description = "The copies", body = [Replica]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn list(State(door): Shared) -> Result<Json<Vec<Replica>>, Problem> {
    Ok(Json(door.admin.replicas.list().await?))
}

/// The copies that are kept elsewhere by this server's data directory, of trees, volumes and buckets.
#[utoipa::path(get, path = "/api/v1/replication-jobs", tag = "replicas", operation_id = "list_replication_jobs",
    responses(
        (status = 200, description = "The jobs", body = [ReplicationJob]),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn jobs(State(door): Shared) -> Result<Json<Vec<ReplicationJob>>, Problem> {
    Ok(Json(door.admin.replicas.jobs().await?))
}

/// A copy.
#[utoipa::path(get, path = "/api/v1/replicas/{volume}", tag = "replicas", operation_id = "show_replica",
    params(("volume" = String, Path, description = "The volume that is the copy")),
    responses(
        (status = 200, description = "The copy", body = Replica),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn show(State(door): Shared, volume: Name) -> Result<Json<Replica>, Problem> {
    let volume = volume?.0;
    let found = door.admin.replicas.list().await?.into_iter().find(|replica| replica.volume == volume);
    let missing = || Problem::new(ProblemKind::Missing, format!("volume {volume}: is not a copy"));
    found.map(Json).ok_or_else(missing)
}

/// Makes a volume a copy: what it has beyond the point is lost.
#[utoipa::path(put, path = "/api/v1/replicas/{volume}", tag = "replicas", operation_id = "follow",
    params(("volume" = String, Path, description = "The volume")), request_body = Follow,
    responses(
        (status = 200, description = "The copy", body = Replica),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn follow(
    State(door): Shared,
    volume: Name,
    Given(how): Given<Follow>,
) -> Result<Json<Replica>, Problem> {
    Ok(Json(door.admin.replicas.follow(&volume?.0, how).await?))
}

/// Begins a transfer, or goes on with it; the volume is made if there is none.
#[utoipa::path(post, path = "/api/v1/replicas/{volume}/transfer", tag = "replicas", operation_id = "begin_transfer",
    params(("volume" = String, Path, description = "The volume that is the copy")), request_body = NewTransfer,
    responses(
        (status = 200, description = "The copy; without a transfer where the point is complete", body = Replica),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn begin(
    State(door): Shared,
    volume: Name,
    Given(new): Given<NewTransfer>,
) -> Result<Json<Replica>, Problem> {
    Ok(Json(door.admin.replicas.begin(&volume?.0, new).await?))
}

/// Puts a frame of the transfer into its place, durably.
#[utoipa::path(post, path = "/api/v1/replicas/{volume}/frames", tag = "replicas", operation_id = "apply_frame",
    params(("volume" = String, Path, description = "The volume that is the copy")),
    request_body(content_type = "application/octet-stream", description = "The frame, as a source gave it"),
    responses(
        (status = 204, description = "It is there"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn apply(
    State(door): Shared,
    volume: Name,
    frame: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Problem> {
    let frame = frame.map_err(|rejection| Problem::new(ProblemKind::Invalid, rejection.body_text()))?;
    door.admin.replicas.apply(&volume?.0, frame).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Makes the point that the transfer was to.
#[utoipa::path(post, path = "/api/v1/replicas/{volume}/points", tag = "replicas", operation_id = "complete_transfer",
    params(("volume" = String, Path, description = "The volume that is the copy")), request_body = NewPoint,
    responses(
        (status = 200, description = "The copy", body = Replica),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn complete(
    State(door): Shared,
    volume: Name,
    Given(point): Given<NewPoint>,
) -> Result<Json<Replica>, Problem> {
    Ok(Json(door.admin.replicas.complete(&volume?.0, &point.to).await?))
}

/// Lets a copy go, as it was at its newest complete point: from then on it is a volume like any other. One that was let go before
/// stays what it is.
#[utoipa::path(post, path = "/api/v1/replicas/{volume}/promote", tag = "replicas", operation_id = "promote",
    params(("volume" = String, Path, description = "The volume that is the copy")),
    responses(
        (status = 200, description = "What was the copy", body = Replica),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn promote(State(door): Shared, volume: Name) -> Result<Json<Replica>, Problem> {
    Ok(Json(door.admin.replicas.promote(&volume?.0).await?))
}

/// From which snapshot and offset on.
#[derive(Deserialize)]
pub(super) struct From {
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    offset_bytes: u64,
}

/// What a snapshot has, or what changed after an earlier one: a piece of it, for a copy elsewhere.
#[utoipa::path(get, path = "/api/v1/snapshots/{name}/frame", tag = "replicas", operation_id = "frame",
    params(
        ("name" = String, Path, description = "The snapshot's name, VOLUME@NAME"),
        ("since" = Option<String>, Query, description = "The earlier snapshot; all is sent where there is none"),
        ("offset_bytes" = Option<u64>, Query, description = "Where the piece begins"),
    ),
    responses(
        (status = 200, description = "The frame", content_type = "application/octet-stream"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn frame(
    State(door): Shared,
    name: Name,
    from: Result<Query<From>, QueryRejection>,
) -> Result<impl IntoResponse, Problem> {
    let From { since, offset_bytes } = from?.0;
    let frame = door.admin.replicas.frame(&name?.0, since.as_deref(), offset_bytes).await?;
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], frame))
}

/// The checksum of a part of a snapshot.
#[utoipa::path(get, path = "/api/v1/snapshots/{name}/hash", tag = "replicas", operation_id = "part_hash",
    params(
        ("name" = String, Path, description = "The snapshot's name, VOLUME@NAME"),
        ("offset_bytes" = Option<u64>, Query, description = "Where the part begins"),
    ),
    responses(
        (status = 200, description = "The checksum", body = PartHash),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn hash(
    State(door): Shared,
    name: Name,
    from: Result<Query<From>, QueryRejection>,
) -> Result<Json<PartHash>, Problem> {
    Ok(Json(door.admin.replicas.hash(&name?.0, from?.offset_bytes).await?))
}
