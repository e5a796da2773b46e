//! Writers of traces, in forms that other tools read.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufWriter, Write};

use crate::error::TraceError;
use crate::read::{SECTOR_BYTES, TICK_NS};
use crate::request::{Op, Request};

/// What became of the requests that were to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Requests written.
    pub requests: u64,
    /// Requests left out, because the form has no word for them.
    pub left_out: u64,
}

/// Writes requests, which come in order of time, as the CSV of the MSR Cambridge traces: times in ticks of 100 ns,
/// rounded down, the trace's begin at `begin_ticks` (Windows file time: since 1601). It has words for reads and writes only;
/// others are left out. A comma in `host` would be one too many and is written as a dash.
pub fn write_msr(
    requests: impl IntoIterator<Item = Result<Request, TraceError>>,
    host: &str,
    begin_ticks: u64,
    to: impl Write,
) -> Result<Written, TraceError> {
    let host = host.replace(|letter: char| letter == ',' || letter.is_control(), "-");
    let mut to = BufWriter::new(to);
    let mut written = Written::default();
    for request in requests {
        let request = request?;
        let word = match request.op {
            Op::Read => "Read",
            Op::Write => "Write",
            Op::Discard | Op::Flush => {
                written.left_out += 1;
                continue;
            }
        };
        let (time, response) = (begin_ticks.saturating_add(request.at_ns / TICK_NS), request.response_ns / TICK_NS);
        writeln!(to, "{time},{host},0,{word},{},{},{response}", request.offset_bytes, request.len_bytes)?;
        written.requests += 1;
    }
    to.flush()?;
    Ok(written)
}

/// Writes requests, which come in order of time, as blkparse prints them: when each was queued and, where its response
/// time is known, when it was issued (at once, as far as we know) and completed. Sectors have 512 bytes: a request that
/// begins or ends within one is written as all of it.
pub fn write_blkparse(
    requests: impl IntoIterator<Item = Result<Request, TraceError>>,
    process: &str,
    to: impl Write,
) -> Result<Written, TraceError> {
    let process = process.replace(char::is_control, "-");
    let mut lines = Lines { to: BufWriter::new(to), sequence: 0, process };
    // Completions to come, the earliest first; of one time, in the order of their requests.
    let mut completions = BinaryHeap::<Reverse<Completion>>::new();
    let mut written = Written::default();
    for request in requests {
        let request = request?;
        while let Some(Reverse((at_ns, ..))) = completions.peek()
            && *at_ns <= request.at_ns
        {
            lines.completion(completions.pop())?;
        }
        let extent = Extent::of(&request);
        lines.line(request.at_ns, 'Q', &extent)?;
        if request.response_ns > 0 {
            lines.line(request.at_ns, 'D', &extent)?;
            let done_ns = request.at_ns.saturating_add(request.response_ns);
            completions.push(Reverse((done_ns, written.requests, extent)));
        }
        written.requests += 1;
    }
    while !completions.is_empty() {
        lines.completion(completions.pop())?;
    }
    lines.to.flush()?;
    Ok(written)
}

/// When it happens, the number of its request, and what completes.
type Completion = (u64, u64, Extent);

/// What an event speaks of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Extent {
    op: Op,
    sector: u64,
    sectors: u64,
}

impl Extent {
    fn of(request: &Request) -> Extent {
        let sector = request.offset_bytes / SECTOR_BYTES;
        Extent { op: request.op, sector, sectors: request.end_bytes().div_ceil(SECTOR_BYTES) - sector }
    }
}

/// Lines of blkparse.
struct Lines<W: Write> {
    to: BufWriter<W>,
    sequence: u64,
    process: String,
}

impl<W: Write> Lines<W> {
    fn completion(&mut self, completion: Option<Reverse<Completion>>) -> Result<(), TraceError> {
        completion.map_or(Ok(()), |Reverse((at_ns, _, extent))| self.line(at_ns, 'C', &extent))
    }

    fn line(&mut self, at_ns: u64, event: char, extent: &Extent) -> Result<(), TraceError> {
        const SECOND_NS: u64 = 1_000_000_000;
        self.sequence += 1;
        let flags = match extent.op {
            Op::Read => "R",
            Op::Write => "W",
            Op::Discard => "D",
            // What the kernel issues for a flush is an operation of its own.
            Op::Flush if event == 'D' => "FN",
            Op::Flush => "FWS",
        };
        let (seconds, nanoseconds) = (at_ns / SECOND_NS, at_ns % SECOND_NS);
        let sequence = self.sequence;
        write!(self.to, "  8,0    0 {sequence:8} {seconds:5}.{nanoseconds:09}     0  {event} {flags:>3} ")?;
        match (extent.op, event) {
            (Op::Flush, 'C') => write!(self.to, "{} ", extent.sector)?,
            (Op::Flush, _) => {}
            _ => write!(self.to, "{} + {} ", extent.sector, extent.sectors)?,
        }
        // A completion tells its error in place of who asked.
        let who = if event == 'C' { "0" } else { &self.process };
        writeln!(self.to, "[{who}]")?;
        Ok(())
    }
}
