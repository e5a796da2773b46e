use super::*;
use crate::runtime::this_ring;
use crate::testing::{directories, in_time, new_file, on_disks, pattern, thread_in_time, together};
use crate::{Disk, Options, run};
use kura_block::{Block, Runtime};

/// Polls `future` once.
async fn once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    let mut future = Some(future);
    std::future::poll_fn(|cx| Poll::Ready(future.take().unwrap().poll(cx))).await
}

/// Many rounds of one request each, so that each depends on being woken: a wake-up lost once hangs the thread.
#[test]
fn every_completion_wakes_its_task() {
    for directory in directories() {
        thread_in_time(move || {
            let path = new_file(&directory, 1 << 20);
            run(async |host| {
                let disk = Rc::new(Disk::open(&path, Options::default()).unwrap());
                for round in 0..2000 {
                    // By the future that the runtime blocks on, and by a task.
                    disk.read(round % 256 * 4096, 4096).await.unwrap();
                    let (sender, receiver) = tokio::sync::oneshot::channel();
                    let disk = Rc::clone(&disk);
                    host.spawn(Box::pin(async move {
                        disk.write(round % 256 * 4096, pattern(round, 4096), false).await.unwrap();
                        sender.send(()).unwrap();
                    }));
                    receiver.await.unwrap();
                }
            })
            .unwrap();
        });
    }
}

