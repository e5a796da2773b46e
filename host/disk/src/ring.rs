//! This thread's `io_uring`: operations that own their memory, submitted in batches.
//!
//! ```text
//!   task: start(op) ──> submission queue ──┐            one system call for all that the tasks of one round queued
//!                                          ├── turn() ──> kernel
//!   task: woken    <── completion queue  <─┘            turn() runs when something was queued and when the ring is ready
//! ```
//!
//! What must hold:
//! - The memory and the file of an operation live in `slots` from the moment it is queued until its completion is
//!   reaped, whatever becomes of the future that waits for it.
//! - No more operations are with the kernel than the completion queue has room for, so that it never overflows; what
//!   exceeds that waits in `backlog`.
//! - Whatever is queued is submitted without another call from the outside: queuing wakes the task that runs `turn`.
#![allow(unsafe_code)] // the submission queue takes raw pointers: the first rule above is what makes them valid

use crate::errno::io_error;
use crate::linger::Wait;
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode};
use kura_block::{BufMut, Bufs, Error, Result};
use rustix::io::Errno;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::File;
use std::future::Future;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Submission queue entries: the most that one system call takes.
const SUBMISSIONS: u32 = 64;
/// Completion queue entries: how many operations may be with the kernel.
const COMPLETIONS: u32 = 4096;
/// How many of these may be of one file: what hangs leaves room for all others, however long it hangs.
const OF_A_FILE: usize = 256;
/// Threads of the kernel that do for a ring what would block: a sync, say, and a write where the file system waits. By itself it has a
/// handful of them, which one device that hangs would keep from all others; they are made when they are wanted.
const WORKERS: u32 = COMPLETIONS;
/// Parts of one vectored write; the kernel takes no more.
pub(crate) const MAX_PARTS: usize = 1024;
/// How long a ring that is dropped waits for what is still in flight, before it gives the memory up as lost.
const LAST_WAIT: Duration = Duration::from_secs(10);

/// What an operation needs to keep alive until the kernel lets go of it.
#[expect(dead_code, reason = "what is written is only kept alive")]
pub(crate) enum Memory {
    None,
    Read(BufMut),
    /// The data, and what the kernel reads the places of its parts from.
    Write(Bufs, Box<[libc::iovec]>),
}

enum State {
    Waiting(Option<Waker>),
    Done(i32),
    /// Nobody waits any more: the slot is freed when the completion comes.
    Abandoned,
}

/// A file, and what is asked of it.
pub(crate) struct Asked {
    file: File,
    /// Operations that count among [`OF_A_FILE`]: with the kernel, or about to be.
    in_flight: Cell<usize>,
    /// Those beyond, in their order.
    waiting: RefCell<VecDeque<Entry>>,
}

impl From<File> for Asked {
    fn from(file: File) -> Self {
        Self { file, in_flight: Cell::new(0), waiting: RefCell::default() }
    }
}

impl Deref for Asked {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Asked {
    fn begin(&self, operations: usize) {
        self.in_flight.set(self.in_flight.get() + operations);
    }

