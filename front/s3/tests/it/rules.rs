//! Lifecycle rules, followed.

use crate::asked::ask;
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, directory, directory_on, run};
use kura_object::{Batch, Item, PartitionId, Put, Query, Store};
use kura_s3::{Directory, Service, sweep};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_local;

async fn set(service: &Service, what: &str, xml: &str) {
    let answer = ask(service, &format!("PUT /demo?{what}"), "", xml.as_bytes()).await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

/// Follows the rules once.
pub async fn follow(directory: &Arc<Directory>) {
    let (stop, stopping) = watch::channel(false);
    let sweeping = spawn_local(sweep(Arc::clone(directory), stopping));
    tokio::time::sleep(Duration::from_mins(1)).await;
    stop.send(true).expect("the task is there");
    sweeping.await.expect("the task ends");
}

async fn versions(store: &Store, bucket: PartitionId) -> Vec<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    let mut query = Query { versions: true, ..Query::default() };
    loop {
        let page = store.list(bucket, &query).await.expect("a list");
        all.extend(page.items.into_iter().filter_map(|item| match item {
            Item::Object { key, stat } => Some((key, stat.marker)),
            Item::Prefix(_) => None,
        }));
        match page.next {
            Some(after) => query.after = after,
            None => return all,
        }
    }
}

const VERSIONING: &str = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";

fn rule(what: &str) -> String {
    format!(
        "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter><Prefix>l/</Prefix></Filter>{what}\
         </Rule></LifecycleConfiguration>"
    )
}

/// A bucket with versions, in which everybody may do everything.
async fn versioned() -> (Arc<Directory>, Store, Service, PartitionId) {
    versioned_on(&Memory::new()).await
}

/// The same on this device.
async fn versioned_on(device: &Rc<Memory>) -> (Arc<Directory>, Store, Service, PartitionId) {
    let (directory, store) = directory_on(device).await;
    let service = Service::new(Arc::clone(&directory));
    open_to_all(&service).await;
    set(&service, "versioning", VERSIONING).await;
    let bucket = store.partition(b"demo").await.expect("the bucket").id;
    (directory, store, service, bucket)
}

#[test]
fn what_expires_with_versions_is_marked_and_what_is_not_current_goes() {
    run(async {
        let (directory, store, service, bucket) = versioned().await;
        for key in [b"l/a".as_slice(), b"other"] {
            for _ in 0..3 {
                // Long ago.
                let old = Put { content: b"old".as_slice().into(), modified_ms: 1, versioned: true, ..Put::default() };
                store.put(bucket, key, old).await.expect("a version");
            }
        }
        let noncurrent = "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays>\
                          <NewerNoncurrentVersions>1</NewerNoncurrentVersions></NoncurrentVersionExpiration>";
        set(&service, "lifecycle", &rule(noncurrent)).await;
        follow(&directory).await;
        let of = |key: &[u8], all: &[(Vec<u8>, bool)]| {
            all.iter().filter(|(own, _)| own == key).map(|(_, marker)| *marker).collect::<Vec<_>>()
        };
        let all = versions(&store, bucket).await;
        assert_eq!(of(b"l/a", &all), [false, false], "the current one, and the newest that is not");
        assert_eq!(of(b"other", &all).len(), 3);
        set(&service, "lifecycle", &rule("<Expiration><Days>1</Days></Expiration>")).await;
        follow(&directory).await;
        let all = versions(&store, bucket).await;
        assert_eq!(of(b"l/a", &all), [true, false, false], "a delete marker above what there was");
    });
}

const EXPIRED: &str = "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";

/// So many hundred markers above nothing.
async fn mark(store: &Store, bucket: PartitionId, hundreds: usize) {
    for some in 0..hundreds {
        let mut batch = Batch::new();
        for at in 0..100 {
            batch.mark(bucket, format!("l/{some:02}{at:02}").as_bytes(), 1, true);
        }
        store.commit(batch).await.expect("markers");
    }
}

