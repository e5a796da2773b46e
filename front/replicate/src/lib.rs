//! Replication: a copy of a source is kept at a target, over and over, by workers that all have as much to do.
//!
//! [`balance`] decides who carries what. It knows nothing of files and processes: items with a size and a place go in,
//! work lists come out.

mod attributes;
pub mod balance;
mod codec;
mod tree;
