//! Time and tasks, given to the engine from outside.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

/// A future of this thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The clock and the task spawner of one controller's thread.
///
/// On a real node it is tokio's; in the lab it is virtual time in nanoseconds, so that a whole node runs in one thread
/// and the same seed gives the same order of events.
pub trait Runtime {
    /// Time since some fixed point.
    fn now(&self) -> Duration;

    /// Resolves `delay` from now.
    fn sleep(&self, delay: Duration) -> Local<'static, ()>;

    /// Runs `task` on this thread beside the caller.
    fn spawn(&self, task: Local<'static, ()>);
}
