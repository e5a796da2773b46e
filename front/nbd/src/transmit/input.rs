//! Requests out of a stream of bytes, with as few reads as possible.
//!
//! One large read brings many requests. A write's payload is copied out of it as far as it came along; when much is
//! still missing, the rest is read straight into the payload's own aligned buffers.

use crate::hangup::Hangup;
use crate::memory::{Budget, Grant, OWN_BYTES, Wanted};
use crate::protocol::{Command, REQUEST_BYTES, Request};
use kura_block::{BufMut, Bufs};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, ReadBuf};

/// The most one read takes.
const BUFFER_BYTES: usize = 128 << 10;
/// What one read takes after a large write, when the next is probably large too: little of it is then copied.
const SHORT_READ_BYTES: usize = 4 << 10;
/// A payload of which this much is missing is read in place.
const DIRECT_BYTES: usize = 32 << 10;
/// The most one buffer of a payload has: a block that the volume keeps, keeps all of its buffer in memory.
const PART_BYTES: usize = 1 << 20;

/// The data of a write, empty with other requests, and memory for it or for what is read.
#[derive(Default)]
pub struct Payload {
    pub data: Bufs,
    /// The memory that was granted, where it takes more than the connection has.
    pub grant: Option<Grant>,
}

/// What a client sends.
pub enum Incoming {
    /// A request, with the payload of a write.
    Request(Request, Payload),
    /// A write whose payload was larger than allowed, and was thrown away.
    Oversized(Request),
    /// Nothing more.
    End,
}

/// The data of a write as it comes.
struct Coming {
    full: Bufs,
    /// The buffer after these, and how much of it has come.
    part: BufMut,
    filled: usize,
    /// Bytes that come after it.
    after: usize,
}

impl Coming {
    fn new(len: usize) -> Self {
        let part = len.min(PART_BYTES);
        Self { full: Bufs::new(), part: BufMut::room(part), filled: 0, after: len - part }
    }

    fn missing(&self) -> usize {
        self.part.len() - self.filled + self.after
    }

    /// Where the next bytes go; empty when all have come.
    fn room(&mut self) -> &mut [u8] {
        &mut self.part[self.filled..]
    }

    /// So many bytes of this room are filled.
    fn advance(&mut self, bytes: usize) {
        self.filled += bytes;
        if self.filled == self.part.len() && self.after > 0 {
            let next = Self::new(self.after);
            let full = std::mem::replace(&mut self.part, next.part);
            self.full.push(full.freeze());
            (self.filled, self.after) = (0, next.after);
        }
    }

    fn whole(mut self) -> Bufs {
        self.full.push(self.part.freeze());
        self.full
    }
}

enum State {
    /// A request's header comes next.
    Header,
    /// The payload of `request`, a write, or the answer to it waits for memory; `None` while it does not stand in line.
    Memory { request: Request, wanted: Option<Wanted> },
    /// The payload of `request` is coming.
    Payload { request: Request, data: Coming, grant: Option<Grant> },
    /// This much of the payload of `request` is still to be thrown away.
    Excess { request: Request, left: usize },
}

/// The receiving half of a connection.
pub struct Input {
    buffer: Box<[u8]>,
    /// Where in `buffer` the bytes lie that were received and not used yet.
    begin: usize,
    end: usize,
    /// How much the next read takes beyond what is missing.
    window: usize,
    state: State,
    payload_limit: usize,
    contexts: usize,
    memory: Option<Arc<Budget>>,
    /// Bytes received since the connection began.
    received: usize,
    arrived: Instant,
}

impl Input {
    /// Takes payloads up to `payload_limit` bytes, for which, as for what is read and for what so many `contexts` tell of a range, it
    /// draws from `memory`.
    pub fn new(payload_limit: usize, contexts: usize, memory: Option<Arc<Budget>>) -> Self {
        Self {
            buffer: vec![0; BUFFER_BYTES].into(),
            begin: 0,
            end: 0,
            window: BUFFER_BYTES,
            state: State::Header,
            payload_limit,
            contexts,
            memory,
            received: 0,
            arrived: Instant::now(),
        }
    }

    /// When the last bytes arrived.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Bytes that have come so far, where a payload that is not complete has memory which all share, and how much that is.
    pub fn withheld(&self) -> Option<(usize, usize)> {
        match &self.state {
            State::Payload { request, grant: Some(_), .. } => Some((self.received, request.len as usize)),
            _ => None,
        }
    }

