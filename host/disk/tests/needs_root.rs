//! What only root can set up: block devices and full file systems.
//! `cargo test -p kura-disk --test needs_root -- --ignored`
#![allow(clippy::unwrap_used)] // a test

use kura_block::{Block, Buf, Bufs, Kind};
use kura_disk::{Disk, Lock, Options, ProbeKind, probe, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SIZE: u64 = 64 << 20;

fn sh(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

struct Loop(PathBuf);

impl Loop {
    fn new(directory: &TempDir) -> Self {
        let path = directory.path().join("image");
        kura_disk::create_sparse(&path, SIZE).unwrap();
        Self(sh("losetup", &["--find", "--show", "--direct-io=on", path.to_str().unwrap()]).into())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        sh("losetup", &["--detach", self.0.to_str().unwrap()]);
    }
}

struct Mount(PathBuf);

impl Mount {
    fn new(args: &[&str], at: &Path) -> Self {
        sh("mount", &[args, &[at.to_str().unwrap()]].concat());
        Self(at.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What a test beside this one starts may have it open for an instant.
        sh("umount", &["--lazy", self.0.to_str().unwrap()]);
    }
}

fn filled(byte: u8, len: usize) -> Bufs {
    Buf::copy_of(&vec![byte; len]).into()
}

#[test]
#[ignore = "needs root and loop devices"]
fn a_block_device_is_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let device = Loop::new(&directory);
    let found = probe(&device.0).unwrap();
    assert_eq!((found.kind, found.size_bytes), (ProbeKind::BlockDevice, SIZE));
    assert!(found.discards && found.is_read_on_a_core);
    run(async |_| {
        let disk = Disk::open(&device.0, Options::default()).unwrap();
        let is = async |byte: u8, offset: u64, len: usize| {
            disk.read(offset, len).await.unwrap().contiguous().iter().all(|&read| read == byte)
        };
        disk.write(4096, filled(7, 1 << 20), false).await.unwrap();
        disk.flush().await.unwrap();
        assert!(is(7, 4096, 1 << 20).await && is(0, 0, 4096).await);
        disk.write_zeroes(4096, 65536, true).await.unwrap();
        disk.write_zeroes(4096 + 65536, 65536, false).await.unwrap();
        assert!(is(0, 0, 4096 + 131_072).await && is(7, 4096 + 131_072, 4096).await);
        disk.discard(0, SIZE).await.unwrap();
        disk.write(SIZE - 4096, filled(9, 4096), true).await.unwrap();
        assert!(is(9, SIZE - 4096, 4096).await);
        assert_eq!(disk.read(SIZE, 512).await.unwrap_err().kind(), Kind::Invalid);
    })
    .unwrap();
    kura_disk::preallocate(&device.0, 0..SIZE).unwrap();
}

#[test]
#[ignore = "needs root and loop devices"]
fn a_block_device_in_use_is_busy() {
    let directory = tempfile::tempdir().unwrap();
    let device = Loop::new(&directory);
    let lock = Lock::device(&device.0).unwrap();
    assert_eq!(Lock::device(&device.0).unwrap_err().kind(), Kind::Busy);
    run(async |_| drop(Disk::open(&device.0, Options::default()).unwrap())).unwrap();
    drop(lock);
    sh("mkfs.ext4", &["-q", device.0.to_str().unwrap()]);
    let at = tempfile::tempdir().unwrap();
    let _mount = Mount::new(&[device.0.to_str().unwrap()], at.path());
    let error = Lock::device(&device.0).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("mounted"), "{error}");
}

#[test]
#[ignore = "needs root"]
fn a_full_file_system_is_full_and_what_was_written_stays() {
    let at = tempfile::tempdir().unwrap();
    let _mount = Mount::new(&["-t", "tmpfs", "-o", "size=8M", "tmpfs"], at.path());
    let path = at.path().join("disk");
    run(async |_| {
        let disk = Disk::open(&path, Options { create_bytes: Some(SIZE), ..Options::default() }).unwrap();
        let mut at = 0;
        let error = loop {
            match disk.write(at, filled(5, 1 << 20), false).await {
                Ok(()) => at += 1 << 20,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::Full);
        assert!(error.to_string().contains("free space"), "{error}");
        assert!(at >= 7 << 20);
        let kept = disk.read(0, at as usize).await.unwrap().contiguous();
        assert!(kept.iter().all(|&byte| byte == 5));
        disk.discard(0, 1 << 20).await.unwrap();
        disk.write(at, filled(6, 512 << 10), true).await.unwrap();
    })
    .unwrap();
    assert_eq!(kura_disk::preallocate(&path, 0..SIZE).unwrap_err().kind(), Kind::Full);
}

#[test]
#[ignore = "needs root and loop devices"]
fn a_device_that_fails_is_a_failed_device() {
    let directory = tempfile::tempdir().unwrap();
    let device = Loop::new(&directory);
    run(async |_| {
        let disk = Disk::open(&device.0, Options::default()).unwrap();
        disk.write(SIZE - 4096, filled(1, 4096), true).await.unwrap();
        // The file under the device loses its second half: what was there cannot be read any more.
        let image = std::fs::OpenOptions::new().write(true).open(directory.path().join("image")).unwrap();
        image.set_len(SIZE / 2).unwrap();
        let error = disk.read(SIZE - 4096, 4096).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Device);
        let text = error.to_string();
        assert!(text.contains("read of 4096 bytes at 67104768") && text.contains("os error 5"), "{text}");
        // And once the kernel has noticed, as it does of a device that is pulled out, it is gone.
        sh("losetup", &["--set-capacity", device.0.to_str().unwrap()]);
        let at = SIZE - 65536;
        for error in [
            disk.read(at, 4096).await.unwrap_err(),
            disk.write(at, filled(1, 4096), false).await.unwrap_err(),
            disk.write(at, filled(1, 4096), true).await.unwrap_err(),
            disk.write_zeroes(at, 4096, false).await.unwrap_err(),
            disk.discard(at, 4096).await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), Kind::Device, "{error}");
            assert!(error.to_string().contains("but had 67108864 bytes when opened"), "{error}");
        }
        disk.write(0, filled(2, 4096), true).await.unwrap();
    })
    .unwrap();
}

