//! Copies: those that take long, that fail, and that go nowhere.

use crate::asked::{ask, open_service};
use crate::conditions::{code, refused};
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, NoSnapshots, directory_on, door_and_end, opened, reopened, run};
use kura_block::Buf;
use kura_object::{Batch, Put, Store};
use kura_s3::{Directory, Service, converse};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, duplex};
use tokio::sync::watch;
use tokio::task::spawn_local;

/// A service whose every read takes longer than clients wait, and which has an object.
async fn slow(content: &[u8]) -> (Service, Rc<Memory>) {
    let device = Memory::new();
    let (directory, store) = directory_on(&device).await;
    let service = Service::new(directory);
    open_to_all(&service).await;
    assert_eq!(ask(&service, "PUT /demo/a", "x-amz-meta-of: cat\r\n", content).await.status, 200);
    assert_eq!(ask(&service, "PUT /demo/lost", "", &b"lost".repeat(50_000)).await.status, 200);
    store.close().await.expect("it ends");
    let service = Service::new(reopened(&opened(&device).await).await);
    device.slow_down(Duration::from_secs(70));
    (service, device)
}

fn content() -> Vec<u8> {
    (0..300_000_u32).map(|at| (at / 1000) as u8).collect()
}

/// Says this and goes away after half a minute.
async fn give_up(service: &Service, line: &str) {
    let (mut ours, theirs) = duplex(4096);
    let service = service.clone();
    let ends = spawn_local(async move {
        let (_stop, stopping) = watch::channel(false);
        converse(theirs, service, stopping).await;
    });
    let said = format!("{line} HTTP/1.1\r\nHost: s3\r\nx-amz-copy-source: /demo/a\r\nContent-Length: 0\r\n\r\n");
    ours.write_all(said.as_bytes()).await.expect("it is listened to");
    tokio::time::sleep(Duration::from_secs(30)).await;
    drop(ours);
    ends.await.expect("the connection ends");
}

#[test]
fn a_copy_whose_client_gives_up_comes_to_its_end() {
    run(async {
        let (service, device) = slow(&content()).await;
        let begun = ask(&service, "POST /demo/m?uploads", "", b"").await.text();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an upload").0;
        give_up(&service, "PUT /demo/b").await;
        give_up(&service, &format!("PUT /demo/m?partNumber=1&uploadId={id}")).await;
        tokio::time::sleep(Duration::from_mins(20)).await;
        device.slow_down(Duration::ZERO);
        assert_eq!(ask(&service, "GET /demo/b", "", b"").await.body, content());
        let parts = ask(&service, &format!("GET /demo/m?uploadId={id}"), "", b"").await.text();
        assert!(parts.contains("<Size>300000</Size>"), "{parts}");
    });
}

#[test]
fn a_copy_that_takes_long_is_answered_in_time() {
    run(async {
        let (service, device) = slow(&content()).await;
        let copy = ask(&service, "PUT /demo/b", "x-amz-copy-source: /demo/a\r\n", b"").await;
        let text = copy.text();
        assert_eq!((copy.status, text.matches("<?xml").count()), (200, 1), "{copy:?}");
        assert!(text.contains("<CopyObjectResult") && text.contains("<ETag>"), "{text}");
        assert!(copy.header("x-amz-request-id").is_some(), "{copy:?}");
        let copy = ask(&service, "PUT /demo/c", "x-amz-copy-source: /demo/none\r\n", b"").await;
        assert_eq!(copy.status, 404, "what is known at once is told as ever: {copy:?}");
        device.lose(&b"lost".repeat(100));
        let copy = ask(&service, "PUT /demo/c", "x-amz-copy-source: /demo/lost\r\n", b"").await;
        let text = copy.text();
        assert_eq!((copy.status, text.matches("<?xml").count()), (200, 1), "{copy:?}");
        assert!(text.contains("<Error><Code>InternalError</Code>"), "{text}");
        device.slow_down(Duration::ZERO);
        let got = ask(&service, "GET /demo/b", "", b"").await;
        assert_eq!((got.body == content(), got.header("x-amz-meta-of")), (true, Some("cat")));
        assert_eq!(ask(&service, "GET /demo/c", "", b"").await.status, 404);
    });
}

