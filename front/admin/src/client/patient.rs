//! A stream that is given up when nothing moves on it any more.

use socket2::SockRef;
use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Bytes that wait in this machine, beyond those under way: more, and what was written would not have moved yet.
const UNSENT_BYTES: u32 = 128 << 10;

/// A stream on which an end that is waited for must move a byte, in either direction, every so often; else its reads and
/// writes fail as `TimedOut`. How long all of it takes does not matter.
pub struct Patient<S> {
    stream: S,
    patience: Option<Duration>,
    /// What is read is waited for, too.
    hears: bool,
    /// While a read or a write waits.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    /// With none it waits for ever.
    pub fn new(stream: S, patience: Option<Duration>) -> Self {
        Self { stream, patience, hears: true, waits: None }
    }

    /// A server's end: its client may be silent for ever, but must take what is written to it.
    pub(crate) fn answering(stream: S, patience: Duration) -> Self {
        Self { hears: false, ..Self::new(stream, Some(patience)) }
    }

    /// Goes on waiting, or fails.
    fn wait<T>(&mut self, context: &mut Context<'_>) -> Poll<Result<T>> {
        let Some(patience) = self.patience else { return Poll::Pending };
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(waits.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, format!("it is silent for {patience:?}"))))
    }

    /// Something moved. Whoever waits in the other direction waits on, by the same clock.
    fn moved(&mut self) {
        if !self.hears {
            self.waits = None;
        }
        if let (Some(waits), Some(patience)) = (&mut self.waits, self.patience) {
            waits.as_mut().reset(Instant::now() + patience);
        }
    }
}

impl Patient<TcpStream> {
    /// Connects to `HOST:PORT`; with patience, in no more time than that.
    pub async fn reach(address: &str, patience: Option<Duration>) -> Result<Self> {
        let connect = TcpStream::connect(address);
        let stream = match patience {
            None => connect.await?,
            Some(patience) => timeout(patience, connect)
                .await
                .map_err(|_| Error::new(ErrorKind::TimedOut, format!("nothing answers there for {patience:?}")))??,
        };
        stream.set_nodelay(true)?;
        // Where the system has no such option, a slow link wants more patience.
        let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES);
        Ok(Self::new(stream, patience))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, into) {
            Poll::Pending if self.hears => self.wait(context),
            Poll::Pending => Poll::Pending,
            done @ Poll::Ready(_) if !self.hears => done,
            done @ Poll::Ready(_) => {
                self.moved();
                done
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Patient<S> {
    fn written<T>(&mut self, context: &mut Context<'_>, written: Poll<Result<T>>) -> Poll<Result<T>> {
        if written.is_pending() {
            return self.wait(context);
        }
        self.moved();
        written
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.written(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        // With TLS, it is here that what was written goes out.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.written(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    const PATIENCE: Duration = Duration::from_secs(10);
    const LESS: Duration = Duration::from_secs(9);

    #[tokio::test(start_paused = true)]
    async fn whoever_is_silent_is_given_up() {
        let (near, mut far) = duplex(64);
        let mut near = Patient::new(near, Some(PATIENCE));
        far.write_all(b"x").await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'x');
        let began = Instant::now();
        let error = near.read_u8().await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed().as_secs()), (ErrorKind::TimedOut, 10));
        // Neither does anybody take what is written.
        let error = near.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_is_slow_is_not() {
        let (near, mut far) = duplex(1);
        let mut near = Patient::new(near, Some(PATIENCE));
        let taken = tokio::spawn(async move {
            for _ in 0..20 {
                sleep(LESS).await;
                far.read_u8().await.unwrap();
            }
            far.write_u8(b'y').await.unwrap();
            far
        });
        let began = Instant::now();
        near.write_all(&[0; 20]).await.unwrap();
        assert_eq!(near.read_u8().await.unwrap(), b'y');
        assert!(began.elapsed() > 15 * PATIENCE);
        drop(taken.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_waited_for_has_time_while_the_question_still_goes() {
        let (near, mut far) = duplex(1);
        let (mut reader, mut writer) = tokio::io::split(Patient::new(near, Some(PATIENCE)));
        let question = async {
            for _ in 0..5 {
                sleep(LESS).await;
                writer.write_all(b"q").await.unwrap();
                far.read_u8().await.unwrap();
            }
        };
        let began = Instant::now();
        let (answer, ()) = tokio::join!(reader.read_u8(), question);
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
        // As long after the last word of the question as it may be silent.
        assert_eq!(began.elapsed(), 5 * LESS + PATIENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_limit_it_waits() {
        let (near, mut far) = duplex(1);
        let late = tokio::spawn(async move {
            sleep(Duration::from_hours(100)).await;
            far.write_u8(b'z').await.unwrap();
        });
        assert_eq!(Patient::new(near, None).read_u8().await.unwrap(), b'z');
        late.await.unwrap();
    }
}
