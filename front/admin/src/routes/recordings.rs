//! Recordings of volumes' requests.

use super::Shared;
use super::volumes::Name;
use crate::{NewRecording, Problem, RecordedRequest, Recording};
use crate::{given::Given, paths};
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use futures::stream::try_unfold;
use kura_controller::RecordedRequests;
use std::time::SystemTime;

/// All recordings, by volume.
#[utoipa::path(get, path = "/api/v1/recordings", tag = "recordings", operation_id = "list_recordings", responses(
    (status = 200, description = "The recordings", body = [Recording]),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn list(State(door): Shared) -> Result<Json<Vec<Recording>>, Problem> {
    let recordings = door.admin.node.recordings().await?;
    Ok(Json(recordings.into_iter().map(Recording::from).collect()))
}

/// Begins to record a volume's requests, also those of clients that are connected already.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/recording", tag = "recordings", operation_id = "begin_recording",
    params(("name" = String, Path, description = "The volume's name")), request_body = NewRecording,
    responses(
        (status = 201, description = "The recording, begun; its address is in `Location`", body = Recording),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn begin(
    State(door): Shared,
    name: Name,
    Given(new): Given<NewRecording>,
) -> Result<impl IntoResponse, Problem> {
    let (name, NewRecording { memory_bytes }) = (name?.0, new);
    let time_of_day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let recording = Recording::from(door.admin.node.record(&name, memory_bytes, time_of_day).await?);
    tracing::info!(volume = ?name, memory_bytes, "recording begun");
    let address = paths::recording(&name);
    Ok((StatusCode::CREATED, [(header::LOCATION, address)], Json(recording)))
}

/// The recording of a volume.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/recording", tag = "recordings", operation_id = "show_recording",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The recording", body = Recording),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn show(State(door): Shared, name: Name) -> Result<Json<Recording>, Problem> {
    Ok(Json(door.admin.node.recording(&name?.0).await?.into()))
}

/// Ends the recording of a volume; what it holds stays.
#[utoipa::path(post, path = "/api/v1/volumes/{name}/recording/stop", tag = "recordings",
    operation_id = "stop_recording",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The recording, ended", body = Recording),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn stop(State(door): Shared, name: Name) -> Result<Json<Recording>, Problem> {
    let recording = Recording::from(door.admin.node.stop_recording(&name?.0).await?);
    tracing::info!(volume = ?recording.volume, requests = recording.requests, "recording stopped");
    Ok(Json(recording))
}

/// Deletes the recording of a volume, and ends it if it goes on.
#[utoipa::path(delete, path = "/api/v1/volumes/{name}/recording", tag = "recordings",
    operation_id = "delete_recording",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn delete(State(door): Shared, name: Name) -> Result<StatusCode, Problem> {
    let name = name?.0;
    door.admin.node.delete_recording(&name).await?;
    tracing::info!(volume = ?name, "recording deleted");
    Ok(StatusCode::NO_CONTENT)
}

/// The requests of a recording that are there now, in the order in which they arrived: a JSON object a line. The
/// recording may go on. An answer that breaks off is incomplete.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/recording/requests", tag = "recordings",
    operation_id = "list_recorded_requests",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "A request a line", body = RecordedRequest, content_type = "application/x-ndjson"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn requests(State(door): Shared, name: Name) -> Result<impl IntoResponse, Problem> {
    let reader = door.admin.node.recorded(&name?.0).await?;
    let lines = try_unfold(reader, async |mut reader| {
        let lines = next_lines(&mut reader).await.inspect_err(|error| {
            tracing::info!(volume = ?reader.recording().volume, %error, "a recording is not read to its end");
        })?;
        kura_block::Result::Ok(lines.map(|lines| (lines, reader)))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)))
}

async fn next_lines(reader: &mut RecordedRequests) -> kura_block::Result<Option<Bytes>> {
    let Some((first, requests)) = reader.next().await? else { return Ok(None) };
    let mut lines = Vec::new();
    for (number, request) in (first..).zip(requests) {
        serde_json::to_writer(&mut lines, &RecordedRequest::new(number, request))
            .map_err(|error| kura_block::Error::invalid(error.to_string()))?;
        lines.push(b'\n');
    }
    Ok(Some(lines.into()))
}
