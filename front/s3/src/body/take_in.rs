//! A body on its way in: hashed on this thread, stored on the store's.
//!
//! ```text
//!   socket ─> pieces of up to 1 MiB ─> hashes ─> channel ─> Upload      a body of one piece goes as a whole, in one hop
//!             end, hashes as said ─────────────> commit
//! ```
//! A body that ends early, or that is not what its sender said, never comes to the commit: the upload is dropped, and
//! nothing is left of it.

use crate::body::chunks::Refused;
use crate::body::digest::{Digest, Digested};
use crate::body::memory::{Allowance, Share};
use crate::door::{Stopped, Way};
use crate::meters;
use crate::problem::{custom, problem, refusal, unsupported};
use crate::stall::Stalled;
use futures::StreamExt;
use hyper::{HeaderMap, StatusCode};
use kura_block::{Buf, BufMut, Bufs};
use kura_object::{Content, Store};
use s3s::dto::StreamingBlob;
use s3s::{S3Error, S3ErrorCode, S3Result, StdError, TrailingHeaders};
use std::future::Future;
use tokio::sync::{mpsc, oneshot};

/// Bytes that go over the channel at once.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that wait for the store before the socket waits, too.
const PIECES: usize = 4;
/// The most that one request may store, as in S3.
const BODY_LIMIT_BYTES: u64 = 5 << 30;

/// Some bytes of a body, and the memory that they may take.
type Piece = (Buf, Share);

/// A body that is coming.
pub(crate) struct Incoming {
    body: Option<StreamingBlob>,
    length: Option<u64>,
    received: u64,
    digest: Digest,
    /// Of the last chunk, what did not go into the last piece.
    left: bytes::Bytes,
}

impl Incoming {
    /// The body of a request that says `length` of it.
    pub fn new(body: Option<StreamingBlob>, length: Option<i64>, digest: Digest) -> S3Result<Self> {
        let length = match length.map(u64::try_from) {
            Some(Err(_)) => return Err(problem(S3ErrorCode::InvalidArgument, "Content-Length is below zero")),
            Some(Ok(length)) => Some(length),
            None => None,
        };
        if length.is_some_and(|length| length > BODY_LIMIT_BYTES) {
            return Err(too_large());
        }
        Ok(Self { body, length, received: 0, digest, left: bytes::Bytes::new() })
    }

    /// The next piece, full unless it is the last one; `None` at the end.
    async fn piece(&mut self, memory: &Allowance) -> S3Result<Option<Piece>> {
        if self.left.is_empty()
            && let Some(chunk) = self.chunk().await?
        {
            // Who has sent nothing yet takes no memory.
            self.left = chunk;
        }
        let wanted = self.length.map_or(PIECE_BYTES as u64, |length| length.saturating_sub(self.received));
        let share = memory.take(PIECE_BYTES.min(wanted.max(1) as usize)).await;
        let mut piece = BufMut::room(share.bytes);
        let mut filled = 0;
        while filled < piece.len() {
            if self.left.is_empty() {
                let Some(chunk) = self.chunk().await? else { break };
                self.left = chunk;
            }
            let taken = self.left.split_to(self.left.len().min(piece.len() - filled));
            piece[filled..filled + taken.len()].copy_from_slice(&taken);
            filled += taken.len();
        }
        self.received += filled as u64;
        meters::received(filled);
        if self.received > self.length.unwrap_or(BODY_LIMIT_BYTES) {
            return Err(if self.length.is_some() { incomplete("longer than it says") } else { too_large() });
        }
        if filled == 0 {
            return Ok(None);
        }
        // Where nobody said how little would come, not a buffer for much: as long as the bytes are kept, all of it is.
        let piece = if filled <= piece.len() / 2 {
            Buf::copy_of(&piece[..filled])
        } else {
            piece.truncate(filled);
            piece.freeze()
        };
        self.digest.push(&piece).await;
        Ok(Some((piece, share)))
    }

    async fn chunk(&mut self) -> S3Result<Option<bytes::Bytes>> {
        let Some(body) = &mut self.body else { return Ok(None) };
        match body.next().await {
            None => {
                self.body = None;
                Ok(None)
            }
            Some(Ok(chunk)) => Ok(Some(chunk)),
            Some(Err(error)) => Err(broken(&error)),
        }
    }

    /// True when the stream has said that it is over, which is when the last of what it verifies is verified.
    async fn is_over(&mut self) -> S3Result<bool> {
        while self.left.is_empty() {
            match self.chunk().await? {
                None => return Ok(true),
                Some(chunk) => self.left = chunk,
            }
        }
        Ok(false)
    }

    async fn finish(self) -> S3Result<Digested> {
        if self.length.is_some_and(|length| length != self.received) {
            return Err(incomplete("shorter than it says"));
        }
        self.digest.finish().await
    }
}

