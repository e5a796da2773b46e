//! Clients that stall.

use crate::asked::{ask, open_service};
use crate::local::run;
use kura_s3::{Service, converse};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

/// A connection whose client has said this, and when it ends, counted from now.
async fn connect(service: &Service, said: &[u8], room_bytes: usize) -> (DuplexStream, JoinHandle<Duration>) {
    let (mut ours, theirs) = duplex(room_bytes);
    let (service, begun) = (service.clone(), Instant::now());
    let ends = spawn_local(async move {
        let (_stop, stopping) = watch::channel(false);
        converse(theirs, service, stopping).await;
        begun.elapsed()
    });
    ours.write_all(said).await.expect("it is listened to");
    (ours, ends)
}

const LEAST: Duration = Duration::from_secs(110);
const MOST: Duration = Duration::from_secs(140);

#[test]
fn a_body_that_does_not_come_on_is_given_up() {
    run(async {
        let (service, store) = open_service().await;
        let free = store.usage().free_bytes;
        for (body, len) in [("PUT /demo/a", 3_000_000), ("POST /demo?delete", 2000), ("PUT /demo?tagging", 2000)] {
            let mut said = format!("{body} HTTP/1.1\r\nHost: s3\r\nContent-Length: {len}\r\n\r\n").into_bytes();
            said.extend_from_slice(&vec![b' '; len / 10]);
            let (mut client, ends) = connect(&service, &said, 1 << 20).await;
            // Others do not wait for it.
            assert_eq!(ask(&service, "PUT /demo/b", "", b"other").await.status, 200);
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.expect("an answer");
            let elapsed = ends.await.expect("the connection ends");
            assert!((LEAST..MOST).contains(&elapsed), "{body}: after {elapsed:?}");
            let heard = String::from_utf8_lossy(&heard).into_owned();
            assert!(heard.starts_with("HTTP/1.1 400 "), "{body}: {heard}");
            if body.starts_with("PUT /demo/a") {
                assert!(heard.contains("RequestTimeout"), "{heard}");
            }
        }
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.status, 404);
        assert!(store.usage().free_bytes + (128 << 10) >= free, "nothing is left of it");
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn a_slow_body_is_waited_for() {
    run(async {
        let (service, _store) = open_service().await;
        let said = b"PUT /demo/a HTTP/1.1\r\nHost: s3\r\nConnection: close\r\nContent-Length: 20480\r\n\r\n";
        let (mut client, ends) = connect(&service, said, 1 << 20).await;
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(100)).await;
            client.write_all(&[7; 2048]).await.expect("it is listened to");
        }
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.expect("an answer");
        ends.await.expect("the connection ends");
        assert!(heard.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&heard));
        assert_eq!(ask(&service, "GET /demo/a", "", b"").await.body, vec![7; 20480]);
    });
}

#[test]
fn an_answer_that_nobody_takes_is_given_up() {
    run(async {
        let (service, store) = open_service().await;
        let content = vec![7; 1_300_000];
        assert_eq!(ask(&service, "PUT /demo/a", "", &content).await.status, 200);
        let said = b"GET /demo/a HTTP/1.1\r\nHost: s3\r\n\r\n";
        let (stalled, ends) = connect(&service, said, 4096).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        // It may be replaced meanwhile; its room is kept for the reader, and no longer than for that.
        assert_eq!(ask(&service, "DELETE /demo/a", "", b"").await.status, 204);
        let elapsed = ends.await.expect("the connection ends");
        assert!((LEAST..MOST).contains(&elapsed), "after {elapsed:?}");
        drop(stalled);
        assert_eq!(ask(&service, "PUT /demo/b", "", &content).await.status, 200);
        assert_eq!(ask(&service, "PUT /demo/b", "", &content).await.status, 200, "its room is back");
        // Who takes it slowly gets all of it.
        let (mut client, ends) =
            connect(&service, b"GET /demo/b HTTP/1.1\r\nHost: s3\r\nConnection: close\r\n\r\n", 1 << 18).await;
        let (mut heard, mut piece) = (Vec::new(), vec![0; 1 << 18]);
        loop {
            tokio::time::sleep(Duration::from_secs(100)).await;
            match client.read(&mut piece).await.expect("an answer") {
                0 => break,
                taken => heard.extend_from_slice(&piece[..taken]),
            }
        }
        ends.await.expect("the connection ends");
        assert!(heard.ends_with(&content), "{} bytes", heard.len());
        assert!(store.check_at_once().is_empty());
    });
}

#[test]
fn an_idle_connection_is_not_stalled_by_what_was_before() {
    run(async {
        let (service, _store) = open_service().await;
        assert_eq!(ask(&service, "PUT /demo/a", "", &[7; 9000]).await.status, 200);
        let (mut client, ends) = connect(&service, b"", 4096).await;
        // Each answer is waited for a little; together longer than anybody may stall.
        for _ in 0..20 {
            client.write_all(b"GET /demo/a HTTP/1.1\r\nHost: s3\r\n\r\n").await.expect("it is listened to");
            tokio::time::sleep(Duration::from_secs(20)).await;
            let mut heard = Vec::new();
            while !heard.ends_with(&[7; 9000]) {
                let mut piece = [0; 4096];
                let taken = client.read(&mut piece).await.expect("an answer");
                assert!(taken > 0, "the connection goes on");
                heard.extend_from_slice(&piece[..taken]);
            }
        }
        drop(client);
        ends.await.expect("the connection ends");
    });
}

#[test]
fn those_who_stall_keep_nobody_from_storing() {
    run(async {
        let (service, store) = open_service().await;
        let mut stalled = Vec::new();
        for _ in 0..300 {
            // Each is to have memory for a whole piece.
            let said = b"PUT /demo/a HTTP/1.1\r\nHost: s3\r\nContent-Length: 2000000\r\n\r\nbegun";
            stalled.push(connect(&service, said, 4096).await);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let content: Vec<u8> = (0..1_300_000_u32).map(|at| (at / 1000) as u8).collect();
        for line in ["PUT /demo/b", "PUT /demo/b"] {
            assert_eq!(ask(&service, line, "", &content).await.status, 200);
        }
        assert!(ask(&service, "GET /demo/b", "", b"").await.body == content);
        drop(stalled);
        assert!(store.check_at_once().is_empty());
    });
}
