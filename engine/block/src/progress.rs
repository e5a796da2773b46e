//! How far long work is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// How far long work is, in a unit that whoever began it knows, and whether it is still wanted.
///
/// Those who do the work tell, and look now and then whether to go on; those who wait read. Clones are the same work's, on
/// any thread.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// There is so much more to do than was known.
    pub fn expect(&self, more: u64) {
        self.0.total.fetch_add(more, Relaxed);
    }

    /// So much more is done.
    pub fn advance(&self, by: u64) {
        self.0.done.fetch_add(by, Relaxed);
    }

    /// So much is left, of work that one alone tells of and that may also become more.
    pub fn remains(&self, left: u64) {
        let total = self.0.total.fetch_max(left, Relaxed).max(left);
        self.0.done.store(total - left, Relaxed);
    }

    /// How much is done, and how much there is to do as far as is known: never less.
    pub fn counts(&self) -> (u64, u64) {
        let total = self.0.total.load(Relaxed);
        (self.0.done.load(Relaxed).min(total), total)
    }

    /// Nobody wants the work any more: it ends where it next looks.
    pub fn cancel(&self) {
        self.0.cancelled.store(true, Relaxed);
    }

    /// True when nobody wants the work any more.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_never_more_than_there_was_to_do() {
        let progress = Progress::default();
        assert_eq!(progress.counts(), (0, 0));
        progress.expect(10);
        progress.clone().advance(4);
        assert_eq!(progress.counts(), (4, 10));
        progress.advance(40);
        assert_eq!(progress.counts(), (10, 10));

        let progress = Progress::default();
        for (left, counts) in [(6, (0, 6)), (2, (4, 6)), (9, (0, 9)), (0, (9, 9))] {
            progress.remains(left);
            assert_eq!(progress.counts(), counts, "{left} left");
        }
    }
}
