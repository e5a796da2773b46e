//! How a trace is replayed.

use kura_controller::Layout;
use serde::Serialize;

/// When requests are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pace {
    /// Each at its time, whatever happened to those before it.
    Open,
    /// So many under way at once, the next as soon as one is answered; times do not count.
    Closed {
        /// Requests under way, above zero.
        depth: usize,
    },
}

/// What is written before the trace begins. What was never written is read without touching a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Prefill {
    /// Nothing.
    None,
    /// What the trace reads.
    Read,
    /// The whole volume.
    All,
}

/// How a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Of all chance.
    pub seed: u64,
    /// When requests are issued.
    pub pace: Pace,
    /// What is written before.
    pub prefill: Prefill,
    /// Bytes of the volume; as many as the trace needs unless it is said. Requests beyond it fail.
    pub size_bytes: Option<u64>,
    /// How the volume's data lies on the disks.
    pub layout: Layout,
    /// Requests before this time warm the node up: they are replayed and not counted.
    pub warm_ns: u64,
    /// Whether contents are kept and checked.
    pub verify: bool,
    /// An open loop with more requests than these under way is given up.
    pub in_flight_limit: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            pace: Pace::Open,
            prefill: Prefill::Read,
            size_bytes: None,
            layout: Layout::Mirror,
            warm_ns: 0,
            verify: false,
            in_flight_limit: 1 << 18,
        }
    }
}
