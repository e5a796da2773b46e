//! What the door promises, one thing a test.

use super::{assert_sound, bucket, bytes, open, put, rig};
use crate::*;
use kura_block::{Buf, Bufs, Kind, Runtime};
use kura_sim::{DiskSpec, Sim};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

#[test]
fn what_was_put_is_read_again_after_a_restart() {
    let (sim, disk) = rig(1, 32 << 20);
    let store = open(&sim, &disk);
    let sizes = [0, 1, 4096, 70_000, 300_000, 3 << 20];
    sim.block_on(async {
        let bucket = store.create_partition(b"bucket", Attributes::new(), 5).await.unwrap().id;
        for (at, size) in sizes.into_iter().enumerate() {
            let key = format!("key{at}");
            let attributes = Attributes::from([("type".to_string(), vec![at as u8])]);
            let put = Put { attributes, tag: vec![at as u8; 16], modified_ms: 9, ..put(&bytes(at as u64, size)) };
            store.put(bucket, key.as_bytes(), put).await.unwrap();
        }
    });
    // After a crash, and after a clean end.
    for clean in [false, true] {
        if !clean {
            sim.crash();
        }
        let store = open(&sim, &disk);
        sim.block_on(async {
            let bucket = store.partition(b"bucket").await.unwrap().id;
            for (at, size) in sizes.into_iter().enumerate() {
                let key = format!("key{at}");
                let mut reader = store.read(bucket, key.as_bytes(), Which::Latest).await.unwrap();
                assert_eq!(reader.attributes["type"], [at as u8]);
                assert_eq!((reader.stat.size_bytes, reader.stat.modified_ms), (size as u64, 9));
                assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at as u64, size));
                reader.range(size as u64 / 3..size as u64 / 2).unwrap();
                let part = reader.rest().await.unwrap().contiguous();
                assert_eq!(*part, bytes(at as u64, size)[size / 3..size / 2]);
            }
            store.close().await.unwrap();
        });
    }
}

#[test]
fn a_store_that_is_to_be_read_only_refuses_every_change() {
    let (sim, disk) = rig(3, 16 << 20);
    let bucket = sim.block_on(async {
        let store = Store::open(disk.open(), sim.runtime(), Options::default()).await.unwrap();
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(&bytes(1, 300_000))).await.unwrap();
        bucket
    });
    // As a crash leaves it: what was put is in the log's tail only.
    sim.crash();
    let options = Options { read_only: true, ..Options::default() };
    let store = sim.block_on(Store::open(disk.open(), sim.runtime(), options)).unwrap();
    assert_sound(&store);
    let mut large = store.upload();
    let roots = disk.at_rest(0, 8192);
    sim.block_on(async {
        let mut reader = store.read(bucket, b"a", Which::Latest).await.unwrap();
        assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(1, 300_000));
        let content: Bufs = Buf::copy_of(&bytes(2, 2 << 20)).into();
        let refused = [
            store.put(bucket, b"b", put(b"new")).await.map(drop),
            store.remove(bucket, b"a", Which::Latest).await.map(drop),
            store.create_partition(b"other", Attributes::new(), 0).await.map(drop),
            store.remove_partition(b"bucket").await,
            large.write(content).await,
        ];
        for refused in refused {
            assert_eq!(refused.unwrap_err().kind(), Kind::ReadOnly);
        }
        store.flush().await.unwrap();
        store.close().await.unwrap();
    });
    assert!(disk.at_rest(0, 8192) == roots, "nothing is written");
}

#[test]
fn puts_that_follow_one_another_get_numbers_that_do() {
    let (sim, disk) = rig(1, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for versioned in [false, true] {
            let mut batch = Batch::new();
            batch.require(bucket, b"a", Condition::Partition);
            for key in [b"b", b"a", b"c"] {
                batch.put(bucket, key, Put { versioned, ..put(b"x") });
            }
            let changed = store.commit(batch).await.unwrap();
            let numbers: Vec<u64> = changed.into_iter().map(|changed| changed.now.unwrap().version.0).collect();
            assert_eq!(numbers, [numbers[0], numbers[0] + 1, numbers[0] + 2]);
        }
    });
}

