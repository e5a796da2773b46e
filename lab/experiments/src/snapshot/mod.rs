//! `snapshot-message` and `snapshot-methods`: what it costs to keep control information of snapshots in local memory.
//!
//! The paper is Deguchi, Shimozono and Yamamoto, *Performance Improvement of Copy-on-Write Snapshot for Storage Systems*
//! (000). Its methods and ours are those of [`kura_snapshot::method`], run for real over a shared memory that takes
//! time; only the time is a model:
//!
//! ```text
//!   controller 0 ─┐                       each a loop: a request, its processor time, what its method does,
//!   controller 1 ─┼─ shared memory        what others have sent it
//!   controller 2 ─┘  (waits in line)
//! ```
//!
//! A controller is a server that is never idle, so its speed is one over the mean time of a request. [`Costs`] has the
//! times of all that it does; one set of them, [`Costs::PAPER`], gives all numbers of the paper.

mod costs;
mod fill;
mod judge;
mod machine;
mod memory;
mod message;
mod methods;
#[cfg(test)]
mod tests;

pub use costs::Costs;
pub use message::SnapshotMessage;
pub use methods::SnapshotMethods;

use crate::Table;
use kura_snapshot::method::Kind;

/// Controllers in the paper's experiments; it does not tell how many it had.
const CONTROLLERS: u16 = 4;
/// Entries of the pool: of a pool this large a thousandth is a batch of over a hundred for each controller.
const POOL_ENTRIES: u32 = 1 << 20;

/// Rows of a table of residuals: what, the paper's number, ours, and ours less the paper's.
fn residuals(numbers: &[(String, f64, f64)]) -> Table {
    let title = "The model against the paper: speeds relative to aggregate";
    let mut table = Table::new("residuals", title, &["what", "paper", "ours", "residual"]);
    for (what, paper, ours) in numbers {
        table.row([what.as_str().into(), (*paper).into(), (*ours).into(), (ours - paper).into()]);
    }
    table
}

/// A method's name, from the one that JSON has.
fn kind(name: &str) -> anyhow::Result<Kind> {
    Ok(name.parse()?)
}
