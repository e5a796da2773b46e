//! The REST door and its client over a real node, on small files.

use crate::serve::data::DataDir;
use crate::serve::disks::{Book, Planned};
use crate::serve::node::{Models, Running, Shape, make_pool};
use crate::serve::replica::Keeper;
use crate::serve::schedules::{Schedules, carry_out};
use crate::size::Size;
use kura_admin::{
    Access, Admin, CheckRequest, Client, ClientError, DiskClass, DiskState, Follow, Health, JobResult, JobState,
    Layout, Listener, NewClone, NewDisk, NewSnapshots, NewTransfer, NewVolume, ProblemKind, ResizeVolume, ServerUri,
    SnapshotSchedule, Timestamp,
};
use kura_block::BufMut;
use metrics_exporter_prometheus::PrometheusBuilder;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

const MIB: u64 = 1 << 20;
const SHAPE: Shape = Shape { controllers: Some(2), extent_bytes: MIB, journal_bytes: 16 * MIB, floating_percent: 0 };

/// A pool of two fast and three slow files.
fn made() -> (TempDir, DataDir) {
    let directory = tempfile::tempdir().unwrap();
    let mut data = DataDir::open(&directory.path().join("data")).unwrap();
    let disk = |name: &str, class, size_mib| Planned {
        path: directory.path().join(name),
        class,
        size: Some(Size(size_mib * MIB)),
    };
    let mut planned: Vec<Planned> =
        ["fast0", "fast1"].map(|name| disk(name, kura_controller::DiskClass::Fast, 64)).to_vec();
    planned.extend(["slow0", "slow1", "slow2"].map(|name| disk(name, kura_controller::DiskClass::Slow, 64)));
    aside(|| make_pool(&planned, SHAPE, false, &data, &Book::open(&data).unwrap())).unwrap();
    data.finish().unwrap();
    (directory, data)
}

/// Controllers run on threads of their own, and not within another runtime.
fn aside<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(work).join().unwrap())
}

struct Served {
    client: Client,
    running: Running,
    stop: watch::Sender<bool>,
    door: JoinHandle<()>,
}

async fn serve(data: &DataDir) -> Served {
    let book = Book::open(data).unwrap();
    let config = kura_controller::Config::default();
    let spared = crate::serve::replica::needed(data).unwrap();
    let start = || Running::start(book.candidates(&[]), &book, Models::new(), config, &spared, |_| Ok(()));
    let running = aside(start).unwrap();
    book.settle(&running.node.pool().await.unwrap()).unwrap();
    let admin = Admin {
        node: running.node.clone(),
        metrics: PrometheusBuilder::new().build_recorder().handle(),
        version: "1.2.3".to_owned(),
        data: data.path().display().to_string(),
        nbd: vec![],
        s3: None,
        s3_failure: None,
        rest: Some("http://127.0.0.1:1".to_owned()),
        disks: Arc::new(book),
        objects: None,
        objects_volume: crate::serve::s3::VOLUME,
        schedules: Arc::new(Schedules::open(data).unwrap()),
        replicas: Arc::new(Keeper::open(data, running.node.clone()).unwrap()),
        passed_percent: watch::channel(None).1,
        started_at: Timestamp::now(),
    };
    let socket = data.join("admin.sock");
    let _ = std::fs::remove_file(&socket);
    let listener = Listener::Unix(UnixListener::bind(&socket).unwrap());
    let (stop, stopping) = watch::channel(false);
    let door = tokio::spawn(kura_admin::serve(
        listener,
        Access::Reach,
        kura_admin::router(admin),
        crate::serve::console::PAGES,
        stopping,
    ));
    Served { client: Client::new(ServerUri::Unix(socket), None, None), running, stop, door }
}

impl Served {
    async fn stop(self) {
        self.stop.send(true).unwrap();
        self.door.await.unwrap();
        self.running.node.stop().await.unwrap();
        self.running.join();
    }

    /// Writes a megabyte at the volume's start, on the thread that owns it.
    async fn write(&self, name: &'static str) {
        self.put(name, 7).await;
    }

    /// The same of this byte.
    async fn put(&self, name: &'static str, byte: u8) {
        let (door, _) = self.running.node.find(name).await.unwrap();
        let written = door.call(move |controller| {
            Box::pin(async move {
                let mut data = BufMut::zeroed(MIB as usize);
                data.fill(byte);
                controller.open_volume(name)?.write(0, data.freeze().into(), true).await
            })
        });
        written.await.unwrap().unwrap();
    }

