//! Buckets: what a run does with a key, and what is known of the objects that were carried.
//!
//! ```text
//!   source's list ──┐
//!                   ├── in the order of keys ── next ── carry, delete, keep
//!   target's list ──┘                            │
//!                          Carried: which object of the source the target's is
//! ```
//!
//! What must hold, whatever stops where:
//! 1. An object is kept only where it is known that the one there was made of the one here.
//! 2. That is known only after the target has said that it has the object.
//! 3. An object is deleted only where the source's list has gone past its key.

mod carried;
mod policy;

pub use carried::{Carried, Upload};
pub use policy::{Here, Step, There, is_addressable, is_others, next, part_bytes, parts};
