//! A controller's thread: its runtime, its clock and its ring.

use crate::errno::io_error;
use crate::linger::Linger;
use crate::ring::{Ring, turn_forever};
use kura_block::{Error, Local, Result, Runtime};
use std::cell::RefCell;
use std::future::Future;
use std::rc::{Rc, Weak};
use std::time::Duration;
use tokio::runtime::{Builder, LocalOptions};
use tokio::time::Instant;

thread_local! {
    static RING: RefCell<Weak<Ring>> = const { RefCell::new(Weak::new()) };
    static LINGER: RefCell<Weak<Linger>> = const { RefCell::new(Weak::new()) };
}

/// Runs what `main` returns on this thread, with sockets, timers, local tasks (`tokio::task::spawn_local`) and disks,
/// until it resolves. Tasks still running then are dropped; requests still with a device are waited for.
///
/// `main` may be called once a thread at a time: within it, this is `Invalid`.
pub fn run<M, F>(main: M) -> Result<F::Output>
where
    M: FnOnce(Rc<HostRuntime>) -> F,
    F: Future,
{
    if this_ring().is_ok() {
        return Err(Error::invalid("this thread has a runtime already: run controllers on threads of their own"));
    }
    let failed = |error| io_error("runtime", "cannot start", &error);
    let runtime = Builder::new_current_thread()
        .enable_all()
        .on_thread_park(before_sleep)
        .on_thread_unpark(after_sleep)
        .build_local(LocalOptions::default())
        .map_err(failed)?;
    let ring = Rc::new(Ring::new()?);
    RING.set(Rc::downgrade(&ring));
    let linger = Rc::new(Linger::new(std::time::Instant::now()));
    LINGER.set(Rc::downgrade(&linger));
    let output = runtime.block_on(async {
        let turner = tokio::task::spawn_local(turn_forever(Rc::clone(&ring)));
        tokio::task::spawn_local(linger.look_forever(|| this_ring().is_ok_and(|ring| ring.turn())));
        let host = Rc::new(HostRuntime { start: Instant::now() });
        tokio::select! {
            biased;
            stopped = turner => {
                panic!("the ring's readiness cannot be waited for: {stopped:?}");
            }
            output = main(host) => output,
        }
    });
    drop(runtime);
    RING.take();
    Ok(output)
}

/// Takes completions just before the thread would sleep. Waking tasks from here is sound: the scheduler looks for work
/// again after it has called this, and does not sleep when there is some.
fn before_sleep() {
    if let (Ok(ring), Some(linger)) = (this_ring(), LINGER.with_borrow(Weak::upgrade)) {
        ring.turn();
        linger.before_sleep(std::time::Instant::now(), ring.wait());
    }
}

/// Takes completions as soon as the thread wakes: one wakes it by interrupting its sleep, so that mostly this finds it and the
/// ring's readiness need not be asked for: one system call less an I/O.
fn after_sleep() {
    if let (Ok(ring), Some(linger)) = (this_ring(), LINGER.with_borrow(Weak::upgrade)) {
        linger.after_sleep(std::time::Instant::now());
        ring.turn();
    }
}

/// The ring of this thread.
pub(crate) fn this_ring() -> Result<Rc<Ring>> {
    RING.with_borrow(Weak::upgrade)
        .ok_or_else(|| Error::invalid("disks are opened on a controller's thread: call this inside kura_disk::run"))
}

/// The clock and the tasks of a thread that [`run`] runs. Timers fire at most 1 ms late or so: the runtime counts in
/// milliseconds.
pub struct HostRuntime {
    start: Instant,
}

impl Runtime for HostRuntime {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn sleep(&self, delay: Duration) -> Local<'static, ()> {
        Box::pin(tokio::time::sleep(delay))
    }

    fn spawn(&self, task: Local<'static, ()>) {
        tokio::task::spawn_local(task);
    }
}
