//! Copies that take long.

use crate::asked::ask;
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, directory_on, opened, reopened, run};
use kura_s3::{Service, converse};
use std::rc::Rc;
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
