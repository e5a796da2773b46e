//! Turns with uploads in parts: what completes or aborts one is alone with its parts.
//!
//! What must hold: from the look at an upload's parts until they are joined or removed, none is stored or replaced. Else an
//! object would have another part's bytes than its `ETag` says, or a part would stay behind that no upload has.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

type Turn = Arc<RwLock<()>>;

/// The uploads that somebody has a turn with, or waits for one: no more than there are requests.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<BTreeMap<Vec<u8>, Weak<RwLock<()>>>>);

impl Turns {
    /// To store parts, beside others who do.
    pub async fn with_others(&self, upload: &[u8]) -> OwnedRwLockReadGuard<()> {
        self.of(upload).read_owned().await
    }

    /// To complete or abort.
    pub async fn alone(&self, upload: &[u8]) -> OwnedRwLockWriteGuard<()> {
        self.of(upload).write_owned().await
    }

    fn of(&self, upload: &[u8]) -> Turn {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = all.get(upload).and_then(Weak::upgrade) {
            return turn;
        }
        all.retain(|_, turn| turn.strong_count() > 0);
        let turn = Turn::default();
        all.insert(upload.to_vec(), Arc::downgrade(&turn));
        turn
    }
}
