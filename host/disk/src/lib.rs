//! Files and block devices as [`kura_block::Block`], on the controller's own thread.
//!
//! ```text
//!   one thread:   sockets ── controller ── Disk ── ring          no hop to another thread on the way of an I/O
//!                    └──────── tokio ────────────────┘            the ring's readiness is one more event in its epoll
//! ```
//!
//! [`run`] builds a thread's runtime and its ring; a [`Disk`] opened inside uses that ring. Requests that tasks make
//! in one round of the scheduler are submitted together, by one system call. A thread that waits for something that comes soon looks
//! for it instead of sleeping (`linger`).
//!
//! Before that, a process finds out what a path is ([`probe`]), keeps others away ([`Lock`]), and makes its files
//! ([`create_sparse`], [`preallocate`]). What is metered is in `meters`; how errors are typed, in `errno`.

mod disk;
mod errno;
mod file;
mod linger;
mod lock;
mod meters;
mod probe;
mod ring;
mod runtime;
#[cfg(test)]
mod testing;

pub use disk::{Disk, Options};
pub use file::{create_sparse, preallocate};
pub use lock::Lock;
pub use probe::{Probe, ProbeKind, probe};
pub use runtime::{HostRuntime, run};
