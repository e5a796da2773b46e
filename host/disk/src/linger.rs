//! A thread that waits for something that comes soon looks for it instead of sleeping: to sleep and to be woken takes tens of
//! microseconds, in a virtual machine most of all, as long as a fast device takes for its work.
//!
//! ```text
//!   nothing to do ── was the last wait short? is a core free? ──yes──> look ──┬─ found ──> (work)
//!        │                                                                    └─ for LINGER in vain ──> sleep
//!        └───────────────────────────────────────────no────> sleep
//! ```
//! What a driver reads on a core of this machine, as a loop device's does, is slept for: it comes sooner from the core that has
//! just gone to sleep than from another that has to be woken. A flush, and a write of a loop device, is the work of a thread of the
//! kernel that may have been queued on this very core: the core is offered to it before each look.
//!
//! What must hold: a thread that waits longer than [`LINGER`] sleeps, and looks again only after a wait that was shorter; half of the
//! cores look at most, and none that the system gives to others meanwhile.
#![allow(unsafe_code)] // `getrusage`: no library that is here has it

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// How long a thread looks in vain: a request of a fast device, or of a client at the other end of a socket, takes less.
const LINGER: Duration = Duration::from_micros(200);
/// A look that takes longer has found something at a socket, or has been interrupted: to tell which would cost more than it brings.
const LOOK: Duration = Duration::from_micros(4);
/// How long a thread goes on without having slept: one that is interrupted all the time must not look for ever.
const MOST: Duration = Duration::from_millis(10);
/// A look that takes so long, and in which the thread was made to wait for its core, shows that others need it.
const TAKEN: Duration = Duration::from_micros(300);
/// How long the thread does not look then.
const REST: Duration = Duration::from_millis(20);

/// How something is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Look,
    /// Looks, and offers the core to others before each look.
    Offer,
    Sleep,
}

/// The cores of this machine.
static CORES: LazyLock<Cores> = LazyLock::new(|| Cores {
    looking: AtomicUsize::new(0),
    most: std::thread::available_parallelism().map_or(1, usize::from) / 2,
});

/// On how many cores a thread looks just now, and on how many one may.
struct Cores {
    looking: AtomicUsize,
    most: usize,
}

impl Cores {
    fn take_one(&self) -> bool {
        self.looking.fetch_update(Relaxed, Relaxed, |looking| (looking < self.most).then_some(looking + 1)).is_ok()
    }
}

/// What a thread knows of its waits.
pub(crate) struct Linger {
    /// Since when there is nothing to do.
    idle_since: Cell<Instant>,
    /// How long the last wait took.
    last: Cell<Duration>,
    /// When it slept last.
    slept: Cell<Instant>,
    /// How it looks just now; `Sleep` when it does not.
    looks: Cell<Wait>,
    /// It has looked in vain, and sleeps now.
    has_looked: Cell<bool>,
    rests_until: Cell<Instant>,
    looker: RefCell<Option<Waker>>,
    cores: &'static Cores,
}

impl Linger {
    pub fn new(now: Instant) -> Self {
        Self::on(&CORES, now)
    }

    fn on(cores: &'static Cores, now: Instant) -> Self {
        Self {
            idle_since: Cell::new(now),
            last: Cell::new(Duration::MAX),
            slept: Cell::new(now),
            looks: Cell::new(Wait::Sleep),
            has_looked: Cell::new(false),
            rests_until: Cell::new(now),
            looker: RefCell::default(),
            cores,
        }
    }

    /// The thread is about to sleep, or would look for what is looked for. It does not sleep where this wakes the task that looks.
    pub fn before_sleep(&self, now: Instant, wait: Wait) {
        if self.has_looked.take() {
            return;
        }
        self.idle_since.set(now);
        let is_allowed = self.last.get() <= LINGER && now >= self.rests_until.get() && now - self.slept.get() < MOST;
        if wait != Wait::Sleep && is_allowed && self.cores.take_one() {
            self.looks.set(wait);
            if let Some(looker) = &*self.looker.borrow() {
                looker.wake_by_ref();
            }
        }
    }

