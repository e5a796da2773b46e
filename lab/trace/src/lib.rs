//! Traces of block requests: the forms they come in, read and written, and their anatomy.
//!
//! ```text
//!  file ─> gzip, zstd ─> MSR CSV, fio iolog ───────────> order ─────────────┐
//!                        blkparse, blktrace ─> events ─> order ─> matched ──┴─> Request ─> window, accelerate, fit
//! ```
//!
//! ```
//! use kura_trace::{Adapt, Anatomy, Fit, Fitter, Scope, open};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = &folder.path().join("web_3.csv");
//! # std::fs::write(path, "128166372003061629,web,3,Read,7014609920,24576,41286\n")?;
//! println!("{}", Anatomy::of(open(path)?, &Scope::default())?);
//! let fitter = Fitter::new(Fit::Compact, 1 << 30, || open(path))?;
//! for request in open(path)?.accelerated(2.0)?.fitted(fitter) {
//!     assert!(request?.end_bytes() <= 1 << 30);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What must hold:
//! 1. Requests come in order of time, the first at 0; each covers bytes below 8 EiB, at least one unless it is a flush.
//! 2. Memory is bounded, however long the trace.
//! 3. Whatever a file holds, it is read or refused, with the line or the byte and with what to do. Nothing is skipped
//!    in silence but what is no request: other events, messages, a summary.

mod adapt;
mod anatomy;
mod blocks;
mod error;
mod fit;
mod read;
mod request;
mod write;

pub use adapt::{Accelerated, Adapt, Fitted, Window};
pub use anatomy::{
    Anatomy, Concentration, DistanceShare, Frequency, Grid, GridCell, Percentiles, Rates, ReadToWrite, Scope,
};
pub use blocks::BlockSet;
pub use error::TraceError;
pub use fit::{Fit, Fitter};
pub use read::{Format, Reader, files, open};
pub use request::{Op, Request};
pub use write::{Written, write_blkparse, write_msr};
