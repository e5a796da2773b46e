//! A request of a trace.

use std::fmt;

use crate::error::Complaint;

/// The largest address: what block layers count bytes in has a sign.
const MOST_BYTES: u64 = i64::MAX as u64;

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

    /// The request, if it covers bytes that a device can have, or is a flush.
    pub(crate) fn sound(self) -> Result<Request, Complaint> {
        const REMEDY: &str = "mend or remove it";
        let Request { op, offset_bytes, len_bytes, .. } = self;
        if len_bytes == 0 && op != Op::Flush {
            return Err(Complaint::new(format!("a {op} of 0 bytes at {offset_bytes}"), REMEDY));
        }
        match offset_bytes.checked_add(u64::from(len_bytes)) {
            Some(end) if end <= MOST_BYTES => Ok(self),
            _ => {
                let what = format!("a {op} of {len_bytes} bytes at {offset_bytes} reaches beyond 8 EiB");
                Err(Complaint::new(what, REMEDY))
            }
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Discard => "discard",
            Op::Flush => "flush",
        })
    }
}
