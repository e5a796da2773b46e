//! The door from outside: its routes, its guards, its listeners and its client.

use crate::{
    Access, Admin, Client, ClientError, Disks, Follow, KeptSchedule, Listener, NewDisk, NewTransfer, Page, PartHash,
    Problem, ProblemKind, Replica, Replicas, ReplicationJob, Schedules, ServerUri, SnapshotSchedule, Timestamp, Token,
};
use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use kura_controller::Node;
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tower::ServiceExt;
use uuid::Uuid;

/// Every route, as described to clients: removing or renaming one breaks them.
const ROUTES: &[&str] = &[
    "DELETE /api/v1/buckets/{bucket}",
    "DELETE /api/v1/buckets/{bucket}/objects/{key}",
    "DELETE /api/v1/keys/{id}",
    "DELETE /api/v1/snapshot-schedules/{volume}/{prefix}",
    "DELETE /api/v1/snapshots/{name}",
    "DELETE /api/v1/volumes/{name}",
    "DELETE /api/v1/volumes/{name}/recording",
    "GET /api/v1/buckets",
    "GET /api/v1/buckets/{bucket}/objects",
    "GET /api/v1/buckets/{bucket}/objects/{key}",
    "GET /api/v1/buckets/{bucket}/objects/{key}/content",
    "GET /api/v1/controllers",
    "GET /api/v1/disks",
    "GET /api/v1/jobs",
    "GET /api/v1/jobs/{id}",
    "GET /api/v1/jobs/{id}/events",
    "GET /api/v1/keys",
    "GET /api/v1/pool",
    "GET /api/v1/recordings",
    "GET /api/v1/replicas",
    "GET /api/v1/replicas/{volume}",
    "GET /api/v1/replication-jobs",
    "GET /api/v1/snapshot-schedules",
    "GET /api/v1/snapshots",
    "GET /api/v1/snapshots/{name}",
    "GET /api/v1/snapshots/{name}/changes",
    "GET /api/v1/snapshots/{name}/frame",
    "GET /api/v1/snapshots/{name}/hash",
    "GET /api/v1/status",
    "GET /api/v1/tier",
    "GET /api/v1/tier/moves",
    "GET /api/v1/volumes",
    "GET /api/v1/volumes/{name}",
    "GET /api/v1/volumes/{name}/heat",
    "GET /api/v1/volumes/{name}/recording",
    "GET /api/v1/volumes/{name}/recording/requests",
    "GET /api/v1/volumes/{name}/tier",
    "GET /api/v1/volumes/{name}/tier/why",
    "GET /healthz",
    "GET /metrics",
    "PATCH /api/v1/volumes/{name}",
    "PATCH /api/v1/volumes/{name}/tier",
    "POST /api/v1/batch",
    "POST /api/v1/buckets",
    "POST /api/v1/check",
    "POST /api/v1/controllers/{id}/drain",
    "POST /api/v1/controllers/{id}/resume",
    "POST /api/v1/disks",
    "POST /api/v1/disks/{id}/fail",
    "POST /api/v1/disks/{id}/remove",
    "POST /api/v1/disks/{id}/replace",
    "POST /api/v1/jobs/{id}/cancel",
    "POST /api/v1/keys",
    "POST /api/v1/replicas/{volume}/frames",
    "POST /api/v1/replicas/{volume}/points",
    "POST /api/v1/replicas/{volume}/promote",
    "POST /api/v1/replicas/{volume}/transfer",
    "POST /api/v1/snapshot-schedules",
    "POST /api/v1/snapshots",
    "POST /api/v1/snapshots/{name}/clone",
    "POST /api/v1/snapshots/{name}/rollback",
    "POST /api/v1/volumes",
    "POST /api/v1/volumes/{name}/move",
    "POST /api/v1/volumes/{name}/recording",
    "POST /api/v1/volumes/{name}/recording/stop",
    "PUT /api/v1/buckets/{bucket}/objects/{key}/content",
    "PUT /api/v1/replicas/{volume}",
];

/// What a browser is shown.
const PAGES: &[Page] = &[Page { path: "/", media_type: "text/html", content: b"<p>console</p>" }];

/// A machine without disks.
struct NoDisks;

impl Disks for NoDisks {
    fn last_path(&self, _disk: Uuid) -> Option<String> {
        None
    }

    fn inspect(&self, new: &NewDisk) -> kura_block::Result<u64> {
        Err(kura_block::Error::invalid(format!("{}: there is no such disk", new.path)))
    }

    fn prepare(&self, new: &NewDisk, _disk: Uuid) -> kura_block::Result<String> {
        Err(kura_block::Error::invalid(format!("{}: there is no such disk", new.path)))
    }

