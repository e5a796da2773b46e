//! The node as a whole.

use super::snapshots::is_snapshot;
use super::{Door, Shared};
use crate::metrics::render;
use crate::{Controller, Health, Problem, Status};
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;

/// Answers when the server answers.
#[utoipa::path(get, path = "/healthz", tag = "node", responses((status = 200, description = "It serves", body = str)))]
pub(super) async fn health() -> &'static str {
    "ok\n"
}

/// Counters and gauges in Prometheus' text form.
#[utoipa::path(get, path = "/metrics", tag = "node", responses(
    (status = 200, description = "Prometheus text", body = str),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn metrics(State(door): Shared) -> Result<impl IntoResponse, Problem> {
    let tier = door.admin.node.tier().await?.into();
    let text = render(&door.status().await?, &tier, &door.admin.replicas.jobs().await?) + &door.admin.metrics.render();
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text))
}

/// The node at a glance.
#[utoipa::path(get, path = "/api/v1/status", tag = "node", responses(
    (status = 200, description = "The node", body = Status),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn status(State(door): Shared) -> Result<Json<Status>, Problem> {
    Ok(Json(door.status().await?))
}

impl Door {
    async fn status(&self) -> Result<Status, Problem> {
        let admin = &self.admin;
        let pool = admin.pool().await?;
        let controllers: Vec<_> = admin.node.controllers().await?.into_iter().map(Controller::from).collect();
        let volumes = admin.node.volumes().await?;
        let failed = controllers.iter().filter_map(Controller::problem);
        let problems: Vec<_> = pool.problems().into_iter().chain(failed).chain(admin.s3_failure.clone()).collect();
        Ok(Status {
            version: admin.version.clone(),
            started_at: admin.started_at,
            data: admin.data.clone(),
            nbd: admin.nbd.clone(),
            s3: admin.s3.clone(),
            rest: admin.rest.clone(),
            health: if problems.is_empty() { Health::Healthy } else { Health::Degraded },
            problems,
            pool,
            controllers,
            volumes: volumes.into_iter().filter(|volume| !is_snapshot(volume)).map(Into::into).collect(),
        })
    }
}
