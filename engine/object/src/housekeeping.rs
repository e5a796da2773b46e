//! The task beside the log's writer: checkpoints, and room for those who wait for it.

use crate::policy;
use crate::store::{Inner, State};
use kura_block::Result;
use std::rc::Rc;

impl State {
    /// Free segments that users may not take: the checkpoint and the cleaner need some to make room.
    pub fn floor(&self, only_removes: bool) -> usize {
        policy::floor(self.index.bytes(), u64::from(self.root.segment_bytes), only_removes)
    }
}

impl Inner {
    /// Wakes the housekeeper when there is something to do.
    pub fn look_after(&self) {
        if self.is_due() {
            self.housekeeping.notify_one();
        }
    }

    fn is_due(&self) -> bool {
        let state = self.state.borrow();
        state.closing || policy::checkpoint_is_due(state.log.bytes_since_checkpoint, state.index.bytes())
    }

    /// Waits until a round of housekeeping has tried to gain room: whether it did.
    pub async fn make_room(&self) -> bool {
        let target = self.rounds.get() + if self.in_round.get() { 2 } else { 1 };
        self.wanted.set(true);
        self.housekeeping.notify_one();
        let done = self.until(|_| self.rounds.get() >= target).await;
        done.is_ok() && self.gained.get()
    }

    pub async fn keep_house(self: Rc<Self>) {
        loop {
            let woken = self.housekeeping.notified();
            {
                let state = self.state.borrow();
                if state.failed.is_some() || state.closing {
                    break;
                }
            }
            if !self.wanted.get() && !self.is_due() {
                woken.await;
                continue;
            }
            self.in_round.set(true);
            let wanted = self.wanted.replace(false);
            let result = self.round(wanted).await;
            self.in_round.set(false);
            self.rounds.set(self.rounds.get() + 1);
            match result {
                Ok(gained) => self.gained.set(gained),
                Err(error) if error.kind() == kura_block::Kind::Full => self.gained.set(false),
                Err(error) => {
                    tracing::error!(%error, "the object store stops: its index cannot be written");
                    self.fail(error);
                }
            }
            self.progress.notify_waiters();
        }
        self.tasks.set(self.tasks.get() - 1);
        self.progress.notify_waiters();
    }

    /// One round: true when there are more free segments behind it.
    async fn round(&self, wanted: bool) -> Result<bool> {
        let before = self.state.borrow().space.free_segments();
        let waiting = self.state.borrow().space.waiting_for_checkpoint();
        if self.is_due() || (wanted && waiting > 0) {
            self.checkpoint().await?;
        }
        Ok(self.state.borrow().space.free_segments() > before)
    }
}