    /// The thread has slept, or was about to and has not.
    pub fn after_sleep(&self, now: Instant) {
        if !self.is_looking() {
            self.last.set(now - self.idle_since.get());
            self.slept.set(now);
        }
    }

    /// Looks whenever it is to, by letting everything else be looked at, and calling `look`, which is true of what it finds. Runs
    /// as a task.
    pub async fn look_forever(self: Rc<Self>, look: impl Fn() -> bool) {
        loop {
            poll_fn(|cx| {
                if self.is_looking() {
                    return Poll::Ready(());
                }
                *self.looker.borrow_mut() = Some(cx.waker().clone());
                Poll::Pending
            })
            .await;
            self.has_looked.set(!self.finds(&look).await);
            self.stop_looking();
        }
    }

    /// Looks until there is something to do; false when there is nothing for long.
    async fn finds(&self, look: impl Fn() -> bool) -> bool {
        let (began, taken) = (self.idle_since.get(), times_taken());
        let mut before = began;
        while before - began < LINGER {
            if self.looks.get() == Wait::Offer {
                std::thread::yield_now();
            }
            tokio::task::yield_now().await;
            let found = look();
            let now = Instant::now();
            if now - before > TAKEN && times_taken() != taken {
                self.rests_until.set(now + REST);
                return false;
            }
            if found || now - before > LOOK {
                return true;
            }
            before = now;
        }
        false
    }

    fn is_looking(&self) -> bool {
        self.looks.get() != Wait::Sleep
    }

    fn stop_looking(&self) {
        if self.looks.replace(Wait::Sleep) != Wait::Sleep {
            self.cores.looking.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        self.stop_looking();
    }
}

/// How often this thread had something to do when its core was taken from it.
fn times_taken() -> i64 {
    // SAFETY: a `rusage` is numbers, all of which may be zero.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: it writes to the place it is given, which is this one.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nivcsw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_after_a_short_wait_is_the_next_one_looked_through() {
        let two: &Cores = Box::leak(Box::new(Cores { looking: AtomicUsize::new(0), most: 1 }));
        let mut now = Instant::now();
        let (linger, other) = (Linger::on(two, now), Linger::on(two, now));
        // Whether a thread looks in a wait that takes so long; it does not any more then.
        let mut wait = |linger: &Linger, micros| {
            linger.before_sleep(now, Wait::Look);
            let looks = linger.is_looking();
            linger.stop_looking();
            now += Duration::from_micros(micros);
            linger.after_sleep(now);
            looks
        };
        let looks = [5000, 100, 5000, 100, 100, 100].map(|micros| wait(&linger, micros));
        assert_eq!(looks, [false, false, true, false, true, true]);
        wait(&other, 100);
        linger.before_sleep(now, Wait::Look);
        other.before_sleep(now, Wait::Look);
        assert!(linger.is_looking() && !other.is_looking(), "one core of two is for others");
        linger.stop_looking();
        other.before_sleep(now, Wait::Look);
        assert!(other.is_looking());
        other.stop_looking();
        linger.rests_until.set(now + REST);
        linger.before_sleep(now, Wait::Look);
        assert!(!linger.is_looking(), "others need its core");
        let looks_at = |now, wait| {
            other.before_sleep(now, wait);
            let looks = other.looks.get();
            other.stop_looking();
            looks
        };
        let all = [Wait::Look, Wait::Offer, Wait::Sleep];
        assert_eq!(all.map(|wait| looks_at(now, wait)), all, "each as it is to be");
        assert_eq!(looks_at(now + MOST, Wait::Look), Wait::Sleep, "it has not slept for long");
    }

    #[test]
    fn a_thread_that_waits_long_sleeps() {
        use rustix::time::{ClockId, clock_gettime};
        let worked = || clock_gettime(ClockId::ThreadCPUTime);
        let (before, after) = crate::run(async |_| {
            let before = worked();
            for _ in 0..5 {
                // A short wait, after which it looks, and a long one.
                tokio::time::sleep(Duration::from_micros(1)).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            (before, worked())
        })
        .expect("a runtime");
        let millis = |time: rustix::time::Timespec| time.tv_sec * 1000 + time.tv_nsec / 1_000_000;
        assert!(millis(after) - millis(before) < 250, "half of the time was not slept");
    }
}
