//! From what became of a request to the reply on the wire.

use super::output::Output;
use super::work::{Answer, Failure, Outcome};
use crate::export::{EXTENTS_LIMIT, Extent};
use crate::memory::Grant;
use crate::protocol::{CHUNK_MAGIC, ChunkHeader, Errno, Request, SIMPLE_REPLY_MAGIC, SimpleReply, chunk, command_flag};
use kura_block::{Buf, Bufs, PAGE_BYTES};
use zerocopy::IntoBytes;

/// Zeroes at least this long are told as a hole instead of sent.
const HOLE_BYTES: usize = 4096;
/// The longest text of an error. The protocol allows more, but QEMU gives a connection up at a chunk of 1000 bytes.
const TEXT_BYTES: usize = 512;

/// Writes replies.
pub struct Replies {
    pub output: Output,
    structured: bool,
}

/// A volume reads its holes as lent zeroes: telling a hole from data costs one comparison, and no second question to the
/// volume.
fn is_hole(part: &Buf) -> bool {
    part.len() >= HOLE_BYTES && part.is_lent_zeroes()
}

impl Replies {
    pub fn new(structured: bool) -> Self {
        Self { output: Output::default(), structured }
    }

    /// Adds the reply to `request`, whose data has this memory.
    pub fn put(&mut self, request: &Request, outcome: Outcome, grant: Option<Grant>) {
        match outcome {
            Ok(Answer::Done) => self.simple(request, 0),
            Ok(Answer::Data(data)) => {
                assert_eq!(data.len(), request.len as usize, "a volume reads as many bytes as it is asked for");
                if self.structured {
                    self.chunks(request, &data);
                } else {
                    self.simple(request, 0);
                    self.data(data.parts());
                }
            }
            Ok(Answer::Status(contexts)) => self.status(request, &contexts),
            Err(failure) => self.error(request, &failure),
        }
        self.output.end_reply(grant);
    }

    fn simple(&mut self, request: &Request, error: u32) {
        let reply =
            SimpleReply { magic: SIMPLE_REPLY_MAGIC.into(), error: error.into(), cookie: request.cookie.into() };
        self.output.head(reply.as_bytes());
    }

    fn chunk(&mut self, request: &Request, kind: u16, last: bool, len: usize) {
        let header = ChunkHeader {
            magic: CHUNK_MAGIC.into(),
            flags: if last { chunk::DONE } else { 0 }.into(),
            kind: kind.into(),
            cookie: request.cookie.into(),
            len: (len as u32).into(),
        };
        self.output.head(header.as_bytes());
    }

    fn error(&mut self, request: &Request, failure: &Failure) {
        let errno = failure.errno as u32;
        if !self.structured {
            return self.simple(request, errno);
        }
        let text = &failure.text.as_bytes()[..failure.text.floor_char_boundary(TEXT_BYTES)];
        self.chunk(request, chunk::ERROR, true, 6 + text.len());
        self.output.head(&errno.to_be_bytes());
        self.output.head(&(text.len() as u16).to_be_bytes());
        self.output.head(text);
    }

    /// The bytes read, as chunks of data and of holes.
    fn chunks(&mut self, request: &Request, data: &Bufs) {
        let whole = request.has(command_flag::DF);
        let mut rest = data.parts();
        let mut offset = request.offset;
        if rest.is_empty() {
            self.chunk(request, chunk::NONE, true, 0);
        }
        while let Some(first) = rest.first() {
            let hole = !whole && is_hole(first);
            let count = rest.iter().take_while(|part| whole || is_hole(part) == hole).count();
            let (run, after) = rest.split_at(count);
            let len = run.iter().map(|part| part.len()).sum::<usize>();
            if hole {
                self.chunk(request, chunk::OFFSET_HOLE, after.is_empty(), 12);
                self.output.head(&offset.to_be_bytes());
                self.output.head(&(len as u32).to_be_bytes());
            } else {
                self.chunk(request, chunk::OFFSET_DATA, after.is_empty(), 8 + len);
                self.output.head(&offset.to_be_bytes());
                self.data(run);
            }
            offset += len as u64;
            rest = after;
        }
    }

    /// A client that takes nothing keeps no more memory by it than about twice what it asked for: a block may be a part of what was
    /// written with many others.
    fn data(&mut self, parts: &[Buf]) {
        for part in parts {
            let is_small = part.memory_bytes() <= 2 * part.len().max(PAGE_BYTES) || part.is_lent_zeroes();
            self.output.data(if is_small { part.clone() } else { Buf::copy_of(part) });
        }
    }

    /// A chunk for each context, in the order of their numbers.
    fn status(&mut self, request: &Request, contexts: &[Vec<Extent>]) {
        let all: Vec<_> = contexts.iter().map(|extents| descriptors(extents, u64::from(request.len))).collect();
        if all.iter().any(Vec::is_empty) {
            return self.error(request, &Failure::new(Errno::Io, "the volume does not tell what lies there"));
        }
        let last = all.len() as u32;
        for (mut descriptors, id) in all.into_iter().zip(1_u32..) {
            if request.has(command_flag::REQ_ONE) {
                descriptors.truncate(1);
            }
            self.chunk(request, chunk::BLOCK_STATUS, id == last, 4 + 8 * descriptors.len());
            self.output.head(&id.to_be_bytes());
            for (len, flags) in descriptors {
                self.output.head(&len.to_be_bytes());
                self.output.head(&flags.to_be_bytes());
            }
        }
    }
}

/// Extents as pairs of length and status, cut to `len`, neighbours of one status joined.
fn descriptors(extents: &[Extent], len: u64) -> Vec<(u32, u32)> {
    let mut out: Vec<(u32, u32)> = Vec::new();
    let mut left = len;
    for &Extent { len_bytes, flags } in extents {
        let piece = len_bytes.min(left) as u32;
        left -= u64::from(piece);
        let full = out.len() == EXTENTS_LIMIT;
        match out.last_mut() {
            _ if piece == 0 => {}
            Some((len, last)) if *last == flags => *len += piece,
            _ if full => break,
            _ => out.push((piece, flags)),
        }
    }
    out
}
