//! Versioning that is switched while something is under way: from then on the version without a number is kept.

use crate::asked::{Answer, ask};
use crate::fuzz_body::open_to_all;
use crate::local::{Memory, directory, directory_on, opened, reopened, run};
use bytes::Bytes;
use futures::future::join;
use kura_s3::{Desk, Head, Service, converse};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::sync::watch;
use tokio::task::spawn_local;
use tokio::time::Instant;

async fn enable(service: &Service) {
    let enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    assert_eq!(ask(service, "PUT /demo?versioning", "", enabled).await.status, 200);
}

async fn unnumbered(service: &Service) -> Answer {
    ask(service, "GET /demo/a?versionId=null", "", b"").await
}

#[test]
fn a_put_whose_body_is_coming_keeps_what_was_there() {
    run(async {
        let (directory, _store) = directory().await;
        let service = Service::new(directory);
        open_to_all(&service).await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"old").await.status, 200);
        let (mut ours, theirs) = duplex(4096);
        let serving = service.clone();
        let ends = spawn_local(async move {
            let (_stop, stopping) = watch::channel(false);
            converse(theirs, serving, stopping).await;
        });
        let half = b"PUT /demo/a HTTP/1.1\r\nHost: s3\r\nConnection: close\r\nContent-Length: 8\r\n\r\nhalf";
        ours.write_all(half).await.expect("it is listened to");
        tokio::time::sleep(Duration::from_secs(1)).await;
        // What else is set on the bucket makes no other one of it.
        open_to_all(&service).await;
        enable(&service).await;
        ours.write_all(b"rest").await.expect("it is listened to");
        let mut heard = String::new();
        ours.read_to_string(&mut heard).await.expect("an answer");
        ends.await.expect("the connection ends");
        assert!(heard.starts_with("HTTP/1.1 200 "), "{heard}");
        let version = heard.lines().find_map(|line| line.strip_prefix("x-amz-version-id: ")).expect("a version");
        assert_eq!(unnumbered(&service).await.body, b"old");
        let new = ask(&service, &format!("GET /demo/a?versionId={version}"), "", b"").await;
        assert_eq!(new.body, b"halfrest");
    });
}

#[test]
fn a_copy_under_way_keeps_what_was_there() {
    run(async {
        let device = Memory::new();
        let (directory, store) = directory_on(&device).await;
        let service = Service::new(directory);
        open_to_all(&service).await;
        assert_eq!(ask(&service, "PUT /demo/a", "", b"old").await.status, 200);
        assert_eq!(ask(&service, "PUT /demo/from", "", &b"new".repeat(30_000)).await.status, 200);
        store.close().await.expect("it ends");
        let service = Service::new(reopened(&opened(&device).await).await);
        device.slow_down(Duration::from_secs(2));
        let copy = async {
            let copied = ask(&service, "PUT /demo/a", "x-amz-copy-source: /demo/from\r\n", b"").await;
            (copied, Instant::now())
        };
        let switch = async {
            enable(&service).await;
            Instant::now()
        };
        let ((copied, copied_at), switched_at) = join(copy, switch).await;
        assert!(switched_at < copied_at, "it was under way");
        assert_eq!(copied.status, 200, "{copied:?}");
        assert_ne!(copied.header("x-amz-version-id").expect("a version"), "null");
        assert_eq!(unnumbered(&service).await.body, b"old");
    });
}

#[test]
fn a_batch_that_was_begun_keeps_what_was_there() {
    run(async {
        let (directory, _store) = directory().await;
        let service = Service::new(Arc::clone(&directory));
        open_to_all(&service).await;
        for key in ["a", "b"] {
            assert_eq!(ask(&service, &format!("PUT /demo/{key}"), "", b"old").await.status, 200);
        }
        let mut batch = Desk::new(directory).batch();
        batch.put("demo", "a", Head::default(), 3).await.expect("a put");
        batch.content(Bytes::from_static(b"new")).await.expect("its content");
        batch.delete("demo", "b").await.expect("a deletion");
        tokio::time::sleep(Duration::from_secs(1)).await;
        enable(&service).await;
        batch.commit().await.expect("it happens");
        assert_eq!(unnumbered(&service).await.body, b"old");
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, b"new");
        assert_eq!(ask(&service, "GET /demo/b", "", b"").await.status, 404);
        assert_eq!(ask(&service, "GET /demo/b?versionId=null", "", b"").await.body, b"old");
    });
}

#[test]
fn what_is_done_while_versioning_is_switched_is_done_before_or_behind_it() {
    let mut kept = 0;
    for order in 0..60_usize {
        for line in ["PUT /demo/a", "DELETE /demo/a", "POST /demo?delete"] {
            run(async {
                let (directory, store) = directory().await;
                let service = Service::new(directory);
                open_to_all(&service).await;
                assert_eq!(ask(&service, "PUT /demo/a", "", b"old").await.status, 200);
                let body: &[u8] =
                    if line.starts_with("POST") { b"<Delete><Object><Key>a</Key></Object></Delete>" } else { b"" };
                let change = async {
                    for _ in 0..order {
                        tokio::task::yield_now().await;
                    }
                    ask(&service, line, "", body).await
                };
                let switch = async {
                    enable(&service).await;
                    unnumbered(&service).await
                };
                let (changed, then) = join(change, switch).await;
                assert!(matches!(changed.status, 200 | 204), "{line}: {changed:?}");
                let now = unnumbered(&service).await;
                assert_eq!((now.status, &now.body), (then.status, &then.body), "{line} after {order}");
                kept += usize::from(now.body == b"old");
                assert!(store.check_at_once().is_empty());
            });
        }
    }
    assert!((1..180).contains(&kept), "{kept} of all came later");
}
