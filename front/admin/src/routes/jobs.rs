//! Long work.

use super::Shared;
use crate::{CheckRequest, CheckResult, Job, JobState, Problem};
use axum::Json;
use axum::extract::rejection::{JsonRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::Stream;
use futures::stream::unfold;
use kura_controller::Check;

type Id = Result<Path<u64>, PathRejection>;

/// Starts a check of every table and, with `data`, of every copy of every written block; blocks that have a bad copy and a
/// good one are repaired, but for a `dry_run`.
#[utoipa::path(post, path = "/api/v1/check", tag = "jobs", request_body = CheckRequest, responses(
    (status = 202, description = "The job; its address is in `Location`", body = Job),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn check(
    State(door): Shared,
    request: Result<Json<CheckRequest>, JsonRejection>,
) -> Result<impl IntoResponse, Problem> {
    let CheckRequest { data, dry_run } = request?.0;
    let check = match (data, dry_run) {
        (false, _) => Check::Tables,
        (true, true) => Check::Verify,
        (true, false) => Check::Repair,
    };
    let (node, objects) = (door.admin.node.clone(), door.admin.objects.clone());
    let work = async move {
        let mut result = CheckResult::from(node.check(check).await?);
        if let Some(objects) = objects {
            // Reading repairs what it finds bad; what lies in the volume has been verified as blocks of it.
            result.violations.extend(objects.check(check == Check::Repair).await?);
        }
        Ok(result)
    };
    let job = door.jobs.start("check", work)?;
    let address = format!("/api/v1/jobs/{}", job.id);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, address)], Json(job)))
}

/// The jobs of this server, oldest first.
#[utoipa::path(get, path = "/api/v1/jobs", tag = "jobs", operation_id = "list_jobs", responses(
    (status = 200, description = "The jobs", body = [Job]),
))]
pub(super) async fn list(State(door): Shared) -> Json<Vec<Job>> {
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
