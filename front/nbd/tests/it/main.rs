//! The room through its door: in one thread and virtual time, and with real sockets and clients.
#![allow(clippy::unwrap_used, reason = "the helpers of tests fail like tests")]

mod certificates;
mod client;
mod clients;
mod contexts;
mod fuzz;
mod fuzz_body;
mod hostile;
mod local;
mod memory;
mod meters;
#[path = "../../../../fuzz/mutated.rs"]
mod mutated;
mod negotiation;
mod serve;
mod tls;
mod transmission;