    /// True when somebody waits for such memory.
    pub fn others_wait(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.is_short())
    }

    /// Leaves the line of those that wait for memory: nobody takes here what would be granted.
    pub fn stand_back(&mut self) {
        if let State::Memory { wanted, .. } = &mut self.state {
            *wanted = None;
        }
    }

    /// The next request, where `held_bytes` of data of earlier ones are in flight. Between calls nothing is lost, whether or
    /// not the last one was pending.
    pub fn poll_next<S>(
        &mut self,
        stream: &mut S,
        held_bytes: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Incoming, Hangup>>
    where
        S: AsyncRead + Unpin,
    {
        loop {
            let missing = match &mut self.state {
                State::Header => {
                    if self.end - self.begin >= REQUEST_BYTES {
                        if let Some(request) = self.take_header(held_bytes)? {
                            return Poll::Ready(Ok(Incoming::Request(request, Payload::default())));
                        }
                        continue;
                    }
                    0
                }
                State::Memory { request, wanted } => {
                    let bytes = request.held_bytes(self.contexts);
                    let grant = match &self.memory {
                        // What was in flight before it has been answered meanwhile.
                        _ if held_bytes + bytes <= OWN_BYTES => None,
                        Some(memory) => ready!(wanted.get_or_insert_with(|| memory.want(bytes as u32)).poll(cx)),
                        None => None,
                    };
                    let request = *request;
                    if request.command != Command::Write {
                        self.state = State::Header;
                        let payload = Payload { data: Bufs::new(), grant };
                        return Poll::Ready(Ok(Incoming::Request(request, payload)));
                    }
                    self.state = State::Payload { request, data: Coming::new(request.len as usize), grant };
                    continue;
                }
                State::Payload { data, .. } => {
                    while data.missing() > 0 && self.begin < self.end {
                        let room = data.room();
                        let taken = room.len().min(self.end - self.begin);
                        room[..taken].copy_from_slice(&self.buffer[self.begin..self.begin + taken]);
                        self.begin += taken;
                        data.advance(taken);
                    }
                    data.missing()
                }
                State::Excess { left, .. } => {
                    let taken = (*left).min(self.end - self.begin);
                    self.begin += taken;
                    *left -= taken;
                    *left
                }
            };
            if missing == 0 && !matches!(self.state, State::Header) {
                return Poll::Ready(Ok(self.take_payload()));
            }
            if ready!(self.poll_receive(stream, missing, cx))? == 0 {
                let between = matches!(self.state, State::Header) && self.begin == self.end;
                let cut_off =
                    || io::Error::new(io::ErrorKind::UnexpectedEof, "the client left in the middle of a request");
                return Poll::Ready(if between { Ok(Incoming::End) } else { Err(cut_off().into()) });
            }
        }
    }

    /// Takes the header at the front of the buffer; `None` when a payload follows it, or memory for the answer does.
    fn take_header(&mut self, held_bytes: usize) -> Result<Option<Request>, Hangup> {
        let request = Request::decode(&self.buffer[self.begin..self.end])
            .ok_or(Hangup::Violation("a request without its magic number"))?;
        self.begin += REQUEST_BYTES;
        let len = request.held_bytes(self.contexts);
        self.state = match (&self.memory, request.command) {
            (_, Command::Write) if len > self.payload_limit => State::Excess { request, left: len },
            // Before anything is allocated. What is too large is refused.
            (Some(_), _) if held_bytes + len > OWN_BYTES && (1..=self.payload_limit).contains(&len) => {
                State::Memory { request, wanted: None }
            }
            (_, Command::Write) => State::Payload { request, data: Coming::new(len), grant: None },
            _ => return Ok(Some(request)),
        };
        Ok(None)
    }

    /// Ends the state of a payload that is complete.
    fn take_payload(&mut self) -> Incoming {
        match std::mem::replace(&mut self.state, State::Header) {
            State::Payload { request, data, grant } => {
                let data = data.whole();
                self.window = if data.len() >= 2 * DIRECT_BYTES { SHORT_READ_BYTES } else { BUFFER_BYTES };
                Incoming::Request(request, Payload { data, grant })
            }
            State::Excess { request, .. } => Incoming::Oversized(request),
            State::Header | State::Memory { .. } => Incoming::End,
        }
    }

    /// Receives something: into the payload when `missing`, what it lacks, is much, or what comes behind it would not be copied
    /// either, else into the buffer. Zero is the end of the stream.
    fn poll_receive<S>(&mut self, stream: &mut S, missing: usize, cx: &mut Context<'_>) -> Poll<io::Result<usize>>
    where
        S: AsyncRead + Unpin,
    {
        let stream = Pin::new(stream);
        let got = match &mut self.state {
            State::Payload { data, .. } if missing >= DIRECT_BYTES.min(self.window) => {
                let mut room = ReadBuf::new(data.room());
                ready!(stream.poll_read(cx, &mut room))?;
                let got = room.filled().len();
                data.advance(got);
                got
            }
            _ => {
                // What is left is less than a header: moving it to the front costs nothing.
                self.buffer.copy_within(self.begin..self.end, 0);
                (self.begin, self.end) = (0, self.end - self.begin);
                let until = self.end + missing + self.window;
                let mut room = ReadBuf::new(&mut self.buffer[self.end..until.min(BUFFER_BYTES)]);
                ready!(stream.poll_read(cx, &mut room))?;
                self.end += room.filled().len();
                room.filled().len()
            }
        };
        self.received += got;
        self.arrived = Instant::now();
        Poll::Ready(Ok(got))
    }
}
