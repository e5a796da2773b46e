//! The text that blkparse prints by default.
//!
//! ```text
//!   8,0    1        2     0.000600000   100  Q  WS 4096 + 16 [kura]
//!   device cpu sequence   seconds       pid  what RWBS sector + sectors [process]
//! ```
//! Q is when a request arrived, C when it completed. A summary may follow the events.

use super::events::{DISORDER_NS, Event, OneDevice, SECTOR_BYTES, Stage};
use super::source::Source;
use super::text::{decimal, fields, number};
use super::window::Parser;
use crate::error::{Complaint, TraceError, excerpt};
use crate::request::Op;

const SECOND_NS: u64 = 1_000_000_000;
const SHAPE: &str = "print the trace with blkparse's default format";

pub struct Blkparse {
    source: Source,
    /// The events are over.
    in_summary: bool,
    device: OneDevice,
}

impl Blkparse {
    pub fn new(source: Source) -> Blkparse {
        Blkparse { source, in_summary: false, device: OneDevice::default() }
    }
}

impl Parser for Blkparse {
    type Item = Event;

    fn next(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            let Some(line) = self.source.line()? else { return Ok(None) };
            match event(line, &mut self.in_summary).and_then(|event| self.device.only(event)) {
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
        DISORDER_NS
    }

    fn how_to_sort(&self) -> &'static str {
        "let blkparse merge the recording (blkparse -i NAME)"
    }
}

/// Whether a trace whose first line is this one is of this form.
pub fn sniff(line: &[u8]) -> bool {
    let mut parts = fields(line);
    is_greeting(line) || (parts.next().and_then(device).is_some() && parts.count() >= 5)
}

/// blkparse names the files that it reads.
fn is_greeting(line: &[u8]) -> bool {
    line.starts_with(b"Input file ")
}

fn event(line: &[u8], in_summary: &mut bool) -> Result<Option<Event>, Complaint> {
    let mut parts = fields(line);
    let Some(first) = parts.next() else { return Ok(None) };
    let Some(device) = device(first) else {
        let ends = line.starts_with(b"CPU") || line.starts_with(b"Total (");
        *in_summary |= ends;
        if *in_summary || is_greeting(line) {
            return Ok(None);
        }
        return Err(Complaint::new(format!("'{}' is not an event", excerpt(line)), SHAPE));
    };
    if *in_summary {
        return Err(Complaint::new("an event after the summary", "a trace is of one recording: split the file"));
    }
    let mut part = |what: &str| {
        let missing = || Complaint::new(format!("no {what} in '{}'", excerpt(line)), SHAPE);
        parts.next().ok_or_else(missing)
    };
    let (_cpu, _sequence, time, _pid) = (part("CPU")?, part("sequence")?, part("time")?, part("process")?);
    let stage = match part("event")? {
        b"Q" => Stage::Queued,
        b"C" => Stage::Completed,
        _ => return Ok(None),
    };
    let at_ns = seconds(time)?;
    let flags = flags(part("flags")?);
    let sector = part("sector").ok().filter(|field| !field.starts_with(b"["));
    let extent = match (sector, part("sectors")) {
        (Some(sector), Ok(b"+")) => {
            let sectors = number(part("sectors")?, "the number of sectors")?;
            if sectors == 0 {
                return Err(Complaint::new("a request of 0 sectors", "mend or remove the line"));
            }
            (number(sector, "the sector")?, sectors.saturating_mul(SECTOR_BYTES))
        }
        // Of no sectors: a flush, its completion `0 [0]`, and a command to the device, `36 (12 00 ..)`.
        (None, _) => (0, 0),
        (Some(_), Ok(next)) if matches!(stage, Stage::Completed) || next.starts_with(b"(") => (0, 0),
        _ => return Err(Complaint::new(format!("a sector without '+ sectors' in '{}'", excerpt(line)), SHAPE)),
    };
    Event::new((at_ns, stage, device), flags, extent)
}

/// `8,16` as major and minor number.
fn device(field: &[u8]) -> Option<(u32, u32)> {
    let comma = field.iter().position(|byte| *byte == b',')?;
    let part = |digits| decimal(digits).and_then(|number| u32::try_from(number).ok());
    Some((part(&field[..comma])?, part(&field[comma + 1..])?))
}

/// `12.000600000` in nanoseconds.
fn seconds(field: &[u8]) -> Result<u64, Complaint> {
    let parsed = || {
        let dot = field.iter().position(|byte| *byte == b'.')?;
        let (whole, fraction) = (decimal(&field[..dot])?, &field[dot + 1..]);
        let nanoseconds = if fraction.len() == 9 { decimal(fraction)? } else { return None };
        whole.checked_mul(SECOND_NS)?.checked_add(nanoseconds)
    };
    parsed().ok_or_else(|| {
        Complaint::new(format!("'{}' is not a time in seconds with nine decimals", excerpt(field)), SHAPE)
    })
}

/// What RWBS says: the operation, if there is one, and whether a flush comes before.
fn flags(field: &[u8]) -> (Option<Op>, bool) {
    let preflush = field.first() == Some(&b'F');
    let op = match field.get(usize::from(preflush)) {
        Some(b'R') => Some(Op::Read),
        Some(b'W') => Some(Op::Write),
        Some(b'D') => Some(Op::Discard),
        _ => None,
    };
    (op, preflush)
}
