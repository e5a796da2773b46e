//! What things cost.

use serde::Serialize;
use std::time::Duration;

/// Times of a controller, in microseconds. The paper prints ratios only, so one of them is a unit: `write_us`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[expect(clippy::struct_field_names, reason = "units stand last")]
pub struct Costs {
    /// Processor time of a read, of a PVOL or an SVOL, with all but what is listed below.
    pub read_us: f64,
    /// The same of a write.
    pub write_us: f64,
    /// The copy of old data to the pool.
    pub copy_us: f64,
    /// A look-up in local memory.
    pub local_us: f64,
    /// An access to shared memory; the controller waits for it.
    pub shared_us: f64,
    /// The part of an access in which others wait in line.
    pub shared_held_us: f64,
    /// Sending a message to one controller.
    pub send_us: f64,
    /// Receiving one.
    pub receive_us: f64,
    /// Dropping a copy. The copy is read again from shared memory when it is needed: a `shared_us` then.
    pub drop_us: f64,
}

impl Costs {
    /// The paper's prototype: what a random search found for the least largest residual over Figs. 5 and 9 and Table 1,
    /// each over what it may be away. It searched read, copy, look-up (to a tenth of a write at most), shared access, and
    /// what sending, receiving and dropping come to together, which the paper does not let tell apart. A write is the
    /// unit, and the time that shared memory is held is a choice that hardly matters.
    pub const PAPER: Self = Self {
        read_us: 29.0,
        write_us: 100.0,
        copy_us: 670.0,
        local_us: 10.0,
        shared_us: 38.0,
        shared_held_us: 1.0,
        send_us: 180.0,
        receive_us: 180.0,
        drop_us: 54.0,
    };
}

/// A time in microseconds.
pub fn time(us: f64) -> Duration {
    Duration::from_nanos((us * 1000.0).round() as u64)
}
