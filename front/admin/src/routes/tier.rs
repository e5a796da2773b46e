//! The tiers.

use super::Shared;
use super::volumes::Name;
use crate::given::Given;
use crate::{Problem, TierChange, TierMove, TierRules, TierStatus, TierWhy, VolumeHeat};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;

/// The tiers as they are.
#[utoipa::path(get, path = "/api/v1/tier", tag = "tier", operation_id = "show_tier", responses(
    (status = 200, description = "The tiers", body = TierStatus),
    (status = "default", description = "What went wrong", body = Problem),
))]
pub(super) async fn show(State(door): Shared) -> Result<Json<TierStatus>, Problem> {
    Ok(Json(door.admin.node.tier().await?.into()))
}

/// How many moves are asked for.
#[derive(Deserialize)]
pub(super) struct Newest {
    limit: Option<usize>,
}

/// The moves that are remembered, the oldest first: a thousand a controller.
#[utoipa::path(get, path = "/api/v1/tier/moves", tag = "tier", operation_id = "list_tier_moves",
    params(("limit" = Option<usize>, Query, description = "So many of them, the newest; all unless given")),
    responses(
        (status = 200, description = "The moves", body = [TierMove]),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn moves(
    State(door): Shared,
    newest: Result<Query<Newest>, QueryRejection>,
) -> Result<Json<Vec<TierMove>>, Problem> {
    let limit = newest?.limit;
    let moves = door.admin.node.tier_moves().await?;
    let older = limit.map_or(0, |limit| moves.len().saturating_sub(limit));
    Ok(Json(moves.into_iter().skip(older).map(TierMove::from).collect()))
}

/// What the user says of a volume's place in the tiers.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/tier", tag = "tier", operation_id = "show_tier_rules",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The rules", body = TierRules),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn rules(State(door): Shared, name: Name) -> Result<Json<TierRules>, Problem> {
    Ok(Json(door.admin.node.tier_rules(&name?.0).await?.into()))
}

/// Changes what the user says of a volume's place in the tiers: what is not named stays.
#[utoipa::path(patch, path = "/api/v1/volumes/{name}/tier", tag = "tier", operation_id = "change_tier_rules",
    params(("name" = String, Path, description = "The volume's name")), request_body = TierChange,
    responses(
        (status = 200, description = "The rules, changed", body = TierRules),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn change_rules(
    State(door): Shared,
    name: Name,
    Given(change): Given<TierChange>,
) -> Result<Json<TierRules>, Problem> {
    let name = name?.0;
    let rules = TierRules::from(door.admin.node.change_tier_rules(&name, change.into()).await?);
    tracing::info!(volume = ?name, ?rules, "tier rules changed");
    Ok(Json(rules))
}

/// Which region is asked about.
#[derive(Deserialize)]
pub(super) struct Place {
    #[serde(default)]
    offset_bytes: u64,
}

/// Why the region at an offset of a volume is where it is.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/tier/why", tag = "tier", operation_id = "why_tier",
    params(
        ("name" = String, Path, description = "The volume's name"),
        ("offset_bytes" = Option<u64>, Query, description = "Where in the volume; 0 unless given"),
    ),
    responses(
        (status = 200, description = "Why", body = TierWhy),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn why(
    State(door): Shared,
    name: Name,
    place: Result<Query<Place>, QueryRejection>,
) -> Result<Json<TierWhy>, Problem> {
    Ok(Json(door.admin.node.tier_why(&name?.0, place?.0.offset_bytes).await?.into()))
}

/// How the regions of a volume were used in the last interval, and which are in the fast tier.
#[utoipa::path(get, path = "/api/v1/volumes/{name}/heat", tag = "tier", operation_id = "show_heat",
    params(("name" = String, Path, description = "The volume's name")),
    responses(
        (status = 200, description = "The regions", body = VolumeHeat),
        (status = "default", description = "What went wrong", body = Problem),
    ))]
pub(super) async fn heat(State(door): Shared, name: Name) -> Result<Json<VolumeHeat>, Problem> {
    Ok(Json(door.admin.node.tier_heat(&name?.0).await?.into()))
}
