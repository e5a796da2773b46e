//! What one client may take.

use std::time::Duration;

/// Limits on a client, and on clients together.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Clients served at once that came to one listener; more wait to be accepted.
    pub connections: usize,
    /// Clients that negotiate at once with one listener, beside those that are served. Of more, those go that negotiate for
    /// the longest time, of whoever has most of them.
    pub negotiations: usize,
    /// From connecting to the begin of transmission.
    pub handshake_timeout: Duration,
    /// Data of one option while negotiating, in bytes; more is read, thrown away and refused.
    pub option_bytes: u32,
    /// Data of one read or write, in bytes; more is refused without an end of the connection.
    pub payload_bytes: u32,
    /// Requests of one connection that are served at once; further ones wait in the socket.
    pub requests: usize,
    /// Data of one connection's requests that are served at once, in bytes; further ones wait in the socket. One
    /// request may go beyond it.
    pub bytes_in_flight: usize,
    /// Memory for the data of reads and writes, and for what is told of ranges, that all connections of a server share, in
    /// bytes, beside 256 KiB each; further ones wait in the socket. As much as one payload may take at least.
    pub memory_bytes: usize,
    /// A client that has memory which others wait for, and that is not heard of for so long, is sent away: in this time it is
    /// to send 1 MiB of its write, or the rest of it, or to take as much of what it read; of more than 8 MiB, an eighth.
    pub stall_timeout: Duration,
    /// How long requests in flight may take to end, and their replies to be taken, once a connection is closing; where the
    /// client said that it disconnects, the requests take as long as they do, unless the server stops.
    pub drain_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            negotiations: 128,
            handshake_timeout: Duration::from_secs(30),
            option_bytes: 64 << 10,
            payload_bytes: 64 << 20,
            requests: 256,
            bytes_in_flight: 16 << 20,
            memory_bytes: 256 << 20,
            stall_timeout: Duration::from_secs(10),
            drain_timeout: Duration::from_secs(5),
        }
    }
}
