//! The bytes of a trace: decompressed, in lines or in records, with the place where they stand.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;
use memchr::memchr;

use crate::error::{Complaint, TraceError, excerpt};

/// How much is read at a time, and the longest line or record.
const CHUNK: usize = 1 << 18;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Behind a first byte of 0x50 to 0x5f: a frame of zstd that holds no data, as pzstd puts first.
const ZSTD_SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];
/// What some programs put before text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// What we know and do not read.
const FOREIGN: &[(&[u8], &str)] =
    &[(b"\xfd7zXZ\0", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4"), (b"PK\x03\x04", "zip")];

/// A file of a trace.
pub struct Source {
    path: PathBuf,
    bytes: Box<dyn Read + Send>,
    /// Bytes taken from the file, before decompression.
    taken: Arc<AtomicU64>,
    len: u64,
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
    at_end: bool,
    /// Of what was given out last: the number of the line, and where the record begins.
    line: u64,
    byte: u64,
}

/// Counts what is taken from a file.
struct Counted {
    file: File,
    taken: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buf)?;
        self.taken.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl Source {
    pub fn open(path: &Path) -> Result<Source, TraceError> {
        let refuse = |error: io::Error| {
            let remedy = "name a trace file that can be read";
            Complaint::new(format!("the trace could not be opened: {error}"), remedy).of_file(path)
        };
        // Before it is opened: to open a pipe waits for who writes to it.
        let about = path.metadata().map_err(refuse)?;
        if about.is_dir() {
            return Err(Complaint::new("this is a directory", "name a trace file in it").of_file(path));
        }
        if !about.is_file() {
            return Err(
                Complaint::new("this is no file: a trace is read more than once", "save it first").of_file(path)
            );
        }
        let file = File::open(path).map_err(refuse)?;
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Counted { file, taken: Arc::clone(&taken) };
        let bytes = decompressed(counted).map_err(|complaint| complaint.of_file(path))?;
        Ok(Source {
            path: path.to_path_buf(),
            bytes,
            taken,
            len: about.len(),
            buffer: vec![0; CHUNK],
            begin: 0,
            end: 0,
            at_end: false,
            line: 0,
            byte: 0,
        })
    }

    /// Bytes of the file read so far, and all of them.
    pub fn progress(&self) -> (u64, u64) {
        (self.taken.load(Ordering::Relaxed), self.len)
    }

    /// The first bytes, without taking them: a chunk, or all there are.
    pub fn peek(&mut self) -> Result<&[u8], TraceError> {
        while !self.at_end && self.end - self.begin < self.buffer.len() {
            self.refill()?;
        }
        Ok(&self.buffer[self.begin..self.end])
    }

    /// The same of a file of which nothing was taken, without the mark that may stand before text.
    pub fn head(&mut self) -> Result<&[u8], TraceError> {
        if self.byte == 0 && self.peek()?.starts_with(BYTE_ORDER_MARK) {
            self.begin += BYTE_ORDER_MARK.len();
            self.byte += BYTE_ORDER_MARK.len() as u64;
        }
        self.peek()
    }

    /// The next line, without its end; `None` after the last one. A last line without an end is refused: it was cut.
    pub fn line(&mut self) -> Result<Option<&[u8]>, TraceError> {
        let mut searched = 0;
        let len = loop {
            let rest = &self.buffer[self.begin + searched..self.end];
            if let Some(found) = memchr(b'\n', rest) {
                break searched + found;
            }
            searched = self.end - self.begin;
            if self.at_end {
                return if searched == 0 { Ok(None) } else { Err(self.cut_line()) };
            }
            if searched == self.buffer.len() {
                self.line += 1;
                let what = format!("the line is longer than {CHUNK} bytes");
                return Err(self.at_line(Complaint::new(what, "this is not a trace that can be read")));
            }
            self.refill()?;
        };
        let line = self.begin..self.begin + len;
        self.begin += len + 1;
        self.byte += len as u64 + 1;
        self.line += 1;
        let line = &self.buffer[line];
        Ok(Some(line.strip_suffix(b"\r").unwrap_or(line)))
    }

    /// The next `len` bytes (at most a chunk) of a record that began `before` bytes ago; `None` where the file ends
    /// and no record has begun.
    pub fn bytes(&mut self, len: usize, before: u64) -> Result<Option<&[u8]>, TraceError> {
        assert!(len <= CHUNK);
        while self.end - self.begin < len {
            if self.at_end {
                if self.begin == self.end && before == 0 {
                    return Ok(None);
                }
                let place = self.byte - before;
                let what = "the last record is cut";
                return Err(Complaint::new(what, "record or copy the trace again").at_byte(&self.path, place));
            }
            self.refill()?;
        }
        let record = self.begin..self.begin + len;
        self.begin += len;
        self.byte += len as u64;
        Ok(Some(&self.buffer[record]))
    }

    /// A complaint about the line given out last.
    pub fn at_line(&self, complaint: Complaint) -> TraceError {
        complaint.at_line(&self.path, self.line)
    }

    /// A complaint about a record that ends where we are and is `len` bytes long.
    pub fn at_record(&self, complaint: Complaint, len: usize) -> TraceError {
        complaint.at_byte(&self.path, self.byte - len as u64)
    }

    fn cut_line(&mut self) -> TraceError {
        self.line += 1;
        let line = excerpt(&self.buffer[self.begin..self.end]);
        let remedy = "copy the trace again, or end the line if it is complete";
        self.at_line(Complaint::new(format!("the last line is cut (no line end): '{line}'"), remedy))
    }

    /// Reads more behind what is there.
    fn refill(&mut self) -> Result<(), TraceError> {
        self.buffer.copy_within(self.begin..self.end, 0);
        self.end -= self.begin;
        self.begin = 0;
        loop {
            match self.bytes.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.unreadable(&error)),
            }
            return Ok(());
        }
    }

    /// A complaint about what lies behind the bytes that could be read.
    fn unreadable(&self, error: &io::Error) -> TraceError {
        let what = if error.kind() == ErrorKind::UnexpectedEof {
            "the compressed stream is cut".to_string()
        } else {
            format!("the file cannot be read on: {error}")
        };
        let complaint = Complaint::new(what, "copy the trace again");
        // More is read only when what is there is less than a line, or than a record.
        match self.line {
            0 => complaint.at_byte(&self.path, self.byte + (self.end - self.begin) as u64),
            line => complaint.at_line(&self.path, line + 1),
        }
    }
}

