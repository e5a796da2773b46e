use super::*;
use crate::run;
use crate::testing::{directories, new_file, on_disks, pattern};
use futures::future::join_all;
use kura_block::{Buf, Kind};
use proptest::prelude::*;
use std::os::unix::fs::MetadataExt;

const SIZE: u64 = 1 << 20;
/// Sectors of a file system that wants more than 512 bytes would fail the odd cases here; none the tests run on does.
const SECTOR: u64 = 512;

fn bytes(read: &Bufs) -> Vec<u8> {
    read.contiguous().to_vec()
}

#[derive(Clone, Debug)]
enum Change {
    Write { fill: u8, cuts: Vec<usize>, fua: bool },
    Zero { keep: bool },
    Discard,
    Flush,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (any::<u8>(), prop::collection::vec(0..8192_usize, 0..4), any::<bool>())
            .prop_map(|(fill, cuts, fua)| Change::Write { fill, cuts, fua }),
        1 => any::<bool>().prop_map(|keep| Change::Zero { keep }),
        1 => Just(Change::Discard),
        1 => Just(Change::Flush),
    ]
}

/// One rope of `data` in parts that begin at odd places in memory, where `cuts` say so.
fn in_parts(data: &[u8], cuts: &[usize]) -> Bufs {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (data.len() + 1)).chain([0, data.len()]).collect();
    cuts.sort_unstable();
    let mut rope = Bufs::new();
    for pair in cuts.windows(2) {
        let mut padded = vec![0; pair[0] % 7];
        padded.extend_from_slice(&data[pair[0]..pair[1]]);
        rope.push(Buf::copy_of(&padded).slice(pair[0] % 7..padded.len()));
    }
    rope
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Rounds of changes to ranges that do not overlap, all in flight at once, each round read back.
    #[test]
    fn agrees_with_a_plain_vector(rounds in prop::collection::vec(prop::collection::vec((change(), 0..16_u64, 1..=16_u64), 1..12), 1..6)) {
        on_disks(SIZE, |disk| {
            let rounds = rounds.clone();
            async move {
                let mut model = vec![0_u8; SIZE as usize];
                let slot = SIZE / 12;
                for round in rounds {
                    let mut running = Vec::new();
                    for (at, (change, start, sectors)) in round.into_iter().enumerate() {
                        let offset = (at as u64 * slot).next_multiple_of(4096) + start * SECTOR;
                        let len = sectors * SECTOR;
                        let range = offset as usize..(offset + len) as usize;
                        let disk = Rc::clone(&disk);
                        running.push(match change {
                            Change::Write { fill, cuts, fua } => {
                                let data: Vec<u8> = (0..len as usize).map(|at| fill.wrapping_add(at as u8)).collect();
                                model[range].copy_from_slice(&data);
                                Box::pin(async move { disk.write(offset, in_parts(&data, &cuts), fua).await }) as Local<'_, _>
                            }
                            Change::Zero { keep } => {
                                model[range].fill(0);
                                Box::pin(async move { disk.write_zeroes(offset, len, keep).await })
                            }
                            Change::Discard => {
                                // Files read as zeroes there.
                                model[range].fill(0);
                                Box::pin(async move { disk.discard(offset, len).await })
                            }
                            Change::Flush => Box::pin(async move { disk.flush().await }),
                        });
                    }
                    for result in join_all(running).await {
                        result.unwrap();
                    }
                    let reads = (0..SIZE / 65536).map(|at| disk.read(at * 65536, 65536));
                    let read: Vec<u8> = join_all(reads).await.into_iter().flat_map(|read| bytes(&read.unwrap())).collect();
                    assert!(read == model, "a read differs from the model");
                }
            }
        });
    }
}

#[test]
fn a_rope_of_more_parts_than_one_call_takes_is_written_whole() {
    on_disks(8 << 20, |disk| async move {
        let mut rope = Bufs::new();
        for part in 0..1500 {
            rope.append(pattern(part, 4096));
        }
        let plain = bytes(&rope);
        disk.write(4096, rope, false).await.unwrap();
        assert!(bytes(&disk.read(4096, plain.len()).await.unwrap()) == plain);
    });
}