#[test]
fn a_batch_whose_condition_does_not_hold_does_nothing() {
    let (sim, disk) = rig(2, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let first = store.put(bucket, b"a", put(b"one")).await.unwrap();
        let try_with = async |condition| {
            let mut batch = Batch::new();
            batch.put(bucket, b"b", put(b"new")).require(bucket, b"a", condition).put(bucket, b"a", put(b"two"));
            store.commit(batch).await.map_err(|error| error.kind())
        };
        assert_eq!(try_with(Condition::Absent).await, Err(Kind::Exists));
        assert_eq!(try_with(Condition::Revision(first.revision + 1)).await, Err(Kind::Exists));
        assert_eq!(store.stat(bucket, b"b", Which::Latest).await.unwrap_err().kind(), Kind::Missing);
        try_with(Condition::Version(first.version)).await.unwrap();
        assert_eq!(try_with(Condition::Version(first.version)).await, Err(Kind::Exists));
        assert_eq!(store.read(bucket, b"a", Which::Latest).await.unwrap().rest().await.unwrap().len(), 3);
        let mut twice = Batch::new();
        twice.put(bucket, b"c", put(b"x")).remove(bucket, b"c", Which::Latest);
        assert_eq!(store.commit(twice).await.unwrap_err().kind(), Kind::Invalid);
    });
    assert_sound(&store);
}

#[test]
fn versions_markers_and_the_version_without_a_number() {
    let (sim, disk) = rig(3, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let put_as = async |content: &[u8], versioned| {
            let put = Put { versioned, ..put(content) };
            store.put(bucket, b"k", put).await.unwrap()
        };
        let read = async |which| match store.read(bucket, b"k", which).await {
            Ok(mut reader) => reader.rest().await.unwrap().contiguous().to_vec(),
            Err(error) => error.kind().to_string_for_tests(),
        };
        put_as(b"null 1", false).await;
        let one = put_as(b"one", true).await;
        let two = put_as(b"two", true).await;
        put_as(b"null 2", false).await;
        assert_eq!(read(Which::Latest).await, b"null 2");
        assert_eq!(read(one.which()).await, b"one");
        let mut mark = Batch::new();
        mark.mark(bucket, b"k", 7, true);
        let marker = store.commit(mark).await.unwrap()[0].now.clone().unwrap();
        assert!(marker.marker && marker.latest);
        assert_eq!(read(Which::Latest).await, b"Missing");
        assert_eq!(read(Which::Unversioned).await, b"null 2");
        assert!(store.list(bucket, &Query::default()).await.unwrap().items.is_empty());
        let all = Query { versions: true, limit: Some(2), ..Query::default() };
        let page = store.list(bucket, &all).await.unwrap();
        let rest = store.list(bucket, &Query { after: page.next.unwrap(), limit: None, ..all }).await.unwrap();
        let versions = rest.items.iter().map(|item| match item {
            Item::Object { stat, .. } => (stat.version, stat.latest),
            Item::Prefix(_) => panic!("no delimiter was given"),
        });
        assert_eq!(versions.collect::<Vec<_>>(), [(two.version, false), (one.version, false)]);
        store.remove(bucket, b"k", marker.which()).await.unwrap();
        assert_eq!(read(Which::Latest).await, b"null 2");
        store.remove(bucket, b"k", Which::Unversioned).await.unwrap();
        assert_eq!(read(Which::Latest).await, b"two");
    });
    assert_sound(&store);
}

trait ForTests {
    fn to_string_for_tests(&self) -> Vec<u8>;
}

impl ForTests for Kind {
    fn to_string_for_tests(&self) -> Vec<u8> {
        format!("{self:?}").into_bytes()
    }
}

#[test]
fn lists_roll_up_and_go_on() {
    let (sim, disk) = rig(4, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let other = store.create_partition(b"other", Attributes::new(), 0).await.unwrap().id;
        store.put(other, b"a/zz", put(b"")).await.unwrap();
        for key in ["a", "a/1", "a/2", "a/b/3", "b", "c/1", "c/2", "d"] {
            store.put(bucket, key.as_bytes(), put(key.as_bytes())).await.unwrap();
        }
        store.put(bucket, &[0xff, 0xff], put(b"last")).await.unwrap();
        let names = |page: &Page| {
            let name = |item: &Item| match item {
                Item::Object { key, .. } => String::from_utf8_lossy(key).to_string(),
                Item::Prefix(prefix) => format!("({})", String::from_utf8_lossy(prefix)),
            };
            page.items.iter().map(name).collect::<Vec<_>>().join(" ")
        };
        for limit in 1..8 {
            for (prefix, wanted) in [("", "a (a/) b (c/) d \u{fffd}\u{fffd}"), ("a/", "a/1 a/2 (a/b/)"), ("x", "")] {
                let mut query = Query {
                    prefix: prefix.into(),
                    delimiter: Some(b"/".to_vec()),
                    limit: Some(limit),
                    ..Query::default()
                };
                let mut all = Vec::new();
                loop {
                    let page = store.list(bucket, &query).await.unwrap();
                    assert!(page.items.len() <= limit);
                    all.extend(page.items.clone());
                    let Some(next) = page.next else { break };
                    assert_eq!(page.items.len(), limit);
                    query.after = next;
                }
                assert_eq!(names(&Page { items: all, next: None }), wanted);
            }
        }
        // A marker that is a rolled-up prefix is behind all it stands for; another one within it is not.
        let query =
            |after: &str| Query { after: After::Key(after.into()), delimiter: Some(b"/".to_vec()), ..Query::default() };
        assert_eq!(names(&store.list(bucket, &query("a/")).await.unwrap()), "b (c/) d \u{fffd}\u{fffd}");
        assert_eq!(names(&store.list(bucket, &query("c/1")).await.unwrap()), "(c/) d \u{fffd}\u{fffd}");
        let partitions = store.partitions(b"", 10).await.unwrap();
        assert_eq!(
            partitions.iter().map(|p| p.name.clone()).collect::<Vec<_>>(),
            [b"bucket".to_vec(), b"other".to_vec()]
        );
        assert_eq!(store.remove_partition(b"other").await.unwrap_err().kind(), Kind::Busy);
        store.remove(other, b"a/zz", Which::Latest).await.unwrap();
        store.remove_partition(b"other").await.unwrap();
        assert_eq!(store.partition(b"other").await.unwrap_err().kind(), Kind::Missing);
        assert_eq!(store.put(other, b"x", put(b"")).await.unwrap_err().kind(), Kind::Missing);
    });
    assert_sound(&store);
}

