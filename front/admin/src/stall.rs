//! Clients that stall in the midst of a request: they are let go, and what they held is free.
//!
//! Asked of a client is a byte every two minutes: of the body that it sends, and taken of the answer. Between requests, and
//! while an answer is made, nothing is.

use axum::body::{Body, Bytes};
use axum::extract::Request;
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Sleep, sleep};

/// How long a client may move nothing.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);

/// A request whose body must come on.
pub(crate) async fn hurry(request: Request) -> Request {
    request.map(|body| Body::new(Hurried { body, waits: None, over: false }))
}

/// A body that fails when nothing of it comes for too long.
struct Hurried {
    body: Body,
    /// While the next bytes are waited for.
    waits: Option<Pin<Box<Sleep>>>,
    over: bool,
}

impl hyper::body::Body for Hurried {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.over {
            return Poll::Ready(None);
        }
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if frame.is_ready() {
            self.waits = None;
            return frame;
        }
        ready!(self.waits.get_or_insert_with(|| Box::pin(sleep(PATIENCE))).as_mut().poll(context));
        self.over = true;
        let text = format!("nothing of it came for {} s: send it again", PATIENCE.as_secs());
        Poll::Ready(Some(Err(axum::Error::new(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::PATIENCE;
    use crate::{Access, Listener};
    use axum::Router;
    use axum::body::Body;
    use axum::routing::{get, put};
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::sync::watch;
    use tokio::time::{Instant, sleep};

    const ANSWER_BYTES: usize = 64 << 20;

    /// A connection to a server that counts the bytes of a body, and has a long answer.
    async fn connected() -> (UnixStream, watch::Sender<bool>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admin.sock");
        let (stop, stopped) = watch::channel(false);
        let routes = Router::new()
            .route("/in", put(async |body: axum::body::Bytes| body.len().to_string()))
            .route("/out", get(async || Body::from(vec![7; ANSWER_BYTES])));
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        tokio::spawn(crate::serve(listener, Access::Reach, routes, &[], stopped));
        (UnixStream::connect(&path).await.unwrap(), stop)
    }

    async fn said(client: &mut UnixStream, text: &str) {
        client.write_all(text.replace('\n', "\r\n").as_bytes()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_on_is_refused() {
        let (mut client, _stop) = connected().await;
        said(&mut client, "PUT /in HTTP/1.1\nHost: x\nContent-Length: 100\n\nabc").await;
        let (began, mut heard) = (Instant::now(), String::new());
        client.read_to_string(&mut heard).await.unwrap();
        let elapsed = began.elapsed();
        assert!((PATIENCE..PATIENCE + Duration::from_secs(5)).contains(&elapsed), "after {elapsed:?}");
        assert!(heard.starts_with("HTTP/1.1 400 ") && heard.contains("send it again"), "{heard}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_body_is_waited_for() {
        let (mut client, _stop) = connected().await;
        said(&mut client, "PUT /in HTTP/1.1\nHost: x\nConnection: close\nContent-Length: 10\n\n").await;
        for _ in 0..10 {
            sleep(Duration::from_secs(100)).await;
            said(&mut client, "x").await;
        }
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        assert!(heard.starts_with("HTTP/1.1 200 ") && heard.ends_with("\r\n10"), "{heard}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_nobody_takes_is_given_up() {
        for (pause, whole) in [(Duration::from_secs(100), true), (Duration::from_secs(150), false)] {
            let (mut client, _stop) = connected().await;
            said(&mut client, "GET /out HTTP/1.1\nHost: x\nConnection: close\n\n").await;
            let (mut heard, mut piece) = (0, vec![0; 32 << 20]);
            loop {
                sleep(pause).await;
                match client.read(&mut piece).await {
                    Ok(0) | Err(_) => break,
                    Ok(taken) => heard += taken,
                }
                if whole {
                    // The rest quickly: the kernel gives little at a time.
                    heard += client.read_to_end(&mut Vec::new()).await.unwrap();
                }
            }
            assert_eq!(heard > ANSWER_BYTES, whole, "{heard} bytes with pauses of {pause:?}");
        }
    }
}
