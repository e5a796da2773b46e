//! Every side for real, small: wants root, loop devices, and what is measured.

use crate::image::Image;
use crate::stage::{Side, Stage};
use crate::work::Work;
use std::os::unix::fs::FileExt;

const WORK: Work = Work { size_bytes: 100_000, count: 24, clients: 4 };

fn stage(work: Work) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    Stage::new(folder.path(), work).unwrap()
}

#[test]
#[ignore = "needs root and loop devices"]
fn every_side_gives_back_what_was_put_and_sees_what_was_not() {
    let stage = stage(WORK);
    for side in Side::ALL {
        let mut store = stage.store(side).unwrap();
        let created = store.create(1).unwrap();
        assert!(created.mb_s > 0.0 && created.p50_us > 0.0 && created.p99_us >= created.p50_us, "{side}: {created:?}");
        store.read(1).unwrap();
        let error = format!("{:#}", store.read(2).unwrap_err());
        assert!(error.contains("another content") && error.lines().count() == 1, "{side}: {error}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn what_is_measured_is_what_is_asked_for() {
    for size_bytes in [4096, 300_000] {
        let stage = stage(Work { size_bytes, ..WORK });
        // Ours on what is left of ours, too.
        for side in [Side::Kura].into_iter().chain(Side::ALL) {
            let measured = stage.measure(side).unwrap();
            assert!(measured.write_amplification >= 1.0, "{side}: {measured:?}");
            assert_eq!(measured.aged.is_some(), side == Side::Kura);
        }
        let log_and_pages = stage.measure(Side::BerkeleyDb).unwrap().write_amplification;
        assert!(log_and_pages > 1.9, "Berkeley DB writes its log and its pages: {log_and_pages}");
    }
}

#[test]
#[ignore = "needs root and loop devices"]
fn nothing_is_left_behind() {
    let folder = tempfile::tempdir().unwrap();
    let image = Image::new(folder.path(), 128 << 20, 8 << 20).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the image has no name");
    let name = image.whole.path.file_name().unwrap();
    let backing = format!("/sys/block/{}/loop/backing_file", name.display());
    let behind = || std::fs::read_to_string(&backing).ok();
    let image_behind = behind();
    assert!(image_behind.is_some());
    image.whole.make("ext3").unwrap();
    for content in [None, Some("one")] {
        let mounted = image.whole.mount("ext3").unwrap();
        let file = mounted.path.join("file");
        assert_eq!(std::fs::read_to_string(&file).ok().as_deref(), content);
        std::fs::write(&file, "one").unwrap();
    }
    // Nothing has it any more: it may be made anew.
    image.whole.make("btrfs").unwrap();
    let front = std::fs::File::open(&image.front.path).unwrap();
    assert!(front.read_at(&mut [0], (8 << 20) - 1).unwrap() == 1 && front.read_at(&mut [0], 8 << 20).unwrap() == 0);
    drop((image, front));
    // The kernel detaches it a moment later; somebody else may have the device then.
    assert!((0..3000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        behind() != image_behind
    }));
}

#[test]
#[ignore = "needs root and loop devices"]
fn what_cannot_be_measured_is_told_in_one_line() {
    let nowhere = Stage::new("/nowhere".as_ref(), WORK).err().unwrap();
    let few = Stage::new("/tmp".as_ref(), Work { count: 1, ..WORK }).err().unwrap();
    for (error, told) in [(nowhere, "/nowhere"), (few, "1 objects for 4 clients")] {
        let error = format!("{error:#}");
        assert!(error.contains(told) && error.lines().count() == 1, "{error}");
    }
}