    /// The volume's first byte.
    async fn first(&self, name: &'static str) -> u8 {
        let (door, _) = self.running.node.find(name).await.unwrap();
        let read = door.call(move |controller| {
            Box::pin(async move { Ok(controller.open_volume(name)?.read(0, 4096).await?.contiguous()[0]) })
        });
        let read: kura_block::Result<u8> = read.await.unwrap();
        read.unwrap()
    }
}

fn volume(name: &str, size_mib: u64) -> NewVolume {
    let (name, size_bytes) = (name.to_owned(), size_mib * MIB);
    NewVolume { name, size_bytes, layout: Some(Layout::Mirror), thick: false, read_only: false }
}

fn kind<T: std::fmt::Debug>(answer: Result<T, ClientError>) -> ProblemKind {
    match answer {
        Err(ClientError::Refused(problem)) => problem.kind,
        other => panic!("no refusal: {other:?}"),
    }
}

#[tokio::test]
async fn volumes_live_through_their_door_and_through_a_restart() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    let client = &served.client;
    let made = client.create_volume(&volume("a b", 8)).await.unwrap();
    assert_eq!((made.name.as_str(), made.size_bytes, made.layout, made.clients), ("a b", 8 * MIB, Layout::Mirror, 0));
    assert_eq!(kind(client.create_volume(&volume("a b", 8)).await), ProblemKind::Exists);
    assert_eq!(kind(client.create_volume(&NewVolume { size_bytes: 5, ..volume("c", 0) }).await), ProblemKind::Invalid);
    let large = NewVolume { thick: true, ..volume("large", 1 << 10) };
    assert_eq!(kind(client.create_volume(&large).await), ProblemKind::Full);
    let other = client.create_volume(&volume("c", 4)).await.unwrap();
    assert_ne!(other.controller, made.controller, "volumes are spread over controllers");

    let to = |size_mib: u64, shrink| ResizeVolume { size_bytes: size_mib * MIB, shrink };
    assert_eq!(client.resize_volume("a b", to(16, false), false).await.unwrap().size_bytes, 16 * MIB);
    assert_eq!(kind(client.resize_volume("a b", to(4, false), false).await), ProblemKind::Invalid);
    assert_eq!(client.resize_volume("a b", to(4, true), false).await.unwrap().size_bytes, 4 * MIB);
    assert_eq!(kind(client.resize_volume("d", to(4, true), false).await), ProblemKind::Missing);

    served.write("c").await;
    client.delete_volume("a b", false).await.unwrap();
    assert_eq!(kind(client.volume("a b").await), ProblemKind::Missing);
    served.stop().await;

    let served = serve(&data).await;
    let volumes = served.client.volumes().await.unwrap();
    assert_eq!(volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["c"]);
    assert_eq!((volumes[0].allocated_bytes, volumes[0].raw_bytes), (MIB, 2 * MIB));
    served.stop().await;
}

#[tokio::test]
async fn a_check_is_a_job_that_is_followed_to_its_end() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    served.client.create_volume(&volume("a", 8)).await.unwrap();
    served.write("a").await;
    let job = served.client.check(CheckRequest { data: true, dry_run: false }).await.unwrap();
    let mut seen = 0;
    let ended = served.client.follow(job.id, |_| seen += 1).await.unwrap();
    let Some(JobResult::Check(result)) = ended.result else { panic!("{ended:?}") };
    assert_eq!((ended.done, ended.total), (MIB, MIB), "bytes of its extents");
    assert_eq!((ended.state, ended.id, seen > 0), (JobState::Done, job.id, true));
    assert_eq!((result.volumes, result.blocks, result.violations), (1, MIB / 4096, vec![]));
    served.stop().await;
}

