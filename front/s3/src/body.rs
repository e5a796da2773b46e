//! Bodies of requests: how they come in, what they hash to, and the memory for them.

mod chunks;
pub(crate) mod digest;
pub(crate) mod document;
mod md5;
pub(crate) mod memory;
pub(crate) mod take_in;
pub(crate) mod unread;
