//! An object's content on its way: read once, from the beginning to the end, and sent in one body or several.

use super::store::Body;
use anyhow::Context;
use bytes::Bytes;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use kura_admin::ObjectBytes;
use kura_replicate::Limit;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::time::sleep;

/// What a source that ends early has done.
const CHANGED: &str = "its content ends early";

/// The content, of which bodies take in turn.
#[derive(Clone)]
pub struct Content(Arc<Mutex<Left>>);

struct Left {
    bytes: ObjectBytes,
    /// Read, and not sent yet.
    piece: Bytes,
    limit: Arc<Limit>,
    /// Why it could not be read.
    failed: Option<String>,
}

impl Content {
    /// All of it.
    pub fn new(bytes: ObjectBytes, limit: Arc<Limit>) -> Self {
        Self(Arc::new(Mutex::new(Left { bytes, piece: Bytes::new(), limit, failed: None })))
    }

    /// A body of the next bytes.
    pub fn body(&self, size_bytes: u64) -> Body {
        let pieces = stream::try_unfold((Arc::clone(&self.0), size_bytes), |(left, wanted)| async move {
            if wanted == 0 {
                return Ok(None);
            }
            let mut taken = left.lock().await;
            match taken.next(wanted).await {
                Ok(piece) => {
                    drop(taken);
                    let wanted = wanted - piece.len() as u64;
                    Ok(Some((Frame::data(piece), (left, wanted))))
                }
                Err(error) => {
                    taken.failed = Some(format!("{error:#}"));
                    Err(error)
                }
            }
        });
        StreamBody::new(pieces).boxed_unsync()
    }

    /// Why no more could be read.
    pub async fn failed(&self) -> Option<String> {
        self.0.lock().await.failed.take()
    }
}

impl Left {
    async fn next(&mut self, wanted: u64) -> anyhow::Result<Bytes> {
        while self.piece.is_empty() {
            self.piece = self.bytes.next().await?.context(CHANGED)?;
        }
        let len = (self.piece.len() as u64).min(wanted);
        sleep(self.limit.book(len)).await;
        Ok(self.piece.split_to(len as usize))
    }
}
