//! The pool, its disks and controllers.

use super::jobs::{accepted, begun};
use super::{Admin, Disks, Door, IsTrial, Removal, Shared};
use crate::given::Given;
use crate::{
    Controller, Disk, DrainedController, Job, JobKind, JobResult, NewDisk, Pool, Problem, ProblemKind, Replacement,
    Replacing,
};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use kura_block::{DeviceId, Error};
use std::sync::Arc;
use tracing::Instrument;
use uuid::Uuid;

/// The pool and its disks.
#[utoipa::path(get, path = "/api/v1/pool", tag = "pool", responses(
    (status = 200, description = "The pool", body = Pool),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn pool(State(door): Shared) -> Result<Json<Pool>, Problem> {
    Ok(Json(door.admin.pool().await?))
}

/// The pool's disks, by number.
#[utoipa::path(get, path = "/api/v1/disks", tag = "pool", responses(
    (status = 200, description = "The disks", body = [Disk]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn disks(State(door): Shared) -> Result<Json<Vec<Disk>>, Problem> {
    Ok(Json(door.admin.pool().await?.disks))
}

/// Adds a disk to the pool. Everything on it is lost.
#[utoipa::path(post, path = "/api/v1/disks", tag = "pool",
    params(("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing")),
    request_body = NewDisk,
    responses(
        (status = 201, description = "The disk, in use", body = Disk),
        (status = 204, description = "Nothing would be refused"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn add_disk(
    State(door): Shared,
    trial: IsTrial,
    Given(new): Given<NewDisk>,
) -> Result<Response, Problem> {
    let dry_run = trial?.dry_run;
    let added = door.to_its_end(|door| async move {
        let _alone = door.joining.lock().await;
        // What is refused leaves no file behind.
        let (path, class, inspected) = (new.path.clone(), new.class.into(), new.clone());
        let size_bytes = door.ask_host(move |host| host.inspect(&inspected)).await?;
        door.admin.node.check_add_disk(path, class, size_bytes).await?;
        if dry_run { Ok(None) } else { door.add_disk(new).await.map(Some) }
    });
    Ok(match added.await? {
        Some(added) => (StatusCode::CREATED, Json(added)).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Marks a disk as failed: it is not used until it is replaced, and what it held is copied to the others. Refused where it has
/// the only copy of something.
#[utoipa::path(post, path = "/api/v1/disks/{id}/fail", tag = "pool",
    params(
        ("id" = u16, Path, description = "The disk's number"),
        ("force" = Option<bool>, Query, description = "Do it even if this disk holds the only copy of some data, which is then lost"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 202, description = "It is no longer used; the job copies what it held", body = Job),
        (status = 204, description = "Nothing would be refused"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn fail_disk(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
    removal: Result<Query<Removal>, QueryRejection>,
) -> Result<Response, Problem> {
    let (id, Query(Removal { force, dry_run })) = (id?.0, removal?);
    if dry_run {
        door.admin.node.check_fail_disk(DeviceId(id), force).await?;
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let job = door.to_its_end(|door| async move {
        door.admin.node.fail_disk(DeviceId(id), force).await?;
        tracing::warn!(disk = id, "disk failed by hand");
        let failed = door.disk(id).await?;
        door.follow_disk(JobKind::RebuildDisk, failed)
    });
    Ok(accepted(job.await?).into_response())
}

/// Lets a disk leave the pool: it takes nothing new from now on, what it holds moves to the others, and then the pool
/// forgets it. Its `state` and `unwanted_bytes` tell how far it is; a restart changes nothing.
#[utoipa::path(post, path = "/api/v1/disks/{id}/remove", tag = "pool",
    params(
        ("id" = u16, Path, description = "The disk's number"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 202, description = "It leaves: the job moves what it holds", body = Job),
        (status = 204, description = "Nothing would be refused"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn remove_disk(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
    trial: IsTrial,
) -> Result<Response, Problem> {
    let id = id?.0;
    if trial?.dry_run {
        door.admin.node.check_remove_disk(DeviceId(id), None).await?;
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let job = door.to_its_end(|door| async move { door.remove_disk(id).await });
    Ok(accepted(job.await?).into_response())
}

/// Adds a disk and lets another one of its class leave the pool, as `remove` does. What would be refused is refused before
/// the new one is added.
#[utoipa::path(post, path = "/api/v1/disks/{id}/replace", tag = "pool",
    params(
        ("id" = u16, Path, description = "The number of the disk that leaves"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    request_body = Replacement,
    responses(
        (status = 202, description = "The new disk is in use, and the other one leaves: the job moves what it holds", body = Replacing),
        (status = 204, description = "Nothing would be refused"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn replace_disk(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
    trial: IsTrial,
    Given(new): Given<Replacement>,
) -> Result<Response, Problem> {
    let (id, Replacement { path, size_bytes, force }) = (id?.0, new);
    let dry_run = trial?.dry_run;
    let replacing = door.to_its_end(|door| async move {
        let _alone = door.joining.lock().await;
        let new = NewDisk { path, class: door.disk(id).await?.class, size_bytes, force };
        let inspected = new.clone();
        let size_bytes = door.ask_host(move |host| host.inspect(&inspected)).await?;
        door.admin.node.check_remove_disk(DeviceId(id), Some((new.path.clone(), size_bytes))).await?;
        if dry_run {
            return Ok(None);
        }
        let new_disk = door.add_disk(new).await?.id;
        let stays = |problem: Problem| Problem {
            error: format!("disk {new_disk} has joined, but disk {id} does not leave: {}", problem.error),
            ..problem
        };
        Ok(Some(Replacing { job: door.remove_disk(id).await.map_err(stays)?, new_disk }))
    });
    Ok(match replacing.await? {
        Some(replacing) => begun(replacing.job.id, replacing).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
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

/// Moves all volumes of a controller to the others, while clients use them; it takes none until it is resumed, also when the
/// server starts again.
#[utoipa::path(post, path = "/api/v1/controllers/{id}/drain", tag = "pool", operation_id = "drain_controller",
    params(("id" = u16, Path, description = "The controller's number")),
    responses(
        (status = 202, description = "The job; what moved and what stays is its result", body = Job),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn drain(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
) -> Result<impl IntoResponse, Problem> {
    let (id, node) = (id?.0, door.admin.node.clone());
    node.check_controller(id)?;
    let job = door.jobs.start(JobKind::DrainController, Some(id.to_string()), move |teller| async move {
        let drained = DrainedController::from(node.drain_along(id, &teller.progress).await?);
        tracing::info!(controller = id, moved = drained.moved.len(), stays = drained.stays.len(), "controller drained");
        Ok(JobResult::Drained(drained))
    })?;
    Ok(accepted(job))
}

/// Lets a controller that was drained take volumes again.
#[utoipa::path(post, path = "/api/v1/controllers/{id}/resume", tag = "pool", operation_id = "resume_controller",
    params(("id" = u16, Path, description = "The controller's number")),
    responses(
        (status = 200, description = "The controller, which takes volumes", body = Controller),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn resume(
    State(door): Shared,
    id: Result<Path<u16>, PathRejection>,
) -> Result<Json<Controller>, Problem> {
    let (id, node) = (id?.0, &door.admin.node);
    node.resume(id).await?;
    let controller = node.controllers().await?.into_iter().map(Controller::from).find(|controller| controller.id == id);
    let gone = || Problem::new(ProblemKind::Missing, format!("controller {id}: no such controller"));
    controller.map(Json).ok_or_else(gone)
}

impl Admin {
    /// The pool, in which a disk that is away is named by where it was last.
    pub(super) async fn pool(&self) -> Result<Pool, Problem> {
        let mut pool = Pool::new(self.node.pool().await?, self.node.space().await?, *self.passed_percent.borrow());
        // Also of one that leaves: what is away has no size.
        for disk in pool.disks.iter_mut().filter(|disk| disk.size_bytes == 0) {
            if let Some(path) = self.disks.last_path(disk.uuid) {
                disk.path = path;
            }
        }
        Ok(pool)
    }
}

impl Door {
    /// Does work that is not to stop halfway, also where whoever asked for it has gone.
    async fn to_its_end<T, F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F) -> Result<T, Problem>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Problem>> + Send + 'static,
    {
        let done = self.runtime.spawn(work(Arc::clone(self)).in_current_span()).await;
        done.map_err(|_| Problem::from(Error::retry("the server is stopping")))?
    }

    async fn disk(&self, id: u16) -> Result<Disk, Problem> {
        let disk = self.admin.pool().await?.disks.into_iter().find(|disk| disk.id == id);
        disk.ok_or_else(|| Problem::new(ProblemKind::Missing, format!("disk {id}: no such disk")))
    }

    async fn remove_disk(&self, id: u16) -> Result<Job, Problem> {
        self.admin.node.remove_disk(DeviceId(id)).await?;
        tracing::info!(disk = id, "disk leaves");
        let leaving = self.disk(id).await?;
        self.follow_disk(JobKind::RemoveDisk, leaving)
    }

    async fn add_disk(&self, new: NewDisk) -> Result<Disk, Problem> {
        let (class, uuid) = (new.class.into(), Uuid::new_v4());
        let path = self.ask_host(move |host| host.prepare(&new, uuid)).await?;
        let disk = Disk::from(self.admin.node.add_disk(path.clone(), class, *uuid.as_bytes()).await?);
        tracing::info!(disk = disk.id, path, "disk added");
        self.admin.disks.joined(&path);
        Ok(disk)
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
