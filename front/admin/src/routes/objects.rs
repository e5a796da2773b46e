//! Objects: lists, what is known of one, its content, and batches. Content streams in both directions.

use super::Shared;
use super::volumes::Name;
use crate::batch_lines::BatchLines;
use crate::{
    BatchResult, BatchStep, Content, Object, ObjectHead, ObjectPage, ObjectQuery, Objects, Problem, ProblemKind,
};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use futures::{StreamExt, TryStreamExt, stream};
use kura_block::Error;
use serde::Deserialize;
use std::sync::Arc;
use tokio::sync::Mutex;

/// Before the names of the user's own words on an object, as in S3.
const METADATA: &str = "x-amz-meta-";

/// The most that is read of a body that was refused.
const DRAINED_BYTES: usize = 64 << 20;

type At = Result<Path<(String, String)>, PathRejection>;

/// Which version of an object is meant.
#[derive(Deserialize)]
pub(super) struct Versioned {
    #[serde(default)]
    version: Option<String>,
}

/// What is read of an object.
#[derive(Deserialize)]
pub(super) struct Wanted {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    offset_bytes: u64,
    #[serde(default)]
    size_bytes: Option<u64>,
}

/// Which version of an object is deleted.
#[derive(Deserialize)]
pub(super) struct Deletion {
    #[serde(default)]
    version: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

type Which = Result<Query<Versioned>, QueryRejection>;

/// A page of a bucket's objects, in the byte order of their keys.
#[utoipa::path(get, path = "/api/v1/buckets/{bucket}/objects", tag = "objects", operation_id = "list_objects",
    params(
        ("bucket" = String, Path, description = "The bucket's name"),
        ("prefix" = Option<String>, Query, description = "Only keys that begin with this"),
        ("delimiter" = Option<String>, Query, description = "Keys that have this after the prefix are rolled up to it"),
        ("after" = Option<String>, Query, description = "What the previous page gave as `next`"),
        ("limit" = Option<usize>, Query, description = "Items of the page: 1 to 1000, which it is unless given"),
        ("versions" = Option<bool>, Query, description = "All versions and delete markers, not only each key's newest version"),
    ),
    responses(
        (status = 200, description = "The page", body = ObjectPage),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn list(
    State(door): Shared,
    bucket: Name,
    query: Result<Query<ObjectQuery>, QueryRejection>,
) -> Result<Json<ObjectPage>, Problem> {
    let mut query = query?.0;
    query.limit = query.limit.map(|limit| limit.clamp(1, 1000));
    Ok(Json(door.objects()?.list(&bucket?.0, query).await?))
}

/// What is known of an object.
#[utoipa::path(get, path = "/api/v1/buckets/{bucket}/objects/{key}", tag = "objects", operation_id = "show_object",
    params(
        ("bucket" = String, Path, description = "The bucket's name"),
        ("key" = String, Path, description = "The object's key, percent-encoded"),
        ("version" = Option<String>, Query, description = "Its version; the newest unless given"),
    ),
    responses(
        (status = 200, description = "The object", body = Object),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn show(State(door): Shared, at: At, which: Which) -> Result<Json<Object>, Problem> {
    let (bucket, key) = at?.0;
    Ok(Json(door.objects()?.stat(&bucket, &key, which?.version.as_deref()).await?))
}

/// Deletes an object, as the bucket's versioning says, or a version for good.
#[utoipa::path(delete, path = "/api/v1/buckets/{bucket}/objects/{key}", tag = "objects",
    operation_id = "delete_object",
    params(
        ("bucket" = String, Path, description = "The bucket's name"),
        ("key" = String, Path, description = "The object's key, percent-encoded"),
        ("version" = Option<String>, Query, description = "The version to delete for good"),
        ("dry_run" = Option<bool>, Query, description = "Only check whether it would be refused, and do nothing"),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn delete(
    State(door): Shared,
    at: At,
    which: Result<Query<Deletion>, QueryRejection>,
) -> Result<StatusCode, Problem> {
    let ((bucket, key), Deletion { version, dry_run }) = (at?.0, which?.0);
    if dry_run {
        door.objects()?.check_delete(&bucket, &key, version.as_deref()).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    door.objects()?.delete(&bucket, &key, version.as_deref()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An object's content. An answer that breaks off is incomplete.
#[utoipa::path(get, path = "/api/v1/buckets/{bucket}/objects/{key}/content", tag = "objects",
    operation_id = "read_object",
    params(
        ("bucket" = String, Path, description = "The bucket's name"),
        ("key" = String, Path, description = "The object's key, percent-encoded"),
        ("version" = Option<String>, Query, description = "Its version; the newest unless given"),
        ("offset_bytes" = Option<u64>, Query, description = "With `size_bytes`: where to begin; 0 unless given"),
        ("size_bytes" = Option<u64>, Query, description = "How many bytes; all of it unless given"),
    ),
    responses(
        (status = 200, description = "The bytes", content_type = "application/octet-stream"),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn read(
    State(door): Shared,
    at: At,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<impl IntoResponse, Problem> {
    let (bucket, key) = at?.0;
    let Wanted { version, offset_bytes, size_bytes } = wanted?.0;
    if offset_bytes > 0 && size_bytes.is_none() {
        return Err(Problem::new(ProblemKind::Invalid, "offset_bytes needs size_bytes, too"));
    }
    let range = size_bytes.map(|size_bytes| offset_bytes..offset_bytes.saturating_add(size_bytes));
    let (object, content) = door.objects()?.read(&bucket, &key, version.as_deref(), range).await?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, size_bytes.unwrap_or(object.size_bytes).to_string()),
        (header::ETAG, format!("\"{}\"", object.etag)),
    ];
    Ok((headers, Body::from_stream(content)))
}

/// Stores an object: whole, or nothing of it. Kept are `Content-Type` and `x-amz-meta-...`; with `If-None-Match: *` it
/// is stored only where there is none. Other conditions are refused: S3 has them.
#[utoipa::path(put, path = "/api/v1/buckets/{bucket}/objects/{key}/content", tag = "objects",
    operation_id = "write_object",
    params(
        ("bucket" = String, Path, description = "The bucket's name"),
        ("key" = String, Path, description = "The object's key, percent-encoded"),
    ),
    request_body(content_type = "application/octet-stream", description = "The bytes"),
    responses(
        (status = 200, description = "The object, stored", body = Object),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn write(
    State(door): Shared,
    at: At,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Object>, Problem> {
    let (bucket, key) = at?.0;
    let head = head(&headers);
    let size_bytes = text(&headers, header::CONTENT_LENGTH.as_str()).and_then(|length| length.parse().ok());
    let body = Arc::new(Mutex::new(incoming(body)));
    let content = stream::unfold(Arc::clone(&body), |body| async {
        let next = body.lock().await.next().await?;
        Some((next, body))
    });
    let written =
        async { door.objects()?.write(&bucket, &key, head?, size_bytes, content.boxed()).await.map_err(Problem::from) };
    let written = written.await;
    if written.is_err() {
        drain(&mut *body.lock().await).await;
    }
    Ok(Json(written?))
}

/// Reads what is left of a refused body, if it is not much: a client that still sends would not hear why.
pub(crate) async fn drain(body: &mut Content) {
    let mut left = DRAINED_BYTES;
    while let Some(Ok(bytes)) = body.next().await {
        left = left.saturating_sub(bytes.len());
        if left == 0 {
            return;
        }
    }
}

/// Stores and deletes objects together: all of it happens, or nothing. The body has a step a line; behind the line of a
/// `put` come as many bytes of content as it says. The last line is `"commit"`.
#[utoipa::path(post, path = "/api/v1/batch", tag = "objects", operation_id = "batch",
    request_body(content = BatchStep, content_type = "application/x-kura-batch", description = "Steps, a line each"),
    responses(
        (status = 200, description = "What was done", body = BatchResult),
        (status = "default", description = "What went wrong: nothing was done", body = Problem),
    ))]
pub(super) async fn batch(State(door): Shared, body: Body) -> Result<Json<BatchResult>, Problem> {
    let mut lines = BatchLines::new(incoming(body));
    let done = async { carry_out(door.objects()?, &mut lines).await }.await;
    if done.is_err() {
        drain(&mut lines.body).await;
    }
    Ok(Json(done?))
}

async fn carry_out(objects: &dyn Objects, lines: &mut BatchLines) -> Result<BatchResult, Problem> {
    let mut batch = objects.batch();
    let mut result = BatchResult { stored: 0, deleted: 0 };
    loop {
        let step = lines.step().await?;
        let mut left = 0;
        match &step {
            BatchStep::Require { .. } => {}
            BatchStep::Delete { .. } => result.deleted += 1,
            BatchStep::Put { size_bytes, .. } => {
                result.stored += 1;
                left = *size_bytes;
            }
            BatchStep::Commit => {
                batch.commit().await?;
                return Ok(result);
            }
        }
        batch.step(step).await?;
        while left > 0 {
            let bytes = lines.content(left).await?;
            left -= bytes.len() as u64;
            batch.content(bytes).await?;
        }
    }
}

pub(crate) fn incoming(body: Body) -> Content {
    body.into_data_stream().map_err(|error| Error::retry(format!("the body broke off: {error}"))).boxed()
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(String::from_utf8_lossy(headers.get(name)?.as_bytes()).into_owned())
}

/// What headers say of an object to be stored; refused where they set a condition that is not looked at.
fn head(headers: &HeaderMap) -> Result<ObjectHead, Problem> {
    let new = match text(headers, header::IF_NONE_MATCH.as_str()) {
        None => false,
        Some(value) if value.trim() == "*" => true,
        Some(value) => return Err(unknown_condition(header::IF_NONE_MATCH, &value)),
    };
    for name in [header::IF_MATCH, header::IF_UNMODIFIED_SINCE] {
        if let Some(value) = text(headers, name.as_str()) {
            return Err(unknown_condition(name, &value));
        }
    }
    let metadata = headers.keys().filter_map(|name| {
        let own = name.as_str().strip_prefix(METADATA)?;
        Some((own.to_owned(), text(headers, name.as_str())?))
    });
    Ok(ObjectHead { content_type: text(headers, header::CONTENT_TYPE.as_str()), metadata: metadata.collect(), new })
}

fn unknown_condition(name: HeaderName, value: &str) -> Problem {
    let text = format!("{name}: {value}: only If-None-Match: * is looked at here; S3 has the others");
    Problem::new(ProblemKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_is_not_looked_at_is_refused() {
        let of = |name: HeaderName, value: &str| head(&HeaderMap::from_iter([(name, value.parse().unwrap())]));
        assert!(!head(&HeaderMap::new()).unwrap().new);
        assert!(of(header::IF_NONE_MATCH, "*").unwrap().new);
        for (name, value) in [
            (header::IF_NONE_MATCH, "\"one\""),
            (header::IF_MATCH, "\"one\""),
            (header::IF_UNMODIFIED_SINCE, "Mon, 30 Nov 2026 12:00:00 GMT"),
        ] {
            let refused = of(name.clone(), value).unwrap_err();
            assert!(refused.kind == ProblemKind::Invalid && refused.error.contains(name.as_str()), "{refused}");
        }
    }
}
