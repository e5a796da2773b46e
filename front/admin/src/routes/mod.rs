//! The routes, each with its words for `OpenAPI`.

mod about;
mod buckets;
mod jobs;
mod objects;
mod pool;
mod recordings;
mod replicas;
mod snapshots;
mod tier;
mod volumes;

pub(crate) use objects::{drain, incoming};

use crate::jobs::Jobs;
use crate::query::{Declared, as_declared};
use crate::{NewDisk, Objects, Problem, ProblemKind, Replicas, Schedules, Timestamp};
use axum::Router;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kura_block::Result;
use kura_controller::Node;
use metrics_exporter_prometheus::PrometheusHandle;
use serde::Deserialize;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

/// A request's body is a few numbers and a name.
const BODY_BYTES: usize = 64 * 1024;

/// What the REST door serves.
#[derive(Clone)]
pub struct Admin {
    /// The node.
    pub node: Node,
    /// Renders what this process counts itself, beside what the node tells.
    pub metrics: PrometheusHandle,
    /// The version of kura, for people.
    pub version: String,
    /// The data directory.
    pub data: String,
    /// Where volumes are reached: NBD URIs, in which `{volume}` stands for a volume's name.
    pub nbd: Vec<String>,
    /// Where S3's clients reach buckets: a URL, if anywhere.
    pub s3: Option<String>,
    /// Why there is no object store, where there is to be one.
    pub s3_failure: Option<String>,
    /// Where this door is reached over TCP: a URL, if anywhere.
    pub rest: Option<String>,
    /// What this machine knows of disks.
    pub disks: Arc<dyn Disks>,
    /// The object store, where there is one.
    pub objects: Option<Arc<dyn Objects>>,
    /// The name of the volume that the object store lies on, where there is one: no other volume has it.
    pub objects_volume: &'static str,
    /// The schedules of snapshots.
    pub schedules: Arc<dyn Schedules>,
    /// Who keeps copies of volumes.
    pub replicas: Arc<dyn Replicas>,
    /// The highest threshold that the pool's use has passed, in per cent.
    pub passed_percent: watch::Receiver<Option<u8>>,
    /// When this server started.
    pub started_at: Timestamp,
}

impl Admin {
    /// Why S3 is not served, where it is to be.
    fn s3_failure(&self) -> Option<String> {
        self.s3_failure.clone().or_else(|| self.objects.as_ref()?.failure())
    }
}

/// What the machine knows of disks. These calls may block.
pub trait Disks: Send + Sync + 'static {
    /// Where the disk was found last: names one that is away.
    fn last_path(&self, disk: Uuid) -> Option<String>;

    /// Refuses what [`Disks::prepare`] refuses, and writes nothing; else the size of the disk, in bytes.
    fn inspect(&self, new: &NewDisk) -> Result<u64>;

    /// Makes sure that the pool may take a disk, and returns the path to open it by. `Invalid` when it is not blank. That the disk
    /// is there is noted, durably, before the pool has it: the next start looks there.
    fn prepare(&self, new: &NewDisk, disk: Uuid) -> Result<String>;

    /// The pool has the disk at `path` now.
    fn joined(&self, path: &str);
}

/// Whether a request is only to be refused, where it would be, and not done.
#[derive(Deserialize)]
struct Trial {
    #[serde(default)]
    dry_run: bool,
}

type IsTrial = std::result::Result<Query<Trial>, QueryRejection>;

/// The same of what clients may hinder.
#[derive(Deserialize)]
struct Removal {
    #[serde(default)]
    force: bool,
    #[serde(default)]
    dry_run: bool,
}

struct Door {
    admin: Admin,
    /// Where that goes on which is not to stop halfway: not on threads that serve HTTP, which end it when they panic.
    runtime: Handle,
    jobs: Jobs,
    /// Held while a disk joins: two that are at one path would both take it.
    joining: tokio::sync::Mutex<()>,
}

impl Door {
    /// What is asked for goes on where this is called.
    fn here(admin: Admin) -> Self {
        Self { admin, runtime: Handle::current(), jobs: Jobs::here(), joining: tokio::sync::Mutex::default() }
    }
}

type Shared = State<Arc<Door>>;

#[derive(OpenApi)]
#[openapi(
    info(title = "kura", description = "Volumes, disks and controllers of a kura node. Sizes are bytes, times RFC 3339."),
    tags(
        (name = "node", description = "The node as a whole"),
        (name = "volumes", description = "Volumes, each an NBD export of its name"),
        (name = "snapshots", description = "Snapshots of volumes, each an NBD export of its name, and their schedules"),
        (name = "replicas", description = "Volumes that are copies of others, and what keeps them so"),
        (name = "pool", description = "The pool and its disks"),
        (name = "tier", description = "What lies in the fast tier, and why"),
        (name = "recordings", description = "Recordings of volumes' requests: traces of live volumes"),
        (name = "objects", description = "Buckets, access keys and objects: what S3's clients see"),
        (name = "jobs", description = "Long work"),
    )
)]
struct Api;

