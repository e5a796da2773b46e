//! A request of a trace.

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// Space is given back.
    Discard,
    /// What is acknowledged becomes durable; it has no range.
    Flush,
}

/// A request, as it arrived at a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it arrived, in nanoseconds since the trace's first request.
    pub at_ns: u64,
    /// What it does.
    pub op: Op,
    /// Where it begins, in bytes; 0 for a flush.
    pub offset_bytes: u64,
    /// How many bytes it covers; 0 for a flush, above 0 otherwise.
    pub len_bytes: u32,
    /// How long it took where it was recorded, in nanoseconds; 0 when that was not recorded.
    pub response_ns: u64,
}

impl Request {
    /// The first byte after it.
    pub fn end_bytes(&self) -> u64 {
        self.offset_bytes + u64::from(self.len_bytes)
    }
}