#[test]
fn parts_are_joined_without_a_copy_and_uploads_that_are_dropped_leave_nothing() {
    let (sim, disk) = rig(5, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let mut parts = Vec::new();
        for (at, size) in [300_000, 100_000, 10].into_iter().enumerate() {
            let mut part = store.upload_part();
            part.write(Buf::copy_of(&bytes(at as u64, size)).into()).await.unwrap();
            let key = format!("part{at}").into_bytes();
            let put = Put { content: part.finish().await.unwrap(), ..Put::default() };
            store.put(bucket, &key, put).await.unwrap();
            parts.push((bucket, key));
        }
        let written = disk.counters().written_bytes;
        let mut batch = Batch::new();
        batch.join(bucket, b"whole", parts, Put::default());
        store.commit(batch).await.unwrap();
        assert!(disk.counters().written_bytes - written < 10_000);
        let whole = [bytes(0, 300_000), bytes(1, 100_000), bytes(2, 10)].concat();
        let mut reader = store.read(bucket, b"whole", Which::Latest).await.unwrap();
        assert_eq!(*reader.rest().await.unwrap().contiguous(), whole);
        drop(reader);
        assert_eq!(store.list(bucket, &Query::default()).await.unwrap().items.len(), 1);
        let free = store.inner.state.borrow().space.room_blocks();
        let mut upload = store.upload();
        for _ in 0..7 {
            upload.write(Bufs::zeroes(99_999)).await.unwrap();
        }
        drop(upload);
        let mut upload = store.upload();
        upload.write(Bufs::zeroes(999_999)).await.unwrap();
        drop(upload.finish().await.unwrap());
        store.flush().await.unwrap();
        sim.runtime().sleep(std::time::Duration::from_millis(50)).await;
        assert_eq!(store.inner.state.borrow().space.room_blocks(), free);
    });
    assert_sound(&store);
}

#[test]
fn a_reader_keeps_what_it_reads() {
    let (sim, disk) = rig(6, 4 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"old", put(&bytes(1, 500_000))).await.unwrap();
        let mut reader = store.read(bucket, b"old", Which::Latest).await.unwrap();
        store.remove(bucket, b"old", Which::Latest).await.unwrap();
        for round in 0..20 {
            store.put(bucket, b"other", put(&bytes(round, 700_000))).await.unwrap();
        }
        assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(1, 500_000));
    });
    assert_sound(&store);
}

#[test]
fn a_batch_larger_than_a_group_is_one_entry() {
    let sim = kura_sim::Sim::new(1);
    let disk = sim.disk("disk", kura_sim::DiskSpec::nvme(256 << 20));
    sim.block_on(Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: Some(4 << 20) })).unwrap();
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for count in [9_001, 20_000] {
            let mut batch = Batch::new();
            for at in 0..count {
                batch.put(bucket, format!("{at:05}").as_bytes(), put(&bytes(at, (at % 90) as usize)));
            }
            store.commit(batch).await.unwrap();
        }
    });
    sim.crash();
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for at in 0..20_000 {
            let mut reader = store.read(bucket, format!("{at:05}").as_bytes(), Which::Latest).await.unwrap();
            assert_eq!(*reader.rest().await.unwrap().contiguous(), bytes(at, (at % 90) as usize), "{at}");
        }
    });
}

