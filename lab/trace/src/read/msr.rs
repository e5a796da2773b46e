//! The CSV of the MSR Cambridge traces: `timestamp,host,disk,Read|Write,offset,size,response`, times in ticks of
//! 100 ns (Windows file time), places in bytes. A line of headings may stand first.

use super::source::Source;
use super::text::{decimal, number};
use super::window::Parser;
use crate::error::{Complaint, TraceError, excerpt};
use crate::request::{Op, Request};

/// Nanoseconds of a tick.
pub const TICK_NS: u64 = 100;

const FIELDS: usize = 7;
const SHAPE: &str = "a line is timestamp,host,disk,Read|Write,offset,size,response";

pub struct Msr {
    source: Source,
    /// Host and disk of the first line, as they stand in it.
    volume: Vec<u8>,
}

impl Msr {
    pub fn new(source: Source) -> Msr {
        Msr { source, volume: Vec::new() }
    }
}

impl Parser for Msr {
    type Item = Request;

    fn next(&mut self) -> Result<Option<Request>, TraceError> {
        loop {
            let Some(line) = self.source.line()? else { return Ok(None) };
            if is_heading(line) && self.volume.is_empty() {
                continue;
            }
            let parsed = request(line, &mut self.volume);
            return parsed.map(Some).map_err(|complaint| self.complain(complaint));
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
        "sort the file by time (sort -s -n -t, -k1,1)"
    }
}

/// Whether a trace whose first line is this one is of this form.
pub fn sniff(line: &[u8]) -> bool {
    let mut fields = line.split(|byte| *byte == b',');
    let time = fields.next().is_some_and(|field| decimal(field).is_some());
    is_heading(line) || (time && fields.count() >= 4)
}

fn is_heading(line: &[u8]) -> bool {
    line.get(..10).is_some_and(|head| head.eq_ignore_ascii_case(b"timestamp,"))
}

fn request(line: &[u8], volume: &mut Vec<u8>) -> Result<Request, Complaint> {
    if line.is_empty() {
        return Err(Complaint::new("an empty line", "remove it"));
    }
    let mut fields = [&line[..0]; FIELDS];
    let mut count = 0;
    for field in line.split(|byte| *byte == b',') {
        if count < FIELDS {
            fields[count] = field;
        }
        count += 1;
    }
    if count != FIELDS {
        return Err(Complaint::new(format!("{count} fields instead of {FIELDS} in '{}'", excerpt(line)), SHAPE));
    }
    let [time, host, disk, op, offset, size, response] = fields;
    let of_volume = &line[time.len() + 1..time.len() + 1 + host.len() + 1 + disk.len()];
    if volume.is_empty() {
        *volume = of_volume.to_vec();
    } else if volume != of_volume {
        let what = format!("volume {} after {}", excerpt(of_volume), excerpt(volume));
        return Err(Complaint::new(what, "a trace is of one volume: split the file by host and disk"));
    }
    let op = match op {
        b"Read" => Op::Read,
        b"Write" => Op::Write,
        other => return Err(Complaint::new(format!("'{}' is neither Read nor Write", excerpt(other)), SHAPE)),
    };
    let size = number(size, "the size")?;
    let request = Request {
        at_ns: nanoseconds(number(time, "the timestamp")?, "the timestamp")?,
        op,
        offset_bytes: number(offset, "the offset")?,
        len_bytes: u32::try_from(size).map_err(|_| {
            Complaint::new(format!("a request of {size} bytes"), "requests are below 4 GiB: mend or remove the line")
        })?,
        response_ns: nanoseconds(number(response, "the response time")?, "the response time")?,
    };
    request.sound()
}

fn nanoseconds(ticks: u64, what: &str) -> Result<u64, Complaint> {
    ticks.checked_mul(TICK_NS).ok_or_else(|| {
        Complaint::new(format!("{what} of {ticks} ticks is beyond what can be told"), "mend or remove the line")
    })
}
