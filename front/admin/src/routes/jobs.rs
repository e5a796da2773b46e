//! Long work.

use super::{Admin, Door, Shared};
use crate::given::Given;
use crate::jobs::Teller;
use crate::{
    CheckRequest, CheckResult, Disk, DiskState, Job, JobKind, JobResult, JobState, Objects, Problem, ProblemKind,
};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream::unfold;
use kura_block::Amount;
use kura_controller::{Check, Node};
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};

type Id = Result<Path<u64>, PathRejection>;

/// How often it is looked what is left on a disk, at most.
const LOOK: Duration = Duration::from_millis(200);
/// A look goes through all that lies on the disks: the next one is so many times as long in coming as it took.
const REST: u32 = 20;

/// Starts a check of every table and, with `data`, of every copy of every written block; blocks that have a bad copy and a
/// good one are repaired, but for a `dry_run`.
#[utoipa::path(post, path = "/api/v1/check", tag = "jobs", request_body = CheckRequest, responses(
    (status = 202, description = "The job; its address is in `Location`", body = Job),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn check(
    State(door): Shared,
    Given(request): Given<CheckRequest>,
) -> Result<impl IntoResponse, Problem> {
    let CheckRequest { data, dry_run } = request;
    let check = match (data, dry_run) {
        (false, _) => Check::Tables,
        (true, true) => Check::Verify,
        (true, false) => Check::Repair,
    };
    let (node, volume) = (door.admin.node.clone(), door.admin.objects_volume);
    let objects = door.admin.objects.clone().map(|objects| (objects, volume));
    let job = door.jobs.start(JobKind::Check, None, move |teller| check_all(node, objects, check, teller))?;
    Ok(accepted(job))
}

async fn check_all(
    node: Node,
    objects: Option<(Arc<dyn Objects>, &'static str)>,
    check: Check,
    Teller { progress, .. }: Teller,
) -> Result<JobResult, Problem> {
    if let (Check::Repair, Some((_, volume))) = (check, &objects) {
        // Their content is read once more, as objects.
        progress.expect(node.find(volume).await.map_or(0, |(_, volume)| volume.allocated_bytes));
    }
    let mut result = CheckResult::from(node.check_along(check, &progress).await?);
    if let Some((objects, _)) = objects {
        // Reading repairs what it finds bad; what lies in the volume has been verified as blocks of it.
        let scrub = (check == Check::Repair).then_some(&progress);
        result.violations.extend(objects.check(scrub).await);
    }
    Ok(JobResult::Check(result))
}

/// The jobs of this server, oldest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", operation_id = "list_jobs", responses(
    (status = 200, description = "The jobs", body = [Job]),
))]
pub(super) async fn list(State(door): Shared) -> Json<Vec<Job>> {
    door.follow_disks().await;
    Json(door.jobs.all())
}

/// A job.
#[utoipa::path(get, path = "/api/v1/jobs/{id}", tag = "jobs", operation_id = "show_job",
    params(("id" = u64, Path, description = "The job's number")),
    responses(
        (status = 200, description = "The job", body = Job),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn show(State(door): Shared, id: Id) -> Result<Json<Job>, Problem> {
    Ok(Json(door.jobs.get(id?.0)?.borrow().clone()))
}

/// Asks a job to end where it stands: checks, moves of volumes, and drains between two volumes. What has been done stays.
#[utoipa::path(post, path = "/api/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job",
    params(("id" = u64, Path, description = "The job's number")),
    responses(
        (status = 202, description = "The job as it is; it ends soon", body = Job),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn cancel(State(door): Shared, id: Id) -> Result<impl IntoResponse, Problem> {
    let job = door.jobs.cancel(id?.0)?;
    tracing::info!(job = job.id, "cancelled: {job}");
    Ok(accepted(job))
}

/// A job as it changes: server-sent events, each a job, until it has ended.
#[utoipa::path(get, path = "/api/v1/jobs/{id}/events", tag = "jobs", operation_id = "follow_job",
    params(("id" = u64, Path, description = "The job's number")),
    responses(
        (status = 200, description = "A job an event", body = Job, content_type = "text/event-stream"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn events(
    State(door): Shared,
    id: Id,
) -> Result<Sse<impl Stream<Item = Result<Event, axum::Error>>>, Problem> {
    let mut changes = door.jobs.get(id?.0)?;
    changes.mark_changed();
    let events = unfold(Some(changes), async |changes| {
        let mut changes = changes?;
        changes.changed().await.ok()?;
        let job = changes.borrow_and_update().clone();
        let more = (job.state == JobState::Running).then_some(changes);
        Some((Event::default().json_data(job), more))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// The answer to who began a job.
pub(super) fn accepted(job: Job) -> impl IntoResponse {
    begun(job.id, job)
}

/// The same with more than the job.
pub(super) fn begun(job: u64, told: impl Serialize) -> impl IntoResponse {
    (StatusCode::ACCEPTED, [(header::LOCATION, format!("/api/v1/jobs/{job}"))], Json(told))
}

impl Door {
    /// A job that follows how what a disk holds comes to lie on others.
    pub(super) fn follow_disk(&self, kind: JobKind, disk: Disk) -> Result<Job, Problem> {
        let admin = self.admin.clone();
        self.jobs.start(kind, Some(disk.id.to_string()), move |teller| empties(admin, disk, teller))
    }

    /// Every disk whose data is on its way to others has a job, also where that began before a restart, or by itself.
    async fn follow_disks(&self) {
        let Ok(pool) = self.admin.pool().await else { return };
        for disk in pool.disks {
            let is_under_way = disk.unwanted_bytes > disk.lost_bytes;
            let kind = match disk.state {
                DiskState::Leaving if is_under_way || disk.lost_bytes == 0 => JobKind::RemoveDisk,
                DiskState::Failed | DiskState::Missing if is_under_way => JobKind::RebuildDisk,
                _ => continue,
            };
            // One that runs already is that one.
            let _ = self.follow_disk(kind, disk);
        }
    }
}

/// Resolves when a disk has left the pool or, where it only failed, when all it held is elsewhere.
async fn empties(admin: Admin, disk: Disk, teller: Teller) -> Result<JobResult, Problem> {
    let mut last = disk;
    loop {
        let began = Instant::now();
        let Some(now) = admin.pool().await?.disks.into_iter().find(|disk| disk.id == last.id) else {
            teller.progress.remains(0);
            return Ok(JobResult::Disk(Disk { unwanted_bytes: 0, state: DiskState::Leaving, ..last }));
        };
        teller.progress.remains(now.unwanted_bytes);
        teller.waits(now.stalled.clone());
        let is_over = now.unwanted_bytes == now.lost_bytes;
        match now.state {
            DiskState::Leaving | DiskState::Failed | DiskState::Missing if is_over && now.lost_bytes > 0 => {
                let Disk { id, path, lost_bytes, .. } = now;
                let (kind, rest) = match now.state {
                    DiskState::Leaving => (ProblemKind::Full, "it stays in the pool until then"),
                    _ => (ProblemKind::Corrupt, "all else it held is on the others"),
                };
                let text = format!(
                    "disk {id} ({path}) had the only copy of {}: delete the volumes that lay on it; {rest}",
                    Amount(lost_bytes)
                );
                return Err(Problem::new(kind, text));
            }
            DiskState::Failed | DiskState::Missing | DiskState::Healthy if is_over => return Ok(JobResult::Disk(now)),
            _ => {}
        }
        last = now;
        sleep(LOOK.max(REST * began.elapsed())).await;
    }
}
