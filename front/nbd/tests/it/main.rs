//! The room through its door: in one thread and virtual time, and with real sockets and clients.

mod client;
mod local;
mod memory;
mod negotiation;
mod transmission;
