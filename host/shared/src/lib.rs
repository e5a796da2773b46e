//! What controllers that share a process share: what is free and what is named ([`kura_block::Shared`], as
//! [`InProcess`]), and the control information of snapshots
//! ([`ControlMemory`](kura_snapshot::method::ControlMemory), as [`Control`]).
//!
//! Nothing here is stored: when a node starts, its controllers adopt what their own tables say they hold, and all else
//! is free. One lock guards the tables; a controller takes it once for a batch, never for an I/O, unless the method by
//! which it shares says so.

mod control;
mod extents;
mod in_process;

pub use control::{Control, ControlTables};
pub use in_process::InProcess;
