//! The words every room speaks.
//!
//! A layer of kura is made of block devices and *is* a block device: it holds [`Block`]s and implements [`Block`].
//! This crate has that trait, the buffers that travel through it, the error type whose kinds say what to do about it,
//! and the three things the engine is given from outside: time and tasks ([`Runtime`]), shared control information
//! ([`Shared`]), and devices ([`Block`] again).
//!
//! ```text
//!   client request ──> volume ──> array ──> device        each arrow is a call of `Block`
//!          answer  <──        <──       <──               a future that resolves to the bytes or a typed error
//! ```
//!
//! Sizes and offsets are bytes (`u64`) at every door. Nothing here does I/O.

mod amount;
mod buf;
mod checksum;
mod codec;
mod device;
mod error;
mod progress;
mod rope;
mod runtime;
mod shared;
mod sparse;

pub use amount::{Amount, Clients};
pub use buf::{Buf, BufMut, PAGE_BYTES};
pub use checksum::Checksum;
pub use codec::{Reader, Writer, is_sealed, seal};
pub use device::{Block, Geometry, Run, RunKind};
pub use error::{Error, Kind, Result};
pub use progress::Progress;
pub use rope::Bufs;
pub use runtime::{Local, Runtime};
pub use shared::{ControllerId, DeviceId, ExtentId, Names, Shared};
pub use sparse::Sparse;

/// Bytes in a block: the unit of checksums, of mapping and of what a torn write may leave old or new.
pub const BLOCK_BYTES: usize = 4096;
/// The same, where bytes of devices and volumes are counted.
pub const BLOCK_BYTES_U64: u64 = BLOCK_BYTES as u64;
