//! The pool, its disks and controllers.

use super::{Disks, Door, Shared};
use crate::{Controller, Disk, DiskState, DrainedController, NewDisk, Pool, Problem};
use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use kura_block::{DeviceId, Error};
use std::sync::Arc;
use uuid::Uuid;

/// The pool and its disks.
#[utoipa::path(get, path = "/api/v1/pool", tag = "pool", responses(
    (status = 200, description = "The pool", body = Pool),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn pool(State(door): Shared) -> Result<Json<Pool>, Problem> {
    Ok(Json(door.pool().await?))
}

/// The pool's disks, by number.
#[utoipa::path(get, path = "/api/v1/disks", tag = "pool", responses(
    (status = 200, description = "The disks", body = [Disk]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn disks(State(door): Shared) -> Result<Json<Vec<Disk>>, Problem> {
    Ok(Json(door.pool().await?.disks))
}

/// Adds a disk to the pool. Everything on it is lost.
#[utoipa::path(post, path = "/api/v1/disks", tag = "pool", request_body = NewDisk, responses(
    (status = 201, description = "The disk, in use", body = Disk),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn add_disk(
    State(door): Shared,
    new: Result<Json<NewDisk>, JsonRejection>,
) -> Result<impl IntoResponse, Problem> {
    let (new, uuid) = (new?.0, Uuid::new_v4());
    let class = new.class.into();
    let path = door.ask_host(move |host| host.prepare(&new)).await?;
    let disk = Disk::from(door.admin.node.add_disk(path.clone(), class, *uuid.as_bytes()).await?);
    tracing::info!(disk = disk.id, path, "disk added");
    door.ask_host(move |host| host.remember(uuid, &path)).await?;
    Ok((StatusCode::CREATED, Json(disk)))
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

/// Lets a disk leave the pool: it takes nothing new from now on, what it holds moves to the others, and then the pool
/// forgets it. Its `state` and `unwanted_bytes` tell how far it is; a restart changes nothing.
#[utoipa::path(post, path = "/api/v1/disks/{id}/remove", tag = "pool",
    params(("id" = u16, Path, description = "The disk's number")),
    responses(
        (status = 202, description = "It leaves"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn remove_disk(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
) -> Result<StatusCode, Problem> {
    let id = id?.0;
    door.admin.node.remove_disk(DeviceId(id)).await?;
    tracing::info!(disk = id, "disk leaves");
    Ok(StatusCode::ACCEPTED)
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

/// Moves all volumes of a controller to the others, while clients use them; it takes none until it is resumed, or the server
/// starts again.
#[utoipa::path(post, path = "/api/v1/controllers/{id}/drain", tag = "pool", operation_id = "drain_controller",
    params(("id" = u16, Path, description = "The controller's number")),
    responses(
        (status = 200, description = "What moved, and what stays", body = DrainedController),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn drain(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
) -> Result<Json<DrainedController>, Problem> {
    let id = id?.0;
    let drained = DrainedController::from(door.admin.node.drain(id).await?);
    tracing::info!(controller = id, moved = drained.moved.len(), stays = drained.stays.len(), "controller drained");
    Ok(Json(drained))
}

/// Lets a controller that was drained take volumes again.
#[utoipa::path(post, path = "/api/v1/controllers/{id}/resume", tag = "pool", operation_id = "resume_controller",
    params(("id" = u16, Path, description = "The controller's number")),
    responses(
        (status = 204, description = "It takes volumes"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn resume(State(door): Shared, id: Result<Path<u16>, PathRejection>) -> Result<StatusCode, Problem> {
    door.admin.node.resume(id?.0).await?;
    Ok(StatusCode::NO_CONTENT)
}

impl Door {
    /// The pool, in which a disk that is away is named by where it was last.
    pub(super) async fn pool(&self) -> Result<Pool, Problem> {
        let node = &self.admin.node;
        let mut pool = Pool::new(node.pool().await?, node.space().await?, *self.admin.passed_percent.borrow());
        for disk in pool.disks.iter_mut().filter(|disk| disk.state == DiskState::Missing) {
            if let Some(path) = self.admin.disks.last_path(disk.uuid) {
                disk.path = path;
            }
        }
        Ok(pool)
    }

    /// Does what may block aside.
    async fn ask_host<T: Send + 'static>(
        &self,
        ask: impl FnOnce(&dyn Disks) -> kura_block::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        let host = Arc::clone(&self.admin.disks);
        let answer = tokio::task::spawn_blocking(move || ask(&*host)).await;
        Ok(answer.map_err(|_| Error::retry("the server is stopping"))??)
    }
}
