//! Clients that stall: they are let go.
//!
//! What is asked of a client in two minutes is little: [`LEAST_BYTES`] of a body that it sends, or that it takes of an
//! answer. Between requests, and while the store is busy, nothing is asked of it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may take for so many bytes.
const PATIENCE: Duration = Duration::from_mins(2);
const LEAST_BYTES: usize = 1 << 10;

/// Waits for a client, with little patience.
#[derive(Default)]
pub(crate) struct Alarm {
    rings: Option<Pin<Box<Sleep>>>,
    bytes: usize,
}

/// The client has stalled.
#[derive(Debug)]
pub(crate) struct Stalled;

impl std::fmt::Display for Stalled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the client stalled")
    }
}

impl std::error::Error for Stalled {}

impl Alarm {
    /// The client has sent or taken bytes.
    pub fn note(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= LEAST_BYTES {
            self.reset();
        }
    }

    /// Nothing is asked of the client any more.
    pub fn reset(&mut self) {
        (self.rings, self.bytes) = (None, 0);
    }

    /// The client is waited for: ready when that was too long.
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let rings = self.rings.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        rings.as_mut().poll(context)
    }
}

/// A connection that ends when its client does not take what is written to it.
pub(crate) struct Impatient<S> {
    stream: S,
    alarm: Alarm,
}

impl<S: AsyncWrite + Unpin> Impatient<S> {
    pub fn new(stream: S) -> Self {
        Self { stream, alarm: Alarm::default() }
    }

    fn poll_out(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match poll(Pin::new(&mut self.stream), context) {
            Poll::Ready(written) => {
                self.alarm.note(*written.as_ref().unwrap_or(&0));
                Poll::Ready(written)
            }
            Poll::Pending => {
                ready!(self.alarm.poll(context));
                Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, Stalled)))
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Impatient<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, out)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Impatient<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_out(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_out(context, |stream, context| stream.poll_write_vectored(context, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = this.poll_out(context, |stream, context| stream.poll_flush(context).map_ok(|()| 0));
        let flushed = ready!(flushed).map(drop);
        // All that was to be said is on its way.
        this.alarm.reset();
        Poll::Ready(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.get_mut().poll_out(context, |stream, context| stream.poll_shutdown(context).map_ok(|()| 0));
        ended.map_ok(drop)
    }
}