/// Whoever asked for a disk goes away in the middle of it: the disk is in the pool all the same, and remembered.
#[tokio::test]
async fn a_disk_that_nobody_waits_for_joins() {
    let (directory, data) = made();
    let served = serve(&data).await;
    let path = directory.path().join("slow3");
    let name = path.display().to_string();
    let new = NewDisk { path: name.clone(), class: DiskClass::Slow, size_bytes: Some(64 * MIB), force: false };
    let client = served.client.clone();
    let asked = tokio::spawn(async move { client.add_disk(&new).await });
    // It is made to be labelled next.
    while !path.exists() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    asked.abort();
    let has_joined = async || {
        let disks = served.client.disks().await.unwrap();
        disks.iter().any(|disk| disk.path == name && disk.state == DiskState::Healthy)
    };
    for _ in 0..1000 {
        if has_joined().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(has_joined().await);
    let book = std::fs::read_to_string(data.join("disks.json")).unwrap();
    assert!(book.contains(&name), "the next start would not look for it: {book}");
    served.stop().await;
}

/// Two ask for the same disk, as one does who gave up and tries again.
#[tokio::test]
async fn a_disk_joins_once() {
    let (directory, data) = made();
    let served = serve(&data).await;
    let path = directory.path().join("slow3").display().to_string();
    let new = NewDisk { path: path.clone(), class: DiskClass::Slow, size_bytes: Some(64 * MIB), force: true };
    let asked = (0..4).map(|_| served.client.add_disk(&new));
    let (joined, refused): (Vec<_>, Vec<_>) =
        futures::future::join_all(asked).await.into_iter().partition(std::result::Result::is_ok);
    assert_eq!(joined.len(), 1);
    assert!(refused.into_iter().all(|answer| kind(answer) == ProblemKind::Busy));
    served.stop().await;
    let served = serve(&data).await;
    let disks = served.client.disks().await.unwrap();
    assert!(disks.len() == 6 && disks.iter().all(|disk| disk.state == DiskState::Healthy), "{disks:?}");
    served.stop().await;
}

/// The last server ended when it had noted where a disk is and the pool did not have it, or no longer.
#[tokio::test]
async fn what_the_pool_does_not_have_is_not_missed() {
    let (directory, data) = made();
    let blank = directory.path().join("slow3");
    std::fs::File::create(&blank).unwrap().set_len(64 * MIB).unwrap();
    let path = blank.display().to_string();
    Book::open(&data).unwrap().note([(Uuid::from_u128(7), path.clone())]).unwrap();
    let served = serve(&data).await;
    assert_eq!(served.client.status().await.unwrap().health, Health::Healthy);
    let book = std::fs::read_to_string(data.join("disks.json")).unwrap();
    assert!(!book.contains("slow3") && book.contains("slow2"), "{book}");
    let new = NewDisk { path, class: DiskClass::Slow, size_bytes: None, force: false };
    served.client.add_disk(&new).await.unwrap();
    served.stop().await;
}

/// A second site that knows less than the copy does asks for a point that is there.
#[tokio::test]
async fn a_point_that_a_copy_has_had_is_gone_back_to() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    let client = &served.client;
    client.create_volume(&volume("v", 8)).await.unwrap();
    for (byte, point) in [(1, "one"), (2, "two")] {
        served.put("v", byte).await;
        client.create_snapshots(&NewSnapshots { names: vec![format!("v@{point}")], read_only: true }).await.unwrap();
    }
    served.put("v", 3).await;
    client.follow_source("v", &Follow::default()).await.unwrap();
    let transfer = NewTransfer { since: Some("one".into()), to: "two".into(), size_bytes: 8 * MIB, source: None };
    for _ in 0..2 {
        let begun = client.begin_transfer("v", &transfer).await.unwrap();
        assert!(begun.transfer.is_none() && begun.point.as_deref() == Some("two"), "{begun:?}");
        assert_eq!(served.first("v").await, 2);
    }
    served.stop().await;
}

/// Whoever asked did not hear the answer: asked again, what was written since stays.
#[tokio::test]
async fn a_copy_that_was_let_go_is_let_go() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    let client = &served.client;
    client.create_volume(&volume("v", 8)).await.unwrap();
    client.create_snapshots(&NewSnapshots { names: vec!["v@one".into()], read_only: true }).await.unwrap();
    client.follow_source("v", &Follow { point: Some("one".into()), ..Follow::default() }).await.unwrap();
    let first = client.promote("v").await.unwrap();
    served.put("v", 5).await;
    assert_eq!(client.promote("v").await.unwrap(), first);
    assert_eq!(served.first("v").await, 5);
    served.stop().await;
}

#[tokio::test]
async fn a_clone_may_become_a_copy_and_a_snapshot_may_not() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    let client = &served.client;
    client.create_volume(&volume("v", 8)).await.unwrap();
    client.create_snapshots(&NewSnapshots { names: vec!["v@one".into()], read_only: false }).await.unwrap();
    client.clone_snapshot("v@one", NewClone { name: "c".into() }).await.unwrap();
    client.follow_source("c", &Follow::default()).await.unwrap();
    assert_eq!(kind(client.follow_source("v@one", &Follow::default()).await), ProblemKind::Missing);
    served.stop().await;
}