#[test]
fn bad_requests_are_refused() {
    on_disks(SIZE, |disk| async move {
        for (offset, len) in [(1, 512), (512, 1), (SIZE, 512), (SIZE - 512, 1024), (u64::MAX - 511, 512)] {
            assert_eq!(disk.read(offset, len).await.unwrap_err().kind(), Kind::Invalid, "read {offset}+{len}");
            assert_eq!(disk.write(offset, pattern(1, len), false).await.unwrap_err().kind(), Kind::Invalid);
            assert_eq!(disk.discard(offset, len as u64).await.unwrap_err().kind(), Kind::Invalid);
            assert_eq!(disk.write_zeroes(offset, len as u64, false).await.unwrap_err().kind(), Kind::Invalid);
        }
        assert!(disk.read(SIZE, 0).await.unwrap().is_empty());
        disk.write(0, Bufs::new(), true).await.unwrap();
        disk.discard(0, 0).await.unwrap();
    });
}

#[test]
fn opening_says_what_is_wrong() {
    assert_eq!(Disk::open("/dev/null", Options::default()).err().unwrap().kind(), Kind::Invalid, "no ring here");
    for directory in directories() {
        run(async |_| {
            let open = |path: &Path, options| Disk::open(path, options).map_err(|error| error.kind());
            let missing = directory.path().join("missing");
            assert_eq!(open(&missing, Options::default()).err(), Some(Kind::Missing));
            assert_eq!(
                open(directory.path(), Options { writable: false, ..Options::default() }).err(),
                Some(Kind::Invalid)
            );
            let made = Options { create_bytes: Some(SIZE), ..Options::default() };
            assert_eq!(open(&missing, made).unwrap().geometry().size_bytes, SIZE);
            open(&missing, made).unwrap().write(0, pattern(1, 512), true).await.unwrap();
            let read_only = open(&missing, Options { writable: false, ..Options::default() }).unwrap();
            assert_eq!(bytes(&read_only.read(0, 512).await.unwrap()), bytes(&pattern(1, 512)));
            let error = read_only.write(0, pattern(2, 512), false).await.unwrap_err();
            assert_eq!(error.kind(), Kind::ReadOnly);
            assert_eq!(read_only.discard(0, 512).await.unwrap_err().kind(), Kind::ReadOnly);
        })
        .unwrap();
    }
}

#[test]
fn a_file_that_shrank_is_a_failed_device() {
    on_disks(SIZE, |disk| async move {
        disk.write(0, pattern(1, 8192), true).await.unwrap();
        std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap().set_len(4096).unwrap();
        assert_eq!(disk.read(0, 4096).await.unwrap().len(), 4096);
        let error = disk.read(0, 8192).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Device);
        assert!(error.to_string().contains("ends at 4096 but had 1048576 bytes"), "{error}");
        assert_eq!(disk.flush().await.unwrap_err().kind(), Kind::Device);
        assert_eq!(disk.write(0, pattern(1, 512), true).await.unwrap_err().kind(), Kind::Device);
    });
}

#[test]
fn a_file_that_ends_within_a_sector_is_a_failed_device() {
    on_disks(SIZE, |disk| async move {
        disk.write(0, pattern(1, 8192), true).await.unwrap();
        std::fs::OpenOptions::new().write(true).open(disk.path()).unwrap().set_len(4196).unwrap();
        let error = disk.read(0, 8192).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Device);
        assert!(error.to_string().contains("ends at 4196"), "{error}");
    });
}

#[test]
fn a_flush_that_failed_is_never_asked_for_again() {
    on_disks(SIZE, |disk| async move {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::NOMEM, Errno::IO] {
            assert_eq!(disk.not_flushed(errno).kind(), Kind::Device);
        }
    });
    let (len, no_flush) = (8192, Err(Errno::CANCELED));
    let cases = [
        (Ok(len), Ok(0), Durable::Done),
        (Ok(len), Err(Errno::IO), Durable::NotFlushed(Errno::IO)),
        // Whatever became of the write: what it asks to be tried again with would take the next flush for this one.
        (Err(Errno::AGAIN), Err(Errno::IO), Durable::NotFlushed(Errno::IO)),
        (Ok(4096), Err(Errno::NOSPC), Durable::NotFlushed(Errno::NOSPC)),
        (Err(Errno::NOSPC), no_flush, Durable::NotWritten(Errno::NOSPC)),
        (Ok(4096), no_flush, Durable::Again),
        (Err(Errno::INTR), no_flush, Durable::Again),
        (Ok(len), Err(Errno::INTR), Durable::Again),
    ];
    for (written, synced, expected) in cases {
        assert_eq!(Durable::of(written, synced, len), expected, "{written:?}, {synced:?}");
    }
}

