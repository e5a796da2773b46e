//! An object's content on its way: read as it is sent, never in memory as a whole.

use super::store::empty;
use super::wire::Body;
use anyhow::Context;
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use kura_admin::ObjectBytes;
use kura_replicate::Limit;
use std::sync::{Arc, OnceLock};
use tokio::time::sleep;

/// Bytes that a limit lets go at once.
const PIECE_BYTES: u64 = 16 << 10;
/// What a source that ends early has done.
const CHANGED: &str = "its content ends early";

struct Left {
    bytes: ObjectBytes,
    /// Read, and not sent yet.
    piece: Bytes,
    /// Not sent yet, in all.
    wanted: u64,
    limit: Arc<Limit>,
    failed: Arc<OnceLock<String>>,
}

/// A body of so many bytes, and where it says why they could not be read.
pub fn body(bytes: ObjectBytes, size_bytes: u64, limit: &Arc<Limit>) -> (Body, Arc<OnceLock<String>>) {
    let failed = Arc::<OnceLock<String>>::default();
    if size_bytes == 0 {
        return (empty(), failed);
    }
    let (limit, told) = (Arc::clone(limit), Arc::clone(&failed));
    let left = Left { bytes, piece: Bytes::new(), wanted: size_bytes, limit, failed };
    let pieces = stream::try_unfold(left, |mut left| async move {
        if left.wanted == 0 {
            return Ok(None);
        }
        match left.next().await {
            Ok(piece) => Ok(Some((Frame::data(piece), left))),
            Err(error) => {
                // A body has one reason to fail.
                let _ = left.failed.set(format!("{error:#}"));
                Err(error)
            }
        }
    });
    (StreamBody::new(pieces).boxed_unsync(), told)
}

impl Left {
    async fn next(&mut self) -> anyhow::Result<Bytes> {
        while self.piece.is_empty() {
            self.piece = self.bytes.next().await?.context(CHANGED)?;
        }
        let most = if self.limit.is_set() { self.wanted.min(PIECE_BYTES) } else { self.wanted };
        let len = most.min(self.piece.len() as u64);
        sleep(self.limit.book(len)).await;
        self.wanted -= len;
        Ok(self.piece.split_to(len as usize))
    }
}
