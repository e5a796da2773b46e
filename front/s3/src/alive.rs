//! Answers that take long, as those of large copies: they begin in time, so that the client does not give up, and go on with
//! blanks until they are there.
//!
//! ```text
//!   200  <?xml ...?>  ' '  ' '  ...  <CopyObjectResult> or <Error>
//! ```
//! As with S3, an answer that begins before all is known says 200, and what came of it is in its body: its headers are lost.

use futures::FutureExt;
use futures::future::BoxFuture;
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use s3s::{HttpError, HttpResponse, StdError};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Interval, interval_at, timeout};

/// What an answer waits for being whole, and then between blanks: clients give up after a minute, some after half of one.
const QUIET: Duration = Duration::from_secs(10);
const DECLARATION: &[u8] = b"<?xml version=\"1.0\" encoding=\"UTF-8\"?>";

type Answering = BoxFuture<'static, Result<HttpResponse, HttpError>>;

/// What `answering` resolves to, where that is soon; or an answer that waits for it. It has to be XML.
pub(crate) async fn kept_alive(mut answering: Answering) -> Result<HttpResponse, HttpError> {
    if let Ok(answer) = timeout(QUIET, &mut answering).await {
        return answer;
    }
    let ticks = interval_at(Instant::now() + QUIET, QUIET);
    let body = Alive { declared: false, answering: Some(answering), ticks };
    let mut answer = HttpResponse::new(s3s::Body::http_body_unsync(body));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/xml"));
    Ok(answer)
}

/// The body of an answer that waits.
struct Alive {
    declared: bool,
    /// `None` at the end.
    answering: Option<Answering>,
    ticks: Interval,
}

impl Body for Alive {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        if !this.declared {
            this.declared = true;
            return Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(DECLARATION)))));
        }
        let Some(answering) = &mut this.answering else { return Poll::Ready(None) };
        if let Poll::Ready(answer) = answering.poll_unpin(context) {
            this.answering = None;
            let whole = answer.map_err(StdError::from).and_then(|answer| {
                answer.body().bytes().ok_or_else(|| StdError::from("an answer that is no document"))
            });
            return Poll::Ready(Some(whole.map(|whole| Frame::data(undeclared(whole)))));
        }
        ready!(this.ticks.poll_tick(context));
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b" ")))))
    }
}

/// A document without its declaration.
fn undeclared(mut document: Bytes) -> Bytes {
    if document.starts_with(b"<?xml")
        && let Some(end) = document.windows(2).position(|bytes| bytes == b"?>")
    {
        drop(document.split_to(end + 2));
    }
    document
}
