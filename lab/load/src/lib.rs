//! Generated loads with stated properties: the same text, the same requests.
//!
//! ```
//! let load: kura_load::Spec = "load:zipf,theta=1.2,size=1G,rate=500,seconds=10,seed=7".parse()?;
//! let requests: Vec<kura_trace::Request> = load.requests().collect();
//! assert!((4500..5500).contains(&requests.len()));
//! assert!(requests.iter().all(|request| request.end_bytes() <= load.size_bytes()));
//! # Ok::<(), kura_load::Invalid>(())
//! ```
//!
//! | load | what it is |
//! | --- | --- |
//! | `uniform` | every block alike |
//! | `zipf` | a few blocks draw most requests, by Zipf's law; scattered over the range or at its front |
//! | `sequential` | streams from block to block |
//! | `concentrations` | shared files: most requests in 1 % of the capacity for minutes, then elsewhere |
//! | `src1_0-like`, `src1_1-like` | the same with what is known of two volumes of MSR Cambridge; not those traces |
//! | `tpcc-like` | a database under TPC-C's transactions, seen behind its buffer cache, with checkpoints or without |
//!
//! All take `seed`, `seconds`, `requests` (where it ends), `rate`, `arrivals=poisson|fixed`, and `on` and `off`, which
//! turn any of them into bursts; [`list`] names every parameter with its default and its meaning.

mod arrivals;
mod chance;
mod concentrations;
mod params;
mod plain;
mod spec;
#[cfg(test)]
mod tests;
mod tpcc;

pub use params::{Invalid, Parameter};
pub use spec::{Entry, PREFIX, Requests, Spec, list};
