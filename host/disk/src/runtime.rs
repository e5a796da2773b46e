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
        .on_thread_park(|| {
            turn_ring();
            with_linger(|linger| linger.before_sleep(std::time::Instant::now()));
        })
        .on_thread_unpark(|| {
            with_linger(|linger| linger.after_sleep(std::time::Instant::now()));
            turn_ring();
        })
        .build_local(LocalOptions::default())
        .map_err(failed)?;
    let ring = Rc::new(Ring::new()?);
    RING.set(Rc::downgrade(&ring));
    let linger = Rc::new(Linger::new(std::time::Instant::now()));
    LINGER.set(Rc::downgrade(&linger));
    let output = runtime.block_on(async {
        let turner = tokio::task::spawn_local(turn_forever(Rc::clone(&ring)));
        tokio::task::spawn_local(linger.look_forever(turn_ring));
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

/// Takes completions just before the thread would sleep and as soon as it wakes. Waking tasks from here is sound: the
/// scheduler looks for work again after it has called this, and does not sleep when there is some.
///
/// A completion wakes the thread by interrupting its sleep, so that mostly this finds it and the ring's readiness need
/// not be asked for: one system call less an I/O.
fn turn_ring() {
    if let Ok(ring) = this_ring() {
        ring.turn();
    }
}

fn with_linger(what: impl Fn(&Linger)) {
    if let Some(linger) = LINGER.with_borrow(Weak::upgrade) {
        what(&linger);
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