    /// An operation has ended: the next one, which takes its place.
    fn end(&self) -> Option<Entry> {
        let next = self.waiting.borrow_mut().pop_front();
        self.in_flight.set(self.in_flight.get() - usize::from(next.is_none()));
        next
    }
}

struct Slot {
    state: State,
    memory: Memory,
    /// Kept open: until the operation is submitted its number could otherwise come to mean another file.
    file: Rc<Asked>,
}

struct Inner {
    uring: IoUring,
    slots: Slab<Slot>,
    backlog: VecDeque<Entry>,
    /// Operations in the submission queue or with the kernel.
    in_flight: usize,
    /// How often the kernel took a part of what was queued: a chain that is cut so is none any more.
    cuts: u64,
    /// How the operation that was begun last is waited for.
    wait: Wait,
    /// Wakes the task that runs [`Ring::turn`].
    turner: Option<Waker>,
    /// True when `turner` has been woken and has not had its turn yet.
    turner_woken: bool,
    /// Kept for its capacity.
    wakers: Vec<Waker>,
}

/// A thread's ring.
pub(crate) struct Ring {
    inner: RefCell<Inner>,
}

impl Ring {
    pub(crate) fn new() -> Result<Self> {
        let uring = build().map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::PERM | Errno::NOSYS) => Error::invalid(format!(
                "io_uring: {error}: kura wants it: set the sysctl kernel.io_uring_disabled to 0, and in a container allow io_uring in \
                 its seccomp profile"
            )),
            _ => io_error("io_uring", "cannot set up a ring", &error),
        })?;
        Ok(Self {
            inner: RefCell::new(Inner {
                uring,
                slots: Slab::new(),
                backlog: VecDeque::new(),
                in_flight: 0,
                cuts: 0,
                wait: Wait::Look,
                turner: None,
                turner_woken: false,
                wakers: Vec::new(),
            }),
        })
    }

    /// Reads at `offset` into `memory` from byte `at` on, to be waited for by `wait`; resolves to the bytes read and the memory.
    pub(crate) async fn read(
        &self,
        file: &Rc<Asked>,
        offset: u64,
        mut memory: BufMut,
        at: usize,
        wait: Wait,
    ) -> (rustix::io::Result<usize>, BufMut) {
        let target = &mut memory[at..];
        let len = u32::try_from(target.len()).unwrap_or(u32::MAX);
        let entry = opcode::Read::new(Fd(file.as_raw_fd()), target.as_mut_ptr(), len).offset(offset).build();
        let op = self.start(file, entry, Memory::Read(memory));
        self.inner.borrow_mut().wait = wait;
        match op.await {
            (result, Memory::Read(memory)) => (result, memory),
            _ => unreachable!("an operation ends with the memory it began with"),
        }
    }

    /// Writes the first parts of `data` at `offset`, durably with `dsync`; resolves to the bytes written, possibly fewer.
    pub(crate) async fn write(
        &self,
        file: &Rc<Asked>,
        offset: u64,
        data: Bufs,
        dsync: bool,
    ) -> rustix::io::Result<usize> {
        let (entry, parts) = write_entry(file, offset, &data, if dsync { libc::RWF_DSYNC } else { 0 });
        self.start(file, entry, Memory::Write(data, parts)).await.0
    }

    /// Writes the first parts of `data` at `offset` and makes the file's data durable, in one trip to the kernel where the ring has
    /// room for both; resolves to the bytes written and what came of the second. A write that falls short takes the second with it:
    /// it is then `CANCELED`.
    pub(crate) async fn write_and_sync(
        &self,
        file: &Rc<Asked>,
        offset: u64,
        data: Bufs,
    ) -> (rustix::io::Result<usize>, rustix::io::Result<usize>) {
        if !self.inner.borrow_mut().has_room_for_two(file) {
            let data_bytes = data.len();
            let written = self.write(file, offset, data, false).await;
            let synced = if written == Ok(data_bytes) { self.sync_data(file).await } else { Err(Errno::CANCELED) };
            return (written, synced);
        }
        let cuts = self.inner.borrow().cuts;
        let (write, sync) = self.start_pair(file, offset, data);
        let (written, synced) = (write.await.0, sync.await.0);
        // The second half of a chain that was cut does not wait for the first one.
        let is_whole = self.inner.borrow().cuts == cuts;
        (written, synced.and_then(|done| if is_whole { Ok(done) } else { Err(Errno::CANCELED) }))
    }

    /// Starts a write and a sync in a chain, for which there is room.
    fn start_pair(&self, file: &Rc<Asked>, offset: u64, data: Bufs) -> (Op<'_>, Op<'_>) {
        let (write, parts) = write_entry(file, offset, &data, 0);
        let mut inner = self.inner.borrow_mut();
        let (first, second) = (inner.slot(file, Memory::Write(data, parts)), inner.slot(file, Memory::None));
        let write = write.flags(Flags::IO_LINK).user_data(first as u64);
        file.begin(2);
        inner.queue_pair(&[write, sync_entry(file).user_data(second as u64)]);
        (Op { ring: self, key: Some(first) }, Op { ring: self, key: Some(second) })
    }

    /// Makes the file's data durable, and as much of its metadata as reading it back needs.
    pub(crate) async fn sync_data(&self, file: &Rc<Asked>) -> rustix::io::Result<usize> {
        self.start(file, sync_entry(file), Memory::None).await.0
    }

    /// `fallocate(2)` with `mode`.
    pub(crate) async fn fallocate(
        &self,
        file: &Rc<Asked>,
        mode: i32,
        offset: u64,
        len: u64,
    ) -> rustix::io::Result<usize> {
        let entry = opcode::Fallocate::new(Fd(file.as_raw_fd()), len).offset(offset).mode(mode).build();
        self.start(file, entry, Memory::None).await.0
    }

    fn start(&self, file: &Rc<Asked>, entry: Entry, memory: Memory) -> Op<'_> {
        let mut inner = self.inner.borrow_mut();
        let key = inner.slot(file, memory);
        inner.queue(file, entry.user_data(key as u64));
        Op { ring: self, key: Some(key) }
    }

    /// Submits what is queued, and wakes the tasks whose operations are complete; true when there are any.
    pub(crate) fn turn(&self) -> bool {
        let mut wakers = {
            let mut inner = self.inner.borrow_mut();
            inner.turner_woken = false;
            inner.submit();
            inner.reap();
            if inner.queue_backlog() {
                inner.submit();
            }
            std::mem::take(&mut inner.wakers)
        };
        let found = !wakers.is_empty();
        // Not while `inner` is borrowed: a waker may run code that drops another operation.
        for waker in wakers.drain(..) {
            waker.wake();
        }
        self.inner.borrow_mut().wakers = wakers;
        found
    }

    /// How the thread waits when it has nothing to do.
    pub(crate) fn wait(&self) -> Wait {
        let inner = self.inner.borrow();
        if inner.in_flight > 0 { inner.wait } else { Wait::Look }
    }

    fn set_turner(&self, waker: &Waker) {
        let turner = &mut self.inner.borrow_mut().turner;
        if !turner.as_ref().is_some_and(|turner| turner.will_wake(waker)) {
            *turner = Some(waker.clone());
        }
    }
}

