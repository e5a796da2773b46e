//! What this room reports, and its names.

use crate::protocol::Command;
use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};
use std::time::Instant;

/// Clients in transmission.
pub const CONNECTIONS: &str = "kura_nbd_connections";
/// Requests answered, by `command`.
pub const REQUESTS: &str = "kura_nbd_requests_total";
/// Requests answered with an error, by `command`.
pub const ERRORS: &str = "kura_nbd_errors_total";
/// Bytes read or written, by `command`.
pub const BYTES: &str = "kura_nbd_bytes_total";
/// Seconds from a request's arrival to its reply, by `command`.
pub const LATENCY: &str = "kura_nbd_latency_seconds";

/// Tells the recorder that is installed what each of them means.
pub fn describe() {
    describe_gauge!(CONNECTIONS, "NBD clients that are served");
    describe_counter!(REQUESTS, "NBD requests answered, by command");
    describe_counter!(ERRORS, "NBD requests answered with an error, by command");
    describe_counter!(BYTES, Unit::Bytes, "Bytes read and written over NBD, by command");
    describe_histogram!(LATENCY, Unit::Seconds, "Time from an NBD request's arrival to its reply, by command");
}

/// The handles of one command.
struct CommandMeters {
    requests: Counter,
    errors: Counter,
    bytes: Counter,
    latency: Histogram,
}

/// The handles of one connection, looked up once.
pub(crate) struct Meters {
    connections: Gauge,
    commands: [CommandMeters; LABELS.len()],
}

const LABELS: [&str; 8] = ["read", "write", "flush", "trim", "cache", "write_zeroes", "block_status", "unknown"];

impl Meters {
    /// Counts a connection until it is dropped.
    pub fn of_connection() -> Self {
        let connections = gauge!(CONNECTIONS);
        connections.increment(1);
        let commands = LABELS.map(|command| CommandMeters {
            requests: counter!(REQUESTS, "command" => command),
            errors: counter!(ERRORS, "command" => command),
            bytes: counter!(BYTES, "command" => command),
            latency: histogram!(LATENCY, "command" => command),
        });
        Self { connections, commands }
    }

    /// Counts an answer to a request about `bytes` bytes; `started` is when it arrived, `now` when it was answered.
    pub fn answered(&self, command: Command, bytes: u32, failed: bool, (started, now): (Instant, Instant)) {
        let meters = &self.commands[match command {
            Command::Read => 0,
            Command::Write => 1,
            Command::Flush => 2,
            Command::Trim => 3,
            Command::Cache => 4,
            Command::WriteZeroes => 5,
            Command::BlockStatus => 6,
            Command::Disconnect | Command::Unknown(_) => 7,
        }];
        meters.requests.increment(1);
        if failed {
            meters.errors.increment(1);
        } else if matches!(command, Command::Read | Command::Write) {
            meters.bytes.increment(u64::from(bytes));
        }
        meters.latency.record((now - started).as_secs_f64());
    }
}

impl Drop for Meters {
    fn drop(&mut self) {
        self.connections.decrement(1);
    }
}
