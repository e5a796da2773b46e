//! What an answer leaves unread of its request's body: a refusal need not read it. On a connection that goes on, it would
//! be taken for the next request.
//!
//! A little is read and forgotten. Where there is more, or the client waits to be told to go on, the answer ends the
//! connection; what still comes is read for a while, so that the client gets to see the answer.

use crate::body::chunks::Chunks;
use crate::body::document::Document;
use crate::problem::problem;
use crate::stall::{Alarm, Stalled};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use s3s::{HttpResponse, S3ErrorCode, StdError};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Bytes that are read and forgotten for a connection to go on, and how long that may take.
const FORGOTTEN_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_millis(500);
/// What an error's explanation begins with.
const MESSAGE: &[u8] = b"<Message>";
/// How long a connection lingers whose answer is its last.
const LINGER: Duration = Duration::from_secs(5);

/// A body that comes back when it is dropped before its end.
pub(crate) struct Watched {
    body: Option<Incoming>,
    chunks: Option<Chunks>,
    document: Document,
    begun: bool,
    alarm: Alarm,
    back: Option<oneshot::Sender<(Incoming, bool)>>,
}

/// What comes back of a body.
pub(crate) struct Rest {
    /// None of an empty body.
    back: Option<oneshot::Receiver<(Incoming, bool)>>,
    /// The client sends the body only when it is asked to.
    waits: bool,
}

/// The request with its body watched, which is told to `document`.
pub(crate) fn watch(request: Request<Incoming>, document: Document) -> (Request<s3s::Body>, Option<Rest>) {
    let waits = request.headers().contains_key(header::EXPECT);
    if request.body().is_end_stream() {
        // Nobody asks for a body of nothing, and botocore stumbles over its next request where it was not asked to go on.
        let rest = waits.then_some(Rest { back: None, waits });
        return (request.map(s3s::Body::from), rest);
    }
    let (sender, back) = oneshot::channel();
    let chunks = Chunks::of(request.headers());
    let watched = |body| Watched {
        body: Some(body),
        chunks,
        document,
        begun: false,
        alarm: Alarm::default(),
        back: Some(sender),
    };
    (request.map(|body| s3s::Body::http_body_unsync(watched(body))), Some(Rest { back: Some(back), waits }))
}

impl Rest {
    /// Lets the connection go on behind `answer`, or end with it.
    pub async fn settle(self, answer: &mut HttpResponse) {
        let Self { back, waits } = self;
        if is_wordless(answer) {
            // An error of the store's has a line that says what it is.
            let text = "the request's body cannot be read to its end";
            if let Ok(better) = problem(S3ErrorCode::IncompleteBody, text).to_http_response() {
                *answer = better;
            }
        }
        let body = match back.map(|mut back| back.try_recv()) {
            None => None,
            Some(Ok((_, false))) if waits => None,
            Some(Ok((mut body, _))) => {
                if timeout(PATIENCE, forget(&mut body, FORGOTTEN_BYTES)).await == Ok(true) {
                    return;
                }
                Some(body)
            }
            // A body that was read to its end does not come back.
            Some(Err(_)) => return,
        };
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        if let Some(mut body) = body {
            tokio::spawn(async move { timeout(LINGER, forget(&mut body, usize::MAX)).await });
        }
    }
}

/// True for what s3s answers when it meets an error in a body that it takes as a whole: `InternalError` and no word.
fn is_wordless(answer: &HttpResponse) -> bool {
    let said = answer.body().bytes();
    let is_silent = |said: Bytes| !said.windows(MESSAGE.len()).any(|bytes| bytes == MESSAGE);
    answer.status() == StatusCode::INTERNAL_SERVER_ERROR && said.is_none_or(is_silent)
}

/// Reads up to `limit` bytes: whether that was all.
async fn forget(body: &mut Incoming, mut limit: usize) -> bool {
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
        let Some(Ok(frame)) = frame else { return true };
        let len = frame.data_ref().map_or(0, Bytes::len);
        match limit.checked_sub(len) {
            Some(left) => limit = left,
            None => return false,
        }
    }
}

/// What a body gives next.
type Next = Option<Result<Frame<Bytes>, StdError>>;

impl Watched {
    /// The next frame as it comes.
    fn poll_coming(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        self.begun = true;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else {
            // The body stays: the answer ends the connection, as it is not read to its end.
            return self.alarm.poll(context).map(|()| Some(Err(Stalled.into())));
        };
        let is_over = body.is_end_stream();
        match &frame {
            Some(Ok(frame)) => {
                let data = frame.data_ref().map_or(&[][..], |data| &data[..]);
                self.alarm.note(data.len());
                if !self.document.push(data) {
                    return Poll::Ready(Some(Err("the body is too long".into())));
                }
            }
            _ => self.body = None,
        }
        if (is_over || frame.is_none()) && !self.document.end() {
            self.body = None;
            return Poll::Ready(Some(Err("the body is not what its head says".into())));
        }
        Poll::Ready(frame.map(|frame| frame.map_err(StdError::from)))
    }
}

impl Body for Watched {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Next> {
        loop {
            if let Some(bytes) = self.chunks.as_mut().and_then(Chunks::next) {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let frame = ready!(self.poll_coming(context));
            match (&mut self.chunks, frame) {
                (Some(chunks), Some(Ok(frame))) if frame.is_data() => {
                    let data = frame.into_data().unwrap_or_default();
                    if let Err(error) = chunks.push(data) {
                        return Poll::Ready(Some(Err(error.into())));
                    }
                }
                (_, frame) => return Poll::Ready(frame),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream) && self.chunks.as_ref().is_none_or(Chunks::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let body = self.body.take().filter(|body| !body.is_end_stream());
        if let (Some(body), Some(back)) = (body, self.back.take()) {
            // Where nobody waits for it, the connection is gone.
            let _ = back.send((body, self.begun));
        }
    }
}
