//! Snapshots, and the schedules that make them.

use super::volumes::Name;
use super::{Admin, IsTrial, Removal, Shared};
use crate::given::Given;
use crate::{
    ByteRange, ChangePage, KeptSchedule, NewClone, NewSnapshots, Objects, Problem, ProblemKind, RollBack, Snapshot,
    SnapshotSchedule, Volume,
};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use kura_controller::{Node, SnapshotSpec, VolumeInfo};
use serde::Deserialize;
use std::time::SystemTime;

/// The shortest time between two snapshots of a schedule, in seconds: what the names tell.
const EVERY_LEAST_S: u64 = 1;
/// Snapshots a schedule keeps at most.
const KEEP_MOST: u32 = 4096;
/// The longest prefix, in bytes.
const PREFIX_BYTES: usize = 64;
/// The longest name of a snapshot, and what a schedule puts to the volume's name and the prefix: an @, a dash and the time.
const NAME_BYTES: usize = 255;
const TIME_BYTES: usize = 18;

/// True for the name of a snapshot: no volume's has an @.
pub(super) fn is_snapshot(info: &VolumeInfo) -> bool {
    info.spec.name.contains('@')
}

async fn find(node: &Node, name: &str) -> Result<VolumeInfo, Problem> {
    if !name.contains('@') {
        let text = format!("{name}: is not a snapshot: give VOLUME@NAME");
        return Err(Problem::new(ProblemKind::Invalid, text));
    }
    let found = node.find(name).await.map(|(_, info)| info);
    found.map_err(|error| match error.kind() {
        kura_block::Kind::Missing => {
            let text = format!("snapshot {name}: no such snapshot; `kura snapshot list` lists them");
            Problem::new(ProblemKind::Missing, text)
        }
        _ => error.into(),
    })
}

/// True for a snapshot of the object store's volume, and for those of its snapshots: the access keys' secrets are in them, whether
/// the store is served or not.
fn has_secrets(admin: &Admin, snapshot: &str) -> bool {
    snapshot.split('@').next() == Some(admin.objects_volume)
}

/// The object store, if the snapshot is of its volume.
fn of_objects<'a>(admin: &'a Admin, snapshot: &VolumeInfo) -> Option<&'a dyn Objects> {
    let of = &snapshot.svol.as_ref()?.pvol;
    admin.objects.as_deref().filter(|_| of == admin.objects_volume)
}

/// Which snapshots are listed.
#[derive(Deserialize)]
pub(super) struct Filter {
    volume: Option<String>,
}

