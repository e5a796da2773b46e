//! Files and block devices as [`kura_block::Block`], on the controller's own thread.
//!
//! ```text
//!   one thread:   sockets ── controller ── Disk ── ring          no hop to another thread on the way of an I/O
//!                    └──────── tokio ────────────────┘            the ring's readiness is one more event in its epoll
//! ```
//!
//! [`run`] builds a thread's runtime and its ring; a [`Disk`] opened inside uses that ring. Requests that tasks make
//! in one round of the scheduler are submitted together, by one system call.

mod disk;
mod errno;
mod ring;
mod runtime;

pub use disk::{Disk, Options};
pub use runtime::{HostRuntime, run};
