//! A trace through a node on simulated disks, in virtual time.
//!
//! ```text
//!   requests ──(a thread reads ahead)──> pace ──> volume ──> kura_controller, the engine that serves ──> kura_sim's disks
//!                                          │         │
//!                              open, closed loop     └── response times, ledger of contents (verify) ──> Summary
//! ```
//!
//! A [`NodeSpec`] says what the node is made of; it is what `kura serve` reads, with models for disks. [`replay`] makes
//! the pool and a volume on them, writes what the trace is going to read ([`Prefill`]), puts the tiering policy to work, and
//! issues the requests: at their
//! times whatever the node does ([`Pace::Open`]), or a number of them at once ([`Pace::Closed`]). The [`Summary`] holds
//! nothing that differs from run to run: the same trace, node, options and seed give the same bytes.
//!
//! A [`Session`] goes through a load in parts: one warms it up, one is measured, then a disk fails, and the next part
//! is the rebuild.
//!
//! # What must hold
//! 1. In open loop a request is issued at its time to the nanosecond, and its response time counts from there.
//! 2. Contents are zeroes, of which the simulated disks keep nothing, so that memory does not grow with the trace. With
//!    [`Options::verify`] every write has bytes of its own, all are kept, and every read is held against what may be
//!    there; the times are the same.
//! 3. The controllers but the first own nothing: a node of several has as many journals.

mod ahead;
mod error;
mod ledger;
mod node;
mod options;
mod pace;
mod prefill;
mod replay;
mod run;
mod session;
mod summary;
mod survey;
mod tally;
#[cfg(test)]
mod tests;

pub use ahead::Ahead;
pub use error::Error;
pub use kura_controller::{DiskClass, HotSettings, Layout, Settings};
pub use node::{NodeDisk, NodeSpec, NodeTier};
pub use options::{Options, Pace, Prefill};
pub use replay::{Phase, Progress, replay};
pub use session::Session;
pub use summary::{
    ControllerSummary, DiskSummary, LoadSummary, PoolSummary, Response, Summary, TierSummary, VerifySummary,
    VolumeSummary, Window,
};
pub use survey::Survey;

/// The result of every fallible call here.
pub type Result<T> = std::result::Result<T, Error>;
