//! The logs of fio (`write_iolog`), versions 2 and 3.
//!
//! ```text
//!  fio version 3 iolog          fio version 2 iolog
//!  33 /dev/sdb add              /dev/sdb add
//!  195 /dev/sdb read 61440 4096 /dev/sdb read 61440 4096
//!                               /dev/sdb wait 250 0
//! ```
//! Version 3 says when, in microseconds. Version 2 knows only waits, also in microseconds: what stands between two of
//! them arrives at once. (So fio's manual says of waits; fio itself, which no longer writes them, reads them as
//! milliseconds since the begin.)

use super::source::Source;
use super::text::{fields, number};
use super::window::Parser;
use crate::error::{Complaint, TraceError, excerpt};
use crate::request::{Op, Request};

const MICROSECOND_NS: u64 = 1000;
const HEAD: &[u8] = b"fio version ";

pub struct Iolog {
    source: Source,
    timed: bool,
    /// Version 2: waits so far.
    waited_us: u64,
    /// The file that the requests go to.
    file: Vec<u8>,
}

/// Whether a trace whose first line is this one is of this form.
pub fn sniff(line: &[u8]) -> bool {
    line.starts_with(HEAD)
}

impl Iolog {
    pub fn new(mut source: Source) -> Result<Iolog, TraceError> {
        let line = source.line()?.unwrap_or_default();
        let timed = match line {
            b"fio version 2 iolog" => false,
            b"fio version 3 iolog" => true,
            other => {
                let what = format!("'{}' is not the head of an iolog of version 2 or 3", excerpt(other));
                let complaint = Complaint::new(what, "record with fio 2 or later");
                return Err(source.at_line(complaint));
            }
        };
        Ok(Iolog { source, timed, waited_us: 0, file: Vec::new() })
    }
}

impl Parser for Iolog {
    type Item = Request;

    fn next(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            let Some(line) = self.source.line()? else { return Ok(None) };
            match request(line, self.timed, &mut self.waited_us, &mut self.file) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(complaint) => return Err(self.complain(complaint)),
            }
        }
    }

    fn complain(&self, complaint: Complaint) -> TraceError {
        self.source.at_line(complaint)
    }

    fn progress(&self) -> (u64, u64) {
        self.source.progress()
    }

    fn tolerance_ns(&self) -> u64 {
        0
    }

    fn how_to_sort(&self) -> &'static str {
        "sort what is below its head by time (sort -s -n -k1,1)"
    }
}

fn request(line: &[u8], timed: bool, waited_us: &mut u64, file: &mut Vec<u8>) -> Result<Option<Request>, Complaint> {
    let (found, most) = (fields(line).count(), 4 + usize::from(timed));
    if found > most {
        let what = format!("{found} fields in '{}', not {most} at most", excerpt(line));
        return Err(Complaint::new(what, "mend or remove the line"));
    }
    let mut parts = fields(line);
    let mut part = |what: &str| {
        let shape = if timed { "time, file, action, offset, length" } else { "file, action, offset, length" };
        let missing = || Complaint::new(format!("no {what} in '{}'", excerpt(line)), format!("a line is {shape}"));
        parts.next().ok_or_else(missing)
    };
    let time_us = if timed { number(part("time")?, "the time")? } else { *waited_us };
    let name = part("file")?;
    let op = match part("action")? {
        b"add" | b"open" | b"close" => return Ok(None),
        b"wait" if !timed => {
            let wait_us = number(part("wait")?, "the wait")?;
            *waited_us = waited_us.checked_add(wait_us).ok_or_else(|| too_late(wait_us))?;
            return Ok(None);
        }
        b"read" => Op::Read,
        b"write" => Op::Write,
        b"trim" => Op::Discard,
        b"sync" | b"datasync" => Op::Flush,
        other => {
            let what = format!("'{}' is not an action of an iolog that is read", excerpt(other));
            return Err(Complaint::new(what, "read, write, trim, sync, datasync, add, open, close are"));
        }
    };
    if file.is_empty() {
        *file = name.to_vec();
    } else if file != name {
        let what = format!("file {} after {}", excerpt(name), excerpt(file));
        return Err(Complaint::new(what, "a trace is of one volume: split the log by file"));
    }
    let at_ns = time_us.checked_mul(MICROSECOND_NS).ok_or_else(|| too_late(time_us))?;
    if op == Op::Flush {
        return Ok(Some(Request { at_ns, op, offset_bytes: 0, len_bytes: 0, response_ns: 0 }));
    }
    let offset_bytes = number(part("offset")?, "the offset")?;
    let len = number(part("length")?, "the length")?;
    let len_bytes = u32::try_from(len).map_err(|_| {
        Complaint::new(format!("a request of {len} bytes"), "requests are below 4 GiB: mend or remove the line")
    })?;
    Request { at_ns, op, offset_bytes, len_bytes, response_ns: 0 }.sound().map(Some)
}

fn too_late(us: u64) -> Complaint {
    Complaint::new(format!("a time of {us} us is beyond what can be told"), "mend or remove the line")
}
