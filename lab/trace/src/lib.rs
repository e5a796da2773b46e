//! Traces of block requests: the forms they come in, read and written, and their anatomy.

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
pub use error::TraceError;
pub use fit::{Fit, Fitter};
pub use read::{Format, Reader, open, open_as};
pub use request::{Op, Request};
pub use write::{Written, write_blkparse, write_msr};
