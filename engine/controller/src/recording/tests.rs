//! What clients of a volume do, and what is recorded of it.

use super::ring::{ENTRY_BYTES, MEMORY_MIN_BYTES};
use super::{Entry, Op, PIECE};
use crate::{Config, Controller, DiskClass, Layout, NewDisk, Node, Opener, PoolSpec, VolumeSpec, door, format};
use kura_block::{Block, Buf, ControllerId, Kind, Local};
use kura_shared::InProcess;
use kura_sim::{DiskSpec, Sim, SimDisk};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

const NOON: Duration = Duration::from_hours(12);
const KIB: u64 = 1024;

/// A controller on one simulated disk, with volumes `a` and `b`.
async fn controller(sim: &Sim, disk: SimDisk) -> Rc<Controller> {
    let new = NewDisk { path: "disk".into(), device: disk.open(), class: DiskClass::Slow, uuid: [1; 16] };
    let pool =
        PoolSpec { uuid: [9; 16], extent_bytes: 64 << 10, controllers: 1, journal_bytes: 5 << 20, floating_percent: 0 };
    format(&[new], &pool).await.unwrap();
    let opener: Opener = Box::new(move |_| Ok(disk.open() as Rc<dyn Block>));
    let (shared, paths) = (Arc::new(InProcess::new()), ["disk".to_owned()]);
    let recovered = Controller::recover(ControllerId(0), &paths, opener, sim.runtime(), shared, Config::default());
    let controller = recovered.await.unwrap().begin().await.unwrap();
    for name in ["a", "b"] {
        let (name, layout) = (name.to_owned(), Layout::None);
        let spec = VolumeSpec { name, size_bytes: 1 << 20, layout, thick: false, read_only: false };
        controller.store().create(spec).await.unwrap();
    }
    controller
}

/// Runs `work` on such a controller.
fn run(work: impl FnOnce(Rc<Controller>) -> Local<'static, ()>) {
    let sim = Sim::new(1);
    let disk = sim.disk("disk", DiskSpec::nvme(64 << 20));
    let made = controller(&sim, disk);
    sim.block_on(async { work(made.await).await });
}

fn data(len: u64) -> kura_block::Bufs {
    Buf::copy_of(&vec![7; len as usize]).into()
}

/// What is recorded of `a`, and the number of the first.
fn recorded(controller: &Controller) -> (u64, Vec<Entry>) {
    controller.find_recording("a").unwrap().ring.borrow().copy(0..u64::MAX, usize::MAX)
}

/// What each entry says but its times.
fn requests(entries: &[Entry]) -> Vec<(Op, u64, u32)> {
    entries.iter().map(|entry| (entry.op, entry.offset_bytes, entry.len_bytes)).collect()
}

#[test]
fn what_a_client_does_is_recorded_in_order_even_one_who_was_there_before() {
    run(|controller| {
        Box::pin(async move {
            let client = controller.open_volume("a").unwrap();
            client.write(0, data(4 * KIB), false).await.unwrap();
            let begun = controller.record("a", MEMORY_MIN_BYTES, NOON).unwrap();
            assert!(begun.running && begun.requests == 0 && begun.time_of_day == NOON);

            client.write(8 * KIB, data(4 * KIB), false).await.unwrap();
            controller.runtime().sleep(Duration::from_millis(5)).await;
            client.write(100, data(50), true).await.unwrap();
            client.read(4 * KIB, 12 * KIB as usize).await.unwrap();
            let other = controller.open_volume("a").unwrap();
            other.write_zeroes(64 * KIB, 32 * KIB, true).await.unwrap();
            other.discard(64 * KIB, 16 * KIB).await.unwrap();
            other.flush().await.unwrap();
            other.write(0, data(0), true).await.unwrap();
            other.write(0, data(0), false).await.unwrap();
            other.discard(0, 0).await.unwrap();
            controller.open_volume("b").unwrap().flush().await.unwrap();
            other.runs(0, 1 << 20).await.unwrap();
            client.read(1 << 20, 1).await.unwrap_err();

            let (first, entries) = recorded(&controller);
            let expected = [
                (Op::Write, 8 * KIB, 4 << 10),
                (Op::Write, 100, 50),
                (Op::Read, 4 * KIB, 12 << 10),
                (Op::Write, 64 * KIB, 32 << 10),
                (Op::Discard, 64 * KIB, 16 << 10),
                (Op::Flush, 0, 0),
                (Op::Flush, 0, 0),
                (Op::Read, 1 << 20, 1),
            ];
            assert_eq!((first, requests(&entries)), (0, expected.to_vec()));
            assert!(entries.iter().all(|entry| entry.response_ns > 0), "{entries:#?}");
            assert!(entries.is_sorted_by_key(|entry| entry.at_ns));
            assert!((5_000_000..6_000_000).contains(&entries[1].at_ns), "{}", entries[1].at_ns);
            // The durable write waits for the disk, the other one for nothing.
            assert!(entries[1].response_ns > 1000 && entries[0].response_ns < 1000, "{entries:#?}");
        })
    });
}