/// What a file of gzip holds: one member after another, and perhaps zeroes, to which tapes and some disks fill files up.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.0 {
            let count = member.read(buf)?;
            if count > 0 || buf.is_empty() {
                return Ok(count);
            }
            let Some(mut rest) = self.0.take().map(GzDecoder::into_inner) else { break };
            self.0 = begins_again(&mut rest)?.then(|| GzDecoder::new(rest));
        }
        Ok(0)
    }
}

/// Skips zeroes; whether something comes behind them.
fn begins_again(rest: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let bytes = rest.fill_buf()?;
        let (zeroes, len) = (bytes.iter().take_while(|byte| **byte == 0).count(), bytes.len());
        rest.consume(zeroes);
        if zeroes < len || len == 0 {
            return Ok(len > 0);
        }
    }
}

/// The bytes of a file, whatever compresses them.
fn decompressed(mut counted: Counted) -> Result<Box<dyn Read + Send>, Complaint> {
    let unreadable = |error| Complaint::new(format!("the file cannot be read: {error}"), "name another");
    let mut head = Vec::new();
    counted.by_ref().take(8).read_to_end(&mut head).map_err(unreadable)?;
    if let Some((_, name)) = FOREIGN.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Err(Complaint::new(format!("this is {name}"), "decompress it, or use gzip or zstd"));
    }
    let is_skippable = head.get(1..4) == Some(ZSTD_SKIPPABLE) && head[0] & 0xf0 == 0x50;
    let (gzip, zstd) = (head.starts_with(GZIP), head.starts_with(ZSTD) || is_skippable);
    let whole = io::Cursor::new(head).chain(counted);
    Ok(if gzip {
        Box::new(Members(Some(GzDecoder::new(BufReader::with_capacity(CHUNK, whole)))))
    } else if zstd {
        Box::new(zstd::Decoder::with_buffer(BufReader::with_capacity(CHUNK, whole)).map_err(unreadable)?)
    } else {
        Box::new(whole)
    })
}
