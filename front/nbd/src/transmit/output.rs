//! Replies into a stream of bytes, with as few writes as possible and without copying data.

use crate::memory::Grant;
use kura_block::Buf;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Room for heads that a connection keeps: more is taken by what is told of ranges alone.
const HEADS_KEPT_BYTES: usize = 16 << 10;
/// Pieces that one write takes.
const SLICES: usize = 128;

/// A piece of a batch.
enum Piece {
    /// So many bytes of the batch's heads.
    Head(usize),
    /// Data, shared with whoever answered.
    Data(Buf),
}

/// Replies that go out together.
#[derive(Default)]
struct Batch {
    /// All bytes that are not data, one after the other.
    heads: Vec<u8>,
    pieces: Vec<Piece>,
    bytes: usize,
    replies: usize,
    /// Memory of the data, which is held until all of the batch has gone.
    grants: Vec<Grant>,
}

/// How much of the batch being sent has gone.
#[derive(Default)]
struct Progress {
    /// Pieces gone, and bytes gone of the piece after them.
    pieces: usize,
    offset: usize,
    /// Bytes of the heads of all the pieces that are gone.
    heads: usize,
}

/// The sending half of a connection. While one batch is sent, the next one gathers.
#[derive(Default)]
pub struct Output {
    gathering: Batch,
    sending: Batch,
    gone: Progress,
    /// Bytes were handed to the stream that it may still hold back.
    held_back: bool,
    /// Bytes that have gone since the connection began.
    taken: usize,
}

impl Output {
    /// Adds bytes of the protocol.
    pub fn head(&mut self, bytes: &[u8]) {
        let batch = &mut self.gathering;
        batch.heads.extend_from_slice(bytes);
        batch.bytes += bytes.len();
        match batch.pieces.last_mut() {
            Some(Piece::Head(len)) => *len += bytes.len(),
            _ => batch.pieces.push(Piece::Head(bytes.len())),
        }
    }

    /// Adds data.
    pub fn data(&mut self, data: Buf) {
        self.gathering.bytes += data.len();
        self.gathering.pieces.push(Piece::Data(data));
    }

    /// Marks the end of a reply, whose data has this memory.
    pub fn end_reply(&mut self, grant: Option<Grant>) {
        self.gathering.replies += 1;
        self.gathering.grants.extend(grant);
    }

    /// Bytes that have gone so far, where some that have not have memory which all connections share, and how many have not.
    pub fn withheld(&self) -> Option<(usize, usize)> {
        let is_held = |batch: &Batch| !batch.grants.is_empty();
        (is_held(&self.sending) || is_held(&self.gathering)).then(|| (self.taken, self.bytes()))
    }

    /// Bytes that have not gone, those of batches partly gone included.
    pub fn bytes(&self) -> usize {
        self.gathering.bytes + self.sending.bytes
    }

    /// Memory that is kept by what has not gone, in bytes.
    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let pieces = self.gathering.pieces.iter().chain(&self.sending.pieces);
        let of = |piece: &Piece| if let Piece::Data(data) = piece { data.memory_bytes() } else { 0 };
        pieces.map(of).sum()
    }

    /// Replies that have not gone.
    pub fn replies(&self) -> usize {
        self.gathering.replies + self.sending.replies
    }

    /// True when everything has gone.
    pub fn is_empty(&self) -> bool {
        self.gathering.pieces.is_empty() && self.sending.pieces.is_empty() && !self.held_back
    }

    /// Throws away what has not gone.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sends; ready when everything has gone.
    pub fn poll_send<S>(&mut self, stream: &mut S, cx: &mut Context<'_>) -> Poll<io::Result<()>>
    where
        S: AsyncWrite + Unpin,
    {
        loop {
            if self.sending.pieces.is_empty() {
                if self.gathering.pieces.is_empty() {
                    break;
                }
                std::mem::swap(&mut self.sending, &mut self.gathering);
            }
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.gather(&mut slices);
            let sent = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.held_back = true;
            self.taken += sent;
            self.advance(sent);
        }
        if self.held_back {
            ready!(Pin::new(stream).poll_flush(cx))?;
            self.held_back = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Points `slices` at what is to go next, and returns how many it used.
    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut head, mut skip, mut count) = (self.gone.heads, self.gone.offset, 0);
        for (slice, piece) in slices.iter_mut().zip(&self.sending.pieces[self.gone.pieces..]) {
            let bytes: &[u8] = match piece {
                Piece::Head(len) => {
                    let bytes = &self.sending.heads[head..head + len];
                    head += len;
                    bytes
                }
                Piece::Data(data) => data,
            };
            *slice = IoSlice::new(&bytes[skip..]);
            skip = 0;
            count += 1;
        }
        count
    }

    /// Steps over `sent` bytes, and empties the batch when all of it has gone.
    fn advance(&mut self, mut sent: usize) {
        while let Some(piece) = self.sending.pieces.get(self.gone.pieces) {
            let (len, head) = match piece {
                Piece::Head(len) => (*len, *len),
                Piece::Data(data) => (data.len(), 0),
            };
            let left = len - self.gone.offset;
            if sent < left {
                self.gone.offset += sent;
                return;
            }
            sent -= left;
            self.gone = Progress { pieces: self.gone.pieces + 1, offset: 0, heads: self.gone.heads + head };
        }
        self.gone = Progress::default();
        self.sending.heads.clear();
        self.sending.heads.shrink_to(HEADS_KEPT_BYTES);
        self.sending.pieces.clear();
        self.sending.grants.clear();
        (self.sending.bytes, self.sending.replies) = (0, 0);
    }
}
