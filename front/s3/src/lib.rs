//! The S3 door: buckets, objects and access keys, over HTTP, in an object store.
//!
//! ```text
//!   boto3, aws, rclone ──> server ──> s3s: signatures, XML ──> access ──> service      this thread: HTTP, hashes
//!                                                                          │ Way       one hop a request
//!                                                          kura_object::Store          its own thread
//! ```
//!
//! | in the store | is |
//! | --- | --- |
//! | a partition of a bucket's name | the bucket; what is set on it (policy, CORS, ...) are its attributes |
//! | its objects | the bucket's objects; headers and tags are attributes, the `ETag` is the tag |
//! | the partition `.keys` | the access keys, an object each |
//! | the partition `.uploads/BUCKET` | multipart uploads under way: versions of their object's key |
//! | the partition `.parts` | the uploads' parts |
//!
//! Buckets and access keys are few: they are kept in memory (a [`Directory`]), and every change of them goes through it.
//! All that is one step for a client is one batch of the store: it happened or it did not, also after a crash.
//!
//! A name `BUCKET@SNAPSHOT` (or `BUCKET.at.SNAPSHOT`) is the bucket as a snapshot of the store's volume has it, in a store
//! that is opened for it and read only; who may read it is who may read the bucket today.
//!
//! What is not supported answers `NotImplemented`; the list is in `docs/s3.md`.

// S3's inputs and outputs, two an operation, have the names that S3 gives them.
#![allow(clippy::wildcard_imports)]

mod access;
mod alive;
mod body;
mod bucket;
mod checksums;
mod copy;
mod cors;
mod delete;
mod desk;
mod directory;
mod door;
mod get;
mod keys;
mod list;
mod meta;
pub mod meters;
mod multipart;
mod past;
mod problem;
mod put;
mod query;
mod s3;
mod server;
mod service;
mod signed;
mod stall;
mod tags;
mod unwelcome;
mod wildcard;

pub use bucket::{Bucket, Versioning, sweep};
pub use desk::{Asked, Desk, DeskBatch, Entry, Head, Listed, Require};
pub use directory::Directory;
pub use door::{Door, Job};
pub use keys::{Grant, Key, NewKey};
pub use past::Snapshots;
pub use server::{Listener, converse, serve};
pub use service::Service;
