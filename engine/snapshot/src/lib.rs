//! Snapshots without I/O.
//!
//! [`method`] is how the controllers of a pool reach the control information that snapshots need: index info (does a
//! region of a PVOL's snapshot lie in the PVOL or in the pool?) and pool management info (is a region of the `PoolVOL`
//! free?). The data path stands above, shared memory below:
//!
//! ```text
//!   data path ──> Method ──> ControlMemory      in process: kura_shared; simulated: lab/experiments
//!                   └ aggregate, message, access-change, lease
//! ```

pub mod method;
