//! Replication: a copy of a source is kept at a target, over and over, by workers that all have as much to do.
//!
//! ```text
//!   run      one run: scan, changes, lists, workers, marker
//!   balance  who carries what; knows nothing of files and processes
//!   tree     what a tree is, what it was, and what has changed
//!   kura     workers of our own, with kura at both ends
//!   rsync    workers that are rsync processes, on this machine and others
//!   volume   volumes: what a run does next, and how blocks travel
//!   bucket   buckets: what a run does with a key, and what is known of objects that were carried
//! ```
//!
//! Begin with [`run()`]. Whatever cannot be carried is told with its path and cause, and everything else is carried.

mod attributes;
pub mod balance;
pub mod bucket;
mod codec;
mod error;
mod job;
mod kura;
mod marker;
mod mounts;
mod origin;
mod progress;
mod rsync;
mod run;
mod target;
mod tree;
pub mod volume;

pub use error::{Error, Failure, Result, escaped};
pub use job::{Job, Jobs, Standing, Traces};
pub use kura::{Limit, Service, serve_stdio, serve_stream};
pub use marker::{Marker, State, rfc3339};
pub use origin::Origin;
pub use progress::{Counter, Phase, Progress};
pub use run::{Node, Options, Place, Split, Summary, Verified, With, Worker, failback, failover, last, run, verify};
pub use target::{Target, is_this_machine};