#[test]
fn a_request_in_flight_is_there_and_is_told_its_time_when_it_is_answered() {
    run(|controller| {
        Box::pin(async move {
            let client = controller.open_volume("a").unwrap();
            controller.record("a", MEMORY_MIN_BYTES, NOON).unwrap();
            let write = client.write(0, data(4 * KIB), true);
            let entry = || recorded(&controller).1;
            assert_eq!((entry().len(), entry()[0].response_ns), (1, 0));
            // A client that leaves does not wait for its answer.
            drop(client.flush());
            let stopped = controller.stop_recording("a").unwrap();
            assert!(!stopped.running && stopped.requests == 2);
            write.await.unwrap();
            client.flush().await.unwrap();
            assert_eq!(entry().len(), 2, "a stopped recording grows");
            assert!(entry()[0].response_ns > 0 && entry()[1].response_ns == 0);
            assert_eq!(controller.stop_recording("a").unwrap(), controller.recording("a").unwrap());
        })
    });
}

#[test]
fn the_newest_stay_when_memory_is_full() {
    run(|controller| {
        Box::pin(async move {
            let client = controller.open_volume("a").unwrap();
            controller.record("a", MEMORY_MIN_BYTES, NOON).unwrap();
            let capacity = MEMORY_MIN_BYTES / ENTRY_BYTES;
            for at in 0..capacity + 100 {
                client.read(at, 1).await.unwrap();
            }
            let info = controller.recording("a").unwrap();
            assert_eq!((info.requests, info.overwritten, info.memory_bytes), (capacity + 100, 100, MEMORY_MIN_BYTES));
            let (first, entries) = recorded(&controller);
            let offsets: Vec<_> = entries.iter().map(|entry| entry.offset_bytes).collect();
            assert_eq!((first, offsets), (100, (100..capacity + 100).collect()));
        })
    });
}

