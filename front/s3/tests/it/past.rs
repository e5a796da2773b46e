//! Buckets as snapshots have them: how many are open at a time.

use crate::asked::ask;
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, door, door_and_end, opened, reopened_with, run};
use kura_block::{Error, Kind};
use kura_object::{Format, Store};
use kura_s3::{Directory, Door, Grant, Job, NewKey, Service, Snapshots, converse};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::spawn_local;

/// Snapshots of any name, of which each has what the store has now; and how many are open.
struct Alike {
    store: Arc<dyn Door>,
    open: Arc<AtomicUsize>,
    /// How long each takes to open.
    takes: Duration,
}

struct One(Arc<dyn Door>, Arc<AtomicUsize>);

impl Door for One {
    fn send(&self, job: Job) {
        self.0.send(job);
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait::async_trait]
impl Snapshots for Alike {
    async fn name(&self, snapshot: &str) -> kura_block::Result<String> {
        Ok(snapshot.to_lowercase())
    }

    async fn open(&self, _snapshot: &str) -> kura_block::Result<Arc<dyn Door>> {
        self.open.fetch_add(1, Ordering::Relaxed);
        let (store, open, takes) = (Arc::clone(&self.store), Arc::clone(&self.open), self.takes);
        // As on the store's thread, which nobody stops.
        let opened = tokio::spawn(async move {
            tokio::time::sleep(takes).await;
            One(store, open)
        });
        Ok(Arc::new(opened.await.expect("it is opened")))
    }
}

/// Asks for an object and takes no byte of it.
async fn stall(service: &Service, path: &str) -> DuplexStream {
    let (mut ours, theirs) = duplex(4096);
    let service = service.clone();
    spawn_local(async move {
        let (_stop, stopping) = watch::channel(false);
        converse(theirs, service, stopping).await;
    });
    ours.write_all(format!("GET {path} HTTP/1.1\r\nHost: s3\r\n\r\n").as_bytes()).await.expect("it is listened to");
    tokio::time::sleep(Duration::from_secs(1)).await;
    ours
}

/// A service beside snapshots that take so long to open, and how many of them are open.
async fn service(takes: Duration) -> (Service, Arc<AtomicUsize>) {
    let (directory, open) = directory(takes).await;
    (Service::new(directory), open)
}

/// The same, of the buckets.
async fn directory(takes: Duration) -> (Arc<Directory>, Arc<AtomicUsize>) {
    let device = Memory::new();
    Store::format(&*device, Format { id: [7; 16], segment_bytes: None }).await.expect("a store");
    let store = opened(&device).await;
    let open = Arc::new(AtomicUsize::new(0));
    let snapshots = Alike { store: door(&store), open: Arc::clone(&open), takes };
    let directory = reopened_with(&store, snapshots).await;
    directory.create_bucket("demo").await.expect("a bucket");
    open_to_all(&Service::new(Arc::clone(&directory))).await;
    (directory, open)
}

#[test]
fn a_snapshot_whose_client_goes_away_is_opened_once() {
    run(async {
        let (service, open) = service(Duration::from_secs(100)).await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"kept").await.status, 200);
        for retry in 0..6 {
            let letters = if retry % 2 == 0 { "monday" } else { "Monday" };
            drop(stall(&service, &format!("/demo@{letters}/a")).await);
            tokio::time::sleep(Duration::from_secs(5)).await;
            assert_eq!(open.load(Ordering::Relaxed), 1, "{retry}");
        }
        assert_eq!(ask(&service, "GET /demo@monday/a", "", b"").await.body, b"kept");
        // All that are being opened count, whether anybody waits for them or not.
        for snapshot in ["a", "b", "c", "d", "e"] {
            drop(stall(&service, &format!("/demo@{snapshot}/a")).await);
        }
        assert_eq!(open.load(Ordering::Relaxed), 4);
        assert_eq!(ask(&service, "GET /demo@f/a", "", b"").await.status, 503);
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(open.load(Ordering::Relaxed), 0, "nobody asks any more");
    });
}