/// A store that was opened anew, with an object `demo/a` of two parts, each of which says this again and again, and which are
/// read one after the other. They are small: what is hashed beside bodies of other tests keeps time from passing here alone.
async fn in_parts(parts: [&str; 2]) -> (Rc<Memory>, Store) {
    let device = Memory::new();
    let (directory, store) = directory_on(&device).await;
    open_to_all(&Service::new(directory)).await;
    let bucket = store.partition(b"demo").await.expect("the bucket").id;
    for (key, part) in [b"1", b"2"].into_iter().zip(parts) {
        let mut upload = store.upload_part();
        upload.write(Buf::copy_of(part.repeat(5000).as_bytes()).into()).await.expect("room");
        let content = upload.finish().await.expect("room");
        store.put(bucket, key, Put { content, ..Put::default() }).await.expect("a part");
    }
    let keys = vec![(bucket, b"1".to_vec()), (bucket, b"2".to_vec())];
    let mut batch = Batch::new();
    batch.join(bucket, b"a", keys, Put { tag: vec![0; 16], ..Put::default() });
    store.commit(batch).await.expect("an object");
    store.close().await.expect("it ends");
    let store = opened(&device).await;
    (device, store)
}

#[test]
fn a_copy_tells_what_its_source_failed_of() {
    run(async {
        let (device, store) = in_parts(["fine", "lost"]).await;
        let service = Service::new(reopened(&store).await);
        device.lose(&b"lost".repeat(100));
        let begun = ask(&service, "POST /demo/m?uploads", "", b"").await.text();
        let id = begun.split_once("<UploadId>").and_then(|(_, rest)| rest.split_once('<')).expect("an upload").0;
        for line in ["PUT /demo/b", &format!("PUT /demo/m?partNumber=1&uploadId={id}")] {
            let told = code(&service, line, "x-amz-copy-source: /demo/a\r\n", b"").await;
            assert_eq!(told, refused(500, "InternalError"), "{line}");
        }
    });
}

#[test]
fn a_copy_whose_store_is_closed_meanwhile_is_to_be_tried_again() {
    let mut closed = 0;
    for moment in 1..60 {
        run(async {
            let (device, store) = in_parts(["fine", "lost"]).await;
            let (door, end) = door_and_end(&store);
            let directory = Directory::open(door, Arc::new(NoSnapshots), None, || Ok(())).await.expect("a directory");
            let service = Service::new(directory);
            // Sooner or later, but always before its client is told that it takes long.
            device.slow_down(Duration::from_millis(1500));
            let copy = async { code(&service, "PUT /demo/b", "x-amz-copy-source: /demo/a\r\n", b"").await };
            let close = async {
                tokio::time::sleep(Duration::from_millis(moment * 150)).await;
                end.abort();
            };
            let (told, ()) = futures::future::join(copy, close).await;
            if told.0 != 200 {
                assert_eq!(told, refused(503, "ServiceUnavailable"), "{moment}");
                closed += 1;
            }
        });
    }
    assert!(closed > 10, "{closed}");
}

#[test]
fn a_copy_to_itself_changes_something_and_a_directive_is_one_of_two() {
    run(async {
        let (service, _store) = open_service().await;
        let put = "x-amz-meta-of: cat\r\nx-amz-tagging: k=v\r\n";
        assert_eq!(ask(&service, "PUT /demo/a", put, b"hello").await.status, 200);
        let copy = async |to: &str, headers: &str| {
            let headers = format!("x-amz-copy-source: /demo/a\r\n{headers}");
            code(&service, &format!("PUT /demo/{to}"), &headers, b"").await
        };
        assert_eq!(copy("a", "").await, refused(400, "InvalidRequest"));
        for change in ["x-amz-storage-class: STANDARD", "x-amz-website-redirect-location: /b"] {
            assert_eq!(copy("a", &format!("{change}\r\n")).await.0, 200, "{change}");
        }
        let head = ask(&service, "HEAD /demo/a", "", b"").await;
        assert_eq!(head.header("x-amz-website-redirect-location"), Some("/b"));
        assert_eq!(head.header("x-amz-meta-of"), Some("cat"), "all else is as it was");
        assert!(ask(&service, "GET /demo/a?tagging", "", b"").await.text().contains("<Value>v</Value>"));
        for directive in ["x-amz-metadata-directive: REPLACED", "x-amz-tagging-directive: replace"] {
            let told = copy("b", &format!("{directive}\r\nx-amz-meta-of: dog\r\n")).await;
            assert_eq!(told, refused(400, "InvalidArgument"), "{directive}");
        }
        assert_eq!(ask(&service, "HEAD /demo/b", "", b"").await.status, 404);
        assert_eq!(copy("b", "x-amz-metadata-directive: COPY\r\nx-amz-tagging-directive: COPY\r\n").await.0, 200);
    });
}
