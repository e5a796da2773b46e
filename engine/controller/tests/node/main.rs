//! Whole nodes on simulated disks: what each file says must hold. One program, for they have most of their code in common.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test breaks by panicking, and shows the seed that broke it"
)]

#[path = "../rig/alone.rs"]
mod alone;
mod away;
mod checkpoints;
mod durability;
mod membership;
mod moves;
mod refused;
#[path = "../rig/mod.rs"]
mod rig;
mod sharing;
mod snapshots;
mod stall;
mod straight;
mod strangers;
mod thick;
mod tier_room;
mod tiered;
#[path = "../rig/told.rs"]
mod told;
mod unlucky;
