//! Memory for the data of requests, which connections share.
//!
//! A write's data is taken in before the volume has room for it, and a client chooses how much of it to send and when; a
//! read's data stays until the client has taken it. So all connections together draw from one budget. What fits a
//! connection's own small share costs nothing and waits for nobody: ordinary requests never come here.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Data of requests in flight that a connection has room for by itself, in bytes.
pub const OWN_BYTES: usize = 256 << 10;

/// A budget in bytes, for all connections of a server.
pub struct Budget {
    free: Arc<Semaphore>,
    /// Requests that wait for a part of it.
    waiting: AtomicUsize,
}

/// A part of the budget, given back when dropped.
pub struct Grant(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

/// A part of the budget that is waited for, in the order of asking.
pub struct Wanted {
    budget: Arc<Budget>,
    granted: Pin<Box<dyn Future<Output = Option<Grant>> + Send>>,
}

impl Budget {
    /// A budget of `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(bytes)), waiting: AtomicUsize::new(0) })
    }

    /// Asks for `bytes` of it; more than there are in all would be waited for in vain.
    pub fn want(self: &Arc<Self>, bytes: u32) -> Wanted {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let granted = Arc::clone(&self.free).acquire_many_owned(bytes);
        Wanted { budget: Arc::clone(self), granted: Box::pin(async move { granted.await.ok().map(Grant) }) }
    }

    /// True while somebody waits.
    pub fn is_short(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Wanted {
    /// Ready once it is granted.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Grant>> {
        self.granted.as_mut().poll(cx)
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.budget.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
