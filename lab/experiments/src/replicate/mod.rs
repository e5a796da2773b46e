//! `replicate-contention` and `replicate-balance`: a cluster file system and the processes that copy to it. `replicate-real`:
//! real processes, here.
//!
//! The paper is Matsui et al., *Performance Improvement of SONAS Asynchronous Replication by Load Balancing of rsync
//! Processes* (001). The splits are those that `kura replicate` works with; only the cluster is a model.

mod balance;
mod cluster;
mod contention;
mod real;
#[cfg(test)]
mod tests;
mod trees;

pub use balance::Balance;
pub use cluster::Model;
pub use contention::Contention;
pub use real::Real;

/// The part of one of the paper's numbers that ours may be away from it.
const NEAR: f64 = 0.1;

/// Rows of a table of residuals: what, the paper's number, ours, and ours over the paper's less one.
fn residuals(name: &str, title: &str, numbers: &[(&str, f64, f64)]) -> crate::Table {
    let mut table = crate::Table::new(name, title, &["what", "paper", "ours", "residual_percent"]);
    for &(what, paper, ours) in numbers {
        table.row([what.into(), paper.into(), ours.into(), ((ours / paper - 1.0) * 100.0).into()]);
    }
    table
}