/// Refuses a body in chunks that nobody takes apart: s3s does so where the head is signed, and keeps their trailer.
pub(crate) fn refuse_framed(headers: &HeaderMap, trailers: Option<&TrailingHeaders>) -> S3Result<()> {
    let says = |name: &str, what: &str| {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|value| value.trim().starts_with(what))
    };
    if trailers.is_none() && (says("x-amz-content-sha256", "STREAMING-") || says("content-encoding", "aws-chunked")) {
        return Err(unsupported("a body in chunks (aws-chunked) of a request whose head is not signed for them"));
    }
    Ok(())
}

/// What a head says of its body's length: of one in chunks, what they come to.
pub(crate) fn length_of(headers: &HeaderMap, content_length: Option<i64>) -> Option<i64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_framed = text("x-amz-content-sha256").is_some_and(|hash| hash.starts_with("STREAMING-"));
    let decoded = text("x-amz-decoded-content-length").filter(|_| is_framed).and_then(|length| length.parse().ok());
    decoded.or(content_length)
}

/// Stores a body and does `work` with it on the store's thread, where that commits it. With `part`, its content may be
/// joined to others'.
pub(crate) async fn take_in<T, F, W>(way: &Way, mut body: Incoming, part: bool, work: W) -> S3Result<T>
where
    T: Send + 'static,
    F: Future<Output = S3Result<T>> + 'static,
    W: FnOnce(Store, Content, Digested) -> F + Send + 'static,
{
    let memory = way.memory.begin();
    let first = body.piece(&memory).await?;
    if body.is_over().await? {
        let digested = body.finish().await?;
        let store_it = async move |store: Store| {
            let mut upload = if part { store.upload_part() } else { store.upload() };
            let (first, _share) = first.unzip();
            upload.write(first.map(Bufs::from).unwrap_or_default()).await.map_err(refusal)?;
            let content = upload.finish().await.map_err(refusal)?;
            work(store, content, digested).await
        };
        return way.ask(store_it).await;
    }
    let (pieces, mut coming) = mpsc::channel::<Piece>(PIECES);
    let (end, ended) = oneshot::channel::<Digested>();
    let job = way.begin(async move |store: Store| {
        let mut upload = if part { store.upload_part() } else { store.upload() };
        while let Some((piece, share)) = coming.recv().await {
            let is_own = share.is_own;
            upload.write_by(piece.into(), share).await.map_err(refusal)?;
            if is_own {
                // The next piece comes when this one has landed.
                upload.push().await.map_err(refusal)?;
            }
        }
        // Without an end the body broke off: the upload is dropped.
        let digested = ended.await.map_err(|_| incomplete("broken off"))?;
        let content = upload.finish().await.map_err(refusal)?;
        work(store, content, digested).await
    });
    let sent = send_all(body, memory, first, pieces).await;
    match sent {
        Ok(Some(digested)) => drop(end.send(digested)),
        // The store refuses more: the job says why.
        Ok(None) => {}
        Err(error) => return Err(error),
    }
    job.await.map_err(|_| S3Error::from(Stopped))?
}

/// Sends all pieces; `None` when the store takes no more.
async fn send_all(
    mut body: Incoming,
    memory: Allowance,
    first: Option<Piece>,
    pieces: mpsc::Sender<Piece>,
) -> S3Result<Option<Digested>> {
    let mut next = first;
    while let Some(piece) = next {
        if pieces.send(piece).await.is_err() {
            return Ok(None);
        }
        next = body.piece(&memory).await?;
    }
    // The stream has ended, and verified all that it verifies.
    body.finish().await.map(Some)
}

/// A body that broke off, or that is not what was signed: what s3s verifies while it streams it tells only by words. That of a copy
/// is an object, which the store may fail to read.
fn broken(error: &StdError) -> S3Error {
    if let Some(error) = error.downcast_ref::<kura_block::Error>() {
        return refusal(error.clone());
    }
    let text = error.to_string();
    if text.contains("Sha256Mismatch") {
        let text = "x-amz-content-sha256 is not that of the body";
        return custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, text);
    }
    if text.contains("SignatureMismatch") {
        return problem(S3ErrorCode::SignatureDoesNotMatch, "a chunk of the body is not signed as it should be");
    }
    let refused = [Refused::TooLarge, Refused::NoSize].map(|refused| refused.to_string());
    if let Some(refused) = refused.into_iter().find(|refused| text.contains(refused)) {
        return problem(S3ErrorCode::InvalidRequest, refused);
    }
    if text.contains(&Stalled.to_string()) {
        return problem(S3ErrorCode::RequestTimeout, "the body did not come on for two minutes: send it again");
    }
    incomplete("broken off")
}

fn incomplete(how: &str) -> S3Error {
    problem(S3ErrorCode::IncompleteBody, format!("the body is {how}"))
}

fn too_large() -> S3Error {
    problem(
        S3ErrorCode::EntityTooLarge,
        format!("one request stores at most {BODY_LIMIT_BYTES} bytes: upload in parts"),
    )
}