/// A ring of which one thread makes all calls, and whose completions wait for that thread to enter the kernel instead of
/// interrupting it (Linux 6.0); else a plain one. `DEFER_TASKRUN` would put completions off further, but costs a system
/// call a batch to fetch them and is noticed through an eventfd only: measured, it brought nothing.
fn build() -> std::io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_cqsize(COMPLETIONS)
        .setup_submit_all()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .build(SUBMISSIONS);
    let uring = match best {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            IoUring::builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS)
        }
        built => built,
    }?;
    match uring.submitter().register_iowq_max_workers(&mut [WORKERS, 0]) {
        // Before Linux 5.15 a ring keeps those it has.
        Err(error) if error.raw_os_error() != Some(libc::EINVAL) => Err(error),
        _ => Ok(uring),
    }
}

/// A write of the first parts of `data`; the places of the parts must live as long as the operation.
fn write_entry(file: &File, offset: u64, data: &Bufs, flags: i32) -> (Entry, Box<[libc::iovec]>) {
    let fd = Fd(file.as_raw_fd());
    match data.parts() {
        [only] => {
            let len = u32::try_from(only.len()).unwrap_or(u32::MAX);
            (opcode::Write::new(fd, only.as_ptr(), len).offset(offset).rw_flags(flags).build(), Box::default())
        }
        many => {
            let parts: Box<[libc::iovec]> = many
                .iter()
                .take(MAX_PARTS)
                .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
                .collect();
            let entry = opcode::Writev::new(fd, parts.as_ptr(), parts.len() as u32).offset(offset).rw_flags(flags);
            (entry.build(), parts)
        }
    }
}

