//! What the tests of this crate share.

use crate::{Disk, Options, create_sparse, run};
use kura_block::{Buf, Bufs, Runtime};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tempfile::TempDir;

/// A directory for each kind of file system a test should hold on: on the disk of this machine, and in memory (where
/// requests are complete as soon as they are submitted).
pub(crate) fn directories() -> Vec<TempDir> {
    let memory = Path::new("/dev/shm");
    let here = tempfile::tempdir().unwrap();
    let memory = memory.is_dir().then(|| tempfile::tempdir_in(memory).unwrap());
    std::iter::once(here).chain(memory).collect()
}

/// Longer than anything here takes, on a machine that is busy with other things, too.
const PATIENCE: Duration = Duration::from_mins(5);

/// Runs `test` on a disk of `size_bytes` on each kind of file system.
pub(crate) fn on_disks<F: Future<Output = ()>>(size_bytes: u64, test: impl Fn(Rc<Disk>) -> F) {
    for directory in directories() {
        let path = new_file(&directory, size_bytes);
        run(async |_| test(Rc::new(Disk::open(&path, Options::default()).unwrap())).await).unwrap();
    }
}

pub(crate) fn new_file(directory: &TempDir, size_bytes: u64) -> PathBuf {
    let path = directory.path().join("disk");
    create_sparse(&path, size_bytes).unwrap();
    path
}

/// `len` bytes that name `tag`.
pub(crate) fn pattern(tag: u64, len: usize) -> Bufs {
    let bytes: Vec<u8> = (0..len).map(|at| (tag.wrapping_mul(31) as u8).wrapping_add((at / 512) as u8)).collect();
    Buf::copy_of(&bytes).into()
}

/// Fails the test when `work` takes longer than anything here should: what hangs must not hang the test.
pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("done in time")
}

/// Fails the process when `work` takes longer than anything here should, even when its thread sleeps for good.
pub(crate) fn thread_in_time(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    let timeout = Err(std::sync::mpsc::RecvTimeoutError::Timeout);
    assert_ne!(ended.recv_timeout(PATIENCE), timeout, "the thread sleeps and nothing wakes it");
    thread.join().unwrap();
}

/// Runs all `tasks` beside each other and returns when all have ended.
pub(crate) async fn together(host: &dyn Runtime, tasks: impl Iterator<Item = kura_block::Local<'static, ()>>) {
    let (end, mut ended) = tokio::sync::mpsc::channel::<()>(1);
    for task in tasks {
        let end = end.clone();
        host.spawn(Box::pin(async move {
            task.await;
            drop(end);
        }));
    }
    drop(end);
    assert!(in_time(ended.recv()).await.is_none());
}