#[test]
fn what_is_asked_for_again_needs_no_device() {
    let sim = Sim::new(11);
    let disk = sim.disk("disk", DiskSpec::nvme(256 << 20));
    sim.block_on(Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: Some(4 << 20) })).unwrap();
    let options = Options { recent_bytes: 6 << 20, ..super::options() };
    let store = sim.block_on(Store::open(disk.open(), sim.runtime(), options)).unwrap();
    // What a range of an object holds, and the bytes that came from the device for it.
    let read = async |key: &[u8], range: Range<u64>| {
        let (bucket, before) = (bucket(&store).await, disk.counters().read_bytes);
        let data = store.read_range(bucket, key, Which::Latest, range).await.unwrap().rest().await.unwrap();
        (data.contiguous().to_vec(), disk.counters().read_bytes - before)
    };
    sim.block_on(async {
        let bucket = bucket(&store).await;
        for content in [bytes(1, 3_000_001), bytes(2, 3_000_001)] {
            store.put(bucket, b"key", put(&content)).await.unwrap();
            let (data, read_bytes) = read(b"key", 0..3_000_001).await;
            assert!(data == content && read_bytes == 0, "as it was put last: {read_bytes}");
            let (data, read_bytes) = read(b"key", 1_000_000..1_100_000).await;
            assert!(data == content[1_000_000..1_100_000] && read_bytes == 0, "a range: {read_bytes}");
        }
        for at in 0..8_u8 {
            store.put(bucket, &[at], put(&bytes(at.into(), 3_000_001))).await.unwrap();
        }
        let mut from_device = 0;
        for at in 0..8_u8 {
            let (data, read_bytes) = read(&[at], 0..3_000_001).await;
            assert!(data == bytes(at.into(), 3_000_001));
            from_device += read_bytes;
        }
        assert!(from_device > 12 << 20, "24 MB do not fit: {from_device}");
        let (data, _) = read(&[7], 0..3_000_001).await;
        let (again, read_bytes) = read(&[7], 0..3_000_001).await;
        assert!(
            data == again && read_bytes < 3_000_000,
            "what was read is kept, as far as there is room: {read_bytes}"
        );
    });
}

#[test]
fn a_permit_is_kept_until_its_bytes_are_on_the_device() {
    let (sim, disk) = rig(40, 16 << 20);
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        let permit = Rc::new(());
        let mut upload = store.upload();
        upload.write_by(Buf::copy_of(&bytes(1, 10_000)).into(), Rc::clone(&permit)).await.unwrap();
        sim.runtime().sleep(Duration::from_millis(5)).await;
        assert_eq!(Rc::strong_count(&permit), 2, "gathered");
        upload.push().await.unwrap();
        assert_eq!(Rc::strong_count(&permit), 2, "on the way");
        sim.runtime().sleep(Duration::from_millis(5)).await;
        assert_eq!(Rc::strong_count(&permit), 1, "on the device");
        upload.write_by(Buf::copy_of(&bytes(2, 100_000)).into(), Rc::clone(&permit)).await.unwrap();
        let content = upload.finish().await.unwrap();
        assert_eq!(Rc::strong_count(&permit), 1);
        store.put(bucket, b"a", Put { content, ..Put::default() }).await.unwrap();
        let data = store.read(bucket, b"a", Which::Latest).await.unwrap().rest().await.unwrap();
        assert!(*data.contiguous() == [bytes(1, 10_000), bytes(2, 100_000)].concat());
    });
    assert_sound(&store);
}

/// As S3 reads: what is read depends on what the object is.
#[test]
fn what_is_read_is_asked_of_the_device_once() {
    let sim = Sim::new(1);
    let disk = sim.disk("disk", DiskSpec::nvme(256 << 20));
    sim.block_on(Store::format(&*disk.open(), Format { id: [7; 16], segment_bytes: Some(4 << 20) })).unwrap();
    let store = open(&sim, &disk);
    sim.block_on(async {
        let bucket = bucket(&store).await;
        store.put(bucket, b"a", put(&bytes(1, 3 << 20))).await.unwrap();
        let read = async |range: std::ops::Range<u64>| {
            disk.reset_counters();
            let chosen = |stat: &Stat| range.start..range.end.min(stat.size_bytes);
            let mut reader = store.read_chosen(bucket, b"a", Which::Latest, chosen).await.unwrap();
            reader.range(range.clone()).unwrap();
            assert_eq!(reader.rest().await.unwrap().len() as u64, range.end - range.start);
            disk.counters().read_bytes
        };
        assert!(read(0..3 << 20).await < (3 << 20) + 100_000, "all of it");
        assert!(read(1 << 20..(1 << 20) + 4096).await < 20_000, "4 KiB of it");
        disk.reset_counters();
        let mut reader = store.read(bucket, b"a", Which::Latest).await.unwrap();
        reader.range(0..3 << 20).unwrap();
        reader.rest().await.unwrap();
        assert!(disk.counters().read_bytes < (3 << 20) + 100_000, "narrowed to all of it");
    });
}