/// All snapshots, by volume and number.
#[utoipa::path(get, path = "/api/v1/snapshots", tag = "snapshots", operation_id = "list_snapshots",
    params(("volume" = Option<String>, Query, description = "Only those of this volume")),
    responses(
        (status = 200, description = "The snapshots", body = [Snapshot]),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn list(
    State(door): Shared,
    filter: Result<Query<Filter>, QueryRejection>,
) -> Result<Json<Vec<Snapshot>>, Problem> {
    let volume = filter?.0.volume;
    let all = door.admin.node.volumes().await?;
    if let Some(volume) = &volume
        && !all.iter().any(|info| info.spec.name == *volume)
    {
        return Err(Problem::new(
            ProblemKind::Missing,
            format!("volume {volume}: no such volume: see `kura volume list`"),
        ));
    }
    let all = all.into_iter().filter(is_snapshot).filter_map(Snapshot::of);
    let mut listed: Vec<_> = all.filter(|one| volume.as_ref().is_none_or(|volume| one.volume == *volume)).collect();
    listed.sort_by(|one, other| (&one.volume, one.number).cmp(&(&other.volume, other.number)));
    Ok(Json(listed))
}

/// Makes snapshots at one instant.
#[utoipa::path(post, path = "/api/v1/snapshots", tag = "snapshots", operation_id = "create_snapshots",
    request_body = NewSnapshots,
    responses(
        (status = 201, description = "The snapshots, made", body = [Snapshot]),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn create(
    State(door): Shared,
    Given(new): Given<NewSnapshots>,
) -> Result<(StatusCode, Json<Vec<Snapshot>>), Problem> {
    let NewSnapshots { names, read_only } = new;
    let spec = |name: String| match name.rsplit_once('@') {
        Some((of, own)) if !of.is_empty() && !own.is_empty() => Ok(SnapshotSpec { of: of.to_owned(), name, read_only }),
        _ => {
            let text = format!("snapshot name {name:?}: give VOLUME@NAME");
            Err(Problem::new(ProblemKind::Invalid, text))
        }
    };
    let wanted: Vec<_> = names.into_iter().map(spec).collect::<Result<_, _>>()?;
    for spec in &wanted {
        // In the middle of a transfer it is neither what it was nor what it will be.
        door.admin.replicas.check_free(&spec.of).await?;
    }
    let made = door.admin.node.snapshot(wanted, now_unix_s()).await?;
    for snapshot in &made {
        tracing::info!(snapshot = ?snapshot.spec.name, read_only, "snapshot made");
    }
    Ok((StatusCode::CREATED, Json(made.into_iter().filter_map(Snapshot::of).collect())))
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// A snapshot.
#[utoipa::path(get, path = "/api/v1/snapshots/{name}", tag = "snapshots", operation_id = "show_snapshot",
    params(("name" = String, Path, description = "The snapshot's name, VOLUME@NAME")),
    responses(
        (status = 200, description = "The snapshot", body = Snapshot),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn show(State(door): Shared, name: Name) -> Result<Json<Snapshot>, Problem> {
    let name = name?.0;
    let found = Snapshot::of(find(&door.admin.node, &name).await?);
    let gone = || Problem::new(ProblemKind::Missing, format!("snapshot {name}: no such snapshot"));
    found.map(Json).ok_or_else(gone)
}

/// Deletes a snapshot; what only it has is given back.
#[utoipa::path(delete, path = "/api/v1/snapshots/{name}", tag = "snapshots", operation_id = "delete_snapshot",
    params(
        ("name" = String, Path, description = "The snapshot's name, VOLUME@NAME"),
        ("force" = Option<bool>, Query, description = "Delete it even while clients have it open, or where a copy cannot do without it"),
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
    remove(&door.admin, &name?.0, how?.0).await
}

/// The same for whoever takes it for a volume.
pub(super) async fn remove(admin: &Admin, name: &str, how: Removal) -> Result<StatusCode, Problem> {
    let Removal { force, dry_run } = how;
    let found = find(&admin.node, name).await?;
    let of_objects = of_objects(admin, &found);
    if !force {
        admin.replicas.check_unneeded(name).await?;
    }
    if dry_run {
        // The object store lets go of its own snapshots by itself.
        admin.node.check_delete_volume(name, force || of_objects.is_some()).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    if let Some(objects) = of_objects {
        objects.close_snapshot(name).await?;
    }
    admin.node.delete_volume(name, force).await?;
    tracing::info!(snapshot = ?name, force, "snapshot deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// Makes a volume that begins as what the snapshot is, and shares with it what neither writes.
#[utoipa::path(post, path = "/api/v1/snapshots/{name}/clone", tag = "snapshots", operation_id = "clone_snapshot",
    params(("name" = String, Path, description = "The snapshot's name, VOLUME@NAME")), request_body = NewClone,
    responses(
        (status = 201, description = "The clone, made", body = Volume),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn clone(
    State(door): Shared,
    name: Name,
    Given(new): Given<NewClone>,
) -> Result<(StatusCode, Json<Volume>), Problem> {
    let (of, name) = (name?.0, new.name);
    if name.contains('@') {
        let text = format!("volume name {name:?}: give one without @, which marks snapshots");
        return Err(Problem::new(ProblemKind::Invalid, text));
    }
    door.admin.check_name(&name)?;
    find(&door.admin.node, &of).await?;
    if has_secrets(&door.admin, &of) {
        let text = format!(
            "snapshot {of}: access keys' secrets are in it, and a clone is anybody's: read its buckets over S3"
        );
        return Err(Problem::new(ProblemKind::Invalid, text));
    }
    let wanted = vec![SnapshotSpec { of: of.clone(), name: name.clone(), read_only: false }];
    let made = door.admin.node.snapshot(wanted, now_unix_s()).await?.pop();
    let made = made.ok_or_else(|| Problem::new(ProblemKind::Missing, format!("volume {name}: was not made")))?;
    tracing::info!(snapshot = ?of, volume = ?name, "clone made");
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// Makes the volume what the snapshot is. What was written since is lost; newer snapshots stay.
#[utoipa::path(post, path = "/api/v1/snapshots/{name}/rollback", tag = "snapshots", operation_id = "roll_back",
    params(
        ("name" = String, Path, description = "The snapshot's name, VOLUME@NAME"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    request_body = RollBack,
    responses(
        (status = 200, description = "The volume, rolled back", body = Volume),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn roll_back(
    State(door): Shared,
    name: Name,
    trial: IsTrial,
    Given(how): Given<RollBack>,
) -> Result<Json<Volume>, Problem> {
    let (name, force) = (name?.0, how.force);
    let node = &door.admin.node;
    let found = find(node, &name).await?;
    let objects = of_objects(&door.admin, &found);
    if let (None, Some(svol)) = (objects, &found.svol) {
        door.admin.replicas.check_free(&svol.pvol).await?;
        check_keys(&door.admin, &name, &svol.pvol, force)?;
    }
    if trial?.dry_run {
        // The object store, which has its volume open, closes it before.
        node.check_roll_back(&name, force || objects.is_some()).await?;
        let of = found.svol.map_or(name, |svol| svol.pvol);
        return Ok(Json(node.find(&of).await?.1.into()));
    }
    let volume = match objects {
        None => node.roll_back(&name, force).await?,
        Some(objects) => {
            objects.roll_back(&name).await?;
            node.find(door.admin.objects_volume).await?.1
        }
    };
    let volume = Volume::from(volume);
    tracing::info!(snapshot = ?name, volume = ?volume.name, force, "volume rolled back");
    Ok(Json(volume))
}

/// Refuses to bring revoked access keys back: without the store in service nobody knows those of today.
fn check_keys(admin: &Admin, snapshot: &str, volume: &str, force: bool) -> Result<(), Problem> {
    if volume != admin.objects_volume || force {
        return Ok(());
    }
    // A store that cannot be opened cannot be served either: a rollback may be what it needs.
    let instead = if admin.s3_failure.is_some() { "" } else { "while S3 is served, or " };
    let text = format!(
        "snapshot {snapshot}: S3 is not served, so access keys would be rolled back, too, and those revoked since work again: \
         roll back {instead}with --force and revoke them anew"
    );
    Err(Problem::new(ProblemKind::Busy, text))
}

/// What is compared with the snapshot, and from where on.
#[derive(Deserialize)]
pub(super) struct Comparison {
    to: String,
    #[serde(default)]
    offset_bytes: u64,
}

/// Where another snapshot of the same volume, or the volume, differs from this one; a page of it.
#[utoipa::path(get, path = "/api/v1/snapshots/{name}/changes", tag = "snapshots", operation_id = "changes",
    params(
        ("name" = String, Path, description = "A snapshot's name, VOLUME@NAME, or the volume's"),
        ("to" = String, Query, description = "Another one's: one of the two is a snapshot"),
        ("offset_bytes" = Option<u64>, Query, description = "Where the page begins"),
    ),
    responses(
        (status = 200, description = "Ranges that differ; some may hold the same bytes, written again", body = ChangePage),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn changes(
    State(door): Shared,
    name: Name,
    with: Result<Query<Comparison>, QueryRejection>,
) -> Result<Json<ChangePage>, Problem> {
    let (name, Comparison { to, offset_bytes }) = (name?.0, with?.0);
    // One of the two may be the volume.
    find(&door.admin.node, if name.contains('@') { &name } else { &to }).await?;
    let found = door.admin.node.changed(&name, &to, offset_bytes).await?;
    let range =
        |range: std::ops::Range<u64>| ByteRange { offset_bytes: range.start, size_bytes: range.end - range.start };
    let ranges = found.ranges.into_iter().map(range).collect();
    Ok(Json(ChangePage { ranges, next_offset_bytes: found.next_offset }))
}

/// All schedules, by volume and prefix.
#[utoipa::path(get, path = "/api/v1/snapshot-schedules", tag = "snapshots", operation_id = "list_snapshot_schedules",
    responses(
        (status = 200, description = "The schedules", body = [KeptSchedule]),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn schedules(State(door): Shared) -> Json<Vec<KeptSchedule>> {
    Json(door.admin.schedules.list())
}

/// Adds a schedule; its first snapshot is made at once.
#[utoipa::path(post, path = "/api/v1/snapshot-schedules", tag = "snapshots", operation_id = "add_snapshot_schedule",
    request_body = SnapshotSchedule,
    responses(
        (status = 201, description = "The schedule, kept", body = SnapshotSchedule),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn add_schedule(
    State(door): Shared,
    Given(new): Given<SnapshotSchedule>,
) -> Result<(StatusCode, Json<SnapshotSchedule>), Problem> {
    check(&new)?;
    let (_, volume) = door.admin.node.find(&new.volume).await?;
    // None would ever be made.
    door.admin.replicas.check_free(&new.volume).await?;
    let (schedules, kept) = (std::sync::Arc::clone(&door.admin.schedules), new.clone());
    let add = door.runtime.spawn_blocking(move || schedules.add(volume.id, kept));
    add.await.map_err(|error| Problem::new(ProblemKind::Retry, error.to_string()))??;
    tracing::info!(volume = ?new.volume, prefix = ?new.prefix, new.every_s, new.keep, "snapshot schedule added");
    Ok((StatusCode::CREATED, Json(new)))
}

/// Refuses a schedule that cannot be carried out.
fn check(new: &SnapshotSchedule) -> Result<(), Problem> {
    let refused = |text| Err(Problem::new(ProblemKind::Invalid, text));
    let SnapshotSchedule { prefix, every_s, keep, .. } = new;
    let bad = |letter: char| letter.is_control() || "/@".contains(letter);
    if prefix.is_empty() || prefix.len() > PREFIX_BYTES || prefix.contains(bad) {
        return refused(format!("prefix {prefix:?}: give 1 to {PREFIX_BYTES} bytes without / and @"));
    }
    if new.volume.len() + prefix.len() + TIME_BYTES > NAME_BYTES {
        return refused(format!(
            "prefix {prefix:?}: with the volume's name and the time, snapshots' names get too long"
        ));
    }
    if *every_s < EVERY_LEAST_S {
        return refused("a schedule makes at most one snapshot a second: give --every 1s or more".to_owned());
    }
    if *keep == 0 || *keep > KEEP_MOST {
        return refused(format!("a schedule keeps 1 to {KEEP_MOST} snapshots, not {keep}"));
    }
    Ok(())
}

/// Removes a schedule; its snapshots stay.
#[utoipa::path(delete, path = "/api/v1/snapshot-schedules/{volume}/{prefix}", tag = "snapshots",
    operation_id = "remove_snapshot_schedule",
    params(
        ("volume" = String, Path, description = "The volume"),
        ("prefix" = String, Path, description = "What its snapshots' names begin with"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn remove_schedule(
    State(door): Shared,
    which: Result<Path<(String, String)>, PathRejection>,
    trial: IsTrial,
) -> Result<StatusCode, Problem> {
    let (volume, prefix) = which?.0;
    if trial?.dry_run {
        door.admin.schedules.check_remove(&volume, &prefix)?;
        return Ok(StatusCode::NO_CONTENT);
    }
    let (schedules, of, named) = (std::sync::Arc::clone(&door.admin.schedules), volume.clone(), prefix.clone());
    let remove = door.runtime.spawn_blocking(move || schedules.remove(&of, &named));
    remove.await.map_err(|error| Problem::new(ProblemKind::Retry, error.to_string()))??;
    tracing::info!(?volume, ?prefix, "snapshot schedule removed");
    Ok(StatusCode::NO_CONTENT)
}
