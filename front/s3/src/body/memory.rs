//! Memory for bodies on their way in, which all requests share.
//!
//! A body takes some of it before each piece, and gives it back when that is on the device. Nobody waits for what others have:
//! where it is all in use, a body goes on in small pieces, one at a time, for which each has memory of its own.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What the bodies of a store share, in bytes.
const SHARED_BYTES: usize = 256 << 20;
/// What a body has by itself.
const OWN_BYTES: usize = 256 << 10;

/// What bodies share. Clones are the same memory.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Semaphore>);

/// The memory of one body.
pub(crate) struct Allowance {
    shared: Memory,
    /// Free while nothing of the body lies in what it has by itself.
    own: Arc<Semaphore>,
}

/// Memory for a piece, given back when dropped.
pub(crate) struct Share {
    pub bytes: usize,
    /// It is the body's own: the next one is had when this is given back.
    pub is_own: bool,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::of(SHARED_BYTES)
    }
}

impl Memory {
    fn of(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes)))
    }

    /// For a body that begins.
    pub fn begin(&self) -> Allowance {
        Allowance { shared: self.clone(), own: Arc::new(Semaphore::new(1)) }
    }
}

impl Allowance {
    /// Memory for up to `wanted` bytes: for fewer, as soon as the last one of these is given back, where all that is shared is in
    /// use.
    pub async fn take(&self, wanted: usize) -> Share {
        if let Ok(permit) = Arc::clone(&self.shared.0).try_acquire_many_owned(wanted as u32) {
            return Share { bytes: wanted, is_own: false, _permit: Some(permit) };
        }
        // None only of what is closed, which this never is.
        let permit = Arc::clone(&self.own).acquire_owned().await.ok();
        Share { bytes: wanted.min(OWN_BYTES), is_own: true, _permit: permit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const MIB: usize = 1 << 20;

    #[test]
    fn who_finds_all_in_use_goes_on_with_its_own() {
        let memory = Memory::of(2 * MIB);
        let (one, other) = (memory.begin(), memory.begin());
        let take = |body: &Allowance, wanted| body.take(wanted).now_or_never();
        let shared: Vec<Share> = (0..2).filter_map(|_| take(&one, MIB)).collect();
        assert!(shared.len() == 2 && shared.iter().all(|share| share.bytes == MIB && !share.is_own));
        let own = take(&one, MIB).expect("its own");
        assert!(own.is_own && own.bytes == OWN_BYTES);
        assert!(take(&one, MIB).is_none(), "one at a time");
        assert!(take(&other, 100).is_some_and(|share| share.is_own && share.bytes == 100), "the other has its own");
        drop(own);
        assert!(take(&one, MIB).is_some_and(|share| share.is_own));
        drop(shared);
        assert!(take(&one, MIB).is_some_and(|share| !share.is_own));
    }
}
