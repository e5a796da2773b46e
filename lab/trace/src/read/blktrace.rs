//! What blktrace writes: `struct blk_io_trace` of version 7, in the byte order of the machine that recorded it.
//!
//! ```text
//!  0 magic+version 4 sequence 8 time 16 sector 24 bytes 28 action 32 pid 36 device 40 cpu 44 error 46 pdu_len | pdu
//! ```
//! One file for each processor (`NAME.blktrace.0`, `.1`, ...; empty where it had nothing to do), or one of them all
//! (`blkparse -d`).

use std::path::{Path, PathBuf};

use super::events::{DISORDER_NS, Event, OneDevice, Stage};
use super::source::Source;
use super::window::Parser;
use crate::error::{Complaint, TraceError};
use crate::request::Op;

const MAGIC: u32 = 0x6561_7400;
const VERSION: u32 = 7;
const HEAD_BYTES: usize = 48;
/// Between a recording's name and the number of a processor.
const INFIX: &str = ".blktrace";

// The low half of an action is what happened, the high half what it happened to.
const WHAT: u32 = 0xff;
const QUEUED: u32 = 1;
const COMPLETED: u32 = 8;
const OF_WRITE: u32 = 1 << 17;
const OF_FLUSH: u32 = 1 << 18;
const OF_COMMAND: u32 = 1 << 25;
const OF_NOTIFY: u32 = 1 << 26;
const OF_DISCARD: u32 = 1 << 29;

/// The files of a recording, merged by time.
pub struct Blktrace {
    files: Vec<Recorded>,
    /// The file whose event was given out last; its next one is not read yet.
    last: usize,
    device: OneDevice,
}

/// One file, and the event that comes next in it.
struct Recorded {
    source: Source,
    big_endian: bool,
    next: Option<Event>,
    /// Bytes of the record of that event.
    record_bytes: usize,
}

impl Blktrace {
    pub fn new(sources: Vec<Source>) -> Result<Blktrace, TraceError> {
        let mut files = Vec::new();
        for mut source in sources {
            let big_endian = byte_order(source.peek()?).unwrap_or(false);
            let mut file = Recorded { source, big_endian, next: None, record_bytes: 0 };
            file.advance()?;
            files.push(file);
        }
        Ok(Blktrace { files, last: 0, device: OneDevice::default() })
    }
}

impl Parser for Blktrace {
    type Item = Event;

    fn next(&mut self) -> Result<Option<Event>, TraceError> {
        loop {
            if self.files[self.last].next.is_none() {
                self.files[self.last].advance()?;
            }
            let times = self.files.iter().enumerate().filter_map(|(index, file)| Some((file.next?.at_ns, index)));
            let Some((_, index)) = times.min() else { return Ok(None) };
            self.last = index;
            let event = self.files[index].next.take();
            match self.device.only(event) {
                Ok(None) => {}
                Ok(found) => return Ok(found),
                Err(complaint) => return Err(self.complain(complaint)),
            }
        }
    }

    fn complain(&self, complaint: Complaint) -> TraceError {
        let file = &self.files[self.last];
        file.source.at_record(complaint, file.record_bytes)
    }

    fn progress(&self) -> (u64, u64) {
        self.files.iter().fold((0, 0), |(done, all), file| {
            let (taken, len) = file.source.progress();
            (done + taken, all + len)
        })
    }

    fn tolerance_ns(&self) -> u64 {
        DISORDER_NS
    }

    fn how_to_sort(&self) -> &'static str {
        "give the files as recorded, or merge them (blkparse -i NAME -d FILE)"
    }
}

impl Recorded {
    /// Reads up to the next event that counts.
    fn advance(&mut self) -> Result<(), TraceError> {
        while self.next.is_none() {
            let Some(bytes) = self.source.bytes(HEAD_BYTES, 0)? else { return Ok(()) };
            let head = Head::of(bytes, self.big_endian);
            let read = head.and_then(|head| Ok((head.event()?, head.pdu_bytes)));
            let (event, pdu_bytes) = read.map_err(|complaint| self.source.at_record(complaint, HEAD_BYTES))?;
            self.source.bytes(pdu_bytes, HEAD_BYTES as u64)?;
            self.next = event;
            self.record_bytes = HEAD_BYTES + pdu_bytes;
        }
        Ok(())
    }
}