#[test]
fn few_snapshots_are_open_at_a_time() {
    run(async {
        let (service, open) = service(Duration::ZERO).await;
        let content = vec![7; 1_300_000];
        assert_eq!(ask(&service, "PUT /demo/a", "", &content).await.status, 200);
        for snapshot in 0..10 {
            assert_eq!(ask(&service, &format!("GET /demo@{snapshot}/a"), "", b"").await.body, content);
            assert_eq!(open.load(Ordering::Relaxed), 4.min(snapshot + 1));
        }
        // Those that are being read stay, and no more are opened.
        let mut readers = Vec::new();
        for snapshot in 8..12 {
            readers.push(stall(&service, &format!("/demo@{snapshot}/a")).await);
            assert_eq!(open.load(Ordering::Relaxed), 4);
        }
        let refused = ask(&service, "GET /demo@12/a", "", b"").await;
        assert_eq!((refused.status, open.load(Ordering::Relaxed)), (503, 4), "{}", refused.text());
        assert_eq!(ask(&service, "GET /demo@11/a", "", b"").await.body, content);
        drop(readers.remove(1));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(ask(&service, "GET /demo@12/a", "", b"").await.body, content);
        assert_eq!(open.load(Ordering::Relaxed), 4);
        drop(readers);
        tokio::time::sleep(Duration::from_mins(3)).await;
        assert_eq!(open.load(Ordering::Relaxed), 0, "nobody asks any more");
    });
}

#[test]
fn nothing_goes_on_for_a_snapshot_that_is_closed() {
    run(async {
        let (directory, open) = directory(Duration::ZERO).await;
        let service = Service::new(Arc::clone(&directory));
        let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = tasks();
        for _ in 0..10 {
            assert_eq!(ask(&service, "GET /demo@monday/a", "", b"").await.status, 404);
            directory.close_snapshot("monday");
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!((open.load(Ordering::Relaxed), tasks()), (0, before));
        }
    });
}

#[test]
fn a_snapshots_bucket_is_shown_to_whom_the_bucket_is_and_no_key_names_it() {
    run(async {
        let (directory, _open) = directory(Duration::ZERO).await;
        let service = Service::new(Arc::clone(&directory));
        let rules = b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>\
                      </CORSConfiguration>";
        assert_eq!(ask(&service, "PUT /demo?cors", "", rules).await.status, 200);
        for bucket in ["demo", "demo.at.monday"] {
            let answer = ask(&service, &format!("GET /{bucket}/a"), "Origin: http://page\r\n", b"").await;
            assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{bucket}: {answer:?}");
        }
        for (name, kind) in [("demo@monday", Kind::Invalid), ("none", Kind::Missing)] {
            let new = NewKey { buckets: [(name.to_owned(), Grant::Read)].into(), ..NewKey::default() };
            assert_eq!(directory.create_key(new).await.expect_err("it would open nothing").kind(), kind, "{name}");
        }
    });
}

#[test]
fn whether_a_rollback_left_a_store_to_be_served_is_told() {
    run(async {
        let (directory, _open) = directory(Duration::ZERO).await;
        let device = Memory::new();
        Store::format(&*device, Format { id: [8; 16], segment_bytes: None }).await.expect("a store");
        let other = opened(&device).await;
        let (closed, end) = door_and_end(&other);
        end.abort();
        let lost = directory.go_over(async { Ok(closed) }, || Ok(())).await;
        assert!(lost.is_err() && directory.find("demo").is_some(), "it is where it was");
        let kept = || Err(Error::device("the file of the keys stays"));
        let gone = directory.go_over(async { Ok(door(&other)) }, kept).await.expect("it went over");
        assert!(gone.is_err() && directory.find("demo").is_none(), "another store is served");
    });
}
