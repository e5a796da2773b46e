//! What controllers that share a process share: what is named ([`kura_block::Shared`]) and what is free on each device
//! ([`SharedPool`](kura_snapshot::method::SharedPool)), as [`InProcess`]; and what stands behind one device, or behind the pool
//! of an experiment ([`ControlMemory`](kura_snapshot::method::ControlMemory), as [`Control`]).
//!
//! Nothing here is stored: when a node starts, its controllers adopt what their own tables say they hold, and all else
//! is free. One lock guards the tables; a controller takes it once for a batch, never for an I/O, unless the method by
//! which it shares says so.

mod control;
mod extents;
mod in_process;
mod names;

pub use control::{Control, ControlTables};
pub use in_process::InProcess;