struct Head {
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    pdu_bytes: usize,
}

impl Head {
    /// `bytes` holds a whole head.
    fn of(bytes: &[u8], big_endian: bool) -> Result<Head, Complaint> {
        let word = |at: usize, len: usize| {
            let bytes = bytes[at..at + len].iter();
            let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
            if big_endian { bytes.fold(0, join) } else { bytes.rev().fold(0, join) }
        };
        let magic = word(0, 4) as u32;
        if magic & !WHAT != MAGIC {
            return Err(Complaint::new(format!("no record: magic {magic:#010x}"), "copy the trace again"));
        }
        if magic & WHAT != VERSION {
            let what = format!("a record of version {}; version {VERSION} is read", magic & WHAT);
            return Err(Complaint::new(what, "record with blktrace 1.0 or later"));
        }
        Ok(Head {
            time_ns: word(8, 8),
            sector: word(16, 8),
            bytes: word(24, 4) as u32,
            action: word(28, 4) as u32,
            device: word(36, 4) as u32,
            pdu_bytes: word(46, 2) as usize,
        })
    }

    fn event(&self) -> Result<Option<Event>, Complaint> {
        let is = |category| self.action & category != 0;
        let stage = match self.action & WHAT {
            QUEUED => Stage::Queued,
            COMPLETED => Stage::Completed,
            _ => return Ok(None),
        };
        if is(OF_NOTIFY) || is(OF_COMMAND) {
            return Ok(None);
        }
        let op = if is(OF_DISCARD) {
            Op::Discard
        } else if is(OF_WRITE) {
            Op::Write
        } else {
            Op::Read
        };
        let device = (self.device >> 20, self.device & 0xf_ffff);
        let extent = (self.sector, u64::from(self.bytes));
        Event::new((self.time_ns, stage, device), (Some(op), is(OF_FLUSH)), extent)
    }
}

/// Whether a trace that begins with these bytes is of this form.
pub fn sniff(bytes: &[u8]) -> bool {
    byte_order(bytes).is_some()
}

/// Whether the machine that wrote these first bytes was big-endian; `None` if this is no record.
fn byte_order(bytes: &[u8]) -> Option<bool> {
    let first = bytes.first_chunk::<4>()?;
    let is = |word: u32| word & !WHAT == MAGIC;
    if is(u32::from_le_bytes(*first)) { Some(false) } else { is(u32::from_be_bytes(*first)).then_some(true) }
}

/// The files of a recording, one for each processor, with the processors' numbers and in their order, by any of them or by
/// the name they share (with or without `.blktrace`); each plain or compressed, as `NAME.blktrace.0.gz`. Empty if there
/// are none.
pub fn files_of(path: &Path) -> Vec<(u32, PathBuf)> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let stem = match of_processor(name) {
        Some((stem, _)) => stem.to_string(),
        None if name.ends_with(INFIX) => name.to_string(),
        None => format!("{name}{INFIX}"),
    };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = folder.read_dir() else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let (other, cpu) = of_processor(name.to_str()?)?;
            (other == stem).then(|| (cpu, path.with_file_name(&name)))
        })
        .collect();
    found.sort();
    found
}

/// What a file's name shares with those of the recording's other files, up to `.blktrace`, and the number of its
/// processor; `None` for other files.
fn of_processor(name: &str) -> Option<(&str, u32)> {
    let plain = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(name);
    let (stem, cpu) = plain.rsplit_once('.')?;
    let is_number = cpu.bytes().all(|byte| byte.is_ascii_digit());
    (is_number && stem.ends_with(INFIX)).then_some((stem, cpu.parse().ok()?))
}