    fn joined(&self, _path: &str) {}
}

/// A server that keeps no schedules.
struct NoSchedules;

impl Schedules for NoSchedules {
    fn list(&self) -> Vec<KeptSchedule> {
        Vec::new()
    }

    fn add(&self, _volume: u64, new: SnapshotSchedule) -> kura_block::Result<()> {
        Err(kura_block::Error::invalid(format!("volume {}: no schedules here", new.volume)))
    }

    fn check_remove(&self, volume: &str, prefix: &str) -> kura_block::Result<()> {
        self.remove(volume, prefix)
    }

    fn remove(&self, volume: &str, prefix: &str) -> kura_block::Result<()> {
        Err(kura_block::Error::missing(format!("volume {volume} has no schedule {prefix}")))
    }
}

/// A server that keeps no copies of volumes.
struct NoReplicas;

fn no_replica<T>(volume: &str) -> kura_block::Result<T> {
    Err(kura_block::Error::missing(format!("volume {volume}: is not a copy")))
}

#[async_trait::async_trait]
impl Replicas for NoReplicas {
    async fn jobs(&self) -> kura_block::Result<Vec<ReplicationJob>> {
        Ok(Vec::new())
    }

    async fn list(&self) -> kura_block::Result<Vec<Replica>> {
        Ok(Vec::new())
    }

    async fn follow(&self, volume: &str, _how: Follow) -> kura_block::Result<Replica> {
        no_replica(volume)
    }

    async fn begin(&self, volume: &str, _new: NewTransfer) -> kura_block::Result<Replica> {
        no_replica(volume)
    }

    async fn apply(&self, volume: &str, _frame: Bytes) -> kura_block::Result<()> {
        no_replica(volume)
    }

    async fn complete(&self, volume: &str, _to: &str) -> kura_block::Result<Replica> {
        no_replica(volume)
    }

    async fn promote(&self, volume: &str) -> kura_block::Result<Replica> {
        no_replica(volume)
    }

    async fn check_free(&self, _volume: &str) -> kura_block::Result<()> {
        Ok(())
    }

    fn follows(&self, _volume: &str, _id: u64) -> bool {
        false
    }

    async fn check_unneeded(&self, _name: &str) -> kura_block::Result<()> {
        Ok(())
    }

    async fn frame(&self, snapshot: &str, _since: Option<&str>, _offset: u64) -> kura_block::Result<Bytes> {
        no_replica(snapshot)
    }

    async fn hash(&self, snapshot: &str, _offset: u64) -> kura_block::Result<PartHash> {
        no_replica(snapshot)
    }
}

/// The routes over a node without controllers: enough for everything that does not reach one.
fn routes() -> Router {
    crate::router(Admin {
        node: Node::new(vec![]),
        metrics: PrometheusBuilder::new().build_recorder().handle(),
        version: "1.2.3".to_owned(),
        data: "/data".to_owned(),
        nbd: vec![],
        s3: None,
        s3_failure: None,
        rest: None,
        disks: Arc::new(NoDisks),
        objects: None,
        objects_volume: "objects",
        schedules: Arc::new(NoSchedules),
        replicas: Arc::new(NoReplicas),
        passed_percent: watch::channel(None).1,
        started_at: Timestamp::now(),
    })
}

async fn ask(method: &str, path: &str, body: &str) -> (StatusCode, Vec<u8>) {
    let request = Request::builder().method(method).uri(path).header(header::CONTENT_TYPE, "application/json");
    let response = routes().oneshot(request.body(Body::from(body.to_owned())).unwrap()).await.unwrap();
    (response.status(), response.into_body().collect().await.unwrap().to_bytes().to_vec())
}