/// The routes over `admin`, without a guard: [`crate::serve`] adds the one its listener needs.
pub fn router(admin: Admin) -> Router {
    let (router, mut api) = OpenApiRouter::with_openapi(Api::openapi())
        .routes(routes!(about::health))
        .routes(routes!(about::metrics))
        .routes(routes!(about::status))
        .routes(routes!(volumes::list, volumes::create))
        .routes(routes!(volumes::show, volumes::resize, volumes::delete))
        .routes(routes!(volumes::migrate))
        .routes(routes!(snapshots::list, snapshots::create))
        .routes(routes!(snapshots::show, snapshots::delete))
        .routes(routes!(snapshots::clone))
        .routes(routes!(snapshots::roll_back))
        .routes(routes!(snapshots::changes))
        .routes(routes!(snapshots::schedules, snapshots::add_schedule))
        .routes(routes!(snapshots::remove_schedule))
        .routes(routes!(replicas::jobs))
        .routes(routes!(replicas::list))
        .routes(routes!(replicas::show, replicas::follow))
        .routes(routes!(replicas::begin))
        .routes(routes!(replicas::complete))
        .routes(routes!(replicas::promote))
        .routes(routes!(replicas::frame))
        .routes(routes!(replicas::hash))
        .routes(routes!(pool::pool))
        .routes(routes!(pool::disks, pool::add_disk))
        .routes(routes!(pool::fail_disk))
        .routes(routes!(pool::remove_disk))
        .routes(routes!(pool::replace_disk))
        .routes(routes!(pool::controllers))
        .routes(routes!(pool::drain))
        .routes(routes!(pool::resume))
        .routes(routes!(tier::show))
        .routes(routes!(tier::moves))
        .routes(routes!(tier::rules, tier::change_rules))
        .routes(routes!(tier::why))
        .routes(routes!(tier::heat))
        .routes(routes!(recordings::list))
        .routes(routes!(recordings::begin, recordings::show, recordings::delete))
        .routes(routes!(recordings::stop))
        .routes(routes!(recordings::requests))
        .routes(routes!(buckets::list, buckets::create))
        .routes(routes!(buckets::delete))
        .routes(routes!(buckets::keys, buckets::create_key))
        .routes(routes!(buckets::revoke_key))
        .routes(routes!(objects::list))
        .routes(routes!(objects::show, objects::delete))
        .routes(routes!(objects::read, objects::write))
        .routes(routes!(objects::batch))
        .routes(routes!(jobs::check))
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::show))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::events))
        .merge(frames())
        .split_for_parts();
    api.info.version.clone_from(&admin.version);
    describe_token(&mut api);
    let declared = Declared::by(&api);
    let description = async move || axum::Json(api.clone());
    router
        .layer(from_fn_with_state(declared, as_declared))
        .route("/api/v1/openapi.json", get(description))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .with_state(Arc::new(Door::here(admin)))
}

/// Of all bodies that are read whole, only a frame's is large. One that finds no place waits before anything of it is read.
fn frames() -> OpenApiRouter<Arc<Door>> {
    let placed = async |State(places): State<Arc<Semaphore>>, request: Request, next: Next| {
        let _place = places.acquire().await;
        next.run(request).await
    };
    OpenApiRouter::new()
        .routes(routes!(replicas::apply))
        .layer(DefaultBodyLimit::max(replicas::FRAME_BYTES))
        .layer(from_fn_with_state(Arc::new(Semaphore::new(replicas::FRAMES)), placed))
}

/// Says how the token is shown where the server has one, which is not everywhere.
fn describe_token(api: &mut utoipa::openapi::OpenApi) {
    let mut bearer = Http::new(HttpAuthScheme::Bearer);
    bearer.description =
        Some("The server's admin.token, where it has one: always beyond loopback, never on its socket".to_owned());
    api.components.get_or_insert_default().add_security_scheme("token", SecurityScheme::Http(bearer));
    api.security = Some(vec![SecurityRequirement::new("token", [""; 0]), SecurityRequirement::default()]);
}

async fn no_such_route(request: Request) -> Problem {
    let path = request.uri().path();
    let named = path.strip_prefix("/api/v1/").unwrap_or_default();
    if named.ends_with('/') || named.contains("//") {
        let text = format!("{path}: a name in it is empty: give one");
        return Problem::new(ProblemKind::Invalid, text);
    }
    Problem::new(ProblemKind::Missing, format!("{path}: no such resource; /api/v1/openapi.json lists them"))
}

async fn no_such_method(request: Request) -> Response {
    let text = format!("{}: the resource does not take {}", request.uri().path(), request.method());
    let mut response = Problem::new(ProblemKind::Invalid, text).into_response();
    *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    response
}
