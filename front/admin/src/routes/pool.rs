//! The pool, its disks and controllers.

use super::Shared;
use crate::{Controller, Disk, Pool, Problem};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use kura_block::DeviceId;

/// The pool and its disks.
#[utoipa::path(get, path = "/api/v1/pool", tag = "pool", responses(
    (status = 200, description = "The pool", body = Pool),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn pool(State(door): Shared) -> Result<Json<Pool>, Problem> {
    Ok(Json(door.admin.node.pool().await?.into()))
}

/// The pool's disks, by number.
#[utoipa::path(get, path = "/api/v1/disks", tag = "pool", responses(
    (status = 200, description = "The disks", body = [Disk]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn disks(State(door): Shared) -> Result<Json<Vec<Disk>>, Problem> {
    Ok(Json(Pool::from(door.admin.node.pool().await?).disks))
}

/// Marks a disk as failed: it is not used until it is replaced.
#[utoipa::path(post, path = "/api/v1/disks/{id}/fail", tag = "pool",
    params(("id" = u16, Path, description = "The disk's number")),
    responses(
        (status = 204, description = "It is used no more"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn fail_disk(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let id = id?.0;
    door.admin.node.fail_disk(DeviceId(id)).await?;
    tracing::warn!(disk = id, "disk failed by hand");
    Ok(StatusCode::NO_CONTENT)
}

/// The controllers, by number.
#[utoipa::path(get, path = "/api/v1/controllers", tag = "pool", responses(
    (status = 200, description = "The controllers", body = [Controller]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn controllers(State(door): Shared) -> Result<Json<Vec<Controller>>, Problem> {
    let controllers = door.admin.node.controllers().await?;
    Ok(Json(controllers.into_iter().map(Controller::from).collect()))
}
