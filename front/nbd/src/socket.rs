//! A client's socket, that can move to another thread.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// A TCP or Unix stream. [`Socket::detach`] takes it off its thread's reactor; the thread that next polls it registers
/// it with its own, so that readiness never has to wake another thread.
pub struct Socket {
    state: State,
    peer: String,
}

enum State {
    Tcp(TcpStream),
    Unix(UnixStream),
    DetachedTcp(std::net::TcpStream),
    DetachedUnix(std::os::unix::net::UnixStream),
    /// Only after an error while moving.
    Lost,
}

/// A dead peer is noticed after a minute and a half, so that a client that lost power does not keep its volume in use; where
/// replies are under way to it, only when TCP gives up after some 15 minutes. `TCP_USER_TIMEOUT` would be sooner, but also end
/// clients that live and take nothing for as long, such as a copy into a pipe that nobody reads.
const KEEPALIVE_IDLE: Duration = Duration::from_mins(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

impl Socket {
    /// A TCP stream, told not to hold small messages back and to notice a dead peer.
    pub fn tcp(stream: TcpStream) -> Self {
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE_IDLE)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES);
        let set = stream.set_nodelay(true).and(socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive));
        if let Err(error) = set {
            // The client may be gone already, which the first read tells.
            tracing::debug!(%error, "socket options of an NBD client not set");
        }
        let peer = stream.peer_addr().map_or_else(|_| "gone".to_owned(), |peer| peer.to_string());
        Self { state: State::Tcp(stream), peer }
    }

    /// A Unix stream.
    pub fn unix(stream: UnixStream) -> Self {
        let pid = stream.peer_cred().ok().and_then(|cred| cred.pid());
        let peer = pid.map_or_else(|| "unix".to_owned(), |pid| format!("unix:pid={pid}"));
        Self { state: State::Unix(stream), peer }
    }

    /// Who is at the other end, for people: an address and port, or a process.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// From where the other end came: an IP address, or that it is of this machine.
    pub(crate) fn origin(&self) -> &str {
        // What follows the last colon is a port, or a process.
        self.peer.rsplit_once(':').map_or(&self.peer, |(origin, _)| origin)
    }

    /// Leaves this thread's reactor.
    pub fn detach(&mut self) -> io::Result<()> {
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Tcp(stream) => State::DetachedTcp(stream.into_std()?),
            State::Unix(stream) => State::DetachedUnix(stream.into_std()?),
            other => other,
        };
        Ok(())
    }

    /// The stream, registered with this thread's reactor.
    fn attached(&mut self) -> io::Result<&mut State> {
        if matches!(self.state, State::DetachedTcp(_) | State::DetachedUnix(_)) {
            self.state = match std::mem::replace(&mut self.state, State::Lost) {
                State::DetachedTcp(stream) => State::Tcp(TcpStream::from_std(stream)?),
                State::DetachedUnix(stream) => State::Unix(UnixStream::from_std(stream)?),
                other => other,
            };
        }
        Ok(&mut self.state)
    }
}

/// Calls the method of the stream behind a [`Socket`].
macro_rules! forward {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket.get_mut().attached()? {
            State::Tcp(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            State::Unix(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            State::DetachedTcp(_) | State::DetachedUnix(_) | State::Lost => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        forward!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, stream => stream.poll_shutdown(cx))
    }
}