fn sync_entry(file: &File) -> Entry {
    opcode::Fsync::new(Fd(file.as_raw_fd())).flags(FsyncFlags::DATASYNC).build()
}

impl Inner {
    /// A slot for an operation that is about to be queued; its number is the operation's. Only a read says how it is waited for; the
    /// kernel's threads may have a part in all others.
    fn slot(&mut self, file: &Rc<Asked>, memory: Memory) -> usize {
        self.wait = Wait::Offer;
        self.slots.insert(Slot { state: State::Waiting(None), memory, file: Rc::clone(file) })
    }

    /// True when two operations can be queued side by side: a chain must not be taken apart.
    fn has_room_for_two(&mut self, file: &Asked) -> bool {
        let is_full = self.in_flight + 2 > COMPLETIONS as usize || file.in_flight.get() + 2 > OF_A_FILE;
        if !self.backlog.is_empty() || is_full {
            return false;
        }
        let free = |inner: &mut Self| {
            let submission = inner.uring.submission();
            submission.capacity() - submission.len()
        };
        if free(self) < 2 {
            self.submit();
        }
        free(self) >= 2
    }

    /// Queues a chain of two, for which [`Inner::has_room_for_two`] found room.
    fn queue_pair(&mut self, pair: &[Entry; 2]) {
        // SAFETY: the memory and the file that the entries point to are in `slots` until their completions are reaped.
        let pushed = unsafe { self.uring.submission().push_multiple(pair) };
        assert!(pushed.is_ok(), "there was room for two");
        self.in_flight += 2;
        self.submit_or_wait();
    }

    /// Submits what is queued once it is more than the kernel works on: an idle device begins at once, and a busy one is
    /// given much at a time. The rest goes at the next turn.
    fn submit_or_wait(&mut self) {
        let queued = self.uring.submission().len();
        if queued > self.in_flight - queued {
            self.submit();
        } else {
            self.wake_turner();
        }
    }

    /// Queues an operation, and submits it now or at the next turn; where its file has as many as it may have, after one of these.
    fn queue(&mut self, file: &Asked, entry: Entry) {
        if file.in_flight.get() >= OF_A_FILE {
            file.waiting.borrow_mut().push_back(entry);
            return;
        }
        file.begin(1);
        if !self.backlog.is_empty() || !self.push(&entry) {
            self.backlog.push_back(entry);
        }
        self.submit_or_wait();
    }

    fn wake_turner(&mut self) {
        if let Some(turner) = self.turner.as_ref().filter(|_| !self.turner_woken) {
            self.turner_woken = true;
            turner.wake_by_ref();
        }
    }

    /// Puts an operation into the submission queue; false when there is no room now.
    fn push(&mut self, entry: &Entry) -> bool {
        if self.in_flight >= COMPLETIONS as usize {
            return false;
        }
        if self.uring.submission().is_full() {
            self.submit();
        }
        // SAFETY: the memory and the file that `entry` points to are in `slots` until its completion is reaped.
        let pushed = unsafe { self.uring.submission().push(entry) }.is_ok();
        self.in_flight += usize::from(pushed);
        pushed
    }

    /// Moves what waited into the submission queue as far as there is room; true when something moved.
    fn queue_backlog(&mut self) -> bool {
        let mut moved = false;
        while let Some(entry) = self.backlog.pop_front() {
            if !self.push(&entry) {
                self.backlog.push_front(entry);
                break;
            }
            moved = true;
        }
        moved
    }