#[test]
fn a_deleted_file_is_a_failed_device() {
    on_disks(SIZE, |disk| async move {
        disk.flush().await.unwrap();
        std::fs::remove_file(disk.path()).unwrap();
        let error = disk.flush().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Device);
        assert!(error.to_string().contains("deleted"), "{error}");
    });
}

#[test]
fn discard_gives_space_back_and_keep_keeps_it() {
    on_disks(SIZE, |disk| async move {
        let allocated = || std::fs::metadata(disk.path()).unwrap().blocks() * 512;
        let fill = || disk.write(0, pattern(1, SIZE as usize), true);
        fill().await.unwrap();
        assert!(allocated() >= SIZE);
        disk.write_zeroes(0, SIZE, true).await.unwrap();
        assert!(allocated() >= SIZE, "kept");
        assert!(bytes(&disk.read(0, SIZE as usize).await.unwrap()).iter().all(|&byte| byte == 0));
        disk.discard(0, SIZE / 2).await.unwrap();
        assert!(allocated() <= SIZE / 2 + 65536);
        fill().await.unwrap();
        disk.write_zeroes(0, SIZE, false).await.unwrap();
        assert!(allocated() <= 65536);
        assert_eq!(std::fs::metadata(disk.path()).unwrap().len(), SIZE);
    });
}

#[test]
fn preallocated_space_is_taken_and_zero() {
    for directory in directories() {
        let path = new_file(&directory, 4 * SIZE);
        crate::preallocate(&path, SIZE..3 * SIZE + 4096).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!(meta.len(), 4 * SIZE);
        assert!((2 * SIZE..3 * SIZE).contains(&(meta.blocks() * 512)), "{} bytes", meta.blocks() * 512);
        assert!(std::fs::read(&path).unwrap().iter().all(|&byte| byte == 0));
        assert_eq!(crate::preallocate(&path, 1..4096).unwrap_err().kind(), Kind::Invalid);
        assert_eq!(crate::create_sparse(&path, SIZE).unwrap_err().kind(), Kind::Exists);
        let large = path.with_extension("large");
        assert!(crate::create_sparse(&large, u64::MAX).is_err() && !large.exists(), "no file is so large");
    }
}

#[test]
fn requests_are_metered() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        let directory = tempfile::tempdir().unwrap();
        let path = new_file(&directory, SIZE);
        run(async |_| {
            let disk = Disk::open(&path, Options::default()).unwrap();
            disk.write(0, pattern(1, 8192), false).await.unwrap();
            disk.read(0, 4096).await.unwrap();
            disk.read(0, 4096).await.unwrap();
            std::fs::remove_file(&path).unwrap();
            disk.flush().await.unwrap_err();
        })
        .unwrap();
        let seen: Vec<(String, DebugValue)> = (recorder.snapshotter().snapshot().into_vec().into_iter())
            .map(|(key, _, _, value)| {
                let labels: Vec<_> = key.key().labels().map(metrics::Label::value).collect();
                assert_eq!(labels[0], path.to_str().unwrap());
                (format!("{} {}", key.key().name(), labels[1]), value)
            })
            .collect();
        let value = |name: &str| &seen.iter().find(|(seen, _)| seen == name).unwrap().1;
        assert_eq!(*value("kura_disk_requests_total read"), DebugValue::Counter(2));
        assert_eq!(*value("kura_disk_bytes_total read"), DebugValue::Counter(8192));
        assert_eq!(*value("kura_disk_bytes_total write"), DebugValue::Counter(8192));
        assert_eq!(*value("kura_disk_errors_total flush"), DebugValue::Counter(1));
        assert!(matches!(value("kura_disk_request_seconds read"), DebugValue::Histogram(times) if times.len() == 2));
    });
}
