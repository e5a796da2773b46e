//! What ends a replay.

use std::time::Duration;

/// Why there is no summary: one line each.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trace cannot be read on.
    #[error("{0}")]
    Trace(Box<dyn std::error::Error + Send + Sync>),
    /// The trace cannot be read ahead.
    #[error("reading the trace: {0}")]
    Thread(#[from] std::io::Error),
    /// The node cannot be made, or does not do its work.
    #[error(transparent)]
    Node(#[from] kura_block::Error),
    /// The volume has no place on the disks.
    #[error(
        "the trace touches {needed_bytes} bytes of the volume, in extents, and the disks have room for {room_bytes}: \
         give larger disks, by model and size in pool.disks of a configuration, or fit the trace into a smaller volume"
    )]
    NoRoom {
        /// Bytes of extents that the trace touches.
        needed_bytes: u64,
        /// Bytes that the disks hold in this layout.
        room_bytes: u64,
    },
    /// A volume that no table could map.
    #[error(
        "{} to byte {end_bytes}, and a volume of the lab has {most_bytes} bytes at most: fit the trace into a smaller \
         volume, such as by compact", request.map_or("the volume asked for reaches".to_owned(), reaches)
    )]
    TooFar {
        /// The request that reaches furthest, counted from 1; none where the volume's size was given.
        request: Option<u64>,
        /// The end of the volume that this takes.
        end_bytes: u64,
        /// The largest volume.
        most_bytes: u64,
    },
    /// No request is counted.
    #[error(
        "the last request comes {:.3} s into the trace, before it is warm at {:.3} s: warm up for less", last.as_secs_f64(),
        warm.as_secs_f64()
    )]
    AllWarm {
        /// Time of the last request.
        last: Duration,
        /// Time from which on requests would be counted.
        warm: Duration,
    },
    /// More requests wait than are kept.
    #[error(
        "overloaded: {:.3} s into the trace {waiting} requests wait and {done} are done: slow the trace down, cut a window, \
         or replay it in closed loop", at.as_secs_f64()
    )]
    Overloaded {
        /// Time of the trace.
        at: Duration,
        /// Requests issued and not answered.
        waiting: u64,
        /// Requests answered.
        done: u64,
    },
}

fn reaches(request: u64) -> String {
    format!("request {request} reaches")
}
