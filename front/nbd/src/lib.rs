//! The server side of the NBD protocol.
//!
//! A client is served in two steps, so that its socket ends up on the thread that owns the volume, where a request
//! costs no hop to another thread:
//!
//! 1. [`handshake`] negotiates, on any thread. It asks [`Exports`] what there is, upgrades to TLS, and ends in a
//!    [`Session`], which may be sent to another thread.
//! 2. [`transmit`] serves the session from a [`kura_block::Block`] until the client leaves, or gives it back when the volume is
//!    another thread's, to be served there from where it stands.
//!
//! [`Server`] does the first step for every client of a [`Listener`] and hands the sessions over.
//!
//! ```text
//!   Listener ──> handshake ──> Session ───(to the owner's thread)───> transmit ──> volume
//!                   │ Exports, Tls                                       │ Limits, stop
//! ```
//!
//! Spoken is the fixed newstyle protocol with structured replies, the metadata context `base:allocation`, and those that
//! [`Exports::contexts`] names.

mod client;
mod export;
mod handshake;
mod hangup;
mod limits;
mod listen;
mod memory;
pub mod meters;
mod protocol;
mod server;
mod session;
mod socket;
mod tls;
mod transmit;

pub use client::Client;
pub use export::{Contexts, EXTENTS_LIMIT, Export, Exports, Extent, only};
pub use handshake::handshake;
pub use hangup::Hangup;
pub use limits::Limits;
pub use listen::{Address, Listener};
pub use server::Server;
pub use session::Session;
pub use socket::Socket;
pub use tls::{Tls, TlsKeys};
pub use transmit::{Ended, transmit};
