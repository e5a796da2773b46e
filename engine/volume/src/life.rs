//! How far a store's life has come. It only goes forward, and whoever waits is woken at its end.

use crate::store::Inner;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Life {
    /// The log is read again, and what is torn is made whole.
    Recovering,
    Serving,
    /// Nobody gets anything done any more but the last checkpoints, for which the destager and the checkpointer go on.
    Stopping,
    /// Nothing comes into the write buffer any more: those two end, too.
    Stopped,
}

impl Inner {
    /// Its life goes on to here, if it was not there before.
    pub fn live_on_to(&self, life: Life) {
        self.life.set(self.life.get().max(life));
    }

    pub fn is_stopping(&self) -> bool {
        self.life.get() >= Life::Stopping
    }

    pub fn has_stopped(&self) -> bool {
        self.life.get() >= Life::Stopped
    }

    /// True while a task has anything to do: until the store stops or its journal fails.
    pub fn goes_on(&self) -> bool {
        !self.is_stopping() && self.journal().alive().is_ok()
    }

    /// Wakes every task, and who waits for room.
    pub fn wake_all(&self) {
        self.stir_all();
        self.destager.notify_one();
        self.checkpointer.notify_one();
        self.room.notify_waiters();
    }

    /// Wakes the tasks that look after what volumes have: some have come.
    pub fn stir_all(&self) {
        self.tidy.tidier.notify_one();
        self.tier.wake.notify_one();
        self.hot.migrator.notify_one();
        self.hot.loan.news.notify_one();
        self.rebuilder.notify_one();
    }
}