#[test]
fn markers_above_nothing_go_wherever_a_step_ends() {
    run(async {
        let (directory, store, service, bucket) = versioned().await;
        mark(&store, bucket, 11).await;
        set(&service, "lifecycle", &rule(EXPIRED)).await;
        follow(&directory).await;
        assert_eq!(versions(&store, bucket).await, []);
        let both = "<Expiration><Days>1</Days><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>";
        for refused in [both, "<AbortIncompleteMultipartUpload/>", "<Transition><Days>1</Days></Transition>"] {
            let answer = ask(&service, "PUT /demo?lifecycle", "", rule(refused).as_bytes()).await;
            assert!(matches!(answer.status, 400 | 501), "{refused}: {answer:?}");
        }
    });
}

const LONG_AGO: &str = "<LifecycleConfiguration><Rule><ID>r</ID><Status>Enabled</Status><Filter><Tag><Key>k</Key><Value>v</Value>\
                        </Tag></Filter><Expiration><Date>2020-01-01T00:00:00Z</Date></Expiration></Rule>\
                        </LifecycleConfiguration>";

#[test]
fn a_version_that_cannot_be_read_keeps_no_other_from_what_the_rules_say() {
    run(async {
        let device = Memory::new();
        let (directory, store) = directory_on(&device).await;
        let service = Service::new(Arc::clone(&directory));
        open_to_all(&service).await;
        for key in ["a", "lost", "z"] {
            let answer =
                ask(&service, &format!("PUT /demo/{key}"), "x-amz-tagging: k=v\r\n", key.repeat(30).as_bytes()).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        device.lose("lost".repeat(30).as_bytes());
        set(&service, "lifecycle", LONG_AGO).await;
        follow(&directory).await;
        let bucket = store.partition(b"demo").await.expect("the bucket").id;
        assert_eq!(versions(&store, bucket).await, [(b"lost".to_vec(), false)]);
    });
}

#[test]
fn a_sweep_that_is_to_stop_begins_no_step() {
    run(async {
        let (directory, store) = directory().await;
        let service = Service::new(Arc::clone(&directory));
        open_to_all(&service).await;
        assert_eq!(ask(&service, "PUT /demo/a", "x-amz-tagging: k=v\r\n", b"one").await.status, 200);
        set(&service, "lifecycle", LONG_AGO).await;
        let (_stop, stopping) = watch::channel(true);
        sweep(Arc::clone(&directory), stopping).await;
        let bucket = store.partition(b"demo").await.expect("the bucket").id;
        assert_eq!(versions(&store, bucket).await, [(b"a".to_vec(), false)]);
        follow(&directory).await;
        assert_eq!(versions(&store, bucket).await, []);
    });
}

#[test]
fn versions_end_together() {
    run(async {
        let device = Memory::new();
        let (directory, store, service, bucket) = versioned_on(&device).await;
        mark(&store, bucket, 4).await;
        set(&service, "lifecycle", &rule(EXPIRED)).await;
        let flushes = device.flushes();
        follow(&directory).await;
        let flushes = device.flushes() - flushes;
        assert_eq!(versions(&store, bucket).await, []);
        assert!(flushes < 60, "{flushes} flushes");
    });
}

#[test]
fn a_sweep_that_is_told_to_stop_ends_within_its_step() {
    run(async {
        let device = Memory::new();
        let (directory, store, service, bucket) = versioned_on(&device).await;
        mark(&store, bucket, 4).await;
        set(&service, "lifecycle", &rule(EXPIRED)).await;
        // What is begun waits for the device.
        device.stall(true);
        let (stop, stopping) = watch::channel(false);
        let sweeping = spawn_local(sweep(Arc::clone(&directory), stopping));
        tokio::time::sleep(Duration::from_millis(100)).await;
        stop.send(true).expect("the task is there");
        device.stall(false);
        sweeping.await.expect("the task ends");
        let left = versions(&store, bucket).await.len();
        assert!((1..400).contains(&left), "it did all of its step, or nothing: {left}");
        follow(&directory).await;
        assert_eq!(versions(&store, bucket).await, []);
    });
}
