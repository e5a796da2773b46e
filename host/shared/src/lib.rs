//! What is free, and what is named: [`kura_block::Shared`] for controllers that share a process.
//!
//! Nothing here is stored: when a node starts, its controllers adopt what their own tables say they hold, and all else
//! is free. One lock guards the tables; a controller takes it once for a batch of extents, never for an I/O.

mod extents;
mod in_process;

pub use in_process::InProcess;