/// The kernel's threads do all of these, and each of them waits there.
#[test]
#[ignore = "needs root and loop devices"]
fn a_file_system_that_hangs_keeps_no_other_disk_from_being_flushed() {
    // More than a ring has with the kernel of one file.
    const HUNG: u64 = 300;
    let directory = tempfile::tempdir().unwrap();
    let device = Loop::new(&directory);
    sh("mkfs.ext4", &["-q", device.0.to_str().unwrap()]);
    let at = directory.path().join("mounted");
    std::fs::create_dir(&at).unwrap();
    let mount = Mount::new(&[device.0.to_str().unwrap()], &at);
    let (hangs, good) = (at.join("disk"), directory.path().join("disk"));
    for path in [&hangs, &good] {
        kura_disk::create_sparse(path, 8 << 20).unwrap();
    }
    run(async |_| {
        let [hangs, good] = [&hangs, &good].map(|path| Disk::open(path, Options::default()).unwrap());
        let freeze = |how: &str| sh("fsfreeze", &[how, mount.0.to_str().unwrap()]);
        freeze("--freeze");
        let mut writes: Vec<_> = (0..HUNG).map(|at| hangs.write(at * 16384, filled(7, 4096), false)).collect();
        let begin = std::future::poll_fn(|cx| {
            for write in &mut writes {
                assert!(write.as_mut().poll(cx).is_pending());
            }
            std::task::Poll::Ready(())
        });
        begin.await;
        let flushed = tokio::time::timeout(std::time::Duration::from_secs(20), async {
            good.write(0, filled(9, 4096), true).await?;
            good.flush().await
        });
        let flushed = flushed.await;
        freeze("--unfreeze");
        for write in writes {
            write.await.unwrap();
        }
        flushed.expect("it hangs with the other one").unwrap();
    })
    .unwrap();
}