#[test]
fn a_recording_begins_once_and_goes_with_its_volume() {
    run(|controller| {
        Box::pin(async move {
            let kind = |error: kura_block::Error| error.kind();
            assert_eq!(controller.recording("a").map_err(kind), Err(Kind::Missing));
            assert_eq!(controller.stop_recording("a").map_err(kind), Err(Kind::Missing));
            assert_eq!(controller.record("a", 1, NOON).map_err(kind), Err(Kind::Invalid));
            assert_eq!(controller.record("c", MEMORY_MIN_BYTES, NOON).map_err(kind), Err(Kind::Missing));
            assert!(controller.recordings().is_empty());

            let client = controller.open_volume("a").unwrap();
            controller.record("a", MEMORY_MIN_BYTES, NOON).unwrap();
            controller.record("b", MEMORY_MIN_BYTES, NOON).unwrap();
            assert_eq!(controller.record("a", MEMORY_MIN_BYTES, NOON).map_err(kind), Err(Kind::Exists));
            controller.stop_recording("a").unwrap();
            assert_eq!(controller.record("a", MEMORY_MIN_BYTES, NOON).map_err(kind), Err(Kind::Exists));
            assert_eq!(controller.recordings().len(), 2);

            // A request in flight must not find the next recording.
            assert!(controller.drop_recording("b").is_some() && controller.drop_recording("b").is_none());
            controller.drop_recording("a");
            controller.record("a", MEMORY_MIN_BYTES, NOON).unwrap();
            let write = client.write(0, data(4 * KIB), true);
            controller.drop_recording("a");
            controller.record("a", MEMORY_MIN_BYTES, NOON).unwrap();
            let next = client.write(4 * KIB, data(4 * KIB), true);
            write.await.unwrap();
            assert_eq!(recorded(&controller).1[0].response_ns, 0);
            next.await.unwrap();

            assert!(controller.delete_volume("a", true).await.unwrap().is_some());
            client.flush().await.ok();
            assert_eq!(controller.recording("a").map_err(kind), Err(Kind::Missing));
        })
    });
}

#[test]
fn a_recording_is_read_in_pieces_while_it_goes_on() {
    run(|controller| {
        Box::pin(async move {
            let (door, inbox) = door();
            controller.runtime().spawn(Box::pin(inbox.serve(Rc::clone(&controller))));
            let node = Node::new(vec![door]);
            node.begin().await.unwrap();
            let client = controller.open_volume("a").unwrap();
            node.record("a", 2 * PIECE as u64 * ENTRY_BYTES, NOON).await.unwrap();
            let read = async |from: u64, to: u64| {
                for at in from..to {
                    client.read(at, 1).await.unwrap();
                }
            };
            let piece = PIECE as u64;
            read(0, 2 * piece + 10).await;
            let mut reader = node.recorded("a").await.unwrap();
            assert_eq!((reader.recording().requests, reader.recording().overwritten), (2 * piece + 10, 10));
            let (first, entries) = reader.next().await.unwrap().unwrap();
            assert_eq!((first, entries.len()), (10, PIECE));
            // What is overwritten before it is read is missing, and what came later is not read.
            read(2 * piece + 10, 3 * piece + 30).await;
            let (first, entries) = reader.next().await.unwrap().unwrap();
            let offsets: Vec<_> = entries.iter().map(|entry| entry.offset_bytes).collect();
            assert_eq!((first, offsets), (piece + 30, (piece + 30..2 * piece + 10).collect()));
            assert!(reader.next().await.unwrap().is_none());

            // A reader does not go on in another recording.
            let mut reader = node.recorded("a").await.unwrap();
            reader.next().await.unwrap().unwrap();
            node.delete_recording("a").await.unwrap();
            node.record("a", MEMORY_MIN_BYTES, NOON + Duration::from_secs(1)).await.unwrap();
            assert_eq!(reader.next().await.err().map(|error| error.kind()), Some(Kind::Missing));
            assert_eq!(node.recordings().await.unwrap().len(), 1);
            assert_eq!(
                node.record("c", MEMORY_MIN_BYTES, NOON).await.err().map(|error| error.kind()),
                Some(Kind::Missing)
            );

            // What a full pool drops goes past the controller.
            controller.store().delete("a").await.unwrap();
            assert_eq!(node.recording("a").await.unwrap(), node.recordings().await.unwrap()[0]);
            assert!(node.recorded("a").await.unwrap().next().await.unwrap().is_none());
            node.stop_recording("a").await.unwrap();
            node.delete_recording("a").await.unwrap();
            assert!(node.recordings().await.unwrap().is_empty());
            assert_eq!(node.delete_recording("a").await.err().map(|error| error.kind()), Some(Kind::Missing));
            assert_eq!(node.delete_recording("b").await.err().map(|error| error.kind()), Some(Kind::Missing));
        })
    });
}