#[tokio::test]
async fn every_route_is_described() {
    let (status, body) = ask("GET", "/api/v1/openapi.json", "").await;
    assert_eq!(status, StatusCode::OK);
    let api: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!((&api["openapi"], &api["info"]["version"]), (&Value::from("3.1.0"), &Value::from("1.2.3")));
    assert_eq!(api["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    assert_eq!(api["security"], serde_json::json!([{ "token": [] }, {}]), "a token, or none where the server has none");
    let mut described = vec![];
    for (path, methods) in api["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            described.push(format!("{} {path}", method.to_uppercase()));
            assert!(operation["summary"].is_string() || operation["description"].is_string(), "{method} {path}");
        }
    }
    described.sort();
    assert_eq!(described, ROUTES);
    let dangling = dangling_references(&api, &api);
    assert!(dangling.is_empty(), "schemas referred to and not described: {dangling:?}");
}

fn dangling_references(api: &Value, part: &Value) -> Vec<String> {
    match part {
        Value::Object(fields) => {
            let reference = fields.get("$ref").and_then(Value::as_str);
            let dangling = reference.filter(|to| api.pointer(to.trim_start_matches('#')).is_none());
            let below = fields.values().flat_map(|field| dangling_references(api, field));
            dangling.map(str::to_owned).into_iter().chain(below).collect()
        }
        Value::Array(items) => items.iter().flat_map(|item| dangling_references(api, item)).collect(),
        _ => vec![],
    }
}

#[tokio::test]
async fn what_cannot_be_served_is_a_problem_with_its_status() {
    let cases = [
        ("GET", "/api/v1/nothing", "", StatusCode::NOT_FOUND, ProblemKind::Missing),
        ("GET", "/api/v1/volumes/", "", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("POST", "/api/v1/snapshots//rollback", "{}", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("GET", "/api/v1/jobs/7", "", StatusCode::NOT_FOUND, ProblemKind::Missing),
        ("GET", "/api/v1/jobs/7/events", "", StatusCode::NOT_FOUND, ProblemKind::Missing),
        ("POST", "/api/v1/jobs/7/cancel", "", StatusCode::NOT_FOUND, ProblemKind::Missing),
        ("GET", "/api/v1/jobs/seven", "", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("POST", "/api/v1/disks/70000/fail", "", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("POST", "/api/v1/disks", r#"{"path":"x","class":"slow"}"#, StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("GET", "/api/v1/pool", "", StatusCode::SERVICE_UNAVAILABLE, ProblemKind::Retry),
        ("PUT", "/api/v1/volumes", "", StatusCode::METHOD_NOT_ALLOWED, ProblemKind::Invalid),
        ("POST", "/api/v1/volumes", "{", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("POST", "/api/v1/volumes", r#"{"name":"a"}"#, StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        (
            "POST",
            "/api/v1/volumes",
            r#"{"name":"a","size_bytes":4096,"colour":1}"#,
            StatusCode::BAD_REQUEST,
            ProblemKind::Invalid,
        ),
        ("POST", "/api/v1/volumes", r#"{"name":"a","size_bytes":-1}"#, StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("GET", "/api/v1/volumes/a/recording", "", StatusCode::NOT_FOUND, ProblemKind::Missing),
        ("GET", "/api/v1/volumes/a/recording/requests", "", StatusCode::NOT_FOUND, ProblemKind::Missing),
        ("POST", "/api/v1/volumes/a/recording", r#"{"memory":1}"#, StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("DELETE", "/api/v1/volumes/a?force=maybe", "", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("DELETE", "/api/v1/volumes/a?dry_run=perhaps", "", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
        ("POST", "/api/v1/disks/0/fail?dryrun=true", "", StatusCode::BAD_REQUEST, ProblemKind::Invalid),
    ];
    for (method, path, body, status, kind) in cases {
        let (answered, text) = ask(method, path, body).await;
        let problem: Problem = serde_json::from_slice(&text)
            .unwrap_or_else(|error| panic!("{method} {path}: {error}: {}", String::from_utf8_lossy(&text)));
        assert_eq!((answered, problem.kind), (status, kind), "{method} {path} {body}: {problem}");
        assert!(!problem.error.contains('\n') && !problem.error.is_empty(), "one line: {problem}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused() {
    let long = format!(r#"{{"name":"{}","size_bytes":4096}}"#, "a".repeat(1 << 20));
    let (status, text) = ask("POST", "/api/v1/volumes", &long).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{}", String::from_utf8_lossy(&text));
}

#[test]
fn the_kind_of_an_error_says_its_status() {
    use axum::response::IntoResponse;
    use kura_block::{Error, Kind};
    let cases = [
        (Kind::Retry, 503),
        (Kind::Full, 507),
        (Kind::Fenced, 503),
        (Kind::Corrupt, 500),
        (Kind::Device, 500),
        (Kind::Invalid, 400),
        (Kind::Missing, 404),
        (Kind::Exists, 409),
        (Kind::Busy, 409),
        (Kind::ReadOnly, 403),
    ];
    for (kind, status) in cases {
        let response = Problem::from(Error::new(kind, "volume a: why")).into_response();
        assert_eq!(response.status().as_u16(), status, "{kind:?}");
        assert_eq!(response.headers().contains_key(header::RETRY_AFTER), kind == Kind::Retry);
    }
}

async fn unknown_job(client: &Client) -> Result<(), ClientError> {
    client.follow(9, |_| ()).await.map(|_| ())
}

fn kind(answer: Result<(), ClientError>) -> ProblemKind {
    match answer {
        Err(ClientError::Refused(problem)) => problem.kind,
        other => panic!("no refusal: {other:?}"),
    }
}

#[tokio::test]
async fn a_unix_socket_is_open_and_closes_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let client = Client::new(ServerUri::Unix(path.clone()), None, None);
    assert!(matches!(unknown_job(&client).await, Err(ClientError::NoServer { .. })));

    let (stop, stopped) = watch::channel(false);
    let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
    let server = tokio::spawn(crate::serve(listener, Access::Reach, routes(), PAGES, stopped));
    assert_eq!(kind(unknown_job(&client).await), ProblemKind::Missing);

    stop.send(true).unwrap();
    server.await.unwrap();
    assert!(matches!(unknown_job(&client).await, Err(ClientError::NoServer { .. })));
}

fn tls() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server =
        ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    (Arc::new(server), Arc::new(client.with_root_certificates(roots).with_no_client_auth()))
}

#[tokio::test]
async fn a_port_with_tls_and_a_token_is_open_to_the_token() {
    let (server, trust) = tls();
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at: ServerUri = format!("https://localhost:{}", tcp.local_addr().unwrap().port()).parse().unwrap();
    let (_stop, stopped) = watch::channel(false);
    let access = Access::Token(Token::new("open sesame"));
    tokio::spawn(crate::serve(Listener::Tls(tcp, server), access, routes(), PAGES, stopped));

    let with = |token: Option<&str>| Client::new(at.clone(), token.map(Token::new), Some(Arc::clone(&trust)));
    assert_eq!(kind(unknown_job(&with(Some("open sesame"))).await), ProblemKind::Missing);
    assert_eq!(kind(unknown_job(&with(Some("open sesam"))).await), ProblemKind::Unauthorized);
    assert_eq!(kind(unknown_job(&with(None)).await), ProblemKind::Unauthorized);
    let plain: ServerUri = at.to_string().replace("https", "http").parse().unwrap();
    assert!(matches!(unknown_job(&Client::new(plain, None, None)).await, Err(ClientError::Garbled { .. })));
}

#[tokio::test]
async fn an_open_port_is_closed_to_other_sites() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = tcp.local_addr().unwrap().port();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(crate::serve(Listener::Tcp(tcp), Access::ThisMachine, routes(), PAGES, stopped));

    let by_address: ServerUri = format!("http://127.0.0.1:{port}").parse().unwrap();
    assert_eq!(kind(unknown_job(&Client::new(by_address, None, None)).await), ProblemKind::Missing);
    let mut rebound = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let request = b"GET /api/v1/jobs HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut rebound, request).await.unwrap();
    let mut answer = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut rebound, &mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("\"kind\":\"forbidden\""), "{answer}");
}

#[tokio::test]
async fn recorded_requests_come_in_pieces_of_any_size_and_a_broken_answer_is_told() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let line = |number: u64| {
        format!(r#"{{"number":{number},"at_ns":5,"op":"flush","offset_bytes":0,"len_bytes":0,"response_ns":1}}"#)
    };
    let pieces = [line(0), "\n".into(), line(1) + "\n" + &line(2)[..9], line(2)[9..].to_owned() + "\n" + &line(3)];
    for (end, whole) in [("0\r\n\r\n", true), ("", false)] {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at: ServerUri = format!("http://{}", tcp.local_addr().unwrap()).parse().unwrap();
        let pieces = pieces.clone();
        tokio::spawn(async move {
            let (mut stream, _) = tcp.accept().await.unwrap();
            // The request is short: one read has it all.
            assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await.unwrap();
            for piece in pieces {
                stream.write_all(format!("{:x}\r\n{piece}\r\n", piece.len()).as_bytes()).await.unwrap();
                tokio::task::yield_now().await;
            }
            stream.write_all(end.as_bytes()).await.unwrap();
        });
        let mut requests = Client::new(at, None, None).recorded("a").await.unwrap();
        for number in 0..3 {
            assert_eq!(requests.next().await.unwrap().map(|request| request.number), Some(number));
        }
        match requests.next().await {
            Ok(None) if whole => {}
            Err(ClientError::BrokeOff { .. }) if !whole => {}
            other => panic!("at the end {end:?}: {other:?}"),
        }
    }
}

/// The server answers before it has the body, and closes: what it said is told, not that it closed.
#[tokio::test]
async fn an_answer_that_comes_before_the_body_has_gone_is_heard() {
    use futures::StreamExt;
    use std::io::{Read, Write};
    use std::sync::mpsc;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (closed, closes) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        let full = serde_json::to_string(&Problem::new(ProblemKind::Full, "the pool is full")).unwrap();
        let head = format!("HTTP/1.1 507 Full\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", full.len());
        stream.write_all((head + &full).as_bytes()).unwrap();
        drop(stream);
        closed.send(()).unwrap();
    });
    // The next piece is written when the server has gone, and before the client has looked for an answer.
    let piece = move |number: u32| {
        if number == 1 {
            closes.recv().unwrap();
        }
        Ok(Bytes::from(vec![0; 1 << 20]))
    };
    let content = futures::stream::iter(0..4).map(piece).boxed();
    let client = Client::new(ServerUri::Unix(path), None, None);
    let written = client.write_object("a", "b", &crate::ObjectHead::default(), None, content).await;
    assert_eq!(kind(written.map(drop)), ProblemKind::Full);
    server.join().unwrap();
}

#[tokio::test]
async fn what_cannot_be_sent_is_not_the_servers_fault() {
    use futures::StreamExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("admin.sock");
    let (_stop, stopped) = watch::channel(false);
    let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
    tokio::spawn(crate::serve(listener, Access::Reach, routes(), PAGES, stopped));
    let broken = Err(kura_block::Error::device("/a: cannot be read"));
    let content = futures::stream::iter([Ok(Bytes::from_static(b"one")), broken]).boxed();
    let client = Client::new(ServerUri::Unix(path), None, None);
    let written = client.write_object("a", "b", &crate::ObjectHead::default(), Some(6), content).await;
    assert!(
        matches!(&written, Err(ClientError::Unsent(error)) if error.to_string() == "/a: cannot be read"),
        "{written:?}"
    );
}

#[tokio::test]
async fn a_refused_batch_is_read_to_its_end() {
    use futures::StreamExt;
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let pieces = futures::stream::iter(0..4).map(move |_| {
        counted.fetch_add(1, Relaxed);
        Ok::<_, kura_block::Error>(Bytes::from_static(b"step"))
    });
    let request = Request::post("/api/v1/batch").body(Body::from_stream(pieces)).unwrap();
    let answer = routes().oneshot(request).await.unwrap();
    assert!(!answer.status().is_success());
    assert_eq!(read.load(Relaxed), 4);
}

#[tokio::test]
async fn only_so_many_frames_are_read_at_once() {
    let (routes, read) = (routes(), Arc::new(AtomicUsize::new(0)));
    let frame = || {
        let counted = Arc::clone(&read);
        // It begins, and never ends.
        let body = futures::stream::once(async move {
            counted.fetch_add(1, Relaxed);
            std::future::pending::<kura_block::Result<Bytes>>().await
        });
        Request::post("/api/v1/replicas/a/frames").body(Body::from_stream(body)).unwrap()
    };
    let sent: Vec<_> = (0..20).map(|_| tokio::spawn(routes.clone().oneshot(frame()))).collect();
    while read.load(Relaxed) < 16 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(read.load(Relaxed), 16);
    sent.iter().take(1).for_each(tokio::task::JoinHandle::abort);
    while read.load(Relaxed) < 17 {
        tokio::task::yield_now().await;
    }
}

/// What the door says to a request without headers of its own.
async fn said(at: std::net::SocketAddr, request: &str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(at).await.unwrap();
    let request = format!("{request} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_page_is_shown_to_all_and_what_it_asks_for_is_not() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = tcp.local_addr().unwrap();
    let (_stop, stopped) = watch::channel(false);
    let access = Access::Token(Token::new("open sesame"));
    tokio::spawn(crate::serve(Listener::Tcp(tcp), access, routes(), PAGES, stopped));
    let page = said(at, "GET /").await;
    assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("<p>console</p>"), "{page}");
    assert!(page.contains("frame-ancestors 'none'") && page.contains("content-type: text/html\r\n"), "{page}");
    for request in ["GET /api/v1/status", "GET /metrics", "GET //", "GET /index.html"] {
        let answer = said(at, request).await;
        assert!(answer.starts_with("HTTP/1.1 401 "), "{request}: {answer}");
    }
}

#[tokio::test]
async fn every_problem_has_the_number_of_its_request() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = tcp.local_addr().unwrap();
    let (_stop, stopped) = watch::channel(false);
    tokio::spawn(crate::serve(Listener::Tcp(tcp), Access::ThisMachine, routes(), PAGES, stopped));
    for (request, status) in [("PUT /api/v1/volumes", 405), ("GET /api/v1/nothing", 404)] {
        let answer = said(at, request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(serde_json::from_str::<Problem>(body).unwrap().request_id.is_some(), "{answer}");
    }
}