    fn submit(&mut self) {
        let queued = self.uring.submission().len();
        if queued == 0 {
            return;
        }
        match self.uring.submit().map_err(|error| Errno::from_io_error(&error)) {
            Ok(taken) if taken < queued => {
                self.cuts += 1;
                self.wake_turner();
            }
            Ok(_) => {}
            // A signal, or the kernel is short of memory: what was not taken is still queued, and tried again.
            Err(Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM)) => self.wake_turner(),
            Err(errno) => panic!("io_uring refuses to take requests: {errno:?}"),
        }
    }

    /// Takes the completions, and gathers who is to be woken in `wakers`.
    fn reap(&mut self) {
        let Self { uring, slots, backlog, in_flight, wakers, .. } = self;
        for completion in uring.completion() {
            *in_flight -= 1;
            let key = completion.user_data() as usize;
            backlog.extend(slots[key].file.end());
            match std::mem::replace(&mut slots[key].state, State::Done(completion.result())) {
                State::Waiting(waker) => wakers.extend(waker),
                State::Abandoned => drop(slots.remove(key)),
                State::Done(_) => panic!("io_uring completed operation {key} twice"),
            }
        }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.borrow().uring.as_raw_fd()
    }
}

impl Drop for Ring {
    /// Waits for what the kernel still works on, since it may write into memory that is ours.
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        inner.turner = None;
        let until = Instant::now() + LAST_WAIT;
        while inner.in_flight > 0 && Instant::now() < until {
            let timeout = io_uring::types::Timespec::new().nsec(50_000_000);
            let args = io_uring::types::SubmitArgs::new().timespec(&timeout);
            // Whatever it says, the completions and the clock decide.
            let _ = inner.uring.submitter().submit_with_args(1, &args);
            inner.reap();
            inner.wakers.clear();
        }
        if inner.in_flight > 0 {
            tracing::error!(operations = inner.in_flight, "devices do not answer: their memory is given up as lost");
            std::mem::forget(std::mem::take(&mut inner.slots));
        }
    }
}

/// An operation in flight. Dropping it leaves the operation to itself: it may still take effect.
struct Op<'r> {
    ring: &'r Ring,
    key: Option<usize>,
}

impl Future for Op<'_> {
    type Output = (rustix::io::Result<usize>, Memory);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(key) = self.key else { panic!("an operation was polled after it resolved") };
        let mut inner = self.ring.inner.borrow_mut();
        match &mut inner.slots[key].state {
            State::Waiting(Some(waker)) => waker.clone_from(cx.waker()),
            State::Waiting(waker) => *waker = Some(cx.waker().clone()),
            State::Done(result) => {
                let result = usize::try_from(*result).map_err(|_| Errno::from_raw_os_error(-*result));
                let memory = inner.slots.remove(key).memory;
                drop(inner);
                self.key = None;
                return Poll::Ready((result, memory));
            }
            State::Abandoned => unreachable!("only dropping abandons an operation"),
        }
        Poll::Pending
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut inner = self.ring.inner.borrow_mut();
        let slot = &mut inner.slots[key];
        if matches!(slot.state, State::Done(_)) {
            drop(inner.slots.remove(key));
        } else {
            slot.state = State::Abandoned;
        }
    }
}

/// Turns `ring` whenever something is queued or complete. Runs as a task for as long as the ring is used.
pub(crate) async fn turn_forever(ring: Rc<Ring>) -> std::io::Result<()> {
    use tokio::io::unix::AsyncFd;
    struct Readiness(Rc<Ring>);
    impl AsRawFd for Readiness {
        fn as_raw_fd(&self) -> RawFd {
            self.0.as_raw_fd()
        }
    }
    let readiness = Readiness(Rc::clone(&ring));
    // SAFETY: the ring's descriptor stays open and the same for as long as the `Rc` in `readiness` lives.
    let readiness = unsafe { AsyncFd::register_with_interest(readiness, tokio::io::Interest::READABLE)? };
    std::future::poll_fn(|cx| {
        ring.set_turner(cx.waker());
        loop {
            // Readiness comes in edges: it is cleared before the completions are taken, so that none is missed.
            match readiness.poll_read_ready(cx) {
                Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    ring.turn();
                    return Poll::Pending;
                }
            }
        }
    })
    .await
}

#[cfg(test)]
mod tests;