/// The scheduler's hooks are not called while there is always something to do: requests are served all the same.
#[test]
fn a_thread_that_never_sleeps_serves_its_disks() {
    on_disks(1 << 20, |disk| async move {
        let busy = tokio::task::spawn_local(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        for round in 0..200 {
            in_time(disk.write(round % 256 * 4096, pattern(round, 4096), round % 50 == 0)).await.unwrap();
            assert_eq!(in_time(disk.read(round % 256 * 4096, 4096)).await.unwrap().len(), 4096);
        }
        busy.abort();
    });
}

#[test]
fn more_requests_than_both_queues_hold_are_all_served() {
    const COUNT: u64 = 10_000;
    for directory in directories() {
        let path = new_file(&directory, COUNT * 512);
        run(async |host| {
            let disk = Rc::new(Disk::open(&path, Options::default()).unwrap());
            let ring = this_ring().unwrap();
            let check = |write: bool| {
                let disk = Rc::clone(&disk);
                move |at: u64| {
                    let disk = Rc::clone(&disk);
                    let task = async move {
                        if write {
                            // Those that find no room for a chain are flushed, too.
                            disk.write(at * 512, pattern(at, 512), at.is_multiple_of(500)).await.unwrap();
                        } else {
                            let read = disk.read(at * 512, 512).await.unwrap();
                            assert!(*read.contiguous() == *pattern(at, 512).contiguous(), "sector {at}");
                        }
                    };
                    Box::pin(task) as kura_block::Local<'static, ()>
                }
            };
            // None of the tasks has run when `together` has spawned them all; then all ask before one is answered.
            together(&*host, (0..COUNT).map(check(true))).await;
            together(&*host, (0..COUNT).map(check(false))).await;
            let inner = ring.inner.borrow();
            assert!(inner.slots.is_empty() && inner.in_flight == 0 && inner.backlog.is_empty());
            assert!(inner.slots.capacity() >= COUNT as usize, "all were in flight at once");
        })
        .unwrap();
    }
}

#[test]
fn dropped_futures_keep_their_memory_until_the_device_lets_go() {
    on_disks(4 << 20, |disk| async move {
        let ring = this_ring().unwrap();
        for round in 0..200_u64 {
            let offset = round % 64 * 65536;
            let old = disk.read(offset, 65536).await.unwrap().contiguous();
            {
                let mut write = disk.write(offset, pattern(round + 1, 65536), false);
                assert!(once(write.as_mut()).await.is_pending());
                let mut read = disk.read(offset, 65536);
                assert!(once(read.as_mut()).await.is_pending());
                if round % 2 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            // Memory that was let go too early would be found here, and carry this into the device.
            let mut scribbled: Vec<BufMut> = (0..8).map(|_| BufMut::room(65536)).collect();
            for memory in &mut scribbled {
                memory.fill(0xEE);
            }
            disk.flush().await.unwrap();
            let now = disk.read(offset, 65536).await.unwrap().contiguous();
            let new = pattern(round + 1, 65536).contiguous();
            assert!(
                now.chunks(512)
                    .zip(old.chunks(512).zip(new.chunks(512)))
                    .all(|(now, (old, new))| now == old || now == new)
            );
            assert!(scribbled.iter().all(|memory| memory.iter().all(|&byte| byte == 0xEE)), "a read came in late");
        }
        in_time(async {
            while !ring.inner.borrow().slots.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    });
}

#[test]
fn a_runtime_that_ends_waits_for_what_is_in_flight() {
    for directory in directories() {
        let path = new_file(&directory, 1 << 20);
        run(async |_| {
            let disk = Disk::open(&path, Options::default()).unwrap();
            for at in 0..16 {
                let mut write = disk.write(at * 65536, pattern(at, 65536), false);
                assert!(once(write.as_mut()).await.is_pending());
            }
            assert_eq!(this_ring().unwrap().inner.borrow().in_flight, 16, "queued or with the kernel");
        })
        .unwrap();
        let end = std::fs::read(&path).unwrap();
        for at in 0..16 {
            assert!(end[at * 65536..(at + 1) * 65536] == *pattern(at as u64, 65536).contiguous(), "write {at}");
        }
        assert!(this_ring().is_err(), "the thread can run another");
    }
}

#[test]
fn threads_have_rings_of_their_own_on_one_file() {
    for directory in directories() {
        let path = new_file(&directory, 4 << 20);
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let path = &path;
                scope.spawn(move || {
                    run(async |host| {
                        let disk = Rc::new(Disk::open(path, Options::default()).unwrap());
                        let tasks = (0..256_u64).map(|at| {
                            let disk = Rc::clone(&disk);
                            let offset = (at * 4 + thread) * 4096;
                            let task = async move {
                                disk.write(offset, pattern(at + thread, 4096), false).await.unwrap();
                                let read = disk.read(offset, 4096).await.unwrap().contiguous();
                                assert!(*read == *pattern(at + thread, 4096).contiguous());
                            };
                            Box::pin(task) as kura_block::Local<'static, ()>
                        });
                        together(&*host, tasks).await;
                    })
                    .unwrap();
                });
            }
        });
    }
}

#[test]
fn one_runtime_a_thread() {
    run(async |host| {
        assert_eq!(run(async |_| ()).unwrap_err().kind(), kura_block::Kind::Invalid);
        let before = host.now();
        host.sleep(Duration::from_millis(3)).await;
        assert!(host.now() >= before + Duration::from_millis(3));
    })
    .unwrap();
}

/// What never answers takes no more than its share of what the ring and the kernel have for all files.
#[test]
fn a_file_that_hangs_leaves_room_for_others() {
    on_disks(1 << 20, |disk| async move {
        let ring = this_ring().unwrap();
        let mut workers = [0, 0];
        ring.inner.borrow().uring.submitter().register_iowq_max_workers(&mut workers).unwrap();
        // As many as this user may have processes, where that is less.
        assert!(workers[0] as usize > 4 * OF_A_FILE, "{workers:?}");

        // A pipe that nobody writes to.
        let (pipe, other_end) = std::io::pipe().unwrap();
        let pipe = Rc::new(Asked::from(File::from(std::os::fd::OwnedFd::from(pipe))));
        let mut hung: Vec<_> =
            (0..2 * COMPLETIONS).map(|_| Box::pin(ring.read(&pipe, 0, BufMut::room(1), 0, Wait::Offer))).collect();
        for read in &mut hung {
            assert!(once(read.as_mut()).await.is_pending());
        }
        for at in 0..64 {
            in_time(disk.write(at * 4096, pattern(at, 4096), at % 2 == 0)).await.unwrap();
        }
        // Nor does it where nobody waits any more.
        let rest = hung.split_off(hung.len() / 2);
        drop(hung);
        in_time(disk.flush()).await.unwrap();
        drop(other_end);
        for read in rest {
            assert_eq!(in_time(read).await.0, Ok(0));
        }
        let inner = ring.inner.borrow();
        assert!(inner.slots.is_empty() && inner.in_flight == 0 && pipe.in_flight.get() == 0);
    });
}
