//! The node as a whole.

use super::snapshots::is_snapshot;
use super::{Door, Shared};
use crate::metrics::render;
use crate::{Controller, Health, Problem, Status};
use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::IntoResponse;
use kura_controller::VolumeInfo;
use std::collections::BTreeMap;

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
    let (admin, status) = (&door.admin, door.status().await?);
    let (tier, jobs) = (admin.node.tier().await?.into(), admin.replicas.jobs().await?);
    let text = render(&status, &tier, &jobs, &admin.schedules.list()) + &admin.metrics.render();
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

/// What is to be known of volumes that can only be deleted; their snapshots, of which there may be many, are told with them.
fn lost(volumes: &[VolumeInfo]) -> Vec<String> {
    let mut of: BTreeMap<&str, usize> = BTreeMap::new();
    for info in volumes.iter().filter(|info| info.lost) {
        let volume = info.spec.name.split('@').next().unwrap_or_default();
        *of.entry(volume).or_default() += usize::from(is_snapshot(info));
    }
    let told = |(volume, snapshots): (&str, usize)| {
        let with = if snapshots > 0 { format!(", with its snapshots ({snapshots}),") } else { String::new() };
        format!(
            "volume {volume}{with} is lost: delete it, its clones and snapshots first, and restore it from a backup or a copy"
        )
    };
    of.into_iter().map(told).collect()
}

/// What is to be known of volumes that a restart loses.
fn doomed(volumes: &[VolumeInfo]) -> Vec<String> {
    let doomed = volumes.iter().filter(|info| info.doomed && !is_snapshot(info));
    let told = |info: &VolumeInfo| {
        let name = &info.spec.name;
        format!("volume {name} is lost at the next start, with its snapshots: copy it to another volume before")
    };
    doomed.map(told).collect()
}

impl Door {
    async fn status(&self) -> Result<Status, Problem> {
        let admin = &self.admin;
        let pool = admin.pool().await?;
        let controllers: Vec<_> = admin.node.controllers().await?.into_iter().map(Controller::from).collect();
        let volumes = admin.node.volumes().await?;
        let failed = controllers.iter().filter_map(Controller::problem);
        let lost = doomed(&volumes).into_iter().chain(lost(&volumes));
        let problems = pool.problems().into_iter().chain(failed).chain(lost).chain(admin.s3_failure());
        let problems: Vec<_> = problems.collect();
        Ok(Status {
            version: admin.version.clone(),
            started_at: admin.started_at,
            data: admin.data.clone(),
            nbd: admin.nbd.clone(),
            s3: admin.s3.clone(),
            s3_acknowledge: admin.objects.as_ref().map(|objects| objects.acknowledge()),
            rest: admin.rest.clone(),
            health: if problems.is_empty() { Health::Healthy } else { Health::Degraded },
            problems,
            pool,
            controllers,
            volumes: volumes
                .into_iter()
                .filter(|volume| !is_snapshot(volume))
                .map(|volume| admin.told(volume))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kura_controller::{Layout, Shape, VolumeSpec};

    #[test]
    fn lost_volumes_are_told_with_their_snapshots() {
        let info = |name: &str, (lost, doomed)| VolumeInfo {
            spec: VolumeSpec {
                name: name.to_owned(),
                size_bytes: 1,
                layout: Layout::Mirror,
                thick: false,
                read_only: false,
            },
            id: 1,
            controller: 0,
            shape: Shape::MIRROR,
            allocated_bytes: 0,
            raw_bytes: 0,
            open: 0,
            family: 1,
            work: 0,
            snapshots: 0,
            lost,
            doomed,
            svol: None,
        };
        let (fine, gone, going) = ((false, false), (true, false), (false, true));
        let names = [
            ("fine", fine),
            ("db", gone),
            ("db@1", gone),
            ("db@2", gone),
            ("clone", gone),
            ("web", going),
            ("web@1", going),
        ];
        let volumes = names.map(|(name, state)| info(name, state));
        let told = lost(&volumes);
        assert_eq!(told.len(), 2);
        assert!(told[0].starts_with("volume clone is lost: "), "{}", told[0]);
        assert!(told[1].starts_with("volume db, with its snapshots (2), is lost: "), "{}", told[1]);
        let told = doomed(&volumes);
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("volume web is lost at the next start, with its snapshots: "), "{}", told[0]);
        assert!(lost(&volumes[..1]).is_empty() && doomed(&volumes[..5]).is_empty());
    }
}
