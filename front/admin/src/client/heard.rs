//! A stream that is heard to its end although nobody takes what is written to it any more.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose writes, once the other end has closed, fail no sooner than its reads have come to their end: a server that
/// refuses a body answers before it has all of it, and that answer is what is to be told.
pub(super) struct Heard<S> {
    stream: S,
    /// What the first write met that the other end did not take.
    deaf: Option<ErrorKind>,
    /// True when there is nothing left to be read.
    silent: bool,
}

impl<S> Heard<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, deaf: None, silent: false }
    }

    fn written<T>(&mut self, context: &Context<'_>, written: Result<T>) -> Poll<Result<T>> {
        match written {
            Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                self.deaf = Some(error.kind());
                // So that what is there is read first.
                context.waker().wake_by_ref();
                Poll::Pending
            }
            done => Poll::Ready(done),
        }
    }

    /// Where nothing is taken any more: what a write comes to.
    fn unheard<T>(&self) -> Option<Poll<Result<T>>> {
        let kind = self.deaf?;
        Some(if self.silent { Poll::Ready(Err(Error::from(kind))) } else { Poll::Pending })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = into.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, into));
        self.silent |= read.is_err() || into.filled().len() == before;
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        if let Some(unheard) = self.unheard() {
            return unheard;
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        if let Some(unheard) = self.unheard() {
            return unheard;
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, bytes));
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Some(unheard) = self.unheard() {
            return unheard;
        }
        // With TLS, it is here that what was written goes out.
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        self.written(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