/// A schedule that can make none for a while deletes what is too many all the same.
#[tokio::test]
async fn a_schedule_that_makes_nothing_deletes() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    let client = &served.client;
    let id = client.create_volume(&volume("v", 8)).await.unwrap().id;
    for second in 0..4 {
        let names = vec![format!("v@auto-20260101T00000{second}Z")];
        client.create_snapshots(&NewSnapshots { names, read_only: true }).await.unwrap();
    }
    // Of a copy no snapshots are made.
    client.follow_source("v", &Follow::default()).await.unwrap();
    let (node, schedules) = (served.running.node.clone(), Arc::new(Schedules::open(&data).unwrap()));
    let (volume, prefix) = ("v".to_owned(), "auto".to_owned());
    kura_admin::Schedules::add(&*schedules, id, SnapshotSchedule { volume, prefix, every_s: 1, keep: 2 }).unwrap();
    let keeper = Arc::new(Keeper::open(&data, node.clone()).unwrap());
    let (stop, stopping) = watch::channel(false);
    let carried = tokio::spawn(carry_out(node, schedules, keeper, stopping));
    let mut left = 4;
    for _ in 0..100 {
        left = client.snapshots(Some("v")).await.unwrap().len();
        if left < 4 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    stop.send(true).unwrap();
    carried.await.unwrap();
    assert_eq!(left.min(client.snapshots(Some("v")).await.unwrap().len()), 2);
    served.stop().await;
}

/// The store is not served, and its volume there all the same.
#[tokio::test]
async fn nothing_is_cloned_of_the_object_store() {
    let (_directory, data) = made();
    let served = serve(&data).await;
    let spec = kura_controller::VolumeSpec {
        name: crate::serve::s3::VOLUME.to_owned(),
        size_bytes: 8 * MIB,
        layout: kura_controller::Layout::Mirror,
        thick: false,
        read_only: false,
    };
    served.running.node.create_volume(spec).await.unwrap();
    for snapshot in ["objects@a", "objects@a@b"] {
        let names = vec![snapshot.to_owned()];
        served.client.create_snapshots(&NewSnapshots { names, read_only: false }).await.unwrap();
        let made = served.client.clone_snapshot(snapshot, NewClone { name: "leak".into() }).await;
        assert_eq!(kind(made), ProblemKind::Invalid, "{snapshot}");
    }
    assert_eq!(kind(served.client.volume("leak").await), ProblemKind::Missing);
    served.stop().await;
}

#[tokio::test]
async fn disks_join_fail_and_are_missed_by_name() {
    let (directory, data) = made();
    let served = serve(&data).await;
    let client = &served.client;
    let path = directory.path().join("slow3").display().to_string();
    let new = NewDisk { path: path.clone(), class: DiskClass::Slow, size_bytes: Some(64 * MIB), force: false };
    let missing = NewDisk { size_bytes: None, ..new.clone() };
    assert_eq!(kind(client.add_disk(&missing).await), ProblemKind::Missing);
    let before = client.pool().await.unwrap().data_bytes;
    let added = client.add_disk(&new).await.unwrap();
    assert_eq!((added.id, added.state, added.path.as_str()), (5, DiskState::Healthy, path.as_str()));
    assert_eq!(client.pool().await.unwrap().data_bytes, before + added.data_bytes);
    assert_eq!(
        kind(client.add_disk(&NewDisk { force: true, ..missing }).await),
        ProblemKind::Busy,
        "it is a member, and locked"
    );

    client.fail_disk(3, false).await.unwrap();
    assert_eq!(kind(client.fail_disk(9, false).await), ProblemKind::Missing);
    let status = client.status().await.unwrap();
    assert_eq!(status.health, Health::Degraded);
    assert!(status.problems[0].contains("slow1"), "{:?}", status.problems);
    served.stop().await;

    std::fs::remove_file(Path::new(&path)).unwrap();
    let served = serve(&data).await;
    let disks = served.client.disks().await.unwrap();
    assert_eq!((disks[5].state, disks[5].path.as_str()), (DiskState::Missing, path.as_str()), "named by where it was");
    assert_eq!(disks[3].state, DiskState::Failed, "a disk stays failed");
    served.stop().await;
}
