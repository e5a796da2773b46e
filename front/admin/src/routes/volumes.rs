//! Volumes.

use super::jobs::accepted;
use super::snapshots::{self, is_snapshot};
use super::{Admin, Removal, Shared};
use crate::{Job, JobKind, JobResult, MoveVolume, MovedVolume, NewVolume, Problem, ProblemKind, ResizeVolume, Volume};
use crate::{given::Given, paths};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use kura_block::Clients;
use kura_controller::VolumeInfo;

pub(super) type Name = Result<Path<String>, PathRejection>;

/// All volumes, clones among them, by name; snapshots have a list of their own.
#[utoipa::path(get, path = "/api/v1/volumes", tag = "volumes", operation_id = "list_volumes", responses(
    (status = 200, description = "The volumes", body = [Volume]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn list(State(door): Shared) -> Result<Json<Vec<Volume>>, Problem> {
    let volumes = door.admin.node.volumes().await?;
    let told = volumes.into_iter().filter(|volume| !is_snapshot(volume)).map(|volume| door.admin.told(volume));
    Ok(Json(told.collect()))
}

/// Makes a volume.
#[utoipa::path(post, path = "/api/v1/volumes", tag = "volumes", operation_id = "create_volume", request_body = NewVolume,
    responses(
        (status = 201, description = "The volume, made; its address is in `Location`", body = Volume),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn create(State(door): Shared, Given(new): Given<NewVolume>) -> Result<impl IntoResponse, Problem> {
    let node = &door.admin.node;
    door.admin.check_name(&new.name)?;
    let spec = new.into_spec(node.pool().await?.layout());
    let volume = Volume::from(node.create_volume(spec).await?);
    tracing::info!(volume = ?volume.name, size_bytes = volume.size_bytes, "volume created");
    let address = paths::volume(&volume.name);
    Ok((StatusCode::CREATED, [(header::LOCATION, address)], Json(volume)))
}

/// A volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}", tag = "volumes", operation_id = "show_volume",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The volume", body = Volume),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn show(State(door): Shared, name: Name) -> Result<Json<Volume>, Problem> {
    let (_, volume) = door.admin.node.find(&name?.0).await?;
    Ok(Json(door.admin.told(volume)))
}

/// Changes a volume's size. Clients see it when they reconnect; one that they have open is made smaller only with `force`.
#[utoipa::path(patch, path = "/api/v1/volumes/{name}", tag = "volumes", operation_id = "resize_volume",
    params(
        ("name" = String, Path, description = "The volume's name"),
        ("force" = Option<bool>, Query, description = "Make it smaller even while clients have it open"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    request_body = ResizeVolume,
    responses(
        (status = 200, description = "The volume, resized", body = Volume),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn resize(
    State(door): Shared,
    name: Name,
    how: Result<Query<Removal>, QueryRejection>,
    Given(size): Given<ResizeVolume>,
) -> Result<Json<Volume>, Problem> {
    let (name, Removal { force, dry_run }) = (name?.0, how?.0);
    let ResizeVolume { size_bytes, shrink } = size;
    door.admin.replicas.check_free(&name).await?;
    door.admin.check_shrink(&name, size, force).await?;
    if dry_run {
        door.admin.node.check_resize_volume(&name, size_bytes, shrink).await?;
        return Ok(Json(door.admin.node.find(&name).await?.1.into()));
    }
    let volume = Volume::from(door.admin.node.resize_volume(&name, size_bytes, shrink).await?);
    tracing::info!(volume = ?volume.name, size_bytes = volume.size_bytes, "volume resized");
    Ok(Json(volume))
}

/// Makes another controller the owner of a volume, of its snapshots and clones, and of what it was made of. Clients go on
/// meanwhile.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/move", tag = "volumes", operation_id = "move_volume",
    params(("name" = String, Path, description = "The volume's name")), request_body = MoveVolume,
    responses(
        (status = 202, description = "The job; its result is the volume, moved", body = Job),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn migrate(
    State(door): Shared,
    name: Name,
    Given(to): Given<MoveVolume>,
) -> Result<impl IntoResponse, Problem> {
    let (name, to, admin) = (name?.0, to.controller, door.admin.clone());
    let node = admin.node.clone();
    node.check_controller(to)?;
    node.find(&name).await?;
    let job = door.jobs.start(JobKind::MoveVolume, Some(name.clone()), move |teller| async move {
        let mut moved = MovedVolume::from(node.move_volume_along(&name, to, &teller.progress).await?);
        moved.volume.follows = admin.replicas.follows(&moved.volume.name, moved.volume.id);
        let (volume, from, waited_us) = (&moved.volume.name, moved.from, moved.waited_us);
        tracing::info!(?volume, from, to, waited_us, "volume moved");
        Ok(JobResult::Moved(moved))
    })?;
    Ok(accepted(job))
}

/// Deletes a volume and all it holds.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}", tag = "volumes", operation_id = "delete_volume",
    params(
        ("name" = String, Path, description = "The volume's name"),
        ("force" = Option<bool>, Query, description = "Delete it even while clients have it open, or while it is a copy that follows its source"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn delete(
    State(door): Shared,
    name: Name,
    how: Result<Query<Removal>, QueryRejection>,
) -> Result<StatusCode, Problem> {
    let (name, how) = (name?.0, how?.0);
    if name.contains('@') {
        return snapshots::remove(&door.admin, &name, how).await;
    }
    let Removal { force, dry_run } = how;
    if door.admin.objects.is_some() && name == door.admin.objects_volume {
        let text = format!(
            "volume {name} has the object store, with all buckets: to delete it for good, restart the server with --s3 off"
        );
        return Err(Problem::new(ProblemKind::Busy, text));
    }
    if !force {
        door.admin.replicas.check_unneeded(&name).await?;
    }
    if dry_run {
        door.admin.node.check_delete_volume(&name, force).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    door.admin.node.delete_volume(&name, force).await?;
    tracing::info!(volume = ?name, force, "volume deleted");
    Ok(StatusCode::NO_CONTENT)
}

impl Admin {
    /// A volume as the wire has it.
    pub(super) fn told(&self, info: VolumeInfo) -> Volume {
        Volume { follows: self.replicas.follows(&info.spec.name, info.id), ..info.into() }
    }

    /// Refuses the name of the object store's volume to any other: without the store, nobody has it.
    pub(super) fn check_name(&self, name: &str) -> Result<(), Problem> {
        if name != self.objects_volume {
            return Ok(());
        }
        let text = format!("volume name {name:?}: it is reserved for the object store: give another one");
        Err(Problem::new(ProblemKind::Invalid, text))
    }

    /// Refuses to make the object store's volume smaller, and one that clients have open unless with `force`.
    async fn check_shrink(&self, name: &str, size: ResizeVolume, force: bool) -> Result<(), Problem> {
        let (_, volume) = self.node.find(name).await?;
        if size.size_bytes >= volume.spec.size_bytes {
            return Ok(());
        }
        if name.split('@').next() == Some(self.objects_volume) {
            let text =
                format!("volume {name} has the object store, with all buckets, which would be lost: it can only grow");
            return Err(Problem::new(ProblemKind::Busy, text));
        }
        // Who did not say that it may shrink is told that first.
        if volume.open > 0 && size.shrink && !force {
            let clients = Clients(volume.open);
            let text = format!("volume {name}: {clients}: disconnect them, or say --force");
            return Err(Problem::new(ProblemKind::Busy, text));
        }
        Ok(())
    }
}
