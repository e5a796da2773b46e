//! The REST door: what a node has and does, over HTTP; and the client that speaks to it.
//!
//! ```text
//!   kura volume list ──┐                        ┌── guard: token; else only loopback's own pages
//!   curl, Prometheus ──┼── server (TCP, Unix) ──┤                                    └── routes ──> kura_controller::Node
//!   a browser ─────────┘                        └── pages, which ask the routes
//! ```
//!
//! Resources are nouns under `/api/v1/`, described by `/api/v1/openapi.json`; sizes are integers in bytes, times are
//! RFC 3339. An error is a [`Problem`] with a status that follows from its kind. Checks, moves of volumes and what
//! moves off disks and controllers answer `202` and a [`Job`], whose progress is at `/api/v1/jobs/ID` and, as server-sent events,
//! at `/api/v1/jobs/ID/events`; everything else answers when it is done.
//!
//! The types here are the wire's own, so that the engine may change without breaking a client.

mod batch_lines;
mod client;
mod convert;
mod given;
mod guard;
mod job;
mod jobs;
mod lines;
mod metrics;
mod objects;
mod page;
mod paths;
mod problem;
mod query;
mod replicas;
mod requests;
mod resources;
mod routes;
mod server;
mod snapshots;
mod stall;
mod tier;

#[cfg(test)]
mod tests;

pub use client::{Client, ClientError, FrameClient, ObjectBytes, Patient, RecordedRequests, ServerUri, Trial};
pub use guard::Token;
pub use job::{Job, JobKind, JobResult, JobState, JobUnit, Replacing};
pub use objects::{
    AccessKey, Acknowledge, BatchResult, BatchStep, Bucket, Condition, Content, Grant, NewBucket, NewKey, Object,
    ObjectBatch, ObjectHead, ObjectPage, ObjectQuery, Objects, Versioning,
};
pub use page::Page;
pub use problem::{Problem, ProblemKind};
pub use replicas::{
    Follow, NewPoint, NewTransfer, PartHash, Replica, ReplicaState, ReplicaTransfer, Replicas, ReplicationJob,
};
pub use resources::{
    CheckRequest, CheckResult, Controller, ControllerArray, ControllerSharing, Disk, DiskClass, DiskState,
    DrainedController, Health, Layout, MoveVolume, MovedVolume, NewDisk, NewRecording, NewVolume, Pool, RecordedOp,
    RecordedRequest, Recording, RecordingState, Replacement, ResizeVolume, SnapshotStops, Status, StayingVolume,
    StopsUpTo, Timestamp, Volume,
};
pub use routes::{Admin, Disks, router};
pub use server::{Access, Listener, serve};
pub use snapshots::{
    ByteRange, ChangePage, KeptSchedule, NewClone, NewSnapshots, RollBack, Schedules, Snapshot, SnapshotSchedule,
};
pub use tier::{RegionHeat, TierChange, TierMove, TierPin, TierRules, TierStatus, TierWhy, VolumeHeat};
